"""Users' webhooks: one sealed URL each, and sending to them."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from controlplane.core.webhook_targets import target_of
from controlplane.domain.errors import NotFound, StateConflict
from controlplane.domain.notices import DEFAULT_EVENTS, WebhookEvent, is_wanted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from controlplane.core.webhook_targets import Post
    from controlplane.secrets.user_secrets import UserSecrets


class WebhookFacts(NamedTuple):
    """The visible part of a webhook, for its owner; `set_at` in Unix seconds."""

    origin: str
    set_at: float
    events: tuple[WebhookEvent, ...]


def is_taken(status: int) -> bool:
    """Return whether an HTTP status confirms the message."""
    return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


def is_final(status: int) -> bool:
    """Return whether a retry is useless: the message has arrived, or is rejected for good."""
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.TOO_MANY_REQUESTS


class Webhooks:
    """Webhooks of all users.

    Args:
        post: None: this control plane sends no messages.
    """

    def __init__(self, secrets: UserSecrets, post: Post | None) -> None:
        self._secrets = secrets
        self._post = post

    async def put(
        self, owner: str, url: str, events: Collection[WebhookEvent] = DEFAULT_EVENTS
    ) -> WebhookFacts:
        """Set a user's webhook.

        Raises:
            InvalidRequest: the URL is not allowed.
            NotFound: the user was removed.
        """
        target = target_of(url, allows_private=self._poster().allows_private)
        chosen = tuple(one for one in WebhookEvent if one in events)
        set_at = await self._secrets.put_webhook(owner, url, chosen)
        return WebhookFacts(target.origin, set_at, chosen)

    async def facts(self, owner: str) -> WebhookFacts | None:
        """Return a user's webhook, or None; NotFound if there is no such user."""
        found = await self._secrets.webhook(owner)
        if found is None:
            return None
        origin = target_of(found.url, allows_private=True).origin
        return WebhookFacts(origin, found.set_at, found.events)

    async def wanted(self, owners: Collection[str]) -> dict[str, tuple[WebhookEvent, ...]]:
        """Return the events of these users' webhooks, without users that have none.

        Raises:
            StoreError: the store does not answer.
        """
        return {} if self._post is None else await self._secrets.webhook_events(owners)

    async def remove(self, owner: str) -> None:
        """Remove a user's webhook, if there is one."""
        await self._secrets.remove_webhook(owner)

    async def send(
        self,
        owner: str,
        message: Mapping[str, object],
        event: WebhookEvent | None = None,
        *,
        owner_id: str = "",
    ) -> int:
        """Send a message to a user's webhook, once, and return the HTTP status.

        Args:
            owner: the user.
            message: the JSON to send.
            event: the reported event; None: send it whatever the webhook's events.
            owner_id: the user's expected id; "": any.

        Raises:
            NotFound: there is no such user, no webhook is set, or it excludes this event.
            InvalidRequest: its URL is not allowed by the operator's current settings.
            StateConflict: it cannot be reached, or does not answer in time.
        """
        post, found = self._poster(), await self._secrets.webhook(owner)
        if found is None:
            raise NotFound("no webhook is set", attempt="nsml webhook set < FILE")
        if owner_id and found.owner_id != owner_id:
            raise NotFound(f"{owner} is another user than the one of then")
        if event is not None and not is_wanted(event, found.events):
            raise NotFound(f"the webhook is not called for {event.value.lower()}")
        target = target_of(found.url, allows_private=post.allows_private)
        return await post(target, json.dumps(message).encode(), owner=owner)

    def _poster(self) -> Post:
        if self._post is None:
            raise StateConflict("this control plane calls no webhooks")
        return self._post
