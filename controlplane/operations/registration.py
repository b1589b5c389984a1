"""An agent comes: is it ours, what is it, what does it have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from controlplane.domain.errors import Denied, StateConflict
from controlplane.domain.names import check_node
from controlplane.domain.values import WHOLE_DEVICE, Cause
from controlplane.operations import silence

if TYPE_CHECKING:
    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Device, Node
    from controlplane.operations.committer import Committer
    from controlplane.operations.contacts import Contacts, Link
    from controlplane.operations.draft import Draft
    from controlplane.operations.reports import Report
    from controlplane.operations.state import LiveState
    from nsml.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What an agent says first. `replicas` are all that it has."""

    node: Node
    cluster_id: str
    highest_term: int
    replicas: tuple[Report, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedDevices:
    """All devices of a node from now on, and why some or all are missing."""

    devices: tuple[Device, ...]
    note: str


class Registrar:
    """Takes agents in."""

    def __init__(
        self,
        *,
        state: LiveState,
        committer: Committer,
        contacts: Contacts,
        clock: Clock,
        cluster_id: str,
    ) -> None:
        self._state = state
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
        await self._settle(said)
        await self._committer.decide(lambda draft: silence.put_node(draft, said.node))
        self._contacts.unheard -= {node}
        return self._contacts.connect(node)

    async def change_devices(self, link: Link, said: ChangedDevices) -> None:
        """Write what the node offers from now on; nothing once another stream speaks for it.

        Raises:
            NotLeader: we do not decide.
        """

        def change(draft: Draft) -> None:
            node = draft.node(link.node)
            if node is None or self._contacts.link(link.node) is not link:
                return
            gpus = len(said.devices) * WHOLE_DEVICE
            silence.put_node(
                draft,
                replace(
                    node,
                    devices=said.devices,
                    device_note=said.note,
                    capacity=replace(node.capacity, gpu_thousandths=gpus),
                ),
            )

        async with link.turn:  # of two changes the later one stands
            await self._committer.decide(change)

    async def _settle(self, said: Registration) -> None:
        """Write what it has, and that what it no longer has is lost."""
        node = said.node.name
        known = self._state.nodes.get(node)
        booted = known is not None and known.value.boot_id != said.node.boot_id
        now = self._clock.time()
        proof = silence.Proof(
            cause=Cause.NODE_LOST,
            message=f"node {node} was restarted" if booted else f"node {node} has it no longer",
            now=now,
            last_word_at=self._contacts.last_registered_at(node) or now,
        )
        unheard = self._contacts.unheard - {node}
        by_session: dict[str, list[Report]] = {
            session_id: [] for session_id in silence.sessions_of(self._state, node)
        }
        for report in said.replicas:
            by_session.setdefault(report.session_id, []).append(report)
        await self._committer.decide_all(
            [
                partial(
                    silence.settle,
                    session_id=session_id,
                    node=node,
                    reports=reports,
                    proof=proof,
                    unheard=unheard,
                )
                for session_id, reports in by_session.items()
            ]
        )
