"""Packages that attack the node: what they ask for is refused, and what runs in a build has no rights."""

from __future__ import annotations

import os
import re
import select
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.environments.downloads import Downloads
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.environments.requirements import read_requirements
from nodeagent.environments.sandbox import BuildLimits, Sandbox, Task, base_python
from nodeagent.environments.setups import Setups
from nodeagent.folders import ReplicaFolder
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.limits import probe_limits
from nodeagent.runtimes.records import read_claim, read_exit
from nodeagent.shim.cgroups import (
    BUILDS,
    MEMORY,
    Group,
    names_in,
    parent_group,
    remove_empty,
)
from nsml.packages.project_reader import Listed
from nsml.packages.requirements import Requirements
from tests.support.sandboxes import USUAL, environments_in, isolation_here, sandbox_here, whole_turn
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "only root may read this"
ONLY_WHEELS = "installs wheels only, over http or https"
SMALL = BuildLimits(
    memory_bytes=256 << 20, disk_bytes=48 << 20, files=3_000, process_count=64, time_s=60.0
)


class Index:
    """An index of packages on this machine, which notes what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages: dict[str, str] = {}
        self.redirects: dict[str, str] = {}
        self.asked: list[str] = []
        self.url = ""

    def add(self, name: str, needs: str = "", *, at: str = "simple") -> None:
        """A wheel of that name, with its page."""
        wheel = make_wheel(self.folder, name, needs=needs)
        self.pages[name] = f'<a href="/files/{wheel.name}">{wheel.name}</a>'


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            if self.path in index.redirects:
                self.send_response(302)
                self.send_header("Location", index.redirects[self.path])
                self.end_headers()
                return
            name = self.path.rstrip("/").rpartition("/")[2]
            body, kind = b"", "application/octet-stream"
            if self.path.startswith("/simple/"):
                body, kind = index.pages.get(name, "").encode(), "text/html"
            elif (index.folder / name).exists():
                body = (index.folder / name).read_bytes()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", kind)
            if kind != "text/html":
                self.send_header("Cache-Control", "max-age=600")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that it is called by

        def log_message(self, *_given: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    index.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The index that this machine's pip is configured with."""
    folder = tmp_path / "index"
    folder.mkdir()
    with serving(Index(folder)) as running:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{running.url}/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        yield running


def refusal(tmp_path: Path, *lines: str) -> str:
    """Why an environment with these lines is not made; nothing of it is left."""
    environments = environments_in(tmp_path)
    with pytest.raises(EnvironmentFailed) as refused:
        environments.provide(Requirements(lines=lines), lambda _: None, owner="kim")
    assert not environments.stored()
    assert not [path for path in environments.folder.iterdir() if path.is_dir()]
    return str(refused.value)


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.variant), 2])
def test_an_archive_that_a_package_requires_is_not_even_fetched(
    tmp_path: Path, index: Index, depth: int
) -> None:
    (index.folder / "inner-1.0.tar.gz").write_bytes(b"a chain of links, as of CVE-2025-4517")
    needs = f"Requires-Dist: inner @ {index.url}/files/inner-1.0.tar.gz\n"
    for level in range(depth):
        index.add(f"outer{level}", needs=needs)
        needs = f"Requires-Dist: outer{level}\n"
    assert ONLY_WHEELS in refusal(tmp_path, f"outer{depth - 1}")
    assert not [path for path in index.asked if "inner" in path]


