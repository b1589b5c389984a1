"""A text stream for logs that drops text rather than fail its writer."""

from __future__ import annotations

import contextlib
from typing import TextIO


class LossyText:
    """Writes to a stream; failed writes (a full disk, a closed pipe) are dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what is possible; return the whole text's length."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
