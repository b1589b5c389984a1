"""Sessions that start after others: their conditions, and how these are decided."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from controlplane.domain.lifecycle import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.values import After


class Verdict(enum.Enum):
    """State of a condition."""

    WAITS = enum.auto()
    MET = enum.auto()
    NEVER = enum.auto()


def verdict(after: After, state: SessionState | None) -> Verdict:
    """Evaluate a condition on a session in this state; None: it was removed.

    A removed session counts as ended, not as succeeded.
    """
    if state is not None and not state.is_ended:
        return Verdict.WAITS
    if after.is_any or state is SessionState.SUCCEEDED:
        return Verdict.MET
    return Verdict.NEVER


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine the conditions of a session: one that can never be met decides at once."""
    found = set(verdicts)
    if Verdict.NEVER in found:
        return Verdict.NEVER
    return Verdict.WAITS if Verdict.WAITS in found else Verdict.MET
