"""Which submissions get the session of their prediction now.

Predictions are mostly smaller than evaluations, and start wherever a little becomes free: with all of them in the queue
of sessions, no evaluation would start before the last prediction. So only a few steps of a dataset are queued at once, and
new predictions wait while many evaluations do. Participants alternate. No participant is blocked by the queued sessions
of another: one without a prediction in progress gets one.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.history.board_values import SubmissionRow

MOST_QUEUED: Final = 32
"""Maximum number of queued sessions of a dataset's submissions, and from this number of queued evaluations on no
prediction starts."""


def next_predictions(
    new: Iterable[SubmissionRow], begun: Iterable[tuple[SubmissionRow, bool]]
) -> list[SubmissionRow]:
    """Return the new submissions that may start now.

    Args:
        new: submissions without a session yet, oldest first.
        begun: all other unfinished submissions, and whether the session of the current step is queued.
    """
    queued: Counter[tuple[str, str]] = Counter()
    evaluations: Counter[tuple[str, str]] = Counter()
    under_way: Counter[tuple[str, str, str]] = Counter()
    for row, is_queued in begun:
        queued[_dataset(row)] += is_queued
        evaluations[_dataset(row)] += is_queued and bool(row.prediction_digest)
        under_way[*_dataset(row), row.owner] += not row.prediction_digest
    waiting: dict[tuple[str, str], dict[str, deque[SubmissionRow]]] = defaultdict(dict)
    for row in new:
        waiting[_dataset(row)].setdefault(row.owner, deque()).append(row)
    chosen = []
    for dataset, lines in waiting.items():
        if evaluations[dataset] >= MOST_QUEUED:
            continue
        turns = [
            (under_way[*dataset, owner], number, line)
            for number, (owner, line) in enumerate(lines.items())
        ]
        heapify(turns)
        room = MOST_QUEUED - queued[dataset]
        while turns:
            count, number, line = turns[0]
            if count and room <= 0:
                break
            chosen.append(line.popleft())
            room -= 1
            if line:
                heapreplace(turns, (count + 1, number, line))
            else:
                heappop(turns)
    return chosen


def _dataset(row: SubmissionRow) -> tuple[str, str]:
    return row.dataset_owner, row.dataset
