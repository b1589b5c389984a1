"""GET /competitions/OWNER/NAME: a competition for participants with a browser; /competitions/ lists the public ones."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from controlplane.competitions.convert import competition_message
from controlplane.domain.competitions.phases import in_order
from controlplane.domain.errors import InvalidRequest, NotFound
from controlplane.domain.identity import User, UserCaller
from controlplane.gateway.addresses import address_of
from controlplane.state.lru import LruDict
from controlplane.wire.times import timestamp
from nsml.common.clock import in_own_thread
from nsml.v1 import competitions_pb2 as pb
from nsml.view.competition_page import LISTED, POLICY, Standings, competition_page, index_page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from controlplane.competitions.competitions import Competitions
    from controlplane.competitions.tables import Tables
    from controlplane.competitions.views import CompetitionViews
    from controlplane.gateway.callers import Callers
    from controlplane.limits.concurrency_limits import Turns
    from nsml.common.clock import Clock

ANYBODY: Final = UserCaller(user=User(name=""))
"""Who has no token sees what is public."""
FRESH_S: Final = 5.0
"""How long a page for anybody is kept: it may have many readers."""
_KEPT: Final = 64
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_BEARER: Final = "bearer "


def page_routes(
    *,
    competitions: Competitions,
    views: CompetitionViews,
    tables: Tables,
    callers: Callers,
    reading: Turns,
    clock: Clock,
) -> Sequence[BaseRoute]:
    """Return the routes of pages."""
    pages = _Pages(
        competitions=competitions,
        views=views,
        tables=tables,
        callers=callers,
        reading=reading,
        clock=clock,
    )
    return (
        Route("/competitions/", pages.index, methods=["GET"]),
        Route("/competitions/{owner}/{name}", pages.page, methods=["GET"]),
    )


class _Pages:
    def __init__(
        self,
        *,
        competitions: Competitions,
        views: CompetitionViews,
        tables: Tables,
        callers: Callers,
        reading: Turns,
        clock: Clock,
    ) -> None:
        self._competitions = competitions
        self._views = views
        self._tables = tables
        self._callers = callers
        self._reading = reading
        self._clock = clock
        self._made: LruDict[tuple[str, str], tuple[float, bytes]] = LruDict(_KEPT)

    async def page(self, request: Request) -> Response:
        """Answer with a competition; one that is not public, without a token that sees it, is not there."""
        name = f"{request.path_params['owner']}/{request.path_params['name']}"
        phase = request.query_params.get("phase", "")
        viewer = await self._viewer(request)
        try:
            body = await self._kept(viewer, (name, phase), lambda: self._page(viewer, name, phase))
        except (NotFound, InvalidRequest):
            return PlainTextResponse(
                "there is no such competition or phase, or it is not public\n",
                status_code=404,
                headers={"cache-control": "no-store", **_HEADERS},
            )
        return _answer(request, body, is_public=viewer is ANYBODY)

    async def index(self, request: Request) -> Response:
        """Answer with the competitions that the caller sees."""
        viewer = await self._viewer(request)
        body = await self._kept(viewer, ("", ""), lambda: self._index(viewer))
        return _answer(request, body, is_public=viewer is ANYBODY)

    async def _viewer(self, request: Request) -> UserCaller:
        shown = request.headers.get("authorization", "")
        if not shown.lower().startswith(_BEARER):
            return ANYBODY
        who = await self._callers.of_token(shown[len(_BEARER) :].strip(), address_of(request))
        return who if isinstance(who, UserCaller) else ANYBODY

    async def _kept(
        self, viewer: UserCaller, key: tuple[str, str], make: Callable[[], Awaitable[str]]
    ) -> bytes:
        if viewer is not ANYBODY:
            async with self._reading.turn(viewer.user.name):
                return (await make()).encode()
        if (body := self._fresh(key)) is not None:
            return body
        async with self._reading.turn(viewer.user.name):
            # Of those who waited for the same page, one makes it.
            if (body := self._fresh(key)) is None:
                body = (await make()).encode()
                self._made.keep(key, (self._clock.monotonic(), body))
        return body

    def _fresh(self, key: tuple[str, str]) -> bytes | None:
        known = self._made.get(key)
        if known is None or self._clock.monotonic() - known[0] >= FRESH_S:
            return None
        return known[1]

    async def _page(self, viewer: UserCaller, name: str, phase: str) -> str:
        facts = await self._competitions.find(viewer, name)
        now = self._clock.time()
        standings = None
        begun = [one for one in in_order(facts.settings.phases) if one.starts_at <= now]
        if phase or begun:
            table = await self._tables.of(viewer, facts, phase)
            standings = Standings(
                phase=table.standings.phase.name,
                rows=self._views.standings(viewer, table),
                is_final=table.standings.is_final,
            )
        message = await self._views.competition(facts)
        announcements = [
            pb.Announcement(text=one.text, at=timestamp(one.at)) for one in facts.announcements
        ]
        return await in_own_thread(lambda: competition_page(message, announcements, standings, now))

    async def _index(self, viewer: UserCaller) -> str:
        now = self._clock.time()
        seen = await self._competitions.every(viewer)
        messages = [competition_message(one, now) for one in seen[:LISTED]]
        further = len(seen) - len(messages)
        return await in_own_thread(lambda: index_page(messages, now, further=further))


def _answer(request: Request, body: bytes, *, is_public: bool) -> Response:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {
        **_HEADERS,
        "etag": tag,
        "vary": "authorization",
        "cache-control": "public, max-age=15" if is_public else "private, no-cache",
    }
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return HTMLResponse(body, headers=headers)
