"""Settings of the C library's allocator: programs that relay bytes keep freed memory for reuse."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 << 20
"""Free memory kept at the end of the heap; the default is half a megabyte, two pieces of a byte stream."""
_MAPPED_BYTES: Final = 4 << 20
"""Allocations from this size on are returned to the system at once when freed: no message is as large."""


def keep_freed_memory() -> None:
    """Keep up to 32 MiB of freed memory for the next piece.

    By default glibc returns it after each piece of 256 KiB and requests it again for the next one. The kernel clears
    it each time, which was two thirds of the cost of relaying bytes. Other C libraries are unaffected.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
