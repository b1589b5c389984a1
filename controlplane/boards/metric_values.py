"""Values of a metric of many sessions: read from the levels of their series, and cached until the next report."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from controlplane.history.sql.series import NO_EXTENT
from controlplane.history.values import Extreme, SeriesAxis, SeriesExtent, SeriesQuery
from controlplane.state.lru import LruDict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.history.sql.history import History
    from controlplane.history.values import SeriesView

KEPT: Final = 60_000
"""Sessions with cached values, some hundred bytes each."""
AT_ONCE: Final = 500
"""Sessions per read of the history."""
STANDARD_ERROR: Final = "@std"
"""Suffix of the name under which a program reports the standard error of a metric."""
_WIDTH: Final = 256
_NARROWER: Final = 4
"""Most reads to find when a value was reported: each finds it `_WIDTH` times more exactly."""
_WILDCARD: Final = re.compile(r"[*?\[]")


@dataclass(slots=True)
class _Known:
    """Cached values of one session."""

    extents: dict[str, SeriesExtent | None] = field(default_factory=dict)
    first_reports: dict[tuple[str, Extreme], Extreme] = field(default_factory=dict)
    errors: dict[tuple[str, float], float | None] = field(default_factory=dict)
    earlier: dict[str, tuple[float, SeriesExtent | None]] = field(default_factory=dict)
    """Values until an instant."""


class MetricValues:
    """Reads and caches values of metrics."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._sessions: LruDict[str, _Known] = LruDict(KEPT)

    def forget(self, session_ids: Iterable[str]) -> None:
        """Drop what is cached of sessions with new reports."""
        for session_id in session_ids:
            self._sessions.forget(session_id)

    def forget_all(self) -> None:
        """Drop all that is cached: any session may have new reports."""
        self._sessions = LruDict(KEPT)

    def _of(self, session_id: str) -> _Known:
        known = self._sessions.get(session_id)
        if known is None:
            known = _Known()
            self._sessions.keep(session_id, known)
        return known

    async def of(self, session_ids: Iterable[str], metric: str) -> dict[str, SeriesExtent]:
        """Return the values of a metric by session; sessions without it are left out.

        Values that are not finite do not count: a session that reported no others has NO_EXTENT.
        """
        found: dict[str, SeriesExtent] = {}
        # Taken before the read: what is forgotten meanwhile must not be cached.
        unknown: list[tuple[str, _Known]] = []
        for session_id in session_ids:
            known = self._of(session_id)
            if metric not in known.extents:
                unknown.append((session_id, known))
            elif (extent := known.extents[metric]) is not None:
                found[session_id] = extent
        for start in range(0, len(unknown), AT_ONCE):
            some = unknown[start : start + AT_ONCE]
            read = await self._history.series.extents([one for one, _ in some], metric)
            for session_id, known in some:
                extent = read.get(session_id)
                if extent is None and session_id in read:
                    extent = await self._read(session_id, metric)
                known.extents[metric] = extent
                if extent is not None:
                    found[session_id] = extent
        return found

    async def until(self, session_id: str, metric: str, until: float) -> SeriesExtent | None:
        """Return the values that a session had reported until an instant; None: it had none."""
        known = self._of(session_id).earlier
        if metric not in known or known[metric][0] != until:
            known[metric] = until, await self._read(session_id, metric, until)
        return known[metric][1]

    async def _read(
        self, session_id: str, metric: str, until: float = math.inf
    ) -> SeriesExtent | None:
        """Read a session whose levels do not have it: with new reports, or several attempts."""
        views = await self._views(session_id, metric, -math.inf, until)
        if not views:
            return None
        low = high = last = None
        for view in views:
            columns = view.columns
            for column in columns:
                if not column.finite:
                    continue
                since, until = column.x_low, column.x_high
                if low is None or (column.low, until) < (low.value, low.until):
                    low = Extreme(column.low, since, until)
                if high is None or (-column.high, until) < (-high.value, high.until):
                    high = Extreme(column.high, since, until)
                if last is None or until >= last.until:
                    last = Extreme(column.last, since, until)
        if low is None or high is None or last is None:
            return NO_EXTENT
        return SeriesExtent(low=low, high=high, last=last)

    async def _views(
        self, session_id: str, metric: str, low: float, high: float
    ) -> list[SeriesView]:
        """Read the series of the lowest rank that reported it, in all attempts that count."""
        query = SeriesQuery(
            width=_WIDTH,
            names=(_WILDCARD.sub(lambda found: f"[{found[0]}]", metric),),
            axis=SeriesAxis.WALL,
            low=low,
            high=high,
        )
        page = await self._history.series.read(session_id, query)
        rank = min((view.rank for view in page.series), default=0)
        return [view for view in page.series if view.rank == rank]

    async def first_report(self, session_id: str, metric: str, extreme: Extreme) -> Extreme:
        """Return the extreme with the instant of its first report, as exactly as the history still has it."""
        if extreme.since == extreme.until or not math.isfinite(extreme.value):
            return extreme
        known, key = self._of(session_id).first_reports, (metric, extreme)
        if key not in known:
            known[key] = await self._narrowed(session_id, metric, extreme)
        return known[key]

    async def _narrowed(self, session_id: str, metric: str, extreme: Extreme) -> Extreme:
        since, until = extreme.since, extreme.until
        for _ in range(_NARROWER):
            views = await self._views(session_id, metric, since, until)
            holding = [
                (column.x_high, column.x_low)
                for view in views
                for column in view.columns
                if column.finite and extreme.value in {column.low, column.high}
            ]
            if not holding:
                break
            before, (until, since) = (since, until), min(holding)
            if since == until or (since, until) == before:
                break
        return Extreme(extreme.value, since, until)

    async def standard_error(self, session_id: str, metric: str, at: float) -> float | None:
        """Return the standard error reported together with a value; None: there is none."""
        known, key = self._of(session_id).errors, (metric, at)
        if key in known:
            return known[key]
        views = await self._views(session_id, metric + STANDARD_ERROR, at, at)
        errors = [
            column.last
            for view in views
            for column in view.columns
            if column.finite == 1 and column.x_low <= at <= column.x_high and column.last >= 0
        ]
        known[key] = errors[-1] if errors else None
        return known[key]
