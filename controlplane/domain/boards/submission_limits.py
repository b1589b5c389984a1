"""Limits of submissions in a rolling window of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.boards.values import BoardSettings


def next_permitted(
    times: Iterable[float], *, limit: int, window: float, now: float
) -> float | None:
    """Return when one more is permitted; None: now.

    A submission counts until `window` seconds after its time, then no more. Times after `now`, of a clock that was
    set back, count. `limit` 0: no limit.
    """
    ends = sorted(end for at in times if (end := at + window) > now)
    if limit <= 0 or len(ends) < limit:
        return None
    return ends[len(ends) - limit]


def next_submission(
    counted: Iterable[float], failed: Iterable[float], settings: BoardSettings, now: float
) -> float | None:
    """Return when a participant may submit again by both limits of a board; None: now.

    `counted`: when those were submitted that were scored or are on their way; `failed`: those that failed by their
    own code.
    """
    instants = [
        next_permitted(times, limit=limit.count, window=limit.window_s, now=now)
        for times, limit in ((counted, settings.limit), (failed, settings.failed_limit))
    ]
    return max((one for one in instants if one is not None), default=None)


def submissions_left(
    counted: Iterable[float], failed: Iterable[float], settings: BoardSettings, now: float
) -> int | None:
    """Return how many more a participant may submit now; None: as many as they like.

    0 also if too many failed. Arguments as of `next_submission`.
    """
    counted = list(counted)
    if next_submission(counted, failed, settings, now) is not None:
        return 0
    limit = settings.limit
    if not limit.count:
        return None
    return limit.count - sum(at + limit.window_s > now for at in counted)


def longest_window(settings: BoardSettings) -> float:
    """The seconds back to the first submission that can count; 0.0: there are no limits."""
    limits = (settings.limit, settings.failed_limit)
    return max((one.window_s for one in limits if one.count), default=0.0)
