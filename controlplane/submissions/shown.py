"""Scores and ranks of submissions as a board shows them to participants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.boards.public_scores import shown_scores
from controlplane.domain.boards.ranking import ranks_of_all
from controlplane.history.board_values import entry_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.domain.boards.values import BoardSettings
    from controlplane.history.board_values import SubmissionEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBoard:
    """What participants see, by id of the submission: scores, and ranks by these; 0: none."""

    scores: Mapping[str, float | None]
    ranks: Mapping[str, int]


NOTHING: Final = ShownBoard(scores={}, ranks={})
"""Of submissions without a score."""


def shown_board(entries: Iterable[SubmissionEntry], settings: BoardSettings) -> ShownBoard:
    """Return what participants see of all submissions to a dataset."""
    exact = [entry_of(one) for one in entries]
    direction = settings.direction
    scores = shown_scores(exact, settings.public_score, settings.ladder_step, direction)
    public = [replace(one, score=scores.get(one.id)) for one in exact]
    ranks = ranks_of_all(public, direction=direction, best_per=settings.best_per)
    return ShownBoard(scores=scores, ranks=ranks)
