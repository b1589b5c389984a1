"""Users' webhooks: one sealed URL each, and what is sent there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, Protocol

from controlplane.access.webhook_targets import target_of
from controlplane.domain.errors import NotFound, StateConflict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.access.user_secrets import UserSecrets
    from controlplane.access.webhook_targets import Target


class Post(Protocol):
    """Sends one message; `allows_private`: also to private networks and this machine."""

    @property
    def allows_private(self) -> bool:
        """Whether any address may be called."""
        ...

    async def __call__(self, target: Target, body: bytes, *, owner: str) -> int:
        """Send for a user, and give the HTTP status; raises InvalidRequest or StateConflict."""
        ...


class WebhookFacts(NamedTuple):
    """What is told of one; `set_at` in Unix seconds."""

    origin: str
    set_at: float


class Webhooks:
    """Webhooks of all users.

    Args:
        post: None: this control plane calls nobody.
    """

    def __init__(self, secrets: UserSecrets, post: Post | None) -> None:
        self._secrets = secrets
        self._post = post

    async def put(self, owner: str, url: str) -> WebhookFacts:
        """Set a user's.

        Raises:
            InvalidRequest: no such URL is called.
            NotFound: the user was removed.
        """
        target = target_of(url, allows_private=self._poster().allows_private)
        set_at = await self._secrets.put_webhook(owner, url)
        return WebhookFacts(target.origin, set_at)

    async def told(self, owner: str) -> WebhookFacts | None:
        """What is set; NotFound if there is no such user."""
        found = await self._secrets.webhook(owner)
        return found and WebhookFacts(target_of(found[0], allows_private=True).origin, found[1])

    async def remove(self, owner: str) -> None:
        """Remove a user's, if there is one."""
        await self._secrets.remove_webhook(owner)

    async def send(self, owner: str, message: Mapping[str, str]) -> int:
        """Send a message to a user's, once, and give the HTTP status.

        Raises:
            NotFound: there is no such user, or none is set.
            InvalidRequest: it is not to be called, by what the operator allows now.
            StateConflict: it cannot be reached, or does not answer in time.
        """
        post, found = self._poster(), await self._secrets.webhook(owner)
        if found is None:
            raise NotFound("no webhook is set", attempt="nsml webhook set < FILE")
        target = target_of(found[0], allows_private=post.allows_private)
        return await post(target, json.dumps(message).encode(), owner=owner)

    def _poster(self) -> Post:
        if self._post is None:
            raise StateConflict("this control plane calls no webhooks")
        return self._post
