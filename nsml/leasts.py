"""The least that a session may ask for, in bytes: what asks for less has forgotten a unit."""

from __future__ import annotations

from typing import Final

LEAST_MEMORY_BYTES: Final = 6 << 20
"""Below it no program runs: container engines refuse less, too."""
LEAST_FILE_BYTES: Final = 4096
"""What a file counts for on disk at least: an empty one takes an inode, of which a disk has as few."""
LEAST_DISK_BYTES: Final = 1 << 20
"""Below it not even the program's own files would fit: nothing could run."""
LEAST_SHM_BYTES: Final = 1 << 20


def meant_words(count: int) -> str:
    """What somebody may have meant who asked for so many bytes: `300 is bytes; 300M?`."""
    return f"{count} is bytes; {count}M?"
