"""Paths of datasets in place: which are below the folders that a site, or a node, has for them. Of the texts alone."""

from __future__ import annotations

from posixpath import normpath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_SHARED_ROOTS: Final = 64
"""Of one node."""


def place_of(text: str, roots: Iterable[str]) -> str:
    """The first of the roots that a path is below, "" for none; for absolute paths without `.`, `..` and `//`."""
    if not is_plain(text):
        return ""
    return next(
        (root for root in roots if text == root or text.startswith(f"{root.rstrip('/')}/")), ""
    )


def is_plain(text: str) -> bool:
    """Whether it is an absolute path that says nothing twice: no `.`, `..`, `//`, nor a slash at its end."""
    return text.startswith("/") and text == normpath(text) and not text.startswith("//")
