"""Cutting files into chunks: whole below 1 MiB, by content above.

Boundaries depend on the bytes alone (FastCDC: 256 KiB at least, 1 MiB on average, 3 MiB at most),
so a changed file shares most of its chunks with its old self, and one chunk always fits in one
message. The numbers are part of the format: with others, nothing already stored would match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE_BELOW = 1 << 20
MIN_CHUNK = 256 << 10
AVERAGE_CHUNK = 1 << 20
MAX_CHUNK = 3 << 20
_WINDOW = 4 * MAX_CHUNK


class Readable(Protocol):
    """What is cut: a file, or a part of one."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""
        ...


def chunks_of(file: Readable) -> Iterator[bytes]:
    """The chunks of `file` from its position to its end, in order; none for an empty file.

    Memory stays within a few windows of 12 MiB whatever the file's size.
    """
    head = _read(file, WHOLE_BELOW + 1)
    if len(head) > WHOLE_BELOW:
        yield from _by_content(file, head)
    elif head:
        yield head


def _by_content(file: Readable, head: bytes) -> Iterator[bytes]:
    from fastcdc import fastcdc

    window = head
    ended = False
    # A window can be used up with the file still going on: four of the longest chunks fill one.
    while window or not ended:
        if not ended:
            window += _read(file, _WINDOW - len(window))
            ended = len(window) < _WINDOW
        offset = 0
        for cut in fastcdc(window, MIN_CHUNK, AVERAGE_CHUNK, MAX_CHUNK):
            # A cut looks at MAX_CHUNK bytes: nearer to the window's end it would depend on
            # where the window happened to end.
            if not ended and len(window) - offset < MAX_CHUNK:
                break
            yield window[offset : offset + cut.length]
            offset += cut.length
        window = window[offset:]


def _read(file: Readable, size: int) -> bytes:
    """`size` bytes, fewer only at the end of the file: one read may give less."""
    pieces = []
    while size and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
