"""Space of the coordination store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.compaction.compaction_loop import Compacting, Reclaiming
from controlplane.core.feature import Feature

if TYPE_CHECKING:
    from controlplane.core.core import Core


def wire(core: Core) -> Feature:
    """Compact its history, and reclaim space when it is full."""
    compacting = Compacting(
        store=core.store, revision=lambda: core.state.revision, clock=core.clock
    )
    reclaiming = Reclaiming(
        store=core.store,
        conditions=core.health.conditions,
        touch=core.health.touch,
        turn=lambda: _turn(core),
        clock=core.clock,
    )
    return Feature(
        # The embedded store compacts itself.
        leader_loops=(compacting.run,) if core.config.coordination == "etcd" else (),
        member_loops={"reclaiming": reclaiming.run},
    )


def _turn(core: Core) -> int:
    """Return the number of control planes before us: the leader is first."""
    if core.leads():
        return 0
    names = [one.name for one in core.members.everyone()]
    others = [name for name in names if name < core.config.member]
    return len(others) + (core.leading.leader is not None)
