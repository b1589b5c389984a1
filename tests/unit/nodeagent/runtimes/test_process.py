"""The process runtime without a process: which control groups it leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.runtimes.interface import Isolation, ReplicaSpec
from nodeagent.runtimes.launch import this_machine
from nodeagent.runtimes.launcher import Launcher
from nodeagent.runtimes.limits import LimitFacts
from nodeagent.runtimes.process import ProcessDriver
from nsml.common.clock import SystemClock, in_thread

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


class Networks:
    """Networks of which so many are ready, each a descriptor of a pipe."""

    def __init__(self, ready: int) -> None:
        self.left = ready
        self.made = 0

    def files(self) -> Mapping[str, Path]:
        return {}

    def content(self) -> None:
        return

    def ready(self) -> int | None:
        self.left -= 1
        return os.memfd_create("ready") if self.left >= 0 else None

    def namespace(self) -> int:
        self.made += 1
        return os.memfd_create("made")

    def close(self) -> None:
        pass


@pytest.fixture
def opened() -> Iterator[list[int]]:
    descriptors: list[int] = []
    yield descriptors
    for one in descriptors:
        os.close(one)


async def test_a_network_that_is_ready_is_taken_at_once_and_only_else_a_thread_makes_one(
    tmp_path: Path, opened: list[int]
) -> None:
    networks, threads = Networks(ready=1), 0

    async def counted(work: Callable[[], Any], /) -> Any:
        nonlocal threads
        threads += 1
        return await in_thread(work)

    driver = ProcessDriver(
        ReplicaFolders(tmp_path / "replicas"),
        machine=this_machine(with_pid=False),
        levels=frozenset({Isolation.NAMESPACE}),
        launcher=Launcher(in_thread, with_zygote=False),
        clock=SystemClock(),
        run=counted,
        run_long=in_thread,
        network=networks,
    )
    spec = ReplicaSpec(replica_id=REPLICA, argv=("true",), isolation=Isolation.NAMESPACE)
    for wanted in ((0, 0), (1, 1)):
        descriptor = await driver._network_of(spec)
        assert descriptor is not None
        opened.append(descriptor)
        assert (threads, networks.made) == wanted
