"""Placing on many nodes: `python -m bench.endtoend --nodes 1000`.

One control plane with an etcd of its own, as `nsml up` starts them, and so many agents (`bench.agents`): each
with eight devices, a certificate and a connection of its own. All of it shares this machine, with the client
that submits and with what counts here.

- `agents_connected_s`: from the first connection until the last agent of all has registered.
- `placed_p50_ms`: 200 sessions, one after the other, on a queue and on nodes that are empty: from the moment a
  client begins to submit until a watch of etcd tells of the revision that places it; `ordered_p50_ms`: until the
  agent has the order. `busy_...`: the same while 20,000 others hold their devices.
- `placements_per_s`: 20,000 sessions that ask for a quarter of a device each, so that all fit at once, are
  submitted while all devices are withheld by their agents. Then the agents offer them: from the first word of
  that until the last order is with its agent and the last allocation in etcd, whose revisions are what is
  counted. No session is counted twice, and none is missing.
- `turnover_per_s`, with `--loads shares,turnover`, on a fresh platform: 20,000 sessions of one whole device each,
  2.5 times what there is, the same way; their agents report them running, and as ended at once, which frees the
  device for the next. Until the last of these ends is acknowledged, too.

    python -m bench.endtoend --nodes 1000 [--json] [--sessions N] [--loads shares,turnover]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from bench.agents import AgentProcess
from bench.platform import Platform
from bench.report import percentile
from controlplane.store.etcd_process import CLIENT_SOCKET
from controlplane.store.open import open_store
from controlplane.stored.etcd_codec import ALLOCATIONS
from controlplane.stored.v1.records_pb2 import AllocationRecord
from nsml.client import contexts
from nsml.client.connect import connect
from nsml.common.clock import SystemClock
from nsml.common.concurrency import TaskGroup
from nsml.v1 import resources_pb2, sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.store.interface import KeyValueStore
    from nsml.client.calls import Client

SINGLES: Final = 200
SUBMITTED_AT_ONCE: Final = 64
LOADS: Final = {"shares": (250, "nothing"), "turnover": (1000, "ends")}
"""Thousandths of a device that a session asks for, and what agents do with it."""


class Placed:
    """What etcd's revisions say of placements.

    Attributes:
        at: when each session was placed first, monotonic seconds.
        twice: how many attempts were placed again, which never may be.
    """

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.twice = 0
        self._nodes: dict[tuple[str, int, int], str] = {}
        self._changed = asyncio.Condition()

    async def follow(self, store: KeyValueStore, from_revision: int) -> None:
        """Watch the allocations; until cancelled."""
        async for batch in store.watch(ALLOCATIONS, from_revision):
            now = time.monotonic()
            for event in batch.events:
                if event.item is not None:
                    self._take(AllocationRecord.FromString(event.item.value), now)
            async with self._changed:
                self._changed.notify_all()

    def _take(self, record: AllocationRecord, now: float) -> None:
        for held in record.replicas:
            key = (held.session_id, held.attempt, held.rank)
            self.twice += self._nodes.setdefault(key, record.node) != record.node
            self.at.setdefault(held.session_id, now)

    async def have(self, sessions: set[str]) -> float:
        """When the last of these was placed, once all are."""
        async with self._changed:
            await self._changed.wait_for(lambda: sessions <= self.at.keys())
        return max(self.at[one] for one in sessions)


class Bench:
    """One platform with its agents, and a client."""

    def __init__(
        self, client: Client, agents: AgentProcess, placed: Placed, thousandths: int
    ) -> None:
        self._client = client
        self._agents = agents
        self._placed = placed
        self._thousandths = thousandths

    async def connected(self) -> float:
        """Connect all agents; the seconds that it took."""
        _say("the agents connect")
        return await self._agents.connect()

    async def singles(self, prefix: str = "") -> dict[str, float]:
        """One after the other."""
        placed, ordered = [], []
        for number in range(SINGLES + 10):
            began = time.monotonic()
            name = await self._submit()
            placed_at = await self._placed.have({name})
            ordered_at = await self._agents.have_orders({name})
            if number >= 10:  # by then everything is warm
                placed.append((placed_at - began) * 1000)
                ordered.append((ordered_at - began) * 1000)
        return {
            f"{prefix}placed_p50_ms": statistics.median(placed),
            f"{prefix}placed_p95_ms": percentile(placed, 0.95),
            f"{prefix}ordered_p50_ms": statistics.median(ordered),
        }

    async def queue(self, count: int) -> set[str]:
        """Have all devices withheld, and submit so many; their ids once all are queued."""
        await self._agents.offer(is_withheld=True)
        await self._all_withheld()
        _say(f"{count} sessions are submitted")
        places = asyncio.Semaphore(SUBMITTED_AT_ONCE)

        async def submit() -> str:
            async with places:
                return await self._submit()

        return set(await asyncio.gather(*(submit() for _ in range(count))))

    async def _all_withheld(self) -> None:
        """Return when there is no device left that a session could have."""
        while True:
            nodes = await self._client.nodes.every()
            if all(use.device.withheld for node in nodes for use in node.devices):
                return
            await asyncio.sleep(0.1)

    async def released(self, sessions: set[str], *, do_end: bool = False) -> float:
        """Offer all devices; sessions a second until all are with their agents, or have ended there."""
        _say("they are placed")
        began = time.monotonic()
        await self._agents.offer(is_withheld=False)
        ordered_at = await self._agents.have_orders(sessions)
        done_at = max(ordered_at, await self._placed.have(sessions))
        if do_end:
            done_at = max(done_at, await self._agents.have_ended(sessions))
        return len(sessions) / (done_at - began)

    async def _submit(self) -> str:
        spec = sessions_pb2.SessionSpec(
            argv=["true"], resources=resources_pb2.Resources(gpu_thousandths=self._thousandths)
        )
        request = sessions_pb2.CreateSessionRequest(request_id=uuid.uuid4().hex, spec=spec)
        return (await self._client.sessions.create(request)).id


async def _measure(
    platform: Platform, server: str, load: str, *, nodes: int, sessions: int
) -> dict[str, float]:
    """The figures of one load, on a platform that nobody has used."""
    thousandths, does = LOADS[load]
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    etcd = platform.folder / "data/controlplane/etcd" / CLIENT_SOCKET
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(context))
        store = await stack.enter_async_context(open_store(f"unix://{etcd}", clock=SystemClock()))
        token = (await client.accounts.create_join_token()).token
        _say(f"{load}: {nodes} agents join")
        agents = await stack.enter_async_context(
            AgentProcess.of(server=server, token=token, count=nodes, does=does)
        )
        placed = Placed()
        bench = Bench(client, agents, placed, thousandths)
        async with TaskGroup() as group:
            revision = (await store.list(ALLOCATIONS, keys_only=True)).revision
            following = group.create_task(placed.follow(store, revision + 1))
            figures = await (_shares if load == "shares" else _turnover)(bench, sessions)
            following.cancel()
    if placed.twice:
        raise SystemExit(f"bench.endtoend: {placed.twice} attempts were placed twice")
    if agents.broken:
        _say(f"{load}: {len(agents.broken)} streams broke, one of them: {agents.broken[-1]}")
    return figures


async def _shares(bench: Bench, sessions: int) -> dict[str, float]:
    figures = {"agents_connected_s": await bench.connected()}
    figures |= await bench.singles()
    queued = await bench.queue(sessions)
    figures["placements_per_s"] = await bench.released(queued)
    return figures | await bench.singles("busy_")


async def _turnover(bench: Bench, sessions: int) -> dict[str, float]:
    await bench.connected()
    queued = await bench.queue(sessions)
    return {"turnover_per_s": await bench.released(queued, do_end=True)}


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure(nodes: int, sessions: int, loads: Sequence[str]) -> dict[str, float]:
    """The figures of all these loads, each on a platform of its own."""
    figures: dict[str, float] = {}
    for load in loads:
        options = ["--no-agent", "--listen", "127.0.0.1:0"]
        # One user submits all of them, more than a user may by default.
        unlimited = {"NSML_CONTROLPLANE_USER_SESSIONS": "0"}
        with Platform(simulate_gpus=0, options=options, environment=unlimited) as platform:
            server = platform.ready("controlplane")["listen"]
            measured = _measure(platform, server, load, nodes=nodes, sessions=sessions)
            try:
                figures |= asyncio.run(measured)
            finally:
                # The agents are gone: nobody could end the sessions that they have.
                platform.nsml("down", "--keep-sessions", check=False, timeout_s=120)
    return figures
