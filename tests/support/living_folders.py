"""Files of folders in which programs go on making and removing some: `Path.rglob` raises where one goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """Every regular file that is there, as far as it stays until it is come to."""
    for base, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(base, name)).is_file())
