"""The queue as a list, in the order of service (fair_queue.py).

When there is room, the first session of this list that fits starts, and the list is recomputed, since its account holds
more then. A session without room, or barred by a quota, is skipped and changes no other place, since nothing is held
for it (held nodes: see `reservations.py` and `Cluster.kept`).

To show more than the first, a session is placed behind sessions of its account that certainly start before it, as if
they held their GPUs by then: those ahead of it in its account with no larger request. Room for it would be room for
them. A wide session ahead of it does not count: it may be skipped. So if several start at one instant after a wider
one of their account, only the first of the list is certain.
"""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from controlplane.domain.values import WHOLE_DEVICE
from controlplane.scheduler.fair_queue import is_owed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from controlplane.domain.values import Session
    from controlplane.scheduler.entitlement import Entitlements
    from controlplane.scheduler.fair_queue import Turn
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.queue_classes import Queue, QueueClass, Rank, Waiting

_first = itemgetter(0)


Standing = tuple["Rank", "QueueClass", "Waiting"]
"""A queued session within its account."""


class Order:
    """The order at one instant.

    Args:
        queue: the queue.
        entitlements: held resources of accounts.
        now: Unix seconds.
        patience: sessions that waited for so many seconds are due.
    """

    def __init__(
        self, queue: Queue, entitlements: Entitlements, now: float, patience: float
    ) -> None:
        self._queue = queue
        self._entitlements = entitlements
        self._now = now
        self._patience = patience

    def sessions(self) -> list[Session]:
        """List all queued sessions in order; at the end, by age, postponed ones."""
        accounts: dict[str, list[QueueClass]] = {}
        for line in self._queue.lines():
            accounts.setdefault(line.account, []).append(line)
        first, owed = self._owed()
        turns: list[tuple[Turn, Waiting]] = []
        for name, lines in accounts.items():
            turns += self._listed(name, self._in_account(lines, first, owed), owed)
        turns.sort(key=_first)
        in_line = [waiting.session for _, waiting in turns]
        if len(in_line) == len(self._queue):
            return in_line
        put_off = [one for one in self._queue.sessions() if self._queue.line_of(one.id) is None]
        return in_line + sorted(put_off, key=attrgetter("created_at", "id"))

    def _ranked(self, line: QueueClass) -> list[Standing]:
        """Return the sessions of a line, each ranked no better than those ahead of it."""
        ranks = line.ranks(self._now, self._patience)
        return list(zip(accumulate(ranks, max), repeat(line), line.waiting()))

    def _in_account(
        self, lines: Iterable[QueueClass], first: Collection[str], owed: Mapping[str, Request]
    ) -> list[Standing]:
        """Return the sessions of an account in order, if there were room for all."""
        classes: dict[int, list[Standing]] = {}
        for line in lines:
            classes.setdefault(-line.priority, []).extend(self._ranked(line))
        found: list[Standing] = []
        for one in sorted(classes):
            found += sorted(classes[one], key=_first)
        if not owed or not any(waiting.age[1] in owed for _, _, waiting in found):
            return found
        front: list[Standing] = []
        rest: list[Standing] = []
        for standing in found:
            session_id = standing[2].age[1]
            if session_id in first:
                front.append(standing)
            elif session_id not in owed:
                rest.append(standing)
            else:
                # Before all that may have room when the first of its owner has none.
                rest.insert(_place(rest, owed, owed[session_id]), standing)
        return front + rest

    def _owed(self) -> tuple[set[str], dict[str, Request]]:
        """Return the sessions first by their owners' right, and all possible ones, with the first one's request.

        A second one of an owner is possible only if it may have room while the first has none.
        """
        lines: dict[str, list[tuple[Turn, QueueClass]]] = {}
        for line in self._queue.lines():
            if is_owed(line, self._entitlements, self._queue) and not self._is_barred(line):
                share = self._entitlements.share(line.account)
                turn = (False, -line.priority, share, line.rank(self._now, self._patience))
                lines.setdefault(line.owner, []).append((turn, line))
        first: set[str] = set()
        owed: dict[str, Request] = {}
        for of_owner in lines.values():
            of_owner.sort(key=_first)
            first.add(of_owner[0][1].first.session.id)
            before: list[Request] = []
            for _, line in of_owner:
                if not any(asks_no_more(one, line.shape) for one in before):
                    owed[line.first.session.id] = of_owner[0][1].shape
                    before.append(line.shape)
        return first, owed

    def _listed(
        self, name: str, standings: list[Standing], owed: Collection[str]
    ) -> list[tuple[Turn, Waiting]]:
        """Return the sessions of an account with their turns among all accounts."""
        account = self._entitlements.account(name)
        share, weight = account.share, account.weight * WHOLE_DEVICE
        lines = {line for _, line, _ in standings}
        shapes = list(dict.fromkeys(line.shape for line in lines))
        wider = {
            one: [number for number, other in enumerate(shapes) if asks_no_more(one, other)]
            for one in shapes
        }
        # By line, as numbers: hashing a request is slow.
        of_line = {line: shapes.index(line.shape) for line in lines}
        adds = {line: () if self._is_barred(line) else wider[line.shape] for line in lines}
        before = [0] * len(shapes)
        turns: list[Turn] = []
        for rank, line, waiting in standings:
            ahead = share + before[of_line[line]] / weight
            is_owed = bool(owed) and waiting.age[1] in owed
            turns.append((not is_owed, -line.priority, ahead, rank))
            gpus = line.claim.gpu_thousandths
            for number in adds[line]:
                before[number] += gpus
        # Each turn is no later than those behind it in its account.
        turns = list(accumulate(reversed(turns), min))[::-1]
        return list(zip(turns, (waiting for _, _, waiting in standings), strict=True))

    def _is_barred(self, line: QueueClass) -> bool:
        return self._entitlements.bars(line.project, line.owner, line.claim, line.teams)


def _place(rest: list[Standing], owed: Collection[str], first: Request) -> int:
    """Return the index of the first session without a right that may have room when that request has none."""
    places = (
        place
        for place, (_, line, waiting) in enumerate(rest)
        if waiting.age[1] not in owed and not asks_no_more(first, line.shape)
    )
    return next(places, len(rest))


def asks_no_more(one: Request, other: Request) -> bool:
    """Return whether room for the second is certainly room for the first."""
    if one == other:
        return True
    return (
        0 < one.gpu_thousandths <= other.gpu_thousandths
        and one.replica_count <= other.replica_count
        and _is_least(one.cpu_thousandths, other.cpu_thousandths)
        and _is_least(one.memory_bytes, other.memory_bytes)
        and _conditions(one) == _conditions(other)
    )


def _is_least(one: int, other: int) -> bool:
    """Return whether one replica gets no more; 0 is a share of the node, by the requested GPUs."""
    return one == other or 0 < one <= other


def _conditions(one: Request) -> tuple[object, ...]:
    """Return the fields that decide which nodes are suitable at all."""
    return (
        *(one.owner, one.in_container, one.with_conda, one.data_bytes),
        *(one.gpu_model, one.pod, one.avoids),
    )
