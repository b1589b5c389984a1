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
    """Have SIGTERM and SIGHUP do within what Ctrl-C does. One that is ignored, as under nohup, stays so."""
    taken = [one for one in _ENDING if signal.getsignal(one) == signal.SIG_DFL]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        # A terminal that closes may send several: what the first one began is done.
        for one in taken:
            signal.signal(one, signal.SIG_IGN)
        if not callable(signal.getsignal(signal.SIGINT)):  # of a script's background jobs
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    for one in taken:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)
