"""Messages of the page: lists in JSON, untrusted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_CELLS: Final = 1_000
"""Limit of width and height, above the size of any screen."""
_USUAL: Final = (80, 24)


@dataclass(frozen=True, slots=True)
class Typed:
    """Keys, pasted text, or mouse events, as a terminal sends them."""

    text: str


@dataclass(frozen=True, slots=True)
class Resized:
    """The terminal's new size, in cells."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Pinged:
    """A ping: its word is returned."""

    word: str


@dataclass(frozen=True, slots=True)
class Focused:
    """Whether it has the focus."""

    has_focus: bool


Said = Typed | Resized | Pinged | Focused


def understood(message: str) -> Said | None:
    """Parse a message; None for one that the page never sends."""
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        return None
    match said:
        case ["stdin", str(text)] if _is_text(text):
            return Typed(text)
        case ["resize", {"width": width, "height": height}]:
            size = _cells(width), _cells(height)
            return Resized(*size) if all(size) else None
        case ["ping", str(word)] if _is_text(word):
            return Pinged(word[:64])
        case ["focus" | "blur" as kind]:
            return Focused(kind == "focus")
    return None


def first_size(asked: Mapping[str, str]) -> tuple[int, int]:
    """Columns and rows in the address of the connection, else the defaults."""
    width, height = (
        _cells(int(text)) if (text := asked.get(name, "")).isdecimal() and len(text) < 6 else 0
        for name in ("width", "height")
    )
    return width or _USUAL[0], height or _USUAL[1]


def _cells(value: Any) -> int:
    """Return a valid number of cells; 0 for others."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return min(value, MOST_CELLS) if is_number and value > 0 else 0


def _is_text(text: str) -> bool:
    """JSON allows lone surrogates, too, which no program can receive."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
