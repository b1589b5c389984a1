"""Lists the files of a folder that are its code or data, for packing and syncing."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from nsml._path_text import path_text
from nsml.content import errors
from nsml.content.ignore import IGNORE_FILE, IgnoreRules
from nsml.content.paths import MAX_DEPTH, split_path
from nsml.content.safe_paths import Beneath, Listed, Parts, Version, beneath, version_of

# Code beyond this is usually a forgotten data folder: NSML warned, and so do we.
CODE_WARN_BYTES = 10_000_000
CODE_WARNING = (
    "Warning: Your session has a total size of over  10 MB You may want to add unnecessary files"
    " and directories to the ignore list. (e.g. the .git directory)"
)
CODE_LIMIT_BYTES = 512 << 20
MAX_FILES = 10_000_000
_LARGEST_SHOWN = 5
_SKIPPED_COUNTED = 20_000
_ENVIRONMENT_MARKS = {"pyvenv.cfg", "conda-meta"}
"""Marks of a Python environment folder, with links to this machine's Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Files ignored by the rules; `is_complete` is False if counting was cut short."""

    files: int = 0
    bytes: int = 0
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file of the folder."""

    path: str  # as text
    parts: Parts  # resolved path of the content: differs from `path` below a link
    size: int
    mode: int
    version: Version  # changes with its content


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFiles:
    """The files of a folder to send, as listed, and those that are not sent."""

    root: Path
    files: tuple[FolderFile, ...]
    max_bytes: int
    """Limit of all files together; they may grow until read."""
    skipped: Skipped = field(default_factory=Skipped)
    special: tuple[str, ...] = ()
    """Skipped sockets, pipes and devices, each with its kind: they have no content."""
    environments: tuple[str, ...] = ()
    """Python environment folders, skipped by IgnoreRules.skips_environments."""
    empty: tuple[str, ...] = ()
    """Empty folders, not sent: a manifest lists files only."""
    unread: tuple[str, ...] = ()
    """Ignore files below the top, which are not read."""

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    def warnings(self, warn_bytes: int = CODE_WARN_BYTES) -> tuple[str, ...]:
        """Warnings for the user before the folder is sent as code."""
        return (CODE_WARNING,) if self.size > warn_bytes else ()


def list_folder(
    root: Path,
    *,
    ignore: IgnoreRules | None = None,
    max_bytes: int = CODE_LIMIT_BYTES,
    max_files: int = MAX_FILES,
) -> FolderFiles:
    """List the regular files of `root` that `ignore` does not match; no file is read.

    A link inside the folder counts as its target. Raises a PackRefused with the path: LinkRefused,
    Unreadable, EmptyFolder, TooLarge; or PathRefused if too long or too deep.
    """
    with open_root(root) as folder:
        listing = Listing(root, folder, ignore or IgnoreRules(()), max_files)
        found = listing.run()
    check_size(found, max_bytes)
    return FolderFiles(
        root=root,
        files=tuple(found),
        max_bytes=max_bytes,
        skipped=listing.skipped(),
        special=tuple(f"{path} ({kind})" for path, kind in listing.special),
        environments=tuple(listing.environments),
        empty=tuple(listing.empty),
        unread=tuple(listing.unread),
    )


def list_file(file: Path, *, max_bytes: int) -> FolderFiles:
    """List a single file as a folder with only it; a link counts as its target.

    Raises as `list_folder`.
    """
    path, real = path_text(file.name), file.resolve()
    split_path(path)
    with open_root(real.parent) as folder:
        try:
            facts = folder.lstat((real.name,))
        except OSError as error:
            raise errors.Unreadable(path, unreadable(path, error)) from error
    if not stat.S_ISREG(facts.st_mode):
        raise errors.Unreadable(path, f"cannot read {path}: it is {kind_of(facts.st_mode)}")
    found = FolderFile(path, (real.name,), facts.st_size, mode_of(facts.st_mode), version_of(facts))
    check_size([found], max_bytes)
    return FolderFiles(root=real.parent, files=(found,), max_bytes=max_bytes)


def with_file(folder: FolderFiles, file: FolderFiles, path: str) -> FolderFiles:
    """Add to a folder a file listed by `list_file`, as `path`; it may be outside the folder.

    The new root is their nearest common folder. Raises TooLarge.
    """
    roots = [os.path.realpath(one.root) for one in (folder, file)]
    top = os.path.commonpath(roots)
    within, beside = (tuple(Path(root).relative_to(top).parts) for root in roots)
    files = [replace(one, parts=(*within, *one.parts)) for one in folder.files]
    files += [replace(one, path=path, parts=(*beside, *one.parts)) for one in file.files]
    check_size(files, folder.max_bytes)
    return replace(folder, root=Path(top), files=tuple(files))


class Listing:
    """Lists a folder: sorted by name, links resolved, ignored files counted.

    `refused` collects errors of unsendable entries; without it they are raised.
    """

    def __init__(
        self,
        root: Path,
        folder: Beneath,
        ignore: IgnoreRules,
        max_files: int,
        refused: list[errors.PackRefused | errors.PathRefused] | None = None,
    ) -> None:
        self._root = os.path.realpath(root)
        self._folder = folder
        self._ignore = ignore
        self._max_files = max_files
        self._refused = refused
        self.special: list[tuple[str, str]] = []
        self.environments: list[str] = []
        self.empty: list[str] = []
        self.folders: set[tuple[Parts, int]] = set()
        """Entered folders except the top: resolved path and inode number."""
        self.unread: list[str] = []
        self._found: list[FolderFile] = []
        self._skipped_files = 0
        self._skipped_bytes = 0
        self._uncounted = False

    def run(self) -> list[FolderFile]:
        """Return the files to pack."""
        self._enter((), (), ((),))
        if not self._found and self._refused is None:
            count = self._skipped_files
            left_out = f" (ignored: {count} {'file' if count == 1 else 'files'})" if count else ""
            raise errors.EmptyFolder(".", f"the folder has no files to send{left_out}")
        return self._found

    def skipped(self) -> Skipped:
        """Count of ignored files."""
        return Skipped(
            files=self._skipped_files,
            bytes=self._skipped_bytes,
            is_complete=not self._uncounted,
        )

    def _enter(self, logical: Parts, parts: Parts, chain: tuple[Parts, ...]) -> None:
        path = path_text("/".join(logical))
        if len(logical) >= MAX_DEPTH:
            raise errors.PathRefused(path, f"it is deeper than {MAX_DEPTH} folders")
        items = self._scan(path or ".", parts)
        if path and self._ignore.skips_environments and self._is_environment(logical, items):
            self.environments.append(path)
            for item in items:
                self._skip((*parts, item.name), item)
            return
        if path and not items:
            self.empty.append(path)
        for item in items:
            self._visit((*logical, item.name), (*parts, item.name), item, chain)

    def _is_environment(self, logical: Parts, items: list[Listed]) -> bool:
        is_one = any(item.name in _ENVIRONMENT_MARKS for item in items)
        return is_one and not self._ignore.keeps("/".join(logical), is_folder=True)

    def _visit(self, logical: Parts, parts: Parts, item: Listed, chain: tuple[Parts, ...]) -> None:
        name = "/".join(logical)
        # As in git, a pattern for folders does not match a link to one.
        if self._ignore.ignores(name, is_folder=stat.S_ISDIR(item.mode)):
            self._skip(parts, item)
            return
        try:
            self._take(logical, parts, item, chain)
        except (errors.PackRefused, errors.PathRefused) as error:
            if self._refused is None or isinstance(error, errors.TooLarge):
                raise
            self._refused.append(error)

    def _take(self, logical: Parts, parts: Parts, item: Listed, chain: tuple[Parts, ...]) -> None:
        path = path_text("/".join(logical))
        is_link = stat.S_ISLNK(item.mode)
        if is_link:
            parts = resolve_link(self._root, path, parts)
            facts = lstat_target(self._folder, path, parts)
            item = Listed(item.name, facts.st_mode, facts.st_size, version_of(facts))
        if stat.S_ISDIR(item.mode):
            inner = chain_into(path, parts, chain, is_link=is_link)
            self.folders.add((parts, item.version[2]))
            self._enter(logical, parts, inner)
        elif stat.S_ISREG(item.mode):
            self._add(path, parts, item)
        else:
            self.special.append((path, kind_of(item.mode)))

    def _add(self, path: str, parts: Parts, item: Listed) -> None:
        split_path(path)
        self._found.append(FolderFile(path, parts, item.size, mode_of(item.mode), item.version))
        if path.endswith(f"/{IGNORE_FILE}"):
            self.unread.append(path)
        if len(self._found) > self._max_files:
            raise errors.TooLarge(f"the folder has more than {self._max_files} files", ())

    def _scan(self, path: str, parts: Parts) -> list[Listed]:
        try:
            return self._folder.scan(parts)
        except OSError as error:
            raise errors.Unreadable(path, unreadable(path, error)) from error

    def _skip(self, parts: Parts, item: Listed) -> None:
        """Count ignored files, up to a cheap limit, to show to the user."""
        pending = [(parts, item)]
        while pending:
            parts, item = pending.pop()
            if self._skipped_files >= _SKIPPED_COUNTED:
                self._uncounted = True
                return
            if not stat.S_ISDIR(item.mode):
                self._skipped_files += 1
                self._skipped_bytes += item.size
                continue
            try:
                inner = self._folder.scan(parts)
            except OSError:
                self._uncounted = True
                continue
            pending.extend(((*parts, found.name), found) for found in inner)


def resolve_link(root: str, path: str, parts: Parts) -> Parts:
    """Resolve a link to parts without links; `root` must have none. LinkRefused if it leaves the folder."""
    link = os.path.join(root, *parts)  # noqa: PTH118 - Path would fold `..` away
    target = os.path.realpath(link)
    try:
        inside = os.path.commonpath([root, target]) == root
    except ValueError:  # another drive
        inside = False
    if not inside:
        where = path_text(target)
        raise errors.LinkRefused(path, f"the link {path} leaves the folder: {where}")
    return Path(target).relative_to(root).parts


def lstat_target(folder: Beneath, path: str, parts: Parts) -> os.stat_result:
    """Stat the target of the link `path`, resolved to `parts`."""
    try:
        facts = folder.lstat(parts)
    except FileNotFoundError as error:
        raise errors.LinkRefused(path, f"the link {path} leads nowhere") from error
    except OSError as error:
        raise errors.Unreadable(path, unreadable(path, error)) from error
    if stat.S_ISLNK(facts.st_mode):  # realpath stops at a circular link
        raise errors.LinkRefused(path, f"the link {path} leads in a circle")
    return facts


def chain_into(
    path: str, parts: Parts, chain: tuple[Parts, ...], *, is_link: bool
) -> tuple[Parts, ...]:
    """Return the folders that links below `parts` must not lead to; LinkRefused if `parts` is already one."""
    if parts in chain:
        raise errors.LinkRefused(path, f"the link {path} leads back to its own folder")
    above = tuple(parts[:depth] for depth in range(len(parts))) if is_link else ()
    return (*chain, *above, parts)


def mode_of(mode: int) -> int:
    """Keep only the owner's execute bit of a mode: 0o755 or 0o644."""
    return 0o755 if mode & stat.S_IXUSR else 0o644


