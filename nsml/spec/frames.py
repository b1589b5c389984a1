"""Messages in a stream of bytes: each behind its length in four bytes, the most significant first."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = struct.Struct(">I")
MOST_BYTES: Final = 256 << 10
"""Of one message."""


class NotFrames(ValueError):
    """The bytes are no such messages."""


def framed(message: bytes) -> bytes:
    """A message as it goes into the stream."""
    return _HEADER.pack(len(message)) + message


class Frames:
    """What comes out of a stream."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no message has begun and is not whole."""
        return not self._held

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole with `data`. Raises NotFrames."""
        if not self._held and _end_of_first(data) == len(data):  # most are: not copied twice
            yield data[_HEADER.size :]
            return
        self._held += data
        while (end := _end_of_first(self._held)) is not None:
            yield bytes(memoryview(self._held)[_HEADER.size : end])
            del self._held[:end]


def first_of(held: bytes) -> tuple[bytes, bytes] | None:
    """The first message and what follows it, which may be no message; None while it is not whole. Raises NotFrames."""
    end = _end_of_first(held)
    return None if end is None else (held[_HEADER.size : end], held[end:])


def _end_of_first(held: bytes | bytearray) -> int | None:
    """Where the first message ends; None while it is not whole. Raises NotFrames."""
    if len(held) < _HEADER.size:
        return None
    (size,) = _HEADER.unpack_from(held)
    if size > MOST_BYTES:
        raise NotFrames(f"a message of {size} bytes")
    end: int = _HEADER.size + size
    return end if len(held) >= end else None
