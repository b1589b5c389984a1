"""`nsml cp` on a real platform: out of a session and into it, and what a kill in the middle leaves."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.platform import PROGRAMS
from tests.e2e.platforms import LEVELS, platform_of, user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.living_folders import sizes_below

BIG = 200 << 20
PROGRAM = f"""\
import os, time
os.makedirs("made/sub")
with open("made/big", "wb") as file:
    for _ in range({BIG} >> 20):
        file.write(os.urandom(1 << 20))
open("made/sub/small", "w").write("small")
os.symlink("sub/small", "made/link")
os.mkfifo("made/pipe")
print("made", flush=True)
time.sleep(6000)
"""


@pytest.fixture(scope="module", params=LEVELS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    with platform_of(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def session(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> str:
    code = write_program(tmp_path_factory.mktemp("copies") / "code", PROGRAM)
    name = platform.nsml("run", "-g", "0", "-o", "name", cwd=code).stdout.strip()
    wait_for(lambda: "made" in platform.nsml("logs", name).stdout, what="the program is ready")
    return name


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sent(said: str) -> float:
    """Megabytes that a copy says it has sent."""
    found = re.search(r"copied [12] files? \(([0-9.]+) MB[;)]", said)
    assert found is not None, said
    return float(found[1])


def killed_copy(platform: Platform, partial: Path, made: Path, *arguments: str) -> int:
    """Bytes that a copy, to `made`, has written when it is killed in the middle of a large file."""

    def written() -> int:
        return max(sizes_below(partial, ".nsml-cp-*"), default=0)

    def killed() -> bool:
        process = subprocess.Popen(
            [str(PROGRAMS / "nsml"), "cp", *arguments], env=platform.environment
        )
        while written() <= 4 << 20 and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        if process.wait(60) == -signal.SIGKILL:
            return True
        shutil.rmtree(made)  # on a busy machine it may be over before it can be killed
        return False

    wait_for(killed, timeout_s=180, what="a copy is killed under way")
    return written()


@pytest.mark.every_time
def test_a_folder_comes_out_although_the_first_copy_was_killed(
    platform: Platform, session: str, tmp_path: Path
) -> None:
    part = killed_copy(
        platform, tmp_path, tmp_path / "out", f"{session}:made", str(tmp_path / "out")
    )
    assert part < BIG
    assert not (tmp_path / "out").exists(), "what is not whole has not its name"

    done = platform.nsml("cp", f"{session}:made", str(tmp_path / "out"), check=False)
    assert (done.returncode, done.stdout) == (9, ""), done.stderr
    assert 0 < sent(done.stderr) <= (BIG - part) / 1e6 + 1
    assert "left out: pipe: a pipe" in done.stderr
    out = tmp_path / "out"
    assert sorted(one.name for one in out.iterdir()) == ["big", "link", "sub"]
    assert (out / "link").readlink() == Path("sub/small")

    # into a session, killed there, too
    shared = platform.nsml("sh", session, "--", "sha256sum", "made/big").stdout.split()
    assert shared[0] == digest(out / "big")
    source = tmp_path / "into"
    out.rename(source)
    [app] = (platform.folder / "data/agent/replicas").glob("*/app")
    part = killed_copy(platform, app, app / source.name, str(source), f"{session}:")
    again = platform.nsml("cp", str(source), f"{session}:")
    assert 0 < sent(again.stderr) <= (BIG - part) / 1e6 + 1
    listed = platform.nsml("sh", session, "--", "sha256sum", "into/big", "made/big").stdout.split()
    assert listed[0] == listed[2] == shared[0]
    third = platform.nsml("cp", str(source), f"{session}:")
    assert "copied 0 files (0 Bytes), 2 were there already" in third.stderr


def test_who_may_not_and_what_is_not_there(
    platform: Platform, session: str, tmp_path: Path
) -> None:
    missing = platform.nsml("cp", f"{session}:no-such", str(tmp_path), check=False)
    assert (missing.returncode, missing.stdout) == (5, ""), missing.stderr
    assert "No such file or directory" in missing.stderr
    stranger = user_of(platform, "stranger", tmp_path)
    hidden = platform.nsml(
        "cp", f"{session}:made", str(tmp_path / "o"), check=False, environment=stranger
    )
    assert (hidden.returncode, hidden.stdout) == (5, ""), hidden.stderr
    assert not (tmp_path / "o").exists()
