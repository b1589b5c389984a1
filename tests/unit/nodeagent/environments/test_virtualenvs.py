"""Requirements as they are read, and environments as they are built."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodeagent.environments.builds import Builds
from nodeagent.environments.downloads import Downloads
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.environments.requirements import read_requirements
from nodeagent.environments.sandbox import BuildLimits, Sandbox, Task, base_python
from nodeagent.environments.virtualenvs import Environments
from nodeagent.folders import ReplicaFolder, flush_filesystem
from nodeagent.machine.accounts import Accounts
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.replica.preparation_steps import Draft, PythonHook
from nodeagent.storage.eviction import NoRoom
from nsml.common.clock import in_own_thread, in_thread
from nsml.packages.requirements import HERE, Requirements
from nsml.v1 import agents_pb2 as pb
from tests.support.sandboxes import USUAL, environments_in, isolation_here, sandbox_here, strongest
from tests.support.wheels import index_of, make_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose pip is configured to look into one folder."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def python(environment_folder: Path, code: str) -> str:
    command = [str(environment_folder / "bin" / "python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def code_with(tmp_path: Path, **files: str) -> Path:
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    for name, content in files.items():
        (code / name.replace("_dot_", ".")).write_text(content)
    return code


def test_no_files_ask_for_nothing(tmp_path: Path) -> None:
    assert read_requirements(code_with(tmp_path)) == Requirements()


def test_setup_comes_before_requirements(tmp_path: Path) -> None:
    code = code_with(
        tmp_path,
        setup_dot_py="#nsml: nsml/ml:cuda9\nfrom distutils.core import setup\n"
        "setup(name='x', install_requires=['numpy>=1.0', 'torch==1.0; python_version > \"3\"'])\n",
        requirements_dot_txt="# comment\nnumpy>=1.0\n\npillow[extra] ~= 9.0  # why\ntqdm\n",
    )
    found = read_requirements(code)
    assert found.lines == (
        "numpy>=1.0",
        'torch==1.0; python_version > "3"',
        "pillow[extra] ~= 9.0",
        "tqdm",
    )
    assert found.image == "nsml/ml:cuda9"


@pytest.mark.parametrize("line", ["#nsml: a/b", "# nsml: a/b", "#nsml:a/b"])
def test_image_lines(tmp_path: Path, line: str) -> None:
    assert read_requirements(code_with(tmp_path, requirements_dot_txt=line)).image == "a/b"


def test_a_name_of_a_list_is_followed(tmp_path: Path) -> None:
    setup = "import setuptools\nneeded = ('a', 'b')\nsetuptools.setup(install_requires=needed)\n"
    assert read_requirements(code_with(tmp_path, setup_dot_py=setup)).lines == ("a", "b")


def test_setup_is_never_executed(tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    setup = (
        f"open({str(trap)!r}, 'w')\nfrom distutils.core import setup\n"
        f"setup(install_requires=[open({str(trap)!r}, 'w').name])\n"
    )
    found = read_requirements(code_with(tmp_path, setup_dot_py=setup))
    assert found.lines == ()
    assert "computes" in found.notes[0]
    assert not trap.exists()


@pytest.mark.parametrize("separator", ["\n", "\r", "\x0c", "\u2028"])
def test_a_requirement_of_two_lines_is_refused(tmp_path: Path, separator: str) -> None:
    requirement = f"name==1{separator}--no-binary :all:"
    setup = f"from setuptools import setup\nsetup(install_requires=[{requirement!r}])\n"
    with pytest.raises(EnvironmentFailed, match="line break"):
        read_requirements(code_with(tmp_path, setup_dot_py=setup))


@pytest.mark.parametrize("setup", ["print 'python 2'\n", "-" * 200_000 + "1", "1+" * 200_000 + "1"])
def test_unreadable_python_is_a_note(tmp_path: Path, setup: str) -> None:
    found = read_requirements(code_with(tmp_path, setup_dot_py=setup))
    assert found.lines == ()
    assert "setup.py" in found.notes[0]


def test_included_files_stand_in_their_place(tmp_path: Path) -> None:
    code = code_with(
        tmp_path,
        requirements_dot_txt="a\n-r more.txt\nc \\\n  >= 2\n",
        more_dot_txt="b==1 --hash=sha256:00\n--extra-index-url https://index.example/simple\n",
    )
    assert read_requirements(code).lines == (
        "a",
        "b==1 --hash=sha256:00",
        "--extra-index-url https://index.example/simple",
        "c    >= 2",
    )


@pytest.mark.parametrize(
    "line",
    [
        "-e .", ".", "./package", "/etc", "git+https://example.com/x.git", "x @ git+ssh://host/x",
        "https://example.com/x.tar.gz", "x @ file:///etc/passwd", "-r ../other.txt", "-r /etc/passwd",
        "--no-binary :all:", "--install-option=--x", "-f /srv/wheels", "--trusted-host x", "a b",
        "--global-option=x", "'unclosed", "name; import os\n-e .", "file:x.whl", "-c limits.txt",
        "https://example.com/x.tar.gz#x.whl", "x @ https://example.com/x.tar.gz?x.whl",
        "x @ https://example.com/${HOME}.whl", "--index-url https://example.com/${HOME}", "x==${A}",
    ],
)  # fmt: skip
def test_what_would_run_or_read_foreign_things_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnvironmentFailed):
        read_requirements(code_with(tmp_path, requirements_dot_txt=line))


@pytest.mark.parametrize(
    "line",
    ["https://example.com/x.tar.gz", "x @ https://example.com/x-1.zip", "x @ https://e.c/x.whl"],
)
def test_where_packages_may_be_built_their_archives_are_taken(tmp_path: Path, line: str) -> None:
    code = code_with(tmp_path, requirements_dot_txt=line)
    assert read_requirements(code, may_build=True).lines == (line,)


@pytest.mark.parametrize(
    "line",
    [
        *("-e .", ".", "/etc", "git+https://example.com/x.git", "x @ file:///etc/passwd", "; id"),
        *("-r ../other.txt", "--install-option=--x", "-f /srv/wheels", "$(id)", "`id`", "x && id"),
        *("x==${A}", "--target /etc", "x | sh", "http://example.com/x.tar.gz", "-c x"),
    ],
)
def test_even_there_nothing_else_is(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnvironmentFailed):
        read_requirements(code_with(tmp_path, requirements_dot_txt=line), may_build=True)


def test_packages(tmp_path: Path) -> None:
    listed = "# for cv2\nlibgl1\n\nlibglib2.0-0  # too\ng++\nfoo:i386\nbar=1:2.0~rc1-3+b1\nlibgl1\n"
    found = read_requirements(code_with(tmp_path, nsml_package_dot_txt=listed))
    assert found.packages == ("libgl1", "libglib2.0-0", "g++", "foo:i386", "bar=1:2.0~rc1-3+b1")


@pytest.mark.parametrize(
    "line",
    [
        *(
            "a b",
            "a;id",
            "$(id)",
            "`id`",
            "-y",
            "--force-yes",
            "-oDpkg::Options::=x",
            "../x.deb",
            "./x",
        ),
        *("/tmp/x.deb", "Upper", "a\0", "a/unstable", "libgl1-", "x|y", "a&", "ä", "x" * 200),
    ],
)
def test_what_names_no_package_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnvironmentFailed, match=r"nsml_package\.txt"):
        read_requirements(code_with(tmp_path, nsml_package_dot_txt=f"libgl1\n{line}\n"))


@pytest.mark.parametrize("line", ["#nsml: x;reboot", "#nsml: bad name", "#nsml:"])
def test_an_image_line_that_names_none_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnvironmentFailed, match=f"setup.py, line 1: {line!r} names no image"):
        read_requirements(code_with(tmp_path, setup_dot_py=f"{line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        "psutil==5.9 --no-binary psutil",
        "psutil --pre",
        "x -e y",
        "x; a > '1' --pre",
        "https://x.y/z.whl -r o",
    ],
)
def test_options_behind_a_package_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(EnvironmentFailed, match="is not installed"):
        read_requirements(code_with(tmp_path, requirements_dot_txt=f"{line}\n"))


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="deeply"):
        read_requirements(code_with(tmp_path, requirements_dot_txt="-r requirements.txt"))


def test_links_are_not_followed(tmp_path: Path) -> None:
    code = code_with(tmp_path)
    (code / "requirements.txt").symlink_to("/etc/hostname")
    with pytest.raises(EnvironmentFailed):
        read_requirements(code)


def test_neither_folders_that_are_links_nor_hard_links_lead_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret of root")
    code = tmp_path / "code"
    code.mkdir()
    (code / "sub").symlink_to(tmp_path)
    (code / "requirements.txt").write_text("-r sub/secret.txt")
    with pytest.raises(EnvironmentFailed, match="cannot be read") as refused:
        read_requirements(code)
    assert "secret of root" not in str(refused.value)
    if os.geteuid() == 0:  # a folder of another user's, who linked to what only root reads
        os.chown(code, 1_912_345_678, -1)
        (code / "requirements.txt").unlink()
        os.link(secret, code / "requirements.txt")
        with pytest.raises(EnvironmentFailed, match="another user"):
            read_requirements(code)


def test_the_base_environment_is_bare_and_not_the_platform(tmp_path: Path) -> None:
    environments = environments_in(tmp_path)
    made = environments.provide(Requirements(), lambda _: None, owner="kim")
    assert python(made.folder, "import sys; print(sys.prefix)") == str(made.folder)
    script = (
        "import importlib.util as u; print([u.find_spec(n) for n in ('pip', 'grpc', 'structlog')])"
    )
    assert python(made.folder, script) == "[None, None, None]"
    assert str(made.base_prefix) == sys.base_prefix


def test_requirements_are_installed_once_by_all_who_ask(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "greeting", "TEXT = 'hello'")
    environments = environments_in(tmp_path)
    said: list[bytes] = []
    wanted = Requirements(lines=("greeting==1.0",))
    with ThreadPoolExecutor(3) as pool:
        made = list(
            pool.map(lambda _: environments.provide(wanted, said.append, owner="kim"), range(3))
        )
    assert len({environment.folder for environment in made}) == 1
    assert python(made[0].folder, "import greeting; print(greeting.TEXT)") == "hello"
    assert b"".join(said).count(b"+ greeting==1.0") == b"".join(said).count(b"Installing 1 req")
    assert bytes(index) not in b"".join(said), "where a machine looks is nothing of the user's"
    before = len(said)
    built_at = made[0].folder.stat().st_ctime_ns
    again = environments_in(tmp_path).provide(wanted, said.append, owner="kim")
    assert (again, len(said)) == (made[0], before)
    assert made[0].folder.stat().st_ctime_ns == built_at


def test_what_is_built_anew_lies_beside_the_old_one_and_is_found_from_then_on(
    tmp_path: Path, index: Path
) -> None:
    make_wheel(index, "greeting", "TEXT = 'old'")
    environments, wanted = environments_in(tmp_path), Requirements(lines=("greeting",))
    built: list[float] = []

    def provided(built_after: float = 0.0) -> Path:
        used: list[str] = []
        made = environments.provide(
            wanted,
            lambda _: None,
            owner="kim",
            use=used.append,
            built_after=built_after,
            built=built.append,
        )
        assert {made.folder.name} == set(used)
        return made.folder

    old = provided()
    assert provided(built[0]) == old, "it is as new as that"
    make_wheel(index, "greeting", "TEXT = 'new'", version="2.0")
    assert provided() == old
    asked_at = time.time()
    new = provided(asked_at)
    assert built[-1] >= asked_at > built[0]
    assert provided(asked_at) == provided() == new, "the attempts after, and other sessions"
    texts = [python(one, "import greeting; print(greeting.TEXT)") for one in (old, new)]
    assert texts == ["old", "new"]
    assert set(environments.stored()) == {old.name, new.name}
    assert environments.remove(old.name, lambda: False)
    assert provided() == new
    assert environments.remove(new.name, lambda: False)
    assert provided() == old, "by the first name again"


@pytest.mark.parametrize("option", ["--index-url", "--extra-index-url", "--find-links"])
def test_requirements_may_name_an_index_of_their_own(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """As in an image: tests/integration/test_images.py."""
    monkeypatch.delenv("PIP_NO_INDEX")
    own = tmp_path / "own"
    own.mkdir()
    make_wheel(own, "greeting", "TEXT = 'own'")
    said: list[bytes] = []
    with index_of(own) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/none")
        place = f"{url}/greeting" if option == "--find-links" else url
        wanted = Requirements(lines=(f"{option} {place}", "greeting"))
        made = environments_in(tmp_path).provide(wanted, said.append, owner="kim")
    assert python(made.folder, "import greeting; print(greeting.TEXT)") == "own"
    assert bytes(index) not in b"".join(said)


def test_an_environment_of_an_earlier_version_is_as_old_as_its_folder(
    tmp_path: Path, index: Path
) -> None:
    make_wheel(index, "greeting", "")
    environments, wanted = environments_in(tmp_path), Requirements(lines=("greeting",))
    built: list[float] = []
    give = partial(environments.provide, wanted, lambda _: None, owner="kim", built=built.append)
    made = give().folder
    made.with_name(f"{made.name}.ready").write_bytes(b"")
    assert give().folder == made
    assert built[1] == made.stat().st_mtime


def test_an_index_may_be_a_folder_whose_pages_lead_to_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = tmp_path / "mirror"
    (mirror / "simple" / "greeting").mkdir(parents=True)
    (mirror / "packages").mkdir()
    wheel = make_wheel(mirror / "packages", "greeting", "TEXT = 'hello'")
    page = mirror / "simple" / "greeting" / "index.html"
    page.write_text(f'<a href="../../packages/{wheel.name}">{wheel.name}</a>')
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{mirror}/simple")
    made = environments_in(tmp_path).provide(
        Requirements(lines=("greeting",)), lambda _: None, owner="kim"
    )
    assert python(made.folder, "import greeting; print(greeting.TEXT)") == "hello"


def test_its_files_are_on_the_disk_before_it_counts_as_whole(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index, "greeting", "TEXT = 'hello'")
    flushed: list[tuple[str, bool, int]] = []

    def flush(folder: Path) -> None:
        files = [path.read_text() for path in folder.rglob("greeting.py")]
        flushed.append((folder.name, folder.with_suffix(".ready").exists(), len(files)))
        flush_filesystem(folder)

    monkeypatch.setattr("nodeagent.environments.virtualenvs.flush_filesystem", flush)
    environments = environments_in(tmp_path)
    for _ in range(2):
        made = environments.provide(
            Requirements(lines=("greeting==1.0",)), lambda _: None, owner="kim"
        )
        assert flushed == [(made.folder.name, False, 1)]


def test_other_lines_are_another_environment(tmp_path: Path) -> None:
    environments = environments_in(tmp_path)
    keys = {
        environments.key(Requirements(lines=lines), "kim")
        for lines in ((), ("a",), ("a", "b"), ("b", "a"))
    }
    assert len(keys) == 4
    assert environments.key(Requirements(notes=("x",)), "kim") == environments.key(
        Requirements(), "kim"
    )


def test_what_one_user_built_is_given_to_no_other_who_names_the_same(
    tmp_path: Path, index: Path
) -> None:
    """A private index may have let only one have it; and who is remade by the same name is another."""
    make_wheel(index, "private", "TEXT = 'of one'")
    environments = environments_in(tmp_path)
    wanted = Requirements(lines=("private==1.0",))
    first = environments.provide(wanted, lambda _: None, owner="u-1")
    (index / "private-1.0-py3-none-any.whl").unlink()
    assert environments.provide(wanted, lambda _: None, owner="u-1") == first
    with pytest.raises(EnvironmentFailed, match="private"):
        environments.provide(wanted, lambda _: None, owner="u-2")
    bare = [environments.provide(Requirements(), lambda _: None, owner=one) for one in "ab"]
    assert bare[0] == bare[1]


def test_where_programs_see_the_machines_files_an_environment_is_its_users_alone(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before it lies where others could find it."""
    if os.geteuid():
        pytest.skip("only root gives files to groups")
    make_wheel(index, "private")
    accounts = Accounts(tmp_path, USUAL, by_group=True)
    downloads = Downloads(tmp_path / "downloads")
    environments = Environments(tmp_path / "environments", sandbox_here(), downloads, accounts)
    modes: list[int] = []
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if target.parent == environments.folder:
            modes.append(path.stat().st_mode & 0o777)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    made = environments.provide(Requirements(lines=("private",)), lambda _: None, owner="u-1")
    facts = made.folder.stat()
    assert (facts.st_mode & 0o777, facts.st_gid) == (0o750, accounts.of_user("u-1"))
    bare = environments.provide(Requirements(), lambda _: None, owner="u-1")
    assert bare.folder.stat().st_mode & 0o777 == 0o755
    assert modes == [0o750, 0o755]


