"""A folder to a manifest and a source of its chunks.

Three passes: list (names, sizes and limits, so that a mistake is told at once), describe (read and
hash), send (read again what the other end lacks, against the digests). Nothing is held in memory but
one window of one file.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsml._path_text import path_text
from nsml.content import errors
from nsml.content.chunks import MAX_CHUNK, chunks_of
from nsml.content.digests import digest_of
from nsml.content.ignore import IGNORE_FILE, IgnoreRules
from nsml.content.manifest import ChunkRef, Entry, Manifest, build
from nsml.content.paths import MAX_DEPTH, native_parts, split_path
from nsml.content.safe_paths import Beneath, Listed, Parts, beneath

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

# Code beyond this is usually a forgotten data folder: NSML warned, and so do we.
CODE_WARN_BYTES = 10_000_000
CODE_WARNING = (
    "Warning: Your session has a total size of over  10 MB You may want to add unnecessary files"
    " and directories to the ignore list. (e.g. the .git directory)"
)
CODE_LIMIT_BYTES = 512 << 20
MAX_FILES = 1_000_000
_LARGEST_SHOWN = 5
_REPLACED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""Of a file that was found before: it, or a folder above it, is gone or a link."""
_SKIPPED_COUNTED = 20_000
_ENVIRONMENT_MARKS = {"pyvenv.cfg", "conda-meta"}
"""A folder with one of these is an environment of Python packages; its links lead to this machine's Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far describing has come: files and bytes, done and in all."""

    files: int
    bytes: int
    files_total: int
    bytes_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """What the ignore rules left out; not `is_complete` when counting was cut short."""

    files: int = 0
    bytes: int = 0
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class _Found:
    path: str  # as text
    parts: Parts  # where the content really is: differs from path below a link
    size: int
    mode: int


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    parts: Parts
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A described folder; `source` gives its chunks while the folder is unchanged."""

    manifest: Manifest
    source: ChunkSource
    skipped: Skipped
    special: tuple[str, ...] = ()
    """Sockets, pipes and devices, each with its kind: left out, for there is nothing to send."""
    environments: tuple[str, ...] = ()
    """Folders with an environment of Python packages, left out by IgnoreRules.skips_environments."""
    empty: tuple[str, ...] = ()
    """Folders without anything in them: a manifest lists files only."""
    unread: tuple[str, ...] = ()
    """Ignore files below the top, which are not read."""

    def warnings(self, warn_bytes: int = CODE_WARN_BYTES) -> tuple[str, ...]:
        """What the user should know before it is sent."""
        return (CODE_WARNING,) if self.manifest.size > warn_bytes else ()


class ChunkSource:
    """Reads chunks of a described folder again. Not for use by several threads at once."""

    def __init__(self, root: Path, places: dict[str, tuple[_Place, int]]) -> None:
        self._root = root
        self._places = places

    def read(self, digest: str) -> bytes:
        """The chunk that `digest` names.

        Raises KeyError for a digest that the manifest does not name, ChangedWhilePacking when the
        file holds something else by now, Unreadable when it cannot be read any more.
        """
        with _open_root(self._root) as folder:
            return self._read(folder, digest)

    def batches(self, digests: Collection[str], *, max_bytes: int = 1 << 20) -> Iterator[Batch]:
        """The chunks named, each once, grouped so that thousands of small files travel together.

        A batch holds at most `max_bytes`, or one larger chunk (at most 3 MiB). The order is that of
        the folder, which reads each file once from front to back.
        """
        wanted = set(digests)
        batch: list[tuple[str, bytes]] = []
        held = 0
        with _open_root(self._root) as folder:
            for digest in [digest for digest in self._places if digest in wanted]:
                size = self._places[digest][1]
                if batch and held + size > max_bytes:
                    yield tuple(batch)
                    batch, held = [], 0
                batch.append((digest, self._read(folder, digest)))
                held += size
        if batch:
            yield tuple(batch)

    def _read(self, folder: Beneath, digest: str) -> bytes:
        place, size = self._places[digest]
        try:
            with os.fdopen(folder.open_file(place.parts), "rb", buffering=0) as file:
                file.seek(place.offset)
                data = _read_exactly(file.read, size)
        except OSError as error:
            raise _lost(place.path, error) from error
        if digest_of(data) != digest:
            raise errors.ChangedWhilePacking(
                place.path,
                f"{place.path} changed while it was sent; run the command again once nothing writes to it",
            )
        return data


Batch = tuple[tuple[str, bytes], ...]


def pack(
    root: Path,
    *,
    ignore: IgnoreRules | None = None,
    max_bytes: int = CODE_LIMIT_BYTES,
    max_files: int = MAX_FILES,
    progress: Callable[[Progress], None] | None = None,
) -> Packed:
    """Describe the regular files of `root` that `ignore` leaves in.

    A link that stays inside the folder counts as what it leads to. Raises a PackRefused that names
    the path: LinkRefused, Unreadable, EmptyFolder, TooLarge; or PathRefused for one that is too long or too deep.
    """
    with _open_root(root) as folder:
        listing = _Listing(root, folder, ignore or IgnoreRules(()), max_files)
        found = listing.run()
        _check_size(found, max_bytes)
        manifest, places = _described(folder, found, progress)
    return Packed(
        manifest=manifest,
        source=ChunkSource(root, places),
        skipped=listing.skipped(),
        special=tuple(listing.special),
        environments=tuple(listing.environments),
        empty=tuple(listing.empty),
        unread=tuple(listing.unread),
    )


def pack_file(
    file: Path, *, max_bytes: int, progress: Callable[[Progress], None] | None = None
) -> Packed:
    """Describe one file as a folder that has it alone, under its name; a link as what it leads to.

    Raises as `pack` does.
    """
    path, real = path_text(file.name), file.resolve()
    split_path(path)
    with _open_root(real.parent) as folder:
        try:
            facts = folder.lstat((real.name,))
        except OSError as error:
            raise errors.Unreadable(path, _unreadable(path, error)) from error
        if not stat.S_ISREG(facts.st_mode):
            raise errors.Unreadable(path, f"cannot read {path}: it is {_kind(facts.st_mode)}")
        found = [_Found(path, (real.name,), facts.st_size, _mode(facts.st_mode))]
        _check_size(found, max_bytes)
        manifest, places = _described(folder, found, progress)
    return Packed(manifest=manifest, source=ChunkSource(real.parent, places), skipped=Skipped())


def pack_files(
    root: Path, paths: Collection[str], *, max_bytes: int, owner: int | None = None
) -> Packed:
    """Describe the files `paths`, as text, of `root` and look at nothing else, however much is there.

    Follows no link, and no files are a tree too. Raises as `pack` does else; Unreadable also for
    what is missing or no regular file, or belongs to another uid than `owner`: whoever reads with
    more rights than the folder's owner has must not be led to others' files by hard links.
    """
    with _open_root(root, owner) as folder:
        found = [_found(folder, path) for path in sorted(set(paths))]
        _check_size(found, max_bytes)
        manifest, places = _described(folder, found)
    return Packed(manifest=manifest, source=ChunkSource(root, places), skipped=Skipped())


def _found(folder: Beneath, path: str) -> _Found:
    parts = native_parts(path)
    try:
        facts = folder.lstat(parts)
    except OSError as error:
        raise errors.Unreadable(path, _unreadable(path, error)) from error
    if not stat.S_ISREG(facts.st_mode):
        raise errors.Unreadable(path, f"cannot read {path}: it is no regular file")
    return _Found(path, parts, facts.st_size, _mode(facts.st_mode))


def _mode(mode: int) -> int:
    """Of a file's permissions only whether its owner may execute it travels."""
    return 0o755 if mode & stat.S_IXUSR else 0o644


