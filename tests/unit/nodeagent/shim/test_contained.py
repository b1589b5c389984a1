"""What a shim does about its container where it cannot have what it needs for that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.folders import ReplicaFolder
from nodeagent.probes.processes import enclosure_of
from nodeagent.shim.cgroups import Group
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


def test_where_a_container_is_counted_is_written_down_for_the_agent(tmp_path: Path) -> None:
    plan = {"config": {}, "image": "i", "socket": "s", "api": "1.41", "name": "n"}
    program = Contained(str(tmp_path), {"container": plan, "secrets": {}})
    program._tell_group()
    folder = ReplicaFolder(tmp_path)
    assert not folder.group.exists()
    (tmp_path / "groups" / "abc").mkdir(parents=True)
    (tmp_path / "groups" / "abc" / "cpu.stat").write_text("usage_usec 1500000\n")
    base = {"version": 2, "folders": {"memory": str(tmp_path / "groups")}}
    program._group = Group(base, "abc")  # type: ignore[arg-type]
    program._tell_group()
    folder.shim.write_text('{"pid": 1, "start_ticks": 2, "boot_id": "b"}')
    folder.spec.write_text('{"container": {"name": "n"}}')
    found = enclosure_of(folder, "b")
    assert found is not None
    assert found.group is not None
    assert found.in_container
    assert found.group.took_s() == 1.5
    # Where it cannot be written the container runs all the same.
    program._folder = str(tmp_path / "nowhere")
    program._tell_group()