def test_files_of_the_machine_are_nobodys_packages_and_no_answer_tells_which_exist(
    tmp_path: Path, index: Index
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    inner = make_wheel(hidden, "inner", body=f"TEXT = {SECRET!r}")
    said = set()
    for number, path in enumerate((inner, hidden / "absent-1.0-py3-none-any.whl", hidden)):
        index.add(f"outer{number}", needs=f"Requires-Dist: inner @ file://{path}\n")
        why = refusal(tmp_path, f"outer{number}")
        assert ONLY_WHEELS in why
        said.add(why.replace(str(path), "PATH"))
    assert len(said) == 1


@pytest.mark.parametrize("url", ["git+https://127.0.0.1:1/x.git", "git+file:///tmp/x"])
def test_repositories_are_no_packages(tmp_path: Path, index: Index, url: str) -> None:
    index.add("outer", needs=f"Requires-Dist: inner @ {url}\n")
    assert ONLY_WHEELS in refusal(tmp_path, "outer")


def test_links_of_an_index_that_lead_to_files_show_nothing(tmp_path: Path, index: Index) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    wheel = make_wheel(hidden, "inner", body=f"TEXT = {SECRET!r}")
    if sandbox_here().level is Isolation.NAMESPACE:
        index.pages["inner"] = f'<a href="file://{wheel}">{wheel.name}</a>'
        there = refusal(tmp_path, "inner")
        wheel.rename(hidden / "moved.whl")
        assert refusal(tmp_path, "inner") == there, "a build has no such files"
        (hidden / "moved.whl").rename(wheel)
    # a page that sends there, and a file that does
    index.pages["other"] = f'<a href="/files/inner-1.0-py3-none-any.whl">{wheel.name}</a>'
    index.redirects[f"/files/{wheel.name}"] = f"file://{wheel}"
    index.pages["inner"] = index.pages["other"]
    assert SECRET not in refusal(tmp_path, "inner")


def test_hostile_names_and_modes_in_a_wheel_leave_nothing(tmp_path: Path, index: Index) -> None:
    made = make_wheel(
        index.folder,
        "sly",
        body="TEXT = 'sly'",
        files={
            "sly_link": b"/etc/shadow",
            "sly_root": b"#!/bin/sh\n",
            "sly-1.0.data/data/ready": b"the mark of another",
            "sly-1.0.data/scripts/sly": b"#!python\nprint('sly')\n",
        },
        modes={"sly_link": stat.S_IFLNK | 0o777, "sly_root": stat.S_IFREG | 0o6755},
    )
    index.pages["sly"] = f'<a href="/files/{made.name}">{made.name}</a>'
    environments = environments_in(tmp_path)
    folder = environments.provide(Requirements(lines=("sly",)), lambda _: None, owner="kim").folder
    assert (folder / "ready").read_bytes() == b"the mark of another"
    assert (folder / "bin" / "sly").read_text().startswith(f"#!{folder}/bin/python")
    for path in folder.rglob("*"):
        facts = path.lstat()
        assert (facts.st_uid, facts.st_gid) == (os.geteuid(), os.getegid())
        assert stat.S_ISLNK(facts.st_mode) or not facts.st_mode & 0o7222, path
        assert (
            not path.is_symlink()
            or path.name in {"lib64", "python", "python3"}
            or (path.name == base_python().name)
        )
    above = make_wheel(index.folder, "above", files={"../../../../above.txt": b"evil"})
    index.pages["above"] = f'<a href="/files/{above.name}">{above.name}</a>'
    environments.provide(Requirements(lines=("above",)), lambda _: None, owner="kim")
    assert not list(tmp_path.rglob("above.txt"))


def test_a_small_wheel_that_grows_beyond_all_bounds_is_stopped(
    tmp_path: Path, index: Index
) -> None:
    made = make_wheel(index.folder, "bomb", files={"bomb.bin": bytes(100_000_000)})
    assert made.stat().st_size < 110_000
    index.pages["bomb"] = f'<a href="/files/{made.name}">{made.name}</a>'
    environments = environments_in(tmp_path, limits=SMALL)
    with pytest.raises(EnvironmentFailed, match="build_disk_bytes") as stopped:
        environments.provide(Requirements(lines=("bomb",)), lambda _: None, owner="kim")
    # while it grew, or of one that was quicker than a look
    assert re.search(r"(wrote too much: .* of|takes more than) 50\.3 MB", str(stopped.value))
    assert not [path for path in environments.folder.iterdir() if path.is_dir()]


def test_what_was_downloaded_is_kept_for_its_user_alone(tmp_path: Path, index: Index) -> None:
    index.add("one")
    index.add("two")
    environments = environments_in(tmp_path)

    def asked(owner: str, *lines: str) -> bool:
        index.asked.clear()
        environments.provide(Requirements(lines=lines), lambda _: None, owner=owner)
        return any(path.endswith("one-1.0-py3-none-any.whl") for path in index.asked)

    assert asked("kim", "one")
    assert not asked("kim", "one", "two")
    assert asked("lee", "two", "one")
    kept = Downloads(tmp_path / "downloads")
    assert set(kept.stored()) == {kept.of("kim").name, kept.of("lee").name}
    for path in [kept.folder, *kept.folder.glob("*"), *kept.folder.glob("*/*")]:
        assert (path.lstat().st_uid, path.lstat().st_mode & 0o077) == (os.geteuid(), 0)
    assert kept.remove(kept.of("kim").name, lambda: False)
    assert asked("kim", "one", "two", "one==1.0")


@pytest.mark.parametrize(
    "code",
    [
        "os.symlink('/etc', kept)",
        "os.mkdir(kept); os.mkfifo(kept + '/x')",
        # where another user's build may have its own, the next time
        "os.mkdir(kept); os.symlink(kept + '/y', kept + '/x')",
        "os.makedirs(kept + '/archive-v0/x'); os.symlink(kept, kept + '/archive-v0/x/y')",
    ],
)
def test_what_a_hostile_build_leaves_is_not_kept(tmp_path: Path, code: str) -> None:
    begins = "import os; kept = os.environ['KEPT']; "
    argv = [str(base_python()), "-c", begins + code]
    downloads = Downloads(tmp_path / "downloads")
    task = Task(argv=argv, variables={"KEPT": "{kept}"}, kept=downloads.of("kim"))
    sandbox = sandbox_here(limits=SMALL)
    sandbox.make(tmp_path / "key", task, lambda _: None, turn=whole_turn(sandbox))
    assert not downloads.of("kim").is_symlink()
    assert not downloads.stored()


ATTACK = """
import ctypes, os, pathlib, socket, sys

def tried(what, action):
    try:
        print(what, action(), flush=True)
    except OSError as error:
        print(what, "refused", flush=True)

secret, outside, place = map(pathlib.Path, sys.argv[1:])
tried("uid", os.getuid)
tried("capabilities", lambda: [l for l in open("/proc/self/status") if l.startswith("CapEff")][0].split()[1])
tried("secret", secret.read_text)
tried("shadow", pathlib.Path("/etc/shadow").read_text)
tried("data", lambda: os.listdir(place.parent.parent))
tried("outside", lambda: outside.write_text("x"))
tried("system", lambda: pathlib.Path("/usr/evil").write_text("x"))
tried("root", lambda: os.setuid(0))
tried("device", lambda: os.mknod(place / "device", 0o020666, os.makedev(1, 3)))
tried("others", lambda: [p for p in os.listdir("/proc") if p.isdigit() and int(p) > 9][0] if os.getpid() > 9 else "none")
(place / "file").write_text("made")
"""


def test_who_takes_an_installer_over_has_less_than_a_program_of_a_session(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "secret").write_text(SECRET)
    (hidden / "secret").chmod(0o600)
    place = tmp_path / "environments" / "key"
    place.parent.mkdir(mode=0o700)
    argv = [
        str(base_python()),
        "-c",
        ATTACK,
        str(hidden / "secret"),
        str(hidden / "new"),
        str(place),
    ]
    said: list[bytes] = []
    sandbox = sandbox_here()
    sandbox.make(place, Task(argv=argv), said.append, turn=whole_turn(sandbox))
    found = dict(line.split(" ", 1) for line in b"".join(said).decode().splitlines())
    assert int(found["capabilities"], 16) == 0
    if os.geteuid() == 0:
        assert int(found["uid"]) in USUAL.builds
        assert int(found["uid"]) not in set(USUAL.given())
        assert found["root"] == "refused"
    for what in ("shadow", "system", "device"):
        assert found[what] == "refused"
    if sandbox_here().level is Isolation.NAMESPACE:
        for what in ("secret", "outside"):
            assert found[what] == "refused"
        assert found["data"] == "['environments']"
        assert found["others"] == "none" or not isolation_here().machine.with_pid
    assert SECRET not in b"".join(said).decode()
    assert (place / "file").read_text() == "made"
    assert (place / "file").stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os.symlink('/etc/shadow', 'link')", "'link' is a link to a target outside"),
        ("os.symlink('../../etc', 'link')", "'link' is a link to a target outside"),
        (
            "os.makedirs('a/b'); os.symlink('../..', 'a/b/up'); os.symlink('a/b/up/../x', 'link')",
            "is a link to a target outside",
        ),
        ("open('run', 'w'); os.chmod('run', 0o4755)", "'run' is setuid or setgid"),
        ("os.mkdir('run'); os.chmod('run', 0o2755)", "'run' is setuid or setgid"),
        ("os.mkfifo('pipe')", "'pipe' is neither a file nor a folder"),
        (
            "import socket; s = socket.socket(socket.AF_UNIX); s.bind('door')",
            "'door' is neither a file nor a folder",
        ),
        ("open('one', 'w'); os.link('one', 'two')", "has a second name"),
        ("[(os.mkdir('d'), os.chdir('d')) for _ in range(200)]", "lie too deep"),
        ("[open(str(n), 'w') for n in range(3500)]", "more than 3,000 files"),
        ("open('hole', 'wb').truncate(1 << 40)", ""),
    ],
)
def test_a_tree_that_no_installer_makes_is_refused(tmp_path: Path, code: str, says: str) -> None:
    place = tmp_path / "environments" / "key"
    place.parent.mkdir()
    argv = [str(base_python()), "-c", f"import os; os.chdir({str(place)!r}); {code}"]
    sandbox = sandbox_here(limits=SMALL)
    if not says:
        sandbox.make(place, Task(argv=argv), lambda _: None, turn=whole_turn(sandbox))
        assert place.is_dir()
        return
    with pytest.raises(EnvironmentFailed, match=says):
        sandbox.make(place, Task(argv=argv), lambda _: None, turn=whole_turn(sandbox))
    assert not place.exists()
    assert not [path for path in sandbox.folder.iterdir() if path.is_dir() and path.name.isdigit()]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = b'x' * (1 << 30); time.sleep(60)", "killed for memory: .*build_memory_bytes"),
        ("n = 0\nwhile True: open(f'{n}', 'w').close(); n += 1", "over|more than 3,?000 files"),
        ("open('big', 'wb').write(bytes(1 << 28)); time.sleep(60)", "wrote too much.*build_disk"),
        ("time.sleep(60)", "it took longer than 0.5 s.*build_time_limit_s"),
        ("print('nsml: the last word'); sys.exit(3)", "^the last word$"),
    ],
)
def test_a_build_has_limits_of_its_own(tmp_path: Path, code: str, says: str) -> None:
    place = tmp_path / "environments" / "key"
    place.parent.mkdir()
    begins = f"import os, sys, time; os.chdir({str(place)!r})\n"
    limits = replace(SMALL, time_s=0.5) if "0.5" in says else SMALL
    sandbox = sandbox_here(limits=limits)
    task = Task(argv=[str(base_python()), "-c", begins + code])
    with pytest.raises(EnvironmentFailed, match=says):
        sandbox.make(place, task, lambda _: None, turn=whole_turn(sandbox))
    assert not place.exists()


