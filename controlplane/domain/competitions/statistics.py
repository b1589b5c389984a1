"""What came of a phase: users, models and submissions, as Tables 3 and 4 of Sung et al. 2018 have them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.domain.competitions.standings import PhaseSubmission

FEW_MODELS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStatistics:
    """Figures of a phase.

    Attributes:
        users: with a session on its dataset.
        models: checkpoints that these saved.
        under_five: users with fewer than FEW_MODELS models.
        mean_submissions: of users who submitted.
    """

    phase: str
    users: int
    models: int
    mean_models: float
    most_models: int
    under_five: int
    submissions: int
    mean_submissions: float
    most_submissions: int
    gpu_seconds: float


def statistics(
    phase: str, models: Mapping[str, int], submissions: Iterable[PhaseSubmission]
) -> PhaseStatistics:
    """Return the figures of a phase from the number of models of each user, and its teams' submissions."""
    known = tuple(submissions)
    by_user = Counter(one.owner for one in known)
    sessions: dict[str, float] = {}
    for one in known:
        sessions[one.session_id] = max(sessions.get(one.session_id, 0.0), one.gpu_seconds)
    total = sum(models.values())
    return PhaseStatistics(
        phase=phase,
        users=len(models),
        models=total,
        mean_models=total / len(models) if models else 0.0,
        most_models=max(models.values(), default=0),
        under_five=sum(count < FEW_MODELS for count in models.values()),
        submissions=len(known),
        mean_submissions=len(known) / len(by_user) if by_user else 0.0,
        most_submissions=max(by_user.values(), default=0),
        gpu_seconds=sum(sessions.values()),
    )
