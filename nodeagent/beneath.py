"""Folders that user code can write in, reached without following what it may have put there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_folder(root: Path, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder `parts` below `root`; `root` itself is the agent's own.

    Raises OSError where a component is missing (unless `create`), a link, or no folder, and
    ValueError for a component that is not a plain name.
    """
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            if part in {"", ".", ".."} or "/" in part or "\0" in part:
                raise ValueError(f"not a plain name: {part[:80]!r}")
            if create:
                _make(part, here)
            below = os.open(part, _FLAGS, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def path_of(descriptor: int) -> Path:
    """A path that leads to the open folder, wherever it is moved and whatever takes its name."""
    return Path(f"/proc/self/fd/{descriptor}")


def _make(name: str, parent: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
