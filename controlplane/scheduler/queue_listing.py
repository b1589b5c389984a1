"""The queue as a list, in the very order in which the decision serves it (fair_queue.py).

Whenever there is room, the first session of this list with enough of it starts, and the list is made anew: the account
of that session holds more then. A session without room, or that a quota bars, is passed over and changes the place of
no other one, since nothing is held for it (nodes that are, are in `reservations.py` and `Cluster.kept`).

To show what comes next, and not the first alone, a session stands behind those of its account that certainly start
before it, as if they held their GPUs by then: those ahead of it in its account that ask for no more than it does. Room
for it would be room for them. What a wide session ahead of it would hold does not count: it may be passed over. So
where several start at one instant after a wider one of their account, only the first of the list is certain.
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
        queue: what waits.
        entitlements: who holds what.
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
        """All queued sessions, first those that go first; at the end, by age, those that are put off."""
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
        """The sessions of a line, each with the rank of the last one ahead of it where that is higher."""
        ranks = line.ranks(self._now, self._patience)
        return list(zip(accumulate(ranks, max), repeat(line), line.waiting()))

    def _in_account(
        self, lines: Iterable[QueueClass], first: Collection[str], owed: Mapping[str, Request]
    ) -> list[Standing]:
        """The sessions of an account in their order, if there were room for all."""
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
                # Before all that may have room where the first of its owner has none.
                rest.insert(_place(rest, owed, owed[session_id]), standing)
        return front + rest

    def _owed(self) -> tuple[set[str], dict[str, Request]]:
        """The sessions that go first by a right of their owners, and all that might, with what the first asks for.

        The second of an owner might only where it may have room while the first has none.
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
        """The sessions of an account with the turn by which they go among those of others."""
        account = self._entitlements.account(name)
        share, weight = account.share, account.weight * WHOLE_DEVICE
        lines = {line for _, line, _ in standings}
        shapes = list(dict.fromkeys(line.shape for line in lines))
        wider = {
            one: [number for number, other in enumerate(shapes) if asks_no_more(one, other)]
            for one in shapes
        }
        # By line, as numbers: a request takes long to look up.
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
        # Nobody stands behind those of other accounts that come after the next ones of its own.
        turns = list(accumulate(reversed(turns), min))[::-1]
        return list(zip(turns, (waiting for _, _, waiting in standings), strict=True))

    def _is_barred(self, line: QueueClass) -> bool:
        return self._entitlements.bars(line.project, line.owner, line.claim)


def _place(rest: list[Standing], owed: Collection[str], first: Request) -> int:
    """Where the first stands that may have room where that request has none, and that has no right itself."""
    places = (
        place
        for place, (_, line, waiting) in enumerate(rest)
        if waiting.age[1] not in owed and not asks_no_more(first, line.shape)
    )
    return next(places, len(rest))


def asks_no_more(one: Request, other: Request) -> bool:
    """Whether there is certainly room for the first wherever there is room for the second."""
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
    """Whether one replica gets no more; 0 is a share of the node, by the GPUs that are asked for."""
    return one == other or 0 < one <= other


def _conditions(one: Request) -> tuple[object, ...]:
    """What says which nodes would do at all."""
    return (
        *(one.owner, one.in_container, one.with_conda, one.data_bytes),
        *(one.gpu_model, one.pod, one.avoids),
    )
