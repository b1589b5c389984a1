"""Cutting files into chunks: whole up to 1 MiB, by content above.

Boundaries depend on the bytes alone (FastCDC of 2020, normalization level 2: 64 KiB at least, 256 KiB on average, 1 MiB
at most), so a changed file shares most chunks with its old version, and a chunk fits into one message. The numbers
are part of the format: with others, no stored chunk would match. So a library with other cuts is refused.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from nsml.content.errors import CutsDiffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyfastcdc import FastCDC

WHOLE_BELOW: Final = 1 << 20
MIN_CHUNK: Final = 64 << 10
AVERAGE_CHUNK: Final = 256 << 10
MAX_CHUNK: Final = 1 << 20
LARGEST_CHUNK: Final = 3 << 20
"""Largest chunk allowed in a manifest: earlier versions cut files into chunks of up to 3 MiB."""
_LEVEL: Final = 2
_WINDOW: Final = 8 * MAX_CHUNK

_SAMPLE_NOISE: Final = 2 << 20
_SAMPLE_ZEROS: Final = (1 << 20) + (1 << 19)
SAMPLE_CUTS: Final = (
    *(261_419, 293_773, 271_770, 263_638, 262_309, 303_417, 172_114),
    *(1_048_576, 793_000),
)
"""Lengths of the chunks of `sample`."""


class Readable(Protocol):
    """The input to cut: a file, or a part of one."""

    def read(self, size: int, /) -> bytes | None:
        """Read at most `size` bytes, none at the end."""
        ...

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the beginning of `buffer`; return the number of bytes, 0 at the end."""
        ...


def chunks_of(file: Readable) -> Iterator[bytes]:
    """Cut `file` from its position to its end into chunks, in order; none for an empty file.

    Uses a few windows of 8 MiB whatever the file's size. Raises CutsDiffer.
    """
    head = _read(file, WHOLE_BELOW + 1)
    if len(head) > WHOLE_BELOW:
        yield from _by_content(file, head)
    elif head:
        yield head


def sample() -> bytes:
    """Return bytes with known cuts: noise, and a run of zeros, which gives only longest chunks."""
    from blake3 import blake3

    return blake3(b"nsml").digest(length=_SAMPLE_NOISE) + bytes(_SAMPLE_ZEROS)


def _by_content(file: Readable, head: bytes) -> Iterator[bytes]:
    cutter = _cutter()
    window = memoryview(bytearray(_WINDOW))
    held = len(head)
    window[:held] = head
    del head
    ended = False
    # A window can be used up before the file ends: eight of the longest chunks fill one.
    while held or not ended:
        while not ended and held < _WINDOW:
            more = file.readinto(window[held:]) or 0
            ended = not more
            held += more
        cuts = cutter.cut_buf(window[:held])
        offset = 0
        # A cut looks at MAX_CHUNK bytes: nearer to the window's end, it would depend on
        # the position of that end.
        while held - offset >= (1 if ended else MAX_CHUNK):
            end = offset + next(cuts).length
            yield bytes(window[offset:end])
            offset = end
        held -= offset
        window[:held] = bytes(window[offset : offset + held])


@cache
def _cutter() -> FastCDC:
    """Return the library's cutter, checked to cut as the stored data was."""
    import pyfastcdc

    cutter = pyfastcdc.FastCDC(
        AVERAGE_CHUNK, min_size=MIN_CHUNK, max_size=MAX_CHUNK, normalized_chunking=_LEVEL
    )
    if tuple(cut.length for cut in cutter.cut_buf(sample())) != SAMPLE_CUTS:
        raise CutsDiffer(
            f"pyfastcdc {pyfastcdc.__version__} cuts files otherwise than the format of nsml says;"
            " nothing was sent. Install the version that nsml was tested with: pip install pyfastcdc==0.3.1"
        )
    return cutter


def _read(file: Readable, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file: a single read may return less."""
    pieces = []
    while size and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