def test_a_setup_file_is_parsed_by_no_process_with_the_agents_rights(tmp_path: Path) -> None:
    """The parser of a whole language is the kernel of many an attack, and little text takes much memory."""
    sandbox = sandbox_here(limits=replace(SMALL, memory_bytes=100 << 20))
    asked: list[Task] = []

    def ask(task: Task, *, most: int, **asker: Any) -> bytes:
        asked.append(task)
        return Sandbox.ask(sandbox, task, most=most, **asker)

    sandbox.ask = ask  # type: ignore[method-assign]
    read = Setups(sandbox).reader(owner="kim").setup
    text = "from setuptools import setup\nsetup(install_requires=['numpy>=1.0', 'tqdm'])\n"
    for _ in range(2):
        assert read(text) == (["numpy>=1.0", "tqdm"], [])
    assert read("from setuptools import setup\nsetup(name='x')\n") == ([], [])
    assert len(asked) == 1
    (_, notes) = read("install_requires = compute()\nsetup(install_requires=install_requires)")
    assert "computes" in notes[0]
    with pytest.raises(EnvironmentFailed, match=r"cannot be read.*requirements\.txt"):
        read("install_requires = 1\n" + "a\n" * 500_000)


def test_projects_and_locks_are_read_in_a_sandbox() -> None:
    read = Setups(sandbox_here()).reader(owner="kim").project
    project = '[project]\nname = "x"\nversion = "1"\ndependencies = ["six"]\n'
    assert read("project", project) == Listed(lines=("six",))
    assert "no TOML" in read("project", "[project").refused
    package = '[[package]]\nname = "p{0}"\nversion = "1"\nsource = {{ registry = "{1}" }}\n'
    every = "".join(package.format(number, "https://pypi.org/simple") for number in range(9_000))
    needs = ", ".join(f'{{ name = "p{number}" }}' for number in range(9_000))
    own = f'[[package]]\nname = "x"\nsource = {{ virtual = "." }}\ndependencies = [{needs}]\n'
    assert len(read("lock", f"version = 1\n{own}{every}", project).lines) == 9_000