def open_root(root: Path, owner: int | None = None) -> Beneath:
    """Open the folder to pack; raises PackRefused or Unreadable."""
    try:
        return beneath(root, owner)
    except FileNotFoundError as error:
        raise errors.PackRefused(".", f"there is no folder {root}") from error
    except NotADirectoryError as error:
        raise errors.PackRefused(".", f"{root} is not a folder") from error
    except OSError as error:
        raise errors.Unreadable(".", unreadable(str(root), error)) from error


def unreadable(path: str, error: OSError) -> str:
    """Return the error message."""
    return f"cannot read {path}: {error.strerror or error}"


def kind_of(mode: int) -> str:
    """Name the kind of a special file."""
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def check_size(found: list[FolderFile], max_bytes: int) -> None:
    """Raise TooLarge for more than `max_bytes` together."""
    total = sum(item.size for item in found)
    if total <= max_bytes:
        return
    largest = sorted(found, key=lambda item: item.size, reverse=True)[:_LARGEST_SHOWN]
    lines = "".join(f"\n  {item.size:>15,}  {item.path}" for item in largest)
    raise errors.TooLarge(
        f"the folder has {total:,} bytes, over the limit of {max_bytes:,}; the largest files:{lines}",
        [(item.path, item.size) for item in largest],
    )
