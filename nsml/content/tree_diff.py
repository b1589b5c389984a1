"""Diff of two trees: added, removed, changed and renamed files, in bounded memory."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsml.content.manifest import ChunkRef, EntryLike

MOST_PAIRED: Final = 100_000
"""Limit of added and removed files for rename detection; beyond it, renames are listed as added and removed."""


class Kind(enum.StrEnum):
    """How a file differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    RENAMED = "renamed"


class FileChange(NamedTuple):
    """A differing file; for a rename, `path` is the new one. Sizes are None if the file is absent on that side."""

    kind: Kind
    path: str
    before_bytes: int | None = None
    after_bytes: int | None = None
    path_before: str = ""


@dataclass(slots=True)
class TreeDiff:
    """The differences between two trees.

    Attributes:
        files: the first differing files, by path.
        counts: number of files of each kind, listed or not.
        unchanged: number of equal files.
        added_bytes, removed_bytes: sizes of added and removed files, and new and old sizes of changed files.
        has_renames: whether renames were detected.
    """

    files: list[FileChange] = field(default_factory=list)
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    unchanged: int = 0
    added_bytes: int = 0
    removed_bytes: int = 0
    has_renames: bool = True

    @property
    def left_out(self) -> int:
        """Number of differing files not listed."""
        return sum(self.counts.values()) - len(self.files)


def tree_diff(before: Iterable[EntryLike], after: Iterable[EntryLike], *, most: int) -> TreeDiff:
    """Compare the files of two trees, each sorted by path; lists the first `most` differing files.

    A file is changed if its content or executable bit is. An added file with the content of a removed one is
    renamed, unless it is empty.
    """
    found = _Found(most)
    for old, new in _merged(before, after):
        if old is None and new is not None:
            found.add(new)
        elif new is None and old is not None:
            found.remove(old)
        elif old is not None and new is not None:
            found.compare(old, new)
    return found.result()


class _Found:
    """Collects differences."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._diff = TreeDiff()
        self._changed: list[FileChange] = []
        self._added: list[tuple[FileChange, bytes]] = []
        self._removed: list[tuple[FileChange, bytes]] = []

    def add(self, new: EntryLike) -> None:
        size = _size(new)
        self._diff.counts[Kind.ADDED] += 1
        self._diff.added_bytes += size
        self._keep(self._added, FileChange(Kind.ADDED, new.path, None, size), new)

    def remove(self, old: EntryLike) -> None:
        size = _size(old)
        self._diff.counts[Kind.REMOVED] += 1
        self._diff.removed_bytes += size
        self._keep(self._removed, FileChange(Kind.REMOVED, old.path, size), old)

    def compare(self, old: EntryLike, new: EntryLike) -> None:
        if old.mode == new.mode and _has_same_content(old, new):
            self._diff.unchanged += 1
            return
        before, after = _size(old), _size(new)
        self._diff.counts[Kind.CHANGED] += 1
        self._diff.removed_bytes += before
        self._diff.added_bytes += after
        if len(self._changed) < self._most:
            self._changed.append(FileChange(Kind.CHANGED, new.path, before, after))

    def _keep(
        self, kept: list[tuple[FileChange, bytes]], change: FileChange, entry: EntryLike
    ) -> None:
        """Keep a change for rename detection; once there are too many, only those that can be listed."""
        if self._diff.has_renames and len(self._added) + len(self._removed) >= MOST_PAIRED:
            self._diff.has_renames = False
            del self._added[self._most :], self._removed[self._most :]
        if self._diff.has_renames:
            kept.append((change, _content(entry)))
        elif len(kept) < self._most:
            kept.append((change, b""))

    def result(self) -> TreeDiff:
        diff = self._diff
        renamed, added, removed = self._paired()
        diff.counts[Kind.RENAMED] = len(renamed)
        for kind in (Kind.ADDED, Kind.REMOVED):
            diff.counts[kind] -= len(renamed)
        moved = sum(one.after_bytes or 0 for one in renamed)
        diff.added_bytes -= moved
        diff.removed_bytes -= moved
        files = sorted((*self._changed, *renamed, *added, *removed), key=lambda one: one.path)
        diff.files = files[: self._most]
        return diff

    def _paired(self) -> tuple[list[FileChange], list[FileChange], list[FileChange]]:
        """Return renamed files, then the remaining added and removed files."""
        if not self._diff.has_renames:
            return [], [one for one, _ in self._added], [one for one, _ in self._removed]
        sources: dict[bytes, list[FileChange]] = defaultdict(list)
        for change, content in reversed(self._removed):
            sources[content].append(change)
        renamed, added = [], []
        for change, content in self._added:
            if change.after_bytes and sources.get(content):
                source = sources[content].pop()
                renamed.append(
                    FileChange(
                        Kind.RENAMED,
                        change.path,
                        change.after_bytes,
                        change.after_bytes,
                        source.path,
                    )
                )
            else:
                added.append(change)
        removed = [one for left in sources.values() for one in left]
        return renamed, added, removed


def _merged(
    before: Iterable[EntryLike], after: Iterable[EntryLike]
) -> Iterator[tuple[EntryLike | None, EntryLike | None]]:
    """Merge the files of both by path, pairing equal paths."""
    old_ones, new_ones = iter(before), iter(after)
    old, new = next(old_ones, None), next(new_ones, None)
    while old is not None or new is not None:
        # Strings compare in the order of their UTF-8 bytes.
        if new is None or (old is not None and old.path < new.path):
            yield old, None
            old = next(old_ones, None)
        elif old is None or new.path < old.path:
            yield None, new
            new = next(new_ones, None)
        else:
            yield old, new
            old, new = next(old_ones, None), next(new_ones, None)


def _has_same_content(old: EntryLike, new: EntryLike) -> bool:
    return all(one == other for one, other in zip_longest(old.chunks, new.chunks))


def _size(entry: EntryLike) -> int:
    return sum(chunk.size for chunk in entry.chunks)


def _content(entry: EntryLike) -> bytes:
    """Return a hash of the content: 16 bytes for any number of chunks."""
    chunks: Iterable[ChunkRef] = entry.chunks
    hashed = blake2b(digest_size=16)
    for chunk in chunks:
        hashed.update(bytes.fromhex(chunk.digest))
    return hashed.digest()
