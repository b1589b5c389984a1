"""The outbox of notices: recorded in the transaction of the reported change, and removed after delivery."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from controlplane.domain.notices import Notice, event_of_end, is_wanted
from controlplane.domain.sealing import shown_code
from controlplane.store.interface import Transaction
from controlplane.store.tables import Table
from controlplane.stored.etcd_codec import NOTICES, decode_notice, encode_notice, notice_key
from nsml.common.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from controlplane.domain.notices import WebhookEvent
    from controlplane.domain.values import Session
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

MOST_OF_USER: Final = 200
"""Maximum queued notices of one webhook; further ones are dropped."""
MOST_NOTICES: Final = 5_000
"""Maximum of all users: together some megabytes, and never 150 (with 32 labels each, with JSON's escapes)."""
_MESSAGE_CHARACTERS: Final = 300

_log = structlog.get_logger()

Wanted: TypeAlias = "Callable[[Collection[str]], Awaitable[Mapping[str, Collection[WebhookEvent]]]]"

_NOTICES: Final = Table[Notice](NOTICES, encode=encode_notice, decode=decode_notice)


class Outbox:
    """The leader's index of queued notices; the store is authoritative.

    Args:
        wanted: the events of users' webhooks; without users that have none.
        is_full: whether the store is full: a cleanup must not write then.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        wanted: Wanted,
        clock: Clock,
        is_full: Callable[[], bool],
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._is_full = is_full
        self._clock = clock
        self._waiting: dict[str, dict[str, None]] = {}
        self._count = 0
        self._changed = asyncio.Event()

    async def of_ends(self, sessions: Iterable[Session]) -> dict[str, Notice]:
        """Return notices of ended sessions, by id; reads once, and only if one of the ends has an event.

        Raises:
            StoreError: the store does not answer.
        """
        events = {one.id: (one, event) for one in sessions if (event := event_of_end(one))}
        if not events:
            return {}
        wanted = await self._wanted({one.owner for one, _ in events.values()})
        notices: dict[str, Notice] = {}
        for one, event in events.values():
            if is_wanted(event, wanted.get(one.owner, ())):
                if self._has_room(one.owner):
                    notices[one.id] = notice_of_end(one, event, self._clock.time())
                else:
                    _log.warning("notice.not_recorded", user=one.owner, session=one.name)
        return notices

    def recorded(self, notice: Notice) -> None:
        """Add a notice that is in the store, or may be."""
        self._add(notice.owner, notice_key(notice))

    async def load(self) -> None:
        """Load the index from the store.

        Raises:
            StoreError: it does not answer.
        """
        for item in (await self._store.list(NOTICES, keys_only=True)).items:
            self._add(item.key.removeprefix(NOTICES).partition("/")[0], item.key)

    def forget(self) -> None:
        """Clear the index: another one leads."""
        self._waiting.clear()
        self._count = 0

    def owners(self) -> AbstractSet[str]:
        """Return the users with queued notices."""
        return self._waiting.keys()

    def first(self, owner: str) -> str | None:
        """Return the key of a user's next notice; None if there is none."""
        return next(iter(self._waiting.get(owner, ())), None)

    async def read(self, key: str) -> Notice | None:
        """Return a notice; None: it does not exist (any more)."""
        found = await _NOTICES.get(self._store, key.removeprefix(NOTICES))
        return None if found is None else found.value

    async def remove(self, owner: str, key: str) -> None:
        """Remove a notice from the store.

        Raises:
            StoreError: it does not answer.
        """
        delete = _NOTICES.delete(key.removeprefix(NOTICES))
        await self._store.commit(Transaction(success=(delete,)))
        self.done(owner, key)

    def done(self, owner: str, key: str) -> None:
        """Remove a notice from the index."""
        of_owner = self._waiting.get(owner, {})
        if key in of_owner:
            del of_owner[key]
            self._count -= 1
        if not of_owner:
            self._waiting.pop(owner, None)

    async def changed(self) -> None:
        """Wait for a new notice."""
        self._changed.clear()
        await self._changed.wait()

    def _add(self, owner: str, key: str) -> None:
        of_owner = self._waiting.setdefault(owner, {})
        if key not in of_owner:
            of_owner[key] = None
            self._count += 1
            self._changed.set()

    def _has_room(self, owner: str) -> bool:
        if self._is_full() or self._count >= MOST_NOTICES:
            return False
        return len(self._waiting.get(owner, ())) < MOST_OF_USER


def notice_of_end(session: Session, event: WebhookEvent, now: float) -> Notice:
    """Return the message on an ended session; `text` is for chat programs."""
    end = session.end
    ran_s = max(session.ended_at - session.started_at, 0.0) if session.started_at else 0.0
    message = end.message[:_MESSAGE_CHARACTERS] if end else ""
    ran = f" after {duration_text(ran_s)}" if session.started_at else ""
    why = f": {message}" if message else ""
    said: dict[str, object] = {
        "text": f"nsml: {session.name} {session.state.value.lower()}{ran}{why}",
        "event": event.value.lower(),
        "session": session.name,
        "session_id": session.id,
        "memo": session.memo[:_MESSAGE_CHARACTERS],
        "labels": dict(sorted(session.spec.labels.items())),
        "state": session.state.value,
        "cause": end.cause.value if end else "",
        "message": message,
        "exit_code": shown_code(session, end.exit_code) if end else 0,
        "ended_at": f"{datetime.fromtimestamp(session.ended_at, tz=UTC):%Y-%m-%dT%H:%M:%SZ}",
        "ran_s": round(ran_s),
    }
    return Notice(
        owner=session.owner,
        owner_id=session.owner_id,
        session_id=session.id,
        event=event,
        body=json.dumps(said),
        recorded_at=now,
    )
