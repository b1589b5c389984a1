"""Reads command lines of processes, for an agent that must not block.

Standard library only. A command line is in the memory of its process, which can block its reader for ever (its
pages may be those of a file system that does not respond): a process can be killed then, a thread cannot.
"""

from __future__ import annotations

import struct
import sys

HEADER = struct.Struct("=II")


def main() -> None:
    """Arguments after the folder: the most bytes of each, and pids. Writes pid, length and bytes of each in turn."""
    most, pids = int(sys.argv[2]), map(int, sys.argv[3:])
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
                found = file.read(most)
        except OSError:  # gone
            continue
        sys.stdout.buffer.write(HEADER.pack(pid, len(found)) + found)
        sys.stdout.buffer.flush()
