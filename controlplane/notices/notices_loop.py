"""Delivers the notices of the outbox to users' webhooks: runs on the leader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NotFound, NsmlError
from controlplane.notices.webhooks import is_final, is_taken
from controlplane.store.interface import StoreError
from controlplane.store.tables import UndecodableRecord
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from controlplane.domain.notices import Notice
    from controlplane.notices.notices import Outbox
    from controlplane.notices.webhooks import Webhooks
    from nsml.common.clock import Clock

PAUSES_S: Final = (2.0, 10.0, 60.0, 300.0)
"""Between tries; the last one repeats."""
KEPT_S: Final = 86_400.0
"""Age at which a notice is dropped."""
STORE_AGAIN_S: Final = 1.0

_log = structlog.get_logger()


class Delivering:
    """The loop. Each user has a task, so that a hanging webhook delays no other user; notices of one user go in order."""

    def __init__(self, outbox: Outbox, webhooks: Webhooks, *, clock: Clock) -> None:
        self._outbox = outbox
        self._webhooks = webhooks
        self._clock = clock
        self._busy: set[str] = set()

    async def run(self) -> NoReturn:
        """Deliver, until cancelled: first the notices of an earlier leader."""
        try:
            async with TaskGroup() as group:
                await self._load()
                while True:
                    for owner in self._outbox.owners() - self._busy:
                        self._busy.add(owner)
                        group.create_task(self._deliver(owner), name="notices.deliver")
                    await self._outbox.changed()
        finally:
            self._busy.clear()
            self._outbox.forget()

    async def _load(self) -> None:
        while True:
            try:
                return await self._outbox.load()
            except StoreError as error:
                _log.warning("notices.not_read", reason=str(error))
                await self._clock.sleep(STORE_AGAIN_S)

    async def _deliver(self, owner: str) -> None:
        """Deliver all notices of a user."""
        failed = 0
        while (key := self._outbox.first(owner)) is not None:
            try:
                notice = await self._outbox.read(key)
            except UndecodableRecord as error:
                _log.warning("notices.not_decoded", reason=str(error))
                await self._remove(owner, key)
                continue
            except StoreError as error:
                _log.warning("notices.not_read", reason=str(error))
                await self._clock.sleep(STORE_AGAIN_S)
                continue
            if notice is None:
                self._outbox.done(owner, key)
            elif await self._is_settled(notice):
                failed = 0
                await self._remove(owner, key)
            else:
                await self._clock.sleep(PAUSES_S[min(failed, len(PAUSES_S) - 1)])
                failed += 1
        # Nothing is awaited since the check above: later notices find the user idle.
        self._busy.discard(owner)

    async def _is_settled(self, notice: Notice) -> bool:
        """Send it, once; return whether it needs no retry."""
        try:
            status = await self._webhooks.send(
                notice.owner, json.loads(notice.body), notice.event, owner_id=notice.owner_id
            )
        except NotFound:
            return True
        except (NsmlError, StoreError) as error:
            reason, is_over = str(error), False
        else:
            if is_taken(status):
                return True
            reason, is_over = f"it answered {status}", is_final(status)
        is_over = is_over or self._clock.time() >= notice.recorded_at + KEPT_S
        _log.warning("webhook.not_called", user=notice.owner, reason=reason, given_up=is_over)
        return is_over

    async def _remove(self, owner: str, key: str) -> None:
        """Remove it, retrying while the store is unavailable: it is not sent again meanwhile."""
        while True:
            try:
                return await self._outbox.remove(owner, key)
            except StoreError as error:
                _log.warning("notices.not_removed", reason=str(error))
                await self._clock.sleep(STORE_AGAIN_S)
