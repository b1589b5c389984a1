"""Lays out a tree from its manifest: whole or not at all, and never outside its folder.

The tree grows in a hidden sibling of the target and takes the target's name at the end. Only
regular files and folders are made, each new (O_EXCL) and reached without following links; every
chunk is held against its digest before it is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nsml.content.beneath import beneath
from nsml.content.digests import verify
from nsml.content.errors import BlobCorrupt, PathRefused, TargetExists
from nsml.content.manifest import DEFAULT_LIMITS, ChunkRef, Entry, Limits, Manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Generator
    from types import TracebackType

_ON_WINDOWS = os.name == "nt"
_WINDOWS_FORBIDDEN = frozenset('<>:"|?*')


class Extraction:
    """One tree being laid out; a context manager that leaves nothing behind unless `finish` ran.

    Feed it the chunks of `manifest.refs()` in that order with `write`, then call `finish`. Raises
    TargetExists when the target is there, ManifestRefused or PathRefused for a tree that may not be
    laid out, BlobCorrupt for bytes that are not what the manifest names, OSError from the disk.

    `read_only` leaves files 0444 or 0555 and folders 0555, as datasets are kept. What
    must outlive a power loss is flushed by the caller before it calls `finish`.
    """

    def __init__(
        self,
        manifest: Manifest,
        target: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        read_only: bool = False,
    ) -> None:
        manifest.check(limits)
        if _ON_WINDOWS:
            _check_windows(manifest)
        self._manifest = manifest
        self._target = Path(target)
        self._read_only = read_only
        self._folders: set[tuple[str, ...]] = {()}
        self._expected = self._steps()
        self._finished = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if os.path.lexists(self._target):
            raise TargetExists(f"{self._target} is there already")
        parent = self._target.parent
        parent.mkdir(parents=True, exist_ok=True)
        # A character may take four bytes, and a name has 255 of them.
        prefix = f".{self._target.name[:50]}."
        with contextlib.ExitStack() as stack:
            self._partial = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=parent))
            stack.callback(self._remove_unless_finished)
            self._tree = stack.enter_context(beneath(self._partial))
            stack.callback(self._expected.close)
            self._next = next(self._expected, None)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def write(self, data: bytes | memoryview) -> None:
        """Take the next chunk of the manifest's order."""
        if self._next is None:
            raise BlobCorrupt("more chunks than the manifest names")
        ref, opened = self._next
        if len(data) != ref.size:
            raise BlobCorrupt(f"chunk {ref.digest[:16]} has {len(data)} bytes, not {ref.size}")
        verify(ref.digest, data)
        view = memoryview(data)
        while view:
            view = view[os.write(opened, view) :]
        self._next = next(self._expected, None)

    def finish(self) -> None:
        """Give the tree its name; raises BlobCorrupt when chunks are missing."""
        if self._next is not None:
            raise BlobCorrupt("the content ended before the manifest did")
        for parts in sorted(self._folders, key=len, reverse=True):
            self._tree.set_mode(parts, 0o555 if self._read_only else 0o755)
        try:
            self._partial.rename(self._target)
        except OSError as error:
            if os.path.lexists(self._target):
                raise TargetExists(f"{self._target} is there already") from error
            raise
        self._finished = True

    def _remove_unless_finished(self) -> None:
        if not self._finished:
            remove_tree(self._partial)

    def _steps(self) -> Generator[tuple[ChunkRef, int], None, None]:
        """Make each file in turn; pause at each chunk with the descriptor that takes it."""
        for entry in self._manifest.entries:
            parts = tuple(entry.path.split("/"))
            self._make_folders(parts[:-1])
            opened = self._tree.create_file(parts)
            try:
                for ref in entry.chunks:
                    yield ref, opened
            finally:
                os.close(opened)
            self._tree.set_mode(parts, self._mode(entry))

    def _make_folders(self, parts: tuple[str, ...]) -> None:
        for depth in range(1, len(parts) + 1):
            if parts[:depth] not in self._folders:
                self._tree.make_folder(parts[:depth])
                self._folders.add(parts[:depth])

    def _mode(self, entry: Entry) -> int:
        return entry.mode & 0o555 if self._read_only else entry.mode


def extract(
    manifest: Manifest,
    read: Callable[[str], bytes],
    target: Path,
    *,
    limits: Limits = DEFAULT_LIMITS,
    read_only: bool = False,
) -> None:
    """Lay out `manifest` as the new folder `target`; `read` gives the chunk of a digest.

    Errors are those of Extraction, and whatever `read` raises.
    """
    with Extraction(manifest, target, limits=limits, read_only=read_only) as extraction:
        for ref in manifest.refs():
            extraction.write(read(ref.digest))
        extraction.finish()


async def extract_stream(
    manifest: Manifest,
    chunks: AsyncIterable[bytes],
    target: Path,
    *,
    limits: Limits = DEFAULT_LIMITS,
    read_only: bool = False,
) -> None:
    """As `extract`, from chunks that arrive in the order of `manifest.refs()`."""
    with Extraction(manifest, target, limits=limits, read_only=read_only) as extraction:
        async for data in chunks:
            extraction.write(data)
        extraction.finish()


def remove_tree(path: Path) -> None:
    """Remove a tree, read-only ones too; no error when it is gone already. Links are not followed."""
    with contextlib.suppress(FileNotFoundError):
        _make_writable(path)
        shutil.rmtree(path)


def _make_writable(path: Path) -> None:
    for folder, names, _ in os.walk(path):
        Path(folder).chmod(0o700)
        # os.walk lists a folder before it enters it, so its own mode must allow that.
        for name in names:
            inner = Path(folder, name)
            if not stat.S_ISLNK(os.lstat(inner).st_mode):
                inner.chmod(0o700)


def _check_windows(manifest: Manifest) -> None:
    for entry in manifest.entries:
        if not _WINDOWS_FORBIDDEN.isdisjoint(entry.path):
            raise PathRefused(entry.path, "it has a character that Windows does not allow")
