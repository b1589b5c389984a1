"""The platform without one of its safeguards, each with a small situation in which that matters.

What has two safeguards loses both; the mutant says so. Not here, because another safeguard makes up for them:
the wait until a new leader has caught up and the reading after a commit of unknown fate (each decision compares the
revisions of all that it writes), and the cursors of the agent's journal (the history trims what comes again).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest

from controlplane.content.content import Content
from controlplane.domain.values import Allocation, Node, Session
from controlplane.history.sql.appending import Appending
from controlplane.nodes import agent_service
from controlplane.nodes.liveness_loop import Liveness
from controlplane.records.ingest import Ingestor
from controlplane.scheduler import node_capacity as room
from controlplane.scheduler.team_quotas import TeamQuotas
from controlplane.secrets import user_secrets  # noqa: F401 - loaded before anything is patched
from controlplane.sessions import export
from controlplane.sessions import placement as placing
from controlplane.sessions.readers import SessionWatch
from controlplane.sessions.stop import Stopper
from controlplane.sessions.submit import Submitter
from controlplane.state import live_state as state
from controlplane.state import replica_reports
from controlplane.state.draft import Draft
from controlplane.state.hold_times import HoldTimes
from controlplane.store.interface import Compare, Transaction
from nodeagent.collect.ingest import Collection
from nodeagent.journal import Journal
from nodeagent.link.channels import Backoff
from nodeagent.link.outbox import Outbox
from nodeagent.link.reports import exit_without_start
from nodeagent.reconcile import Replicas
from nodeagent.replica.runner import Runner
from nodeagent.runtimes.interface import ReplicaState
from nodeagent.storage import checkpoints
from nsml.client import streams
from nsml.v1 import agents_pb2, sessions_pb2
from tests.simulation.cluster import Shape
from tests.simulation.invariants import Invariant
from tests.simulation.situations import Situation
from tests.simulation.workload import Wish, brief
from tests.support.fake_machine import FakeMachine

Patch: TypeAlias = pytest.MonkeyPatch
SMALL = Shape(nodes=2, devices=2, control_planes=2)

Workload: TypeAlias = Callable[[random.Random], Mapping[str, Wish]]


def few(rng: random.Random) -> Mapping[str, Wish]:
    """A few sessions of all kinds."""
    return brief(rng, 8, largest=2, gang=2)


def narrow(rng: random.Random) -> Mapping[str, Wish]:
    """A few sessions of one replica, of at most one GPU."""
    return brief(rng, 8, largest=1, gang=1)


def repeated(rng: random.Random) -> Mapping[str, Wish]:
    """Sessions that are placed anew when they are lost."""
    return {
        key: replace(wish, retries=5, runs_for_s=rng.uniform(5.0, 20.0), exit_codes=(0, 0))
        for key, wish in few(rng).items()
    }


def patient(rng: random.Random) -> Mapping[str, Wish]:
    """Long ones among them."""
    return {
        key: replace(wish, runs_for_s=rng.uniform(100.0, 160.0))
        for key, wish in repeated(rng).items()
    }


def stopped(rng: random.Random) -> Mapping[str, Wish]:
    """Sessions that their owners stop, and that take their time to obey."""
    return {
        key: replace(wish, runs_for_s=60.0, stop_after_s=rng.uniform(0.5, 4.0), stops_in_s=None)
        for key, wish in few(rng).items()
    }


def gangs(rng: random.Random) -> Mapping[str, Wish]:
    """Gangs of which a member fails."""
    return {
        key: replace(wish, replicas=2, exit_codes=(0, 3), gpu_thousandths=1000, runs_for_s=4.0)
        for key, wish in few(rng).items()
    }


def saving(rng: random.Random) -> Mapping[str, Wish]:
    """Sessions that save and write."""
    return {
        key: replace(wish, saves=2, lines=6, runs_for_s=rng.uniform(3.0, 12.0))
        for key, wish in few(rng).items()
    }


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A safeguard taken away: how, what must find it, and under which faults."""

    name: str
    apply: Callable[[Patch], None]
    found_by: frozenset[Invariant]
    faults: Mapping[str, float]
    every_s: float = 1.0
    workload: Workload = few
    shape: Shape = SMALL
    faults_for_s: float = 30.0
    seeds: int = 6

    def situation(self, seed: int) -> Situation:
        """What it is tried in."""
        return Situation(
            shape=self.shape,
            wishes=self.workload(random.Random(f"{seed} {self.name}")),
            faults=self.faults,
            every_s=self.every_s,
            faults_for_s=self.faults_for_s,
        )


