"""Reconciles the node's replicas with the orders for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Protocol, Self

import structlog

from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.link.outbox import replica_message, replica_of
from nodeagent.link.reports import exit_of, exit_without_start, report_of
from nodeagent.network.host_network import shares_ports
from nodeagent.replica.assignments import keep_assignment, read_assignment
from nodeagent.replica.progress import Progress
from nodeagent.replica.runner import Runner, RunnerContext
from nodeagent.replica.secrets import GivenSecrets, taken_from
from nodeagent.runtimes.interface import ReplicaFacts, ReplicaState
from nsml.common.concurrency import TaskGroup
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

log = structlog.get_logger()

Position = tuple[int, int]
"""(term, revision) of orders."""


class Memory(Protocol):
    """State that outlives the agent; blocking."""

    def highest(self) -> Position:
        """Return the position of the newest orders ever obeyed; (0, 0) before any."""
        ...

    def obey(self, term: int, revision: int) -> None:
        """Store it, on disk."""
        ...

    def start_anew(self) -> None:
        """Accept orders of any position again; on disk."""
        ...

    def forget(self, replica_id: ReplicaId) -> None:
        """Remove all data of a replica."""
        ...


class Replicas:
    """All replicas of the node, each with its runner. Entered as a context, which owns the runners.

    Leaving the context releases the replicas; their programs continue.
    """

    def __init__(self, place: RunnerContext, folders: ReplicaFolders, memory: Memory) -> None:
        self._place = place
        self._folders = folders
        self._memory = memory
        self._highest: Position = (0, 0)
        self._runners: dict[ReplicaId, Runner] = {}
        self._waiting: dict[ReplicaId, ReplicaFacts] = {}
        self._tasks: dict[ReplicaId, asyncio.Task[None]] = {}
        self._group = TaskGroup()

    async def __aenter__(self) -> Self:
        """Adopt the replicas of an earlier agent, and continue them."""
        self._highest = await self._place.run(self._memory.highest)
        await self._group.__aenter__()
        for facts in await self._place.runtime.list():
            await self._adopt(facts)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Release the replicas."""
        for task in self._tasks.values():
            task.cancel()
        await self._group.__aexit__(None, None, None)

    @property
    def highest(self) -> Position:
        """Position of the newest orders ever obeyed."""
        return self._highest

    async def start_anew(self) -> None:
        """Reset the highest position: its history no longer exists."""
        await self._place.run(self._memory.start_anew)
        self._highest = (0, 0)

    def reports(self) -> list[pb.ReplicaReport]:
        """Return the state of every replica, also of those that wait for orders to begin."""
        at = self._place.clock.time()
        waiting = [
            report_of(replica_id, pb.REPLICA_PHASE_PREPARING, at=at) for replica_id in self._waiting
        ]
        return [*(runner.introduction() for runner in self._runners.values()), *waiting]

    def at_ports_before(self, replica_id: ReplicaId) -> list[ReplicaId]:
        """Replicas with a port of the node that began before this one and have not ended."""
        earlier = takewhile(lambda one: one.replica_id != replica_id, self._runners.values())
        return [
            one.replica_id
            for one in earlier
            if one.is_running and shares_ports(one.assignment.spec)
        ]

    def running(self) -> list[Runner]:
        """Return the replicas that hold devices."""
        return [runner for runner in self._runners.values() if runner.is_running]

    def progress(self) -> dict[ReplicaId, Progress]:
        """Return what sessions would lose by being moved, of replicas whose programs reported it."""
        return {
            replica_id: runner.progress
            for replica_id, runner in self._runners.items()
            if runner.progress != Progress()
        }

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs here or is about to."""
        return not self._waiting and not self.running()

    def shares(self) -> dict[str, float]:
        """Return the used share of each device, by uuid; 1 is all of it."""
        shares: dict[str, float] = {}
        for runner in self.running():
            uuids = runner.assignment.device_uuids
            for uuid in uuids:
                share = runner.assignment.resources.gpu_thousandths / 1000 / len(uuids)
                shares[uuid] = shares.get(uuid, 0.0) + share
        return shares

    def finalized(self, replica_id: ReplicaId) -> None:
        """The control plane has all data of a replica."""
        runner = self._runners.get(replica_id)
        if runner is not None:
            runner.finalized()

    async def obey(self, orders: pb.Orders) -> bool:
        """Start and stop replicas as ordered; False for orders older than others that were obeyed.

        On return new replicas are noted on disk, and have begun. If the disk fails
        (OSError) none begins, but replicas still end: they may have filled it.
        """
        position = (orders.term, orders.revision)
        if position < self._highest:
            log.warning("orders.refused", position=position, highest=self._highest)
            return False
        listed = _by_id(orders.assignments)
        begun = {
            replica_id: assignment
            for replica_id, assignment in listed.items()
            if replica_id not in self._runners
        }
        # Of all of them: assignments written to disk, to begin or to stop, must contain none.
        secrets = {replica_id: taken_from(assignment) for replica_id, assignment in listed.items()}
        try:
            await self._place.run(lambda: self._persist(position, begun | self._told(listed)))
        except OSError:
            await self._end_others(listed)
            raise
        self._highest = position
        for replica_id, assignment in begun.items():
            facts = self._waiting.pop(replica_id, None)
            self._begin(replica_id, assignment, facts, secrets[replica_id])
        await self._end_others(listed)
        return True

    def _told(self, listed: Mapping[ReplicaId, pb.Assignment]) -> dict[ReplicaId, pb.Assignment]:
        """Return replicas with a new stop order: the next agent must know why they ended."""
        return {
            replica_id: assignment
            for replica_id, assignment in listed.items()
            if assignment.HasField("stop")
            and (runner := self._runners.get(replica_id)) is not None
            and runner.is_running
            and runner.stop_order != assignment.stop
        }

    def _persist(self, position: Position, news: Mapping[ReplicaId, pb.Assignment]) -> None:
        if position != self._highest:
            self._memory.obey(*position)
        for replica_id, assignment in news.items():
            keep_assignment(self._folders.of(replica_id), assignment)

    async def _end_others(self, listed: Mapping[ReplicaId, pb.Assignment]) -> None:
        stops = []
        for replica_id, runner in tuple(self._runners.items()):
            assignment = listed.get(replica_id)
            if assignment is None:
                runner.unlisted()
                stops.append(runner.stop(_NOT_WANTED))
            elif assignment.HasField("stop"):
                stops.append(runner.stop(assignment.stop))
        await _all_of(stops)
        for replica_id in sorted(self._waiting.keys() - listed.keys()):
            del self._waiting[replica_id]
            await self._place.runtime.remove(replica_id)
            # A node that must end replicas before it gets more waits for this report.
            self._place.outbox.put(replica_id, self._never_begun(replica_id))

    def _never_begun(self, replica_id: ReplicaId) -> pb.ReplicaReport:
        at = self._place.clock.time()
        end = exit_without_start(sessions.CAUSE_NODE_LOST, "it never began", at=at)
        return report_of(replica_id, pb.REPLICA_PHASE_FINALIZED, at=at, end=end)

    async def _adopt(self, facts: ReplicaFacts) -> None:
        """Adopt a replica. One that never began waits for orders: its devices may have been reassigned."""
        assignment = await self._place.run(
            lambda: read_assignment(self._folders.of(facts.replica_id))
        )
        log.info("replica.taken_up", replica=str(facts.replica_id), state=facts.state.value)
        if facts.state is ReplicaState.PREPARED:
            self._waiting[facts.replica_id] = facts
            return
        if assignment is None:  # truncated by a power loss: enough is known to end it
            assignment = pb.Assignment(replica=replica_message(facts.replica_id))
        # A running program has its secrets already; nothing else needs them.
        self._begin(facts.replica_id, assignment, facts, GivenSecrets())

    def _begin(
        self,
        replica_id: ReplicaId,
        assignment: pb.Assignment,
        facts: ReplicaFacts | None,
        secrets: GivenSecrets,
    ) -> None:
        stop = assignment.stop if assignment.HasField("stop") else None
        runner = Runner(self._place, replica_id, assignment, stop_order=stop, secrets=secrets)
        if facts is not None and facts.state is ReplicaState.RUNNING:
            runner.phase, runner.started_at = pb.REPLICA_PHASE_RUNNING, facts.started_at
        elif facts is not None and facts.exit is not None:
            runner.phase, runner.exit = (
                pb.REPLICA_PHASE_EXITED,
                exit_of(facts.exit, stop, runner.folder),
            )
        self._runners[replica_id] = runner
        self._tasks[replica_id] = self._group.create_task(self._live(runner, facts))

    async def _live(self, runner: Runner, facts: ReplicaFacts | None) -> None:
        """Run one replica; a defect in it must not end the others."""
        try:
            await runner.work(facts)
        except Exception:
            # Kept in the list: its remains must not be started a second time.
            log.exception("replica.broken", replica=str(runner.replica_id))
            return
        del self._runners[runner.replica_id], self._tasks[runner.replica_id]
        if runner.has_collected:
            await self._forget(runner.replica_id)

    async def _forget(self, replica_id: ReplicaId) -> None:
        try:
            await self._place.run(lambda: self._memory.forget(replica_id))
        except OSError as error:  # some surplus rows, of an id that is never reused
            log.warning("replica.not_forgotten", replica=str(replica_id), error=str(error))


_NOT_WANTED = pb.StopOrder(
    cause=sessions.CAUSE_STOP_REQUESTED, reason="the control plane does not want it here any more"
)


async def _all_of(works: Sequence[Coroutine[None, None, None]]) -> None:
    """Run all concurrently, each independent of the others; raises the first failure after the last."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if outcome is not None:
            raise outcome


def _by_id(assignments: Iterable[pb.Assignment]) -> dict[ReplicaId, pb.Assignment]:
    """Return copies: a part of a message would keep all of it in memory, here the orders of all others."""
    found = {}
    for assignment in assignments:
        kept = pb.Assignment()
        kept.CopyFrom(assignment)
        try:
            found[replica_of(kept.replica)] = kept
        except ValueError as error:
            log.error("orders.unusable_replica", error=str(error))  # noqa: TRY400 - no defect of ours
    return found
