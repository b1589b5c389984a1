"""Files of programs with holes: they count for no disk limit, and take the agent as long to read as data."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

SPARSE_TIMES: Final = 8
"""A file with more bytes than so many times its data is sparse."""
_BLOCK: Final = 512
"""Bytes of a block as `stat` counts them, whatever the file system's are."""
_MOST_PIECES: Final = 100_000
"""Pieces of data that are told from holes: what is behind them counts as data."""


def may_be_sparse(facts: os.stat_result) -> bool:
    """Whether a regular file takes little of the disk for its size; some file systems count no blocks."""
    return stat.S_ISREG(facts.st_mode) and facts.st_size > SPARSE_TIMES * facts.st_blocks * _BLOCK


def data_bytes(file: int) -> int:
    """Bytes of an open file that are in no hole. Raises OSError."""
    found = at = 0
    for _ in range(_MOST_PIECES):
        try:
            begin = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return found
            raise
        at = os.lseek(file, begin, os.SEEK_HOLE)
        found += at - begin
    return found + max(os.fstat(file).st_size - at, 0)
