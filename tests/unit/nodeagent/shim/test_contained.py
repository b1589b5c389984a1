"""What a shim does about its container where it cannot have what it needs for that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.shim.contained import Contained


class DeadKeeper:
    def has_ended(self) -> bool:
        return True

    def heard(self) -> list[object]:
        return []

    def leave(self) -> None:
        pass


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_machine_without_room_for_a_new_keeper_ends_no_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_begun: bool
) -> None:
    made = []

    def fails(_: object) -> None:
        made.append(1)
        raise BlockingIOError("no processes left")

    monkeypatch.setattr("nodeagent.shim.contained.Keeper", fails)
    plan = {"config": {}, "image": "i", "socket": "s", "api": "1.41", "name": "n"}
    program = Contained(str(tmp_path), {"container": plan, "secrets": {}})
    program._keeper = DeadKeeper()  # type: ignore[assignment]
    if has_begun:
        program._has_begun, program._pidfd = True, os.pidfd_open(os.getpid())
    assert program.is_running() is has_begun
    assert program.is_running() is has_begun
    assert len(made) == (2 if has_begun else 1)
    if has_begun:
        os.close(program._pidfd)
    else:
        assert program.is_gone()
        _, _, verdict = program.outcome()
        assert verdict is not None
        assert verdict[0] == "START_FAILED"
