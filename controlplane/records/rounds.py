"""Low-priority background work: due items, one after the other, in turns with pauses between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NoReturn, TypeVar

import structlog

from controlplane.domain.errors import NsmlError, Unavailable
from nsml.content.errors import ContentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.common.clock import Clock

K = TypeVar("K")

REST: Final = 2.0
"""Pause after a turn, as a multiple of its duration: incoming reports go first."""
MOST_AVOIDED: Final = 1_000


class Rounds(ABC, Generic[K]):
    """Each round handles some due items, by key. Failed ones are skipped for a while."""

    name: ClassVar[str]
    """Prefix of its log events."""
    look_every_s: ClassVar[float]
    """Seconds between rounds when nothing is due."""
    retry_s: ClassVar[float]
    """Pause in seconds after the history, or another dependency, was unavailable."""
    avoided_s: ClassVar[float]
    """How long a failed key is skipped, in seconds."""
    at_once: ClassVar[int] = 16
    most_turns: ClassVar[int | None] = None
    """Most turns of one key before others get theirs; None: until it is done."""
    enough: ClassVar[int] = 1
    """If a round did this many, more may be due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._avoided: dict[K, float] = {}
        """When skipped keys are retried (monotonic), by key."""
        self._log = structlog.get_logger(self.__module__.removeprefix("controlplane."))

    @abstractmethod
    async def _due(self, limit: int) -> Sequence[K]:
        """The keys of due items."""

    @abstractmethod
    async def _turn(self, key: K) -> bool:
        """Do some of it; return whether more is left."""

    def _session(self, key: K) -> object:
        """The session named in the log."""
        return key

    async def run(self) -> NoReturn:
        """Do all due work, until cancelled."""
        while True:
            try:
                while await self._round():
                    pass  # the pause after each turn lets others run
            except Unavailable as error:
                self._log.warning(f"{self.name}.waits", reason=error.message)
                await self._clock.sleep(self.retry_s)
            else:
                await self._clock.sleep(self.look_every_s)

    async def _round(self) -> bool:
        """Do one round; return whether more may be due."""
        now = self._clock.monotonic()
        self._avoided = {one: until for one, until in self._avoided.items() if until > now}
        done, is_more = 0, False
        for key in await self._due(self.at_once + len(self._avoided)):
            if key in self._avoided:
                continue
            try:
                is_more |= await self._turns(key)
                done += 1
            except Unavailable:
                raise
            except (NsmlError, ContentError) as error:
                # One damaged item must not block the others.
                self._log.error(
                    f"{self.name}.failed", session=self._session(key), reason=str(error)
                )
                if len(self._avoided) < MOST_AVOIDED:
                    self._avoided[key] = now + self.avoided_s
        return is_more or done >= self.enough

    async def _turns(self, key: K) -> bool:
        taken = 0
        while taken != self.most_turns:
            began = self._clock.monotonic()
            is_more = await self._turn(key)
            await self._clock.sleep(REST * (self._clock.monotonic() - began))
            if not is_more:
                return False
            taken += 1
        return True
