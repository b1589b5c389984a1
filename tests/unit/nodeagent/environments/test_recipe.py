"""What apt makes of the names that users list, with the options of a build."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nodeagent.environments.recipe import SCRIPT, LockTaken

INSTALLED = """Package: dash
Status: install ok installed
Version: 1
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: a shell
"""


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="this machine has no apt")
@pytest.mark.parametrize(("name", "is_there"), [("dash", True), ("das.", False), ("d.*h", False)])
def test_the_name_of_a_package_is_no_pattern(tmp_path: Path, name: str, *, is_there: bool) -> None:
    """A name with a dot or a plus, which no package has, would be a regular expression."""
    found = re.search(r"^ *set -- (-q .*)$", SCRIPT, re.MULTILINE)
    assert found is not None
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    (tmp_path / "status").write_text(INSTALLED)
    places = [f"-oDir::State::status={tmp_path}/status", f"-oDir::State={tmp_path}"]
    places += [f"-oDir::Cache={tmp_path}", "-oDir::Etc=/nowhere", "-oDebug::NoLocking=true"]
    done = subprocess.run(
        ["apt-get", "-s", *places, *found[1].split(), "install", "-y", "--", name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is is_there, done.stdout + done.stderr


def test_a_lock_is_taken_out_of_what_a_build_says_and_of_nothing_too_long() -> None:
    six = f"six==1.16.0 --hash=sha256:{'a' * 64}\n"
    output = f" + six==1.16.0\nnsml-lock: {six}its end\nno line end".encode()
    said: list[bytes] = []
    taken = LockTaken(said.append)
    for piece in (output[at : at + 7] for at in range(0, len(output), 7)):
        taken(piece)
    taken.end()
    assert (taken.lock, b"".join(said)) == (six, b" + six==1.16.0\nits end\nno line end")
    for endless in (b"nsml-lock: " + b"x" * (2 << 20), f"nsml-lock: {six}".encode() * 20_000):
        rogue = LockTaken(lambda _: None)
        rogue(endless)
        rogue(f"\nnsml-lock: {six}".encode())
        assert rogue.lock == ""
