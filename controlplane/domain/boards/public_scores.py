"""What is shown of the scores of submissions.

Who sees every score exactly can fit hidden labels with the scores alone: votes weighted by the scores of some hundred
random predictions already look better than chance, although nothing was learned. Showing a participant only
improvements takes nearly all of that away.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from controlplane.domain.boards.scores import finite, goodness
from controlplane.domain.boards.values import PublicScore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.domain.boards.values import Entry, ScoreDirection

_STEPS: Final = 2.0**52
"""More steps than that cannot be told apart in a float."""


def shown_scores(
    entries: Iterable[Entry], mode: PublicScore, step: float, direction: ScoreDirection
) -> dict[str, float | None]:
    """Return the score shown for each entry, by id; None: it has none.

    EXACT shows each its own score. OWN_BEST shows the best of its participant so far. LADDER does so too, but a score
    has to be better than the shown one by more than the step, and is rounded to steps. Without a step (0) the Ladder
    is parameter-free: the step is the standard error of the difference between the two scores, as if they were
    independent, and nothing is rounded; where the standard errors are not known it is as OWN_BEST. See Blum and
    Hardt, The Ladder, 2015.

    Entries count in the order in which they were first scored, so a shown score never changes afterwards.
    """
    if mode is PublicScore.EXACT:
        return {one.id: finite(one.score) for one in entries}
    best: dict[tuple[str, str], tuple[float, Entry]] = {}
    shown: dict[str, float | None] = {}
    width = step if mode is PublicScore.LADDER else 0.0
    for one in sorted(entries, key=_when_scored):
        score = finite(one.score)
        if score is None:
            shown[one.id] = None
            continue
        before = best.get(one.participant)
        by = width
        if before is not None and mode is PublicScore.LADDER and not step:
            by = math.hypot(_error(one), _error(before[1]))
        if before is None or goodness(score, direction) > goodness(before[0], direction) + by:
            best[one.participant] = before = (_rounded(score, width), one)
        shown[one.id] = before[0]
    return shown


def without_improvement(
    entries: Iterable[Entry], shown: Mapping[str, float | None]
) -> frozenset[str]:
    """Return the ids of the entries that show the score of an earlier one of their participant.

    `shown`: by OWN_BEST or LADDER, where every improvement that counts shows a score of its own.
    """
    last: dict[tuple[str, str], float] = {}
    found = set()
    for one in sorted(entries, key=_when_scored):
        score = shown.get(one.id)
        if score is None:
            continue
        if last.get(one.participant) == score:
            found.add(one.id)
        last[one.participant] = score
    return frozenset(found)


def _when_scored(entry: Entry) -> tuple[float, float, str]:
    return (entry.scored_at, entry.submitted_at, entry.id)


def _error(entry: Entry) -> float:
    return finite(entry.standard_error) or 0.0


def _rounded(score: float, step: float) -> float:
    """Round to a multiple of the step; a score that has no such multiple as a float stays."""
    if not step:
        return score
    steps = score / step
    if not abs(steps) < _STEPS:
        return score
    # Twelve digits: 3 * 0.1 is to be 0.3.
    rounded = float(f"{round(steps) * step:.12g}")
    return rounded if math.isfinite(rounded) else score
