"""WebhookService: unpack, call, convert. No answer has a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.access.current import require_user
from controlplane.domain.errors import InvalidRequest, StateConflict
from controlplane.domain.notices import DEFAULT_EVENTS, WebhookEvent
from controlplane.notices.webhooks import is_taken
from controlplane.wire.errors import Context, answering
from controlplane.wire.times import timestamp
from nsml.v1 import webhooks_pb2 as pb
from nsml.v1 import webhooks_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.notices.webhooks import WebhookFacts, Webhooks

_PREFIX: Final = "WEBHOOK_EVENT_"
_BY_NAME: Final = pb.WebhookEvent.DESCRIPTOR.values_by_name


class WebhookServicer(webhooks_pb2_grpc.WebhookServiceServicer):
    """The caller's webhook."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    @answering
    async def SetWebhook(  # noqa: N802 - named by the contract, as all below
        self, request: pb.SetWebhookRequest, _: Context
    ) -> pb.SetWebhookResponse:
        """Set it."""
        events = _events(request.events) or DEFAULT_EVENTS
        facts = await self._webhooks.put(require_user().user.name, request.url, events)
        return pb.SetWebhookResponse(webhook=_message(facts))

    @answering
    async def GetWebhook(  # noqa: N802
        self, _request: pb.GetWebhookRequest, _: Context
    ) -> pb.GetWebhookResponse:
        """Return the visible part."""
        facts = await self._webhooks.facts(require_user().user.name)
        return pb.GetWebhookResponse(webhook=_message(facts) if facts else None)

    @answering
    async def RemoveWebhook(  # noqa: N802
        self, _request: pb.RemoveWebhookRequest, _: Context
    ) -> pb.RemoveWebhookResponse:
        """Remove it."""
        await self._webhooks.remove(require_user().user.name)
        return pb.RemoveWebhookResponse()

    @answering
    async def TestWebhook(  # noqa: N802
        self, _request: pb.TestWebhookRequest, _: Context
    ) -> pb.TestWebhookResponse:
        """Send a test message."""
        name = require_user().user.name
        message = {"text": f"nsml: a test for {name}, from nsml webhook test", "event": "test"}
        status = await self._webhooks.send(name, message)
        if not is_taken(status):
            raise StateConflict(
                f"the webhook answered {status}", why="a message that is taken is answered with 2xx"
            )
        return pb.TestWebhookResponse(status=status)


def _message(facts: WebhookFacts) -> pb.Webhook:
    return pb.Webhook(
        origin=facts.origin,
        set_at=timestamp(facts.set_at),
        events=[f"{_PREFIX}{one.value}" for one in facts.events],
    )


def _events(numbers: Iterable[int]) -> frozenset[WebhookEvent]:
    """Return the events of a request; raises InvalidRequest if one is unknown."""
    names = {value.number: name.removeprefix(_PREFIX) for name, value in _BY_NAME.items()}
    try:
        return frozenset(WebhookEvent(names[number]) for number in numbers)
    except (KeyError, ValueError):
        raise InvalidRequest(
            "a webhook is called for ended, failed or idle", attempt="nsml webhook set --on failed"
        ) from None
