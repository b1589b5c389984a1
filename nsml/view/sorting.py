"""Sorting of sessions by any column, and columns of single reported values or arguments. Pure.

Columns are named as for `--fields`; `summary.val/acc` is a value of the last summary report, `arg.lr` an argument.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from nsml.common.text import fit, fit_middle, width
from nsml.common.units import begins_as_number, number_text, number_within
from nsml.spec.labels import LABEL
from nsml.spec.run_flags import FLAGS
from nsml.view.compare import arguments
from nsml.view.differing_arguments import NOTHING_SHARED, Differing
from nsml.view.progress import fraction
from nsml.view.sessions import COLUMNS, command_words, plain, ran_s
from nsml.view.tables import Column, kept
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsml.v1.sessions_pb2 import Session
    from nsml.view.differing_arguments import Shared
    from nsml.view.filter_fields import Filtered

SUMMARY: Final = "summary."
ARGUMENT: Final = "arg."
UP, DOWN = "▴", "▾"
_ABSENT: Final = "-"
_MORE: Final = " …"
_VALUE_CELLS: Final = 8
_TITLE_CELLS: Final = 14
_SORTED_CELLS: Final = 20
"""Least width of the sort column."""
_DIGITS: Final = 12
"""Width to which numbers in names are padded, so that 10 sorts after 9."""

Value: TypeAlias = float | str | None


def _natural(text: str) -> str:
    return re.sub(r"\d+", lambda found: found[0].zfill(_DIGITS), text.casefold())


def _moment(field: str) -> Callable[[Session, float], Value]:
    def value(session: Session, _now: float) -> Value:
        return seconds_of(getattr(session, field)) if session.HasField(field) else None

    return value


def _held(field: str) -> Callable[[Session, float], Value]:
    def value(session: Session, _now: float) -> Value:
        each = session.replicas[0].resources if session.replicas else session.spec.resources
        return float(getattr(each, field)) or None

    return value


_VALUES: Final[Mapping[str, Callable[[Session, float], Value]]] = {
    "name": lambda one, _: _natural(one.name),
    "created": _moment("created_at"),
    "created_at": _moment("created_at"),
    "ended_at": _moment("ended_at"),
    "state": lambda one, _: float(one.state),
    "gpus": lambda one, _: float(
        one.spec.resources.gpu_thousandths * max(one.spec.replica_count, 1)
    ),
    "checkpoints": lambda one, _: float(one.checkpoint_count),
    "priority": lambda one, _: float(one.spec.priority),
    "time_limit": lambda one, _: (
        float(one.spec.time_limit.seconds) if one.spec.HasField("time_limit") else None
    ),
    "retries": lambda one, _: float(one.spec.retry_count),
    "running": ran_s,
    "cpus": _held("cpu_thousandths"),
    "memory": _held("memory_bytes"),
    "attempt": lambda one, _: float(one.attempt),
    "efficiency": lambda one, _: (
        one.usage.utilization_percent if one.usage.HasField("utilization_percent") else None
    ),
    "progress": lambda one, _: fraction(one),
    "saved": lambda one, _: (
        seconds_of(one.progress.saved_at) if one.progress.HasField("saved_at") else None
    ),
}
"""Sort values that differ from the displayed text."""
_BY_KEY: Final = {column.key: column for column in COLUMNS}
_FILTERED_COLUMNS: Final[Mapping[str, str]] = {
    "age": "created",
    "gpu": "gpus",
    "node": "nodes",
    **{flag.filtered: flag.record for flag in FLAGS if flag.filtered and flag.title},
}
"""Columns of filter keys with another name."""
AGING: Final = frozenset({"running"})
"""Columns whose order changes with time alone."""


def value_of(one: Filtered, key: str, now: float) -> Value:
    """Return a session's sort value: a number, a text, or None if it is missing.

    Numeric arguments are compared as numbers.
    """
    session = one.session
    if key.startswith(SUMMARY):
        name = key.removeprefix(SUMMARY)
        fields = session.summary.fields
        return _comparable(plain(fields[name])) if name in fields else None
    if key.startswith(LABEL):
        return _comparable(_labelled(session, key.removeprefix(LABEL)))
    if key.startswith(ARGUMENT):
        return _comparable(one.arguments.get(key.removeprefix(ARGUMENT)))
    if key in _VALUES:
        return _VALUES[key](session, now)
    column = _BY_KEY.get(key)
    text = column.cell(session, now) if column is not None else ""
    return None if text in {"", _ABSENT} else _natural(text)


def _comparable(value: object) -> Value:
    if isinstance(value, (bool, int, float, str)):
        try:
            number = float(value)
        except ValueError:
            return _natural(str(value))
        return None if number != number else number  # noqa: PLR0124 - NaN
    return None if value is None else str(value)


def order(values: Sequence[Value], *, is_down: bool) -> list[int]:
    """Return the indices of values in order: numbers, then texts, then None, in both directions; stable."""
    texts, absent = list[int](), list[int]()
    if set(map(type, values)) <= {float}:  # the usual case, and the fastest
        numbers = list(range(len(values)))
    else:
        numbers = [place for place, value in enumerate(values) if isinstance(value, float)]
        texts = [place for place, value in enumerate(values) if isinstance(value, str)]
        absent = [place for place, value in enumerate(values) if value is None]
    of = values.__getitem__
    for some in (numbers, texts):
        some.sort(key=of, reverse=is_down)  # type: ignore[arg-type]  # each is of one type
    return [*numbers, *texts, *absent]


class Keys(NamedTuple):
    """Names of reported summary values, arguments and labels of sessions."""

    summary: Sequence[str]
    arguments: Sequence[str]
    labels: Sequence[str]

    @property
    def columns(self) -> list[str]:
        """Keys of all possible columns."""
        return [
            *_BY_KEY,
            *(SUMMARY + name for name in self.summary),
            *(ARGUMENT + name for name in self.arguments),
            *(LABEL + name for name in self.labels),
        ]


def keys_of(some: Iterable[Filtered]) -> Keys:
    """Collect the names from these sessions."""
    reported: set[str] = set()
    given: set[str] = set()
    labels: set[str] = set()
    for one in some:
        reported.update(one.session.summary.fields)
        given.update(one.arguments)
        labels.update(one.session.spec.labels)
    return Keys(sorted(reported), sorted(given), sorted(labels))


def shared_by(some: Iterable[Filtered]) -> Shared[str | bool]:
    """Return the shared and differing arguments of these sessions; of a single one nothing is known."""
    found: Differing[str | bool] = Differing()
    count = 0
    for count, one in enumerate(some, 1):  # noqa: B007 - how many there were
        found.add(one.arguments)
    return found.shared if count > 1 else NOTHING_SHARED


def column(key: str) -> Column[Session] | None:
    """Return the column of a key; None if it does not exist."""
    if key.startswith(SUMMARY):
        return _value_column(key, key.removeprefix(SUMMARY), _reported)
    if key.startswith(ARGUMENT):
        return _value_column(key, key.removeprefix(ARGUMENT), _given)
    if key.startswith(LABEL) and key != LABEL:
        return _value_column(key, key.removeprefix(LABEL), _labelled)
    found = _BY_KEY.get(key)
    return found._replace(is_wide=False, is_optional=True) if found is not None else None


def is_single(key: str) -> bool:
    """Return whether a column is one value of a summary, one argument or one label."""
    return key.startswith((SUMMARY, ARGUMENT, LABEL))


def single(session: Session, key: str) -> object:
    """Return that value unformatted; None if the session has none."""
    if key.startswith(SUMMARY):
        return _reported(session, key.removeprefix(SUMMARY))
    if key.startswith(LABEL):
        return _labelled(session, key.removeprefix(LABEL))
    return _arguments(session).get(key.removeprefix(ARGUMENT))


def single_alone(session: Session, name: str) -> object:
    """Return the reported value of this name, else the argument; None if it has neither."""
    found = _reported(session, name)
    return _arguments(session).get(name) if found is None else found


def named_alone(name: str) -> Column[Session]:
    """Return the column of `single_alone`, whose key is the name."""
    return _value_column(name, name, _reported_or_given)


def marked(columns: Sequence[Column[Session]], key: str, *, is_down: bool) -> list[Column[Session]]:
    """Return the columns with the sort column marked and visible."""
    mark = DOWN if is_down else UP
    found = [_sorted_by(one, mark) if one.key == key else one for one in columns]
    if key not in {one.key for one in found} and (other := column(key)):
        found.insert(1, _sorted_by(other, mark))
    return found


def with_filtered(
    columns: Sequence[Column[Session]], keys: Iterable[str], known: Keys | None = None
) -> list[Column[Session]]:
    """Return the columns with those of filter keys kept; `known`: compared numbers get a column of their own."""
    wanted = [_FILTERED_COLUMNS.get(key, key) for key in keys]
    found = [kept(one) if one.key in wanted else one for one in columns]
    there = {one.key for one in found}
    values = known.columns if known is not None else ()
    for name in reversed(wanted):
        of_label = [name] if name.startswith(LABEL) else []
        of_value = (key for key in (SUMMARY + name, ARGUMENT + name, *of_label) if key in values)
        key = name if name in there else next(of_value, "")
        if key and key not in there and (one := column(key)):
            there.add(key)
            cells = one.shrinks_to and max(one.shrinks_to, width(one.title))
            found.insert(1, kept(one)._replace(shrinks_to=cells, least=cells or one.least))
    return found


def _sorted_by(one: Column[Session], mark: str) -> Column[Session]:
    shorter = one.title_within or (lambda cells: fit(one.title, cells))
    cells = one.shrinks_to and max(one.shrinks_to, _SORTED_CELLS)
    return kept(one)._replace(
        title=one.title + mark,
        title_within=lambda cells: shorter(cells - 1) + mark,
        shrinks_to=cells,
        least=cells or one.least,
    )


def _value_column(key: str, name: str, value: Callable[[Session, str], object]) -> Column[Session]:
    return Column(
        key=key,
        title=fit_middle(name, _TITLE_CELLS),
        cell=lambda session, _: _value_text(value(session, name)),
        title_within=lambda cells: fit_middle(name, cells),
        shrinks_to=_VALUE_CELLS,
        least=_VALUE_CELLS,
        within=lambda session, _, cells: _number_within(value(session, name), cells),
        is_optional=True,
    )


def _reported(session: Session, name: str) -> object:
    fields = session.summary.fields
    return plain(fields[name]) if name in fields else None


def _labelled(session: Session, name: str) -> object:
    return dict(session.spec.labels).get(name)


def _given(session: Session, name: str) -> object:
    value = _arguments(session).get(name)
    return "set" if value is True else value


def _reported_or_given(session: Session, name: str) -> object:
    found = _reported(session, name)
    return _given(session, name) if found is None else found


def _value_text(value: object) -> str:
    if value is None:
        return _ABSENT
    return number_text(value) if isinstance(value, float) else str(value)


def _number_within(value: object, cells: int) -> str:
    number = _comparable(value)
    return number_within(number, cells) if isinstance(number, float) else ""


def _arguments(session: Session) -> Mapping[str, str | bool]:
    words = arguments(command_words(session))
    return {key.lstrip("-"): value for key, value in words.items()}


def arguments_text(session: Session, shared: Shared[str | bool] = NOTHING_SHARED) -> str:
    """Format the arguments of a session, without shared ones, the most distinguishing first: `lr=0.02 bs=128`."""
    return words_of(_differing(session, shared))


def arguments_within(
    session: Session, cells: int, shared: Shared[str | bool] = NOTHING_SHARED
) -> str:
    """Return the arguments that fit, each whole, with a mark for more: `lr=0.02 …`; `…` if none fits: no number is cut."""
    words = _words(_differing(session, shared))
    text = " ".join(words)
    if width(text) <= cells:
        return text
    text = ""
    for word in words:
        longer = f"{text} {word}".lstrip()
        if width(longer) + width(_MORE) <= cells:
            text = longer
    if text:
        return text + _MORE
    key, _, value = words[0].partition("=")
    can_be_cut = width(key) + 1 < cells and not begins_as_number(value)
    return fit(words[0] if can_be_cut else _MORE.strip(), cells)


def words_of(given: Mapping[str, str | bool]) -> str:
    """Format arguments in a line: `lr=0.02 amp`."""
    return " ".join(_words(given))


def _words(given: Mapping[str, str | bool]) -> list[str]:
    """Format each as one word; positional ones without a name."""
    return [
        key if value is True else str(value) if key.isdigit() else f"{key}={value}"
        for key, value in given.items()
    ]


def _differing(session: Session, shared: Shared[str | bool]) -> dict[str, str | bool]:
    given = [
        (name, value)
        for name, value in _arguments(session).items()
        if shared.same.get(name) != value
    ]
    return dict(sorted(given, key=lambda one: shared.rank(one[0])))
