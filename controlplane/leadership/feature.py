"""Calls that only the leader answers, and eviction of a dead leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.leadership.leader_eviction_loop import Deposing
from controlplane.leadership.leader_forwarding import Relay

if TYPE_CHECKING:
    from controlplane.core.core import Core


def relay(core: Core) -> Relay:
    """Relays streams to the leader."""
    return Relay(leading=core.leading, peers=core.backends.peers)


def deposing(core: Core) -> Deposing:
    """Watches the leader, and deposes it when its host reports that it is gone."""
    return Deposing(
        store=core.store, leading=core.leading, peers=core.backends.peers, clock=core.clock
    )


def wire(core: Core) -> Feature:
    """Watch the leader."""
    return Feature(member_loops={"deposing": core.shared(deposing).run})
