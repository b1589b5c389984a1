"""What must never break (docs/architecture.md, 5), checked while a simulation runs and at its end.

The referee judges by what really happened: when the machines' programs began and ended, what they
wrote, what the store took, what clients were told. Records of the platform are judged, not believed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.domain.lifecycle import SESSION_LIFE, SessionState
from controlplane.domain.values import WHOLE_DEVICE, Allocation, Cause, EndedAttempt, Session
from controlplane.history.interface import History
from controlplane.history.values import Channel, Recorded, StreamKey
from controlplane.operations import records
from controlplane.store.election import LEADER_KEY
from controlplane.store.interface import Delete, Put, Transaction, TransactionResult
from nodeagent.folders import ReplicaId
from nodeagent.runtimes.interface import ExitRecord, ExitWhy, ReplicaSpec
from nsml.v1 import sessions_pb2
from tests.simulation.trace import Trace
from tests.simulation.workload import Wish

_ATTEMPTS_FOR_HELD = 3
_SILENT_SHARE = 0.6
"""Of lost_after: a shim stops its program before that is over, so that it is gone then."""
_LOSSES = {Cause.NODE_LOST, Cause.LOST_AFTER}
_LAST_FIRST_POSITION = {Channel.LOG: 0, Channel.METRIC: 1}


class Violation(AssertionError):
    """An invariant does not hold."""


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

    def __post_init__(self) -> None:
        self._allocations: dict[str, Allocation] = {}
        self._term = 0
        self._by_request: dict[str, str] = {}
        self._watched: dict[str, tuple[SessionState, int]] = {}

    def violation(self, text: str) -> None:
        self.trace.note("VIOLATION", text)
        self.violations.append(text)
        self.broken.set()

    def expect(self, holds: object, text: str) -> None:
        if not holds:
            self.violation(text)

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
        life = Life(replica, key, node, uuids, asyncio.get_running_loop().time())
        self.trace.note("began", key, replica.attempt, replica.rank, node, *uuids)
        self.expect(replica not in self.lives, f"{replica} was started twice")
        self.expect(len(uuids) == wish.device_count, f"{key} got {len(uuids)} devices")
        self.expect(len(set(uuids)) == len(uuids), f"{replica} got one device twice")
        self.expect(replica.rank < wish.replicas, f"{replica}: no such rank")
        running = [other for other in self.lives.values() if other.ended_at is None]
        for other in running:
            same_session = other.replica.session_id == replica.session_id
            self.expect(
                not same_session or other.attempt == life.attempt,
                f"two attempts of {key} run: {other.replica} on {other.node}, {replica} on {node}",
            )
        for uuid in uuids:
            held = sum(self.wishes[other.key].share for other in running if uuid in other.devices)
            self.expect(
                held + wish.share <= WHOLE_DEVICE,
                f"device {uuid} of {node} is held by {held} thousandths when {replica} begins: "
                f"{[str(other.replica) for other in running if uuid in other.devices]}",
            )
        self.lives[replica] = life

    def stopped(
        self, replica: ReplicaId, end: ExitRecord | None, output: bytes, told: Sequence[bytes]
    ) -> None:
        """A program and all its processes are gone now."""
        life = self.lives[replica]
        life.ended_at = asyncio.get_running_loop().time()
        life.exit, life.output, life.records = end, output, tuple(told)
        why = "power" if end is None else f"{end.why.value}/{end.exit_code}"
        self.trace.note("gone", life.key, replica.attempt, replica.rank, life.node, why)

    # What the store takes.

    def committed(
        self, member: str, sent_term: int, transaction: Transaction, result: TransactionResult
    ) -> None:
        """See store_link.Observer."""
        keys = [getattr(one, "key", "") for one in transaction.success]
        self.trace.note("commit", member, sent_term, result.revision, *keys)
        if LEADER_KEY in keys:
            self.expect(result.revision > self._term, "a term that is not later than the last")
            self._term = result.revision
            return
        touched: set[tuple[str, int]] = set()
        for operation in transaction.success:
            match operation:
                case Put(key=key, value=value) if key.startswith(records.ALLOCATIONS):
                    touched |= self._allocated(records.decode_allocation(value))
                    self._check_term(sent_term, key)
                case Put(key=key) if key.startswith(records.NODES):
                    self._check_term(sent_term, key)
                case Put(key=key, value=value) if key.startswith(records.SESSIONS):
                    self._written(records.decode_session(value))
                case Put(key=key, value=value) if key.startswith(records.REQUESTS):
                    self._requested(key, records.decode_pointer(value))
                case Delete(key=key) if key.startswith(records.SESSIONS):
                    self._check_term(sent_term, key)
                    self._left(key.removeprefix(records.SESSIONS))
        for attempt in sorted(touched):
            self._check_gang(attempt)

    def _check_term(self, sent_term: int, key: str) -> None:
        self.expect(
            sent_term == self._term,
            f"{key} was written by a leader of term {sent_term} in term {self._term}",
        )

    def _allocated(self, allocation: Allocation) -> set[tuple[str, int]]:
        before = self._allocations.get(allocation.node, Allocation(node=allocation.node))
        self._allocations[allocation.node] = allocation
        held: Counter[str] = Counter()
        for one in allocation.replicas:
            for share in one.devices:
                held[share.uuid] += share.thousandths
        over = [uuid for uuid, sum_ in held.items() if sum_ > WHOLE_DEVICE]
        self.expect(not over, f"{allocation.node}: {over} are allocated beyond their capacity")
        changed = set(before.replicas) ^ set(allocation.replicas)
        return {(one.session_id, one.attempt) for one in changed}

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
            not ranks or sorted(ranks) == list(range(wanted)),
            f"attempt {attempt} of {wanted} replicas has ranks {ranks} placed",
        )

    def _written(self, session: Session) -> None:
        before = self.sessions.get(session.id)
        self.sessions[session.id] = session
        self.expect(session.id not in self.ended, f"{session.name} came back after its end")
        if before is None:
            self.expect(session.state is SessionState.QUEUED, f"{session.name} began otherwise")
            self.trace.note("session", session.name, session.state.value)
            return
        step = (before.state, session.state)
        if before.state is not session.state:
            self.trace.note("session", session.name, session.state.value, session.attempt)
            self.expect(step in ONE_WRITE, f"{session.name} went from {step[0]} to {step[1]}")
        placed = int(before.state is SessionState.QUEUED and session.state.holds_devices)
        self.expect(
            session.attempt == before.attempt + placed,
            f"{session.name}: attempt {before.attempt}, then {session.attempt} ({step})",
        )
        for repeated in session.attempts[len(before.attempts) :]:
            self._attempt_ended(session, repeated)

    def _attempt_ended(self, session: Session, attempt: EndedAttempt) -> None:
        """Devices are free again: no program of the attempt may be left, whatever was reported."""
        left = [
            life
            for life in self.lives.values()
            if life.attempt == (session.id, attempt.number) and life.ended_at is None
        ]
        self.expect(
            not left,
            f"attempt {attempt.number} of {session.name} ended ({attempt.cause}) while "
            f"{[str(life.replica) for life in left]} run",
        )

    def _requested(self, key: str, session_id: str) -> None:
        known = self._by_request.setdefault(key, session_id)
        self.expect(known == session_id, f"{key} made two sessions, {known} and {session_id}")

    def _left(self, session_id: str) -> None:
        session = self.sessions.pop(session_id, None)
        if session is None:
            self.violation(f"session {session_id} was deleted and never there")
            return
        self.expect(session.state.is_ended, f"{session.name} was deleted in {session.state}")
        self.ended[session_id] = session

    # What clients are told.

    def promised(self, wish: Wish, session: sessions_pb2.Session) -> None:
        """A submission was answered."""
        self.trace.note("promised", wish.key, session.name)
        for other in self.promises.values():
            self.expect(
                other.session_id != session.id and other.name != session.name,
                f"{wish.key} was given the session of {other.wish.key}",
            )
        self.promises[wish.key] = Promise(wish, session.id, session.name)
        live = self.sessions.get(session.id) or self.ended.get(session.id)
        self.expect(live is not None, f"{session.name} was promised and is not there")

    def watched(self, watcher: str, session: sessions_pb2.Session) -> None:
        """A watcher was told of a session."""
        name = sessions_pb2.SessionState.Name(session.state).removeprefix("SESSION_STATE_")
        state = SessionState(name)
        key = f"{watcher} {session.name}"
        known = self._watched.get(key)
        self._watched[key] = (state, session.attempt)
        if known is None or known == (state, session.attempt):
            return
        self.expect(
            session.attempt > known[1] or known[0] is state or (known[0], state) in WATCHED,
            f"{key}: {known[0]} was followed by {state}",
        )
        self.expect(session.attempt >= known[1], f"{key}: attempt {known[1]}, {session.attempt}")

    # At the end.

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
            set(self.promises) == set(self.wishes),
            f"never answered: {sorted(set(self.wishes) - set(self.promises))}",
        )
        for promise in self.promises.values():
            session = self.ended.get(promise.session_id) or self.sessions.get(promise.session_id)
            if session is None:
                self.violation(f"{promise.name} was promised and is lost")
                continue
            self._check_end(promise, session)
            self._check_attempts(promise, session)
        self.expect(
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
                reasons.get(attempt.cause, False),
                f"{session.name} was repeated after {attempt.cause} on {nodes} without a reason",
            )
        known = {
            life.replica.attempt
            for life in self.lives.values()
            if life.replica.session_id == session.id
        }
        self.expect(known <= set(numbers), f"{session.name} ran attempts {known} of {numbers}")

    def _lives(self, session_id: str, attempt: int) -> list[Life]:
        return [life for life in self.lives.values() if life.attempt == (session_id, attempt)]

    def check_nothing_left(self) -> None:
        """Free and used make the total: nothing is held by anybody."""
        for allocation in self._allocations.values():
            self.expect(not allocation.replicas, f"{allocation} is left")
        left = [str(life.replica) for life in self.lives.values() if life.ended_at is None]
        self.expect(not left, f"{left} still run")

    async def check_records(self, history: History) -> None:
        """Every byte and record that a program wrote is in the history, once and in order."""
        for life in self.lives.values():
            replica = life.replica
            place = (replica.session_id, replica.attempt, replica.rank)
            log = await _whole(history, StreamKey(*place, Channel.LOG, 0))
            told = await _whole(history, StreamKey(*place, Channel.METRIC, 1))
            self.expect(
                b"".join(log) == life.output,
                f"the log of {replica} has {b''.join(log)!r}, its program wrote {life.output!r}",
            )
            self.expect(
                tuple(told) == life.records,
                f"{replica} reported {len(life.records)} records, {len(told)} arrived",
            )

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
                abs(charged_s - due_s) < 0.01, f"{owner} is charged {charged_s} s of {due_s} s"
            )

    def finish(self) -> None:
        """Raise the violations, if there are any."""
        if self.trace.defects:
            self.violation("a defect was logged: " + self.trace.defects[0])
        if self.violations:
            raise self.trace.explained(Violation("\n".join(self.violations[:10])))


async def _whole(history: History, stream: StreamKey) -> list[bytes]:
    """All records or pieces of a stream; a gap is a violation that shows as a difference."""
    position = _LAST_FIRST_POSITION[stream.channel]
    found: list[bytes] = []
    while parts := await history.streams.read(stream, position):
        for part in parts:
            if isinstance(part, Recorded):
                found += part.records or (part.data,)
            else:
                found.append(b"<gap %d-%d>" % (part.first, part.last))
            position = part.last + 1
    return found


def tally(lives: Iterable[Life]) -> str:
    """How many programs ended how."""
    counts = Counter("power" if one.exit is None else one.exit.why.value for one in lives)
    return ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))
