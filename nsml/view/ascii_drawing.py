"""Converts drawings to ASCII, cell by cell: for terminals without other characters.

Lines, boxes, bars, marks and braille become the most similar ASCII character. Letters and digits of any
script are text, and are kept if the terminal supports them.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from nsml.common.text import graphemes

if TYPE_CHECKING:
    from collections.abc import Mapping

_BRAILLE: Final = 0x2800
_LAST_BRAILLE: Final = 0x28FF
_ROWS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell's dots: rows from the top, left and right."""
_LOOKALIKES: Final[Mapping[str, str]] = {
    "-": "·‐‑‒–—―─━╌╍┄┅┈┉═╴╶╸╺−▬▄",  # noqa: RUF001
    "|": "│┃╎╏┆┇┊┋║╵╷╹╻▏▎▕▐▌▍❘┤├┨┠┫┣",
    "+": "┌┐└┘┬┴┼╭╮╰╯┏┓┗┛┳┻╋╔╗╚╝╠╣╦╩╬✔✓✚▆±",
    "_": "▁▂",
    '"': "▔▀“”„",
    "'": "‘’‚′°",  # noqa: RUF001
    ":": "▃",
    "=": "‖▅≡",
    "#": "█▇▉▊▋■▪▓▒",
    ".": "░",
    "*": "●•◉★☆✱✶",
    "o": "○◌◯",
    "(": "◔",
    "%": "◐",
    ")": "◕◑",
    "x": "×✗✘✕✖╳",  # noqa: RUF001
    "!": "⚠",
    "@": "⊘",
    ">": "→▶▸►›»▷❯⏎",  # noqa: RUF001
    "<": "←◀◂◄‹«⌫",  # noqa: RUF001
    "^": "↑▲△▴",
    "v": "↓▼▽▾",
    "~": "…≈∼",  # noqa: RUF001
}
_ASCII: Final[Mapping[str, str]] = {
    drawn: letter for letter, all_drawn in _LOOKALIKES.items() for drawn in all_drawn
}
_UNKNOWN: Final = "?"


@lru_cache(maxsize=4096)
def plain(text: str, *, has_letters: bool = True) -> str:
    """Return `text` in ASCII, in as many cells; `has_letters`: the terminal supports letters of other scripts."""
    if text.isascii():
        return text
    return "".join(_plain(part, cells, has_letters) for part, cells in graphemes(text))


def _plain(part: str, cells: int, has_letters: bool) -> str:
    letter = part[0]
    if found := _ASCII.get(letter):
        return found.ljust(cells)
    if _BRAILLE <= ord(letter) <= _LAST_BRAILLE:
        return dots(ord(letter) - _BRAILLE)
    kind = unicodedata.category(letter)
    if part.isascii() or (kind[0] in "LMN" and has_letters):
        return part
    # A space of another width, an ASCII letter with its own accent, and all else.
    known = " " * cells if kind == "Zs" else letter.ljust(cells)
    return known if known.isascii() else _UNKNOWN * cells


@lru_cache(maxsize=256)
def dots(mask: int) -> str:
    """Return the ASCII character most similar to the dots of a braille cell."""
    left = [row for row, (bit, _) in enumerate(_ROWS) if mask & bit]
    right = [row for row, (_, bit) in enumerate(_ROWS) if mask & bit]
    rows = {*left, *right}
    if not rows:
        return " "
    if len(rows) == 1:
        (row,) = rows
        return ('"' if left and right else "'", "-", "-", "_" if left and right else ".")[row]
    if left and right:
        return _slope(sum(left) / len(left), sum(right) / len(right), len(left) + len(right))
    return "'" if rows == {0, 1} else "." if rows == {2, 3} else "|"


def _slope(left: float, right: float, count: int) -> str:
    if abs(left - right) < 1:
        return "#" if count > 4 else "="
    return "/" if left > right else "\\"
