"""Blocks: parts of logs stored outside the history, each an object under its digest.

A block has consecutive bytes of one log, and when each piece of them was received. In the history one row
with a reference replaces the rows packed into it: so positions, gaps and late data for gaps work as
before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from controlplane.history.errors import HistoryCorrupt
from nsml.content.errors import BlobCorrupt
from nsml.content.framing import frame, unframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BLOCK_BYTES: Final = 1 << 20
"""Most log bytes in one block."""
BLOCK_PIECES: Final = 16_384
"""Most pieces in one block: a program may print a byte at a time."""

_MOST_BYTES: Final = 64 << 20


class Piece(NamedTuple):
    """Bytes received at once: positions [first, last]."""

    first: int
    last: int
    received_at: float
    data: bytes


class _Stored(msgspec.Struct, frozen=True, tag_field="kind", tag="log", forbid_unknown_fields=True):
    first: int
    sizes: tuple[int, ...]
    times: tuple[float, ...]
    data: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Stored)


class Block:
    """The pieces of one block, by position."""

    def __init__(self, stored: _Stored) -> None:
        self._starts = tuple(accumulate(stored.sizes, initial=stored.first))
        self._times = stored.times
        self._data = stored.data

    def pieces(self, low: int, high: int) -> Iterator[Piece]:
        """The pieces that overlap positions [low, high), in order."""
        return map(self._piece, self._among(low, high))

    def pieces_back(self, low: int, high: int) -> Iterator[Piece]:
        """The same, in reverse order."""
        return map(self._piece, reversed(self._among(low, high)))

    def _among(self, low: int, high: int) -> range:
        return range(
            max(0, bisect_right(self._starts, low) - 1),
            min(len(self._times), bisect_left(self._starts, high)),
        )

    def _piece(self, number: int) -> Piece:
        start, end = self._starts[number], self._starts[number + 1]
        data = self._data[start - self._starts[0] : end - self._starts[0]]
        return Piece(start, end - 1, self._times[number], data)


Blocks: TypeAlias = "Mapping[str, Block]"
"""By digest."""

NO_BLOCKS: Final[Blocks] = MappingProxyType({})


def pack(pieces: Sequence[Piece]) -> bytes:
    """Encode consecutive pieces as an object, compressed where that helps; deterministic."""
    stored = _Stored(
        first=pieces[0].first,
        sizes=tuple(len(one.data) for one in pieces),
        times=tuple(one.received_at for one in pieces),
        data=b"".join(one.data for one in pieces),
    )
    return frame(_ENCODER.encode(stored))


def unpack(content: bytes) -> Block:
    """Decode a packed block; HistoryCorrupt for anything else."""
    try:
        stored = _DECODER.decode(unframe(content, max_bytes=_MOST_BYTES))
    except (msgspec.DecodeError, BlobCorrupt) as error:
        raise HistoryCorrupt("a block of a log cannot be read", why=str(error)) from error
    return Block(stored)
