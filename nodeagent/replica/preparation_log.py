"""Messages of a replica's preparation, at the beginning of its log.

They are appended to the replica's `output`, before the output of its program: one file, so
that offsets continue, and nothing in it is ever rewritten. An agent that continues a preparation
appends to the messages of the one before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.folders import ReplicaFolder

_MOST_BYTES = 16 << 20


class PreparationLog:
    """Appends to a replica's output before its program runs; `begun` is called at the first message.

    Blocking; for one thread at a time, any thread.
    """

    def __init__(self, folder: ReplicaFolder, begun: Callable[[], object]) -> None:
        self._folder = folder
        self._begun = begun
        self._written = 0

    def note(self, sentence: str) -> None:
        """Write a message of the platform."""
        self.write(f"nsml: {sentence}\n".encode())

    def write(self, text: bytes) -> None:
        """Append `text`, up to a bound in all. Raises OSError, for example on a full disk."""
        text = text[: _MOST_BYTES - self._written]
        if not text:
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._folder.output, flags, 0o600)
        try:
            if not self._written and _breaks_off(descriptor):
                text = b"\n" + text
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        if not self._written:
            self._begun()
        self._written += len(text)


def _breaks_off(output: int) -> bool:
    """Whether the output ends within a line."""
    size = os.fstat(output).st_size
    return size > 0 and os.pread(output, 1, size - 1) != b"\n"
