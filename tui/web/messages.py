"""What the page says: lists in JSON, of which nothing is believed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_CELLS: Final = 1_000
"""Wide or high; a terminal of that many is larger than any screen."""
_USUAL: Final = (80, 24)


@dataclass(frozen=True, slots=True)
class Typed:
    """Keys, pasted text, or what the mouse did, as a terminal sends it."""

    text: str


@dataclass(frozen=True, slots=True)
class Resized:
    """The terminal has that size now, in cells."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Pinged:
    """It wants to receive this again."""

    word: str


@dataclass(frozen=True, slots=True)
class Focused:
    """Whether it has the focus."""

    has_focus: bool


Said = Typed | Resized | Pinged | Focused


def understood(message: str) -> Said | None:
    """What a message says; None for one that the page never sends."""
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
    """Columns and rows that the address of the connection asks for, the usual ones where it does not."""
    width, height = (
        _cells(int(text)) if (text := asked.get(name, "")).isdecimal() and len(text) < 6 else 0
        for name in ("width", "height")
    )
    return width or _USUAL[0], height or _USUAL[1]


def _cells(value: Any) -> int:
    """A number of cells that can be; 0 for what is none."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return min(value, MOST_CELLS) if is_number and value > 0 else 0


def _is_text(text: str) -> bool:
    """JSON has halves of characters, too, which no program can be sent."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
