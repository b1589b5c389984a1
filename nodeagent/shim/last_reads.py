"""Followers of the SDK read a program's event files to their end after it: nothing is killed meanwhile.

Each has a file, named by its pid, in a folder of the run folder until it has ended (`nsml/_echo/_follow.py`). That is
the program's own folder, so what it says only delays the end of that program, and not for long.
"""

from __future__ import annotations

import os

LONGEST_S = 10.0
"""So long at most is waited for followers, in seconds."""
PAUSE_S = 0.02
FOLDER = "echo/following"
_MOST_FILES = 100
_LONGEST_NAME = 7


def remain(run: str) -> bool:
    """Return whether a follower of the run folder is alive, by pids as this process sees them."""
    try:
        names = os.listdir(os.path.join(run, FOLDER))[:_MOST_FILES]
    except OSError:
        return False
    return any(_is_alive(name) for name in names)


def _is_alive(name: str) -> bool:
    if not (name.isdecimal() and len(name) <= _LONGEST_NAME and int(name) > 1):
        return False
    try:
        os.kill(int(name), 0)
    except OSError:
        return False
    return True