# The control plane.


def without_fence(patch: Patch) -> None:
    sound = Draft.transaction

    def transaction(self: Draft, fence: Compare) -> Transaction:
        made = sound(self, fence)
        return replace(made, compares=made.compares[1:], failure=made.failure[1:])

    patch.setattr(Draft, "transaction", transaction)


def without_request_ids(patch: Patch) -> None:
    sound = Submitter.submit
    turns = itertools.count()

    async def submit(self: Submitter, wish: Any) -> Any:
        return await sound(self, replace(wish, request_id=f"{wish.request_id}-{next(turns)}"))

    patch.setattr(Submitter, "submit", submit)


def without_waiting_for_proof(patch: Patch) -> None:
    sound = Liveness._lose_overdue

    async def lose(self: Liveness, node: str, silent_for: float) -> None:
        await sound(self, node, silent_for + 1_000.0)

    patch.setattr(Liveness, "_lose_overdue", lose)


def without_whole_gangs(patch: Patch) -> None:
    sound = Draft.put_allocation

    def put(self: Draft, allocation: Allocation) -> None:
        kept = tuple(one for one in allocation.replicas if one.rank == 0)
        sound(self, replace(allocation, replicas=kept))

    patch.setattr(Draft, "put_allocation", put)


def without_team_quotas(patch: Patch) -> None:
    patch.setattr(TeamQuotas, "bars", lambda *_: False)


def without_counting_what_is_held(patch: Patch) -> None:
    sound = placing.free_resources_of

    def free_resources_of(node: Any, allocation: Allocation, **facts: Any) -> Any:
        return sound(node, Allocation(node=allocation.node), **facts)

    patch.setattr(placing, "free_resources_of", free_resources_of)
    patch.setattr(room, "free_resources_of", free_resources_of)
    patch.setattr(room.NodeCapacity, "change", lambda *_: False)


def without_stopping_the_others(patch: Patch) -> None:
    patch.setattr(replica_reports, "_stop_others", lambda session, *_: session)


def without_attempt_numbers(patch: Patch) -> None:
    """A report counts for whatever attempt there is."""
    sound = replica_reports.apply_report

    def apply(draft: Draft, report: Any, silent: Any, now: float) -> bool:
        session = draft.session(report.session_id)
        number = session.attempt if session else report.attempt
        return sound(draft, replace(report, attempt=number), silent, now)

    patch.setattr(agent_service, "apply_report", apply)


def without_stop_wishes(patch: Patch) -> None:
    """The owner is told, and nothing is written."""

    async def stop(self: Stopper, session: Session, **_: Any) -> Session:
        return session

    patch.setattr(Stopper, "stop", stop)


def without_closed_nodes(patch: Patch) -> None:
    patch.setattr(Node, "closed_by", property(lambda _: ""))


def without_relisting(patch: Patch) -> None:
    """What a watch lost stays lost."""
    patch.setattr(state, "RELIST_EVERY_S", 1e9)


def without_missed_ends(patch: Patch) -> None:
    """Of a session that left before its watcher was sent its end, only that it left is sent."""
    sound = SessionWatch._left
    patch.setattr(SessionWatch, "_left", lambda self, gone: ([], sound(self, gone)[1]))


def without_ends_before_a_list(patch: Patch) -> None:
    """A watcher that is sent a new list asks for nothing that it lacks."""
    patch.setattr(
        streams._Unended, "missing", property(lambda _: set(), lambda *_: None), raising=False
    )


def without_one_charge(patch: Patch) -> None:
    """An export that is repeated charges something else."""
    sound = export.charges_of
    turns = itertools.count()

    def charges_of(session: Session) -> Any:
        return tuple(
            replace(one, seconds=one.seconds + next(turns) * 1e-3) for one in sound(session)
        )

    patch.setattr(export, "charges_of", charges_of)


def without_waiting_for_durable(patch: Patch) -> None:
    """What an attempt did is called durable though nothing of it was saved."""
    sound = export.charges_of

    def charges_of(session: Session) -> Any:
        return tuple(replace(one, durable_until=one.ended_at) for one in sound(session))

    patch.setattr(export, "charges_of", charges_of)