class _Listing:
    """Lists a folder: files in order of their paths, links resolved, what is ignored counted."""

    def __init__(self, root: Path, folder: Beneath, ignore: IgnoreRules, max_files: int) -> None:
        self._root = os.path.realpath(root)
        self._folder = folder
        self._ignore = ignore
        self._max_files = max_files
        self.special: list[str] = []
        self.environments: list[str] = []
        self.empty: list[str] = []
        self.unread: list[str] = []
        self._found: list[_Found] = []
        self._skipped_files = 0
        self._skipped_bytes = 0
        self._uncounted = False

    def run(self) -> list[_Found]:
        """Every file that is to be packed."""
        self._enter((), (), ((),))
        if not self._found:
            count = self._skipped_files
            left_out = f" (ignored: {count} {'file' if count == 1 else 'files'})" if count else ""
            raise errors.EmptyFolder(".", f"the folder has no files to send{left_out}")
        return self._found

    def skipped(self) -> Skipped:
        """What was left out."""
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
        is_link = stat.S_ISLNK(item.mode)
        # As in git, a pattern for folders does not leave out a link to one.
        if self._ignore.ignores(name, is_folder=stat.S_ISDIR(item.mode)):
            self._skip(parts, item)
            return
        path = path_text(name)
        if is_link:
            parts = self._resolve(path, parts)
            facts = self._lstat(path, parts)
            item = Listed(item.name, facts.st_mode, facts.st_size)
        if stat.S_ISDIR(item.mode):
            if parts in chain:
                raise errors.LinkRefused(path, f"the link {path} leads back to its own folder")
            above = tuple(parts[:depth] for depth in range(len(parts))) if is_link else ()
            self._enter(logical, parts, (*chain, *above, parts))
        elif stat.S_ISREG(item.mode):
            self._add(path, parts, item)
        else:
            self.special.append(f"{path} ({_kind(item.mode)})")

    def _add(self, path: str, parts: Parts, item: Listed) -> None:
        split_path(path)
        self._found.append(_Found(path, parts, item.size, _mode(item.mode)))
        if path.endswith(f"/{IGNORE_FILE}"):
            self.unread.append(path)
        if len(self._found) > self._max_files:
            raise errors.TooLarge(f"the folder has more than {self._max_files} files", ())

    def _resolve(self, path: str, parts: Parts) -> Parts:
        """Where inside the folder a link leads, as parts without links."""
        link = os.path.join(self._root, *parts)  # noqa: PTH118 - Path would fold `..` away
        target = os.path.realpath(link)
        try:
            inside = os.path.commonpath([self._root, target]) == self._root
        except ValueError:  # another drive
            inside = False
        if not inside:
            where = path_text(target)
            raise errors.LinkRefused(path, f"the link {path} leaves the folder: {where}")
        return Path(target).relative_to(self._root).parts

    def _scan(self, path: str, parts: Parts) -> list[Listed]:
        try:
            return self._folder.scan(parts)
        except OSError as error:
            raise errors.Unreadable(path, _unreadable(path, error)) from error

    def _lstat(self, path: str, parts: Parts) -> os.stat_result:
        try:
            facts = self._folder.lstat(parts)
        except FileNotFoundError as error:
            raise errors.LinkRefused(path, f"the link {path} leads nowhere") from error
        except OSError as error:
            raise errors.Unreadable(path, _unreadable(path, error)) from error
        if stat.S_ISLNK(facts.st_mode):  # realpath stops at a link that leads to itself
            raise errors.LinkRefused(path, f"the link {path} leads in a circle")
        return facts

    def _skip(self, parts: Parts, item: Listed) -> None:
        """Count what is left out, for the user to see; a count that costs little."""
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


