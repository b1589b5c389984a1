"""The digests of a manifest, sorted and unique: 32 bytes each, on disk if they are many.

`manifest_reader.py` collects them in bounded memory, whatever their number.
"""

from __future__ import annotations

import mmap
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import IO, TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

DIGEST_BYTES: Final = 32
IN_MEMORY_BYTES: Final = 1 << 20
"""Files up to this size are read into memory."""

_SIZE_BYTES: Final = 3
_RECORD_BYTES: Final = DIGEST_BYTES + _SIZE_BYTES
_PARTS: Final = 256
"""Digests are grouped by their first byte."""
_PART_BYTES: Final = 64 << 10
_WRITTEN_BYTES: Final = 1 << 20


class Members(AbstractSet[str]):
    """The digests in a file, sorted and unique. The file may be closed and unlinked afterwards."""

    def __init__(self, file: IO[bytes]) -> None:
        size = file.seek(0, 2)
        self._digests = _Digests(
            mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            if size > IN_MEMORY_BYTES
            else _read(file)
        )

    @classmethod
    def _from_iterable(cls, it: Iterable[str]) -> frozenset[str]:  # type: ignore[override]
        return frozenset(it)

    def __contains__(self, digest: object) -> bool:
        if not isinstance(digest, str):
            return False
        key = bytes.fromhex(digest)
        place = bisect_left(self._digests, key)
        return place < len(self._digests) and self._digests[place] == key

    def __iter__(self) -> Iterator[str]:
        return (digest.hex() for digest in self._digests)

    def __len__(self) -> int:
        return len(self._digests)


class _Digests(Sequence[bytes]):
    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._count = len(data) // DIGEST_BYTES

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> bytes:  # type: ignore[override]
        if place >= self._count:
            raise IndexError(place)
        return self._data[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]


class MembersBuilder:
    """Collects digests with sizes in any order; `write` writes the file for Members. A context manager.

    They are kept in a temporary file, grouped by their first byte, so that one group at a time is sorted.
    """

    def __init__(self) -> None:
        self._parts = [bytearray() for _ in range(_PARTS)]
        self._blocks: list[list[tuple[int, int]]] = [[] for _ in range(_PARTS)]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, digest: str, size: int) -> None:
        """Add a digest; `size`: in bytes, below 16 MiB."""
        record = bytes.fromhex(digest) + size.to_bytes(_SIZE_BYTES, "big")
        part = self._parts[record[0]]
        part += record
        if len(part) >= _PART_BYTES:
            some = b"".join({*_records(part)})  # a file of zeros is one chunk, over and over
            self._blocks[record[0]].append((self._file.tell(), len(some)))
            self._file.write(some)
            part.clear()

    def write(self, file: IO[bytes]) -> int:
        """Write each digest once; return the sum of sizes, with the min size of each digest."""
        total, held = 0, bytearray()
        for number, part in enumerate(self._parts):
            for record in _first_of_each(self._part(number) + part):
                held += record[:DIGEST_BYTES]
                total += int.from_bytes(record[DIGEST_BYTES:], "big")
            if len(held) >= _WRITTEN_BYTES:
                file.write(held)
                held.clear()
        file.write(held)
        file.flush()
        return total

    def _part(self, number: int) -> bytes:
        pieces = []
        for place, size in self._blocks[number]:
            self._file.seek(place)
            pieces.append(self._file.read(size))
        return b"".join(pieces)


def _records(data: bytes | bytearray) -> Iterator[bytes]:
    return (bytes(data[at : at + _RECORD_BYTES]) for at in range(0, len(data), _RECORD_BYTES))


def _first_of_each(data: bytes) -> Iterator[bytes]:
    before = b""
    for record in sorted(_records(data)):
        if record[:DIGEST_BYTES] != before:
            before = record[:DIGEST_BYTES]
            yield record


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
