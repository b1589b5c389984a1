"""Who of those that run gives way to a blocked session: `preemption_policy.py` asked of the nodes that there are.

Pure: the index asks with what runs where. What is left for a session is kept for it until it has started.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.policy import viewers_may_see
from controlplane.domain.values import WHOLE_DEVICE
from controlplane.scheduler import preemption_policy as giving_way
from controlplane.scheduler.explain import GIVES_WAY_TO
from controlplane.scheduler.fit import refusal
from controlplane.scheduler.preemption_policy import (
    DUE,
    PreemptionReason,
    Preemptor,
    Rules,
    are_fair,
    fewest,
    ground,
)
from controlplane.scheduler.queue_classes import waiting_since

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from controlplane.domain.values import Session
    from controlplane.scheduler.eligibility import Eligibility
    from controlplane.scheduler.entitlement import Entitlements
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.node_capacity import Alike, NodeCapacity
    from controlplane.scheduler.preemption_candidates import Giving
    from controlplane.scheduler.queue_classes import QueueClass

AGAIN_S: Final = 5.0
"""How long nobody is looked for again who would give way to a kind of session, after nobody was found."""


class Sacrifice(NamedTuple):
    """Who gives way on which nodes and why, and the GPU-seconds that are lost by it.

    `victims` is empty where those that leave already make the room.
    """

    loss: float
    nodes: tuple[str, ...]
    victims: tuple[tuple[str, PreemptionReason], ...]


class Going(NamedTuple):
    """Who goes from which nodes, and the GPU-seconds that are lost by it."""

    loss: float
    nodes: tuple[str, ...]
    runners: list[giving_way.RunningAttempt]


def taker_of(
    line: QueueClass, entitlements: Entitlements, patience: float, now: float
) -> Preemptor:
    """The head of a line as the rule looks at it."""
    session, key = line.head, line.key
    is_due = now - waiting_since(session) >= patience
    gpus = line.claim.gpu_thousandths / WHOLE_DEVICE
    share = entitlements.holding(line.account) + gpus / entitlements.weight(line.account)
    taker = Preemptor(
        level=DUE if is_due else key.level,
        priority=key.priority,
        has_limit=session.spec.time_limit_s > 0,
        account=line.account,
    )
    return taker._replace(share=share) if gpus else taker


def why(session: Session, victim: Session | None, given: PreemptionReason) -> str:
    """For whom the victim gives way and on what ground, for people, after "it".

    Whoever sees the victim reads it: it names nothing that one of them may not see.
    """
    is_seen = _is_seen(session, victim)
    name = _name(session, is_seen)
    if given is PreemptionReason.CLASS:
        return f"{GIVES_WAY_TO}{name} ({session.spec.priority.name.lower()})"
    if given is PreemptionReason.SHARE:
        whose = f"project {session.project}" if is_seen and session.project else session.owner
        return f"{GIVES_WAY_TO}{name}, since {whose} holds less"
    return f"{GIVES_WAY_TO}{name}, which needs far less time"


def name_for(session: Session, victim: Session | None) -> str:
    """How a session is named to whoever sees the victim."""
    return _name(session, _is_seen(session, victim))


def _is_seen(session: Session, victim: Session | None) -> bool:
    return victim is not None and viewers_may_see(victim, session)


def _name(session: Session, is_seen: bool) -> str:
    return session.name if is_seen else f"a session of {session.owner}"


def sacrifice(
    request: Request,
    suits: Eligibility,
    rooms: Mapping[NodeCapacity, Giving],
    taker: Preemptor,
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
    request: Request, suits: Eligibility, rooms: Mapping[NodeCapacity, Giving], taker: Preemptor
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
        self,
        room: NodeCapacity,
        giving: Giving,
        request: Request,
        suits: Eligibility,
        taker: Preemptor,
    ) -> None:
        self.room = room
        self._giving = giving
        self._request = request
        self._wanted = suits.wanted(room)
        self._taker = taker

    def next(self, fitting: int, gone: Iterable[giving_way.RunningAttempt]) -> _Offer | None:
        """Who goes so that more than `fitting` replicas fit, where these go in any case."""
        names = {one.name for one in gone}

        def holds(going: Sequence[giving_way.RunningAttempt]) -> int:
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
    going: tuple[giving_way.RunningAttempt, ...]


def _cheapest(group: list[_Offers], wanted: int, taker: Preemptor) -> Going | None:
    """Those that lose least until all replicas fit, with the nodes and what is lost."""
    by_node = {one.room.node.name: one for one in group}
    heap = [offer for one in group if (offer := one.next(0, ())) is not None]
    heapify(heap)
    fitting: dict[str, int] = {}
    going: dict[str, giving_way.RunningAttempt] = {}
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
