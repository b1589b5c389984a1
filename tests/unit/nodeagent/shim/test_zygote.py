"""The zygote's spare shim: taken once, replaced, and gone with the zygote."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.runtimes.strays import ticks_now
from tests.unit.nodeagent.shim.zygotes import WITHIN_S, AskedZygote, until

SPARE = "nsml-spare"


class Zygote(AskedZygote):
    """That of shims."""

    def __init__(self) -> None:
        super().__init__("zygote")

    def spares(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split() if name_of(int(pid)) == SPARE]

    def spare(self) -> int:
        """The one that waits, once it does."""
        until(lambda: len(self.spares()) == 1)
        return self.spares()[0]

    def start(self, folder: Path) -> tuple[int, int]:
        """Start `true` in a new folder; pid and pidfd of its shim."""
        folder.mkdir()
        (folder / "spec.json").write_text(json.dumps(SPEC))
        socket.send_fds(self.requests, [os.fsencode(folder)], [])
        message, descriptors, _, _ = socket.recv_fds(self.requests, 4096, 1)
        kind, _, pid = message.decode().partition(" ")
        assert kind == "ok"
        return int(pid), descriptors[0]


SPEC = {
    "boot_id": "b",
    "argv": ["true"],
    "env": {"PATH": os.defpath},
    "cwd": "/",
    "namespace": None,
    "open_files": 1024,
    "time_limit_s": None,
    "grace_s": 1.0,
    "lost_after_s": None,
}


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def ended(pidfd: int) -> None:
    """Return when the shim of a pidfd has ended."""
    assert select.select([pidfd], [], [], WITHIN_S)[0]
    os.close(pidfd)


def exit_of(folder: Path) -> tuple[str, int]:
    record = json.loads((folder / "exit.json").read_text())
    return record["why"], record["exit_code"]


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.requests.close()
    made.process.wait(WITHIN_S)


def test_the_spare_runs_what_is_asked_for_and_is_replaced(zygote: Zygote, tmp_path: Path) -> None:
    spare = zygote.spare()
    pid, pidfd = zygote.start(tmp_path / "first")
    assert pid == spare
    ended(pidfd)
    assert exit_of(tmp_path / "first") == ("EXITED", 0)
    assert zygote.spare() != spare


def test_it_holds_nothing_of_a_session(zygote: Zygote, tmp_path: Path) -> None:
    zygote.spare()
    _, pidfd = zygote.start(tmp_path / "first")
    ended(pidfd)
    opened = Path(f"/proc/{zygote.spare()}/fd")
    until(lambda: len(list(opened.iterdir())) == 4)
    targets = [os.readlink(one) for one in opened.iterdir()]  # noqa: PTH115 - no path, but what is open
    assert sum(one.startswith("socket:") for one in targets) == 1


def test_a_program_ran_from_when_its_shim_got_the_folder(zygote: Zygote, tmp_path: Path) -> None:
    """Not from when that was forked, which may be days before."""
    zygote.spare()
    before = ticks_now()
    _, pidfd = zygote.start(tmp_path / "first")
    ended(pidfd)
    claim = json.loads((tmp_path / "first" / "shim.json").read_text())
    assert before <= claim["claimed_ticks"] <= ticks_now()


def test_one_that_was_ended_is_not_missed(zygote: Zygote, tmp_path: Path) -> None:
    spare = zygote.spare()
    os.kill(spare, signal.SIGTERM)
    until(lambda: not name_of(spare))
    pid, pidfd = zygote.start(tmp_path / "first")
    assert pid != spare
    ended(pidfd)
    assert exit_of(tmp_path / "first") == ("EXITED", 0)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_it_ends_with_the_zygote(zygote: Zygote, how: str) -> None:
    spare = os.pidfd_open(zygote.spare())
    if how == "closed":
        zygote.requests.close()
    else:
        zygote.process.kill()
    ended(spare)
