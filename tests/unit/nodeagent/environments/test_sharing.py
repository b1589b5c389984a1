"""Environments of one user share the files of wheels, and nobody who runs for that user can write them."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.environments.downloads import Downloads
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.installer import LOCK
from nodeagent.environments.sandbox import BuildLimits, Task, base_python
from nodeagent.environments.virtualenvs import Environments, lock_of
from nodeagent.runtimes.interface import Isolation
from nsml.packages.requirements import Requirements
from tests.support.sandboxes import environments_in, sandbox_here, whole_turn
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


def made(data: Path, *lines: str, owner: str = "kim", **limits: Any) -> Path:
    environments = environments_in(data, limits=BuildLimits(**limits) if limits else None)
    wanted = Requirements(lines=lines)
    return environments.provide(wanted, lambda _: None, owner=owner).folder


def packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def files(environment: Path) -> dict[str, os.stat_result]:
    return {
        str(path.relative_to(environment)): path.lstat()
        for path in packages(environment).rglob("*")
        if not path.is_dir()
    }


def sha256(wheel: Path) -> str:
    return f"--hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"


def test_what_two_environments_have_in_common_is_on_the_disk_once(
    tmp_path: Path, index: Path
) -> None:
    make_wheel(index, "large", "TEXT = 'x'", files={"large_data/x.bin": os.urandom(3_000_000)})
    make_wheel(index, "small")
    first, second = made(tmp_path, "large"), made(tmp_path, "small", "large")
    ours, theirs = files(first), files(second)
    shared = {path for path, facts in ours.items() if theirs[path].st_ino == facts.st_ino}
    names = {Path(path).name for path in shared}
    assert {"large.py", "x.bin", "METADATA"} < names
    assert any(name.endswith(".pyc") for name in names), "and is compiled once"
    assert "RECORD" not in names, "which says what is in one environment"
    for facts in [*ours.values(), *theirs.values()]:
        assert facts.st_uid == os.geteuid()
        assert not facts.st_mode & 0o7222, "nobody writes what another runs"
    new = sum(one.st_blocks * 512 for path, one in theirs.items() if path not in shared)
    assert new < 100_000
    for environment in (first, second):
        run = [str(environment / "bin" / "python"), "-c", "import large; print(large.__cached__)"]
        said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
        assert said in map(str, environment.rglob("*.pyc"))
    other = files(made(tmp_path, "large", owner="lee"))
    assert not {one.st_ino for one in other.values()} & {one.st_ino for one in ours.values()}


def test_they_do_so_too_where_builds_have_no_root_of_their_own(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "greeting", "TEXT = 'hello'")
    make_wheel(index, "other")
    downloads = Downloads(tmp_path / "downloads")
    sandbox = sandbox_here(level=Isolation.NONE)
    environments = Environments(tmp_path / "environments", sandbox, downloads)
    first, second = (
        packages(environments.provide(wanted, lambda _: None, owner="kim").folder)
        for wanted in (Requirements(lines=("greeting",)), Requirements(lines=("greeting", "other")))
    )
    assert (first / "greeting.py").samefile(second / "greeting.py")
    assert not (first / "greeting.py").stat().st_mode & 0o222


def test_they_outlive_what_they_were_made_from(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "greeting", "TEXT = 'hello'")
    environment = made(tmp_path, "greeting")
    downloads = Downloads(tmp_path / "downloads")
    assert downloads.remove(downloads.of("kim").name, lambda: False)
    run = [str(environment / "bin" / "python"), "-c", "import greeting; print(greeting.TEXT)"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "hello\n"


def test_where_files_cannot_have_two_names_they_are_copied(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_given: object, **_named: object) -> None:
        raise OSError(errno.EXDEV, "another filesystem")

    make_wheel(index, "greeting", "TEXT = 'hello'", files={"tool/run": b"#!/bin/sh\n"})
    monkeypatch.setattr("os.link", refused)
    module = packages(made(tmp_path, "greeting")) / "greeting.py"
    assert (module.read_text(), module.stat().st_nlink) == ("TEXT = 'hello'", 1)
    assert stat.S_IMODE(module.stat().st_mode) == 0o444


WRITES = """
import os, pathlib, sys
kept = pathlib.Path(os.environ["KEPT"])
(module,) = kept.glob("archive-v*/*/greeting.py")
print("sees", module.read_text(), flush=True)
for what, act in {
    "chmod": lambda: module.chmod(0o666),
    "write": lambda: module.write_text("TEXT = 'evil'"),
    "remove": lambda: module.unlink(),
    "replace": lambda: (kept / "x").rename(module.parent),
    "add": lambda: (module.parent / "sitecustomize.py").write_text(""),
}.items():
    try:
        act()
    except OSError:
        print(what, "refused", flush=True)
