"""Takes over a tree that a build has made: checked, then the agent's own and read-only.

Nothing is parsed, no file is opened and no link followed: folders are listed by descriptor, entries judged
by what the kernel says of them. Whoever made the tree must not run any more.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nodeagent.safe_paths import open_folder
from nsml.common.units import counted, size_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_DEPTH = 64
_BLOCK = 512


class Unsound(Exception):
    """A tree holds what no build of packages makes; the text says what, for its user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a tree may hold.

    Attributes:
        uid: whom everything in it belongs to.
        place: where it will lie, as links inside name it.
        outside: what links may name beyond it: the interpreter.
        bytes: the most that it occupies; None: no limit.
        files: how many files and folders it may have.
        is_private: it is for the agent alone, and for further builds; else for all to read.
    """

    uid: int
    place: Path
    outside: Collection[str]
    bytes: int | None
    files: int
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    """One thing of the tree: its name in the open `folder`, and the path from the top."""

    name: str
    path: PurePosixPath
    folder: int
    facts: os.stat_result


def seal(tree: Path, rules: Rules) -> None:
    """Check all of `tree`, then make it the agent's, readable by all and writable by nobody, or private.

    The top itself stays writable for the agent, which moves it. Raises Unsound, with nothing changed, and
    OSError.
    """
    occupied = count = 0
    with open_folder(tree.parent, [tree.name]) as top:
        if os.fstat(top).st_uid != rules.uid:
            raise Unsound("it belongs to another user")
        for entry in _walk(top):
            occupied += _occupied(entry.facts)
            count += 1
            if count > rules.files:
                raise Unsound(
                    f"it has more than {counted(rules.files, 'file')} (the agent's setting build_files)"
                )
            if rules.bytes is not None and occupied > rules.bytes:
                raise Unsound(
                    f"it takes more than {size_text(rules.bytes)} (the agent's setting build_disk_bytes)"
                )
            why = _why_unsound(entry, rules)
            if why:
                raise Unsound(f"{str(entry.path)[:200]!r} {why}")
        for entry in _walk(top):
            _take(entry, is_private=rules.is_private)
        os.fchown(top, os.geteuid(), os.getegid())
        os.fchmod(top, 0o700 if rules.is_private else 0o755)


def _walk(top: int) -> Iterator[_Entry]:
    """All below an open folder, what is in a folder before the folder itself."""
    yield from _walk_folder(top, PurePosixPath(), _MOST_DEPTH)


def _walk_folder(folder: int, path: PurePosixPath, depth: int) -> Iterator[_Entry]:
    if depth == 0:
        raise Unsound("its folders lie too deep in each other")
    with os.scandir(folder) as found:
        names = [item.name for item in found]
    for name in names:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            below = os.open(name, _FOLDER, dir_fd=folder)
            try:
                yield from _walk_folder(below, path / name, depth - 1)
            finally:
                os.close(below)
        yield _Entry(name, path / name, folder, facts)


def _occupied(facts: os.stat_result) -> int:
    return facts.st_blocks * _BLOCK


def _why_unsound(entry: _Entry, rules: Rules) -> str:
    """What is wrong with an entry; empty when nothing is."""
    facts = entry.facts
    if facts.st_uid != rules.uid:
        return "belongs to another user"
    if stat.S_ISLNK(facts.st_mode):
        target = os.readlink(entry.name, dir_fd=entry.folder)
        return "" if _stays(target, entry.path, rules) else "is a link to a target outside of it"
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        return "is neither a file nor a folder"
    if facts.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return "is setuid or setgid"
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink != 1:
        return "has a second name"
    return ""


def _stays(target: str, path: PurePosixPath, rules: Rules) -> bool:
    """Whether a link at `path` leads to what is inside, or to the interpreter.

    A `..` is allowed only where it leads: behind a name that is itself a link it would go elsewhere.
    """
    if target in rules.outside:
        return True
    parts = PurePosixPath(target).parts
    place = PurePosixPath(rules.place).parts
    if target.startswith("/"):
        return parts[: len(place)] == place and ".." not in parts
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return bool(parts) and ups < len(path.parts) and ".." not in parts[ups:]


def _take(entry: _Entry, *, is_private: bool) -> None:
    """Make an entry the agent's and, unless it is a link, read-only for all or private."""
    mode = entry.facts.st_mode
    owner = os.geteuid(), os.getegid()
    os.chown(entry.name, *owner, dir_fd=entry.folder, follow_symlinks=False)
    if not stat.S_ISLNK(mode):
        is_run = stat.S_ISDIR(mode) or mode & 0o111
        rights = (0o700 if is_run else 0o600) if is_private else (0o555 if is_run else 0o444)
        # no link: it was checked, and nobody is left who could have replaced it
        os.chmod(entry.name, rights, dir_fd=entry.folder)
