"""What the store takes, as it takes it: told by a process of its own, whose clock no load delays.

    python -m bench.witness URLS CA

One JSON object a line: `{"watches": true}` once it does; `{"term": 5, "at": 12.3}` for the first placement of
each term, in seconds of the machine's monotonic clock; and, when its standard input has ended, the totals
`{"commits": 9, "stale": 0}`. A commit is stale when its term is not that of the leader key.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from controlplane.store.election import LEADER_KEY
from controlplane.store.etcd_members import Tls
from controlplane.store.open import open_store
from controlplane.stored.etcd_codec import ALLOCATIONS
from controlplane.stored.v1.records_pb2 import AllocationRecord
from nsml.common.clock import SystemClock

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from controlplane.store.interface import KeyValueStore, WatchBatch


@dataclass
class Account:
    """The counting."""

    term: int = 0
    placed: set[tuple[str, int, int]] = field(default_factory=set)
    terms: set[int] = field(default_factory=set)
    stale: int = 0
    commits: int = 0

    def take(self, batch: WatchBatch) -> list[int]:
        """Terms in which something was placed for the first time."""
        began = []
        for event in batch.events:
            if event.item is None:
                continue
            if event.key == LEADER_KEY:
                self.term = event.item.create_revision
            if event.key.startswith(ALLOCATIONS):
                record = AllocationRecord.FromString(event.item.value)
                self.commits += 1
                self.stale += record.term != self.term and self.term > 0
                keys = {(one.session_id, one.attempt, one.rank) for one in record.replicas}
                if keys - self.placed and record.term not in self.terms:
                    began.append(record.term)
                    self.terms.add(record.term)
                self.placed |= keys
        return began


class Witness:
    """That process, and what it has told."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._placed_at: dict[int, float] = {}
        self._totals: dict[str, float] = {}
        self._told = asyncio.Condition()
        self._reading = asyncio.create_task(self._read(), name="witness")

    @classmethod
    @asynccontextmanager
    async def of(cls, urls: str, ca: Path) -> AsyncIterator[Self]:
        """Watches from the beginning of an `async with` on."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.witness", urls, str(ca)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            await process.stdout.readline()
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def placement_after(self, term: int) -> float:
        """When a later leader placed something first; monotonic seconds."""
        async with self._told:
            await self._told.wait_for(lambda: max(self._placed_at, default=0) > term)
        return min(at for placed, at in self._placed_at.items() if placed > term)

    async def totals(self) -> dict[str, float]:
        """How many commits there were, and how many of them were stale. It watches no longer then."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._reading
        return self._totals

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            async with self._told:
                if "term" in said:
                    self._placed_at[said["term"]] = said["at"]
                else:
                    self._totals = said
                self._told.notify_all()


def _say(**said: Any) -> None:
    print(json.dumps(said), flush=True)


async def _follow(store: KeyValueStore, account: Account) -> None:
    listing = await store.list("")
    _say(watches=True)
    async for batch in store.watch("", listing.revision + 1):
        at = time.monotonic()
        for term in account.take(batch):
            _say(term=term, at=at)


async def _watch(urls: str, ca: bytes) -> None:
    account = Account()
    async with open_store(urls, clock=SystemClock(), tls=Tls(ca=ca)) as store:
        following = asyncio.create_task(_follow(store, account))
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        following.cancel()
    _say(commits=account.commits, stale=account.stale)


if __name__ == "__main__":
    with suppress(PermissionError):
        os.nice(-10)  # who measures must not wait for what is measured
    asyncio.run(_watch(sys.argv[1], Path(sys.argv[2]).read_bytes()))
