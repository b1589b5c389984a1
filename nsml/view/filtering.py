"""The filter language for sessions: `state:run lr>=1e-3 !baseline | user:kim`. Pure.

Words are searched in name, memo, arguments, summary and the word of the state, ignoring case. `key:value` matches one of
several values, with `*` and `?` as wildcards; a glob with a `/` matches names; `key<number` compares an argument, a summary's number,
`gpus` or `age`. Terms are joined by and, `|` separates alternatives, and `!` or `-` negates a
term. Quotes keep spaces together. `user:@me` is the current user.
"""

from __future__ import annotations

import operator
import re
import sys
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from unicodedata import normalize

from nsml.common.units import parse_duration
from nsml.spec.labels import LABEL
from nsml.v1.sessions_pb2 import Priority
from nsml.view.enums import enum_word
from nsml.view.filter_fields import KEYS, STATE_SYNONYMS, Sheet, number_in, state_words
from nsml.view.sessions import STATE_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsml.view.filter_fields import Filtered

ME: Final = "@me"
LONGEST: Final = 1_000
"""Most characters of a filter."""
_MOST_REMEMBERED: Final = 1_000
"""Cached match results per term: thousands of sessions share a few values."""
_TERM: Final = re.compile(r"""(?:[^\s"'|]|"[^"]*"|'[^']*')+""")
_COMPARED: Final = re.compile(r"([^<>=!:]+)(<=|>=|<|>|==|=)(.+)")
_BEGUN: Final = re.compile(r"([^<>=!:]+)(<=|>=|<|>|==|=)")
"""A comparison without a value."""
_NAME_GLOB: Final = re.compile(r"(?=.*[*?\[])[^\s\"']*/[^\s\"']*")
"""A glob of session names, as in commands: `mnist/[3-9]`."""
_KEYED: Final = re.compile(r"([a-z_]+):(.*)", re.IGNORECASE)
_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
}

_ALIASES: Final[Mapping[str, str]] = {
    "status": "state",
    "owner": "user",
    "data": "ds",
    "dataset": "ds",
    "nodes": "node",
    "gpus": "gpu",
    "gpu_model": "model",
}
"""Names of keys in other tools and our own columns."""
_INSTEAD: Final[Mapping[str, str]] = {"created": "age<2h", "started": "age<2h", "ended": "age<2h"}
"""Suggestions for missing keys."""
_Narrow: TypeAlias = "Callable[[Sheet, Sequence[int], float], list[int]]"
"""Select the matching ones of some indices of a sheet, at a time."""


