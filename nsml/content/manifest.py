"""Manifests: trees of files described by digests, as for dataset versions, bundles and checkpoints.

Encoded as canonical JSON (docs/content.md). The digest of the encoding, or of the root of a large one (`pages.py`),
identifies the tree: the same files have the same digest on every machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Protocol

from nsml.content.chunks import LARGEST_CHUNK, chunks_of
from nsml.content.digests import digest_of, is_digest
from nsml.content.errors import ManifestRefused
from nsml.content.pages import MOST_ENCODED_BYTES, Joined, Root, root_of
from nsml.content.paths import MAX_FOLDERS, SortedPaths

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator

VERSION = 1
ENCODED_HEAD = b'{"entries":['
ENCODED_TAIL = b'],"version":%d}' % VERSION
MODES = {"0644": 0o644, "0755": 0o755}
_MODE_TEXT = {mode: text for text, mode in MODES.items()}
_PIECE_REFS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits of a tree."""

    entries: int = 10_000_000
    bytes: int = 16 << 40
    encoded_bytes: int = MOST_ENCODED_BYTES
    folders: int = MAX_FOLDERS


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One chunk: digest and number of its bytes."""

    digest: str
    size: int


class EntryLike(Protocol):
    """One regular file, as `Entry`; its chunks may be read lazily."""

    @property
    def path(self) -> str:
        """See Entry."""
        ...

    @property
    def mode(self) -> int:
        """See Entry."""
        ...

    @property
    def size(self) -> int:
        """See Entry."""
        ...

    @property
    def chunks(self) -> Iterable[ChunkRef]:
        """See Entry."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One regular file; `mode` is 0o644 or 0o755, an empty file has no chunks."""

    path: str
    mode: int
    size: int
    chunks: tuple[ChunkRef, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A tree of regular files, sorted by the UTF-8 bytes of their paths."""

    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together, duplicates included."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def root(self) -> Root:
        """The root of this tree."""
        return root_of(Joined(self.pieces()))

    @property
    def digest(self) -> str:
        """The digest of this tree."""
        return self.root.digest

    def refs(self) -> Iterator[ChunkRef]:
        """Every chunk in the order of the files, repeats included."""
        for entry in self.entries:
            yield from entry.chunks

    def blobs(self) -> dict[str, int]:
        """Sizes of the distinct chunks by digest, in first-use order."""
        return {ref.digest: ref.size for ref in self.refs()}

    def encode(self) -> bytes:
        """The canonical bytes."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The canonical bytes in pieces of a few hundred kilobytes."""
        return encoded(self.entries)

    def naming_blobs(self, wanted: Collection[str]) -> Generator[tuple[str, bytes], None, None]:
        """Yield digest and bytes of the wanted manifest blobs: pages, then the root.

        Pages are encoded again, so that few are in memory.
        """
        if any(page.digest in wanted for page in self.root.pages):
            pages = chunks_of(Joined(self.pieces()))
            for page, data in zip(self.root.pages, pages, strict=True):
                if page.digest in wanted:
                    yield page.digest, data
        if self.root.digest in wanted:
            yield self.root.digest, self.root.data

    def check(self, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raise ManifestRefused or PathRefused unless this tree may be extracted."""
        if len(self.entries) > limits.entries:
            raise ManifestRefused(f"{len(self.entries)} files, over the limit of {limits.entries}")
        paths = SortedPaths(limits.folders)
        total = 0
        for entry in self.entries:
            paths.add(entry.path)
            _check_entry(entry)
            total += entry.size
        if total > limits.bytes:
            raise ManifestRefused(f"{total} bytes, over the limit of {limits.bytes}")


def encoded(entries: Iterable[EntryLike]) -> Iterator[bytes]:
    """Encode sorted entries canonically, in pieces of a few hundred kilobytes."""
    yield ENCODED_HEAD
    yield from encoded_entries(entries)
    yield ENCODED_TAIL


def encoded_entries(entries: Iterable[EntryLike], *, is_first: bool = True) -> Iterator[bytes]:
    """Encode some of the entries, without head and tail; `is_first`: no entries precede them."""
    some: list[str] = []
    held = 0
    for number, entry in enumerate(entries):
        some.append('{"chunks":[' if is_first and not number else ',{"chunks":[')
        chunks, before = iter(entry.chunks), ""
        while refs := list(islice(chunks, _PIECE_REFS)):
            some += (before, ",".join([f'["{ref.digest}",{ref.size}]' for ref in refs]))
            before = ","
            if (held := held + len(refs)) >= _PIECE_REFS:
                yield "".join(some).encode()
                some, held = [], 0
        mode, path = _MODE_TEXT[entry.mode], encode_basestring(entry.path)
        some.append(f'],"mode":"{mode}","path":{path},"size":{entry.size}}}')
        held += 1
    yield "".join(some).encode()


def build(entries: list[Entry]) -> Manifest:
    """Build and check a manifest from `entries` in any order."""
    manifest = Manifest(entries=tuple(sorted(entries, key=lambda entry: entry.path.encode())))
    manifest.check()
    return manifest


def decode(data: bytes, *, digest: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Manifest:
    """Decode and fully check a manifest.

    Refuses (ManifestRefused, PathRefused) anything but the canonical encoding of a valid
    tree, and bytes that do not match `digest`, if given.
    """
    if len(data) > limits.encoded_bytes:
        raise ManifestRefused(f"{len(data)} bytes, over the limit of {limits.encoded_bytes}")
    if digest is not None and digest_of(data) != digest:
        raise ManifestRefused(f"the bytes are not what {digest[:16]} names")
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ManifestRefused(f"not JSON: {error}") from error
    if not isinstance(document, dict) or set(document) != {"entries", "version"}:
        raise ManifestRefused("not an object of entries and version")
    if document["version"] != VERSION:
        raise ManifestRefused(f"version {document['version']!r}; this program reads {VERSION}")
    manifest = Manifest(entries=tuple(_entry(item) for item in _list(document["entries"])))
    manifest.check(limits)
    if manifest.encode() != data:
        raise ManifestRefused("not in canonical form")
    return manifest


def _entry(item: Any) -> Entry:
    if not isinstance(item, dict) or set(item) != {"chunks", "mode", "path", "size"}:
        raise ManifestRefused("an entry is not an object of chunks, mode, path and size")
    path, mode, size = item["path"], item["mode"], item["size"]
    if not isinstance(path, str) or not isinstance(mode, str) or type(size) is not int:
        raise ManifestRefused("an entry has a field of the wrong type")
    if mode not in MODES:
        raise ManifestRefused(f"mode {mode!r} of {path!r} is neither 0644 nor 0755")
    chunks = tuple(_ref(pair) for pair in _list(item["chunks"]))
    return Entry(path=path, mode=MODES[mode], size=size, chunks=chunks)


def _ref(pair: Any) -> ChunkRef:
    match pair:
        case [str(digest), size] if type(size) is int:
            return ChunkRef(digest, size)
    raise ManifestRefused("a chunk is not a pair of digest and size")


def _check_entry(entry: Entry) -> None:
    if entry.mode not in _MODE_TEXT:
        raise ManifestRefused(f"mode {entry.mode:o} of {entry.path!r} is neither 0644 nor 0755")
    total = 0
    for ref in entry.chunks:
        if not is_digest(ref.digest):
            raise ManifestRefused(f"{entry.path!r} names a chunk that is no digest")
        if not 0 < ref.size <= LARGEST_CHUNK:
            raise ManifestRefused(f"{entry.path!r} has a chunk of {ref.size} bytes")
        total += ref.size
    if total != entry.size:
        raise ManifestRefused(f"the chunks of {entry.path!r} hold {total} bytes, not {entry.size}")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ManifestRefused("a list is missing")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)
