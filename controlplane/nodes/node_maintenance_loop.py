"""Carries out administrators' actions on nodes.

Moves the sessions of drained nodes when due, and ends those of fenced ones if the leader that
accepted the fence did not get to it.
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
"""Longest interval between checks, even without changes."""

GATHER_S: Final = 0.05
"""Pause between rounds: nobody waits for a move, and changes come in bursts."""


class Upkeep:
    """The loop over drained and fenced nodes. Their records have the work to do."""

    def __init__(self, *, state: LiveState, keeper: NodeKeeper, clock: Clock) -> None:
        self._state = state
        self._keeper = keeper
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Check after every change, when a drain is due, and regularly, until cancelled."""
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
        """Seconds until the next drain not yet due when the round began, at most SLOWEST_ROUND_S."""
        drains = [stored.value.drain for stored in self._state.nodes.values()]
        due = [one.move_at for one in drains if one is not None and one.move_at > began_at]
        return min(SLOWEST_ROUND_S, max(min(due, default=math.inf) - self._clock.time(), 0.0))

    async def _look(self, name: str) -> None:
        stored = self._state.nodes.get(name)
        if stored is None:
            return
        node = stored.value
        if node.fence is not None and name in self._state.silent:
            # A connected one has settled it by registering, or is about to.
            await self._keeper.end_fenced(node)
        if name in self._state.silent or node.drain is None or node.hold is not None:
            return  # a silent node cannot get orders, and a held one must not
        if 0 < node.drain.move_at <= self._clock.time() and not self._keeper.is_empty(name):
            self._log.warning("node.moving", node=name, asked_by=node.drain.asked_by)
            await self._keeper.move(node, node.drain)


def _is_of_nodes(change: Change) -> bool:
    """Whether it concerns nodes; sessions do not matter, since closed nodes get none."""
    return isinstance(change, NodeChanged | ContactChanged)
