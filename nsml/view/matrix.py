"""Comparison of many sessions with one: a row per session, a column per differing key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsml.common.text import fit_middle, width
from nsml.view.compare import (
    Kind,
    arguments_of,
    asked,
    by_kind,
    cell,
    configs,
    is_number,
    set_live,
    summaries,
)
from nsml.view.differing_arguments import Differing
from nsml.view.plot import letter
from nsml.view.sessions import word_of
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.v1.sessions_pb2 import ReportedConfig, Session
    from nsml.view.compare import Row
    from nsml.view.sessions import StateWord

_NO_CONFIGS: Final[Mapping[str, ReportedConfig]] = {}
EQUAL: Final = "="
"""Cell of a value equal to the baseline's."""
_VALUE_CELLS = 12
"""To which titles and values may be cut."""
_RULE = "│"
_LABEL_CELLS = 20
"""Most cells of the arguments that label a chart's line."""
_PREFIX = "key "
_LEAST_TIMES = 999.5
"""Percent from which on a change is shown as a factor."""
_MOST_PERCENT = 1e5
"""Percent from which on a change is not shown."""


def compared(
    sessions: Sequence[Session], received: Mapping[str, ReportedConfig] = _NO_CONFIGS
) -> tuple[list[Row], list[Row]]:
    """Return differing and common rows of requests, configurations and summaries; the most distinguishing arguments first.

    `received`: reported configurations by the session's id. Without those of all sessions there are no rows of them: what
    is not known yet would differ.
    """
    found: Differing[str | bool] = Differing()
    for one in sessions:
        found.add(arguments_of(one))
    shared = found.shared
    has_all = all(one.id in received for one in sessions)
    told = configs(sessions, received) if has_all else []
    rows = by_kind([*asked(sessions), *told, *set_live(sessions), *summaries(sessions)])
    given = [row for row in rows if row.kind is Kind.ARGUMENT]
    rows[: len(given)] = sorted(given, key=lambda row: shared.rank(row.key))
    return [row for row in rows if row.differs], [row for row in rows if not row.differs]


def columns(
    sessions: Sequence[Session], rows: Sequence[Row], baseline: Session
) -> list[Column[Session]]:
    """Return letter, name and state of each session, then as many rows as fit, from the left.

    A session's letter depends on its index, and also marks its lines in charts. Rules separate
    arguments, reported configurations, other requests and reports.
    """
    letters = {session.id: letter(place) for place, session in enumerate(sessions)}
    found: list[Column[Session]] = [
        Column(key="letter", title="", cell=lambda session, _: letters.get(session.id, "")),
        Column(
            key="name",
            title="Session",
            cell=lambda session, _: session.name,
            is_name=True,
            shrinks_to=_VALUE_CELLS,
        ),
        Column(
            key="state",
            title="",
            cell=lambda session, _: f"{_state(session).glyph} {_state(session).code}",
            colour=lambda session: _state(session).colour,
        ),
    ]
    before = None
    for row in rows:
        if before is not None and _part(row) != before:
            found.append(
                Column(
                    key=f"{_RULE} {row.kind}",
                    title=_RULE,
                    cell=lambda _session, _now: _RULE,
                    is_optional=True,
                )
            )
        before = _part(row)
        found.append(_column(row, baseline))
    return found


def _part(row: Row) -> tuple[bool, bool, bool]:
    return row.kind is Kind.ARGUMENT, row.kind is Kind.CONFIG, row.is_reported


def is_key(column: Column[Session]) -> bool:
    """Return whether a column is one of the rows."""
    return column.key.startswith(_PREFIX)


def _column(row: Row, baseline: Session) -> Column[Session]:
    numbers = (width(cell(row, name)) for name in row.values if is_number(row, name))
    return Column(
        key=f"{_PREFIX}{row.kind} {row.key}",
        title=row.title,
        cell=lambda session, _: text(row, session, baseline),
        within=lambda session, _, cells: text(row, session, baseline, cells),
        title_within=lambda cells: fit_middle(row.title, cells),
        shrinks_to=_VALUE_CELLS,
        least=max(numbers, default=0),
        is_optional=True,
    )


def text(row: Row, session: Session, baseline: Session, cells: int | None = None) -> str:
    """Return a session's value: `=` if it equals the baseline's; a number with its relative change.

    `cells`: available width; the change is omitted if both do not fit.
    """
    value, other = row.values.get(session.name), row.values.get(baseline.name)
    if session.id != baseline.id and value is not None and row.token(value) == row.token(other):
        return EQUAL
    shown = cell(row, session.name)
    is_plain = session.id == baseline.id or row.kind is Kind.CONFIG
    change = "" if is_plain else _change(value, other)
    whole = f"{shown} {change}" if change else shown
    return whole if cells is None or width(whole) <= cells else shown


def ordered(sessions: Sequence[Session], row: Row, *, is_down: bool = False) -> list[Session]:
    """Sort sessions by their values in a row: numbers, then texts, then missing values."""
    known = [one for one in sessions if row.values.get(one.name) is not None]
    absent = [one for one in sessions if row.values.get(one.name) is None]
    return [*sorted(known, key=lambda one: _rank(row.values[one.name]), reverse=is_down), *absent]


def _rank(value: Any) -> tuple[bool, float, str]:
    number = _number(value)
    return (True, 0.0, str(value)) if number is None else (False, number, "")


def _number(value: Any) -> float | None:
    """Return a number to sort by, also from an argument; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return None if number != number else number  # noqa: PLR0124 - NaN


def _change(value: Any, other: Any) -> str:
    """Return the relative change of a reported number; "" if it is meaningless."""
    if not isinstance(value, float) or not isinstance(other, float) or not other:
        return ""
    percent = 100 * (value - other) / abs(other)
    if abs(percent) < _LEAST_TIMES:
        return f"{percent:+.3g}%"
    if not abs(percent) < _MOST_PERCENT:  # NaN, too
        return ""
    times = value / other
    return f"{times:.3g}x" if times > 0 else f"{percent:+,.0f}%"


def _state(session: Session) -> StateWord:
    return word_of(session)


def labels(sessions: Sequence[Session], rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the arguments of each session among `rows`, as many as fit: `lr=0.1 amp`; "" if it has none."""
    given = [row for row in rows if row.kind is Kind.ARGUMENT]
    return tuple(_label(session, given) for session in sessions)


def _label(session: Session, rows: Sequence[Row]) -> str:
    words: list[str] = []
    for row in rows:
        value = row.values.get(session.name)
        if value is not None:
            words.append(row.title if value is True else f"{row.title}={value}")
    text = " ".join(words[:1])
    for word in words[1:]:
        if width(f"{text} {word}") > _LABEL_CELLS:
            break
        text = f"{text} {word}"
    return text
