"""What must never break (docs/architecture.md, 5), checked while a simulation runs and at its end.

The referee judges by what really happened: when the machines' programs began and ended, what they
wrote, what the store took, what clients were told. Records of the platform are judged, not believed.
Each of them is checked at every event that could break it, and what only the end can show at the end.
"""

from __future__ import annotations

import asyncio
import enum
import json
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from controlplane.domain.lifecycle import SESSION_LIFE, SessionState
from controlplane.domain.values import (
    WHOLE_DEVICE,
    Allocation,
    Cause,
    EndedAttempt,
    Node,
    Session,
)
from controlplane.history.sql.history import History
from controlplane.history.values import (
    AttemptCharge,
    Channel,
    Checkpoint,
    CheckpointState,
    Recorded,
    SessionRecord,
    StreamKey,
)
from controlplane.records.logs import Logs
from controlplane.state.hold_times import MOST_LATE_S
from controlplane.store.election import LEADER_KEY
from controlplane.store.interface import Delete, Put
from controlplane.stored import etcd_codec
from nodeagent.collect.streams import Cursor, StreamId
from nodeagent.folders import ReplicaId
from nodeagent.runtimes.interface import ExitRecord, ExitWhy, ReplicaSpec
from nsml.content.manifest import decode
from nsml.v1 import sessions_pb2
from tests.simulation.store_link import Commit
from tests.simulation.trace import Trace
from tests.simulation.workload import LOST_AFTER_S, Wish

_ATTEMPTS_FOR_HELD = 3
_SILENT_SHARE = 0.6
"""Of lost_after: a shim stops its program before that is over, so that it is gone then."""
_CLOCKS_DIFFER_S = 6.0
"""How much later than decided a commit may be applied: a decision is made again when it is late."""
_LOSSES = {Cause.NODE_LOST, Cause.LOST_AFTER}
_LAST_FIRST_POSITION = {Channel.LOG: 0, Channel.METRIC: 1}


T = TypeVar("T")


class Invariant(enum.StrEnum):
    """What must hold; in brackets its number in docs/architecture.md, section 5."""

    CAPACITY = "no device beyond its capacity"  # 1
    WHOLE_GANGS = "gangs are placed whole"  # 1
    TEAM_QUOTA = "no team holds more than its competition allows"
    ONE_LEADER = "only the leader of the current term decides"  # 2
    NEWEST_ORDERS = "agents obey no older orders"  # 2
    PROMISES = "what was answered is kept"  # 3
    ONE_EFFECT = "a request has one effect"  # 3
    ONE_ATTEMPT = "one attempt runs at a time"  # 3
    FREED_WHEN_GONE = "devices are free when all programs are gone"  # 1, 3
    GANGS_END_AS_ONE = "gangs end as one"  # 3
    RECORDS = "records arrive once and in order"  # 4
    COMMITTED_FIRST = "what is acknowledged is committed"  # 4
    RECORDS_BEFORE_ENDS = "a session ends when its records have arrived"  # 4
    CHECKPOINTS = "what is durable can be read back"  # 4
    CHARGES = "each allocated second is charged once"  # 5
    OUTLIVING = "programs are stopped for a reason only"  # 6
    OPEN_NODES = "closed nodes get no work"  # 8
    FORWARD = "states only go forward"  # 3
    RIGHT_ENDS = "every session has its right end"  # 3
    SHOWN_ENDS = "watchers are shown the end of all that they were shown"  # 3
    NOTHING_LEFT = "nothing is left behind"  # 1
    RECOVERY = "it heals by itself in time"
    STILLNESS = "nothing to do in, nothing out"  # 8
    PACE = "who fails tries again after a pause"
    NO_DEFECTS = "nothing logs a defect"


class Violation(AssertionError):
    """An invariant does not hold; the message begins with its name."""


@dataclass(slots=True)
class Life:
    """One replica's program as its machine saw it. `exit` is None when the machine lost power."""

    replica: ReplicaId
    key: str
    node: str
    devices: tuple[str, ...]
    started_at: float
    ended_at: float | None = None
    exit: ExitRecord | None = None
    output: bytes = b""
    records: tuple[bytes, ...] = ()
    missing: int = 0
    """Numbers that are not in its record file."""

    @property
    def attempt(self) -> tuple[str, int]:
        return (self.replica.session_id, self.replica.attempt)

    @property
    def ended_by_itself(self) -> bool:
        return self.exit is not None and self.exit.why is ExitWhy.EXITED

    @property
    def was_lost(self) -> bool:
        return self.exit is None or self.exit.why in {ExitWhy.LOST_AFTER, ExitWhy.SHIM_LOST}


