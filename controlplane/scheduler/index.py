"""The scheduler's decisions: placements, reservations and preemptions; updated by changes."""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import partial
from heapq import heapify, heappop
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from controlplane.domain.plan import Placement, Plan, Preemption
from controlplane.domain.values import Priority
from controlplane.scheduler import defragmentation
from controlplane.scheduler.cluster import Cluster, Kept
from controlplane.scheduler.defragmentation import LOOK_AGAIN_S, Defragmentation
from controlplane.scheduler.fair_queue import Turn, Turns, is_owed
from controlplane.scheduler.feasibility import fits_of
from controlplane.scheduler.preemption import (
    AGAIN_S,
    sacrifice,
    taker_of,
    why,
)
from controlplane.scheduler.preemption_candidates import MOST_ROOMS, Giving
from controlplane.scheduler.preemption_policy import RULES, Rules
from controlplane.scheduler.queue_classes import DUE
from controlplane.scheduler.queue_listing import Order
from controlplane.scheduler.reservations import REVIEW_S, Candidate
from controlplane.scheduler.session_rank import MOST_PATIENCE_S, patience_s

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from controlplane.domain.changes import Change
    from controlplane.domain.plan import ReplicaPlacement
    from controlplane.domain.values import Session
    from controlplane.scheduler.feasibility import AnyFeasible
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.locality import Near
    from controlplane.scheduler.preemption import Sacrifice
    from controlplane.scheduler.queue_classes import QueueClass
    from controlplane.scheduler.reservations import Promise

At = tuple[int, int, int]
"""Revisions of rooms, the queue and entitlements."""
_SEVERAL = 2
_NOBODY: Final[Mapping[str, float]] = MappingProxyType({})
_NEVER = (-1, -1, -1)
MOST_TRIED = 8
"""Blocked lines for which one plan searches victims."""
MOST_SHAPES = 512
"""Requests with an index of where they fit; the least recently used are dropped."""


