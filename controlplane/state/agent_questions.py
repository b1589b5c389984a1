"""Users' questions to agents over their Control streams, on the leader. Nothing is stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from controlplane.domain.errors import LimitReached, NodeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.state.agent_connections import Ability, AgentConnection, AgentConnections

T = TypeVar("T")

MOST_ASKED: Final = 64
"""Unanswered questions per user."""


@dataclass(slots=True)
class _Asked(Generic[T]):
    node: str
    user: str
    answer: asyncio.Future[T] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class AgentQuestions(Generic[T]):
    """Questions about one subject, and their answers.

    Args:
        subject: in the plural: "images".
        ability: needed to answer them.
    """

    def __init__(
        self,
        *,
        contacts: AgentConnections,
        random_bytes: Callable[[int], bytes],
        subject: str,
        ability: Ability,
    ) -> None:
        self._contacts = contacts
        self._random_bytes = random_bytes
        self._subject = subject
        self._ability = ability
        self._asked: dict[str, _Asked[T]] = {}

    async def ask(
        self,
        user_id: str,
        node: str,
        send: Callable[[AgentConnection, str], None],
        *,
        within_s: float,
    ) -> T:
        """Return the agent's answer. `send` gets its stream and the id of the order.

        Raises:
            StateConflict: the agent is too old.
            LimitReached: the user has too many questions open.
            NodeUnavailable: the agent is not connected, or does not answer in time.
        """
        link = self._contacts.link(node)
        if link is None:
            raise NodeUnavailable(
                f"node {node} is not connected",
                why="its agent does not speak to this control plane now",
            )
        link.check(self._ability)
        if sum(one.user == user_id for one in self._asked.values()) >= MOST_ASKED:
            raise LimitReached(
                f"you ask {MOST_ASKED} nodes about {self._subject} at once, and no more is allowed"
            )
        order_id = self._random_bytes(16).hex()
        asked = self._asked[order_id] = _Asked[T](node, user_id)
        send(link, order_id)
        try:
            async with asyncio.timeout(within_s):
                return await asked.answer
        except TimeoutError as late:
            raise NodeUnavailable(
                f"node {node} does not answer",
                why=f"its agent said nothing within {within_s:g} s",
            ) from late
        finally:
            del self._asked[order_id]

    def answered(self, node: str, order_id: str, answer: T) -> None:
        """Accept an agent's answer; ignored if nobody waits for it, or another node was asked."""
        asked = self._asked.get(order_id)
        if asked is not None and asked.node == node and not asked.answer.done():
            asked.answer.set_result(answer)
