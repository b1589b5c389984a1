"""Names of files in messages and ignore files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence


def files_text(count: int) -> str:
    """Return a count of files in words."""
    return counted(count, "file")


def pattern_of(path: str) -> str:
    """Return the line of an ignore file that matches the path with this text."""
    plain = re.sub(r"(?:\\x[0-9a-f]{2})+", "*", path)
    return "/" + re.sub(r"([\[?]| $)", r"\\\1", plain)


def shortened(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and the number of further ones."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")
