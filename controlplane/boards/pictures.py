"""GET /boards/OWNER/NAME.svg: boards to embed in other pages."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from controlplane.boards.board_views import Wanted
from controlplane.domain.errors import InvalidRequest, NotFound
from controlplane.domain.identity import User, UserCaller
from controlplane.gateway.addresses import address_of
from controlplane.limits.concurrency_limits import Turns
from controlplane.state.lru import LruDict
from nsml.common.clock import in_own_thread
from nsml.view.board_svg import ROWS, board_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from controlplane.boards.board_views import BoardViews
    from controlplane.boards.boards import Boards
    from controlplane.gateway.callers import Callers
    from nsml.common.clock import Clock

ANYBODY: Final = UserCaller(user=User(name=""))
"""Who has no token sees what is public."""
FRESH_S: Final = 5.0
"""How long a picture for anybody is kept: pages that embed it may have many readers."""
_KEPT: Final = 256
_AT_ONCE: Final = 4
"""Pictures made at one time,"""
_AT_ONCE_EACH: Final = 2
"""and of these for one address: nobody needs a token to ask."""
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "cross-origin-resource-policy": "cross-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_BEARER: Final = "bearer "


def picture_routes(
    boards: Boards, views: BoardViews, callers: Callers, clock: Clock
) -> Sequence[BaseRoute]:
    """Return the route of pictures."""
    pictures = _Pictures(boards, views, callers, clock)
    return (Route("/boards/{owner}/{name}.svg", pictures.answer, methods=["GET"]),)


class _Pictures:
    def __init__(self, boards: Boards, views: BoardViews, callers: Callers, clock: Clock) -> None:
        self._boards = boards
        self._views = views
        self._callers = callers
        self._clock = clock
        self._made: LruDict[str, tuple[float, bytes]] = LruDict(_KEPT)
        self._turns = Turns("for pictures of boards", slots=_AT_ONCE, each=_AT_ONCE_EACH)

    async def answer(self, request: Request) -> Response:
        """Answer with a picture; a board that is not public, without a token that sees it, is not there."""
        name = f"{request.path_params['owner']}/{request.path_params['name']}"
        shown = request.headers.get("authorization", "")
        viewer = ANYBODY
        if shown.lower().startswith(_BEARER):
            who = await self._callers.of_token(shown[len(_BEARER) :].strip(), address_of(request))
            viewer = who if isinstance(who, UserCaller) else ANYBODY
        try:
            async with self._turns.turn(address_of(request)):
                body = await self._picture(viewer, name)
        except (NotFound, InvalidRequest):
            return PlainTextResponse(
                "there is no such board, or it is not public\n",
                status_code=404,
                headers={"cache-control": "no-store", **_HEADERS},
            )
        tag = f'"{sha256(body).hexdigest()[:32]}"'
        headers = {
            **_HEADERS,
            "etag": tag,
            "vary": "authorization",
            "cache-control": "public, max-age=60" if viewer is ANYBODY else "private, no-cache",
        }
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="image/svg+xml", headers=headers)

    async def _picture(self, viewer: UserCaller, name: str) -> bytes:
        is_anybody = viewer is ANYBODY
        known = self._made.get(name) if is_anybody else None
        now = self._clock.monotonic()
        if known is not None and now - known[0] < FRESH_S:
            return known[1]
        board = await self._boards.find(viewer, name)
        answer = (await self._views.answer(viewer, board, Wanted(limit=ROWS))).read()
        body = await in_own_thread(lambda: board_svg(answer.board, answer.entries).encode())
        if is_anybody:
            self._made.keep(name, (now, body))
        return body
