"""Page sizes and cursors of listings."""

from __future__ import annotations

import math
from typing import Final

from controlplane.domain.errors import InvalidRequest
from controlplane.history.values import PageKey

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1_000
_LONGEST_ID: Final = 80


def page_size(wanted: int) -> int:
    """Return the size of a page for a requested size; 0: default."""
    return min(wanted or DEFAULT_PAGE, LARGEST_PAGE)


def cursor_behind(key: PageKey) -> str:
    """Return the cursor of the page behind a key."""
    return f"{key.created_at!r} {key.id}"


def key_in(cursor: str) -> PageKey | None:
    """Return the key in a cursor of `cursor_behind`; None: there is no page before. Raises InvalidRequest."""
    if not cursor:
        return None
    at, _, name = cursor.partition(" ")
    try:
        key = PageKey(float(at), name)
    except ValueError:
        key = PageKey(math.nan, name)
    is_id = name.isascii() and name.isprintable() and 0 < len(name) <= _LONGEST_ID
    if not (is_id and math.isfinite(key.created_at)):
        raise InvalidRequest("the cursor is not one of this platform's")
    return key
