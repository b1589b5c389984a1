"""Scores as people read them: rounded, but never so that different scores of one table look equal. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from nsml.common.units import exact_number_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

USUAL_DIGITS: Final = 6
"""Significant digits of a score that stands alone, or is far enough from the others of its table."""
ALL_DIGITS: Final = 17
"""Significant digits that distinguish any two floats."""
_PLAIN_BELOW: Final = 1e15
"""Greater magnitudes are written with an exponent."""
Digits: TypeAlias = "Mapping[float, int]"
"""Significant digits of those scores of a table that need more than `USUAL_DIGITS`."""
USUAL: Final[Digits] = MappingProxyType({})
"""The digits of a table without close scores."""


def digits_of(scores: Iterable[float]) -> Digits:
    """Return the digits that close scores of a table need: different scores have different texts, in their order."""
    different = {one for one in scores if math.isfinite(one)}
    found: dict[float, int] = {}
    # Scores with equal texts get more digits together, so that no text passes that of another score.
    while alike := _alike(different, found):
        found.update({one: found.get(one, USUAL_DIGITS) + 1 for one in alike})
    return found


def _alike(scores: Iterable[float], digits: Digits) -> list[float]:
    """Return the scores with the same text as another one."""
    by_text: defaultdict[str, list[float]] = defaultdict(list)
    for one in scores:
        by_text[score_text(one, digits)].append(one)
    return [one for ones in by_text.values() if len(ones) > 1 for one in ones]


def score_text(score: float, digits: Digits = USUAL) -> str:
    """Return a score for people, `0.833333`, not padded; `digits`: of the table in which it stands.

    Whole numbers have all their digits.
    """
    wanted = digits.get(score, USUAL_DIGITS)
    is_whole = not math.isfinite(score) or score.is_integer()
    if is_whole or wanted >= ALL_DIGITS:
        return exact_number_text(score)
    if 1 <= abs(score) < _PLAIN_BELOW:
        # With fewer digits than it has before the point, it would have an exponent: 1.23457e+06.
        wanted = max(wanted, len(str(round(abs(score)))))
    return f"{score:.{wanted}g}"
