"""Detects silent nodes, and the sessions lost by their silence."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import Unavailable
from controlplane.domain.values import Cause
from controlplane.nodes import lost_nodes as silence

if TYPE_CHECKING:
    from controlplane.state.agent_connections import AgentConnections
    from controlplane.state.committer import Committer
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

SHORTEST_WAIT_S: Final = 0.1


class Liveness:
    """Checks again when the next node can have become silent."""

    def __init__(
        self,
        *,
        state: LiveState,
        committer: Committer,
        contacts: AgentConnections,
        clock: Clock,
        silent_after_s: float,
    ) -> None:
        self._state = state
        self._committer = committer
        self._contacts = contacts
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Check the nodes until cancelled."""
        while True:
            for node in list(self._state.nodes):
                await self._look(node)
            await self._clock.sleep(self._wait())

    def _wait(self) -> float:
        """Seconds until a node can have become silent; a fraction of the limit while one is."""
        now = self._clock.monotonic()
        if self._contacts.unheard:
            return self._silent_after_s / 5
        heard = [self._contacts.last_heard(node) for node in self._state.nodes]
        oldest = min(heard, default=now)
        return max(oldest + self._silent_after_s - now, SHORTEST_WAIT_S)

    async def _look(self, node: str) -> None:
        if node not in self._state.nodes:
            return  # removed while others were checked
        silent_for = self._clock.monotonic() - self._contacts.last_heard(node)
        is_unheard = silent_for >= self._silent_after_s
        if is_unheard != (node in self._contacts.unheard):
            await self._changed(node, is_unheard=is_unheard)
        if is_unheard:
            await self._lose_overdue(node, silent_for)

    async def _changed(self, node: str, *, is_unheard: bool) -> None:
        self._log.warning("node.silent" if is_unheard else "node.heard", node=node)
        unheard = self._contacts.unheard - {node}
        self._contacts.unheard = unheard | {node} if is_unheard else unheard
        link = self._contacts.link(node)
        if link is not None and is_unheard:
            # Nothing may be sent any more: the shims' clocks count from the agent's last contact
            # with us.
            link.close(Unavailable("the agent did not report for too long"))
        await self._committer.decide_all(
            [
                partial(
                    silence.contact_changed,
                    session_id=session_id,
                    unheard=self._contacts.unheard,
                    now=self._clock.time(),
                )
                for session_id in silence.sessions_of(self._state, node)
            ]
        )

    async def _lose_overdue(self, node: str, silent_for: float) -> None:
        """Mark sessions as lost if their shims must have stopped them by now."""
        stored = self._state.allocations.get(node)
        overdue = set()
        for held in stored.value.replicas if stored else ():
            session = self._state.session(held.session_id)
            if session is None or not session.spec.lost_after_s:
                continue
            spec = session.spec
            if silent_for > spec.lost_after_s + spec.grace_s + silence.LOST_AFTER_MARGIN_S:
                overdue.add(session.id)
        if overdue:
            self._log.warning("node.lost_sessions", node=node, sessions=sorted(overdue))
            now = self._clock.time()
            proof = silence.Proof(
                cause=Cause.LOST_AFTER,
                message=f"node {node} was silent for longer than lost_after",
                now=now,
                last_word_at=self._contacts.last_registered_at(node) or now,
            )
            await self._committer.decide_all(
                [
                    partial(
                        silence.lose,
                        session_id=session_id,
                        node=node,
                        proof=proof,
                        unheard=self._contacts.unheard,
                    )
                    for session_id in sorted(overdue)
                ]
            )
