"""Sparse files of programs: holes do not count for disk limits, but take as long to read as data."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

SPARSE_TIMES: Final = 8
"""A file larger than this many times its data is sparse."""
_BLOCK: Final = 512
"""Bytes of a block in `stat`, on every file system."""
_MOST_PIECES: Final = 100_000
"""Pieces of data that are examined; the rest counts as data."""


def may_be_sparse(facts: os.stat_result) -> bool:
    """Return whether a regular file takes little disk space for its size; some file systems count no blocks."""
    return stat.S_ISREG(facts.st_mode) and facts.st_size > SPARSE_TIMES * facts.st_blocks * _BLOCK


def data_bytes(file: int) -> int:
    """Return the bytes of an open file outside holes. Raises OSError."""
    found = at = 0
    for _ in range(_MOST_PIECES):
        try:
            begin = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return found
            raise
        at = os.lseek(file, begin, os.SEEK_HOLE)
        found += at - begin
    return found + max(os.fstat(file).st_size - at, 0)
