"""Users' requests about images of nodes, answered by the agents.

Nothing is stored: a pull continues while its user keeps asking, whichever control plane leads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from controlplane.domain.errors import InvalidRequest, NotFound, StateConflict
from controlplane.domain.names import check_node
from controlplane.domain.node_availability import owner_words
from controlplane.domain.policy import ACT_FOR, ALLOW, Personal, may
from controlplane.domain.values import Isolation
from controlplane.state.agent_connections import Ability, ImageAction, ImageOrder
from controlplane.state.agent_questions import AgentQuestions
from nsml.spec.images import RULE, is_reference, why_never_pulled
from nsml.v1 import resources_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.domain.identity import User, UserCaller
    from controlplane.domain.values import RegistryLogin
    from controlplane.state.agent_connections import AgentConnection, AgentConnections
    from controlplane.state.live_state import LiveState

ANSWER_WITHIN_S: Final = 10.0
"""Timeout of an agent's answer, which waits for no registry."""
REMOVED_WITHIN_S: Final = 25.0
"""The same for a removal: the engine deletes files."""
MOST_WORDS: Final = 500
_LONGEST_IMAGE: Final = 600


class Logins(Protocol):
    """A user's logins at the registry of an image; see UserSecrets.logins_for."""

    async def __call__(self, user: User, image: str, /) -> Sequence[RegistryLogin]:
        """Return the logins, if any."""
        ...


class NodeImages:
    """Asks agents; on the leader."""

    def __init__(
        self,
        *,
        contacts: AgentConnections,
        state: LiveState,
        random_bytes: Callable[[int], bytes],
        logins: Logins,
        answer_within_s: float = ANSWER_WITHIN_S,
        removed_within_s: float = REMOVED_WITHIN_S,
    ) -> None:
        self._questions = AgentQuestions[pb.ImageStatus](
            contacts=contacts, random_bytes=random_bytes, subject="images", ability=Ability.IMAGES
        )
        self._state = state
        self._logins = logins
        self._within_s = {
            ImageAction.PULL: answer_within_s,
            ImageAction.LOOK: answer_within_s,
            ImageAction.REMOVE: removed_within_s,
        }

    async def ask(
        self, who: UserCaller, node: str, action: ImageAction, image: str
    ) -> pb.ImageStatus:
        """Return the agent's answer.

        Raises:
            InvalidRequest: the image or node name is invalid, or nodes never pull the image.
            NotFound: no such node.
            StateConflict: the node runs no containers, or no sessions of the caller.
            LimitReached: the caller has too many requests open.
            NodeUnavailable: its agent is not connected, or does not answer in time.
        """
        if not is_reference(image):
            raise InvalidRequest(f"{image[:80]!r} is not the name of an image", why=RULE)
        if why := why_never_pulled(image):
            raise InvalidRequest(f"no node asks for image {image}", why=why)
        self._check_node(who, node)
        user = who.user.id
        is_pull = action is ImageAction.PULL
        logins = await self._logins(who.user, image) if is_pull else ()

        def send(link: AgentConnection, order_id: str) -> None:
            order = ImageOrder(order_id=order_id, action=action, image=image, owner_id=user)
            given = logins if link.keeps_logins_in_memory else ()
            link.order_image(replace(order, logins=given))

        return await self._questions.ask(user, node, send, within_s=self._within_s[action])

    def answered(self, node: str, order_id: str, status: pb.ImageStatus) -> None:
        """Accept an agent's answer; see AgentQuestions."""
        status.image = status.image[:_LONGEST_IMAGE]
        status.words = status.words[:MOST_WORDS]
        self._questions.answered(node, order_id, status)

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
