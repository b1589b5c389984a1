"""Files by key in a folder: storage for the packs without an object service.

Each file is written and flushed under `incoming/`, then renamed: no name leads to a partial file, and
acknowledged files survive a power cut.

A folder can vanish while in use, as when unmounted, and another one appear in its place. So parent folders are
never recreated, and the mark is compared with the one at start-up before every put, and whenever a
missing file matters. Successful reads need no check.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote, urlsplit

from obstore.store import LocalStore

from controlplane.objects.errors import ObjectsUnavailable
from controlplane.objects.files import MARK, Files, translated
from nsml.common.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsml.common.clock import Offload

_INCOMING = "incoming"
_PACKS = "packs"
_ABANDONED_S = 86_400
_WRITE_BYTES = 1 << 20
_MOST_PIECES = os.sysconf("SC_IOV_MAX")
"""Pieces per write call: the system's limit."""


class FolderFiles(Files):
    """Files of a local or a mounted folder.

    Args:
        incoming: subfolder for this process's unfinished files.
    """

    is_folder: ClassVar = True

    def __init__(self, folder: Path, run: Offload, *, incoming: str = _INCOMING) -> None:
        super().__init__(LocalStore(prefix=folder), run)
        self._folder = folder
        self._incoming = incoming
        self._numbers = itertools.count()

    async def put(self, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        """See Files."""
        async with self._at_once:
            with translated(self._advice):
                # A write cannot be cancelled halfway.
                await to_its_end(self._put(key, pieces))

    async def _put(self, key: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Put the file; on failure clean `incoming/`, or leftovers would keep a full disk full."""
        folder, marked = self._folder, self._marked
        incoming = folder / self._incoming
        begun = incoming / f"{next(self._numbers)}-{key.rpartition('/')[2]}"

        def write() -> None:
            _check_folder(folder, marked, incoming)
            _write_flushed(begun, pieces)

        def name() -> None:
            path = folder / key
            is_new = not path.parent.exists()
            path.parent.mkdir(exist_ok=True, mode=0o700)
            begun.rename(path)
            _flush_all([path.parent, path.parent.parent] if is_new else [path.parent])

        try:
            await self.run(write)
            await self.run(name)
        except BaseException:
            await self.run(lambda: _remove(begun))
            raise

    async def _read_ranges(self, key: str, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        path = self._folder / key
        return await self.run(lambda: _ranges_of(path, wanted))

    async def _present(self, keys: Sequence[str]) -> set[str]:
        return await self.run(lambda: _present(self._folder, keys))

    async def _flush_mark(self) -> None:
        await self.run(lambda: _flush_all([self._folder / MARK, self._folder]))

    async def check_there(self) -> None:
        """See Files."""
        folder, marked = self._folder, self._marked
        await self.run(lambda: _check_folder(folder, marked))


def open_folder(folder: Path, run: Offload) -> FolderFiles:
    """Open a local folder, creating it if needed. Blocking.

    Removes unfinished files of earlier processes: only one process at a time writes to a folder.
    """
    (folder / _PACKS).mkdir(parents=True, exist_ok=True, mode=0o700)
    incoming = folder / _INCOMING
    incoming.mkdir(exist_ok=True, mode=0o700)
    for left in incoming.iterdir():
        left.unlink()
    _flush_all([folder])
    return FolderFiles(folder, run)


def shared_folder(url: str) -> Path | None:
    """Return the folder of file:///FOLDER; None for other URLs."""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file://") else None


def open_shared_folder(folder: Path, url: str, run: Offload) -> FolderFiles:
    """Open a folder shared with other writers: each process has its own subfolder of `incoming/`.

    The folder itself is never created: if missing, it is probably not mounted.
    """
    if urlsplit(url).netloc or not folder.is_absolute():
        raise ValueError(f"{url} is no folder: write file:///FOLDER, with three slashes")
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder} here: is it mounted? (mkdir makes a new one)"
        )
    try:
        (folder / _PACKS).mkdir(exist_ok=True, mode=0o700)
        (folder / _INCOMING).mkdir(exist_ok=True, mode=0o700)
        own = Path(tempfile.mkdtemp(prefix="from-", dir=folder / _INCOMING))
        _remove_abandoned(own)
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from error
    _flush_all([folder])
    incoming = f"{_INCOMING}/{own.name}"
    return FolderFiles(folder, run, incoming=incoming)


def _remove_abandoned(own: Path) -> None:
    """Remove unfinished files of other processes older than a day: no put takes that long.

    Age is relative to our new subfolder: the file server's clock may differ from ours.
    """
    before = own.stat().st_mtime - _ABANDONED_S
    for other in own.parent.iterdir():
        with contextlib.suppress(OSError):  # in use again, or removed
            for begun in other.iterdir():
                if begun.stat().st_mtime < before:
                    begun.unlink()
            if other.stat().st_mtime < before:
                other.rmdir()


def _check_folder(folder: Path, marked: str, incoming: Path | None = None) -> None:
    """Raise ObjectsUnavailable unless the folder is the one at start-up; create `incoming` if missing.

    Other processes remove our `incoming` subfolder after a day without puts. Its parents are never
    recreated.
    """
    try:
        if marked:
            is_there = (folder / MARK).read_text(errors="replace").strip() == marked
        else:
            is_there = (folder / _PACKS).is_dir()
    except (FileNotFoundError, NotADirectoryError):
        is_there = False
    except OSError as error:
        raise ObjectsUnavailable(
            "the object store cannot be used now", why=f"{folder}: {error.strerror}"
        ) from error
    if not is_there:
        raise ObjectsUnavailable(
            "the object store is gone",
            why=f"{folder} is not the folder that it was at the start: is it mounted?",
        )
    if incoming is not None and not incoming.exists():
        incoming.mkdir(mode=0o700, exist_ok=True)


def _write_flushed(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write and flush a new file; its folder must exist."""
    with path.open("xb", buffering=0) as file:
        for some in _batches(pieces):
            _write_all(file.fileno(), some)
        os.fsync(file.fileno())


def _batches(pieces: Iterable[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    """Group pieces into writes of up to _WRITE_BYTES: single or larger writes cost more."""
    some: list[bytes | memoryview] = []
    held = 0
    for piece in pieces:
        if some and (held + len(piece) > _WRITE_BYTES or len(some) == _MOST_PIECES):
            yield some
            some, held = [], 0
        some.append(piece)
        held += len(piece)
    if some:
        yield some


def _write_all(opened: int, pieces: list[bytes | memoryview]) -> None:
    while pieces:
        written = os.writev(opened, pieces)
        left: list[bytes | memoryview] = []
        for piece in pieces:
            if written < len(piece):
                left.append(memoryview(piece)[written:])
            written = max(written - len(piece), 0)
        pieces = left


def _ranges_of(path: Path, wanted: Iterable[tuple[int, int]]) -> list[bytes]:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return [os.pread(opened, length, start) for start, length in wanted]
    finally:
        os.close(opened)


def _present(folder: Path, keys: Iterable[str]) -> set[str]:
    """Return the keys that have a file. Raises OSError if unknown."""
    found = set()
    for key in keys:
        with contextlib.suppress(FileNotFoundError):
            os.stat(f"{folder}/{key}")  # noqa: PTH116 - paths are made for thousands
            found.add(key)
    return found


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _flush_all(paths: Iterable[Path]) -> None:
    for path in paths:
        _flush(path)


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
