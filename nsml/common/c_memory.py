"""How the C library gives memory back: programs that pass bytes on keep what they use again at once."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 << 20
"""Of free memory at the end of the heap; by itself half a megabyte, two pieces of a byte stream."""
_MAPPED_BYTES: Final = 4 << 20
"""From this size on memory is the system's again as soon as it is free: no message is as large."""


def keep_freed_memory() -> None:
    """Keep up to 32 MiB of what is freed, for the next piece.

    By itself glibc gives it back with each piece of 256 KiB and asks for it again with the next one. The kernel clears
    it each time, which took two thirds of what passing bytes on costs. Other C libraries do as they do.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
