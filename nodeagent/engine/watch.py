"""Watches whether the node's container engine answers, and lets sessions wait for it.

The node is at fault if its engine is away. It then accepts no new sessions, earlier ones
wait, and an attempt that waited in vain ends with the node at fault, which uses up no retry.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from nodeagent.engine.client import EngineError, EngineUnreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import NoReturn

    from nodeagent.engine.client import Engine
    from nsml.common.clock import Clock, Offload

T = TypeVar("T")

LOOKS_EVERY_S: Final = 5.0
AGAIN_S: Final = 1.0
"""Interval of looks while it is away."""
ANSWERS_WITHIN_S: Final = 20.0
CLOSED_AFTER_S: Final = 3.0
"""How long it is away before the node accepts no more sessions: short restarts are not reported."""
COMES_WITHIN_S: Final = 120.0
"""How long earlier sessions wait for it, as does the agent at its start."""
ENDS_WITH_ENGINE: Final = (
    "live-restore is off: a restart of the container engine ends all sessions here"
    ' (in its daemon.json: "live-restore": true)'
)


class EngineWatch:
    """Checks the engine repeatedly.

    Args:
        engine: runs the node's sessions.
        clock: for the time between looks.
        run_long: runs each look in a thread of its own: it may hang.

    Attributes:
        not_ready: why the node can start no sessions, for people; "" if it can.
    """

    def __init__(self, engine: Engine, *, clock: Clock, run_long: Offload) -> None:
        self._engine = engine
        self._clock = clock
        self._run_long = run_long
        self._answers = asyncio.Event()
        self._answers.set()
        self._wake = asyncio.Event()
        self.not_ready = ""

    @property
    def note(self) -> str:
        """The effect of a restart of the engine on sessions; "" if they outlive it."""
        return ENDS_WITH_ENGINE if self._engine.keeps_containers is False else ""

    async def run(self, changed: Callable[[], object]) -> NoReturn:
        """Check until cancelled; `changed` is called when `not_ready` or `note` changes."""
        away_since: float | None = None
        while True:
            began, before = self._clock.monotonic(), (self.not_ready, self.note)
            reason = await self._looked(is_back=away_since is not None)
            if reason:
                away_since = began if away_since is None else away_since
                self._answers.clear()
                if self._clock.monotonic() - away_since >= CLOSED_AFTER_S:
                    self.not_ready = reason
            else:
                away_since, self.not_ready = None, ""
                self._answers.set()
            if (self.not_ready, self.note) != before:
                log = structlog.get_logger()
                log.warning("engine.away" if reason else "engine.back", reason=reason or None)
                changed()
            await self._pause(AGAIN_S if reason else LOOKS_EVERY_S)

    async def through(
        self, work: Callable[[], Awaitable[T]], *, waits: Callable[[str], Awaitable[object]]
    ) -> T:
        """`await work()`, again as long as the engine does not answer.

        `waits` is called with the reason for waiting, and with "" when it continues.

        Raises:
            EngineUnreachable: it has not answered for COMES_WITHIN_S.
        """
        began: float | None = None
        while True:
            try:
                result = await work()
            except EngineUnreachable as error:
                if began is None:
                    began = self._clock.monotonic()
                    await waits(f"waits for the container engine of its node: {error}")
                left = began + COMES_WITHIN_S - self._clock.monotonic()
                if left <= 0 or not await self._answers_again(left):
                    raise
            else:
                if began is not None:
                    await waits("")
                return result

    async def _answers_again(self, within_s: float) -> bool:
        """Whether it answers, by a look that begins now, within `within_s` seconds."""
        self._answers.clear()
        self._wake.set()
        try:
            async with asyncio.timeout(within_s):
                await self._answers.wait()
        except TimeoutError:
            return False
        await self._clock.sleep(AGAIN_S)
        return True

    async def _looked(self, *, is_back: bool) -> str:
        """Return why it does not answer, or "". `is_back`: it may have been replaced."""
        ask = self._engine.facts if is_back else self._engine.look
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await self._run_long(ask)
        except TimeoutError:
            return f"the container engine does not answer within {ANSWERS_WITHIN_S:g} s"
        except EngineError as error:
            return str(error)
        return ""

    async def _pause(self, seconds: float) -> None:
        waking = asyncio.ensure_future(self._wake.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({waking, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            sleeping.cancel()
        self._wake.clear()
