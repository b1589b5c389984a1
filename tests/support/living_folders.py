"""Files of folders that other programs change meanwhile: `Path.rglob` raises if a folder disappears."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def files_below(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """Yield the regular files below a folder with paths that match the pattern, from the right as in `Path.match`."""
    for base, _, names in os.walk(folder):
        paths = (Path(base, name) for name in names)
        yield from (path for path in paths if path.match(pattern) and path.is_file())


def sizes_below(folder: Path, pattern: str = "*") -> Iterator[int]:
    """Yield the sizes of these files, in bytes, except of files removed or renamed meanwhile."""
    for path in files_below(folder, pattern):
        with suppress(FileNotFoundError):
            yield path.stat().st_size
