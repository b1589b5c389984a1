"""Leader loops: object store maintenance, garbage collection, and expiry of upload records."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.content.content import Content
    from controlplane.content.object_gc import Collector
    from controlplane.objects.interface import ObjectStore
    from nsml.common.clock import Clock

FIRST_AFTER_S: Final = 900.0
"""A new leader waits until no request of the previous one can still reach the object store."""
LOOK_EVERY_S: Final = 6 * 3600.0
MAINTAIN_AFTER_S: Final = 60.0
"""Soon: blobs of an earlier version are collected only once they are in packs."""


class Collecting:
    """Garbage collection; on the leader."""

    def __init__(self, *, collector: Collector, clock: Clock) -> None:
        self._collector = collector
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Collect every LOOK_EVERY_S, until cancelled."""
        await self._clock.sleep(FIRST_AFTER_S)
        while True:
            try:
                done = await self._collector.look()
            except NsmlError as error:
                self._log.warning("content.not_collected", reason=f"{error.message}: {error.why}")
            else:
                self._log.info("content.collected", **asdict(done))
            await self._clock.sleep(LOOK_EVERY_S)


class Maintaining:
    """Maintenance of the object store; on the leader, even if garbage collection is off."""

    def __init__(self, *, objects: ObjectStore, may: Callable[[], bool], clock: Clock) -> None:
        self._objects = objects
        self._may = may
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Maintain every LOOK_EVERY_S, until cancelled."""
        await self._clock.sleep(MAINTAIN_AFTER_S)
        while True:
            try:
                await self._objects.maintain(self._may)
            except NsmlError as error:
                self._log.warning("objects.not_maintained", reason=f"{error.message}: {error.why}")
            await self._clock.sleep(LOOK_EVERY_S)


class Forgetting:
    """Expiry of upload records; on the leader, even if garbage collection is off."""

    def __init__(self, *, content: Content, clock: Clock) -> None:
        self._content = content
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Remove expired records every LOOK_EVERY_S, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                notes = await self._content.forget_sent()
            except NsmlError as error:
                self._log.warning("content.sent_not_forgotten", reason=error.message)
            else:
                self._log.info("content.sent_forgotten", notes=notes)
