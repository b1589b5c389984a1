"""Named places in the life of a process at which it can be made to die.

They are at the seams by which a process touches what outlives it, before and after each touch, so
that production code knows nothing of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.virtual_time import current_process

CONTROL_PLANE_POINTS = tuple(
    f"{what} {when}"
    for what in (
        "store elect",
        "store submit",
        "store allocate",
        "store session",
        "store export",
        "store node",
        "store stop",
        "history append",
        "history put_session",
        "history put_checkpoint",
        "objects put_many",
    )
    for when in ("before", "after")
)
"""`after` is when it has happened and the process does not know: no answer, no acknowledgement."""

AGENT_POINTS = tuple(
    f"{what} {when}"
    for what in (
        "disk",
        "journal obey",
        "journal acknowledge",
        "journal join",
        "journal forget",
        "runtime start",
        "runtime stop",
        "runtime remove",
    )
    for when in ("before", "after")
)
"""`disk` is any piece of work on the agent's disk, also those that have names of their own."""


@dataclass
class Points:
    """Those of one process, over all its lives.

    Args:
        crash: ends the process at once: nothing of it runs any more when it returns.
    """

    crash: Callable[[str], None]
    passed: int = 0
    _armed: str = ""
    _left: int = 0
    _fired: asyncio.Event = field(default_factory=asyncio.Event)
    _buried: asyncio.Event = field(default_factory=asyncio.Event)

    def arm(self, point: str, times: int) -> asyncio.Event:
        """Die when `point` is passed for the so-manieth time from now on; set when that was."""
        self._armed, self._left = point, times
        self._fired = asyncio.Event()
        return self._fired

    def bury(self) -> None:
        """The process that died at a point is cleared away."""
        self._buried.set()

    def disarm(self) -> None:
        """Live on."""
        self._armed = ""

    async def passing(self, point: str) -> None:
        """The process is at `point` now."""
        _refuse_the_buried()
        if self._is_its_end(point):
            await self._buried.wait()
            raise asyncio.CancelledError

    def passing_now(self, point: str) -> None:
        """The same where nothing can be awaited; raises CancelledError."""
        _refuse_the_buried()
        if self._is_its_end(point):
            raise asyncio.CancelledError

    def _is_its_end(self, point: str) -> bool:
        self.passed += 1
        if point != self._armed:
            return False
        self._left -= 1
        if self._left > 0:
            return False
        self._armed = ""
        self._buried = asyncio.Event()
        self.crash(point)
        self._fired.set()
        return True


def _refuse_the_buried() -> None:
    """Nobody dies twice: who would bury it again? Nor does it touch anything."""
    process = current_process()
    if process is not None and process.is_buried:
        raise asyncio.CancelledError