class ClusterIndex:
    """All data for a plan, updated by changes: `plan` examines differences, not the whole cluster.

    A plan counts as committed at once. Committed placements come back as changes, without effect; after
    these were applied, `settle` rolls back the others.

    Args:
        cluster: the model to plan on; an empty one by default.

    Attributes:
        cluster: the model; callers may read it.
    """

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster = cluster = cluster or Cluster()
        self._rooms, self._queue, self._holding = cluster.rooms, cluster.queue, cluster.holding
        self._entitlements, self._yielders = cluster.entitlements, cluster.yielders
        self._kept, self._started = cluster.kept, cluster.started
        self._now = 0.0
        self._patience = MOST_PATIENCE_S
        self._tried: dict[Asked, Tried] = {}
        self._looked: dict[Asked, float] = {}
        self._preempted = NO_LOOK
        self._reserved = NO_LOOK
        self._fits: dict[Request, AnyFeasible] = {}
        self._defragmentation = Defragmentation(cluster, self._fits_of)
        self._planned = _NEVER
        self._cut: Cut | None = None

    @classmethod
    def of(
        cls, changes: Iterable[Change], rules: Rules = RULES, *, revision: int = 0
    ) -> ClusterIndex:
        """Build the index of a cluster from all its changes up to a revision."""
        index = cls(Cluster(rules))
        index.apply(changes, revision=revision)
        return index

    def apply(self, changes: Iterable[Change], *, revision: int = 0) -> None:
        """Apply changes."""
        self.cluster.apply(changes, revision=revision)

    def due(self) -> float | None:
        """Return when a plan may differ from the last one without changes, Unix seconds; None: never.

        Every time-dependent rule has its instant here, so that it also applies on an idle cluster.
        """
        dues = [self._queue.due(), self.cluster.moves.due()]
        if self._queue.has_lines:
            dues += [self._preemption_due(), self._reservation_due()]
        return min((due for due in dues if due is not None), default=None)

    def _preemption_due(self) -> float | None:
        """Return when the next search for victims or moves may succeed; None: there is no use."""
        may_help = self._yielders.may_help
        if not any(
            line.priority > Priority.IDLE and may_help(line.key.priority)
            for line in self._queue.lines()
        ):
            return None
        last = self._preempted
        again_at = last.at + AGAIN_S
        return again_at if last.edits != self.cluster.edits else max(last.again_at, again_at)

    def _reservation_due(self) -> float | None:
        """Return when to review the reservation: another session, or an earlier instant."""
        if self._holding:
            return self._holding.due()
        last = self._reserved
        again_at = last.at + REVIEW_S
        return again_at if last.edits != self.cluster.edits else max(last.again_at, again_at)

    def is_due(self, now: float) -> bool:
        """Return whether a plan may differ from the last one."""
        due = self.due()
        if self._queue.is_due(now) or (due is not None and due <= now):
            return True
        return len(self._queue) > 0 and self._planned != self._at()

    def _at(self) -> At:
        rooms = self._rooms
        room_revision = rooms.revision + rooms.withdrawn_edits
        return (room_revision, self._queue.revision, self._entitlements.revision)

    def plan(self, now: float, most: float = math.inf) -> Plan:
        """Propose placements, best first; same cluster and instant, same plan.

        Args:
            now: Unix seconds; sessions with a later `not_before` wait.
            most: maximum number of placements. If it cuts the plan short, `is_due` stays true, and without
                other changes the next plans continue it.
        """
        goes_on = self._cut is not None and self._cut.at == self._at()
        self.look_at(now)
        if self._cut is not None and goes_on:
            self._now, self._patience = self._cut.now, self._cut.patience
        self._queue.wake(now)
        self._looked = _since(self._looked, now, LOOK_AGAIN_S)
        if not goes_on:
            self._holding.open(self._stands)
        placements = [*self._serve_moved(now), *self._serve_kept()]
        if not goes_on and self._holding.is_stale(now):
            self._reserve(now)
            self._reserved = Look(
                now, self.cluster.edits, self._queue.next_due(now, self._patience)
            )
        is_whole = self._serve(placements, most)
        preemptions = self._preempt(now) if is_whole else []
        if is_whole:
            self._holding.drop_all_but(self._queue)
        # Capacity left over by a used reservation needs another pass.
        is_done = is_whole and not self._holding.is_spent
        self._planned = self._at() if is_done else _NEVER
        self._cut = None if is_whole else Cut(self._at(), self._now, self._patience)
        return Plan(
            revision=self.cluster.revision,
            placements=tuple(placements),
            preemptions=tuple(preemptions),
        )

    def look_at(self, now: float) -> None:
        """Set the instant of the order."""
        self._now = now
        self._patience = patience_s(
            self._queue.backlog_gpu_s, self._rooms.gpus, has_limits=not self._queue.without_limit
        )

    def _serve(self, placements: list[Placement], most: float) -> bool:
        """Start sessions that fit, in order; return whether none is left that fits."""
        start, take_first = self._entitlements.start, self._queue.take_first
        bars_teams = self._entitlements.teams.bars
        started = self._started
        nearest_to, has_stocks = self.cluster.locality.nearest_to, bool(self.cluster.locality)
        fitting = self._fitting()
        self._holding.lowest = self._queue.lowest
        if self._holding.is_felt:
            self._holding.hold()
            fitting = [self._let_in(lines) for lines in fitting]
        shapes_left = len(fitting)
        lines = chain.from_iterable(fitting)
        turns = Turns(lines, self._queue, self._entitlements, self._now, self._patience)
        while shapes_left and (turn := turns.next()) is not None:
            if len(placements) >= most:
                return False
            line, account = turn
            fits = line.fits
            if (
                fits is None
                or account.bars(line.project, line.owner, line.claim)
                or (line.teams and bars_teams(line.teams, line.claim.gpu_thousandths))
            ):
                turns.passed()
                continue
            waiting = line.first
            session = waiting.session
            session_id = session.id
            near = nearest_to(session.spec) if has_stocks else None
            replicas = fits.place(line.count, session_id, near) or self._place_ahead(line, near)
            if replicas:
                take_first(line, waiting)
                started[session_id] = session
                start(session, line.claim, account)
                placements.append(Placement(session_id, replicas))
                turns.served()
                continue
            # Room only shrinks during a plan: nothing of this shape fits any more, except on held nodes,
            # for sessions that may use them.
            shapes_left -= not self._is_let_more(line)
        return True

    def _start(
        self, session: Session, line: QueueClass, replicas: tuple[ReplicaPlacement, ...]
    ) -> Placement:
        self._queue.remove(session.id)
        self._started[session.id] = session
        self._entitlements.hold(session, line.claim)
        return Placement(session.id, replicas)

    def _stands(self, promise: Promise) -> bool:
        """Return whether a reservation is still of use to its session."""
        line = self._queue.line_of(promise.session_id)
        return (
            line is not None
            and line.shape == promise.request
            and promise.session_id not in self._kept
            and not self._entitlements.bars(line.project, line.owner, line.claim, line.teams)
        )

    def _reserve(self, now: float) -> None:
        """Review the reservation for the first blocked sessions."""
        line = self._queue.line_of(self._holding.holder)
        held = line.shape if line is not None else None
        blocked = [
            line
            for shape, lines in self._queue.shapes()
            if shape == held or not self._fits_of(shape).fits(shape.replica_count)
            for line in lines
        ]
        if blocked:
            self._holding.look(self._candidates(blocked), now)
        else:
            self._holding.forget()

    def _candidates(self, blocked: Iterable[QueueClass]) -> Iterator[Candidate]:
        """Yield the candidates for a reservation, in order: due ones first in their class.

        A session with a reservation keeps it until another is due.
        """
        classes: dict[int, list[QueueClass]] = {}
        for line in blocked:
            classes.setdefault(line.priority, []).append(line)
        for priority in sorted(classes, reverse=True):
            yield from self._candidates_of(classes[priority])

    def _candidates_of(self, lines: list[QueueClass]) -> Iterator[Candidate]:
        """Yield the candidates of one class."""
        now, patience, entitlements = self._now, self._patience, self._entitlements
        kept, holding = self._kept, self._holding
        shares = {line.account: 0.0 for line in lines}
        shares = {account: entitlements.share(account) for account in shares}
        heap: list[tuple[tuple[Any, ...], QueueClass]] = []
        for number, line in enumerate(lines):
            rank, session_id = line.rank(now, patience), line.head.id
            is_patient = rank[0] != DUE
            if session_id in kept:
                continue
            oldest = (0.0, "") if is_patient else line.age
            turn = (not is_owed(line, entitlements, self._queue), shares[line.account], rank)
            order = (is_patient, *oldest, session_id not in holding, turn, number)
            heap.append((order, line))
        heapify(heap)
        while heap:
            (is_patient, *_), line = heappop(heap)
            if not entitlements.bars(line.project, line.owner, line.claim, line.teams):
                yield Candidate(
                    line.head.id, line.key.priority, line.shape, not is_patient, line.is_small
                )

    def _let_in(self, lines: Iterable[QueueClass]) -> Iterable[QueueClass]:
        """Filter lines whose shape fits: if it fits only on held nodes, keep those that may use them."""
        first = next(iter(lines))
        fits = first.fits
        if fits is None or fits.fits(first.count) or self._holding.spares(first.shape):
            return lines
        return [line for line in lines if self._holding.lets(line.head, self._now)]

    def _is_let_more(self, line: QueueClass) -> bool:
        """Close lines of a shape that have no room any more; return whether some are left."""
        lines = list(self._queue.lines_of(line.shape))
        is_over = self._holding.lets(line.head, self._now)
        for one in lines:
            if is_over or not self._holding.lets(one.head, self._now):
                one.fits = None
        return any(one.fits for one in lines)

    def _place_ahead(self, line: QueueClass, near: Near | None) -> tuple[ReplicaPlacement, ...]:
        """Place the head of a line on nodes held for another session, if that does not delay the other."""
        session = line.head
        if not self._holding.is_felt or line.fits is None:
            return ()
        if not self._holding.lets(session, self._now):
            return self._holding.beside(line.shape, line.fits.suits, session.id)
        self._holding.release()
        replicas = line.fits.place(line.count, session.id, near)
        self._holding.took(session, replicas, self._now)
        self._holding.hold()
        return replicas

    def _serve_moved(self, now: float) -> list[Placement]:
        """Start moved sessions at their held places."""
        placements, moves = [], self.cluster.moves
        moves.give_up(now)
        for session_id, place in moves.items():
            session, line = self._queue.get(session_id), self._queue.line_of(session_id)
            if session is None or line is None:
                continue
            moves.release(session_id)
            if not self._entitlements.bars(line.project, line.owner, line.claim, line.teams):
                replicas = self._place_on(place.nodes, line.shape, session_id)
                if replicas:
                    placements.append(self._start(session, line, replicas))
        return placements

    def _serve_kept(self) -> list[Placement]:
        """Start sessions on the nodes that were freed for them."""
        placements = []
        for session_id, kept in list(self._kept.items()):
            session, line = self._queue.get(session_id), self._queue.line_of(session_id)
            if session is None or line is None:
                self.cluster.let_go(session_id)
                continue
            if self._entitlements.bars(line.project, line.owner, line.claim, line.teams):
                self.cluster.let_go(session_id)
                continue
            replicas = self._place_on(kept.nodes, line.shape, session_id)
            if replicas:
                placements.append(self._start(session, line, replicas))
            if replicas or not kept.victims:
                self.cluster.let_go(session_id)
        return placements

    def _place_on(
        self, nodes: Iterable[str], shape: Request, session_id: str
    ) -> tuple[ReplicaPlacement, ...]:
        """Place all replicas on these nodes, or none."""
        suits = self._fits_of(shape).suits
        rooms = [room for name in nodes if (room := self._rooms.get(name)) and room.is_open]
        held = [(room, room.holds(shape)) for room in rooms]
        if sum(count for _, count in held) < shape.replica_count:
            return ()
        placed: list[ReplicaPlacement] = []
        for room, count in held:
            for _ in range(min(count, shape.replica_count - len(placed))):
                placed.append(room.take(shape, suits.wanted(room), len(placed), session_id))
            self._rooms.note(room)
        return tuple(placed)

    def _preempt(self, now: float) -> list[Preemption]:
        """Choose preemptions for the first blocked sessions, or moves for one of them."""
        found: list[Preemption] = []
        if not self._yielders:
            self._preempted = Look(now, self.cluster.edits, math.inf)
            return found
        may_look = self.cluster.rules.moves
        eligible = list(self._blocked())
        blocked = [line for line in eligible if not self._is_tried(line, now)]
        for line in self._first_tried(blocked):
            session = line.head
            given = self._sacrifice(line, now)
            if given is None:
                if may_look and self._may_be_helped(line):
                    may_look = False
                    found += self._consolidate(line, now)
                self._tried[_asked(line)] = Tried(
                    now, self.cluster.edits, self._again_at(line, now)
                )
                continue
            found += self._ask_to_leave(session, given)
        self._note_tries(now, eligible, has_more=len(blocked) > MOST_TRIED)
        return found

    def _ask_to_leave(self, session: Session, given: Sacrifice) -> list[Preemption]:
        """Preempt the victims for a session, and keep the freed nodes for it."""
        found = []
        for victim, ground in given.victims:
            known = self._yielders.get(victim)
            found.append(
                Preemption(
                    session_id=victim,
                    attempt=known.attempt if known else 0,
                    why=why(session, known, ground),
                    for_session_id=session.id,
                )
            )
        leaving = {victim for victim, _ in given.victims}
        self.cluster.keep(session.id, Kept(given.nodes, leaving))
        return found

    def _note_tries(self, now: float, eligible: Iterable[QueueClass], *, has_more: bool) -> None:
        """Record when to search again, for lines that are still blocked; `has_more`: some were not searched."""
        asked = {_asked(line) for line in eligible}
        self._tried = {one: tried for one, tried in self._tried.items() if one in asked}
        again_at = now + AGAIN_S if has_more else math.inf
        for tried in self._tried.values():
            is_old = tried.edits != self.cluster.edits
            again_at = min(again_at, tried.at + AGAIN_S if is_old else tried.again_at)
        self._preempted = Look(now, self.cluster.edits, again_at)

    def _first_tried(self, blocked: list[QueueClass]) -> list[QueueClass]:
        """Choose blocked lines to try in this plan, in order: the first ones, and the least recently tried."""
        turns = sorted((self.turn(line), number) for number, line in enumerate(blocked))
        numbers = [number for _, number in turns]
        if len(blocked) > MOST_TRIED:
            # The sort is stable for lines tried at the same time.
            left = sorted(
                numbers[MOST_TRIED // 2 :], key=lambda number: self._last_try(blocked[number]).at
            )
            chosen = {*numbers[: MOST_TRIED // 2], *left[: MOST_TRIED // 2]}
            numbers = [number for number in numbers if number in chosen]
        return [blocked[number] for number in numbers]

    def _last_try(self, line: QueueClass) -> Tried:
        return self._tried.get(_asked(line), NO_LOOK)

    def _is_tried(self, line: QueueClass, now: float) -> bool:
        """Return whether another search is of no use: nothing has changed, or the last one was a moment ago."""
        tried = self._last_try(line)
        if 0 <= now - tried.at < AGAIN_S:
            return True
        return tried.edits == self.cluster.edits and tried.at <= now < tried.again_at

    def _again_at(self, line: QueueClass, now: float) -> float:
        """Return when a victim or a move for the head of a line may appear by time alone."""
        again_at = self._yielders.due()
        due_at = line.first.since + self._patience
        if due_at > now:
            again_at = min(again_at, due_at)
        if self.cluster.rules.moves and line.is_wide:
            looked_at = self._looked.get(_asked(line), now + AGAIN_S - LOOK_AGAIN_S)
            again_at = min(again_at, looked_at + LOOK_AGAIN_S)
        return again_at

    def _may_be_helped(self, line: QueueClass) -> bool:
        """Return whether to search moves for the head of a line."""
        return line.is_wide and _asked(line) not in self._looked

    def _consolidate(self, line: QueueClass, now: float) -> list[Preemption]:
        """Choose moves that make room for the head of a line."""
        head = line.head
        found = self._defragmentation.look(
            line,
            asked=self._asked_to_leave(),
            promise=self._holding.get(head.id),
            now=now,
        )
        if found is None:
            self._looked[_asked(line)] = now
            return []
        for session_id, place in found.places.items():
            self.cluster.moves.hold(session_id, place)
        self.cluster.keep(head.id, Kept(found.nodes, set(found.places), are_moved=True))
        return [
            Preemption(
                session_id=session_id,
                attempt=place.attempt,
                why=defragmentation.why(head, self._yielders.get(session_id)),
                for_session_id=head.id,
            )
            for session_id, place in sorted(found.places.items())
        ]

    def _asked_to_leave(self) -> set[str]:
        return {victim for kept in self._kept.values() for victim in kept.victims}

    def _sacrifice(self, line: QueueClass, now: float) -> Sacrifice | None:
        """Choose victims that make room for the head of a line."""
        taker = taker_of(line, self._entitlements, self._patience, now)
        asked = self._asked_to_leave()
        bars = partial(self._holding.bars, session_id=line.head.id, priority=line.key.priority)
        rooms = self._yielders.rooms(taker, asked, now, bars)
        fits = self._fits_of(line.shape)
        if rooms and line.shape.replica_count > 1:
            # Rooms that hold a part of a gang now need no victims: also held nodes that it may use.
            may_have_held = self._holding.lets(line.head, now)
            if may_have_held:
                self._holding.release()
            fitting = fits.holding(MOST_ROOMS)
            rooms |= {room: Giving([], []) for room in fitting if room not in rooms}
            if may_have_held:
                self._holding.hold()
        return sacrifice(line.shape, fits.suits, rooms, taker, self.cluster.rules)

    def _blocked(self) -> Iterator[QueueClass]:
        """Yield lines with a blocked head that may preempt others."""
        for line in self._queue.lines():
            if (
                line.key.priority > Priority.IDLE
                and line.head.id not in self._kept
                and self._yielders.may_help(line.key.priority)
                and not self._entitlements.bars(line.project, line.owner, line.claim, line.teams)
            ):
                yield line

    def turn(self, line: QueueClass) -> Turn:
        """Return the sort key of a line's service: the smallest first."""
        owed = is_owed(line, self._entitlements, self._queue)
        share = self._entitlements.share(line.account)
        return (not owed, -line.priority, share, line.rank(self._now, self._patience))

    def in_order(self) -> list[Session]:
        """List queued sessions in the order of service at the instant of `look_at`."""
        return Order(self._queue, self._entitlements, self._now, self._patience).sessions()

    def settle(
        self,
        plan: Plan,
        dropped: Container[str],
        staying: Container[str] = frozenset(),
        put_off: Mapping[str, float] = _NOBODY,
    ) -> None:
        """Complete a plan, after its changes were applied.

        Args:
            plan: the last one.
            dropped: ids of sessions with uncommitted placements: they wait again.
            staying: ids of chosen victims that were not preempted.
            put_off: for sessions that cannot start yet, until when they wait, Unix seconds; others may use the
                free capacity.
        """
        for preemption in plan.preemptions:
            kept = self._kept.get(preemption.for_session_id)
            if preemption.session_id in staying:
                self.cluster.moves.release(preemption.session_id)
                if kept is not None:
                    kept.victims.clear()
                # Triggers a plan that releases the kept nodes.
                self.cluster.edits += 1
        for placement in plan.placements:
            for replica in placement.replicas:
                self._rooms.drop(replica.node, placement.session_id)
            session = self._started.pop(placement.session_id, None)
            if session is not None and placement.session_id in dropped:
                self._entitlements.release(session.id)
                self._queue.put_back(session)
        for session_id, until in put_off.items():
            self.cluster.put_off(session_id, until)

    def _fitting(self) -> list[Iterable[QueueClass]]:
        """Return the lines of each request that fits somewhere now."""
        fitting = []
        for shape, lines in self._queue.shapes():
            fits = self._fits_of(shape)
            if fits.fits(shape.replica_count):
                for line in lines:
                    line.fits = fits
                fitting.append(lines)
        return fitting

    def _fits_of(self, shape: Request) -> AnyFeasible:
        # Gangs of any size share an index.
        key = shape if shape.replica_count == 1 else shape._replace(replica_count=_SEVERAL)
        fits = self._fits.pop(key, None)
        if fits is None:
            fits = fits_of(self._rooms, key)
            if len(self._fits) >= MOST_SHAPES:
                del self._fits[next(iter(self._fits))]
        self._fits[key] = fits
        return fits

    @contextmanager
    def trial(self, session: Session, now: float) -> Iterator[Placement | None]:
        """Plan with a session, yield its placement, and roll the plan back."""
        before, stood = self._queue.get(session.id), self._queue.line_of(session.id) is not None
        was_planned, cut = self._planned == self._at(), self._cut
        goes_on = cut is not None and cut.at == self._at()
        kept, moves = dict(self._kept), dict(self.cluster.moves.items())
        tried, looked, at = dict(self._tried), self._looked, (self._now, self._patience)
        preempted, reserved, edits = self._preempted, self._reserved, self.cluster.edits
        held = self._holding.state()
        come, arrivals = list(self.cluster.come), self.cluster.arrivals.copy()
        unready = set(self.cluster.unready)
        scores, woken = self._rooms.scores, self._queue.wake(now)
        self.cluster.take(session)
        plan = self.plan(now)
        try:
            yield next((one for one in plan.placements if one.session_id == session.id), None)
        finally:
            self.settle(plan, {one.session_id for one in plan.placements})
            self._queue.remove(session.id)
            if before is not None:
                (self._queue.put_back if stood else self._queue.add)(before)
            for one in woken:
                self._queue.add(one)
            self._keep_only(kept)
            self.cluster.moves.restore(moves, self._queue.get)
            self._holding.restore(held)
            self._tried, self._looked, (self._now, self._patience) = tried, looked, at
            self._preempted, self._reserved, self.cluster.edits = preempted, reserved, edits
            self.cluster.come, self.cluster.arrivals = come, arrivals
            self.cluster.unready = unready
            if self._rooms.scores is not scores:
                self._rooms.score(scores)
            self._planned = self._at() if was_planned else _NEVER
            self._cut = cut._replace(at=self._at()) if cut is not None and goes_on else None

    def _keep_only(self, kept: dict[str, Kept]) -> None:
        """Restore the kept nodes as they were before a trial."""
        for session_id, now_kept in list(self._kept.items()):
            if kept.get(session_id) is not now_kept:
                self.cluster.let_go(session_id)
        for session_id, before in kept.items():
            if session_id not in self._kept:
                self.cluster.keep(session_id, before)
        in_order = {session_id: self._kept[session_id] for session_id in kept}
        self._kept.clear()
        self._kept.update(in_order)


Asked = tuple["Request", Priority, str, int]
"""Key of sessions with the same possible victims: shape, class, account and level."""


def _since(tried: dict[Asked, float], now: float, for_s: float) -> dict[Asked, float]:
    """Keep entries tried within so many seconds."""
    return {one: at for one, at in tried.items() if 0 <= now - at < for_s}


def _asked(line: QueueClass) -> Asked:
    return (line.shape, line.key.priority, line.account, line.key.level)


class Look(NamedTuple):
    """The last search.

    Attributes:
        at: Unix seconds.
        edits: `Cluster.edits` by then.
        again_at: when another search may find more without changes; infinity: never.
    """

    at: float
    edits: int
    again_at: float


Tried = Look
"""A failed search for victims for the head of a line."""
NO_LOOK = Look(-math.inf, -1, math.inf)


class Cut(NamedTuple):
    """A plan that was cut short: the revisions then, and the instant and patience of its order."""

    at: At
    now: float
    patience: float
