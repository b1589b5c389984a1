"""Messages in a byte stream, each prefixed with its length: four bytes, big-endian."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = struct.Struct(">I")
MOST_BYTES: Final = 256 << 10
"""Largest message."""


class NotFrames(ValueError):
    """The bytes are not valid frames."""


def framed(message: bytes) -> bytes:
    """Return a message with its length prefix."""
    return _HEADER.pack(len(message)) + message


class Frames:
    """Incremental parser of a stream."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether there is no partial message."""
        return not self._held

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages completed by `data`. Raises NotFrames."""
        if not self._held and _end_of_first(data) == len(data):  # usual case: not copied twice
            yield data[_HEADER.size :]
            return
        self._held += data
        while (end := _end_of_first(self._held)) is not None:
            yield bytes(memoryview(self._held)[_HEADER.size : end])
            del self._held[:end]


def first_of(held: bytes) -> tuple[bytes, bytes] | None:
    """Return the first message and the bytes after it; None while it is incomplete. Raises NotFrames."""
    end = _end_of_first(held)
    return None if end is None else (held[_HEADER.size : end], held[end:])


def _end_of_first(held: bytes | bytearray) -> int | None:
    """Return the end of the first message; None while it is incomplete. Raises NotFrames."""
    if len(held) < _HEADER.size:
        return None
    (size,) = _HEADER.unpack_from(held)
    if size > MOST_BYTES:
        raise NotFrames(f"a message of {size} bytes")
    end: int = _HEADER.size + size
    return end if len(held) >= end else None
