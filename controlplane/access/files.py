"""Files that only their owner may read, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


class Exposed(PermissionError):
    """Others may read the file, so what it says is no secret any more.

    Attributes:
        content: what it says, so that it can be made worthless.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(f"{path} may be read by others: chmod 600, and renew the secret")
        self.content = content


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600 so that a crash leaves the old one or the new one.

    When this returns it is the new one, even after a power cut: a token or an authority that others
    have heard of is not lost.
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
    """Read such a file; None when it is not there.

    Raises:
        Exposed: others may read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read()
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise Exposed(path, content)
        return content
