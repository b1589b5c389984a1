"""Administrators' actions on nodes: drain, resume, fence, remove; and their execution.

The action is written first, in the node's own record; its effects on sessions are further
decisions, one per session, completed by the next leader if needed (`nodes/node_maintenance_loop.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import (
    InvalidRequest,
    NotFound,
    StateConflict,
    StillLive,
    Unavailable,
)
from controlplane.domain.lifecycle import SessionEvent, can
from controlplane.domain.names import check_node
from controlplane.domain.node_availability import drained_words, fenced_words
from controlplane.domain.values import Cause, Drain, Fence
from controlplane.nodes import lost_nodes as silence
from controlplane.scheduler import NOTICE_S
from controlplane.sessions.preempt import leaving
from controlplane.sessions.validation import check_reason
from controlplane.state.desired_replicas import replicas_of
from controlplane.state.draft import Draft
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.domain.values import Node, Session
    from controlplane.state.agent_connections import AgentConnections
    from controlplane.state.committer import Committer
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

LONGEST_MOVE_AFTER_S: Final = 365 * 86_400.0


class NodeKeeper:
    """Changes nodes, while this control plane leads.

    Every method raises NotLeader if another one leads, and NotFound for an unknown node.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        committer: Committer,
        contacts: AgentConnections,
        clock: Clock,
        notice_s: float = NOTICE_S,
    ) -> None:
        self._notice_s = notice_s
        self._state = state
        self._committer = committer
        self._contacts = contacts
        self._clock = clock

    async def drain(
        self, name: str, *, asked_by: str, reason: str, move_after_s: float | None
    ) -> Node:
        """Close it to new sessions; running ones are moved after `move_after_s`, or never (None).

        Raises:
            InvalidRequest: the time is out of range.
            TooLarge: the reason is too long.
        """
        if move_after_s is not None and not 0 <= move_after_s <= LONGEST_MOVE_AFTER_S:
            raise InvalidRequest("a drain moves sessions after 0 s to 365 days")
        now = self._clock.time()
        move_at = 0.0 if move_after_s is None else now + move_after_s
        word = Drain(asked_by=asked_by, reason=check_reason(reason), asked_at=now, move_at=move_at)
        return await self._change(name, lambda node: replace(node, drain=word))

    async def resume(self, name: str, *, asked_by: str) -> Node:
        """Open it to sessions again, and lift its hold.

        Raises:
            StateConflict: it is only fenced, which ends by itself.
        """
        node = await self._change(name, lambda node: _resumed(node, asked_by))
        if node.hold is not None:
            # Its agent must learn of it before it gets orders, so it registers again.
            self._end_stream(name, f"node {name} was resumed")
        return node

    async def fence(
        self, name: str, *, asked_by: str, reason: str, force: bool
    ) -> tuple[Node, list[Session]]:
        """Declare its replicas lost, on an administrator's word; return the node and its sessions.

        Raises:
            StateConflict: its agent is not silent, and `force` is not set.
        """
        word = partial(
            Fence, asked_by=asked_by, reason=check_reason(reason), asked_at=self._clock.time()
        )
        node = await self._committer.decide(
            partial(self._fenced, check_node(name), word, force=force)
        )
        had = self.sessions_of(name)
        self._end_stream(name, f"node {name} was fenced")
        await self.end_fenced(node)
        return node, had

    def why_not_fenced(self, name: str) -> StateConflict | None:
        """Return the error of a fence without `force`; None if it is allowed now."""
        return None if name in self._contacts.unheard else self._not_silent(name)

    def check_removable(self, name: str, *, is_cut_off: bool, draft: Draft | None = None) -> None:
        """Check that a node may be removed; `is_cut_off`: even if its agent is connected.

        Raises:
            StateConflict: its agent is connected and would register it again.
            StillLive: it has sessions, or their records.
        """
        if not is_cut_off and self._contacts.link(name) is not None:
            raise StateConflict(
                f"the agent of node {name} is connected",
                why="it would register again at once",
                attempt=f"nsml down   on {name}, or systemctl disable --now nsml-agent\n"
                f"nsml node rm --revoke {name}   to cut it off",
            )
        sessions = self.sessions_of(name)
        if sessions or (draft or Draft(self._state)).allocation(name).replicas:
            names = ", ".join(one.name for one in sessions[:3])
            raise StillLive(
                f"node {name} has {counted(len(sessions), 'session')}",
                why=f"{names}: they run there, or their records are there",
                attempt=f"nsml node fence {name}   if it never comes back",
            )

    async def remove(self, name: str, *, is_cut_off: bool = False) -> None:
        """Remove it; raises as `check_removable`."""
        await self._committer.decide(partial(self._removed, check_node(name), is_cut_off))
        self._end_stream(name, f"node {name} was removed")
        self._contacts.unheard -= {name}

    def sessions_of(self, name: str) -> list[Session]:
        """Return sessions that run there, or have records on its agent."""
        return [one for one in map(self._state.session, self._sessions_of(name)) if one]

    async def move(self, node: Node, drain: Drain) -> None:
        """Move all sessions that run there."""
        leave = partial(
            leaving,
            reason=drained_words(node.name, drain),
            now=self._clock.time(),
            notice_s=self._notice_s,
            asked_by=drain.asked_by,
        )
        await self._committer.decide_all(
            [
                partial(_move, name=node.name, drain=drain, session_id=one.id, leave=leave)
                for one in self._movable(node.name)
            ]
        )

    def is_empty(self, name: str) -> bool:
        """Whether no session there is left to move."""
        return not self._movable(name)

    async def end_fenced(self, node: Node) -> None:
        """Mark the replicas of a fenced node as lost."""
        if node.fence is None:
            return
        now = self._clock.time()
        proof = silence.Proof(
            cause=Cause.NODE_LOST,
            message=fenced_words(node.name, node.fence),
            now=now,
            last_word_at=self._contacts.last_registered_at(node.name) or now,
        )
        await self._committer.decide_all(
            [
                partial(
                    silence.lose,
                    session_id=session_id,
                    node=node.name,
                    proof=proof,
                    unheard=self._contacts.unheard,
                )
                for session_id in self._sessions_of(node.name)
            ]
        )

    def _not_silent(self, name: str) -> StateConflict:
        if self._contacts.link(name) is None:
            return StateConflict(
                f"node {name} reported a moment ago",
                why="its agent may be reconnecting",
                attempt="the same in some seconds",
            )
        stored = self._state.nodes.get(name)
        is_held = stored is not None and stored.value.hold is not None
        return StateConflict(
            f"node {name} is not silent",
            why="its agent still reports, so its sessions are not gone",
            attempt=(
                f"nsml node resume {name}" if is_held else f"nsml node drain {name} --move-after 0s"
            ),
        )

    def _sessions_of(self, name: str) -> list[str]:
        return silence.sessions_of(self._state, name)

    def _movable(self, name: str) -> list[Session]:
        return [session for session in self.sessions_of(name) if _is_to_move(session, name)]

    async def _change(self, name: str, change: Callable[[Node], Node]) -> Node:
        check_node(name)

        def decide(draft: Draft) -> Node:
            node = _known(draft, name)
            changed = change(node)
            if changed != node:
                draft.put_node(changed)
            return changed

        return await self._committer.decide(decide)

    def _end_stream(self, name: str, why: str) -> None:
        link = self._contacts.link(name)
        if link is not None:
            link.close(Unavailable(why))

    def _fenced(self, name: str, word: Callable[..., Fence], draft: Draft, *, force: bool) -> Node:
        node = _known(draft, name)
        if not force and (refusal := self.why_not_fenced(name)) is not None:
            raise refusal
        # If fenced before, it holds none any more, but may still run them.
        held = replicas_of(draft.allocation(name).replicas)
        given_up = held | silence.given_up(node, node.boot_id)
        node = replace(node, fence=word(boot_id=node.boot_id, replicas=given_up))
        draft.put_node(node)
        return node

    def _removed(self, name: str, is_cut_off: bool, draft: Draft) -> None:
        _known(draft, name)
        self.check_removable(name, is_cut_off=is_cut_off, draft=draft)
        draft.remove_node(name)


