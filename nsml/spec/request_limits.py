"""The least and the most that a session may ask for: beyond it the platform refuses, and the command line says so first."""

from __future__ import annotations

from typing import Final

LEAST_MEMORY_BYTES: Final = 6 << 20
"""Below it no program runs: container engines refuse less, too."""
LEAST_FILE_BYTES: Final = 4096
"""What a file counts for on disk at least: an empty one takes an inode, of which a disk has as few."""
LEAST_DISK_BYTES: Final = 1 << 20
"""Below it not even the program's own files would fit: nothing could run."""
LEAST_SHM_BYTES: Final = 1 << 20

MOST_REPLICAS: Final = 64
MOST_RETRIES: Final = 100
MOST_PROCESSES: Final = 1 << 22
"""The most that Linux numbers."""

LONGEST_GRACE_S: Final = 3_600.0
LONGEST_S: Final = 10 * 365 * 86_400.0
"""Of time limits, and of what is waited for a lost node."""
LEAST_IDLE_S: Final = 60.0
"""Of an idle limit: a program that only pauses is not stopped."""


def meant_words(count: int) -> str:
    """What somebody may have meant who asked for so many bytes: `300 is bytes; 300M?`."""
    return f"{count} is bytes; {count}M?"
