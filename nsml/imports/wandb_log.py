"""Reads the log of a W&B run, `run-ID.wandb`: a LevelDB log of protobuf messages, decoded by hand.

A log may be damaged, cut off or somebody's forgery: what cannot be read is skipped, and reading goes on at the next block.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from nsml._echo._event_files import BadMessageError, fields

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_RECORD_BYTES: Final = 64 << 20
_MAGIC: Final = b":W&B\xe1\xbe"
_HEADER: Final = struct.Struct("<IHB")
_BLOCK_BYTES: Final = 32 << 10
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_CHECKSUMS: Final = {kind: zlib.crc32(bytes([kind])) for kind in (_WHOLE, _FIRST, _MIDDLE, _LAST)}
_MOST_ITEMS: Final = 100_000
_MOST_DEPTH: Final = 15
_double = struct.Struct("<d").unpack

RUN: Final = 17
HISTORY: Final = 2
SUMMARY: Final = 3
CONFIG: Final = 5
METRIC: Final = 12
OUTPUT: Final = 4
ARTIFACT: Final = 8
OUTPUT_RAW: Final = 13
EXIT: Final = 18
ENVIRONMENT: Final = 26
"""Numbers of the kinds of records."""


class NoLog(ValueError):
    """The file is no log of W&B."""


class Log:
    """Reading one log.

    Attributes:
        damaged: places at which records could not be read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.damaged = 0

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield kind and content of each record. Raises NoLog, OSError."""
        header = self._file.read(_HEADER.size)
        if not header.startswith(_MAGIC):
            raise NoLog("it is no log of W&B")
        for data in self._messages():
            try:
                for number, wire, content in fields(data):
                    if wire == _BYTES and number in _KINDS:
                        yield number, content
            except BadMessageError:
                self.damaged += 1

    def _messages(self) -> Iterator[bytes]:
        held: list[bytes] | None = None
        size = 0
        room = _BLOCK_BYTES - _HEADER.size
        while block := self._file.read(room):
            is_last = len(block) < room
            room = _BLOCK_BYTES
            at = 0
            while at + _HEADER.size <= len(block):
                checksum, length, kind = _HEADER.unpack_from(block, at)
                if not (checksum or length or kind):
                    break  # room that was reserved
                begin, at = at + _HEADER.size, at + _HEADER.size + length
                if at > len(block) and is_last:
                    return  # cut off: its program was killed
                data = block[begin:at]
                is_valid = (
                    at <= len(block)
                    and kind in _CHECKSUMS
                    and zlib.crc32(data, _CHECKSUMS[kind]) == checksum
                )
                if not is_valid:
                    self.damaged += 1
                    held = None
                    break
                if kind in {_WHOLE, _FIRST}:
                    held, size = [], 0
                if held is None:
                    continue  # the rest of a damaged one
                size += length
                if size > MOST_RECORD_BYTES:
                    self.damaged += 1
                    held = None
                    continue
                held.append(data)
                if kind in {_WHOLE, _LAST}:
                    yield b"".join(held)
                    held = None


_KINDS: Final = frozenset(
    {RUN, HISTORY, SUMMARY, CONFIG, METRIC, OUTPUT, ARTIFACT, OUTPUT_RAW, EXIT, ENVIRONMENT}
)


def parsed(data: bytes) -> dict[int, list[Any]]:
    """Return the values of each field of a message; {} if it is none. Numbers are unsigned."""
    found: dict[int, list[Any]] = {}
    try:
        for number, _, value in fields(data):
            found.setdefault(number, []).append(value)
    except BadMessageError:
        return {}
    return found


def text_in(message: dict[int, list[Any]], number: int) -> str:
    """Return a field of text; "" without it."""
    value = message.get(number, [b""])[-1]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def number_in(message: dict[int, list[Any]], number: int) -> int:
    """Return a field of a signed integer; 0 without it."""
    value = message.get(number, [0])[-1]
    if not isinstance(value, int):
        return 0
    return value - (1 << 64) if value >= 1 << 63 else value


def time_in(message: dict[int, list[Any]], number: int) -> float:
    """Return a timestamp in Unix seconds; 0 without it."""
    value = message.get(number, [b""])[-1]
    stamp = parsed(value) if isinstance(value, bytes) else {}
    return number_in(stamp, 1) + number_in(stamp, 2) / 1e9


def messages_in(message: dict[int, list[Any]], number: int) -> list[bytes]:
    """Return the messages in a repeated field."""
    return [one for one in message.get(number, []) if isinstance(one, bytes)][:_MOST_ITEMS]


def set_items(into: dict[str, Any], items: list[bytes]) -> None:
    """Set the values of items of a history, summary or configuration: their keys are nested, their values JSON."""
    for data in items:
        item = parsed(data)
        path = [one.decode("utf-8", "replace") for one in messages_in(item, 2)]
        path = path or [text_in(item, 1)]
        value = _value_of(item)
        if value is _NOTHING or len(path) > _MOST_DEPTH:
            continue
        place = into
        for name in path[:-1]:
            below = place.get(name)
            if not isinstance(below, dict):
                below = place[name] = {}
            place = below
        place[path[-1]] = value


def remove_items(into: dict[str, Any], items: list[bytes]) -> None:
    """Remove the top-level values that items name."""
    for data in items:
        item = parsed(data)
        path = [one.decode("utf-8", "replace") for one in messages_in(item, 2)]
        if len(path) < 2:
            into.pop(path[0] if path else text_in(item, 1), None)


_NOTHING: Final = object()


def _value_of(item: dict[int, list[Any]]) -> Any:
    """Return the value of an item: JSON, or of a type of its own."""
    for number in (16, 8):
        if number in item:
            try:
                return json.loads(text_in(item, number))
            except (ValueError, RecursionError):
                return _NOTHING
    if 4 in item:
        return bool(number_in(item, 4))
    if 5 in item:
        number = item[5][-1]
        return (number >> 1) ^ -(number & 1) if isinstance(number, int) else _NOTHING
    if 6 in item:
        value = item[6][-1]
        return _double(value)[0] if isinstance(value, bytes) and len(value) == 8 else _NOTHING
    return text_in(item, 7) if 7 in item else _NOTHING
