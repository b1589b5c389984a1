"""Users' webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.webhooks import Webhooks
from controlplane.core.feature import Feature
from controlplane.features.secrets import user_secrets
from controlplane.services.webhooks import WebhookServicer
from nsml.v1 import webhooks_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def webhooks(core: Core) -> Webhooks:
    """All of them, sealed as secrets are."""
    return Webhooks(core.shared(user_secrets), core.backends.post)


def wire(core: Core) -> Feature:
    """Offer WebhookService."""
    servicer = WebhookServicer(core.shared(webhooks))
    return Feature(services=((webhooks_pb2_grpc.add_WebhookServiceServicer_to_server, servicer),))
