"""In-place datasets: files on a shared file system, not copied, and a list to detect changes.

The list is the only file of an ordinary tree, so that it is stored, shared and removed like any version: a line of JSON
per file, `[path, size, mtime_ns, digest]`, sorted by path. Links inside the folder are followed, as in a push.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from nsml.content.digests import is_digest
from nsml.content.errors import ChangedInPlace, ContentError, EmptyFolder, PackRefused, TargetExists
from nsml.content.listing import open_root
from nsml.content.manifest import ChunkRef, Entry
from nsml.content.ordered_listing import OrderedListing
from nsml.content.paths import native_parts, split_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from random import Random

    from nsml.content.listing import FolderFile
    from nsml.content.safe_paths import Beneath

LIST_NAME: Final = "in-place.jsonl"
MOST_LIST_BYTES: Final = 512 << 20
"""Some 3 million files: a node reads them line by line, in about a minute."""
SAMPLED_FILES: Final = 32
SAMPLED_BYTES: Final = 256 << 20
"""Limits of the content check at session start, in files and bytes; sampled anew each time."""
_MOST_BYTES: Final = 1 << 60
_READ_BYTES: Final = 4 << 20
_MOST_LINE_BYTES: Final = 32 << 10
"""More than the longest path takes with every byte escaped."""
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as it was when the dataset was added."""

    path: str
    size: int
    mtime_ns: int
    digest: str


@dataclass(frozen=True, slots=True)
class Change:
    """A changed file; `what` says how: missing, new, or another size, time or content."""

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class Changes:
    """The number of changed files, and the first few by path."""

    count: int
    first: tuple[Change, ...]


def look_at(root: Path, progress: Callable[[int, int], None] | None = None) -> list[ListedFile]:
    """Read all files of a folder; calls `progress` with bytes done and bytes in total.

    Raises as `list_folder`, and ContentError for a file that changes meanwhile.
    """
    found: list[ListedFile] = []
    done = 0
    with open_root(root) as folder:
        there = list(OrderedListing(root, folder))
        if not there:
            raise EmptyFolder(".", "the folder has no files")
        size = sum(one.size for one in there)
        for one in there:
            digest = _digest(folder, one)
            found.append(ListedFile(one.path, one.size, one.version[0], digest))
            done += one.size
            if progress is not None:
                progress(done, size)
    return found


def encode(files: Iterable[ListedFile]) -> bytes:
    """Encode the list for storage."""
    rows = ([one.path, one.size, one.mtime_ns, one.digest] for one in files)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def read_list(file: Path) -> Iterator[ListedFile]:
    """Read an untrusted list line by line; raises ContentError."""
    try:
        opened = file.open("rb")
    except FileNotFoundError as error:
        raise ContentError("the version has no list of the dataset's files") from error
    with opened:
        if os.fstat(opened.fileno()).st_size > MOST_LIST_BYTES:
            raise ContentError("the list of the dataset's files is too long")
        last = ""
        while line := opened.readline(_MOST_LINE_BYTES):
            one = _listed(line)
            if one is None or one.path <= last:
                raise ContentError("the list of the dataset's files cannot be read")
            last = one.path
            yield one


def entries_of(listed: Iterable[ListedFile]) -> Iterator[Entry]:
    """Convert to tree entries of one chunk each, to compare two lists."""
    for one in listed:
        chunk = ChunkRef(digest=one.digest, size=one.size)
        yield Entry(path=one.path, mode=0o644, size=one.size, chunks=(chunk,))


def _listed(line: bytes) -> ListedFile | None:
    """Parse a line of the list; None if it is invalid."""
    try:
        row = json.loads(line)
        if [type(one) for one in row] != [str, int, int, str]:
            return None
        found = ListedFile(*row)
        split_path(found.path)
    except (ValueError, TypeError, RecursionError, ContentError):
        return None
    return found if is_digest(found.digest) and 0 <= found.size < _MOST_BYTES else None


def changes(root: Path, listed: Iterable[ListedFile], rng: Random) -> Changes:
    """Compare a folder with the list: sizes and times of all files, and the content of some.

    `listed` must be sorted by path; it is read once, and streamed like the folder.
    Raises as `list_folder`. Blocking: a stat of each file, and at most SAMPLED_BYTES read.
    """
    first: list[Change] = []
    count = 0
    sample = _Sample(rng)
    with open_root(root) as folder:
        for path, was, now in _paired(listed, OrderedListing(root, folder)):
            if what := _difference(was, now):
                count += 1
                if len(first) < _NAMED:
                    first.append(Change(path, what))
            elif was is not None and now is not None:
                sample.offer(was, now)
        for was, now in sample.files():
            if _digest(folder, now) != was.digest:
                count += 1
                what = "has another content, with the size and time that it had"
                first.append(Change(was.path, what))
    first.sort(key=lambda one: one.path)
    return Changes(count, tuple(first[:_NAMED]))


