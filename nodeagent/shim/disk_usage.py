"""Measures the disk usage of a replica, a little at a time.

Standard library only: it runs in the shim, which has signals and deadlines to handle while a program may
have created millions of files. No file of user code is followed or trusted.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
BLOCK = 512
FILE_BYTES = 4096
"""Minimum size of a file or folder: an empty one takes an inode, which are limited too."""
MOST_PENDING = 500_000
"""Most folders queued in a walk: some 50 MB of names."""

Node = tuple["Node | None", str]
"""A folder as its parent and its name: deep paths cost no more."""


class Measurement:
    """One walk over `folders` and `files` of the folder `place`; call `advance` until it is `done`.

    `occupied_bytes` is the sum so far: allocated blocks, so that holes do not count, and for each
    file FILE_BYTES at least; a file with several names is divided among them. `file_count` counts files. `has_too_many`: some folders were left out.
    """

    def __init__(self, place: str, folders: Sequence[str], files: Sequence[str]) -> None:
        self.occupied_bytes = 0
        self.file_count = 0
        self.done = False
        self.has_too_many = False
        self._place = place
        self._steps = self._walk(folders, files)

    def advance(self, seconds: float) -> None:
        """Continue for `seconds`, or to the end."""
        until = time.monotonic() + seconds
        for _ in self._steps:
            if time.monotonic() >= until:
                return
        self.done = True

    def _walk(self, folders: Sequence[str], files: Sequence[str]) -> Iterator[None]:
        for name in files:
            with contextlib.suppress(OSError):
                path = os.path.join(self._place, name)
                self._count(os.stat(path, follow_symlinks=False))
        pending: list[Node] = [(None, name) for name in folders]
        while pending:
            node = pending.pop()
            # changed or unreadable folders are skipped
            with contextlib.suppress(OSError), _opened(self._place, node) as folder:
                self._count(os.fstat(folder))
                with os.scandir(folder) as entries:
                    for entry in entries:
                        yield
                        # each by itself: a removed file must not hide those after it
                        with contextlib.suppress(OSError):
                            self._meet(entry, node, pending)
            yield

    def _meet(self, entry: os.DirEntry[str], folder: Node, pending: list[Node]) -> None:
        """Count one entry of a folder, or queue it. Raises OSError if it was removed."""
        if not entry.is_dir(follow_symlinks=False):
            self._count(entry.stat(follow_symlinks=False))
        elif len(pending) < MOST_PENDING:
            pending.append((folder, entry.name))
        else:
            self.has_too_many = True

    def _count(self, found: os.stat_result) -> None:
        links = 1 if stat.S_ISDIR(found.st_mode) else max(found.st_nlink, 1)
        self.occupied_bytes += max(found.st_blocks * BLOCK, FILE_BYTES) // links
        self.file_count += 1


@contextlib.contextmanager
def _opened(place: str, node: Node) -> Iterator[int]:
    """Yield a descriptor of a folder, opened name by name and through no link. Raises OSError."""
    names = []
    at: Node | None = node
    while at is not None:
        at, name = at
        names.append(name)
    here = os.open(place, _FOLDER)
    try:
        while names:
            below = os.open(names.pop(), _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)
