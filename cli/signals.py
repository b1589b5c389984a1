"""Signals that end this program."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C inside the block. Ignored signals, as under nohup, stay ignored."""
    taken = [one for one in _ENDING if signal.getsignal(one) == signal.SIG_DFL]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        # A closing terminal may send several: the cleanup of the first is not interrupted.
        for one in taken:
            signal.signal(one, signal.SIG_IGN)
        if not callable(signal.getsignal(signal.SIGINT)):  # ignored in a script's background jobs
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    for one in taken:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)
