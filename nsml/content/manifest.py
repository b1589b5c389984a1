"""The description of a tree of files by digests: what names a dataset version, bundle, checkpoint.

Encoded as canonical JSON (docs/content.md), which makes the digest of the encoding the name of the
tree: the same files give the same name on every machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsml.content.chunks import LARGEST_CHUNK
from nsml.content.digests import digest_of, is_digest
from nsml.content.errors import ManifestRefused
from nsml.content.paths import MAX_FOLDERS, PathSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSION = 1
MODES = {"0644": 0o644, "0755": 0o755}
_MODE_TEXT = {mode: text for text, mode in MODES.items()}
_ENCODED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large a tree may be before it is refused."""

    entries: int = 1_000_000
    bytes: int = 16 << 40
    encoded_bytes: int = 64 << 20
    """As large as a blob may be that the control plane takes."""
    folders: int = MAX_FOLDERS


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One chunk: the digest of its bytes and their number."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One regular file; `mode` is 0o644 or 0o755, an empty file has no chunks."""

    path: str
    mode: int
    size: int
    chunks: tuple[ChunkRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A tree of regular files, sorted by the UTF-8 bytes of their paths."""

    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together, repeats counted."""
        return sum(entry.size for entry in self.entries)

    @property
    def digest(self) -> str:
        """The name of this tree."""
        return digest_of(self.encode())

    def refs(self) -> Iterator[ChunkRef]:
        """Every chunk in the order of the files, repeats included."""
        for entry in self.entries:
            yield from entry.chunks

    def blobs(self) -> dict[str, int]:
        """Each distinct chunk once, in first-use order: digest to size."""
        return {ref.digest: ref.size for ref in self.refs()}

    def encode(self) -> bytes:
        """The canonical bytes."""
        # Some at a time: the same as lists and objects takes several times the memory.
        some = [
            _canonical(self.entries[start : start + _ENCODED_AT_ONCE])
            for start in range(0, len(self.entries), _ENCODED_AT_ONCE)
        ]
        return b'{"entries":[%b],"version":%d}' % (b",".join(some), VERSION)

    def check(self, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raise ManifestRefused or PathRefused unless this is a tree that may be laid out."""
        if len(self.entries) > limits.entries:
            raise ManifestRefused(f"{len(self.entries)} files, over the limit of {limits.entries}")
        paths = PathSet(limits.folders)
        before = b""
        total = 0
        for entry in self.entries:
            paths.add(entry.path)
            _check_entry(entry)
            key = entry.path.encode()
            if key < before:
                raise ManifestRefused(f"{entry.path!r} is out of order")
            before = key
            total += entry.size
        if total > limits.bytes:
            raise ManifestRefused(f"{total} bytes, over the limit of {limits.bytes}")


def build(entries: list[Entry]) -> Manifest:
    """A checked manifest of `entries` in any order."""
    manifest = Manifest(entries=tuple(sorted(entries, key=lambda entry: entry.path.encode())))
    manifest.check()
    return manifest


def decode(data: bytes, *, digest: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Manifest:
    """The manifest in `data`, checked in full.

    Refuses (ManifestRefused, PathRefused) anything but the canonical encoding of an acceptable
    tree, and, where `digest` is given, bytes that it does not name.
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


def _canonical(entries: Iterable[Entry]) -> bytes:
    """Their encodings, with commas between them."""
    document = [
        {
            "chunks": [[ref.digest, ref.size] for ref in entry.chunks],
            "mode": _MODE_TEXT[entry.mode],
            "path": entry.path,
            "size": entry.size,
        }
        for entry in entries
    ]
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return text[1:-1].encode()
