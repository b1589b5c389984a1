"""How much a page of a listing holds."""

from __future__ import annotations

from typing import Final

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1_000


def page_size(wanted: int) -> int:
    """How much a page holds when so much was asked for; 0 leaves it open."""
    return min(wanted or DEFAULT_PAGE, LARGEST_PAGE)
