"""Fields of sessions for filters: of one session, and of many in columns. Pure."""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from unicodedata import normalize

from nsml.spec.labels import LABEL
from nsml.spec.run_flags import FLAGS
from nsml.spec.submission_steps import is_step
from nsml.v1.sessions_pb2 import SessionState
from nsml.view.compare import arguments
from nsml.view.datasets import names_in
from nsml.view.enums import enum_word
from nsml.view.sessions import (
    REQUEUING,
    STATE_WORDS,
    command_words,
    held_cause_name,
    origin_text,
    plain,
    summary_words,
    type_word,
    word_of,
    words_of_hold,
)
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from nsml.v1.sessions_pb2 import Session

MOST_COLUMNS: Final = 32
"""Most cached columns; the least recently used one is dropped."""
_FILLED_FROM: Final = 100
"""Number of sessions whose arguments and summaries predict the numbers to cache."""


class Filtered:
    """A session's fields for filters, each computed once."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @cached_property
    def text(self) -> str:
        """The text searched for words."""
        one = self.session
        state = word_of(one).word
        parts = (one.name, one.memo, " ".join(command_words(one)), summary_words(one), state)
        return normalize("NFC", "\n".join(parts)).casefold()

    def number(self, key: str) -> float | None:
        """Return the number to compare, except the age; None if the session has none."""
        session = self.session
        if key in {"gpu", "gpus"}:
            spec = session.spec
            return spec.resources.gpu_thousandths * max(spec.replica_count, 1) / 1000
        if key in session.summary.fields:
            value = plain(session.summary.fields[key])
            return float(value) if isinstance(value, int | float) else None
        if (label := key.removeprefix(LABEL)) != key and label in session.spec.labels:
            return number_in(session.spec.labels[label])
        return number_in(self.arguments.get(key.lstrip("-"), ""))

    @cached_property
    def arguments(self) -> Mapping[str, str | bool]:
        """The arguments, without their dashes."""
        words = arguments(command_words(self.session))
        return {name.lstrip("-"): value for name, value in words.items()}

    def values(self, key: str) -> tuple[str, ...]:
        """Return the values matched by `key:value`."""
        return tuple(_VALUES[key](self.session))


class _Column:
    """One field of all sessions, as far as computed; `stale`: indices of changed ones."""

    __slots__ = ("of", "stale", "values")

    def __init__(self, of: _Of) -> None:
        self.of = of
        self.values: list[Any] = []
        self.stale: set[int] = set()

    def fill(self, ones: Sequence[Filtered], end: int) -> Sequence[Any]:
        """Compute the values up to `end`, and of changed sessions."""
        of, values = self.of, self.values
        for place in self.stale:
            if place < len(values):
                values[place] = of(ones[place])
        self.stale.clear()
        values.extend(map(of, islice(ones, len(values), end)))
        return values


class Sheet:
    """Many sessions in columns: one for each filtered field, cached between filters.

    Reading fields of many thousands of sessions takes longer than filtering them.
    """

    def __init__(self, ones: Iterable[Filtered]) -> None:
        self._ones = list(ones)
        self._columns: dict[tuple[str, str], _Column] = {}

    def __len__(self) -> int:
        return len(self._ones)

    def put(self, place: int, one: Filtered) -> None:
        """Replace the session at an index."""
        self._ones[place] = one
        for column in self._columns.values():
            column.stale.add(place)

    def texts(self) -> Sequence[str]:
        """Return the searched text of each."""
        return self._whole("text", "", _text)

    def values(self, key: str) -> Sequence[tuple[str, ...]]:
        """Return the values of each matched by `key:value`."""
        return self._whole("values", key, _values_of(key))

    def numbers(self, key: str, now: float) -> Sequence[float | None]:
        """Return the numbers of each to compare, at a time (Unix seconds); None if it has none."""
        if key == "age":
            return [now - at for at in self._whole("age", "", _created)]
        return self._whole("number", key, _number_of(key))

    def filling(self, at_once: int) -> Iterator[None]:
        """Compute the most used columns in advance, `at_once` sessions per step."""
        first = self._ones[:_FILLED_FROM]
        keys = {key: None for one in first for key in (*one.session.summary.fields, *one.arguments)}
        columns = [
            self._column("text", "", _text),
            self._column("values", "state", _values_of("state")),
            *(
                self._column("number", key, _number_of(key))
                for key in list(keys)[: MOST_COLUMNS // 2]
            ),
        ]
        for end in range(at_once, len(self._ones) + at_once, at_once):
            for column in columns:
                column.fill(self._ones, end)
            yield

    def _whole(self, kind: str, key: str, of: _Of) -> Sequence[Any]:
        return self._column(kind, key, of).fill(self._ones, len(self._ones))

    def _column(self, kind: str, key: str, of: _Of) -> _Column:
        column = self._columns.pop((kind, key), None) or _Column(of)
        if len(self._columns) == MOST_COLUMNS:
            del self._columns[next(iter(self._columns))]
        self._columns[kind, key] = column
        return column


_Of: TypeAlias = "Callable[[Filtered], Any]"


def _text(one: Filtered) -> str:
    return one.text


def _created(one: Filtered) -> float:
    return seconds_of(one.session.created_at)


def _values_of(key: str) -> _Of:
    return lambda one: one.values(key)


def _number_of(key: str) -> _Of:
    return lambda one: one.number(key)


def number_in(text: str | bool) -> float | None:
    """Parse a number; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _names(session: Session) -> Iterable[str]:
    """Return its full name and the usual short forms: kim/mnist/3, mnist/3, 3."""
    _, _, short = session.name.partition("/")
    return session.name, short, short.rpartition("/")[2]


