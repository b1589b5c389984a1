"""Rows with a rank and a score, of boards and of standings: their common texts and columns. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nsml.common.units import ago, ago_within, duration_text, number_within
from nsml.view.scores import digits_of, score_text
from nsml.view.tables import Column
from nsml.view.telemetry import BARS
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

SCORE_CELLS: Final = 24
"""Cells of the longest score: never rounded to fit a table, where it could look equal to another one."""


SCORES: Final = ("score", "private_score")
"""Fields with scores, and the keys of their columns."""


class Scored(Protocol):
    """A message with a score: an entry of a board, a row of standings, or a submission."""

    @property
    def submitted_at(self) -> Timestamp:
        """When it was submitted; may be unset."""
        ...

    def HasField(self, field_name: str, /) -> bool:  # noqa: N802 - named by protobuf
        """Whether a field is set."""
        ...


class Ranked(Scored, Protocol):
    """A row with a rank."""

    @property
    def rank(self) -> int:
        """From 1; 0: none."""
        ...

    @property
    def rank_before(self) -> int:
        """A day ago, from 1; 0: none."""
        ...

    @property
    def gpu_seconds(self) -> float:
        """GPU time, in seconds."""
        ...

    @property
    def trend(self) -> Sequence[float]:
        """The best scores so far, oldest first."""
        ...


S = TypeVar("S", bound=Scored)
R = TypeVar("R", bound=Ranked)


# Texts


def change_text(row: Ranked) -> str:
    """Return how its rank changed within a day: `+2` is two places up; `new`; "" if it did not."""
    if not row.rank:
        return ""
    if not row.rank_before:
        return "new"
    up = row.rank_before - row.rank
    return f"{up:+d}" if up else ""


def _change_colour(row: Ranked) -> str:
    change = change_text(row)
    return "green" if change.startswith("+") else "red" if change.startswith("-") else ""


def trend_text(trend: Sequence[float], *, is_min: bool) -> str:
    """Draw the best scores so far as bars, a better one always higher; "" below two."""
    if len(trend) < 2:
        return ""
    low, high = min(trend), max(trend)
    span = high - low
    if not span:
        return BARS[0] * len(trend)
    heights = [(high - one if is_min else one - low) / span for one in trend]
    return "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)


def gpu_time_text(seconds: float) -> str:
    """Return GPU time: `1h30m`; "-" without any."""
    if not seconds:
        return "-"
    return duration_text(seconds) if seconds >= 1 else "<1s"


def _submitted(row: Scored, now: float) -> str:
    return ago(now - seconds_of(row.submitted_at)) if row.HasField("submitted_at") else "-"


def _submitted_within(row: Scored, now: float, cells: int) -> str:
    is_there = row.HasField("submitted_at")
    return ago_within(now - seconds_of(row.submitted_at), cells) if is_there else ""


# Columns


def rank_column() -> Column[R]:
    """Return the column of ranks."""
    return Column(key="rank", title="Rank", cell=lambda r, _: str(r.rank) if r.rank else "-")


def change_column() -> Column[R]:
    """Return the column of changes of ranks."""
    return Column(
        key="rank_before",
        title="±",
        cell=lambda r, _: change_text(r),
        colour=_change_colour,
        is_wide=True,
        is_worth=lambda r: bool(change_text(r)),
        is_optional=True,
    )


def score_column(key: str = "score", title: str = "Score") -> Column[S]:
    """Return the column of a field with a score that may be absent; `with_score_texts` adapts it to a table."""

    def number(row: S) -> float:
        return float(getattr(row, key))

    return Column(
        key=key,
        title=title,
        cell=lambda s, _: score_text(number(s)) if s.HasField(key) else "-",
        shrinks_to=SCORE_CELLS,
        least=SCORE_CELLS,
        within=lambda s, _, cells: number_within(number(s), cells) if s.HasField(key) else "",
    )


def private_score_column() -> Column[S]:
    """Return the column of private scores, shown if there are any."""
    column: Column[S] = score_column("private_score", "Private")
    return column._replace(is_wide=True, is_worth=lambda s: s.HasField("private_score"))


def scores_of(key: str, rows: Iterable[Scored]) -> list[float]:
    """Return the scores in a field of these rows."""
    return [float(getattr(one, key)) for one in rows if one.HasField(key)]


def with_score_texts(columns: Sequence[Column[S]], rows: Collection[S]) -> list[Column[S]]:
    """Return the columns of a table with these rows: its scores have enough digits to differ, if they do."""
    return [_apart(one, rows) if one.key in SCORES else one for one in columns]


def _apart(column: Column[S], rows: Collection[S]) -> Column[S]:
    key, cell = column.key, column.cell
    if not (digits := digits_of(scores_of(key, rows))):
        return column
    return column._replace(
        cell=lambda s, now: (
            score_text(float(getattr(s, key)), digits) if s.HasField(key) else cell(s, now)
        )
    )


def submitted_column() -> Column[S]:
    """Return the column of the times of submissions, as ages."""
    return Column(
        key="submitted_at",
        title="Submitted",
        cell=_submitted,
        shrinks_to=7,
        within=_submitted_within,
        is_optional=True,
    )


def gpu_time_column() -> Column[R]:
    """Return the column of GPU times."""
    return Column(
        key="gpu_seconds",
        title="GPU time",
        cell=lambda r, _: gpu_time_text(r.gpu_seconds),
        tells=lambda r: r.gpu_seconds > 0,
        is_optional=True,
    )


def trend_column(is_min: Callable[[R], bool]) -> Column[R]:
    """Return the column of the best scores so far; `is_min`: whether a lower score of a row is better."""
    return Column(
        key="trend",
        title="Trend",
        cell=lambda r, _: trend_text(r.trend, is_min=is_min(r)) or "-",
        is_wide=True,
        tells=lambda r: len(r.trend) > 1,
        is_optional=True,
    )
