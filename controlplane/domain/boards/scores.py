"""Scores: their text, their order, and their standard error."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, TypeAlias

from controlplane.domain.boards.values import ScoreDirection

if TYPE_CHECKING:
    from controlplane.domain.boards.values import Entry

OrderKey: TypeAlias = tuple[bool, float, float, str]
LONGEST_SCORE: Final = 100
"""Maximum characters in the text of a score."""

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


class ScoreRefused(Exception):
    """A text is not a score; the message, one sentence, says why.

    Args:
        is_number: it is one, but not finite.
    """

    def __init__(self, message: str, *, is_number: bool = False) -> None:
        super().__init__(message)
        self.is_number = is_number


def parse_score(text: str) -> float:
    """Parse a finite number as Python and C write it, with ASCII characters alone.

    float() takes more: `1_000`, digits of other scripts, `nan`, and what overflows to an infinity.

    Raises:
        ScoreRefused: it is something else.
    """
    stripped = text.strip(" \t\r\n")
    shown = ascii(stripped[:40])
    if len(stripped) <= LONGEST_SCORE and _NUMBER.fullmatch(stripped):
        value = float(stripped)
        if math.isfinite(value):
            return value + 0.0  # -0.0 becomes 0.0
        raise ScoreRefused(f"the score {shown} is too large", is_number=True)
    if _NOT_FINITE.fullmatch(stripped):
        raise ScoreRefused(f"the score {shown} is not finite", is_number=True)
    raise ScoreRefused(f"the score {shown} is not one number" if stripped else "there is no score")


def finite(score: float | None) -> float | None:
    """Return the score, None unless it is finite."""
    return score if score is not None and math.isfinite(score) else None


def goodness(score: float, direction: ScoreDirection) -> float:
    """The score as a number of which the greater is the better."""
    return score if direction is ScoreDirection.MAX else -score


def order_key(entry: Entry, direction: ScoreDirection) -> OrderKey:
    """The one order of entries, ascending: scored ones, the better score, the earlier submitted, the id."""
    score = finite(entry.score)
    if score is None:
        return (True, 0.0, entry.submitted_at, entry.id)
    return (False, -goodness(score, direction), entry.submitted_at, entry.id)


def standard_error(score: float, given: float | None, rows: int) -> float | None:
    """The standard error of a score: what the evaluation gave, else a bound; None: not known.

    The bound holds for a mean of values between 0 and 1, such as an accuracy, over so many rows: their variance is at
    most m (1 - m) (Bhatia and Davis 2000). A score outside of 0 to 1, or of an unknown number of rows, has none.
    """
    if given is not None:
        return given if math.isfinite(given) and given >= 0.0 else None
    if rows > 0 and 0.0 <= score <= 1.0:
        return math.sqrt(score * (1.0 - score) / rows)
    return None