class FilterError(ValueError):
    """An invalid filter.

    Attributes:
        place: position of the error in the text, from 0 on.
        begins: start of its term.
        ends: end of its term.
        advice: suggested terms.
    """

    def __init__(self, message: str, place: int, *, advice: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.place = self.begins = place
        self.ends = sys.maxsize

    @property
    def text(self) -> str:
        """The message and the advice on one line."""
        tries = " or ".join(self.advice)
        return f"{self.message}; try {tries}" if tries else self.message


class _Term(NamedTuple):
    narrow: _Narrow
    is_negated: bool
    key: str = ""
    """The key whose values it matches; "" for other terms."""
    values: Sequence[str] = ()
    """One of these must match."""
    compared: str = ""
    """The name of the compared number; "" for other terms."""


class Filter:
    """A parsed filter.

    Args:
        text: the filter; "" matches everything.
        me: the current user; "": unknown.

    Raises:
        FilterError: it is invalid.
    """

    def __init__(self, text: str, *, me: str = "") -> None:
        self.text = text
        if len(text) > LONGEST:
            raise FilterError(f"longer than {LONGEST} characters", LONGEST)
        alternatives = [_terms(part, at, me) for part, at in _parts(text)]
        # An empty alternative, still being typed, matches nothing rather than everything.
        self._alternatives = list(filter(None, alternatives)) or [[]]

    def required(self, key: str) -> Sequence[str]:
        """Return globs; each matching session has one of them; empty: unknown."""
        if len(self._alternatives) > 1:
            return ()
        return next((one.values for one in self._asking(key)), ())

    def named(self, key: str) -> Sequence[str]:
        """Return all requested values."""
        return [value for one in self._asking(key) for value in one.values]

    @property
    def has_steps(self) -> bool:
        """Whether it asks for steps of submissions, which lists leave out otherwise."""
        return bool(self.named("submission") or self.named("type"))

    def compared(self) -> Sequence[str]:
        """Return the names of all compared numbers."""
        return [term.compared for terms in self._alternatives for term in terms if term.compared]

    @property
    def asked(self) -> Sequence[str]:
        """All its keys and names of numbers."""
        found = (term.key or term.compared for terms in self._alternatives for term in terms)
        return list(dict.fromkeys(filter(None, found)))

    def _asking(self, key: str) -> Iterable[_Term]:
        terms = (term for terms in self._alternatives for term in terms)
        return (term for term in terms if term.key == key and not term.is_negated)

    def takes(self, one: Filtered, now: float) -> bool:
        """Return whether a session matches, at a time (Unix seconds)."""
        return bool(self.among(Sheet([one]), now))

    def among(self, sheet: Sheet, now: float, places: Sequence[int] | None = None) -> Sequence[int]:
        """Return the indices of matching sessions, among some or all: of many thousands at each keystroke."""
        some = range(len(sheet)) if places is None else places
        parts = [_narrowed(terms, sheet, some, now) for terms in self._alternatives]
        return parts[0] if len(parts) == 1 else sorted({place for part in parts for place in part})


def completions(word: str) -> Sequence[str]:
    """Return completions of a partial word: keys, or after `state:` (and a comma) states."""
    key, colon, value = word.partition(":")
    if not colon:
        return [f"{one}:" for one in (*KEYS, *_ALIASES) if one.startswith(key)]
    if _ALIASES.get(key, key) != "state":
        return ()
    before, comma, last = value.rpartition(",")
    states = (one.word.casefold() for state, one in STATE_WORDS.items() if state)
    return [f"{key}:{before}{comma}{one}" for one in states if one.startswith(last.casefold())]


def complete(text: str, *, me: str = "") -> Filter:
    """Return a filter of the valid terms: a term still being typed has no effect."""
    while True:
        try:
            return Filter(text, me=me)
        except FilterError as error:
            text = text[: error.begins] + text[error.ends :]


def _narrowed(
    terms: Iterable[_Term], sheet: Sheet, places: Sequence[int], now: float
) -> Sequence[int]:
    for term in terms:
        found = term.narrow(sheet, places, now)
        if term.is_negated:
            left_out = set(found)
            found = [place for place in places if place not in left_out]
        places = found
    return places


def _parts(text: str) -> Iterable[tuple[str, int]]:
    """Split at `|` outside of quotes; yield the alternatives with their positions."""
    begin, quote = 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "|":
            yield text[begin:place], begin
            begin = place + 1
    if quote:
        raise FilterError(f"a quote ({quote}) that nothing closes", text.index(quote, begin))
    yield text[begin:], begin


def states_of(values: Iterable[str]) -> list[Any]:
    """Return the states matched by one of these values; none without values."""
    globs = list(values)
    return [state for state in STATE_WORDS if state and globs and _fits(globs, state_words(state))]


def _terms(part: str, at: int, me: str) -> list[_Term]:
    terms = []
    for found in _TERM.finditer(part):
        begins = at + found.start()
        try:
            terms.append(_term(found[0], begins, me))
        except FilterError as error:
            error.begins, error.ends = begins, at + found.end()
            raise
    return terms


def _term(text: str, place: int, me: str) -> _Term:
    is_negated = len(text) > 1 and text[0] in "!-" and not text.startswith("--")
    body = text[is_negated:]
    if keyed := _KEYED.fullmatch(body):
        key, values = _ALIASES.get(keyed[1].casefold(), keyed[1].casefold()), keyed[2]
        if key not in KEYS:
            meant = (
                [_INSTEAD[key]] if key in _INSTEAD else [f"{one}:{values}" for one in _near(key)]
            )
            raise FilterError(f"no key {key!r}; there are {', '.join(KEYS)}", place, advice=meant)
        if not values:
            raise FilterError(f"{key}: of what?", place + len(text))
        return _values_term(key, values, place + len(text) - len(values), me, is_negated=is_negated)
    if _BEGUN.fullmatch(body):
        raise FilterError(f"{body} what?", place + len(text))
    if compared := _COMPARED.fullmatch(body):
        key, sign, value = compared.groups()
        number = _duration(value) if key == "age" else number_in(value)
        is_state = _ALIASES.get(key.casefold(), key.casefold()) == "state"
        if number is None and is_state and sign in {"=", "=="}:
            return _values_term(
                "state", value, place + len(text) - len(value), me, is_negated=is_negated
            )
        if number is None and key.startswith(LABEL) and sign in {"=", "=="}:
            globs = [f"{_unquoted(key).removeprefix(LABEL)}={one}" for one in _each(value)]
            return _Term(_one_of("label", globs), is_negated, "label", globs)
        if number is None:
            what = "a time such as 2h" if key == "age" else "a number"
            at = place + text.index(sign) + len(sign)
            raise FilterError(f"{value!r} is not {what}", at, advice=_keyed(key, sign, value))
        name = _unquoted(key)
        return _Term(_compares(name, _OPERATORS[sign], number), is_negated, compared=name)
    if _NAME_GLOB.fullmatch(body):
        return _Term(_one_of("name", [body]), is_negated, "name", [body])
    word = normalize("NFC", _unquoted(body)).casefold()  # decomposed, as typed on macOS
    return _Term(_has(word), is_negated)


def _values_term(key: str, values: str, place: int, me: str, *, is_negated: bool) -> _Term:
    """Build the term `key:a,b`, whose values start at `place`."""
    globs = _each(values)
    if key == "state":
        globs = _states_meant(globs, place)
    if key == "priority":
        _check_priorities(globs, place)
    if key == "user":
        globs = [me if glob == ME and me else glob for glob in globs]
    return _Term(_one_of(key, globs), is_negated, key, globs)


def _each(values: str) -> list[str]:
    return [_unquoted(value) for value in values.split(",")]


def _keyed(key: str, sign: str, value: str) -> Sequence[str]:
    """Convert `memo=rq` to `memo:rq`."""
    known = _ALIASES.get(key.casefold(), key.casefold())
    return [f"{known}:{value}"] if known in KEYS and sign in {"=", "=="} else []


def _near(key: str) -> Sequence[str]:
    found = get_close_matches(key, [*KEYS, *_ALIASES], n=1)
    return [_ALIASES.get(one, one) for one in found]


def _states_meant(globs: Iterable[str], place: int) -> list[str]:
    """Return each value unchanged if it matches a whole word, code or name, else as a prefix."""
    every = [value for state in STATE_WORDS if state for value in state_words(state)]
    meant = []
    for glob in globs:
        found = [one for one in (glob, f"{glob}*") if glob and _fits([one], every)]
        if not found:
            known = ", ".join(
                f"{word.word.casefold()} ({word.code.casefold()})"
                for state, word in STATE_WORDS.items()
                if state
            )
            meant_by = STATE_SYNONYMS.get(glob.casefold())
            advice = [f"state:{meant_by}"] if meant_by else []
            raise FilterError(f"no state {glob!r}; there are {known}", place, advice=advice)
        meant.append(found[0])
    return meant


def _check_priorities(globs: Iterable[str], place: int) -> None:
    words = [enum_word(Priority, number, "PRIORITY_") for number in Priority.values() if number]
    every = [text for word in words for text in (word, f"{word}, preemptible")]
    for glob in globs:
        if not _fits([glob], every):
            raise FilterError(f"no priority {glob!r}; there are {', '.join(words)}", place)


def _fits(globs: Iterable[str], values: Iterable[str]) -> bool:
    fits = re.compile("|".join(translate(glob.casefold()) for glob in globs)).match
    return any(fits(value.casefold()) for value in values)


def _has(word: str) -> _Narrow:
    def narrow(sheet: Sheet, places: Sequence[int], _now: float) -> list[int]:
        texts = sheet.texts()
        return [place for place in places if word in texts[place]]

    return narrow


def _one_of(key: str, globs: Iterable[str]) -> _Narrow:
    fits = re.compile("|".join(translate(glob.casefold()) for glob in globs)).match

    @lru_cache(maxsize=_MOST_REMEMBERED)
    def is_meant(values: tuple[str, ...]) -> bool:
        return any(fits(value.casefold()) for value in values)

    def narrow(sheet: Sheet, places: Sequence[int], _now: float) -> list[int]:
        values = sheet.values(key)
        return [place for place in places if is_meant(values[place])]

    return narrow


def _compares(key: str, holds: Callable[[float, float], bool], bound: float) -> _Narrow:
    def narrow(sheet: Sheet, places: Sequence[int], now: float) -> list[int]:
        numbers = sheet.numbers(key, now)
        return [
            place
            for place in places
            if (number := numbers[place]) is not None and holds(number, bound)
        ]

    return narrow


def _unquoted(text: str) -> str:
    return re.sub(r"\"([^\"]*)\"|'([^']*)'", lambda found: found[1] or found[2] or "", text)


def _duration(text: str) -> float | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None
