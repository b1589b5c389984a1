"""Users' webhooks, and their queued notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.limits.free_space import STORE
from controlplane.notices.notices import Outbox
from controlplane.notices.notices_loop import Delivering
from controlplane.notices.service import WebhookServicer
from controlplane.notices.webhooks import Webhooks
from controlplane.secrets.feature import user_secrets
from nsml.v1 import webhooks_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def webhooks(core: Core) -> Webhooks:
    """Webhooks of all users, sealed like secrets."""
    return Webhooks(core.shared(user_secrets), core.backends.post)


def outbox(core: Core) -> Outbox:
    """Notices queued for webhooks."""
    return Outbox(
        core.store,
        wanted=core.shared(webhooks).wanted,
        clock=core.clock,
        is_full=lambda: core.space.is_low(STORE),
    )


def wire(core: Core) -> Feature:
    """Offer WebhookService; the leader delivers notices."""
    known = core.shared(webhooks)
    delivering = Delivering(core.shared(outbox), known, clock=core.clock)
    return Feature(
        services=(
            (webhooks_pb2_grpc.add_WebhookServiceServicer_to_server, WebhookServicer(known)),
        ),
        leader_loops=(delivering.run,),
    )