place = pathlib.Path(sys.argv[1])
link = sys.argv[2].format(unpacked=module.parent)
(place / "link.py").symlink_to(link)
"""


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("{unpacked}/greeting.py", ""),
        pytest.param(
            "{unpacked}/absent.py",
            "is a link to nothing that was unpacked",
            marks=pytest.mark.variant,
        ),
        ("{unpacked}/../../../outside", "is a link to nothing that was unpacked"),
        ("{unpacked}/greeting-1.0.dist-info/RECORD", "is a link to what is not sealed"),
        ("/etc/shadow", "is a link to a target outside of it"),
    ],
)
def test_who_takes_an_installer_over_cannot_change_what_environments_share(
    tmp_path: Path, index: Path, link: str, says: str
) -> None:
    make_wheel(index, "greeting", "TEXT = 'hello'")
    module = packages(made(tmp_path, "greeting")) / "greeting.py"
    place = tmp_path / "environments" / "evil"
    task = Task(
        argv=[str(base_python()), "-c", WRITES, str(place), link],
        variables={"KEPT": "{kept}"},
        kept=Downloads(tmp_path / "downloads").of("kim"),
    )
    sandbox, said = sandbox_here(), list[bytes]()
    if says:
        with pytest.raises(EnvironmentFailed, match=says):
            sandbox.make(place, task, said.append, turn=whole_turn(sandbox))
        assert not place.exists()
    else:
        sandbox.make(place, task, said.append, turn=whole_turn(sandbox))
        assert (place / "link.py").samefile(module)
    heard = b"".join(said).decode()
    assert "sees TEXT = 'hello'" in heard
    assert heard.count("refused") == 5
    assert module.read_text() == "TEXT = 'hello'"


def test_the_oldest_wheels_that_no_environment_has_go_first(tmp_path: Path, index: Path) -> None:
    for name in ("one", "two", "three"):
        make_wheel(index, name, files={f"{name}.bin": os.urandom(1_000_000)})
    kept = Downloads(tmp_path / "downloads").of("kim")
    environments = environments_in(tmp_path)
    for number, name in enumerate(("one", "two")):
        environment = made(tmp_path, name, kept_bytes=2_500_000)
        (wheel,) = kept.glob(f"archives/*/*/{name}.bin")
        os.utime(wheel.parent, (number, number))
        assert environments.remove(environment.name, lambda: False)
    made(tmp_path, "three", kept_bytes=1_500_000)
    assert {path.name for path in kept.glob("archives/*/*/*.bin")} == {"two.bin", "three.bin"}
    made(tmp_path, "one", kept_bytes=1_500_000)
    assert (kept / "cache").is_dir()


def test_a_lock_with_hashes_is_kept_with_the_environment_and_builds_the_same(
    tmp_path: Path, index: Path
) -> None:
    make_wheel(index, "outer", needs="Requires-Dist: inner>=1\n")
    make_wheel(index, "inner")
    lock = (made(tmp_path, "outer") / LOCK).read_text()
    make_wheel(index, "inner", version="2.0")
    assert [line.split()[0] for line in lock.splitlines()] == ["inner==1.0", "outer==1.0"]
    assert all(" --hash=sha256:" in line for line in lock.splitlines())
    again = made(tmp_path, *lock.splitlines())
    assert (again / LOCK).read_text() == lock
    assert (packages(again) / "inner-1.0.dist-info").is_dir()


def test_hashes_that_a_writer_gives_are_those_of_what_is_installed(
    tmp_path: Path, index: Path
) -> None:
    right = sha256(make_wheel(index, "outer", needs="Requires-Dist: inner\n"))
    inner = sha256(make_wheel(index, "inner"))
    assert made(tmp_path, f"outer==1.0 {right}", f"inner==1.0 {inner}")
    with pytest.raises(EnvironmentFailed, match="Hash mismatch"):
        made(tmp_path, f"outer==1.0 {right}", f"inner==1.0 --hash=sha256:{'0' * 64}")
    with pytest.raises(EnvironmentFailed, match="inner is required, and listed without --hash"):
        made(tmp_path, f"outer==1.0 {right}")
    with pytest.raises(EnvironmentFailed, match="inner is required, and listed without --hash"):
        made(tmp_path, "--require-hashes", "inner")


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        ("inner @ file:///usr/inner-1.0-py3-none-any.whl", "installs wheels only"),
        pytest.param(
            "inner @ git+https://127.0.0.1:1/x.git",
            "installs wheels only",
            marks=pytest.mark.variant,
        ),
        ("inner @ https://127.0.0.1:1/inner-1.0-py3-none-any.whl", "add the line inner @ https"),
        ("inner @ git+https://127.0.0.1:1/x.git ; extra == 'docs'", ""),
    ],
)
def test_what_a_wheel_that_is_named_by_a_url_requires_is_looked_at_before_it_is_fetched(
    tmp_path: Path, index: Path, needs: str, says: str
) -> None:
    wheel = make_wheel(index, "outer", needs=f"Requires-Dist: {needs}\n")
    with index_of(index) as url:
        line = f"outer @ {url.removesuffix('/simple')}/{wheel.name}"
        if says:
            with pytest.raises(EnvironmentFailed, match=says):
                made(tmp_path, line)
        else:
            assert made(tmp_path, line)


def test_without_a_cache_each_environment_has_files_of_its_own(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "greeting")
    limits = replace(BuildLimits(), kept_bytes=0)
    environments = environments_in(tmp_path, limits=limits)
    wanted = Requirements(lines=("greeting",))
    environment = environments.provide(wanted, lambda _: None, owner="kim").folder
    assert (packages(environment) / "greeting.py").stat().st_nlink == 1
    assert not Downloads(tmp_path / "downloads").stored()


def locked(tmp_path: Path, lock: str, *lines: str, owner: str = "kim") -> Path:
    """An environment of exactly these packages for code that asks for `lines`."""
    wanted = Requirements(lines=lines)
    return environments_in(tmp_path).provide(wanted, lambda _: None, owner=owner, lock=lock).folder


def test_a_lock_gives_the_same_packages_to_whoever_has_it_whatever_the_index_has(
    tmp_path: Path, index: Path
) -> None:
    make_wheel(index, "outer", needs="Requires-Dist: inner>=1\n")
    make_wheel(index, "inner")
    first = made(tmp_path, "outer")
    lock = lock_of(first)
    make_wheel(index, "inner", version="2.0")
    # Where it is there already no other one is made.
    assert locked(tmp_path, lock, "outer") == first
    again = locked(tmp_path, lock, "outer", owner="lee")
    assert again != first
    assert (packages(again) / "inner-1.0.dist-info").is_dir()
    assert lock_of(again) == lock
    # An upgrade of the one that the requirements lead to leaves that of the lock alone.
    newer = made(tmp_path, "outer", "inner>=2")
    assert (packages(newer) / "inner-2.0.dist-info").is_dir()


def test_a_lock_that_lies_installs_nothing_else(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "outer")
    right = lock_of(made(tmp_path, "outer"))
    wrong = f"outer==1.0 --hash=sha256:{'0' * 64}\n"
    with pytest.raises(EnvironmentFailed, match=r"[Hh]ash"):
        locked(tmp_path, wrong, "outer")
    url = f"outer @ https://evil.example/outer-1.0-py3-none-any.whl --hash=sha256:{'0' * 64}\n"
    with pytest.raises(EnvironmentFailed, match="does not name https://evil"):
        locked(tmp_path, url, "outer")
    for bad in (f"--extra-index-url https://evil.example\n{right}", right + right, "outer==1.0\n"):
        with pytest.raises(EnvironmentFailed, match="cannot be used"):
            locked(tmp_path, bad, "outer")
    # What its writer has pinned by hash stays.
    own = right.strip()
    assert lock_of(locked(tmp_path, wrong, own)) == right
