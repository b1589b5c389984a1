"""Seals a build's output: checks the tree, then makes it read-only and the agent's own.

Nothing is parsed, no file is opened and no link followed: folders are listed by descriptor, entries checked
by their `stat`. The build must have ended.

Links to files of unpacked wheels (`Shared`), which are sealed already, become hard links to them: files
shared by environments are the agent's, and nobody can write them through an environment.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Self

from nodeagent.safe_paths import open_folder
from nsml.common.units import counted, size_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_DEPTH = 64
_BLOCK = 512
_NO_LINK = {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP}
"""Another filesystem, too many links to one file, or no support for hard links: it is copied."""
_COPIED_BYTES = 1 << 30


class Unsound(Exception):
    """A tree has entries that no package build makes; the text says what, for its user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Sealed files that a tree may share: they are in `folder`, and links name them below `seen_at`."""

    seen_at: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules for a tree.

    Attributes:
        uid: the owner of all entries.
        place: its final path, as links inside name it.
        outside: link targets allowed outside it: the interpreter.
        bytes: the most that it occupies; None: no limit.
        files: maximum number of files and folders.
        is_private: only the agent and later builds may read it; else everybody.
        shared: files that links become hard links to; None: none.
        rewritten: the name of files that stay writable for the agent, since installers change copies of them,
            which have the same mode; they are not shared. "": there are none.
    """

    uid: int
    place: Path
    outside: Collection[str]
    bytes: int | None
    files: int
    is_private: bool = False
    shared: Shared | None = None
    rewritten: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the tree: its name in the open `folder`, and the path from the top."""

    name: str
    path: str
    folder: int
    facts: os.stat_result


def seal(tree: Path, rules: Rules) -> None:
    """Check all of `tree`, then make it the agent's, readable by all and writable by nobody, or private.

    The top itself stays writable for the agent, which moves it. Raises Unsound, usually with nothing
    changed, and OSError.
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
                raise Unsound(f"{entry.path[:200]!r} {why}")
        with ExitStack() as held:
            sharing = held.enter_context(_Sharing(rules.shared)) if rules.shared else None
            for entry in _walk(top):
                if sharing is None or not sharing.replaces(entry):
                    _take(entry, rules)
        os.fchown(top, os.geteuid(), os.getegid())
        os.fchmod(top, 0o700 if rules.is_private else 0o755)


def _walk(top: int) -> Iterator[_Entry]:
    """All entries below an open folder, each folder after its contents."""
    yield from _walk_folder(top, "", _MOST_DEPTH)


def _walk_folder(folder: int, above: str, depth: int) -> Iterator[_Entry]:
    if depth == 0:
        raise Unsound("its folders lie too deep in each other")
    with os.scandir(folder) as found:
        names = [item.name for item in found]
    for name in names:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            below = os.open(name, _FOLDER, dir_fd=folder)
            try:
                yield from _walk_folder(below, f"{above}{name}/", depth - 1)
            finally:
                os.close(below)
        yield _Entry(name, f"{above}{name}", folder, facts)


def _occupied(facts: os.stat_result) -> int:
    return facts.st_blocks * _BLOCK


def _why_unsound(entry: _Entry, rules: Rules) -> str:
    """What is wrong with an entry; "" if nothing."""
    facts = entry.facts
    is_link = stat.S_ISLNK(facts.st_mode)
    # links keep their owner: one of the agent's is of an earlier build
    if facts.st_uid != rules.uid and not (is_link and facts.st_uid == os.geteuid()):
        return "belongs to another user"
    if is_link:
        target = os.readlink(entry.name, dir_fd=entry.folder)
        return "" if _stays(target, entry.path, rules) else "is a link to a target outside of it"
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        return "is neither a file nor a folder"
    if facts.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return "is setuid or setgid"
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink != 1:
        return "has a second name"
    return ""


def _stays(target: str, path: str, rules: Rules) -> bool:
    """Whether a link at `path` points inside the tree, to the interpreter, or to a shared file.

    `..` is allowed only at the start: behind a name that is itself a link it would point elsewhere.
    """
    if target in rules.outside:
        return True
    if rules.shared is not None and target.startswith(f"{rules.shared.seen_at}/"):
        return True  # checked when it is replaced
    parts = PurePosixPath(target).parts
    place = PurePosixPath(rules.place).parts
    if target.startswith("/"):
        return parts[: len(place)] == place and ".." not in parts
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return bool(parts) and ups <= path.count("/") and ".." not in parts[ups:]


def _take(entry: _Entry, rules: Rules) -> None:
    """Make an entry the agent's and, unless it is a link, read-only for all or private."""
    mode = entry.facts.st_mode
    owner = os.geteuid(), os.getegid()
    os.chown(entry.name, *owner, dir_fd=entry.folder, follow_symlinks=False)
    if not stat.S_ISLNK(mode):
        is_run = stat.S_ISDIR(mode) or mode & 0o111
        rights = (0o700 if is_run else 0o600) if rules.is_private else (0o555 if is_run else 0o444)
        if entry.name == rules.rewritten and stat.S_ISREG(mode):
            rights |= 0o200
        # not a link: it was checked, and no process is left to replace it
        os.chmod(entry.name, rights, dir_fd=entry.folder)


class _Sharing:
    """Replaces links to shared files by hard links to them."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._parts: list[str] | None = None
        self._opened = ExitStack()
        self._folder = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._opened.close()

    def replaces(self, entry: _Entry) -> bool:
        """Replace an entry, if it is such a link; whether it is one. Raises Unsound."""
        if not stat.S_ISLNK(entry.facts.st_mode):
            return False
        target = os.readlink(entry.name, dir_fd=entry.folder)
        below = target.removeprefix(f"{self._shared.seen_at}/")
        if below == target:
            return False
        *parts, name = below.split("/")
        try:
            folder = self._at(parts)
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, ValueError):
            raise Unsound(f"{entry.path[:200]!r} is a link to nothing that was unpacked") from None
        if (
            not stat.S_ISREG(facts.st_mode)
            or facts.st_uid != os.geteuid()
            or facts.st_mode & 0o7222
        ):
            raise Unsound(f"{entry.path[:200]!r} is a link to what is not sealed")
        os.unlink(entry.name, dir_fd=entry.folder)
        try:
            os.link(
                name, entry.name, src_dir_fd=folder, dst_dir_fd=entry.folder, follow_symlinks=False
            )
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            _copy(name, folder, entry, facts.st_mode)
        return True

    def _at(self, parts: list[str]) -> int:
        """The open folder of a shared file; kept open for further files of that folder."""
        if parts != self._parts:
            self._opened.close()
            self._parts = None
            self._folder = self._opened.enter_context(open_folder(self._shared.folder, parts))
            self._parts = parts
        return self._folder


def _copy(name: str, folder: int, entry: _Entry, mode: int) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        copy = os.open(entry.name, flags, 0o600, dir_fd=entry.folder)
        try:
            while os.sendfile(copy, source, None, _COPIED_BYTES):
                pass
            os.fchmod(copy, stat.S_IMODE(mode))
        finally:
            os.close(copy)
    finally:
        os.close(source)
