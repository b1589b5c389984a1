"""The configuration that programs report: `config` records, written by user programs, so that nothing in them is trusted."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from controlplane.checkpoints.lost_uploads import plain
from controlplane.history.records import (
    LATEST_TIME,
    MAX_DEPTH,
    MAX_NAME_CHARS,
    ORIGIN_PATTERN,
    origin_of,
    placed_records_of_kind,
)
from controlplane.history.values import ConfigValue
from nsml._path_text import recorded_name
from nsml.spec.reported_config import MOST_BYTES, MOST_LEAVES, is_secret
from nsml.spec.variables import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from controlplane.history.values import Chunk

MOST_RUN_CHARS: Final = 128
MOST_KEY_CHARS: Final = 256
"""Longest key at the top level; a database has it in an index."""
MOST_TEXT_CHARS: Final = 4_096
_CUT: Final = "…"
_LARGEST_INTEGER: Final = 1 << 1_023
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


class _Told(msgspec.Struct):
    """A record of a configuration: no field is trusted."""

    kind: Literal["config"]
    time: Annotated[float, msgspec.Meta(ge=0, lt=LATEST_TIME)]
    origin: Annotated[str, msgspec.Meta(pattern=ORIGIN_PATTERN)]
    values: dict[str, Any]
    run: str = ""


_DECODER: Final = msgspec.json.Decoder(_Told)
_VALUES_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Config:
    """The values of one record; `is_cut`: whole keys of it were left out."""

    session_id: str
    values: tuple[ConfigValue, ...]
    is_cut: bool


def configs_in(chunk: Chunk) -> Iterator[Config]:
    """Yield the configurations in a chunk's records."""
    stream = chunk.stream
    for position, told in placed_records_of_kind(chunk, "config", _DECODER):
        yield config_of(
            stream.session_id,
            (told.origin, told.run),
            told.values,
            order=(stream.attempt, told.time, position),
        )


def restored_config(session_id: str, origin: str, run: str, text: str) -> Config:
    """Return the configuration of a run from a backup: anybody's work. Raises ValueError."""
    if not origin_of(origin):
        raise ValueError("its origin is none")
    if len(text) > 2 * MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        values = _VALUES_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError("it is no JSON object") from error
    return config_of(session_id, (origin, run), values)


def config_of(
    session_id: str,
    whose: tuple[str, str],
    values: Mapping[str, Any],
    *,
    order: tuple[int, float, int] = (0, 0.0, 0),
) -> Config:
    """Clean the values of a run: at most MOST_LEAVES and MOST_BYTES, with secrets hidden.

    `whose`: origin and run. `order`: attempt, time and position of the record.
    """
    origin, run = whose
    run = recorded_name(run[: MOST_RUN_CHARS + 1])
    is_cut = len(run) > MOST_RUN_CHARS
    attempt, time, position = order
    room = MOST_BYTES
    left = MOST_LEAVES
    found: dict[str, ConfigValue] = {}
    for key, value in islice(values.items(), MOST_LEAVES):
        name = recorded_name(key[: MAX_NAME_CHARS + 1])
        if len(name) > MOST_KEY_CHARS or left <= 0:
            is_cut = True
            continue
        cleaning = _Cleaning(left)
        kept = cleaning.clean(name, value, MAX_DEPTH - 1)
        if kept is _NOTHING:
            is_cut = True
            continue
        one = ConfigValue(
            session_id=session_id,
            origin=origin,
            run=run[:MOST_RUN_CHARS],
            name=name,
            value=json.dumps(kept, ensure_ascii=False),
            leaves=max(left - cleaning.left, 1),
            is_cut=cleaning.is_cut,
            attempt=attempt,
            time=time,
            position=position,
        )
        room -= one.size_bytes
        if room < 0:
            is_cut = True
            break
        left -= one.leaves
        found[name] = one
    is_cut |= len(values) > MOST_LEAVES
    return Config(session_id, tuple(found.values()), is_cut)


_NOTHING: Final = object()
"""In place of a value that cannot be kept."""


class _Cleaning:
    """Cleans one value; `left`: how many flattened names are left, `is_cut`: parts were left out."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.is_cut = False

    def clean(self, name: str, value: Any, depth: int) -> Any:
        """Return a value of this flattened name; _NOTHING if it cannot be kept."""
        if type(value) is dict and value:
            return self._object(name, value, depth)
        if self.left <= 0 or len(name) > MAX_NAME_CHARS:
            self.is_cut = True
            return _NOTHING
        self.left -= 1
        if _is_hidden(name, value):
            return HIDDEN
        return self._element(name, value, depth)

    def _object(self, name: str, value: dict[str, Any], depth: int) -> Any:
        if depth <= 0:
            self.is_cut = True
            return _NOTHING
        found = {}
        for key, one in value.items():
            if self.left <= 0:
                self.is_cut = True
                break
            its = recorded_name(key[: MAX_NAME_CHARS + 1])
            kept = self.clean(f"{name}.{its}", one, depth - 1)
            if kept is not _NOTHING:
                found[its] = kept
        return found or _NOTHING

    def _element(self, name: str, value: Any, depth: int) -> Any:
        """Clean a text, a number, a list, or what is in one."""
        match value:
            case str():
                if len(value) > MOST_TEXT_CHARS:
                    self.is_cut = True
                    value = value[:MOST_TEXT_CHARS] + _CUT
                return plain(value)
            case list():
                return self._list(name, value, depth)
            case dict():
                return self._in_list(name, value, depth)
            case int() if abs(value) >= _LARGEST_INTEGER:
                return self._left_out()
            case float() if not math.isfinite(value):
                return _NOT_FINITE.get(value, "NaN")
        return value

    def _list(self, name: str, value: list[Any], depth: int) -> Any:
        if depth <= 0:
            return self._left_out()
        kept = (self._element(name, one, depth - 1) for one in value)
        return [one for one in kept if one is not _NOTHING]

    def _in_list(self, name: str, value: dict[str, Any], depth: int) -> Any:
        """Clean an object inside a list, which is part of the list's one value."""
        if depth <= 0 and value:
            return self._left_out()
        found = {}
        for key, one in value.items():
            its = recorded_name(key[: MAX_NAME_CHARS + 1])
            if len(its) > MAX_NAME_CHARS:
                self.is_cut = True
            elif _is_hidden(its, one):
                found[its] = HIDDEN
            elif (kept := self._element(f"{name}.{its}", one, depth - 1)) is not _NOTHING:
                found[its] = kept
        return found

    def _left_out(self) -> Any:
        self.is_cut = True
        return _NOTHING


def _is_hidden(name: str, value: Any) -> bool:
    """Whether it looks like a secret: texts and lists, as numbers are none."""
    return type(value) in {str, list} and bool(value) and is_secret(name)
