"""A dataset in place: read where it is, read-only, and only while it is what it was when it was added."""

import pytest

from tests.e2e.programs import write_program
from tests.support.in_process import Platform

READS = """\
import os, pathlib

print("read", pathlib.Path("/data/big/a.txt").read_text(), flush=True)
try:
    pathlib.Path("/data/big/new").touch()
except OSError as error:
    print("refused", error.errno)
print("other", os.path.exists("/data/other"))
"""


@pytest.fixture
def platform(monkeypatch, tmp_path):
    """Its node shares top/, and no other folder."""
    top = tmp_path.resolve() / "top"
    (top / "big").mkdir(parents=True)
    (top / "big/a.txt").write_text("one")
    monkeypatch.setenv("NSML_AGENT_SHARED_ROOTS", str(top))
    running = Platform(simulate_gpus=2)
    try:
        running.up()
        yield running
    finally:
        running.nsml("down", "-y", check=False, timeout_s=120)
        running.close()


def test_a_session_reads_it_until_it_has_changed(platform, tmp_path):
    big, other = tmp_path.resolve() / "top/big", tmp_path.resolve() / "other"
    platform.nsml("dataset", "add", "big", "--in-place", str(big))
    code = write_program(tmp_path / "code", READS)
    run = ("run", "-g", "0", "-d", "big", "-f")
    shown = platform.nsml(*run, cwd=code).stdout
    assert "read one" in shown
    assert "refused 30" in shown
    (big / "a.txt").write_text("another")
    failed = platform.nsml(*run, check=False, cwd=code)
    assert failed.returncode == 1
    assert "big@1, in place at" in failed.stderr
    assert "a.txt has 7 bytes, not 3" in failed.stderr
    again = platform.nsml("rerun", "@last", "--allow-changed", "-f")
    assert "read another" in again.stdout
    assert f"not pinned: dataset big@1: in place at {big}, and may have changed" in again.stderr
    other.mkdir()
    (other / "x").touch()
    platform.nsml("dataset", "add", "other", "--in-place", str(other))
    never = platform.nsml("run", "-g", "0", "-d", "other", check=False, cwd=code)
    assert f"no node has {other}\n" in never.stderr
    assert "shared_roots" in never.stderr
