"""Carries out what administrators decided about nodes.

What a drained one still runs is moved when its time has come, and what a fenced one ran is ended where the
leader that was asked did not get to it.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.changes import ContactChanged, NodeChanged

if TYPE_CHECKING:
    from controlplane.domain.changes import Change
    from controlplane.nodes.nodes import NodeKeeper
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

SLOWEST_ROUND_S: Final = 60.0
"""Everything is looked at this often whatever is heard of."""

GATHER_S: Final = 0.05
"""Pause between two rounds: nobody waits for a move, and changes come in crowds."""


class Upkeep:
    """The loop over nodes that are drained or fenced. What is to be done is in their records."""

    def __init__(self, *, state: LiveState, keeper: NodeKeeper, clock: Clock) -> None:
        self._state = state
        self._keeper = keeper
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Look after every change, when a time has come, and now and then; until cancelled."""
        with self._state.subscribed(wants=_is_of_nodes) as changes:
            while True:
                began_at = self._clock.time()
                for name in self._closed():
                    await self._look(name)
                try:
                    async with asyncio.timeout(self._wait_s(began_at)):
                        await changes.take()
                except TimeoutError:
                    continue
                await self._clock.sleep(GATHER_S)

    def _closed(self) -> list[str]:
        nodes = self._state.nodes.items()
        return sorted(name for name, stored in nodes if stored.value.closed_by)

    def _wait_s(self, began_at: float) -> float:
        """Until the next drain is due that was not when the round began, at most the slowest round."""
        drains = [stored.value.drain for stored in self._state.nodes.values()]
        due = [one.move_at for one in drains if one is not None and one.move_at > began_at]
        return min(SLOWEST_ROUND_S, max(min(due, default=math.inf) - self._clock.time(), 0.0))

    async def _look(self, name: str) -> None:
        stored = self._state.nodes.get(name)
        if stored is None:
            return
        node = stored.value
        if node.fence is not None and name in self._state.silent:
            # One that is connected has settled it by registering, or is about to.
            await self._keeper.end_fenced(node)
        if name in self._state.silent or node.drain is None or node.hold is not None:
            return  # nothing can be told to a silent node, and nothing may be to a held one
        if 0 < node.drain.move_at <= self._clock.time() and not self._keeper.is_empty(name):
            self._log.warning("node.moving", node=name, asked_by=node.drain.asked_by)
            await self._keeper.move(node, node.drain)


def _is_of_nodes(change: Change) -> bool:
    """What sessions do changes nothing here: a node that is closed is given none."""
    return isinstance(change, NodeChanged | ContactChanged)
