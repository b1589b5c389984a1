"""Digests of trees of any size: the encoded manifest, or a list of its pages if large.

An encoded manifest of at most 1 MiB is one blob, whose digest identifies the tree. A larger one is cut by content into
*pages*, stored like any blob, and its *root* identifies the tree: a short canonical list of pages (docs/content.md).
So adding a file changes a page or two. The cuts depend on the encoding alone: a tree has one digest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.content.chunks import MAX_CHUNK, MIN_CHUNK, WHOLE_BELOW, chunks_of
from nsml.content.digests import digest_of
from nsml.content.errors import ManifestRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsml.content.chunks import Readable

VERSION: Final = 2
MOST_ENCODED_BYTES: Final = 4 << 30
"""Limit of an encoding: 10 million files, or 15 TiB in large ones."""
FREELY_REPEATED_BYTES: Final = 64 << 20
MOST_REPEATED: Final = 8
"""Over FREELY_REPEATED_BYTES, an encoding is at most this many times the bytes of its distinct pages.

Only long runs of equal chunks repeat a page. A small root that repeats a few pages would make readers read gigabytes.
"""

_HEAD: Final = b'{"pages":['
_TAIL: Final = b'],"version":%d}' % VERSION
_PAGE: Final = re.compile(rb'\["([0-9a-f]{64})",([1-9][0-9]{0,6})\]')
_PAGE_BYTES: Final = len(b'["",1048576],') + 64
"""The longest item of a root."""


class Page(NamedTuple):
    """A part of an encoding: digest and number of its bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The root of a tree.

    Attributes:
        data: the blob of this digest: the encoding itself, or the list of `pages`.
        pages: in order; empty if `data` is the encoding.
        encoded_bytes: length of the encoding.
    """

    digest: str
    data: bytes
    pages: tuple[Page, ...] = ()
    encoded_bytes: int


class Naming:
    """Reads an encoding page by page and computes its root."""

    def __init__(self, encoding: Readable) -> None:
        from blake3 import blake3

        self._cut = chunks_of(encoding)
        self._whole = blake3()
        self._pages: list[Page] = []
        self._first = b""

    def read(self, _: int = -1) -> bytes:
        """Return the next page, whatever its size; b"" at the end."""
        data = next(self._cut, b"")
        if data:
            self._whole.update(data)
            self._first = b"" if self._pages else data
            self._pages.append(Page(digest_of(data), len(data)))
        return data

    def root(self) -> Root:
        """Return the root; call after reading to the end."""
        size = sum(page.size for page in self._pages)
        if len(self._pages) <= 1:
            return Root(digest=digest_of(self._first), data=self._first, encoded_bytes=size)
        data = _root(self._pages)
        pages = tuple(self._pages)
        return Root(digest=digest_of(data), data=data, pages=pages, encoded_bytes=size)

    def is_named(self, digest: str) -> bool:
        """Whether `digest` is that of the root or, as in earlier versions, of the whole encoding; call at its end."""
        return digest in {self.root().digest, self._whole.hexdigest()}


class Joined:
    """A readable file made of pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes, none at the end."""
        self._refill()
        data, self._left = bytes(self._left[:size]), self._left[size:]
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of `buffer`; return the number of bytes, 0 at the end."""
        self._refill()
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def _refill(self) -> None:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._left = memoryview(piece)


def root_of(encoding: Readable) -> Root:
    """Return the root of an encoding; memory holds only one page and the list of pages. Raises CutsDiffer."""
    naming = Naming(encoding)
    while naming.read():
        pass
    return naming.root()


def is_root(beginning: bytes) -> bool:
    """Whether a blob with this beginning is a list of pages, if it is valid at all."""
    return beginning.startswith(_HEAD)


def pages_in(data: bytes, *, most_bytes: int = MOST_ENCODED_BYTES) -> tuple[Page, ...] | None:
    """Return the pages listed by a root; None for anything else, such as an encoding in one blob.

    Raises ManifestRefused for an invalid list of pages, or one over the limits.
    """
    if not is_root(data):
        return None
    if len(data) > (most_bytes // MIN_CHUNK + 1) * _PAGE_BYTES + len(_HEAD) + len(_TAIL):
        raise ManifestRefused(f"a list of pages of {len(data)} bytes")
    if not data.endswith(_TAIL):
        raise ManifestRefused("a list of pages that is not in canonical form")
    items = data[len(_HEAD) : -len(_TAIL)]
    pages = [Page(digest.decode(), int(size)) for digest, size in _PAGE.findall(items)]
    if _root(pages) != data:
        raise ManifestRefused("a list of pages that is not in canonical form")
    _check(pages, most_bytes)
    return tuple(pages)


def _check(pages: Sequence[Page], most_bytes: int) -> None:
    """Raise ManifestRefused for impossible page sizes, and for too many bytes."""
    size = sum(page.size for page in pages)
    if size <= WHOLE_BELOW:
        raise ManifestRefused(f"pages of {size} bytes together: the tree is named by its encoding")
    if size > most_bytes:
        raise ManifestRefused(f"{size} bytes, over the limit of {most_bytes}")
    if any(page.size > MAX_CHUNK for page in pages) or any(
        page.size < MIN_CHUNK for page in pages[:-1]
    ):
        raise ManifestRefused("a page of a size that no page has")
    different = sum({page.digest: page.size for page in pages}.values())
    if size > max(FREELY_REPEATED_BYTES, MOST_REPEATED * different):
        raise ManifestRefused(f"{size} bytes of repeated pages")


def _root(pages: Iterable[Page]) -> bytes:
    return _HEAD + b",".join(_items(pages)) + _TAIL


def _items(pages: Iterable[Page]) -> Iterator[bytes]:
    for page in pages:
        yield b'["%b",%d]' % (page.digest.encode(), page.size)