_CODES_OF_NSML: Final[Mapping[int, tuple[str, ...]]] = {
    SessionState.SESSION_STATE_QUEUED: ("PND",),
    SessionState.SESSION_STATE_PREPARING: ("BLD",),
    SessionState.SESSION_STATE_PAUSED: ("PSE",),
    SessionState.SESSION_STATE_SUCCEEDED: ("END",),
}


STATE_SYNONYMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("complete", "completed", "done", "finished", "ok", "success"), "succeeded"),
    **dict.fromkeys(("crashed", "dead", "err", "error"), "failed"),
    **dict.fromkeys(("pending", "waiting"), "queued"),
    **dict.fromkeys(("aborted", "canceled", "cancelled", "killed", "terminated"), "stopped"),
    **dict.fromkeys(("active", "live", "r"), "running"),
    **dict.fromkeys(("building", "pulling", "starting"), "preparing"),
}
"""State names of other programs: suggested, but not accepted."""


def _states(session: Session) -> Iterable[str]:
    return state_words(session.state)


@lru_cache(maxsize=64)
def state_words(state: int) -> tuple[str, ...]:
    """Return the accepted names of a state: its word, its code, its name in the contract, and NSML's code."""
    words = [STATE_WORDS.get(state, STATE_WORDS[0])]
    words += [REQUEUING] if state == SessionState.Value("SESSION_STATE_STOPPING") else []
    names = (name for word in words for name in (word.word, word.code))
    name = enum_word(SessionState, state, "SESSION_STATE_")
    return *names, name, *_CODES_OF_NSML.get(state, ())


def _held_causes(session: Session) -> Iterable[str]:
    """Return the cause as in JSON, and as in lists."""
    held = words_of_hold(session)
    return () if held is None else (held_cause_name(session), held.short)


def _origins(session: Session) -> Iterable[str]:
    """Return the session it came from: `kim/mnist/3`, `mnist/3`, its id; and how: `rerun`, `rerun of kim/mnist/3`."""
    if session.HasField("imported"):
        text = origin_text(session)
        return (session.imported.name, session.imported.platform, text, text.partition(" ")[0])
    if not session.HasField("origin"):
        return ()
    name = session.origin.name
    text = origin_text(session)
    return (name, name.partition("/")[2], session.origin.session, text, text.partition(" ")[0])


def _datasets(session: Session) -> Iterable[str]:
    """Yield each as NAME and as OWNER/NAME."""
    for full in names_in(session):
        yield full
        yield full.rpartition("/")[2]


_VALUES: Final[Mapping[str, Callable[[Session], Iterable[str]]]] = {
    "state": _states,
    "held_cause": _held_causes,
    "origin": _origins,
    "name": _names,
    "user": lambda one: (one.owner,),
    "project": lambda one: (one.project or one.owner,),
    "memo": lambda one: (one.memo,),
    "ds": _datasets,
    "node": lambda one: [each.node for each in one.replicas],
    **{flag.filtered: flag.reading(flag.kind.filter_texts) for flag in FLAGS if flag.filtered},
    "id": lambda one: (one.id,),
    "type": lambda one: (type_word(one),),
    "submission": lambda one: (one.spec.submission_id,) if is_step(one.spec) else (),
}
KEYS: Final = tuple(_VALUES)
"""Keys of `key:value`."""
