"""The process runtime without a process: which control groups it leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.launch import this_machine
from nodeagent.runtimes.launcher import Launcher
from nodeagent.runtimes.limits import LimitFacts
from nodeagent.runtimes.process import ProcessDriver
from nsml.clock import SystemClock, in_thread

REPLICA = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)


async def test_groups_go_with_the_last_replica_and_not_before(tmp_path: Path) -> None:
    groups = tmp_path / "nsml-digest"
    groups.mkdir()
    facts = LimitFacts(places=(str(groups), str(tmp_path / "nowhere")))
    folders = ReplicaFolders(tmp_path / "replicas")
    driver = ProcessDriver(
        folders,
        machine=replace(this_machine(with_pid=False), limits=facts),
        levels=frozenset({Isolation.NONE}),
        launcher=Launcher(in_thread, with_zygote=False),
        clock=SystemClock(),
        run=in_thread,
        run_long=in_thread,
    )
    async with driver:
        folders.of(REPLICA).create()
    assert groups.is_dir(), "its shim may be about to make its group in there"
    async with driver:
        folders.of(REPLICA).exit.write_text("{}")
    assert not groups.exists()
