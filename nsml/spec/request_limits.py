"""Limits of a session's request: enforced by the platform, and checked first by the command line."""

from __future__ import annotations

from typing import Final

LEAST_MEMORY_BYTES: Final = 6 << 20
"""Below it no program runs: container engines refuse less, too."""
LEAST_FILE_BYTES: Final = 4096
"""Least disk usage counted for a file: an empty one uses an inode, and a disk's inodes are limited, too."""
LEAST_DISK_BYTES: Final = 1 << 20
"""Below it not even the program's own files would fit."""
LEAST_SHM_BYTES: Final = 1 << 20

MOST_REPLICAS: Final = 64
MOST_RETRIES: Final = 100
MOST_PROCESSES: Final = 1 << 22
"""Linux's maximum."""

LONGEST_GRACE_S: Final = 3_600.0
LONGEST_S: Final = 10 * 365 * 86_400.0
"""Of time limits, and of the wait for a lost node."""
LEAST_IDLE_S: Final = 60.0
"""Of an idle limit: a program that only pauses is not stopped."""


def meant_words(count: int) -> str:
    """Suggest a unit for a number without one: `300 is bytes; 300M?`."""
    return f"{count} is bytes; {count}M?"
