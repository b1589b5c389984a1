"""A text stream for logs, which may be cut but never stop what writes them."""

from __future__ import annotations

import contextlib
from typing import TextIO


class LossyText:
    """Writes to a stream; what it does not take (a full disk, a closed pipe) is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written; the length of the text, as if it was all."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what the stream holds."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
