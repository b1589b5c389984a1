"""Datasets in place: files of a shared file system that are not copied, and the list by which a change is found.

The list is the one file of an ordinary tree, so that it is kept, shared and removed as any version is: a line of JSON for each
file, `[path, size, mtime_ns, digest]`, by path. Links are followed where they stay inside, as in what is pushed.
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
from nsml.content.errors import ContentError, PackRefused, TargetExists
from nsml.content.listing import list_folder, open_root
from nsml.content.paths import split_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from random import Random

    from nsml.content.listing import FolderFile
    from nsml.content.safe_paths import Beneath

LIST_NAME: Final = "in-place.jsonl"
MOST_LIST_BYTES: Final = 1 << 30
SAMPLED_FILES: Final = 32
SAMPLED_BYTES: Final = 256 << 20
"""What is read of a dataset when a session starts: so many files, and so much of them, chosen anew each time."""
_MOST_BYTES: Final = 1 << 60
_READ_BYTES: Final = 4 << 20
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
    """A file that is not what it was: `what` is missing, new, its size, its time, or its content."""

    path: str
    what: str


def look_at(root: Path, progress: Callable[[int, int], None] | None = None) -> list[ListedFile]:
    """Read all files of a folder; `progress` is told how many bytes are done, and of how many.

    Raises what `list_folder` does, and ContentError for a file that changes meanwhile.
    """
    listed = list_folder(root, max_bytes=_MOST_BYTES)
    found: list[ListedFile] = []
    done = 0
    with open_root(root) as folder:
        for one in listed.files:
            digest = _digest(folder, one)
            found.append(ListedFile(one.path, one.size, one.version[0], digest))
            done += one.size
            if progress is not None:
                progress(done, listed.size)
    return sorted(found, key=lambda one: one.path)


def encode(files: Iterable[ListedFile]) -> bytes:
    """The list as it is kept."""
    rows = ([one.path, one.size, one.mtime_ns, one.digest] for one in files)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def decode(data: bytes) -> list[ListedFile]:
    """Read a list, which anybody may have made; raises ContentError."""
    if len(data) > MOST_LIST_BYTES:
        raise ContentError("the list of the dataset's files is too long")
    return list(_decoded(data))


def _decoded(data: bytes) -> Iterator[ListedFile]:
    last = ""
    for line in data.splitlines():
        one = _listed(line)
        if one is None or one.path <= last:
            raise ContentError("the list of the dataset's files cannot be read")
        last = one.path
        yield one


def _listed(line: bytes) -> ListedFile | None:
    """What a line says; None where it is none."""
    try:
        row = json.loads(line)
        if [type(one) for one in row] != [str, int, int, str]:
            return None
        found = ListedFile(*row)
        split_path(found.path)
    except (ValueError, TypeError, RecursionError, ContentError):
        return None
    return found if is_digest(found.digest) and 0 <= found.size < _MOST_BYTES else None


def changes(root: Path, listed: Sequence[ListedFile], rng: Random) -> list[Change]:
    """What differs from the list: sizes and times of all files, and the content of some, in the order of their paths.

    Raises what `list_folder` does. Blocking: a look at each file, and at most SAMPLED_BYTES read.
    """
    there = {one.path: one for one in list_folder(root, max_bytes=_MOST_BYTES).files}
    found: dict[str, str] = {}
    for one in listed:
        now = there.get(one.path)
        if now is None:
            found[one.path] = "is missing"
        elif now.size != one.size:
            found[one.path] = f"has {now.size:,} bytes, not {one.size:,}"
        elif now.version[0] != one.mtime_ns:
            found[one.path] = "was written to"
    for path in there.keys() - {one.path for one in listed}:
        found[path] = "is new"
    with open_root(root) as folder:
        for one in _sample([one for one in listed if one.path not in found], rng):
            if _digest(folder, there[one.path]) != one.digest:
                found[one.path] = "has another content, with the size and time that it had"
    return [Change(path, found[path]) for path in sorted(found)]


def copy(root: Path, listed: Sequence[ListedFile], target: Path) -> None:
    """Copy the files of the list to the new folder `target`: whole or not at all, each held against its digest.

    Raises TargetExists, OSError for a target that cannot be written, and ContentError for files that are not what they were.
    """
    if os.path.lexists(target):
        raise TargetExists(f"{target} is there already")
    try:
        there = {one.path: one for one in list_folder(root, max_bytes=_MOST_BYTES).files}
    except PackRefused as error:
        raise ContentError(f"{error}: its files are on the nodes") from error
    staged = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open_root(root) as folder:
            for one in listed:
                file = staged / one.path
                file.parent.mkdir(parents=True, exist_ok=True)
                now = there.get(one.path)
                if now is None or _digest(folder, now, file) != one.digest:
                    raise ContentError(f"{one.path} is not what it was when the dataset was added")
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def changes_text(found: Sequence[Change]) -> str:
    """The first of them by name, and how many more there are."""
    more = len(found) - _NAMED
    named = "; ".join(f"{one.path} {one.what}" for one in found[:_NAMED])
    return f"{named}; and {more:,} more" if more > 0 else named


def _sample(files: Sequence[ListedFile], rng: Random) -> Iterator[ListedFile]:
    """Some files, those that are small enough to be read."""
    left = SAMPLED_BYTES
    small = [one for one in files if one.size <= SAMPLED_BYTES]
    for one in rng.sample(small, min(SAMPLED_FILES, len(small))):
        if one.size <= left:
            left -= one.size
            yield one


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
        raise ContentError(f"{file.path} changed while it was read")
    return digest.hexdigest()


def why_movable(path: Path, trusted: frozenset[int]) -> str:
    """Why somebody else could put another folder in place of this one; "" where nobody can.

    What is looked at now is mounted a little later, by its path: so it has to be without links, and every folder above it
    has to belong to `trusted` uids and let nobody else rename what is in it. Raises OSError.
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
