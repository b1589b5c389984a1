"""Registration of agents: checks of their platform, node and replicas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from controlplane.domain.cluster import is_lost
from controlplane.domain.errors import Denied, NotFound, StateConflict, Unavailable
from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.domain.names import check_node
from controlplane.domain.values import WHOLE_DEVICE, Cause, Hold, PlacedAs
from controlplane.nodes import lost_nodes as silence

if TYPE_CHECKING:
    from collections.abc import Collection

    from controlplane.domain.cluster import Restore
    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Device, Fence, Node
    from controlplane.nodes.nodes import NodeKeeper
    from controlplane.state.agent_connections import AgentConnection, AgentConnections
    from controlplane.state.committer import Committer
    from controlplane.state.draft import Draft
    from controlplane.state.live_state import LiveState
    from controlplane.state.replica_reports import Report
    from controlplane.state.replica_rights import Rights
    from nsml.common.clock import Clock


ITSELF: Final = "the platform"
"""Lifts holds that need no administrator: the replicas stopped there were placed there, and given up since."""

MOST_FOREIGN: Final = 50
"""Limit of unwanted replicas described in a node's record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The first message of an agent.

    `replicas` are all its replicas; the highest term and revision are of the newest orders it obeyed.
    """

    node: Node
    cluster_id: str
    highest_term: int
    highest_revision: int
    replicas: tuple[Report, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedOffer:
    """All devices of a node from now on, and why some or all are missing; the rest as in `Node`."""

    devices: tuple[Device, ...]
    note: str
    not_ready: str = ""
    engine_note: str = ""


class Registrar:
    """Registers agents."""

    def __init__(
        self,
        *,
        state: LiveState,
        committer: Committer,
        contacts: AgentConnections,
        keeper: NodeKeeper,
        rights: Rights,
        clock: Clock,
        cluster_id: str,
        restores: tuple[Restore, ...] = (),
    ) -> None:
        self._state = state
        self._committer = committer
        self._contacts = contacts
        self._keeper = keeper
        self._rights = rights
        self._clock = clock
        self._cluster_id = cluster_id
        self._restores = restores

    async def register(self, caller: NodeCaller, said: Registration, term: int) -> AgentConnection:
        """Store the node and its replicas; return its stream, which replaces an older one.

        Raises:
            Denied: the agent registers a node other than its own.
            StateConflict: it obeyed another platform.
            NotLeader: another control plane leads.
            Unavailable: an administrator changed the node at the same moment.
            StoreError: its replicas cannot be looked up.
        """
        node = check_node(said.node.name)
        if node != caller.node:
            raise Denied(f"node {caller.node} cannot act for node {node}")
        if said.cluster_id and said.cluster_id != self._cluster_id:
            raise StateConflict(
                f"node {node} belongs to another platform",
                why=f"it obeyed {said.cluster_id}, this is {self._cluster_id}",
                attempt="a fresh data folder for the agent, if that platform is gone for ever",
            )
        known = self._state.nodes.get(node)
        before = _closing(known.value if known is not None else None)
        hold = await self._hold(said, term)
        await self._settle(said, is_held=hold is not None and hold.stands)
        owed = {_key(one) for one in said.replicas if not (one.phase.is_gone or self._wants(one))}
        if owed and hold is None:
            # Recorded as gone but still running: its devices are not free yet.
            hold = Hold(
                found_at=self._clock.time(),
                replicas=frozenset(owed),
                foreign=_known_as(said, owed),
                lifted_by=ITSELF,
            )
        starts_anew = hold is not None and not hold.stands and hold.is_of_orders
        is_open = not (owed or starts_anew)
        await self._committer.decide(
            partial(_put, node=replace(said.node, hold=hold), is_open=is_open, before=before)
        )
        self._contacts.unheard -= {node}
        link = self._contacts.connect(node)
        link.owed, link.starts_anew = owed, starts_anew
        return link

    async def change_offer(self, link: AgentConnection, said: ChangedOffer) -> None:
        """Store the node's new offer; nothing if another stream has replaced this one.

        Raises:
            NotLeader: another control plane leads.
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
                    not_ready=said.not_ready,
                    engine_note=said.engine_note,
                    capacity=replace(node.capacity, gpu_thousandths=gpus),
                ),
            )

        async with link.turn:  # the later of two changes wins
            await self._committer.decide(change)

    async def ended(self, link: AgentConnection, report: Report) -> None:
        """Handle a replica's report: the last unwanted one may be gone."""
        key = _key(report)
        if report.phase.is_gone and key in link.owed:
            link.owed.discard(key)
            await self._committer.decide(partial(_gone, name=link.node, key=key))
            await self._open(link)

    async def obeyed(self, link: AgentConnection) -> None:
        """Handle an agent's confirmation that it obeys our orders."""
        if link.starts_anew:
            link.starts_anew = False
            await self._open(link)

    async def _open(self, link: AgentConnection) -> None:
        stored = self._state.nodes.get(link.node)
        if stored is None or link.owed or link.starts_anew:
            return
        boot_id = stored.value.boot_id
        await self._committer.decide(
            lambda draft: silence.open_node(draft, link.node, boot_id=boot_id)
        )

    async def _hold(self, said: Registration, term: int) -> Hold | None:
        """Return a hold for orders or replicas that our store never had; None if there are none.

        A later leader's orders are of a lost history only if we can still write, which the
        registration itself does.
        """
        is_beyond = (
            said.highest_term > term
            # A restored store elects with terms that it has used before.
            or (said.highest_term == term and said.highest_revision > self._sent_to(said))
            or not await self._state.catch_up(said.highest_revision)
            or (self._obeyed_what_is_lost(said) and self._lacks(said))
        )
        strangers = await self._never_placed(said)
        found = Hold(
            found_at=self._clock.time(),
            term=said.highest_term if is_beyond else 0,
            revision=said.highest_revision if is_beyond else 0,
            replicas=strangers,
            foreign=_known_as(said, strangers),
        )
        if not (is_beyond or found.replicas):
            return None
        known = self._state.nodes.get(said.node.name)
        before = known.value.hold if known is not None else None
        if before is not None and not before.stands and before.covers(found):
            return replace(found, lifted_by=before.lifted_by)
        return found

    def _obeyed_what_is_lost(self, said: Registration) -> bool:
        """Whether its newest orders date from between a restored backup and the loss of its store."""
        return any(
            is_lost(position, self._restores)
            for position in (said.highest_term, said.highest_revision)
        )

    def _lacks(self, said: Registration) -> bool:
        """Whether the node lacks replicas that run there by our records.

        On a restored platform this means that they ended, or moved and may still run: they are not given
        up before somebody has checked. If a node has them all, and none unknown to us, both agree on
        what runs, and continue.
        """
        node, has = said.node.name, {_key(one) for one in said.replicas}
        return any(
            one.node == node
            and one.phase is not ReplicaPhase.PLACED
            and not one.phase.is_gone
            and (session.id, session.attempt, one.rank) not in has
            for session in self._state.sessions_on(node)
            for one in session.replicas
        )

    def _sent_to(self, said: Registration) -> int:
        return self._contacts.sent.get(said.node.name, 0)

    async def _never_placed(self, said: Registration) -> frozenset[tuple[str, int, int]]:
        """Return running replicas of sessions that we never placed there.

        Replicas given up by a fence were placed there, though their session may have been removed since.
        """
        known = self._state.nodes.get(said.node.name)
        given_up = silence.given_up(known.value, said.node.boot_id) if known else frozenset()
        found = set()
        for one in said.replicas:
            if one.phase.is_gone or _key(one) in given_up:
                continue
            try:
                await self._rights.check(one.node, one.session_id, one.attempt, one.rank)
            except NotFound:
                found.add(_key(one))
        return frozenset(found)

    def _wants(self, report: Report) -> bool:
        """Whether the replica should run there."""
        session = self._state.session(report.session_id)
        return session is not None and any(
            session.attempt == report.attempt
            and one.rank == report.rank
            and one.node == report.node
            and not one.phase.is_gone
            for one in session.replicas
        )

    async def _settle(self, said: Registration, *, is_held: bool) -> None:
        """Store its replicas, and mark missing ones as lost; all of them on a fenced node."""
        node = said.node.name
        known = self._state.nodes.get(node)
        if known is not None and silence.is_fenced(known.value, said.node.boot_id):
            await self._keeper.end_fenced(known.value)
            return
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
                    is_held=is_held,
                )
                for session_id, reports in by_session.items()
            ]
        )


