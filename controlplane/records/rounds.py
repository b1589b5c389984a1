"""Work that waits for everybody else: what is due, one after the other, in turns with rests between them."""

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
"""So many times as long as a turn took nothing is done after it: reports that come in go first."""
MOST_AVOIDED: Final = 1_000


class Rounds(ABC, Generic[K]):
    """Each round takes some of what is due, each by its key. What fails is left alone for a while."""

    name: ClassVar[str]
    """Of its events."""
    look_every_s: ClassVar[float]
    """How often we look, when all that was due is done."""
    retry_s: ClassVar[float]
    """Pause after the history, or what else it needs, did not answer."""
    avoided_s: ClassVar[float]
    """How long something is left alone with which it failed."""
    at_once: ClassVar[int] = 16
    most_turns: ClassVar[int | None] = None
    """Of one key before others have theirs; None: until it is done."""
    enough: ClassVar[int] = 1
    """So many done in a round: there may be more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._avoided: dict[K, float] = {}
        """Until when, by key."""
        self._log = structlog.get_logger(self.__module__.removeprefix("controlplane."))

    @abstractmethod
    async def _due(self, limit: int) -> Sequence[K]:
        """The keys of what is to be done."""

    @abstractmethod
    async def _turn(self, key: K) -> bool:
        """Do some of it; whether more is to be done."""

    def _session(self, key: K) -> object:
        """The session that the log names."""
        return key

    async def run(self) -> NoReturn:
        """Do whatever is due, until cancelled."""
        while True:
            try:
                while await self._round():
                    pass  # the rest after each turn is all that others wait for
            except Unavailable as error:
                self._log.warning(f"{self.name}.waits", reason=error.message)
                await self._clock.sleep(self.retry_s)
            else:
                await self._clock.sleep(self.look_every_s)

    async def _round(self) -> bool:
        """Do some; whether more may be due that can be done."""
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
                # What is damaged of one must not keep the others waiting.
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
