"""Finds sessions with idle devices, and notifies their owners: runs on the leader."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NotFound, NsmlError
from controlplane.domain.notices import WebhookEvent
from controlplane.notices.webhooks import is_final, is_taken
from controlplane.store.interface import StoreError
from controlplane.usage.usage import LOOK_EVERY_S
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    import asyncio

    from controlplane.domain.values import Episode, Session
    from controlplane.notices.webhooks import Webhooks
    from controlplane.usage.idle_detection import IdleDetector
    from nsml.common.clock import Clock

PAUSES_S: Final = (0.0, 2.0, 10.0)
"""Before each try to notify; then it is dropped."""
MOST_TOLD: Final = 64
"""Maximum concurrent notifications: further episodes are only in the sessions."""

_log = structlog.get_logger()


class Wasting:
    """The loop. An owner is notified once of an episode, at its begin, or never."""

    def __init__(self, wastes: IdleDetector, webhooks: Webhooks, *, clock: Clock) -> None:
        self._wastes = wastes
        self._webhooks = webhooks
        self._clock = clock
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self) -> NoReturn:
        """Check every few seconds, until cancelled; a slow notification delays no other."""
        async with TaskGroup() as group:
            self._telling.clear()
            while True:
                await self._clock.sleep(LOOK_EVERY_S)
                for session, episode in await self._wastes.look():
                    _log.info(
                        "session.wastes",
                        session=session.name,
                        kind=episode.kind.value,
                        reason=episode.reason,
                    )
                    if len(self._telling) >= MOST_TOLD:
                        _log.warning("webhook.not_called", user=session.owner, reason="too many")
                        continue
                    telling = group.create_task(self.tell(session, episode), name="wasting.tell")
                    self._telling.add(telling)
                    telling.add_done_callback(self._telling.discard)

    async def tell(self, session: Session, episode: Episode) -> None:
        """Send it to the webhook of the session's owner, if one is set."""
        reason = ""
        for pause in PAUSES_S:
            if pause:
                await self._clock.sleep(pause)
            try:
                status = await self._webhooks.send(
                    session.owner, message_of(session, episode), WebhookEvent.IDLE
                )
            except NotFound:
                return
            except (NsmlError, StoreError) as error:
                reason = str(error)
                continue
            reason = f"it answered {status}"
            if is_final(status):
                break
        else:
            status = 0
        if not is_taken(status):
            _log.warning("webhook.not_called", user=session.owner, reason=reason)


def message_of(session: Session, episode: Episode) -> dict[str, str]:
    """Return the message; `text` is for chat programs."""
    kind = episode.kind.value.lower()
    since = datetime.fromtimestamp(episode.since, tz=UTC)
    return {
        "text": f"nsml: {session.name} is {kind} since {since:%Y-%m-%d %H:%MZ}: {episode.reason}",
        "event": kind,
        "session": session.name,
        "session_id": session.id,
        "since": f"{since:%Y-%m-%dT%H:%M:%SZ}",
        "reason": episode.reason,
    }
