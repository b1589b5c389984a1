"""Two processes that decide, on one etcd: the real Committer of a killed and of a paused leader.

They count on, in one record or each in its own. What was told to be committed must be there, once,
and nothing may be there that an older term still wrote after the next one began.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.store.etcd import EtcdStore
from controlplane.store.interface import KeyValue, KeyValueStore
from controlplane.stored import etcd_codec
from nsml.common.clock import SystemClock
from tests.support.etcd import etcd_in, pause

TTL_S = 2.0
LOADED_MACHINE_S = 20.0
"""What a busy machine may add before a take-over counts as failed."""
ROOT = Path(__file__).parents[2]


@dataclass
class Said:
    event: str
    at: float
    term: int
    count: int


@dataclass
class Member:
    """A running committing_program and everything that it has said."""

    pid: int
    said: list[Said] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def counts(self) -> list[int]:
        return [one.count for one in self.said if one.event == "committed"]

    @property
    def term(self) -> int:
        """Of its election."""
        return next(one.term for one in self.said if one.event == "elected")

    async def says(self, event: str, *, more_than: int = 0) -> Said:
        """The first of `event` after `more_than` of them."""
        while True:
            found = [one for one in self.said if one.event == event]
            if len(found) > more_than:
                return found[more_than]
            self.news.clear()
            await self.news.wait()


@asynccontextmanager
async def member(endpoint: str, name: str, record: str) -> AsyncIterator[Member]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.committing_program", endpoint, name, str(TTL_S), record,
        stdout=asyncio.subprocess.PIPE, cwd=ROOT, process_group=0,
    )  # fmt: skip
    running = Member(process.pid)
    reading = asyncio.create_task(_read(process, running))
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await reading
        await process.wait()


async def _read(process: asyncio.subprocess.Process, running: Member) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b'{"event": "') and b'"at": ' in line and b'"count": ' in line:
            running.said.append(Said(**json.loads(line)))
            running.news.set()


@asynccontextmanager
async def two_members(
    folder: Path, *records_of: str
) -> AsyncIterator[tuple[KeyValueStore, Member, Member]]:
    etcd = etcd_in(folder / "etcd")
    etcd.start()
    try:
        await etcd.ready()
        async with (
            asyncio.timeout(90),
            EtcdStore([etcd.endpoint], clock=SystemClock()) as store,
            member(etcd.endpoint, "one", records_of[0]) as one,
        ):
            await one.says("committed", more_than=10)
            async with member(etcd.endpoint, "two", records_of[-1]) as two:
                await two.says("standing")
                yield store, one, two
    finally:
        await etcd.stop()


async def stored(store: KeyValueStore, record: str) -> KeyValue:
    item = await store.get(etcd_codec.node_key(record))
    assert item is not None
    return item


async def stored_count(store: KeyValueStore, record: str) -> int:
    item = await stored(store, record)
    return etcd_codec.decode_node(item.value).capacity.cpu_thousandths


async def test_when_the_leader_is_killed_the_other_decides_within_the_lease_and_a_second(
    tmp_path: Path,
) -> None:
    async with two_members(tmp_path, "both") as (store, one, two):
        assert [one.event for one in two.said] == ["standing"]
        os.kill(one.pid, signal.SIGKILL)
        async with asyncio.timeout(TTL_S + 1.0 + LOADED_MACHINE_S):
            first = await two.says("committed")
        await two.says("committed", more_than=10)
        assert first.term > one.term
        # The killed one may have committed once more than it could say.
        assert one.counts == list(range(1, len(one.counts) + 1))
        assert first.count - one.counts[-1] in {1, 2}
        assert two.counts == list(range(first.count, first.count + len(two.counts)))
        os.kill(two.pid, signal.SIGKILL)
        assert await stored_count(store, "both") >= two.counts[-1]


async def test_a_leader_paused_beyond_its_lease_has_its_decision_refused(tmp_path: Path) -> None:
    async with two_members(tmp_path, "of-one", "of-two") as (store, one, two):
        pause(one.pid)
        elected = await two.says("elected")
        await two.says("committed", more_than=10)
        os.kill(one.pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            lost = await one.says("lost")
        await one.says("refused")
        assert lost.term < elected.term
        # Nobody else writes this record: only the fence keeps the decision of the older term out.
        # What etcd had received before the pause is older than the new term.
        item = await stored(store, "of-one")
        assert item.mod_revision < elected.term
        assert await stored_count(store, "of-one") - one.counts[-1] in {0, 1}
        assert two.counts == list(range(1, len(two.counts) + 1))


async def test_many_takeovers_in_a_row_lose_no_decision(tmp_path: Path) -> None:
    etcd = etcd_in(tmp_path / "etcd")
    etcd.start()
    told: list[int] = []
    try:
        await etcd.ready()
        async with EtcdStore([etcd.endpoint], clock=SystemClock()) as store, asyncio.timeout(240):
            for number in range(4):
                async with member(etcd.endpoint, f"m{number}", "both") as leader:
                    await leader.says("committed", more_than=5)
                    os.kill(leader.pid, signal.SIGKILL)
                told += leader.counts
            assert told == sorted(set(told))
            # Each kill may hide the one decision that was on its way.
            assert len(told) <= await stored_count(store, "both") <= len(told) + 4
    finally:
        await etcd.stop()