def _described(
    folder: Beneath, found: list[_Found], progress: Callable[[Progress], None] | None = None
) -> tuple[Manifest, dict[str, tuple[_Place, int]]]:
    describing = _Describing(folder, found, progress)
    entries = [describing.entry(item) for item in found]
    return build(entries), describing.places


class _Describing:
    """Reads and hashes the listed files, and remembers where each chunk is."""

    def __init__(
        self,
        folder: Beneath,
        found: list[_Found],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.places: dict[str, tuple[_Place, int]] = {}
        self._folder = folder
        self._progress = progress
        self._files_total = len(found)
        self._bytes_total = sum(item.size for item in found)
        self._files = 0
        self._bytes = 0

    def entry(self, item: _Found) -> Entry:
        """The manifest entry of one file, as it is now; of one that grows, what was listed."""
        chunks: list[ChunkRef] = []
        offset = 0
        try:
            with os.fdopen(self._folder.open_file(item.parts), "rb", buffering=0) as file:
                for data in chunks_of(_Beginning(file.read, item.size)):
                    ref = ChunkRef(digest_of(data), len(data))
                    place = _Place(item.path, item.parts, offset)
                    self.places.setdefault(ref.digest, (place, ref.size))
                    chunks.append(ref)
                    offset += len(data)
                    if len(chunks) > 1:
                        self._tell(0, len(data))
        except OSError as error:
            raise _lost(item.path, error) from error
        self._tell(1, chunks[0].size if chunks else 0)
        return Entry(path=item.path, mode=item.mode, size=offset, chunks=tuple(chunks))

    def _tell(self, files: int, size: int) -> None:
        self._files += files
        self._bytes += size
        if self._progress is not None:
            self._progress(
                Progress(
                    files=self._files,
                    bytes=self._bytes,
                    files_total=self._files_total,
                    bytes_total=max(self._bytes_total, self._bytes),
                )
            )


class _Beginning:
    """The first `size` bytes of a file: one that grows while it is read might never end."""

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read = read
        self._left = size

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""
        piece = self._read(min(size, self._left))
        self._left -= len(piece)
        return piece


def _open_root(root: Path, owner: int | None = None) -> Beneath:
    """Open the folder to pack, or say why it cannot be."""
    try:
        return beneath(root, owner)
    except FileNotFoundError as error:
        raise errors.PackRefused(".", f"there is no folder {root}") from error
    except NotADirectoryError as error:
        raise errors.PackRefused(".", f"{root} is not a folder") from error
    except OSError as error:
        raise errors.Unreadable(".", _unreadable(str(root), error)) from error


def _check_size(found: list[_Found], max_bytes: int) -> None:
    total = sum(item.size for item in found)
    if total <= max_bytes:
        return
    largest = sorted(found, key=lambda item: item.size, reverse=True)[:_LARGEST_SHOWN]
    lines = "".join(f"\n  {item.size:>15,}  {item.path}" for item in largest)
    raise errors.TooLarge(
        f"the folder has {total:,} bytes, over the limit of {max_bytes:,}; the largest files:{lines}",
        [(item.path, item.size) for item in largest],
    )


def _read_exactly(read: Callable[[int], bytes | None], size: int) -> bytes:
    """`size` bytes, or fewer where the file ends before."""
    pieces = []
    missing = min(size, MAX_CHUNK)
    while missing:
        piece = read(missing)
        if not piece:
            break
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _lost(path: str, error: OSError) -> errors.PackRefused:
    """Why a file that was found before cannot be read."""
    if error.errno not in _REPLACED:
        return errors.Unreadable(path, _unreadable(path, error))
    return errors.ChangedWhilePacking(
        path,
        f"{path} was removed or replaced while it was sent; run the command again once nothing changes it",
    )


def _unreadable(path: str, error: OSError) -> str:
    return f"cannot read {path}: {error.strerror or error}"


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