@dataclass(slots=True)
class Promise:
    """What the platform told the owner of one session."""

    wish: Wish
    session_id: str
    name: str
    stopped: bool = False
    stopped_at: float = 0.0


@dataclass(slots=True)
class _Holding:
    """From when to when an attempt held its devices; virtual seconds."""

    since: float
    until: float | None = None


def _reachable(steps: int) -> frozenset[tuple[SessionState, SessionState]]:
    """Pairs of states of which the second follows the first in at most so many events."""
    direct = {(before, after) for (before, _), after in SESSION_LIFE.items()}
    found = set(direct)
    for _ in range(steps - 1):
        found |= {(a, d) for a, b in found for c, d in direct if b is c}
    return frozenset(found)


ONE_WRITE = _reachable(3)
"""A single write may carry a start, an end and a final state."""
WATCHED = _reachable(len(SessionState))
"""A watcher sees the newest of what happened between two messages."""


@dataclass
class Referee:
    """Sees everything; `broken` is set at the first violation."""

    trace: Trace
    wishes: Mapping[str, Wish]
    silences: dict[str, float] = field(default_factory=dict)
    """Longest time for which each node could not be heard, whatever the reason."""
    drains: Counter[str] = field(default_factory=Counter)
    reboots: Counter[str] = field(default_factory=Counter)
    lives: dict[ReplicaId, Life] = field(default_factory=dict)
    promises: dict[str, Promise] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    """As the store has them now."""
    ended: dict[str, Session] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    checks: Counter[Invariant] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    """How much happened: commits, programs, answers."""
    blob: Callable[[str], Awaitable[bytes]] | None = None
    """Reads the object store, past all that may be wrong with the way there."""
    cursors: Callable[[str, int], Awaitable[Mapping[StreamKey, int]]] | None = None
    """Reads the cursors of an attempt from the history, likewise."""
    team_gpus: int = 0
    """Thousandths of GPUs that all programs together may hold, as those of one team; 0: any number."""
    clocks_stepped: bool = False
    has_newcomers: bool = False
    """A control plane was started when the others had begun to work."""
    last_commit_at: float = 0.0

    def __post_init__(self) -> None:
        self._allocations: dict[str, Allocation] = {}
        self._nodes: dict[str, Node] = {}
        self._term = 0
        self._by_request: dict[str, str] = {}
        self._watched: dict[str, tuple[SessionState, int]] = {}
        self._unended: dict[str, dict[str, None]] = defaultdict(dict)
        """By watcher, the sessions that were shown and not their ends."""
        self._highest: dict[str, tuple[int, int]] = {}
        self._wanted: dict[StreamKey, int] = {}
        self._charged: dict[tuple[str, int], AttemptCharge] = {}
        self._held: dict[tuple[str, int], _Holding] = {}

    def violation(self, invariant: Invariant, text: str) -> None:
        self.trace.note("VIOLATION", invariant.value, text)
        self.violations.append(f"[{invariant.value}] {text}")
        self.broken.set()

    def expect(self, invariant: Invariant, holds: object, text: str) -> None:
        self.checks[invariant] += 1
        if not holds:
            self.violation(invariant, text)

    # What administrators do.

    def drained(self, node: str) -> None:
        """What runs there may be moved."""
        self.trace.note("drained", node)
        self.drains[node] += 1

    # What machines do.

    def began(self, node: str, spec: ReplicaSpec) -> None:
        """A program starts now."""
        replica = spec.replica_id
        key = spec.argv[1]
        wish = self.wishes[key]
        uuids = tuple(device.uuid for device in spec.devices)
        life = Life(replica, key, node, uuids, _now())
        self.operations["programs started"] += 1
        self.trace.note("began", key, replica.attempt, replica.rank, node, *uuids)
        right = Invariant.ONE_ATTEMPT
        self.expect(right, replica not in self.lives, f"{replica} was started twice")
        right = Invariant.CAPACITY
        self.expect(right, len(uuids) == wish.device_count, f"{key} got {len(uuids)} devices")
        self.expect(right, len(set(uuids)) == len(uuids), f"{replica} got one device twice")
        self.expect(Invariant.WHOLE_GANGS, replica.rank < wish.replicas, f"{replica}: no such rank")
        running = [other for other in self.lives.values() if other.ended_at is None]
        if self.team_gpus and wish.gpu_thousandths:
            held = wish.gpu_thousandths
            held += sum(self.wishes[other.key].gpu_thousandths for other in running)
            text = f"the team holds {held} of {self.team_gpus} thousandths when {replica} begins"
            self.expect(Invariant.TEAM_QUOTA, held <= self.team_gpus, text)
        for other in running:
            same_session = other.replica.session_id == replica.session_id
            self.expect(
                Invariant.ONE_ATTEMPT,
                not same_session or other.attempt == life.attempt,
                f"two attempts of {key} run: {other.replica} on {other.node}, {replica} on {node}",
            )
        for uuid in uuids:
            held = sum(self.wishes[other.key].share for other in running if uuid in other.devices)
            self.expect(
                Invariant.CAPACITY,
                held + wish.share <= WHOLE_DEVICE,
                f"device {uuid} of {node} is held by {held} thousandths when {replica} begins: "
                f"{[str(other.replica) for other in running if uuid in other.devices]}",
            )
        self.lives[replica] = life

    def stop_ordered(self, replica: ReplicaId, reason: str) -> None:
        """An agent tells a program to end."""
        self.trace.note("stop ordered", str(replica), reason)
        session = self.sessions.get(replica.session_id)
        wanted = any(
            (one.session_id, one.attempt, one.rank)
            == (replica.session_id, replica.attempt, replica.rank)
            for allocation in self._allocations.values()
            for one in allocation.replicas
        )
        self.expect(
            Invariant.OUTLIVING,
            session is None or session.stop is not None or not wanted,
            f"{replica} is told to end ({reason}), and nobody wants that",
        )

    def stopped(
        self,
        replica: ReplicaId,
        end: ExitRecord | None,
        output: bytes,
        told: Sequence[tuple[int, bytes]],
    ) -> None:
        """A program and all its processes are gone now."""
        life = self.lives[replica]
        life.ended_at = _now()
        life.exit, life.output = end, output
        life.records = tuple(record for _, record in told)
        life.missing = max((number for number, _ in told), default=0) - len(told)
        why = "power" if end is None else f"{end.why.value}/{end.exit_code}"
        self.operations["programs ended"] += 1
        self.trace.note("gone", life.key, replica.attempt, replica.rank, life.node, why)
        if end is not None and end.why is ExitWhy.LOST_AFTER:
            self.expect(
                Invariant.OUTLIVING,
                self.silences.get(life.node, 0.0) > _SILENT_SHARE * LOST_AFTER_S,
                f"{replica} was stopped for a silence that {life.node} never had",
            )

    # What agents remember.

    def obeyed(self, node: str, position: tuple[int, int], highest: tuple[int, int]) -> None:
        """An agent obeys the orders of a position; its journal says this of the newest then."""
        self.trace.note("obeyed", node, *position)
        right, before = Invariant.NEWEST_ORDERS, self._highest.get(node, (0, 0))
        self.expect(right, position >= before, f"{node} obeys {position} after {before}")
        self.expect(right, highest >= position, f"{node} obeys {position} and remembers {highest}")
        self._highest[node] = max(before, position)

    def remembered(self, node: str, cursors: Mapping[StreamId, Cursor]) -> None:
        """An agent takes these as acknowledged: it will not send them again."""
        for stream, cursor in cursors.items():
            replica = stream.replica_id
            key = StreamKey(
                replica.session_id,
                replica.attempt,
                replica.rank,
                Channel[stream.channel.name],
                stream.writer,
            )
            wanted = self._wanted.get(key, 0)
            self.expect(
                Invariant.COMMITTED_FIRST,
                cursor.last < wanted,
                f"{node} takes {replica} {stream.channel} as safe up to {cursor.last}; "
                f"the first that the history lacks is {wanted}",
            )

    # What history and object store take.

    def recorded(self, member: str, what: str, given: tuple[Any, ...], result: Any) -> None:
        """See history_link.Witness."""
        self.operations["history writes"] += 1
        if what == "append":
            self._check_cursors(result)
            for stream, wanted in result.items():
                self._wanted[stream] = max(wanted, self._wanted.get(stream, 0))
            self.trace.note("append", member, *sorted(map(str, result.values())))
        elif what == "put_session":
            self._exported(given[0], given[1] if len(given) > 1 else ())
        elif what == "put_checkpoint":
            self._checkpoint(given[0])

    def _check_cursors(self, told: Mapping[StreamKey, int]) -> None:
        """The cursor is in the history when its chunk is."""
        if self.cursors is None:
            return
        for session_id, attempt in sorted({(one.session_id, one.attempt) for one in told}):
            kept = at_once(self.cursors(session_id, attempt))
            for stream, wanted in told.items():
                if (stream.session_id, stream.attempt) == (session_id, attempt):
                    self.expect(
                        Invariant.COMMITTED_FIRST,
                        kept.get(stream) == wanted,
                        f"{stream} is answered with {wanted}, the history has {kept.get(stream)}",
                    )

    def _exported(self, row: SessionRecord, charges: Sequence[AttemptCharge]) -> None:
        self.trace.note("exported", row.name, len(charges))
        for charge in charges:
            key = (charge.session_id, charge.attempt)
            known = self._charged.setdefault(key, charge)
            right = Invariant.CHARGES
            self.expect(right, known == charge, f"attempt {key} was charged {known}, then {charge}")
            self._check_held(key, charge)
            self._check_priced(key, charge)

    def _check_held(self, key: tuple[str, int], charge: AttemptCharge) -> None:
        """What is charged is the time between two commits, as well as anybody could know it."""
        holding = self._held.get(key)
        if holding is None or holding.until is None:
            self.violation(Invariant.CHARGES, f"attempt {key} is charged and has not ended")
            return
        held_s = holding.until - holding.since
        self.expect(
            Invariant.CHARGES,
            abs(held_s - charge.seconds) <= self._unknown_s,
            f"attempt {key} held its devices for {held_s:.3f} s, charged are {charge.seconds:.3f} s",
        )

    def _check_priced(self, key: tuple[str, int], charge: AttemptCharge) -> None:
        """It says by what it can be priced; nothing is called durable that its programs did not save."""
        lives = self._lives(*key)
        saved = any(
            told["kind"] == "checkpoint" for one in lives for told in map(json.loads, one.records)
        )
        models = json.loads(charge.gpu_models)
        self.expect(
            Invariant.CHARGES,
            sum(models.values()) == charge.gpu_thousandths
            and all(models)
            and charge.priority > 0
            and charge.cause in Cause.__members__
            and 0 <= charge.durable_until <= charge.ended_at
            and (saved or not charge.durable_until),
            f"attempt {key} cannot be priced by {charge}; it saved: {saved}",
        )

    @property
    def _unknown_s(self) -> float:
        """How far a charge may be off.

        A control plane that was not there when an attempt was placed has nothing but the wall clocks:
        its own, and that of who placed it.
        """
        if not self.clocks_stepped:
            return _CLOCKS_DIFFER_S
        return math.inf if self.has_newcomers else _CLOCKS_DIFFER_S + MOST_LATE_S

    def _checkpoint(self, checkpoint: Checkpoint) -> None:
        self.trace.note("checkpoint", checkpoint.name, checkpoint.state.value)
        if checkpoint.state is not CheckpointState.DURABLE or self.blob is None:
            return
        try:
            manifest = decode(at_once(self.blob(checkpoint.digest)), digest=checkpoint.digest)
            for digest in manifest.blobs():
                at_once(self.blob(digest))
        except Exception as error:  # noqa: BLE001 - whatever it is, it cannot be read
            self.violation(Invariant.CHECKPOINTS, f"{checkpoint.name} is durable: {error!r}")
        else:
            self.expect(Invariant.CHECKPOINTS, True, "")

    # What the store takes.

    def committed(self, commit: Commit) -> None:
        """See store_link.Observer."""
        result, writes = commit.result, commit.transaction.success
        keys = [getattr(one, "key", "") for one in writes]
        self.operations["commits"] += 1
        self.last_commit_at = _now()
        self.trace.note("commit", commit.member, commit.sent_term, result.revision, *keys)
        if any(isinstance(one, Put) and one.key == LEADER_KEY for one in writes):
            right = Invariant.ONE_LEADER
            self.expect(right, result.revision > self._term, "a term that is not later")
            self._term = result.revision
            return
        touched: set[tuple[str, int]] = set()
        for operation in writes:
            match operation:
                case Put(key=key, value=value) if key.startswith(etcd_codec.ALLOCATIONS):
                    touched |= self._allocated(etcd_codec.decode_allocation(value))
                    self._check_term(commit, key)
                case Put(key=key, value=value) if key.startswith(etcd_codec.NODES):
                    node = etcd_codec.decode_node(value)
                    self._nodes[node.name] = node
                    self._check_term(commit, key)
                case Put(key=key, value=value) if key.startswith(etcd_codec.SESSIONS):
                    self._written(etcd_codec.decode_session(value))
                case Put(key=key, value=value) if key.startswith(etcd_codec.REQUESTS):
                    self._requested(key, etcd_codec.decode_pointer(value))
                case Delete(key=key) if key.startswith(etcd_codec.SESSIONS):
                    self._check_term(commit, key)
                    self._left(key.removeprefix(etcd_codec.SESSIONS))
        for attempt in sorted(touched):
            self._check_gang(attempt)

    def _check_term(self, commit: Commit, key: str) -> None:
        self.expect(
            Invariant.ONE_LEADER,
            commit.sent_term == commit.term != 0,
            f"{key} was written by {commit.member} of term {commit.sent_term} in term {commit.term}",
        )

    def _allocated(self, allocation: Allocation) -> set[tuple[str, int]]:
        before = self._allocations.get(allocation.node, Allocation(node=allocation.node))
        self._allocations[allocation.node] = allocation
        held: Counter[str] = Counter()
        for one in allocation.replicas:
            for share in one.devices:
                held[share.uuid] += share.thousandths
        over = [uuid for uuid, sum_ in held.items() if sum_ > WHOLE_DEVICE]
        right = Invariant.CAPACITY
        self.expect(right, not over, f"{allocation.node}: {over} are allocated beyond capacity")
        added = set(allocation.replicas) - set(before.replicas)
        gone = set(before.replicas) - set(allocation.replicas)
        node = self._nodes.get(allocation.node)
        self.expect(
            Invariant.OPEN_NODES,
            not added or node is None or (node.drain or node.hold or node.fence) is None,
            f"{allocation.node} takes no sessions, and was given work",
        )
        for one in added:
            self._held.setdefault((one.session_id, one.attempt), _Holding(_now()))
        for one in gone:
            self._held.setdefault((one.session_id, one.attempt), _Holding(_now())).until = _now()
        return {(one.session_id, one.attempt) for one in added | gone}

    def _check_gang(self, attempt: tuple[str, int]) -> None:
        ranks = [
            one.rank
            for allocation in self._allocations.values()
            for one in allocation.replicas
            if (one.session_id, one.attempt) == attempt
        ]
        session = self.sessions.get(attempt[0]) or self.ended.get(attempt[0])
        wanted = session.spec.replica_count if session else 0
        self.expect(
            Invariant.WHOLE_GANGS,
            not ranks or sorted(ranks) == list(range(wanted)),
            f"attempt {attempt} of {wanted} replicas has ranks {ranks} placed",
        )

    def _written(self, session: Session) -> None:
        right, before = Invariant.FORWARD, self.sessions.get(session.id)
        self.sessions[session.id] = session
        self.expect(right, session.id not in self.ended, f"{session.name} came back after its end")
        if before is None:
            is_new = session.state is SessionState.QUEUED
            self.expect(right, is_new, f"{session.name} began as {session.state}")
            self.trace.note("session", session.name, session.state.value)
            return
        step = (before.state, session.state)
        if before.state is not session.state:
            self.trace.note("session", session.name, session.state.value, session.attempt)
            self.expect(
                right, step in ONE_WRITE, f"{session.name} went from {step[0]} to {step[1]}"
            )
        placed = int(before.state is SessionState.QUEUED and session.state.holds_devices)
        self.expect(
            right,
            session.attempt == before.attempt + placed,
            f"{session.name}: attempt {before.attempt}, then {session.attempt} ({step})",
        )
        is_held = session.state is SessionState.HELD
        self.expect(
            right,
            is_held is (session.held_cause is not None),
            f"{session.name} is {session.state}, held for {session.held_cause}",
        )
        wanted = before.stop is not None and before.stop.cause is Cause.STOP_REQUESTED
        self.expect(
            Invariant.PROMISES,
            not wanted or session.stop is not None or session.state is not SessionState.QUEUED,
            f"{session.name} was to be stopped, and is {session.state} again",
        )
        for repeated in session.attempts[len(before.attempts) :]:
            self._attempt_ended(session, repeated)
        if session.state.is_ended and not before.state.is_ended:
            self._check_arrived(session)
        self._check_rest_is_stopped(session)

    def _attempt_ended(self, session: Session, attempt: EndedAttempt) -> None:
        """Devices are free again: no program of the attempt may be left, whatever was reported."""
        left = [
            life
            for life in self.lives.values()
            if life.attempt == (session.id, attempt.number) and life.ended_at is None
        ]
        self.expect(
            Invariant.FREED_WHEN_GONE,
            not left,
            f"attempt {attempt.number} of {session.name} ended ({attempt.cause}) while "
            f"{[str(life.replica) for life in left]} run",
        )

    def _check_arrived(self, session: Session) -> None:
        """Nothing of a replica that its own agent called finalized is still to come."""
        for replica in session.replicas:
            life = self.lives.get(
                ReplicaId(session_id=session.id, attempt=session.attempt, rank=replica.rank)
            )
            cause = replica.exit.cause if replica.exit else None
            if life is None or life.ended_at is None or life.exit is None or cause in _LOSSES:
                continue
            place = (session.id, session.attempt, replica.rank)
            log = self._wanted.get(StreamKey(*place, Channel.LOG, 0), 0)
            told = self._wanted.get(StreamKey(*place, Channel.METRIC, 1), 1)
            self.expect(
                Invariant.RECORDS_BEFORE_ENDS,
                log >= len(life.output) and told > len(life.records) + life.missing,
                f"{session.name} is {session.state}, and {life.replica} has "
                f"{log} of {len(life.output)} bytes and {told - 1} of {len(life.records)} records"
                f" and {life.missing} missing",
            )

    def _check_rest_is_stopped(self, session: Session) -> None:
        """Once a member of a gang has ended badly, the others are to be stopped."""
        bad = [
            one
            for one in session.replicas
            if one.phase.is_gone and one.exit and one.exit.cause is not Cause.COMPLETED
        ]
        left = [one for one in session.replicas if not one.phase.is_gone]
        self.expect(
            Invariant.GANGS_END_AS_ONE,
            not (bad and left) or session.stop is not None,
            f"{session.name}: replica {bad[0].rank if bad else ''} ended, others are not stopped",
        )

    def _requested(self, key: str, session_id: str) -> None:
        known = self._by_request.setdefault(key, session_id)
        right = Invariant.ONE_EFFECT
        self.expect(right, known == session_id, f"{key} made sessions {known} and {session_id}")

    def _left(self, session_id: str) -> None:
        session = self.sessions.pop(session_id, None)
        if session is None:
            self.violation(Invariant.FORWARD, f"session {session_id} was deleted and never there")
            return
        right = Invariant.FORWARD
        self.expect(right, session.state.is_ended, f"{session.name} left in {session.state}")
        self.ended[session_id] = session
        charged = {number for (one, number) in self._charged if one == session_id}
        self.expect(
            Invariant.CHARGES,
            charged == {one.number for one in session.attempts},
            f"{session.name} left the store with attempts {charged} charged",
        )

    # What clients are told.

    def promised(self, wish: Wish, session: sessions_pb2.Session) -> None:
        """A submission was answered."""
        self.operations["submissions answered"] += 1
        self.trace.note("promised", wish.key, session.name)
        for other in self.promises.values():
            self.expect(
                Invariant.ONE_EFFECT,
                other.session_id != session.id and other.name != session.name,
                f"{wish.key} was given the session of {other.wish.key}",
            )
        self.promises[wish.key] = Promise(wish, session.id, session.name)
        live = self.sessions.get(session.id) or self.ended.get(session.id)
        right = Invariant.PROMISES
        self.expect(right, live is not None, f"{session.name} was promised and is not there")

    def stop_promised(self, wish: Wish) -> None:
        """The owner was told that the session will be stopped."""
        self.operations["stops answered"] += 1
        self.trace.note("stop promised", wish.key)
        promise = self.promises[wish.key]
        promise.stopped, promise.stopped_at = True, _now()
        session = self.sessions.get(promise.session_id)
        self.expect(
            Invariant.PROMISES,
            session is None
            or session.state.is_ended
            or session.state is SessionState.FINALIZING
            or session.stop is not None,
            f"{promise.name} is to be stopped, the owner was told, and nobody else knows",
        )

    def watched(self, watcher: str, session: sessions_pb2.Session) -> None:
        """A watcher was told of a session."""
        self.operations["changes watched"] += 1
        name = sessions_pb2.SessionState.Name(session.state).removeprefix("SESSION_STATE_")
        state = SessionState(name)
        key = f"{watcher} {session.name}"
        if state.is_ended or state is SessionState.HELD:  # whoever holds it may never release it
            self._unended[watcher].pop(session.name, None)
        else:
            self._unended[watcher][session.name] = None
        known = self._watched.get(key)
        self._watched[key] = (state, session.attempt)
        if known is None or known == (state, session.attempt):
            return
        right = Invariant.FORWARD
        self.expect(
            right,
            session.attempt > known[1] or known[0] is state or (known[0], state) in WATCHED,
            f"{key}: {known[0]} was followed by {state}",
        )
        is_later = session.attempt >= known[1]
        self.expect(right, is_later, f"{key}: attempt {known[1]}, then {session.attempt}")

    def watches_anew(self, watcher: str) -> None:
        """A watcher began without what it knew."""
        self._unended[watcher].clear()

    # At the end.

    @property
    def unended(self) -> list[str]:
        """Sessions of which a watcher was not shown the end."""
        return [f"{watcher} {name}" for watcher, names in self._unended.items() for name in names]

    @property
    def unfinished(self) -> list[str]:
        """Promised or written sessions that are neither ended nor held."""
        return [
            f"{session.name} {session.state.value}"
            for session in self.sessions.values()
            if session.state is not SessionState.HELD
        ]

    def check_ends(self) -> None:
        """Every session has the end that its programs, its owner and the machines gave it."""
        self.expect(
            Invariant.PROMISES,
            set(self.promises) == set(self.wishes),
            f"never answered: {sorted(set(self.wishes) - set(self.promises))}",
        )
        for promise in self.promises.values():
            session = self.ended.get(promise.session_id) or self.sessions.get(promise.session_id)
            if session is None:
                self.violation(Invariant.PROMISES, f"{promise.name} was promised and is lost")
                continue
            self._check_end(promise, session)
            self._check_attempts(promise, session)
        self.expect(
            Invariant.ONE_EFFECT,
            len(self._by_request) == len(self.wishes),
            f"{len(self.wishes)} requests made {len(self._by_request)} sessions",
        )

    def _check_end(self, promise: Promise, session: Session) -> None:
        lives = self._lives(session.id, session.attempt)
        right = self._right_end(promise, session, lives)
        if self._declared_lost(session):
            right += [(SessionState.FAILED, None)]
        code = session.end.exit_code if session.end else None
        is_right = (session.state, code) in right or (session.state, None) in right
        self.expect(
            Invariant.RIGHT_ENDS,
            is_right,
            f"{session.name} ({promise.wish.key}, stopped={promise.stopped}) ended {session.state} "
            f"with {session.end}, right were {right}; {[(str(life.replica), life.exit) for life in lives]}",
        )

    def _right_end(
        self, promise: Promise, session: Session, lives: Sequence[Life]
    ) -> list[tuple[SessionState, int | None]]:
        """States and exit codes (None: any) that are right."""
        wish = promise.wish
        lost = any(life.was_lost for life in lives) or self._declared_lost(session)
        bad = [
            life.exit.exit_code
            for life in lives
            if life.ended_by_itself and life.exit and life.exit.exit_code
        ]
        if bad:
            # The first bad exit of a gang decides; a rest that was stopped for it does not.
            # When another member was lost with its machine, either may have been first.
            first = {(SessionState.FAILED, None if lost else code) for code in bad}
            return [*first, *([(SessionState.STOPPED, None)] if promise.stopped else [])]
        if len(lives) == wish.replicas and all(life.ended_by_itself for life in lives):
            return [(SessionState.SUCCEEDED, 0)]
        if promise.stopped:
            return [(SessionState.STOPPED, None), *([(SessionState.FAILED, None)] if lost else [])]
        if lost:
            losses = sum(one.cause in _LOSSES for one in session.attempts)
            if losses >= _ATTEMPTS_FOR_HELD:
                return [(SessionState.HELD, None), (SessionState.FAILED, None)]
            return [(SessionState.FAILED, None)] if losses > wish.retries else []
        return []

    def _declared_lost(self, session: Session) -> bool:
        """Whether it was given up for a silence that really was so long."""
        longest = (
            max((self.silences.get(node, 0.0) for node in session.attempts[-1].nodes), default=0)
            if session.attempts
            else 0.0
        )
        after = session.spec.lost_after_s
        return (
            session.end is not None
            and session.end.cause is Cause.LOST_AFTER
            and bool(after)
            and longest > _SILENT_SHARE * after
        )

    def _check_attempts(self, promise: Promise, session: Session) -> None:
        """An attempt was repeated for a reason, and charged once."""
        numbers = [attempt.number for attempt in session.attempts]
        self.expect(
            Invariant.FORWARD,
            numbers == list(range(1, len(numbers) + 1)) and len(numbers) == session.attempt,
            f"{session.name} had attempts {numbers} and {session.attempt} placements",
        )
        for attempt in session.attempts[:-1]:
            nodes = attempt.nodes
            silent = max((self.silences.get(node, 0.0) for node in nodes), default=0.0)
            reasons = {
                Cause.NODE_LOST: any(self.reboots[node] for node in nodes),
                Cause.PREEMPTED: any(self.drains[node] for node in nodes),
                Cause.LOST_AFTER: silent > _SILENT_SHARE * session.spec.lost_after_s > 0,
            }
            self.expect(
                Invariant.RIGHT_ENDS,
                reasons.get(attempt.cause, False),
                f"{session.name} was repeated after {attempt.cause} on {nodes} without a reason",
            )
        known = {
            life.replica.attempt
            for life in self.lives.values()
            if life.replica.session_id == session.id
        }
        self.expect(
            Invariant.ONE_ATTEMPT,
            known <= set(numbers),
            f"{session.name} ran attempts {known} of {numbers}",
        )

    def _lives(self, session_id: str, attempt: int) -> list[Life]:
        return [life for life in self.lives.values() if life.attempt == (session_id, attempt)]

    def check_nothing_left(self) -> None:
        """Free and used make the total: nothing is held by anybody."""
        right = Invariant.NOTHING_LEFT
        for allocation in self._allocations.values():
            self.expect(right, not allocation.replicas, f"{allocation} is left")
        left = [str(life.replica) for life in self.lives.values() if life.ended_at is None]
        self.expect(right, not left, f"{left} still run")

    async def check_records(self, logs: Logs) -> None:
        """Every byte and record that a program wrote is in the history, once and in order.

        Of each record that is missing in its file that is told, once.
        """
        for life in self.lives.values():
            replica = life.replica
            place = (replica.session_id, replica.attempt, replica.rank)
            log, lost = await _whole(logs, StreamKey(*place, Channel.LOG, 0))
            told, missing = await _whole(logs, StreamKey(*place, Channel.METRIC, 1))
            self.expect(
                Invariant.RECORDS,
                b"".join(log) == life.output and not lost,
                f"the log of {replica} has {b''.join(log)!r}, its program wrote {life.output!r}",
            )
            self.expect(
                Invariant.RECORDS,
                tuple(told) == life.records and missing == life.missing,
                f"{replica} reported {len(life.records)} records, {len(told)} arrived;"
                f" {life.missing} are missing, {missing} are told to be",
            )

    async def check_checkpoints(self, history: History) -> None:
        """What a program saved and nobody lost is durable, the newest of each name."""
        for session in self.ended.values():
            lives = [life for life in self.lives.values() if life.replica.session_id == session.id]
            if any(life.was_lost for life in lives):
                continue
            saved = {
                told["name"]: told["time"]
                for life in lives
                for told in map(json.loads, life.records)
                if told["kind"] == "checkpoint"
            }
            kept = {
                one.name: one.saved_at
                for one in await history.catalogue.checkpoints(session.id)
                if one.state is CheckpointState.DURABLE
            }
            right = Invariant.CHECKPOINTS
            self.expect(right, saved == kept, f"{session.name} saved {saved}, durable are {kept}")

    async def check_charges(self, history: History) -> None:
        """Each second of each attempt is charged once."""
        owners = {session.owner for session in self.ended.values()}
        for owner in sorted(owners):
            due_s = sum(
                attempt.held_s * attempt.gpu_thousandths / WHOLE_DEVICE
                for session in self.ended.values()
                if session.owner == owner
                for attempt in session.attempts
            )
            charged_s = await history.ledger.charged(owner=owner)
            self.expect(
                Invariant.CHARGES,
                abs(charged_s - due_s) < 0.01,
                f"{owner} is charged {charged_s} s of {due_s} s",
            )

    def finish(self) -> None:
        """Raise the violations, if there are any."""
        if self.trace.defects:
            self.violation(Invariant.NO_DEFECTS, self.trace.defects[0])
        if self.violations:
            raise self.trace.explained(Violation("\n".join(self.violations[:10])))


def _now() -> float:
    return asyncio.get_running_loop().time()


def at_once(answer: Awaitable[T]) -> T:
    """What a coroutine returns that never waits."""
    try:
        answer.__await__().send(None)  # type: ignore[attr-defined]
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


async def _whole(logs: Logs, stream: StreamKey) -> tuple[list[bytes], int]:
    """All records or pieces of a stream, and how many positions are told to be lost."""
    position = _LAST_FIRST_POSITION[stream.channel]
    found: list[bytes] = []
    lost = 0
    while parts := await logs.parts(stream, position):
        for part in parts:
            if isinstance(part, Recorded):
                found += part.records or (part.data,)
            else:
                lost += part.last - part.first + 1
            position = part.last + 1
    return found, lost


def tally(lives: Iterable[Life]) -> str:
    """How many programs ended how."""
    counts = Counter("power" if one.exit is None else one.exit.why.value for one in lives)
    return ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))