@pytest.mark.parametrize("said", [b"", b"5", b"[[], [], 1, 2]", b'[["a"], [], ""]'])
def test_what_a_reader_of_projects_says_is_not_believed(said: bytes) -> None:
    sandbox = sandbox_here()
    sandbox.ask = lambda *_, **__: said  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFailed, match=r"pyproject\.toml cannot be read"):
        Setups(sandbox).reader(owner="kim").project("project", "[project]")


@pytest.mark.parametrize("said", [b"", b"[" * 10_000, b"[[1], []]", b"[[]]", b"{}", b"[[], [[]]]"])
def test_what_a_reader_says_that_was_taken_over_is_not_believed(said: bytes) -> None:
    sandbox = sandbox_here()
    sandbox.ask = lambda *_, **__: said  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFailed, match="cannot be read"):
        Setups(sandbox).reader(owner="kim").setup("install_requires")


@pytest.mark.parametrize(
    "text",
    [
        "a" + " " * 300 + "(" + " " * 300 + ")" + " " * 300 + "!\n",
        "-r b.txt\n" * 200,
        "a\n" * 20_000,
    ],
)
def test_requirements_that_take_for_ever_to_read_are_refused(tmp_path: Path, text: str) -> None:
    """Patterns hold the interpreter: an agent that reads one has no time for its sessions."""
    (tmp_path / "requirements.txt").write_text(text)
    (tmp_path / "b.txt").write_text("-r c.txt\n" * 200)
    (tmp_path / "c.txt").write_text("-r d.txt\n" * 200)
    (tmp_path / "d.txt").write_text("x\n" * 200)
    with pytest.raises(EnvironmentFailed):
        read_requirements(tmp_path, may_build=True)


