"""Environments on nodes: what a user asks for, by way of the agent, whose answer is waited for. Nothing of it is stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import (
    Denied,
    LimitReached,
    NodeUnavailable,
    NotFound,
    StateConflict,
)
from controlplane.domain.identity import Role
from controlplane.domain.names import check_node
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.state.agent_connections import Ability, EnvironmentOrder
from nsml.v1 import agents_pb2, resources_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.domain.identity import UserCaller
    from controlplane.state.agent_connections import AgentConnections
    from controlplane.state.live_state import LiveState

ANSWER_WITHIN_S: Final = 25.0
"""How long an agent has for an answer, for which it may look at many files."""
MOST_ASKED: Final = 64
"""Orders of one user that wait for their answers."""
MOST_LISTED: Final = 256
_MOST_WORDS: Final = 500


@dataclass(slots=True)
class _Asked:
    node: str
    user: str
    answer: asyncio.Future[agents_pb2.EnvironmentReport] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class NodeEnvironments:
    """Asks agents; on the control plane that leads.

    Args:
        names: of users by id, of those who are there.
    """

    def __init__(
        self,
        *,
        contacts: AgentConnections,
        state: LiveState,
        random_bytes: Callable[[int], bytes],
        names: Callable[[str], str],
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._contacts = contacts
        self._state = state
        self._random_bytes = random_bytes
        self._names = names
        self._within_s = answer_within_s
        self._asked: dict[str, _Asked] = {}

    async def listed(self, who: UserCaller, node: str) -> list[resources_pb2.NodeEnvironment]:
        """Those of a node that the caller sees, with the sessions that use them.

        Raises:
            InvalidRequest, NotFound: there is no such node.
            StateConflict: its agent is too old.
            LimitReached: the caller asks too many at once.
            NodeUnavailable: its agent is not connected, or does not answer in time.
        """
        report = await self._ask(who, node, "")
        sees_all = who.user.role is Role.ADMIN
        found = report.environments[:MOST_LISTED]
        return [
            self._shown(who, one)
            for one in found
            if sees_all or one.for_all or one.owner_id == who.user.id
        ]

    async def remove(self, who: UserCaller, node: str, key: str) -> None:
        """Remove one. Raises as `listed`; Denied for everybody's; StateConflict where it is used."""
        listed = await self.listed(who, node)
        found = next((one for one in listed if one.key == key), None)
        if found is None:
            raise NotFound(
                f"node {node} has no environment {key[:80]!r}", attempt=f"nsml env ls {node}"
            )
        if found.for_all and who.user.role is not Role.ADMIN:
            raise Denied(f"environment {key} is for everybody", why="only administrators remove it")
        report = await self._ask(who, node, key)
        if not report.removed:
            raise StateConflict(
                f"environment {key} stays on node {node}", why=report.words[:_MOST_WORDS]
            )

    def answered(self, node: str, report: agents_pb2.EnvironmentReport) -> None:
        """An agent has answered; nothing where nobody waits for that, or another node was asked."""
        asked = self._asked.get(report.order_id)
        if asked is not None and asked.node == node and not asked.answer.done():
            asked.answer.set_result(report)

    async def _ask(self, who: UserCaller, node: str, remove: str) -> agents_pb2.EnvironmentReport:
        if self._state.nodes.get(check_node(node)) is None:
            raise NotFound(f"there is no node {node}", attempt="nsml node ls")
        link = self._contacts.link(node)
        if link is None:
            raise NodeUnavailable(
                f"node {node} is not connected",
                why="its agent does not speak to this control plane now",
            )
        link.check(Ability.ENVIRONMENTS)
        user = who.user.id
        if sum(1 for one in self._asked.values() if one.user == user) >= MOST_ASKED:
            raise LimitReached(
                f"you ask {MOST_ASKED} nodes about environments at once, and no more is allowed"
            )
        order_id = self._random_bytes(16).hex()
        asked = self._asked[order_id] = _Asked(node, user)
        link.order_environment(EnvironmentOrder(order_id, remove))
        try:
            async with asyncio.timeout(self._within_s):
                return await asked.answer
        except TimeoutError as late:
            raise NodeUnavailable(
                f"node {node} does not answer",
                why=f"its agent said nothing within {self._within_s:g} s",
            ) from late
        finally:
            del self._asked[order_id]

    def _shown(
        self, who: UserCaller, said: resources_pb2.NodeEnvironment
    ) -> resources_pb2.NodeEnvironment:
        """What an agent says of one, for a user: names in place of ids."""
        sessions = [self._state.session(one) for one in said.sessions]
        seen = [one.name for one in sessions if one is not None and may(who, SEE, one) is ALLOW]
        return resources_pb2.NodeEnvironment(
            key=said.key[:64],
            owner="" if said.for_all else self._names(said.owner_id),
            for_all=said.for_all,
            package_count=said.package_count,
            bytes=said.bytes,
            shared_bytes=said.shared_bytes,
            built_at=said.built_at,
            used_at=said.used_at,
            sessions=sorted(seen),
            hidden_sessions=len(sessions) - len(seen),
        )
