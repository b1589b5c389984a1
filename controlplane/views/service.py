"""ViewService: unpack, call, convert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.access.current import require_user
from controlplane.access.interceptor import token_of
from controlplane.domain.errors import InvalidRequest
from controlplane.views.views import Kind
from controlplane.wire.errors import Context, answering
from controlplane.wire.times import timestamp
from nsml.v1 import views_pb2 as pb
from nsml.v1 import views_pb2_grpc

if TYPE_CHECKING:
    from controlplane.views.views import View, Views


_KINDS: Final = {
    pb.VIEW_KIND_UNSPECIFIED: Kind.TENSORBOARD,
    pb.VIEW_KIND_TENSORBOARD: Kind.TENSORBOARD,
    pb.VIEW_KIND_VISDOM: Kind.VISDOM,
    pb.VIEW_KIND_DASHBOARD: Kind.DASHBOARD,
}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}


class ViewServicer(views_pb2_grpc.ViewServiceServicer):
    """Visualisation servers beside sessions."""

    def __init__(self, views: Views) -> None:
        self._views = views

    @answering
    async def OpenView(  # noqa: N802 - named by the contract, as all below
        self, request: pb.OpenViewRequest, context: Context
    ) -> pb.OpenViewResponse:
        """Show sessions, with the caller's own credential."""
        kind = _KINDS.get(request.kind)
        if kind is None:
            raise InvalidRequest("no such kind of view is known here")
        view, url = await self._views.open(
            require_user(), token_of(context), request.sessions, kind
        )
        return pb.OpenViewResponse(view=_message(view), url=url)

    @answering
    async def ListViews(  # noqa: N802
        self, _: pb.ListViewsRequest, __: Context
    ) -> pb.ListViewsResponse:
        """List the caller's views; for administrators, all."""
        return pb.ListViewsResponse(views=map(_message, self._views.listed(require_user())))

    @answering
    async def StopView(  # noqa: N802
        self, request: pb.StopViewRequest, _: Context
    ) -> pb.StopViewResponse:
        """End a view."""
        await self._views.stop(require_user(), request.id)
        return pb.StopViewResponse()


def _message(view: View) -> pb.View:
    return pb.View(
        id=view.id,
        kind=_NUMBERS[view.kind],
        owner=view.who.user.name,
        sessions=[name for _, name in view.sessions],
        opened_at=timestamp(view.opened_at),
        used_at=timestamp(view.used_at),
    )