def _known(draft: Draft, name: str) -> Node:
    node = draft.node(name)
    if node is None:
        raise NotFound(f"there is no node {name}", attempt="nsml node ls")
    return node


def _resumed(node: Node, asked_by: str) -> Node:
    if node.fence is not None and node.drain is None and node.hold is None:
        raise StateConflict(
            f"node {node.name} is fenced",
            why="its sessions were given up, so its agent must end all of them first",
            attempt="start its agent, or the machine: it is then ready by itself",
        )
    hold = node.hold and replace(node.hold, lifted_by=node.hold.lifted_by or asked_by)
    return replace(node, drain=None, hold=hold)


def _is_to_move(session: Session, name: str) -> bool:
    """Whether it runs there. A gang does not need the node once its replica there has ended."""
    return (
        session.stop is None
        and can(session.state, SessionEvent.STOP_REQUESTED)
        and any(one.node == name and not one.phase.is_gone for one in session.replicas)
    )


def _move(
    draft: Draft, name: str, drain: Drain, session_id: str, leave: Callable[[Session], Session]
) -> None:
    session, node = draft.session(session_id), draft.node(name)
    if session is None or not _is_to_move(session, name):
        return
    if node is None or node.drain != drain:  # resumed or drained again meanwhile
        return
    draft.put_session(leave(session))
