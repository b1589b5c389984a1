"""A pack: concatenated blobs in one file, with a table of contents at its end.

    blob ...   each one frame (nsml.content.framing), in the order of the puts
    footer     one line per blob: digest (32 bytes), start and stored length (8 each), length of its bytes (8)
    end        length of the footer (8 bytes), its BLAKE3 digest (32), and the magic (8), with the version

Numbers are little-endian. The footer repeats the index and serves to rebuild it. So reading a blob needs only its
place, also from a pack with a damaged end.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from controlplane.history.values import PackEntry
from nsml.content.digests import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PACK_BYTES: Final = 16 << 20
"""A pack of this size or more takes no further blob."""
PACKS: Final = "packs"

MAGIC: Final = b"nsmlpk01"
_ENTRY: Final = struct.Struct("<32sQQQ")
_END: Final = struct.Struct("<Q32s8s")
END_BYTES: Final = _END.size

MOST_BLOBS: Final = 8_192
"""Per pack: 448 KiB of footer."""
MOST_FOOTER_BYTES: Final = _ENTRY.size * MOST_BLOBS
"""A longer footer is treated as damage."""


class PackDamaged(ValueError):
    """The footer or end of a pack is invalid; the message says how."""


class PackWriter:
    """Builds a pack in memory.

    Attributes:
        pieces: its bytes so far, without the footer.
        entries: the place of each blob.
        size: total bytes of the pieces.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.entries: list[PackEntry] = []
        self.size = 0

    def add(self, digest: str, framed: Sequence[bytes | memoryview], size: int) -> PackEntry:
        """Append a blob of `size` bytes; `framed` is its frame, in pieces."""
        stored = sum(map(len, framed))
        entry = PackEntry(digest, self.size, stored, size)
        self.pieces += framed
        self.entries.append(entry)
        self.size += stored
        return entry

    def is_full(self, pack_bytes: int) -> bool:
        """Whether the next blob needs a new pack."""
        return self.size >= pack_bytes or len(self.entries) >= MOST_BLOBS

    def finished(self) -> list[bytes | memoryview]:
        """Return the complete pack."""
        return [*self.pieces, footer_of(self.entries)]


def footer_of(entries: Iterable[PackEntry]) -> bytes:
    """Encode the footer and end of a pack."""
    footer = b"".join(
        _ENTRY.pack(bytes.fromhex(one.digest), one.start, one.stored, one.size) for one in entries
    )
    return footer + _END.pack(len(footer), bytes.fromhex(digest_of(footer)), MAGIC)


def footer_length(end: bytes) -> int:
    """Return the length of the footer, which precedes the last END_BYTES of a pack.

    Raises:
        PackDamaged: `end` is not the end of a pack.
    """
    if len(end) != END_BYTES:
        raise PackDamaged("it is shorter than the end of a pack")
    length, _, magic = _END.unpack(end)
    if magic != MAGIC:
        raise PackDamaged("it does not end as a pack does")
    if length > MOST_FOOTER_BYTES or length % _ENTRY.size:
        raise PackDamaged(f"its footer says that it has {length} bytes")
    return int(length)


def entries_of(footer: bytes, end: bytes, blob_bytes: int) -> list[PackEntry]:
    """Decode the footer of a pack with `blob_bytes` bytes before it.

    Raises:
        PackDamaged: the footer is damaged.
    """
    length, digest, _ = _END.unpack(end)
    if len(footer) != length or bytes.fromhex(digest_of(footer)) != digest:
        raise PackDamaged("its footer is not what was written")
    return list(_checked(footer, blob_bytes))


def _checked(footer: bytes, blob_bytes: int) -> Iterator[PackEntry]:
    for digest, start, stored, size in _ENTRY.iter_unpack(footer):
        if start + stored > blob_bytes or not stored:
            raise PackDamaged("its footer names bytes that it does not have")
        yield PackEntry(digest.hex(), start, stored, size)


def key_of(name: str) -> str:
    """Return the file key of a pack."""
    return f"{PACKS}/{name[:2]}/{name[2:]}"


def name_of(key: str) -> str:
    """Return the pack name of a file key."""
    return "".join(key.split("/")[1:])
