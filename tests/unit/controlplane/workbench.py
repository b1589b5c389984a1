"""Operations over the embedded store in memory, on a clock that tests move."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

from controlplane.domain.lifecycle import ReplicaPhase, SessionState
from controlplane.domain.plan import Placement, ReplicaPlacement
from controlplane.domain.values import Cause, DeviceShare, Exit, Node, Resources, Session
from controlplane.sessions.placement import place
from controlplane.state.committer import Committer, Deposed
from controlplane.state.draft import Draft
from controlplane.state.live_state import LiveState
from controlplane.state.replica_reports import Report, apply_report
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import (
    CommitUnknown,
    Compare,
    Delete,
    Put,
    StoreUnavailable,
    Transaction,
    created_at,
)
from controlplane.stored import etcd_codec
from nsml.common.clock import SystemClock, inline


@dataclass
class HandClock:
    """Time that tests move; sleeping only lets others run. `wrong`: by how much the wall clock is ahead."""

    now: float = 1_000_000.0
    wrong: float = 0.0

    def time(self) -> float:
        return self.now + self.wrong

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Flaky:
    """A store whose next commits do what `faults` says: "lost before", "lost after" or "down"."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.faults: list[str] = []
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, transaction: Transaction) -> Any:
        self.commits += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "down":
            raise StoreUnavailable("scripted")
        if fault == "lost before":
            raise CommitUnknown("scripted")
        result = await self._store.commit(transaction)
        if fault == "lost after":
            raise CommitUnknown("scripted")
        return result


@dataclass
class Bench:
    """A store with one or more members that know it."""

    store: Flaky
    clock: HandClock
    group: asyncio.TaskGroup
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    async def member(self) -> LiveState:
        state = LiveState(self.store, self.clock)
        self.tasks.append(self.group.create_task(state.follow()))
        await state.reached(1)
        return state

    async def elect(self, name: str = "one") -> Compare:
        """A leader key of a new term."""
        deletion = Delete(key="leader")
        await self.store._store.commit(Transaction(success=(deletion,)))
        put = Put(key="leader", value=name.encode())
        result = await self.store._store.commit(Transaction(success=(put,)))
        return created_at("leader", result.revision)

    def committer(self, state: LiveState) -> Committer:
        return Committer(store=self.store, state=state, clock=self.clock, leader=lambda: "other")

    def lead(self, committer: Committer, fence: Compare) -> asyncio.Task[Any]:
        async def run() -> str:
            try:
                await committer.run(fence)
            except Deposed:
                return "deposed"
            return "ended"

        task = self.group.create_task(run())
        self.tasks.append(task)
        return task

    async def write(self, *things: Node | Session) -> None:
        """Put records as if others had."""
        for thing in things:
            if isinstance(thing, Node):
                put = Put(key=etcd_codec.node_key(thing.name), value=etcd_codec.encode_node(thing))
            else:
                put = Put(
                    key=etcd_codec.session_key(thing.id), value=etcd_codec.encode_session(thing)
                )
            await self.store._store.commit(Transaction(success=(put,)))

    async def settled(self, *states: LiveState) -> None:
        """Every member has seen everything."""
        revision = (await self.store.list("leader")).revision
        for state in states:
            await state.reached(revision)


@contextlib.asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    clock = HandClock()
    async with (
        # On real time: its own loops would turn for ever on a clock that never makes them wait.
        EmbeddedStore(":memory:", clock=SystemClock(), run=inline) as store,
        asyncio.TaskGroup() as group,
    ):
        made = Bench(Flaky(store), clock, group)
        yield made
        for task in made.tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def working(loop: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """A loop works as long as this is open."""
    task = asyncio.create_task(loop)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def placement(session: Session, *where: tuple[str, str]) -> Placement:
    """Rank by rank: node and device."""
    gpu = session.spec.resources.gpu_thousandths
    return Placement(
        session_id=session.id,
        replicas=tuple(
            ReplicaPlacement(
                rank=rank,
                node=node,
                devices=(DeviceShare(uuid=device, thousandths=gpu),),
                resources=Resources(gpu_thousandths=gpu, cpu_thousandths=100, memory_bytes=1000),
            )
            for rank, (node, device) in enumerate(where)
        ),
    )


def report(
    session: Session, phase: str, rank: int = 0, *, cause: str = "", attempt: int = 1, **ended: Any
) -> Report:
    at, waiting = ended.pop("at", 100.0), ended.pop("waiting", "")
    return Report(
        node=ended.pop("node", "a"),
        session_id=session.id,
        attempt=attempt,
        rank=rank,
        phase=ReplicaPhase(phase),
        at=at,
        waiting=waiting,
        image=ended.pop("image", ""),
        exit=Exit(cause=Cause(cause), ended_at=at, **ended) if cause else None,
    )


class Script:
    """Decisions applied to a state without a store, one transaction each."""

    def __init__(self, *things: Node | Session) -> None:
        self.now = 1000.0
        self.state = LiveState(None, self)  # type: ignore[arg-type]
        self.revision = 1
        self.unheard: frozenset[str] = frozenset()
        for thing in things:
            self.revision += 1
            if isinstance(thing, Node):
                self.state.put_node(thing, self.revision)
            else:
                self.state.put_session(thing, self.revision)

    def monotonic(self) -> float:
        return self.now

    def decide(self, decision: Any) -> Any:
        draft = Draft(self.state)
        outcome = decision(draft)
        self.revision += 1
        draft.applied(self.revision)
        return outcome

    def place(self, session: Session, *where: tuple[str, str]) -> bool:
        return bool(self.decide(lambda draft: place(draft, placement(session, *where), self.now)))

    def say(self, session: Session, phase: str, rank: int = 0, **told: Any) -> Session:
        said = report(session, phase, rank, **told)
        self.decide(lambda draft: apply_report(draft, said, self.unheard, self.now))
        return self.session(session)

    def session(self, session: Session) -> Session:
        found = self.state.session(session.id)
        assert found is not None
        return found

    def held(self, node: str) -> int:
        stored = self.state.allocations.get(node)
        return sum(one.gpu_thousandths for one in stored.value.replicas) if stored else 0


__all__ = ["Bench", "Script", "SessionState", "bench", "placement", "report"]
