"""Two processes on one etcd: one leads, is killed or paused, and the other takes over."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from controlplane.store.etcd import EtcdStore
from controlplane.store.interface import KeyValueStore
from nsml.common.clock import SystemClock
from tests.support.etcd import etcd_in, pause

TTL_S = 2.0
WITHIN_S = TTL_S + 1.0
LOADED_MACHINE_S = 20.0
"""What a busy machine may add before a take-over counts as failed."""

ROOT = Path(__file__).parents[2]


class Member:
    """A running leader_program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def says(self, event: str) -> dict[str, Any]:
        """The next line, which has to be `event`."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith(b"{"):
                said: dict[str, Any] = json.loads(line)
                if "event" in said and "at" in said:
                    assert said["event"] == event
                    return said
        raise AssertionError(f"the program ended before it said {event}")

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def member(endpoint: str, name: str) -> AsyncIterator[Member]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.leader_program", endpoint, name, str(TTL_S),
        stdout=asyncio.subprocess.PIPE, cwd=ROOT, process_group=0,
    )  # fmt: skip
    running = Member(process)
    try:
        yield running
    finally:
        await running.end()


@asynccontextmanager
async def two_members(folder: Path) -> AsyncIterator[tuple[KeyValueStore, Member, Member]]:
    etcd = etcd_in(folder / "etcd")
    etcd.start()
    try:
        await etcd.ready()
        async with (
            asyncio.timeout(90),
            EtcdStore([etcd.endpoint], clock=SystemClock()) as store,
            member(etcd.endpoint, "one") as one,
        ):
            for word in ("standing", "elected", "committed"):
                await one.says(word)
            async with member(etcd.endpoint, "two") as two:
                await two.says("standing")
                yield store, one, two
    finally:
        await etcd.stop()


async def test_when_the_leader_is_killed_the_other_commits_within_the_lease_and_a_second(
    tmp_path: Path,
) -> None:
    async with two_members(tmp_path) as (store, one, two):
        os.kill(one.pid, signal.SIGKILL)
        async with asyncio.timeout(WITHIN_S + LOADED_MACHINE_S):
            elected = await two.says("elected")
            committed = await two.says("committed")
        assert committed["term"] == elected["term"]
        item = await store.get("by/two")
        assert item is not None


async def test_a_leader_paused_beyond_its_lease_is_refused_when_it_wakes(tmp_path: Path) -> None:
    async with two_members(tmp_path) as (store, one, two):
        pause(one.pid)
        elected = await two.says("elected")
        await two.says("committed")
        before = await store.get("by/one")
        assert before is not None
        os.kill(one.pid, signal.SIGCONT)
        lost = await one.says("lost")
        await one.says("refused")
        assert lost["term"] < elected["term"]
        after = await store.get("by/one")
        assert after is not None
        # A write that etcd had received before the pause is older than the new term.
        assert after.mod_revision < elected["term"]
        assert await store.get("stale/one") is None
