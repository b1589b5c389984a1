"""Log rotation by size for programs that run for months."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

LONGEST_LOG_BYTES: Final = 32 << 20
_OUTPUTS: Final = (1, 2)
"""File descriptors of stdout and stderr."""


def put_aside(log: Path, most_bytes: int = LONGEST_LOG_BYTES) -> None:
    """Rename a log of more bytes to NAME.1, replacing the previous one; its writer has to reopen it."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > most_bytes:
            log.replace(_aside(log))


def copy_aside(log: Path, most_bytes: int = LONGEST_LOG_BYTES) -> None:
    """Like `put_aside`, for a log whose writer does not reopen it: it is copied and truncated.

    Lines written meanwhile may be lost, as with `copytruncate` of logrotate.
    """
    with contextlib.suppress(OSError):
        if log.stat().st_size > most_bytes:
            shutil.copyfile(log, _aside(log))
            os.truncate(log, 0)


def _aside(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


class RotatedOutput:
    """Writes to `stream`, this program's standard error; rotates it if it is `log`.

    The descriptors of stdout and stderr are replaced: output of libraries and the interpreter moves to the new file, too.
    """

    def __init__(self, stream: TextIO, log: Path, most_bytes: int) -> None:
        self._stream = stream
        self._log = log
        self._most_bytes = most_bytes
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Write a text, after a rotation if the log is full."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._rotate()
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def _rotate(self) -> None:
        written = os.fstat(self._stream.fileno())
        if written.st_size <= self._most_bytes or not os.path.samestat(written, self._log.stat()):
            return
        outputs = [number for number in _OUTPUTS if os.path.samestat(os.fstat(number), written)]
        self._log.replace(_aside(self._log))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        new = os.open(self._log, flags, 0o600)
        try:
            for number in outputs:
                os.dup2(new, number)
        finally:
            os.close(new)
