"""Notices: events reported by a user's webhook. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.domain.lifecycle import SessionState

if TYPE_CHECKING:
    from collections.abc import Collection

    from controlplane.domain.values import Session


class WebhookEvent(enum.StrEnum):
    """Events that call a webhook; see nsml.v1.WebhookEvent."""

    ENDED = "ENDED"
    FAILED = "FAILED"
    IDLE = "IDLE"


DEFAULT_EVENTS: Final = (WebhookEvent.ENDED, WebhookEvent.IDLE)
"""Events of a webhook set without a choice."""
EARLIER_EVENTS: Final = (WebhookEvent.IDLE,)
"""Events of a webhook set before there was a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One event that a user's webhook reports.

    Attributes:
        owner_id: the user must have this id, since the name may be reused; "": any.
        body: the request's body, as JSON.
        recorded_at: Unix seconds.
    """

    owner: str
    session_id: str
    event: WebhookEvent
    body: str
    recorded_at: float
    owner_id: str = ""


def is_wanted(event: WebhookEvent, events: Collection[WebhookEvent]) -> bool:
    """Return whether a webhook for `events` is called for this one: ENDED includes FAILED."""
    return event in events or (event is WebhookEvent.FAILED and WebhookEvent.ENDED in events)


def event_of_end(session: Session) -> WebhookEvent | None:
    """Return the event of its end; None: its owner stopped it, and needs no notice."""
    if session.state is SessionState.SUCCEEDED:
        return WebhookEvent.ENDED
    if session.state is SessionState.STOPPED:
        is_own = session.stop is not None and session.stop.asked_by == session.owner
        return None if is_own else WebhookEvent.FAILED
    return WebhookEvent.FAILED