async def test_users_are_told_apart_by_their_ids(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the environment and of the downloads that its build goes on from."""
    make_wheel(index, "greeting")
    hook = PythonHook(environments_in(tmp_path), in_own_thread, lambda **_: HERE)
    kept: list[Path | None] = []
    make = Sandbox.make

    def noted(sandbox: Sandbox, place: Path, task: Task, *given: Any, **named: Any) -> None:
        kept.append(task.kept)
        make(sandbox, place, task, *given, **named)

    monkeypatch.setattr(Sandbox, "make", noted)
    made = []
    for number, owner_id in enumerate(["u-1", "u-2", "u-1", ""]):
        folder = ReplicaFolder(tmp_path / str(number))
        folder.create()
        (folder.app / "requirements.txt").write_text("greeting")
        assignment = pb.Assignment(owner="kim", owner_id=owner_id)
        draft = Draft(assignment, folder, PreparationLog(folder, lambda: None))
        await hook.prepare(draft)
        assert draft.python is not None
        made.append(draft.python.folder)
    assert made[0] == made[2]
    assert len(set(made)) == 3
    downloads = Downloads(tmp_path / "downloads")
    assert kept == [downloads.of(one) for one in ("u-1", "u-2", "kim")]


def test_the_builds_of_one_user_run_a_few_at_a_time(tmp_path: Path, index: Path) -> None:
    """In turn, all of them to the end, and each with its own result."""
    names = [f"package{number}" for number in range(6)]
    for name in names:
        make_wheel(index, name, f"TEXT = {name!r}")
    environments = environments_in(tmp_path, limits=BuildLimits(at_once=3, per_owner=1))
    said: dict[str, list[str]] = {name: [] for name in names}
    with ThreadPoolExecutor(len(names)) as pool:
        made = list(
            pool.map(
                lambda name: environments.provide(
                    Requirements(lines=(name,)),
                    lambda _: None,
                    owner="kim",
                    waits=said[name].append,
                ),
                names,
            )
        )
    assert [
        python(one.folder, f"import {n}; print({n}.TEXT)")
        for one, n in zip(made, names, strict=True)
    ] == names
    assert sum(any(words) for words in said.values()) >= 4
    assert all(words[-1:] in ([""], []) for words in said.values())


def test_a_build_that_fills_its_share_of_a_small_disk_blames_the_node(tmp_path: Path) -> None:
    """And ends alone: what it wrote was not promised to another."""
    found = isolation_here()
    free = 256 << 20
    sandbox = Sandbox(
        tmp_path / "builds",
        machine=found.machine,
        level=strongest(found),
        ids=list(USUAL.builds)[:2] if strongest(found) in found.with_accounts else [],
        room=lambda: free,
    )
    fills = "import os\nfile = open(os.environ['TMPDIR'] + '/x', 'wb')\n"
    fills += "while True: file.write(os.urandom(1 << 20)); file.flush()"
    task = Task(argv=[str(base_python()), "-c", fills])
    with (
        sandbox.queue.ticket(
            "kim", memory_bytes=1 << 30, disk_bytes=50_000_000_000, waits=lambda _: None
        ) as ticket,
        pytest.raises(NoRoom, match=r"wrote more than 268\.4 MB, its share") as failed,
    ):
        sandbox.make(tmp_path / "key", task, lambda _: None, turn=ticket.wait(None))
    assert failed.value.errno == errno.ENOSPC


def test_another_python_is_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = environments_in(tmp_path)
    keys = {environments.key(Requirements(), "kim")}
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
    keys.add(environments.key(Requirements(), "kim"))
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    keys.add(environments.key(Requirements(), "kim"))
    assert len(keys) == 3


def test_failure_tells_why_and_leaves_nothing(tmp_path: Path, index: Path) -> None:
    environments = environments_in(tmp_path)
    with pytest.raises(EnvironmentFailed, match="no-such-package was not found"):
        environments.provide(Requirements(lines=("no_such_package",)), lambda _: None, owner="kim")
    folders = [path for path in (tmp_path / "environments").iterdir() if path.is_dir()]
    assert folders == []
    make_wheel(index, "no_such_package", "")
    environments.provide(Requirements(lines=("no_such_package",)), lambda _: None, owner="kim")


def test_a_wheel_that_needs_a_source_archive_runs_nothing_of_it(
    tmp_path: Path, index: Path
) -> None:
    trap, source = tmp_path / "executed", tmp_path / "inner-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    (source / "backend.py").write_text(f"open({str(trap)!r}, 'w')\n")
    archive = shutil.make_archive(str(source), "gztar", tmp_path, source.name)
    make_wheel(index, "outer", "", needs=f"Requires-Dist: inner @ file://{archive}\n")
    environments = environments_in(tmp_path)
    with pytest.raises(EnvironmentFailed, match="does not run code of packages"):
        environments.provide(Requirements(lines=("outer",)), lambda _: None, owner="kim")
    assert not trap.exists()


def test_a_half_built_environment_is_built_anew(tmp_path: Path) -> None:
    environments = environments_in(tmp_path)
    place = tmp_path / "environments" / environments.key(Requirements(), "kim")
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").write_text("garbage of an agent that was killed")
    made = environments.provide(Requirements(), lambda _: None, owner="kim")
    assert python(made.folder, "print(1)") == "1"


def make_source(index: Path, name: str, version: str) -> Path:
    """A source archive; what exists once any of it was run."""
    trap = index.parent / "executed"
    folder = index.parent / f"{name}-{version}"
    folder.mkdir()
    (folder / "setup.py").write_text(f"open({str(trap)!r}, 'w')\n")
    words = f"Metadata-Version: 1.0\nName: {name}\nVersion: {version}\n"
    (folder / "PKG-INFO").write_text(words)
    shutil.make_archive(str(index / folder.name), "gztar", index.parent, folder.name)
    return trap


def test_what_is_source_only_is_said_so(tmp_path: Path, index: Path) -> None:
    trap = make_source(index, "sourceonly", "1.0")
    environments = environments_in(tmp_path)
    with pytest.raises(EnvironmentFailed) as said:
        environments.provide(Requirements(lines=("sourceonly==1.0",)), lambda _: None, owner="kim")
    assert re.match(r"sourceonly==1.0 has no wheel for Python .*, only source", str(said.value))
    assert "no version of it has wheels: ask for a node with containers" in str(said.value)
    assert not trap.exists()


@pytest.mark.parametrize(
    "asked", ["mixed==0.4", "mixed<0.5", "mixed == 0.3.0 ; python_version>'3'"]
)
def test_an_older_version_that_is_source_only_is_said_so(
    tmp_path: Path, index: Path, asked: str
) -> None:
    make_wheel(index, "mixed", "")
    for version in ("0.3", "0.4"):
        trap = make_source(index, "mixed", version)
    environments = environments_in(tmp_path)
    with pytest.raises(EnvironmentFailed, match=r"^mixed.* has no wheel .*only source") as said:
        environments.provide(Requirements(lines=(asked,)), lambda _: None, owner="kim")
    assert "ask for a version that has wheels (1.0)" in str(said.value)
    assert "--image" in str(said.value)
    assert not trap.exists()


def test_a_version_that_is_nowhere_is_not_said_to_be_source_only(
    tmp_path: Path, index: Path
) -> None:
    make_wheel(index, "mixed", "")
    trap = make_source(index, "mixed", "0.4")
    environments = environments_in(tmp_path)
    with pytest.raises(EnvironmentFailed, match="there is no version of mixed==3"):
        environments.provide(Requirements(lines=("mixed==3",)), lambda _: None, owner="kim")
    assert not trap.exists()


def test_another_index_is_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = environments_in(tmp_path)
    keys = []
    places = ("a/simple", "b/simple", "kim:secret@b/simple", "c/team@b/simple", "d/team@b/simple")
    for url in (f"https://{place}" for place in places):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        keys.append(environments.key(Requirements(), "kim"))
    assert (len(set(keys)), keys[1]) == (4, keys[2])


def test_what_is_used_or_built_is_not_removed(tmp_path: Path) -> None:
    environments = environments_in(tmp_path)
    noted: list[str] = []
    made = environments.provide(Requirements(), lambda _: None, use=noted.append, owner="kim")
    assert noted == [made.folder.name] * len(noted)
    assert set(environments.stored()) == set(noted)
    assert not environments.remove(made.folder.name, lambda: True)
    with Builds(environments.folder).unused(made.folder.name):
        assert not environments.remove(made.folder.name, lambda: False)
    assert python(made.folder, "print(1)") == "1"
    assert environments.remove(made.folder.name, lambda: False)
    assert list(environments.folder.iterdir()) == []
    environments.provide(Requirements(), lambda _: None, owner="kim")


def test_cancelling(tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    environments = environments_in(tmp_path)
    with pytest.raises(EnvironmentCancelled):
        environments.provide(Requirements(), lambda _: None, cancelled, owner="kim")
    assert [path for path in (tmp_path / "environments").iterdir() if path.is_dir()] == []


async def test_environments_that_take_long_hold_no_thread_of_others(tmp_path: Path) -> None:
    environments = environments_in(tmp_path)
    (tmp_path / "environments").mkdir()
    hook = PythonHook(environments, in_own_thread, lambda **_: HERE)
    with ExitStack() as held:
        drafts = []
        for number in range(40):
            key = environments.key(Requirements(lines=(f"package-{number}",)), "kim")
            lock = held.enter_context((tmp_path / "environments" / f"{key}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # as of an agent that builds it, and does not get on
            folder = ReplicaFolder(tmp_path / str(number))
            folder.create()
            (folder.app / "requirements.txt").write_text(f"package-{number}")
            drafts.append(
                Draft(pb.Assignment(owner="kim"), folder, PreparationLog(folder, lambda: None))
            )
        async with asyncio.timeout(60):
            preparing = [asyncio.create_task(hook.prepare(draft)) for draft in drafts]
            while len(os.listdir("/proc/self/task")) < len(drafts):  # noqa: ASYNC110, PTH208
                await asyncio.sleep(0)
            assert await in_thread(lambda: "at once") == "at once"
            for task in preparing:
                task.cancel()
            await asyncio.wait(preparing)
