"""Page size of listings."""

from __future__ import annotations

from typing import Final

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1_000


def page_size(wanted: int) -> int:
    """Return the size of a page for a requested size; 0: default."""
    return min(wanted or DEFAULT_PAGE, LARGEST_PAGE)
