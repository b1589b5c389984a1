"""Views: TensorBoard, Visdom and the dashboard in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.secret import Secret, new_secret
from controlplane.core.feature import Feature
from controlplane.core.ids import new_id
from controlplane.domain.identity import UserCaller
from controlplane.views.service import ViewServicer
from controlplane.views.views import Views
from nsml.v1 import views_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute

    from controlplane.core.core import Core


def views(core: Core) -> Views:
    """Create the views of this control plane."""

    async def still(token: str) -> UserCaller | None:
        who = await core.identities.of_secret(Secret(token), thorough=True)
        return who if isinstance(who, UserCaller) else None

    return Views(
        references=core.references,
        clock=core.clock,
        still=still,
        new_id=lambda: "v" + new_id(core.random_bytes),
        new_secret=lambda: new_secret(core.random_bytes).text,
        fingerprint=lambda text: Secret(text).fingerprint,
        opens_http=core.config.opens_http,
    )


def wire(core: Core) -> Feature:
    """Offer ViewService, and the routes below /view/ and /dashboard."""
    servicer = ViewServicer(core.shared(views))
    return Feature(
        services=((views_pb2_grpc.add_ViewServiceServicer_to_server, servicer),),
        routes=lambda: _routes(core),
    )


def _routes(core: Core) -> Sequence[BaseRoute]:
    from controlplane.gateway.callers import Callers  # noqa: PLC0415 - see Feature.routes
    from controlplane.views.login import login_routes  # noqa: PLC0415
    from controlplane.views.proxy import view_routes  # noqa: PLC0415

    callers = Callers(core.identities, core.limiter)
    return (*login_routes(callers, core.shared(views)), *view_routes(core.shared(views)))
