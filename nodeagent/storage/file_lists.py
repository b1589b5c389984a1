"""Lists the files that a program left in a folder, one by one, so that nobody holds long lists. Blocking."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nodeagent.safe_paths import walk
from nsml._path_text import path_text
from nsml.content.paths import MAX_DEPTH

MOST_FILES = 1_000_000
"""Most files that the agent can describe at once."""
MOST_NAME_CHARS = 48
"""Characters shown of each path where several left-out files are named."""


def regular_files(folder: int) -> Iterator[str]:
    """Yield paths of the regular files below the open folder, as text. Raises OSError; ValueError: too many, or too deep."""
    count = 0
    for parts, folders, names, here in walk(folder):
        if len(parts) >= MAX_DEPTH and folders:
            raise ValueError(f"folders are nested more than {MAX_DEPTH} deep")
        for name in names:
            if stat.S_ISREG(os.lstat(name, dir_fd=here).st_mode):
                count += 1
                if count > MOST_FILES:
                    raise ValueError(f"more than {MOST_FILES:,} files")
                yield path_text("/".join([*parts, name]))


def count_files(folder: int) -> int:
    """Count them. Raises as `regular_files`."""
    return sum(1 for _ in regular_files(folder))