def test_a_build_is_in_a_control_group_of_its_own(tmp_path: Path) -> None:
    """Which it joins before it has a user namespace, and which goes with it."""
    found = probe_limits(tmp_path, disk_floor_bytes=0, with_groups=True)
    groups = found.groups
    if groups is None:
        pytest.skip(f"no control groups: {found.reason}")
    try:
        builds = parent_group(groups, BUILDS, memory_bytes=SMALL.together_bytes)
        sandbox = Sandbox(
            tmp_path / "builds",
            machine=replace(isolation_here().machine, limits=found),
            level=sandbox_here().level,
            ids=list(USUAL.builds)[-2:] if os.geteuid() == 0 else [],
            limits=SMALL,
        )
        members: list[int] = []

        def look(_said: bytes) -> None:
            for name in names_in(builds):
                members.extend(Group(builds, name).members())

        task = Task(argv=["/bin/sh", "-c", "echo begun; sleep 0.5"])
        sandbox.make(tmp_path / "key", task, look, turn=whole_turn(sandbox))
        assert members
        with pytest.raises(EnvironmentFailed, match=r"killed for memory.*build_memory_bytes"):
            sandbox.ask(
                Task(argv=[str(base_python()), "-c", "x = b'x' * (1 << 30)"]), most=100, owner="kim"
            )
        assert names_in(builds) == names_in(groups) == []
    finally:
        remove_empty(found.places)
        assert not any(map(os.path.exists, builds["folders"].values()))


