"""Paths of datasets in place: whether they are below the allowed folders of a site or node. Compares texts only."""

from __future__ import annotations

from posixpath import normpath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_SHARED_ROOTS: Final = 64
"""Per node."""


def place_of(text: str, roots: Iterable[str]) -> str:
    """Return the first root that contains a path, "" if none; for absolute paths without `.`, `..` and `//`."""
    if not is_plain(text):
        return ""
    return next(
        (root for root in roots if text == root or text.startswith(f"{root.rstrip('/')}/")), ""
    )


def is_plain(text: str) -> bool:
    """Return whether a text is a normalized absolute path: no `.`, `..`, `//`, nor a slash at its end."""
    return text.startswith("/") and text == normpath(text) and not text.startswith("//")