def _closing(node: Node | None) -> tuple[Fence | None, Hold | None]:
    """Return the fence and hold to carry out before the node is open."""
    return (None, None) if node is None else (node.fence, node.hold)


def _put(
    draft: Draft, node: Node, *, is_open: bool, before: tuple[Fence | None, Hold | None]
) -> None:
    if _closing(draft.node(node.name)) != before:
        # It would open a node without carrying out its fence, or restore a lifted hold.
        raise Unavailable(
            f"node {node.name} was fenced or resumed meanwhile", attempt="register again"
        )
    silence.put_node(draft, node)
    if is_open:
        silence.open_node(draft, node.name, node.boot_id)


def _gone(draft: Draft, name: str, key: tuple[str, int, int]) -> None:
    node = draft.node(name)
    if node is not None and node.hold is not None and key in node.hold.replicas:
        draft.put_node(replace(node, hold=node.hold.without(key)))


def _known_as(
    said: Registration, keys: Collection[tuple[str, int, int]]
) -> tuple[tuple[tuple[str, int, int], PlacedAs], ...]:
    """Return the agent's descriptions of these: few, and only of its own devices, since the node's record has them."""
    own = {device.uuid for device in said.node.devices}
    known = {_key(one): one.placed_as for one in said.replicas if one.placed_as is not None}
    return tuple(
        (key, replace(known[key], device_uuids=tuple(sorted(own & set(known[key].device_uuids)))))
        for key in sorted(set(keys) & known.keys())[:MOST_FOREIGN]
    )


def _key(report: Report) -> tuple[str, int, int]:
    return (report.session_id, report.attempt, report.rank)
