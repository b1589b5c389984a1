"""What a session saved stays as it was, whatever its program does while it is on its way."""

import fcntl
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.platforms import contained_platform
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

HOSTILE = """\
import mmap, os, pathlib, time
import nsml

held = {}


def save_open(path):
    held["file"] = file = open(path + "/weights", "w+b", buffering=0)
    file.write(b"as saved")


def save_mapped(path):
    pathlib.Path(path, "weights").write_bytes(b"as saved")
    with open(path + "/weights", "r+b") as file:
        held["map"] = mmap.mmap(file.fileno(), 0)


def save(path):
    pathlib.Path(path, "weights").write_bytes(b"as saved")
    pathlib.Path(path, "more").mkdir()
    pathlib.Path(path, "more/bias").write_bytes(b"as saved")


def spoil(path):
    assert pathlib.Path(path, "weights").read_bytes() == b"as saved"
    with open(path + "/weights", "r+b") as file:
        file.write(b"rewritten")
    with open(path + "/more/bias", "ab") as file:
        file.write(b"appended")
    os.rename(path + "/weights", path + "/gone")
    os.unlink(path + "/more/bias")


def attack(name):
    (folder,) = pathlib.Path(os.environ["NSML_RUN_DIR"], "checkpoints").glob("*-" + name)
    for path in (folder / "model/weights", folder / "model/more/bias"):
        try:
            path.chmod(0o644)
            path.write_bytes(b"attacked")
        except PermissionError:
            path.unlink()
    os.rename(folder / "model", folder / "other")


while not os.path.exists("go"):
    time.sleep(0.02)
nsml.save("open", save_fn=save_open)
nsml.save("mapped", save_fn=save_mapped)
nsml.save("loaded", save_fn=save)
nsml.save("attacked", save_fn=save)
held["file"].seek(0)
held["file"].write(b"rewritten")
held["map"][:8] = b"remapped"
for _ in range(2):
    nsml.load("loaded", load_fn=spoil)
attack("attacked")
print("done", flush=True)
"""


def shares_blocks(folder: Path) -> bool:
    with (folder / "one").open("wb+") as one, (folder / "other").open("wb") as other:
        try:
            fcntl.ioctl(other, 0x40049409, one.fileno())
        except OSError:
            return False
    return True


@pytest.mark.parametrize(
    "isolation", ["namespace", "container", pytest.param("none", marks=pytest.mark.variant)]
)
def test_what_was_saved_is_what_becomes_durable(isolation, tmp_path):
    """With accounts nothing that the program does reaches it; else its owner is told what was changed."""
    made = (
        contained_platform()
        if isolation == "container"
        else Platform(simulate_gpus=1, options=["--isolation", isolation])
    )
    with made as platform:
        folder = write_program(tmp_path / "hostile", HOSTILE)
        name = platform.nsml("run", "-o", "name", cwd=folder).stdout.strip()

        def session() -> dict:
            [found] = platform.json("ps", "-a")["items"]
            return found

        wait_for(lambda: session()["state"] == "RUNNING", what="it runs")
        replica = platform.folder / "data/agent/replicas" / f"{session()['id']}.1.0"
        control_plane = platform.pid("controlplane")
        os.kill(control_plane, signal.SIGSTOP)
        try:
            (replica / "app/go").touch()
            output = replica / "output"
            wait_for(
                (replica / "exit.json").exists,  # its app folder goes soon after
                what="it did all that it could while nothing was sent",
                timeout_s=120,
            )
            assert output.read_text().endswith("done\n")
        finally:
            os.kill(control_plane, signal.SIGCONT)
        wait_for(lambda: session()["state"] == "SUCCEEDED", what="it succeeds", timeout_s=120)

        found = {one["name"]: one for one in platform.json("model", "ls", name)["items"]}
        has_accounts = isolation != "none" and os.geteuid() == 0
        is_protected = has_accounts or shares_blocks(tmp_path)
        lost = set() if is_protected else {"attacked"}
        assert {one for one in found if found[one]["state"] == "LOST"} == lost
        for one in sorted(found.keys() - lost):
            pulled = platform.nsml("model", "pull", name, one, str(tmp_path / "out")).stdout.strip()
            files = {"weights", "more/bias"} if one in {"loaded", "attacked"} else {"weights"}
            for file in files:
                assert (one, Path(pulled, file).read_bytes()) == (one, b"as saved")
        assert session()["checkpoint_count"] == 4 - len(lost)
        if lost:
            assert "removed after it was saved" in found["attacked"]["why_lost"]
            refused = platform.nsml("model", "pull", name, "attacked", check=False)
            assert refused.returncode == 5
            assert "checkpoint attacked is lost" in refused.stderr
            assert "(1 checkpoint lost)" in platform.nsml("status", "--explain", name).stdout