def without_steady_clocks(patch: Patch) -> None:
    patch.setattr(
        HoldTimes, "held_s", lambda self, session_id, attempt, *, by_wall_s: max(by_wall_s, 0.0)
    )


def without_storing_all(patch: Patch) -> None:
    """Some chunks are acknowledged before they are committed, and then forgotten."""
    sound = Ingestor.ingest
    turns = itertools.count(1)

    async def ingest(self: Ingestor, caller: Any, chunks: Sequence[Any], sample: Any) -> Any:
        if next(turns) % 5:
            return await sound(self, caller, chunks, sample)
        return {chunk.stream: chunk.last + 1 for chunk in chunks}

    patch.setattr(Ingestor, "ingest", ingest)


class _Forgetful:
    """A connection that writes no cursors."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *given: Any) -> Any:
        if statement.startswith("UPDATE streams SET wanted"):
            return None
        return self._connection.execute(statement, *given)


def without_cursors(patch: Patch) -> None:
    sound = Appending.run

    def run(self: Appending, chunks: Any) -> Any:
        self._connection = _Forgetful(self._connection)  # type: ignore[assignment]
        return sound(self, chunks)

    patch.setattr(Appending, "run", run)


def without_trimming(patch: Patch) -> None:
    """What is sent again is stored again."""

    def extend(self: Appending, stream: Any, chunk: Any) -> None:
        self._store(stream, chunk, chunk.first, chunk.last)
        self._streams[chunk.stream] = stream._replace(wanted=chunk.last + 1)

    patch.setattr(Appending, "_extend", extend)


def without_blobs(patch: Patch) -> None:
    """Three safeguards: the agent sends nothing, and the control plane looks for nothing of its own."""

    async def put_tree(_: Any, packed: Any, __: Any, **___: Any) -> str:
        return str(packed.manifest.digest)

    async def may_use(self: Content, *_: Any, **__: Any) -> bool:
        return True

    async def is_incomplete(self: Content, _: Any, __: str) -> bool:
        return False

    patch.setattr(checkpoints, "put_tree", put_tree)
    patch.setattr(Content, "may_use", may_use)
    patch.setattr(Content, "is_incomplete", is_incomplete)


# The agent and the shim.


def without_exit_reports(patch: Patch) -> None:
    sound = Outbox.put
    turns = itertools.count()

    def put(self: Outbox, replica_id: Any, report: agents_pb2.ReplicaReport) -> None:
        if not report.HasField("exit") or next(turns) % 3:
            sound(self, replica_id, report)

    patch.setattr(Outbox, "put", put)


def without_lost_after_in_shims(patch: Patch) -> None:
    async def keep_limits(self: FakeMachine, process: Any) -> None:
        """No watch over contacts."""

    patch.setattr(FakeMachine, "_keep_limits", keep_limits)


def without_waiting_for_the_end(patch: Patch) -> None:
    """A program that is told to end is reported as gone: its devices are free too early."""
    sound = Runner._order_stop

    async def order_stop(self: Runner, order: agents_pb2.StopOrder) -> None:
        await sound(self, order)
        at = self.place.clock.time()
        end = exit_without_start(sessions_pb2.CAUSE_STOP_REQUESTED, "told to end", at=at)
        self._end(agents_pb2.REPLICA_PHASE_EXITED, end)

    patch.setattr(Runner, "_order_stop", order_stop)


def without_refusing_old_orders(patch: Patch) -> None:
    sound = Replicas.obey

    async def obey(self: Replicas, orders: agents_pb2.Orders) -> bool:
        self._highest = (0, 0)
        return await sound(self, orders)

    patch.setattr(Replicas, "obey", obey)


def without_persisting_terms(patch: Patch) -> None:
    patch.setattr(Journal, "obey", lambda *_: None)


def without_pauses(patch: Patch) -> None:
    async def pause(_: Backoff) -> None:
        return

    patch.setattr(Backoff, "pause", pause)


def without_adoption(patch: Patch) -> None:
    """An agent that starts ends what it finds."""
    sound = Replicas._adopt

    async def adopt(self: Replicas, facts: Any) -> None:
        await sound(self, facts)
        if facts.state is ReplicaState.RUNNING:
            await self._place.runtime.stop(facts.replica_id, grace_s=0.0, reason="unknown")

    patch.setattr(Replicas, "_adopt", adopt)


def without_waiting_for_acknowledgements(patch: Patch) -> None:
    """A replica is finalized when its records are sent."""

    async def finished(_: Collection) -> None:
        """At once."""

    patch.setattr(Collection, "finished", finished)


def without_gaps_to_come(patch: Patch) -> None:
    """An agent that starts again knows nothing of what is missing and not told yet."""
    sound = Journal.cursors

    def cursors(self: Journal, replica_id: Any) -> Any:
        found = sound(self, replica_id)
        return {stream: replace(cursor, lost=0) for stream, cursor in found.items()}

    patch.setattr(Journal, "cursors", cursors)


def without_acknowledged_positions(patch: Patch) -> None:
    """What was sent counts as safe at the first acknowledgement, whatever that was for."""
    sound = Collection.acknowledge

    def acknowledge(self: Collection, stream: Any, following: int) -> Any:
        sent = self._sent.get(stream)
        return sound(self, stream, max(following, sent[-1].last + 1 if sent else 0) + 7)

    patch.setattr(Collection, "acknowledge", acknowledge)
    _remember_more(patch)


def _remember_more(patch: Patch) -> None:
    sound = Journal.acknowledge

    def acknowledge(self: Journal, cursors: Mapping[Any, Any]) -> None:
        sound(self, {key: replace(one, last=one.last + 1) for key, one in cursors.items()})

    patch.setattr(Journal, "acknowledge", acknowledge)


LEADERS = {"freeze store": 3.0, "cut store": 1.0, "pause control plane": 3.0, "deposed": 1.0}
SILENCES = {"long silence": 1.0}
AGENTS = {"kill agent": 2.0, "cut agent": 2.0}
_I = Invariant

MUTANTS = (
    Mutant(
        name="fence",
        apply=without_fence,
        found_by=frozenset({_I.ONE_LEADER}),
        faults=LEADERS,
        every_s=0.5,
    ),
    Mutant(
        name="request ids",
        apply=without_request_ids,
        found_by=frozenset({_I.ONE_EFFECT}),
        faults={"lose answers": 1.0},
        every_s=0.3,
    ),
    Mutant(
        name="ends that were missed",
        apply=without_missed_ends,
        found_by=frozenset({_I.SHOWN_ENDS}),
        faults={"history slow": 1.0},
        every_s=0.5,
    ),
    Mutant(
        name="ends that a new list lacks",
        apply=without_ends_before_a_list,
        found_by=frozenset({_I.SHOWN_ENDS}),
        faults={"kill control plane": 1.0},
        every_s=0.5,
    ),
    Mutant(
        name="proof of an end",
        apply=without_waiting_for_proof,
        found_by=frozenset({_I.FREED_WHEN_GONE}),
        faults=SILENCES,
        every_s=4.0,
        workload=patient,
        faults_for_s=150.0,
    ),
    Mutant(
        name="whole gangs",
        apply=without_whole_gangs,
        found_by=frozenset({_I.WHOLE_GANGS}),
        faults={},
        workload=gangs,
    ),
    Mutant(
        name="quotas of teams",
        apply=without_team_quotas,
        found_by=frozenset({_I.TEAM_QUOTA}),
        faults={},
        workload=narrow,
        shape=replace(SMALL, team_gpus=1000),
    ),
    Mutant(
        name="what is held",
        apply=without_counting_what_is_held,
        found_by=frozenset({_I.CAPACITY}),
        faults={},
        workload=repeated,
    ),
    Mutant(
        name="the end of the others",
        apply=without_stopping_the_others,
        found_by=frozenset({_I.GANGS_END_AS_ONE}),
        faults={},
        workload=gangs,
    ),
    Mutant(
        name="attempt numbers of reports",
        apply=without_attempt_numbers,
        found_by=frozenset({_I.FREED_WHEN_GONE, _I.ONE_ATTEMPT, _I.RIGHT_ENDS}),
        # Reports of one attempt must come when there is another.
        faults={"drain": 2.0, "cut agent": 2.0, "kill control plane": 1.0},
        every_s=0.3,
        workload=repeated,
        seeds=40,
    ),
    Mutant(
        name="wishes to stop",
        apply=without_stop_wishes,
        found_by=frozenset({_I.PROMISES}),
        faults={},
        workload=stopped,
    ),
    Mutant(
        name="closed nodes (scheduler and committer)",
        apply=without_closed_nodes,
        found_by=frozenset({_I.OPEN_NODES}),
        faults={"drain": 1.0},
    ),
    Mutant(
        name="listing again",
        apply=without_relisting,
        found_by=frozenset({_I.RECOVERY, _I.PROMISES, _I.NOTHING_LEFT}),
        faults={"lost watch events": 1.0},
        every_s=0.5,
    ),
    Mutant(
        name="one charge",
        apply=without_one_charge,
        # The history refuses a charge that differs, and then the export stands still.
        found_by=frozenset({_I.CHARGES, _I.RECOVERY}),
        faults={"history fails": 1.0},
    ),
    Mutant(
        name="durable is what was saved",
        apply=without_waiting_for_durable,
        found_by=frozenset({_I.CHARGES}),
        faults={},
    ),
    Mutant(
        name="steady clocks",
        apply=without_steady_clocks,
        found_by=frozenset({_I.CHARGES}),
        faults={"clock of a control plane steps": 1.0},
        shape=Shape(nodes=2, devices=2, control_planes=1),
    ),
    Mutant(
        name="acknowledging after the commit",
        apply=without_storing_all,
        found_by=frozenset({_I.COMMITTED_FIRST}),
        faults={},
        workload=saving,
    ),
    Mutant(
        name="the cursor with its chunk",
        apply=without_cursors,
        found_by=frozenset({_I.COMMITTED_FIRST}),
        faults={},
        workload=saving,
    ),
    Mutant(
        name="trimming",
        apply=without_trimming,
        found_by=frozenset({_I.RECORDS, _I.NO_DEFECTS, _I.RECOVERY}),
        faults={"cut agent": 1.0, "history fails": 1.0, "history slow": 1.0},
        every_s=0.5,
        workload=saving,
    ),
    Mutant(
        name="blobs of a checkpoint (agent and control plane)",
        apply=without_blobs,
        found_by=frozenset({_I.CHECKPOINTS}),
        faults={},
        workload=saving,
    ),
    Mutant(
        name="reports of ends",
        apply=without_exit_reports,
        found_by=frozenset({_I.RECOVERY}),
        faults={},
    ),
    Mutant(
        name="lost_after in shims",
        apply=without_lost_after_in_shims,
        found_by=frozenset({_I.FREED_WHEN_GONE}),
        faults=SILENCES,
        every_s=4.0,
        workload=patient,
        faults_for_s=150.0,
    ),
    Mutant(
        name="devices until the end",
        apply=without_waiting_for_the_end,
        found_by=frozenset({_I.FREED_WHEN_GONE}),
        faults={},
        workload=stopped,
    ),
    Mutant(
        name="refusing older orders",
        apply=without_refusing_old_orders,
        found_by=frozenset({_I.NEWEST_ORDERS}),
        faults={"orders come again": 1.0},
        every_s=0.5,
    ),
    Mutant(
        name="terms on disk",
        apply=without_persisting_terms,
        found_by=frozenset({_I.NEWEST_ORDERS}),
        faults={},
    ),
    Mutant(
        name="adoption",
        apply=without_adoption,
        found_by=frozenset({_I.OUTLIVING}),
        faults={"kill agent": 1.0},
        workload=repeated,
    ),
    Mutant(
        name="pauses",
        apply=without_pauses,
        found_by=frozenset({_I.PACE}),
        faults={"disk full": 1.0},
    ),
    Mutant(
        name="records before the end",
        apply=without_waiting_for_acknowledgements,
        found_by=frozenset({_I.RECORDS_BEFORE_ENDS, _I.RECORDS}),
        faults={"history slow": 1.0, "history gone": 1.0},
        workload=saving,
    ),
    Mutant(
        name="gaps to come",
        apply=without_gaps_to_come,
        found_by=frozenset({_I.RECORDS_BEFORE_ENDS, _I.RECORDS}),
        faults={"kill agent": 1.0},
        workload=saving,
    ),
    Mutant(
        name="positions that are acknowledged",
        apply=without_acknowledged_positions,
        found_by=frozenset({_I.COMMITTED_FIRST, _I.RECORDS}),
        faults={"history slow": 1.0, **AGENTS},
        workload=saving,
    ),
)
