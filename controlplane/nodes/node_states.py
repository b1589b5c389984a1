"""States of nodes, for users and monitoring."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from controlplane.domain.values import Node
    from controlplane.state.agent_connections import AgentConnections
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock


class NodeState(enum.StrEnum):
    """See nsml.v1.NodeState."""

    READY = "READY"
    DRAINING = "DRAINING"
    FENCED = "FENCED"
    HELD = "HELD"
    SILENT = "SILENT"
    NOT_READY = "NOT_READY"


_BY_CLOSED: Final[Mapping[str, NodeState]] = {
    "": NodeState.READY,
    "drained": NodeState.DRAINING,
    "fenced": NodeState.FENCED,
    "held": NodeState.HELD,
    "not ready": NodeState.NOT_READY,
}


class NodeStates:
    """Derives states from nodes' records and last contacts.

    Args:
        leads: whether this control plane leads.
        silent_after_s: a node without contact for so long is silent.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        contacts: AgentConnections,
        leads: Callable[[], bool],
        silent_after_s: float,
        clock: Clock,
    ) -> None:
        self._state = state
        self._contacts = contacts
        self._leads = leads
        self._silent_after_s = silent_after_s
        self._clock = clock

    def of(self, node: Node) -> NodeState:
        """Return its current state."""
        is_silent = node.name in self._state.silent or node.name in self._contacts.unheard
        if is_silent and not self._leads():
            # Agents connect only to the leader; without one, their records still arrive.
            heard_at = self._contacts.last_contact_at(node.name)
            is_silent = self._clock.time() - heard_at >= self._silent_after_s
        if is_silent and node.fence is None:
            return NodeState.SILENT
        return _BY_CLOSED[node.closed_by]
