"""An agent comes: is it ours, what is it, what does it have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.domain.errors import Denied, StateConflict
from controlplane.domain.names import check_node
from controlplane.operations import silence

if TYPE_CHECKING:
    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Node
    from controlplane.operations.committer import Committer
    from controlplane.operations.contacts import Contacts, Link
    from controlplane.operations.reports import Report
    from nsml.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What an agent says first. `replicas` are all that it has."""

    node: Node
    cluster_id: str
    highest_term: int
    replicas: tuple[Report, ...]


class Registrar:
    """Takes agents in."""

    def __init__(
        self, *, committer: Committer, contacts: Contacts, clock: Clock, cluster_id: str
    ) -> None:
        self._committer = committer
        self._contacts = contacts
        self._clock = clock
        self._cluster_id = cluster_id

    async def register(self, caller: NodeCaller, said: Registration, term: int) -> Link:
        """Write what the node is and has; its stream, which replaces an older one.

        Raises:
            Denied: it speaks for another node than its own.
            StateConflict: it obeyed another platform, or a later leader than us.
            NotLeader: we do not decide.
        """
        node = check_node(said.node.name)
        if node != caller.node:
            raise Denied(f"node {caller.node} may not speak for node {node}")
        if said.cluster_id and said.cluster_id != self._cluster_id:
            raise StateConflict(
                f"node {node} belongs to another platform",
                why=f"it obeyed {said.cluster_id}, this is {self._cluster_id}",
                attempt="a fresh data folder for the agent, if that platform is gone for ever",
            )
        if said.highest_term > term:
            raise StateConflict(
                f"node {node} obeyed a later leader",
                why=f"term {said.highest_term}, ours is {term}: our store was restored from a copy",
            )
        unheard = self._contacts.unheard - {node}
        await self._committer.decide(
            lambda draft: silence.register(
                draft, said.node, said.replicas, unheard, self._clock.time()
            )
        )
        self._contacts.unheard -= {node}
        return self._contacts.connect(node)
