"""Who of those that run gives way to a blocked session: `giving_way.py` asked of the nodes that there are.

Pure: the index asks with what runs where. What is left for a session is kept for it until it has started.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.values import WHOLE_DEVICE, Cause
from controlplane.scheduler import giving_way
from controlplane.scheduler.entitlement import may_name
from controlplane.scheduler.explain import GIVES_WAY_TO
from controlplane.scheduler.fit import refusal
from controlplane.scheduler.giving_way import (
    DUE,
    Ground,
    InClass,
    Rules,
    Taker,
    are_fair,
    fewest,
    ground,
)
from controlplane.scheduler.lines import waiting_since, wish_of
from controlplane.scheduler.order import level_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

    from controlplane.domain.values import Priority, Session
    from controlplane.scheduler.entitlement import Entitlements
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.fits import Suits
    from controlplane.scheduler.lines import Line
    from controlplane.scheduler.room import Alike, Room
    from controlplane.scheduler.rooms import Rooms

MOST_ROOMS: Final = 200
"""Nodes that are looked at for one blocked session."""
AGAIN_S: Final = 5.0
"""How long nobody is looked for again who would give way to a kind of session, after nobody was found."""


class Sacrifice(NamedTuple):
    """Who gives way on which nodes and why, and the GPU-seconds that are lost by it.

    `victims` is empty where those that leave already make the room.
    """

    loss: float
    nodes: tuple[str, ...]
    victims: tuple[tuple[str, Ground], ...]


class Going(NamedTuple):
    """Who goes from which nodes, and the GPU-seconds that are lost by it."""

    loss: float
    nodes: tuple[str, ...]
    runners: list[giving_way.Runner]


class Running(NamedTuple):
    """A session that runs, and since when its attempt holds its devices, Unix seconds."""

    session: Session
    since: float

    @property
    def is_leaving(self) -> bool:
        """Whether it gives way already."""
        stop = self.session.stop
        return stop is not None and stop.cause is Cause.PREEMPTED

    def unsaved_s(self, now: float) -> float:
        """What of its time is lost when it gives way without another save."""
        begun, progress = self.since, self.session.progress
        if progress.can_go_on:
            begun = max(begun, progress.saved_at)
        return max(now - begun, 0.0)

    def runner(self, entitlements: Entitlements, now: float) -> giving_way.Runner:
        """The same as the rule looks at it."""
        session = self.session
        account = session.project or session.owner
        gpus = sum(one.resources.gpu_thousandths for one in session.replicas) / WHOLE_DEVICE
        wish = wish_of(session)
        ran_s = max(now - self.since, 0.0)
        return giving_way.Runner(
            name=session.id,
            level=level_of(wish._replace(attained_s=wish.attained_s + ran_s)),
            ran_s=ran_s,
            loses=giving_way.loss(unsaved_s=self.unsaved_s(now), gpus=gpus),
            is_preemptible=may_give_way(session),
            priority=session.spec.priority,
            has_save=session.progress.can_go_on,
            account=account,
            share=entitlements.holding(account),
            weighs=gpus / entitlements.weight(account),
        )


def may_give_way(session: Session) -> bool:
    """Whether a session can be resumed, or its owner allowed that it is ended without."""
    return session.progress.is_resumable or session.spec.may_be_preempted


def _group(session: Session) -> tuple[int, str]:
    """The class and the account of a session."""
    return (session.spec.priority, session.project or session.owner)


def taker_of(line: Line, entitlements: Entitlements, patience: float, now: float) -> Taker:
    """The head of a line as the rule looks at it."""
    session, key = line.head, line.key
    is_due = now - waiting_since(session) >= patience
    gpus = line.claim.gpu_thousandths / WHOLE_DEVICE
    share = entitlements.holding(line.account) + gpus / entitlements.weight(line.account)
    taker = Taker(
        level=DUE if is_due else key.level,
        priority=key.priority,
        has_limit=session.spec.time_limit_s > 0,
        account=line.account,
    )
    return taker._replace(share=share) if gpus else taker


def why(session: Session, victim: Session | None, given: Ground) -> str:
    """For whom the victim gives way and on what ground, for people, after "it".

    Whoever sees the victim reads it: it names nothing that one of them may not see.
    """
    is_seen = victim is not None and may_name(session, victim)
    name = name_for(session, victim)
    if given is Ground.CLASS:
        return f"{GIVES_WAY_TO}{name} ({session.spec.priority.name.lower()})"
    if given is Ground.SHARE:
        whose = f"project {session.project}" if is_seen and session.project else session.owner
        return f"{GIVES_WAY_TO}{name}, since {whose} holds less"
    return f"{GIVES_WAY_TO}{name}, which needs far less time"


def name_for(session: Session, victim: Session | None) -> str:
    """How a session is named to whoever sees the victim."""
    is_seen = victim is not None and may_name(session, victim)
    return session.name if is_seen else f"a session of {session.owner}"


class Yielders:
    """The sessions that run and may give way, or do already, by node; kept by what happens."""

    def __init__(self, rooms: Rooms, entitlements: Entitlements, rules: Rules) -> None:
        self._rooms = rooms
        self._entitlements = entitlements
        self._rules = rules
        self._by_node: dict[str, dict[str, Session]] = {}
        self._nodes: dict[str, set[str]] = {}
        self._groups = Counter[tuple[int, str]]()
        self._leaving: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def put(self, session: Session) -> None:
        """A session is placed, or another one than it was."""
        self.drop(session.id)
        if session.stop is None:
            concerns = may_give_way(session)
        else:
            concerns = session.stop.cause is Cause.PREEMPTED
        nodes = {one.node for one in session.replicas}
        if concerns and nodes:
            self._groups[_group(session)] += 1
            if session.stop is not None:
                self._leaving.add(session.id)
            self._nodes[session.id] = nodes
            for node in nodes:
                self._by_node.setdefault(node, {})[session.id] = session

    def drop(self, session_id: str) -> None:
        """A session gives way to nobody, as things are."""
        known = self.get(session_id)
        if known is None:
            return
        self._groups[_group(known)] -= 1
        if not self._groups[_group(known)]:
            del self._groups[_group(known)]
        self._leaving.discard(session_id)
        for node in self._nodes.pop(session_id):
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
        return any(one <= most for one, _ in self._groups)

    def rooms(
        self,
        taker: Taker,
        asked: Collection[str],
        now: float,
        is_barred: Callable[[Room], bool],
    ) -> dict[Room, Giving]:
        """Nodes where somebody gives way to one now, or is about to leave, and who.

        `asked` are those that are to give way already, and have not been told yet maybe. Rooms that are
        barred are left out.
        """
        found: dict[Room, Giving] = {}
        accounts = self._able(taker)
        if not (accounts or asked or self._leaving or self._has_lower(taker.priority)):
            return found
        for name in sorted(self._by_node):
            room = self._rooms.get(name)
            if room is None or not room.is_open or room.keeper or is_barred(room):
                continue
            giving = Giving([], [])
            for one in self.on(room):
                if one.is_leaving or one.session.id in asked:
                    giving.leaving.append(one.session.id)
                elif self._might(one.session, now - one.since, taker, accounts):
                    runner = one.runner(self._entitlements, now)
                    if ground(runner, taker, self._rules):
                        giving.runners.append(runner)
            if giving.leaving or giving.runners:
                found[room] = giving
            if len(found) == MOST_ROOMS:
                break
        return found

    def on(self, room: Room) -> list[Running]:
        """Those of a node that may give way, or do already."""
        sessions = self._by_node.get(room.name)
        if not sessions:
            return []
        begun = {one.session_id: one.placed_at for one in room.allocation.replicas}
        return [Running(sessions[one], begun[one]) for one in begun if one in sessions]

    def _has_lower(self, priority: int) -> bool:
        return any(one < priority for one, _ in self._groups)

    def _able(self, taker: Taker) -> set[str]:
        """The accounts that might give to one of their class."""
        rules = self._rules
        if rules.in_class is InClass.NOBODY:
            return set()
        is_known = taker.level == DUE or taker.has_limit or rules.in_class is InClass.SERVICE
        return {
            account
            for priority, account in self._groups
            if priority == taker.priority
            and (
                is_known
                if account == taker.account
                else self._entitlements.holding(account) > taker.share
            )
        }

    def _might(
        self, session: Session, ran_s: float, taker: Taker, accounts: Container[str]
    ) -> bool:
        """What the rule asks for that costs little to look at: most are ruled out by it."""
        priority, rules = session.spec.priority, self._rules
        if priority != taker.priority:
            return priority < taker.priority and ran_s > rules.least_run_of(priority) - 1.0
        if ran_s < rules.least_run_in_class_s - 1.0 or not session.progress.can_go_on:
            return False
        return _group(session)[1] in accounts


class Giving(NamedTuple):
    """Who leaves a node already, and who would give way there."""

    leaving: list[str]
    runners: list[giving_way.Runner]


def sacrifice(
    request: Request,
    suits: Suits,
    rooms: Mapping[Room, Giving],
    taker: Taker,
    rules: Rules = giving_way.RULES,
) -> Sacrifice | None:
    """The least that must give way for a request that fits nowhere; None when that does not help.

    Args:
        request: of the blocked session.
        suits: what one of its replicas gets on a node.
        rooms: where somebody may give way to it, and who; for a gang also where there is room as it is.
        taker: the blocked session.
        rules: of giving way.
    """
    found = cheapest(request, suits, rooms, taker)
    if found is None:
        return None
    grounds = [(one.name, ground(one, taker, rules)) for one in found.runners]
    victims = tuple(sorted((name, why) for name, why in grounds if why))
    return Sacrifice(found.loss, found.nodes, victims)


def cheapest(
    request: Request, suits: Suits, rooms: Mapping[Room, Giving], taker: Taker
) -> Going | None:
    """Those that lose least of all who, once they are gone, leave room for a request; None: there are none.

    Arguments as those of `sacrifice`.
    """
    groups: dict[Alike, list[_Offers]] = {}
    for room, giving in rooms.items():
        if not refusal(room.node, request):
            offers = _Offers(room, giving, request, suits, taker)
            groups.setdefault(room.alike_for(request), []).append(offers)
    found = [_cheapest(group, request.replica_count, taker) for group in groups.values()]
    return min(
        (one for one in found if one is not None), default=None, key=lambda one: (one[0], one[1])
    )


class _Offers:
    """What one node can do for a request: a replica more for each further offer, least lost first."""

    def __init__(
        self, room: Room, giving: Giving, request: Request, suits: Suits, taker: Taker
    ) -> None:
        self.room = room
        self._giving = giving
        self._request = request
        self._wanted = suits.wanted(room)
        self._taker = taker

    def next(self, fitting: int, gone: Iterable[giving_way.Runner]) -> _Offer | None:
        """Who goes so that more than `fitting` replicas fit, where these go in any case."""
        names = {one.name for one in gone}

        def holds(going: Sequence[giving_way.Runner]) -> int:
            without = {*self._giving.leaving, *names, *(one.name for one in going)}
            return self.room.without(without).holds_of(self._request, self._wanted)

        candidates = [one for one in self._giving.runners if one.name not in names]
        going = fewest(candidates, self._taker, lambda some: holds(some) > fitting)
        if going is None:
            return None
        lost = sum(one.loses for one in going)
        return _Offer(lost, self.room.node.name, holds(going), tuple(going))


class _Offer(NamedTuple):
    """What is lost on one node, the replicas that fit for it, and who goes."""

    loss: float
    node: str
    fitting: int
    going: tuple[giving_way.Runner, ...]


def _cheapest(group: list[_Offers], wanted: int, taker: Taker) -> Going | None:
    """Those that lose least until all replicas fit, with the nodes and what is lost."""
    by_node = {one.room.node.name: one for one in group}
    heap = [offer for one in group if (offer := one.next(0, ())) is not None]
    heapify(heap)
    fitting: dict[str, int] = {}
    going: dict[str, giving_way.Runner] = {}
    while heap:
        offer = heappop(heap)
        new = [one for one in offer.going if one.name not in going]
        if not are_fair([*going.values(), *new], taker):
            continue
        going |= {one.name: one for one in new}
        fitting[offer.node] = offer.fitting
        if sum(fitting.values()) >= wanted:
            lost = sum(one.loses for one in going.values())
            return Going(lost, tuple(fitting), list(going.values()))
        further = by_node[offer.node].next(offer.fitting, going.values())
        if further is not None:
            heappush(heap, further)
    return None
