"""The queue as a list, in the very order in which the decision serves it (turns.py).

Whenever there is room, the first session of this list with enough of it starts, and the list is made anew: the account
of that session holds more then. A session without room, or that a quota bars, is passed over and changes the place of
no other one, since nothing is held for it (nodes that are, are in `reservations.py` and `Cluster.kept`).

To show what comes next, and not the first alone, a session stands behind those of its account that certainly start
before it, as if they held their GPUs by then: those ahead of it in its account that ask for no more than it does. Room
for it would be room for them. What a wide session ahead of it would hold does not count: it may be passed over.
"""

from __future__ import annotations

from heapq import merge
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from controlplane.domain.values import WHOLE_DEVICE
from controlplane.scheduler.turns import is_owed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from controlplane.domain.values import Session
    from controlplane.scheduler.entitlement import Entitlements
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.lines import Line, Queue, Rank, Waiting
    from controlplane.scheduler.turns import Turn

_first = itemgetter(0)


class Standing(NamedTuple):
    """A queued session within its account."""

    rank: Rank
    line: Line
    waiting: Waiting


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
        accounts: dict[str, list[Line]] = {}
        for line in self._queue.lines():
            accounts.setdefault(line.account, []).append(line)
        first, owed = self._owed()
        listed = [
            self._listed(name, self._in_account(lines, first), owed)
            for name, lines in accounts.items()
        ]
        in_line = [waiting.session for _, waiting in merge(*listed, key=_first)]
        put_off = [one for one in self._queue.sessions() if self._queue.line_of(one.id) is None]
        return in_line + sorted(put_off, key=attrgetter("created_at", "id"))

    def _ranked(self, line: Line) -> Iterator[Standing]:
        for waiting in line.waiting():
            yield Standing(line.rank_of(waiting, self._now, self._patience), line, waiting)

    def _in_account(self, lines: Iterable[Line], first: Collection[str]) -> list[Standing]:
        """The sessions of an account in their order, if there were room for all."""
        classes: dict[int, list[Line]] = {}
        for line in lines:
            classes.setdefault(line.priority, []).append(line)
        found = list(
            chain.from_iterable(
                merge(*map(self._ranked, classes[one]), key=_first)
                for one in sorted(classes, reverse=True)
            )
        )
        if not first:
            return found
        return sorted(found, key=lambda one: one.waiting.session.id not in first)

    def _owed(self) -> tuple[set[str], set[str]]:
        """The sessions that go first by a right of their owners, and all that might.

        The second of an owner might only where it may have room while the first has none.
        """
        lines: dict[str, list[tuple[Turn, Line]]] = {}
        for line in self._queue.lines():
            if is_owed(line, self._entitlements, self._queue) and not self._is_barred(line):
                share = self._entitlements.share(line.account)
                turn = (False, -line.priority, share, line.rank(self._now, self._patience))
                lines.setdefault(line.owner, []).append((turn, line))
        first, owed = set[str](), set[str]()
        for of_owner in lines.values():
            of_owner.sort(key=_first)
            first.add(of_owner[0][1].first.session.id)
            before: list[Request] = []
            for _, line in of_owner:
                if not any(asks_no_more(one, line.shape) for one in before):
                    owed.add(line.first.session.id)
                    before.append(line.shape)
        return first, owed

    def _listed(
        self, name: str, standings: list[Standing], owed: Collection[str]
    ) -> list[tuple[Any, Waiting]]:
        """The sessions of an account with the turn by which they go among those of others."""
        account = self._entitlements.account(name)
        share, weight = account.share, account.weight * WHOLE_DEVICE
        shapes = {one.line.shape for one in standings}
        wider = {one: [other for other in shapes if asks_no_more(one, other)] for one in shapes}
        bars = {one.line: self._is_barred(one.line) for one in standings}
        before = dict.fromkeys(shapes, 0)
        turns: list[Turn] = []
        for rank, line, waiting in standings:
            ahead = share + before[line.shape] / weight
            turns.append((waiting.session.id not in owed, -line.priority, ahead, rank))
            if not bars[line]:
                for shape in wider[line.shape]:
                    before[shape] += line.claim.gpu_thousandths
        # Nobody stands behind those of other accounts that come after the next ones of its own.
        turns = list(accumulate(reversed(turns), min))[::-1]
        return list(zip(turns, (one.waiting for one in standings), strict=True))

    def _is_barred(self, line: Line) -> bool:
        return self._entitlements.bars(line.project, line.owner, line.claim)


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
    return (one.owner, one.in_container, one.gpu_model, one.pod, one.avoids)
