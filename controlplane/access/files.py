"""Files that only their owner may read, written atomically."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsml.common import private_files
from nsml.common.private_files import Exposed

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Exposed", "read_private", "write_private"]


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600 so that a crash leaves the old one or the new one.

    When this returns it is the new one, even after a power cut: a published token or authority is
    not lost.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_private(path: Path) -> bytes | None:
    """Read such a file; None if it does not exist.

    Raises:
        Exposed: others may read it.
    """
    try:
        return private_files.read_private(str(path), flags=os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
