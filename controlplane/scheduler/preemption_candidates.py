"""Those that run and may give way, and the nodes where somebody does: kept up by what happens and by time.

A blocked session asks for the first nodes, by name, where somebody gives way to it now. They are found without a look
at the others: nodes stand, in the order of their names, under each ground on which somebody there may give way. A node
is looked at again when its room or a session on it changes, and when time alone makes a difference there: when
somebody has run its least, or comes into another level of service.
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
"""Nodes that are looked at for one blocked session."""
_EARLY_S: Final = 1.0
"""A node stands under a ground so long before it is one there at the latest, seconds: exact is `giving_way.ground`."""
_LEAST_S: Final = 1e-3
"""Instants are so far apart at least: a level that is over by rounding alone lasts no shorter."""
_EASE: Final = 1e-6

Where = tuple[str, int, str]
"""A ground on which somebody gives way: what it is (below), the class and the account."""
Stand = tuple[Where, int]
"""The same, and a number."""
_LEAVES: Final = "leaves"
"""Somebody leaves already; no class, account or number."""
_CLASS: Final = "class"
"""Somebody of the class ran for as long as those of higher ones leave it alone; no account or number."""
_GPUS: Final = "gpus"
"""Somebody of class and account gives way within the class; thousandths of GPUs that it holds."""
_LEVEL: Final = "level"
"""The same; the level of its service."""


class Running(NamedTuple):
    """A session that runs, and since when its attempt holds its devices, Unix seconds."""

    session: Session
    since: float

    @property
    def is_leaving(self) -> bool:
        """Whether it gives way already."""
        stop = self.session.stop
        return stop is not None and stop.cause is Cause.PREEMPTED

    @property
    def gpu_thousandths(self) -> int:
        """What it holds of devices."""
        return sum(one.resources.gpu_thousandths for one in self.session.replicas)

    def unsaved_s(self, now: float) -> float:
        """What of its time is lost when it gives way without another save."""
        begun, progress = self.since, self.session.progress
        if progress.can_go_on:
            begun = max(begun, progress.saved_at)
        return max(now - begun, 0.0)

    def runner(self, entitlements: Entitlements, now: float) -> giving_way.RunningAttempt:
        """The same as the rule looks at it."""
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
    """Who a session counts for."""
    return session.project or session.owner


class Giving(NamedTuple):
    """Who leaves a node already, and who would give way there."""

    leaving: list[str]
    runners: list[giving_way.RunningAttempt]


class Yielders:
    """The sessions that run and may give way, or do already, by node."""

    def __init__(self, rooms: NodeIndex, entitlements: Entitlements, rules: Rules) -> None:
        self._rooms = rooms
        self._entitlements = entitlements
        self._rules = rules
        self._by_node: dict[str, dict[str, Session]] = {}
        self._nodes: dict[str, set[str]] = {}
        self._accounts: dict[int, Counter[str]] = {}
        # As of `_now`: the names of nodes under each ground, and the grounds of each node.
        self._now = 0.0
        self._stands: dict[Where, dict[int, list[str]]] = {}
        self._standing: dict[str, set[Stand]] = {}
        self._changed = rooms.follow()
        # When nodes are looked at again: some that were to be sooner stand there once more.
        self._later: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        # When something changes there by time alone, likewise.
        self._instants: list[tuple[float, str]] = []
        self._next: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def put(self, session: Session) -> None:
        """A session is placed, or another one than it was."""
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
        """A session gives way to nobody, as things are."""
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
        """One that may give way."""
        nodes = self._nodes.get(session_id)
        return self._by_node[next(iter(nodes))][session_id] if nodes else None

    def may_help(self, priority: Priority) -> bool:
        """Whether there are any who might give way to a class, or move for it."""
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
        """Nodes where somebody gives way to one now, or is about to leave, and who: the first by name.

        `asked` are those that are to give way already, and have not been told yet maybe. Rooms that are
        barred are left out.
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
        """Those of a node that may give way, or do already."""
        sessions = self._by_node.get(room.name)
        if not sessions:
            return []
        begun = {one.session_id: one.placed_at for one in room.allocation.replicas}
        return [Running(sessions[one], begun[one]) for one in begun if one in sessions]

    def _named(self, taker: Preemptor) -> Iterator[list[str]]:
        """Names of nodes, in order, among which are all where somebody leaves or gives way to one."""
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
                # What it holds less the one that goes is no less than the other's, then.
                most = (spare + _EASE) * entitlements.weight(account) * WHOLE_DEVICE
                widths = self._under(_GPUS, taker.priority, account)
                yield from (names for gpus, names in widths.items() if gpus <= most)

    def _under(self, what: str, priority: int = 0, account: str = "") -> dict[int, list[str]]:
        return self._stands.get((what, priority, account), {})

    def _keep_up(self, now: float) -> None:
        """Let nodes stand where they do at this instant: costs a look at those of which something changed."""
        self._rooms.tell()
        if now < self._now:
            # One with a time limit was expected to need more then.
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
        """Let a node stand where it does now."""
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
        """Something changes on a node at this instant; a little before, the node is looked at again."""
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
        """When somebody may give way by time alone who does not yet, Unix seconds; infinity: never."""
        self._keep_up(self._now)
        instants = self._instants
        while instants and self._next.get(instants[0][1]) != instants[0][0]:
            heappop(instants)
        return instants[0][0] if instants else math.inf

    def _stand(self, one: Running, stands: set[Stand]) -> float:
        """Add the grounds on which a session may give way now; when that changes by time, Unix seconds."""
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
        """The same of those within its class."""
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
