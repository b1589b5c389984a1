"""Index of running sessions that may be preempted, and of their nodes: updated by changes and by time.

For a blocked session it returns the first nodes, by name, with a session that may be preempted for it now, without
a scan: nodes are indexed, in the order of their names, by each ground for preemption on them. A node is updated
when its room or a session on it changes, and when time alone makes a difference: when a session has run its
minimum time, or reaches another level of service.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from heapq import heappop, heappush, merge
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.values import WHOLE_DEVICE, Cause
from controlplane.scheduler import preemption_policy as giving_way
from controlplane.scheduler.preemption_policy import DUE, InClass, ground, may_give_way
from controlplane.scheduler.queue_classes import demand_of
from controlplane.scheduler.session_rank import level_lasts_s, level_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from controlplane.domain.values import Priority, Session
    from controlplane.scheduler.entitlement import Entitlements
    from controlplane.scheduler.node_capacity import NodeCapacity
    from controlplane.scheduler.node_index import NodeIndex
    from controlplane.scheduler.preemption_policy import Preemptor, Rules

MOST_ROOMS: Final = 200
"""Maximum number of nodes examined for one blocked session."""
_EARLY_S: Final = 1.0
"""Grounds are indexed at least this early, seconds: the exact test is `giving_way.ground`."""
_LEAST_S: Final = 1e-3
"""Minimum distance of instants, seconds: the minimum duration of a level, against rounding."""
_EASE: Final = 1e-6

Where = tuple[str, int, str]
"""A ground for preemption: its kind (below), the class and the account."""
Stand = tuple[Where, int]
"""The same, and a number."""
_LEAVES: Final = "leaves"
"""A session already leaves; no class, account or number."""
_CLASS: Final = "class"
"""A session of the class ran for its minimum time before higher classes; no account or number."""
_GPUS: Final = "gpus"
"""A session of class and account may be preempted within the class; its thousandths of GPUs."""
_LEVEL: Final = "level"
"""The same; the level of its service."""


class Running(NamedTuple):
    """A running session, and since when its attempt holds its devices, Unix seconds."""

    session: Session
    since: float

    @property
    def is_leaving(self) -> bool:
        """Whether it is being preempted."""
        stop = self.session.stop
        return stop is not None and stop.cause is Cause.PREEMPTED

    @property
    def gpu_thousandths(self) -> int:
        """Thousandths of devices that it holds."""
        return sum(one.resources.gpu_thousandths for one in self.session.replicas)

    def unsaved_s(self, now: float) -> float:
        """Return the run time lost if it is preempted without another save, seconds."""
        begun, progress = self.since, self.session.progress
        if progress.can_go_on:
            begun = max(begun, progress.saved_at)
        return max(now - begun, 0.0)

    def runner(self, entitlements: Entitlements, now: float) -> giving_way.RunningAttempt:
        """Convert it for the preemption rule."""
        session = self.session
        account = account_of(session)
        gpus = self.gpu_thousandths / WHOLE_DEVICE
        demand = demand_of(session)
        ran_s = max(now - self.since, 0.0)
        return giving_way.RunningAttempt(
            name=session.id,
            level=level_of(demand._replace(attained_s=demand.attained_s + ran_s)),
            ran_s=ran_s,
            loses=giving_way.loss(unsaved_s=self.unsaved_s(now), gpus=gpus),
            is_preemptible=may_give_way(session),
            priority=session.spec.priority,
            has_save=session.progress.can_go_on,
            account=account,
            share=entitlements.holding(account),
            weighs=gpus / entitlements.weight(account),
        )


def account_of(session: Session) -> str:
    """Return the account a session is charged to."""
    return session.project or session.owner


class Giving(NamedTuple):
    """Sessions that already leave a node, and possible victims there."""

    leaving: list[str]
    runners: list[giving_way.RunningAttempt]


class Yielders:
    """Running sessions that may be preempted, or are being preempted, by node."""

    def __init__(self, rooms: NodeIndex, entitlements: Entitlements, rules: Rules) -> None:
        self._rooms = rooms
        self._entitlements = entitlements
        self._rules = rules
        self._by_node: dict[str, dict[str, Session]] = {}
        self._nodes: dict[str, set[str]] = {}
        self._accounts: dict[int, Counter[str]] = {}
        # As of `_now`: the nodes of each ground, and the grounds of each node.
        self._now = 0.0
        self._stands: dict[Where, dict[int, list[str]]] = {}
        self._standing: dict[str, set[Stand]] = {}
        self._changed = rooms.follow()
        # Times of node updates: a node with a changed time is there more than once.
        self._later: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        # Times of changes by time alone, likewise.
        self._instants: list[tuple[float, str]] = []
        self._next: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def put(self, session: Session) -> None:
        """Add or update a placed session."""
        self.drop(session.id)
        if session.stop is None:
            concerns = may_give_way(session)
        else:
            concerns = session.stop.cause is Cause.PREEMPTED
        nodes = {one.node for one in session.replicas} if concerns else ()
        if nodes:
            accounts = self._accounts.setdefault(session.spec.priority, Counter())
            accounts[account_of(session)] += 1
            self._nodes[session.id] = nodes
            self._changed |= nodes
            for node in nodes:
                self._by_node.setdefault(node, {})[session.id] = session

    def drop(self, session_id: str) -> None:
        """Remove a session that cannot be preempted now."""
        known = self.get(session_id) if self._nodes else None
        if known is None:
            return
        priority, account = known.spec.priority, account_of(known)
        accounts = self._accounts[priority]
        accounts[account] -= 1
        if not accounts[account]:
            del accounts[account]
        if not accounts:
            del self._accounts[priority]
        nodes = self._nodes.pop(session_id)
        self._changed |= nodes
        for node in nodes:
            del self._by_node[node][session_id]
            if not self._by_node[node]:
                del self._by_node[node]

    def get(self, session_id: str) -> Session | None:
        """Return a session that may be preempted, if known."""
        nodes = self._nodes.get(session_id)
        return self._by_node[next(iter(nodes))][session_id] if nodes else None

    def may_help(self, priority: Priority) -> bool:
        """Return whether any session might be preempted or moved for a class."""
        is_left_alone = self._rules.in_class is InClass.NOBODY and not self._rules.moves
        most = priority - 1 if is_left_alone else priority
        return any(one <= most for one in self._accounts)

    def rooms(
        self,
        taker: Preemptor,
        asked: Collection[str],
        now: float,
        is_barred: Callable[[NodeCapacity], bool],
    ) -> dict[NodeCapacity, Giving]:
        """Return the first nodes, by name, with victims for a preemptor or with sessions that leave.

        `asked`: sessions already chosen as victims; the request may still be unsent. Barred rooms are
        excluded.
        """
        self._keep_up(now)
        found: dict[NodeCapacity, Giving] = {}
        leaving = sorted(node for one in asked for node in self._nodes.get(one, ()))
        last = ""
        for name in merge(leaving, *self._named(taker)):
            if name == last:
                continue
            last = name
            room = self._rooms.get(name)
            if room is None or not room.is_open or room.keeper or is_barred(room):
                continue
            giving = Giving([], [])
            for one in self.on(room):
                if one.is_leaving or one.session.id in asked:
                    giving.leaving.append(one.session.id)
                else:
                    runner = one.runner(self._entitlements, now)
                    if ground(runner, taker, self._rules):
                        giving.runners.append(runner)
            if giving.leaving or giving.runners:
                found[room] = giving
            if len(found) == MOST_ROOMS:
                break
        return found

    def on(self, room: NodeCapacity) -> list[Running]:
        """Return a node's sessions that may be preempted, or are being preempted."""
        sessions = self._by_node.get(room.name)
        if not sessions:
            return []
        begun = {one.session_id: one.placed_at for one in room.allocation.replicas}
        return [Running(sessions[one], begun[one]) for one in begun if one in sessions]

    def _named(self, taker: Preemptor) -> Iterator[list[str]]:
        """Yield sorted lists of nodes that together include all with victims or leaving sessions."""
        yield from self._under(_LEAVES).values()
        rules, entitlements = self._rules, self._entitlements
        for priority in self._accounts:
            if priority < taker.priority:
                yield from self._under(_CLASS, priority).values()
        if rules.in_class is InClass.NOBODY:
            return
        for account in self._accounts.get(taker.priority, ()):
            if account == taker.account:
                if taker.level == DUE or taker.has_limit or rules.in_class is InClass.SERVICE:
                    levels = self._under(_LEVEL, taker.priority, account)
                    yield from (names for level, names in levels.items() if level > taker.level)
            elif (spare := entitlements.holding(account) - taker.share) > 0:
                # So without the victim its share is no less than the taker's.
                most = (spare + _EASE) * entitlements.weight(account) * WHOLE_DEVICE
                widths = self._under(_GPUS, taker.priority, account)
                yield from (names for gpus, names in widths.items() if gpus <= most)

    def _under(self, what: str, priority: int = 0, account: str = "") -> dict[int, list[str]]:
        return self._stands.get((what, priority, account), {})

    def _keep_up(self, now: float) -> None:
        """Update the index to an instant: costs a pass over the changed nodes."""
        self._rooms.tell()
        if now < self._now:
            # At the earlier instant sessions with a time limit have longer to run.
            self._changed.update(self._by_node)
        self._now = now
        while self._later and self._later[0][0] <= now:
            at, name = heappop(self._later)
            if self._due.get(name) == at:
                del self._due[name]
                self._changed.add(name)
        for name in self._changed:
            self._look(name)
        self._changed.clear()

    def _look(self, name: str) -> None:
        """Update the grounds of a node."""
        room = self._rooms.get(name) if name in self._by_node else None
        after, again_at = set[Stand](), math.inf
        if room is not None and room.is_open and not room.keeper:
            for one in self.on(room):
                again_at = min(again_at, self._stand(one, after))
        self._set_next(name, again_at)
        before = self._standing.pop(name, set[Stand]())
        if after:
            self._standing[name] = after
        for where, number in before - after:
            under = self._stands[where]
            names = under[number]
            del names[bisect_left(names, name)]
            if not names:
                del under[number]
            if not under:
                del self._stands[where]
        for where, number in after - before:
            insort(self._stands.setdefault(where, {}).setdefault(number, []), name)

    def _set_next(self, name: str, at: float) -> None:
        """Schedule an update of a node, a little before the instant of its next change."""
        if self._next.get(name) != at:
            self._next.pop(name, None)
            if at < math.inf:
                self._next[name] = at
                heappush(self._instants, (at, name))
        early_at = at - _EARLY_S if at - _EARLY_S > self._now else at
        if early_at < self._due.get(name, math.inf):
            self._due[name] = early_at
            heappush(self._later, (early_at, name))

    def due(self) -> float:
        """Return when a further session may be preempted by time alone, Unix seconds; infinity: never."""
        self._keep_up(self._now)
        instants = self._instants
        while instants and self._next.get(instants[0][1]) != instants[0][0]:
            heappop(instants)
        return instants[0][0] if instants else math.inf

    def _stand(self, one: Running, stands: set[Stand]) -> float:
        """Add a session's current grounds for preemption; return when they change by time, Unix seconds."""
        if one.is_leaving:
            stands.add(((_LEAVES, 0, ""), 0))
            return math.inf
        session, rules, now = one.session, self._rules, self._now
        priority = int(session.spec.priority)
        by_higher_at = one.since + rules.least_run_of(priority)
        if now >= by_higher_at - _EARLY_S:
            stands.add(((_CLASS, priority, ""), 0))
        ahead = [by_higher_at]
        if rules.in_class is not InClass.NOBODY and session.progress.can_go_on:
            ahead.append(one.since + rules.least_run_in_class_s)
            if now >= ahead[-1] - _EARLY_S:
                ahead.append(self._stand_in_class(one, stands))
        return min((at for at in ahead if at > now), default=math.inf)

    def _stand_in_class(self, one: Running, stands: set[Stand]) -> float:
        """Do the same for grounds within its class."""
        session, now = one.session, self._now
        priority, account = int(session.spec.priority), account_of(session)
        if gpus := one.gpu_thousandths:
            stands.add(((_GPUS, priority, account), gpus))
        demand = demand_of(session)
        ran_s = max(now - one.since, 0.0)
        demand = demand._replace(attained_s=demand.attained_s + ran_s)
        soon = demand._replace(attained_s=demand.attained_s + _EARLY_S)
        stands.add(((_LEVEL, priority, account), max(level_of(demand), level_of(soon))))
        return now + max(level_lasts_s(demand), _LEAST_S)
