"""Disk space reserved early, for a small file that must be written to a full disk.

A program that fills the disk must not prevent the record of its own end: its devices are
freed after that. Standard library only: shims use it.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_BYTES = 4096
_LONGEST_MESSAGE = 250
"""JSON takes up to twelve bytes for a character; the other fields stay under 1000."""


def take(folder: str) -> None:
    """Reserve space in `folder`."""
    _write(_path(folder), b" " * _BYTES, os.O_CREAT | os.O_TRUNC)


def spend(folder: str, name: str, content: Mapping[str, object]) -> None:
    """Write `content` as JSON to `name` in `folder`, atomically and durably, into the reserved space.

    Overwriting needs no new blocks where files are changed in place. A `message` that does not
    fit is truncated.

    Raises:
        OSError: no space is reserved, or the write fails anyway.
    """
    encoded = json.dumps(content).encode()
    if len(encoded) > _BYTES:
        message = str(content["message"])[:_LONGEST_MESSAGE]
        encoded = json.dumps({**content, "message": message}).encode()
    path = _path(folder)
    # Trailing spaces are valid JSON.
    _write(path, encoded.ljust(_BYTES)[:_BYTES], 0)
    os.rename(path, os.path.join(folder, name))
    flush_names(folder)


def flush_names(folder: str) -> None:
    """Flush the names in `folder` to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _path(folder: str) -> str:
    return os.path.join(folder, ".reserve")


def _write(path: str, content: bytes, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        written = os.write(descriptor, content)
        if written != len(content):
            raise OSError("the disk took a part only")
        if not flags & os.O_CREAT:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
