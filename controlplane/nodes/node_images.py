"""Images of nodes: what a user asks for, by way of the agent, whose answer is waited for.

Nothing of it is stored: a pull goes on while whoever wants it asks for it, whichever control plane leads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import (
    InvalidRequest,
    LimitReached,
    NodeUnavailable,
    NotFound,
    StateConflict,
)
from controlplane.domain.names import check_node
from controlplane.domain.node_availability import owner_words
from controlplane.domain.policy import ACT_FOR, ALLOW, Personal, may
from controlplane.domain.values import Isolation
from controlplane.state.agent_connections import Ability, ImageAction, ImageOrder
from nsml.spec.images import RULE, is_reference, why_never_pulled
from nsml.v1 import resources_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.domain.identity import UserCaller
    from controlplane.state.agent_connections import AgentConnections
    from controlplane.state.live_state import LiveState

ANSWER_WITHIN_S: Final = 10.0
"""How long an agent has for an answer, which waits for no registry."""
REMOVED_WITHIN_S: Final = 25.0
"""The same of a removal, for which an engine deletes files."""
MOST_ASKED: Final = 64
"""Orders of one user that wait for their answers."""
MOST_WORDS: Final = 500
_LONGEST_IMAGE: Final = 600


@dataclass(slots=True)
class _Asked:
    node: str
    user: str
    answer: asyncio.Future[pb.ImageStatus] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class NodeImages:
    """Asks agents; on the control plane that leads."""

    def __init__(
        self,
        *,
        contacts: AgentConnections,
        state: LiveState,
        random_bytes: Callable[[int], bytes],
        answer_within_s: float = ANSWER_WITHIN_S,
        removed_within_s: float = REMOVED_WITHIN_S,
    ) -> None:
        self._contacts = contacts
        self._state = state
        self._random_bytes = random_bytes
        self._within_s = {
            ImageAction.PULL: answer_within_s,
            ImageAction.LOOK: answer_within_s,
            ImageAction.REMOVE: removed_within_s,
        }
        self._asked: dict[str, _Asked] = {}

    async def ask(
        self, who: UserCaller, node: str, action: ImageAction, image: str
    ) -> pb.ImageStatus:
        """The agent's answer.

        Raises:
            InvalidRequest: it names no image, or no name of a node could look like this.
            NotFound: there is no such node.
            StateConflict: the node runs no containers, or no sessions of the caller.
            LimitReached: the caller asks too many at once.
            NodeUnavailable: its agent is not connected, or does not answer in time.
        """
        if not is_reference(image):
            raise InvalidRequest(f"{image[:80]!r} is not the name of an image", why=RULE)
        if why := why_never_pulled(image):
            raise InvalidRequest(f"no node asks for image {image}", why=why)
        self._check_node(who, node)
        link = self._contacts.link(node)
        if link is None:
            raise NodeUnavailable(
                f"node {node} is not connected",
                why="its agent does not speak to this control plane now",
            )
        link.check(Ability.IMAGES)
        user = who.user.id
        if sum(1 for one in self._asked.values() if one.user == user) >= MOST_ASKED:
            raise LimitReached(
                f"you ask {MOST_ASKED} nodes about images at once, and no more is allowed"
            )
        order_id = self._random_bytes(16).hex()
        asked = self._asked[order_id] = _Asked(node, user)
        link.order_image(ImageOrder(order_id=order_id, action=action, image=image, owner_id=user))
        try:
            async with asyncio.timeout(self._within_s[action]):
                return await asked.answer
        except TimeoutError as late:
            raise NodeUnavailable(
                f"node {node} does not answer",
                why=f"its agent said nothing within {self._within_s[action]:g} s",
            ) from late
        finally:
            del self._asked[order_id]

    def answered(self, node: str, order_id: str, status: pb.ImageStatus) -> None:
        """An agent has answered; nothing where nobody waits for that, or another node was asked."""
        asked = self._asked.get(order_id)
        if asked is None or asked.node != node or asked.answer.done():
            return
        status.image = status.image[:_LONGEST_IMAGE]
        status.words = status.words[:MOST_WORDS]
        asked.answer.set_result(status)

    def _check_node(self, who: UserCaller, name: str) -> None:
        stored = self._state.nodes.get(check_node(name))
        if stored is None:
            raise NotFound(f"there is no node {name}", attempt="nsml node ls")
        node = stored.value
        if node.isolation is not Isolation.CONTAINER:
            raise StateConflict(f"node {name} runs no containers", why=node.isolation_note)
        is_theirs = may(who, ACT_FOR, Personal(node.owner)) is ALLOW
        if not is_theirs and (why := owner_words(node)):
            raise StateConflict(f"node {name} {why}")