def test_all_builds_together_keep_to_the_memory_of_their_common_group(tmp_path: Path) -> None:
    """Also where each is within its own, and the kernel ends them before anything else."""
    found = probe_limits(tmp_path, disk_floor_bytes=0, with_groups=True)
    if found.groups is None or MEMORY not in found.groups["folders"]:
        pytest.skip(f"no control groups of memory: {found.reason}")
    sandbox = Sandbox(
        tmp_path / "builds",
        machine=replace(isolation_here().machine, limits=found),
        level=sandbox_here().level,
        ids=list(USUAL.builds)[-2:] if os.geteuid() == 0 else [],
        limits=replace(SMALL, memory_bytes=300 << 20, together_bytes=300 << 20),
    )
    turn = whole_turn(sandbox)
    held = threading.Event()
    said: list[bytes] = []

    def note(words: bytes) -> None:
        said.append(words)
        held.set()

    holds = "x = bytearray(b'x') * (100 << 20); print(open('/proc/self/oom_score_adj').read())"
    holds += "; __import__('time').sleep(600)"
    first = Task(argv=[str(base_python()), "-uc", holds])
    cancelled = threading.Event()
    try:
        with ThreadPoolExecutor(1) as pool:
            held_up = pool.submit(
                sandbox.make, tmp_path / "first", first, note, cancelled, turn=turn
            )
            assert held.wait(60)
            more = Task(argv=[str(base_python()), "-c", "x = bytearray(b'x') * (250 << 20)"])
            with pytest.raises(EnvironmentFailed, match="killed for memory"):
                sandbox.make(tmp_path / "second", more, lambda _: None, turn=turn)
            cancelled.set()
            with pytest.raises(EnvironmentCancelled):
                held_up.result(60)
        assert int(b"".join(said)) == 1000
    finally:
        cancelled.set()
        remove_empty(found.places)


KILLED = """
import os, sys
from pathlib import Path
from nodeagent.environments.sandbox import Sandbox, Task, base_python
from nodeagent.folders import ReplicaFolder
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.records import read_claim, read_exit
from tests.support.sandboxes import isolation_here, strongest, USUAL, whole_turn
found = isolation_here()
level = strongest(found)
ids = list(USUAL.builds)[-1:] if level in found.with_accounts else []
place = Path(sys.argv[1])
sandbox = Sandbox(place.parent / "builds", machine=found.machine, level=level, ids=ids)
if len(sys.argv) > 2:
    task = Task(argv=["/bin/sh", "-c", f"echo made > {place}/file"])
    sandbox.make(place, task, lambda _: None, turn=whole_turn(sandbox))
else:
    task = Task(argv=["/bin/sh", "-c", "echo begun; sleep 3600"])
    turn = whole_turn(sandbox)
    sandbox.make(place, task, lambda said: print(said.decode(), flush=True), turn=turn)
"""


def test_a_build_ends_with_the_agent_that_is_killed_and_the_next_takes_its_place(
    tmp_path: Path,
) -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "key")]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"begun\n"
        folder = ReplicaFolder(tmp_path / "builds" / "0")
        claim = read_claim(folder)
        assert claim is not None
        pidfd = os.pidfd_open(claim.pid)
        agent.kill()
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    assert ended.poll(60_000)
    os.close(pidfd)
    assert read_exit(folder) is not None
    subprocess.run([*command, "again"], env=env, check=True, timeout=60)
    assert (tmp_path / "key" / "file").read_text() == "made\n"
    assert not folder.path.exists()
