"""Choice of victims for a blocked session: applies `preemption_policy.py` to the nodes.

Pure: the index passes the running sessions. Freed nodes are kept for the session until it has started.
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
"""Delay of the next search for a kind of session after a search without result."""


class Sacrifice(NamedTuple):
    """Victims with reasons, their nodes, and the lost GPU-seconds.

    `victims` is empty if sessions that already leave make the room.
    """

    loss: float
    nodes: tuple[str, ...]
    victims: tuple[tuple[str, PreemptionReason], ...]


class Going(NamedTuple):
    """Sessions that leave, their nodes, and the lost GPU-seconds."""

    loss: float
    nodes: tuple[str, ...]
    runners: list[giving_way.RunningAttempt]


def taker_of(
    line: QueueClass, entitlements: Entitlements, patience: float, now: float
) -> Preemptor:
    """Build the preemptor for the head of a line."""
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
    """Say for which session and why the victim is preempted, for people, after "it".

    All viewers of the victim read it: it names nothing that is hidden from any of them.
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
    """Return a session's name for viewers of the victim."""
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
    """Choose the cheapest victims for a request that fits nowhere; None if that does not help.

    Args:
        request: of the blocked session.
        suits: rates rooms for it.
        rooms: rooms with possible victims; for a gang also rooms that hold replicas now.
        taker: the blocked session.
        rules: of preemption.
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
    """Choose the sessions with the smallest loss whose end makes room for a request; None: there are none.

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
    """Offers of one node: each makes room for more replicas, smallest loss first."""

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
        """Return victims so that more than `fitting` replicas fit; `gone` leave in any case."""
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
    """The loss on one node, the replicas that fit for it, and the victims."""

    loss: float
    node: str
    fitting: int
    going: tuple[giving_way.RunningAttempt, ...]


def _cheapest(group: list[_Offers], wanted: int, taker: Preemptor) -> Going | None:
    """Choose the smallest losses until all replicas fit."""
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
