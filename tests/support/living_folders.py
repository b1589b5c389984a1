"""Files of folders in which programs go on making and removing some: `Path.rglob` raises where one goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """Every regular file that is there whose path ends like the pattern, as far as it stays until it is come to."""
    for base, _, names in os.walk(folder):
        paths = (Path(base, name) for name in names)
        yield from (path for path in paths if path.match(pattern) and path.is_file())