def _paired(
    listed: Iterable[ListedFile], there: Iterable[FolderFile]
) -> Iterator[tuple[str, ListedFile | None, FolderFile | None]]:
    """Merge listed and present files by path, None if one is absent; both inputs must be sorted by path."""
    befores, nows = iter(listed), iter(there)
    was, now = next(befores, None), next(nows, None)
    while was is not None or now is not None:
        path = min(one.path for one in (was, now) if one is not None)
        before = was if was is not None and was.path == path else None
        found = now if now is not None and now.path == path else None
        yield path, before, found
        was = next(befores, None) if before else was
        now = next(nows, None) if found else now


def _difference(was: ListedFile | None, now: FolderFile | None) -> str:
    """Return how presence, size or time differ; "" if they do not."""
    if was is None:
        return "is new"
    if now is None:
        return "is missing"
    if now.size != was.size:
        return f"has {now.size:,} bytes, not {was.size:,}"
    return "was written to" if now.version[0] != was.mtime_ns else ""


class _Sample:
    """Reservoir sampling of the offered files, uniform over those small enough to be read."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._offered = 0
        self._chosen: list[tuple[ListedFile, FolderFile]] = []

    def offer(self, was: ListedFile, now: FolderFile) -> None:
        """Choose it by chance, replacing one if full."""
        if was.size > SAMPLED_BYTES:
            return
        self._offered += 1
        if len(self._chosen) < SAMPLED_FILES:
            self._chosen.append((was, now))
        elif (place := self._rng.randrange(self._offered)) < SAMPLED_FILES:
            self._chosen[place] = was, now

    def files(self) -> Iterator[tuple[ListedFile, FolderFile]]:
        """The chosen files, up to SAMPLED_BYTES together."""
        left = SAMPLED_BYTES
        self._rng.shuffle(self._chosen)
        for was, now in self._chosen:
            if was.size <= left:
                left -= was.size
                yield was, now


def copy(root: Path, listed: Iterable[ListedFile], target: Path) -> None:
    """Copy the listed files to the new folder `target`: all or nothing, each verified by its digest.

    Raises TargetExists, OSError if the target cannot be written, ChangedInPlace for changed files, and
    ContentError if the files are not on this machine.
    """
    if os.path.lexists(target):
        raise TargetExists(f"{target} is there already")
    try:
        opened = open_root(root)
    except PackRefused as error:
        raise ContentError(f"{error}: its files are on the nodes") from error
    staged = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with opened as folder:
            for path, was, now in _paired(listed, OrderedListing(root, folder)):
                if was is None:
                    continue
                file = staged.joinpath(*native_parts(path))
                file.parent.mkdir(parents=True, exist_ok=True)
                if now is None or _digest(folder, now, file) != was.digest:
                    raise ChangedInPlace(f"{path} is not what it was when the dataset was added")
                file.chmod(now.mode)
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def changes_text(found: Changes) -> str:
    """Describe the first changes by path, and the number of the others."""
    more = found.count - len(found.first)
    named = "; ".join(f"{one.path} {one.what}" for one in found.first)
    return f"{named}; and {more:,} more" if more > 0 else named


def _digest(folder: Beneath, file: FolderFile, copy_to: Path | None = None) -> str:
    digest = blake3()
    with (
        os.fdopen(folder.open_file(file.parts), "rb", buffering=0) as opened,
        (copy_to or Path(os.devnull)).open("wb") as target,
    ):
        while data := opened.read(_READ_BYTES):
            digest.update(data)
            target.write(data)
        facts = os.fstat(opened.fileno())
    if (facts.st_size, facts.st_mtime_ns) != (file.size, file.version[0]):
        raise ChangedInPlace(f"{file.path} changed while it was read")
    return digest.hexdigest()


def why_movable(path: Path, trusted: frozenset[int]) -> str:
    """Return why others could replace this folder; "" if nobody can.

    The folder is checked now and mounted later by its path. So the path must have no links, and every folder above
    must belong to `trusted` uids and let nobody else rename its entries. Raises OSError.
    """
    if Path(os.path.realpath(path)) != path:
        return f"{path} leads through a link"
    for folder, entry in zip(path.parents, (path, *path.parents), strict=False):
        facts, owner = folder.lstat(), entry.lstat().st_uid
        if facts.st_uid not in trusted:
            return f"{folder} belongs to another user, who can put another folder there"
        is_open = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_open and not (facts.st_mode & stat.S_ISVTX and owner in trusted):
            return f"others can write to {folder}, and put another folder there"
    return ""
