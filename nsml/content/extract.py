"""Extracts a tree from its manifest: whole or not at all, and never outside its folder.

The tree is built in a hidden sibling of the target and renamed at the end. Only regular files and
folders are created, each new (O_EXCL) and reached without following links; every chunk is verified
before it is written.

Names that the file system does not support, or does not distinguish (letter case on macOS and Windows, Unicode
normal forms on macOS), fail when their file is created: the tree is then refused with that name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nsml._rights import remove_tree
from nsml.content.digests import verify
from nsml.content.errors import BlobCorrupt, ExtractRefused, PathRefused, TargetExists
from nsml.content.manifest import DEFAULT_LIMITS
from nsml.content.paths import native_parts
from nsml.content.safe_paths import beneath

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Generator
    from types import TracebackType

    from nsml.content.manifest import ChunkRef, EntryLike, Limits
    from nsml.content.stored_manifest import Layout

_ON_WINDOWS = os.name == "nt"
_NOT_ON_WINDOWS = re.compile(
    r"""[<>:"|?*\\] | [. ](?:/|\Z) | (?:^|/)(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])\s*(?:[./]|\Z)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Windows: forbidden characters, names it strips, and device names."""
_NO_SUCH_NAME = (errno.EILSEQ, errno.EINVAL, errno.ENAMETOOLONG)
_MADE_AT_ONCE = 200
"""Files created without a chunk before `advance` returns to its caller."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A chunk and the descriptor to write it to, or neither; `made`: files and folders since the last step."""

    ref: ChunkRef | None = None
    opened: int = -1
    made: int = 0


_END = _Step()


class Extraction:
    """A tree being extracted; a context manager that leaves nothing behind unless `finish` ran.

    Pass the chunks of `manifest.refs()` in that order to `write`, then call `finish`. Raises
    TargetExists if the target exists, ManifestRefused or PathRefused for an invalid tree, ExtractRefused
    for names that this file system does not support, BlobCorrupt for chunks that do not match the manifest,
    OSError from the disk.

    `read_only` leaves files 0444 or 0555 and folders 0555, as for datasets. For durability, the caller
    flushes the tree before it calls `finish`.

    `limits` is None for a manifest already checked by the caller.
    """

    def __init__(
        self,
        manifest: Layout,
        target: Path,
        *,
        limits: Limits | None = DEFAULT_LIMITS,
        read_only: bool = False,
    ) -> None:
        if limits is not None:
            manifest.check(limits)
        if _ON_WINDOWS:
            _check_windows(manifest)
        self._manifest = manifest
        self._target = Path(target)
        self._read_only = read_only
        self._open: tuple[str, ...] = ()
        self._expected = self._steps()
        self._next: _Step | None = None
        self._finished = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if os.path.lexists(self._target):
            raise TargetExists(f"{self._target} is there already")
        parent = self._target.parent
        parent.mkdir(parents=True, exist_ok=True)
        # A character may take four bytes, and a name is limited to 255.
        prefix = f".{self._target.name[:50]}."
        with contextlib.ExitStack() as stack:
            self._partial = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=parent))
            stack.callback(self._remove_unless_finished)
            self._tree = stack.enter_context(beneath(self._partial))
            stack.callback(self._expected.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def advance(self) -> int | None:
        """Create some of the files before the next chunk; return how many files and folders, None if none are left.

        Optional: `write` and `finish` create the rest. It splits long runs of empty files.
        """
        if self._next is not None:
            return None
        step = next(self._expected, _END)
        if step.ref is not None or step is _END:
            self._next = step
        return step.made

    def write(self, data: bytes | memoryview) -> None:
        """Write the next chunk, in the manifest's order."""
        step = self._arrive()
        if step.ref is None:
            raise BlobCorrupt("more chunks than the manifest names")
        ref = step.ref
        if len(data) != ref.size:
            raise BlobCorrupt(f"chunk {ref.digest[:16]} has {len(data)} bytes, not {ref.size}")
        verify(ref.digest, data)
        view = memoryview(data)
        while view:
            view = view[os.write(step.opened, view) :]
        self._next = None

    def finish(self) -> None:
        """Rename the tree to the target; raises BlobCorrupt if chunks are missing."""
        if self._arrive().ref is not None:
            raise BlobCorrupt("the content ended before the manifest did")
        self._close_folders(())
        self._tree.set_mode((), self._folder_mode)
        try:
            self._partial.rename(self._target)
        except OSError as error:
            if os.path.lexists(self._target):
                raise TargetExists(f"{self._target} is there already") from error
            raise
        self._finished = True

    def _arrive(self) -> _Step:
        """Advance to the next chunk."""
        while self._next is None:
            self.advance()
        return self._next

    def _remove_unless_finished(self) -> None:
        if not self._finished:
            remove_tree(str(self._partial))

    def _steps(self) -> Generator[_Step, None, None]:
        """Create the files in order; yield at each chunk, with its descriptor, and after _MADE_AT_ONCE files."""
        made = 0
        for entry in self._manifest.entries:
            parts = native_parts(entry.path)
            with naming(entry.path):
                made += self._make_folders(parts[:-1]) + 1
                opened = self._tree.create_file(parts)
            try:
                for ref in entry.chunks:
                    yield _Step(ref, opened, made)
                    made = 0
            finally:
                os.close(opened)
            self._tree.set_mode(parts, self._mode(entry))
            if made >= _MADE_AT_ONCE:
                yield _Step(made=made)
                made = 0
        if made:
            yield _Step(made=made)

    def _make_folders(self, parts: tuple[str, ...]) -> int:
        """Create missing folders, and close finished ones; return how many were created."""
        if parts == self._open:
            return 0
        self._close_folders(parts)
        made = range(len(self._open) + 1, len(parts) + 1)
        for depth in made:
            self._tree.make_folder(parts[:depth])
        self._open = parts
        return len(made)

    def _close_folders(self, following: tuple[str, ...]) -> None:
        """Set the modes of open folders that do not contain `following`: sorted paths never return to them."""
        while self._open != following[: len(self._open)]:
            self._tree.set_mode(self._open, self._folder_mode)
            self._open = self._open[:-1]

    @property
    def _folder_mode(self) -> int:
        return 0o555 if self._read_only else 0o755

    def _mode(self, entry: EntryLike) -> int:
        return entry.mode & 0o555 if self._read_only else entry.mode


async def extract_stream(
    manifest: Layout,
    chunks: AsyncIterable[bytes],
    target: Path,
    *,
    limits: Limits | None = DEFAULT_LIMITS,
    read_only: bool = False,
) -> None:
    """Extract `manifest` to the new folder `target`, from chunks in the order of its files.

    Raises as Extraction, and whatever `chunks` raises.
    """
    with Extraction(manifest, target, limits=limits, read_only=read_only) as extraction:
        async for data in chunks:
            extraction.write(data)
        extraction.finish()


@contextlib.contextmanager
def naming(path: str) -> Generator[None, None, None]:
    """Raise ExtractRefused with the path if the file system rejects it. In a new tree only a duplicate can exist."""
    try:
        yield
    except FileExistsError as error:
        raise ExtractRefused(
            f"{path} cannot be laid out here: the file system does not tell its name from another one's"
        ) from error
    except OSError as error:
        if error.errno not in _NO_SUCH_NAME:
            raise
        raise ExtractRefused(
            f"{path} cannot be laid out here: the file system has no such names ({error.strerror})"
        ) from error


def _check_windows(manifest: Layout) -> None:
    for entry in manifest.entries:
        if _NOT_ON_WINDOWS.search(entry.path):
            raise PathRefused(entry.path, "Windows has no such names")
