"""Charges of an ended session's attempts: ledger rows with everything that a price may depend on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from controlplane.history.values import AttemptCharge

if TYPE_CHECKING:
    from controlplane.domain.values import EndedAttempt, Session


def charges_of(session: Session) -> tuple[AttemptCharge, ...]:
    """Return one row per ended attempt; none for a session that ran on another platform."""
    if session.imported is not None:
        return ()
    return tuple(
        AttemptCharge(
            session_id=session.id,
            attempt=attempt.number,
            owner=session.owner,
            project=session.project,
            gpu_thousandths=attempt.gpu_thousandths,
            seconds=attempt.held_s,
            ended_at=attempt.ended_at,
            gpu_models=_models_text(attempt),
            priority=session.spec.priority,
            cause=attempt.cause,
            durable_until=attempt.durable_until,
        )
        for attempt in session.attempts
    )


def _models_text(attempt: EndedAttempt) -> str:
    """Encode an attempt's GPUs for the ledger; "" if an older version did not store their models."""
    if attempt.gpu_thousandths and not attempt.gpu_models:
        return ""
    return json.dumps(dict(attempt.gpu_models), sort_keys=True)
