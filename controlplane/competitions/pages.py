"""GET /competitions/OWNER/NAME: a competition for participants with a browser; /competitions/ lists the public ones.

A browser sends no token: `nsml competition page` prints an address with a ticket, which is exchanged for a cookie of that
page alone.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from controlplane.competitions.convert import competition_message
from controlplane.competitions.page_visits import VISIT_S
from controlplane.domain.competitions.phases import has_begun
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
    from controlplane.competitions.page_visits import PageVisits
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
COOKIE: Final = "nsml_competition"


def page_routes(
    *,
    competitions: Competitions,
    views: CompetitionViews,
    tables: Tables,
    callers: Callers,
    visits: PageVisits,
    reading: Turns,
    clock: Clock,
) -> Sequence[BaseRoute]:
    """Return the routes of pages."""
    pages = _Pages(
        competitions=competitions,
        views=views,
        tables=tables,
        callers=callers,
        visits=visits,
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
        visits: PageVisits,
        reading: Turns,
        clock: Clock,
    ) -> None:
        self._competitions = competitions
        self._views = views
        self._tables = tables
        self._callers = callers
        self._visits = visits
        self._reading = reading
        self._clock = clock
        self._made: LruDict[tuple[str, str], tuple[float, bytes]] = LruDict(_KEPT)

    async def page(self, request: Request) -> Response:
        """Answer with a competition; one that is not public, without a token that sees it, is not there."""
        name = f"{request.path_params['owner']}/{request.path_params['name']}"
        phase = request.query_params.get("phase", "")
        ticket = request.query_params.get("ticket", "")
        if ticket and request.method == "GET":
            return self._admitted(request, name, ticket)
        viewer = await self._viewer(request, name)
        try:
            body = await self._kept(viewer, (name, phase), lambda: self._page(viewer, name, phase))
        except (NotFound, InvalidRequest):
            return PlainTextResponse(
                "there is no such competition or phase, or it is not public;\n"
                "nsml competition page OWNER/NAME prints an address that signs you in\n",
                status_code=404,
                headers={"cache-control": "no-store", **_HEADERS},
            )
        return _answer(request, body, is_public=viewer is ANYBODY)

    async def index(self, request: Request) -> Response:
        """Answer with the competitions that the caller sees."""
        viewer = await self._viewer(request)
        body = await self._kept(viewer, ("", ""), lambda: self._index(viewer))
        return _answer(request, body, is_public=viewer is ANYBODY)

    def _admitted(self, request: Request, name: str, ticket: str) -> Response:
        """Lead on to the page without the ticket, which is used up; its cookie is for this page alone."""
        place = f"/competitions/{name}"
        headers = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
        cookie = self._visits.redeem(ticket, name)
        if not cookie:
            return PlainTextResponse(
                "this address was used, or is older than a minute;\n"
                f"nsml competition page {name} prints a new one\n",
                status_code=403,
                headers={**headers, **_HEADERS},
            )
        response = RedirectResponse(place, status_code=303, headers=headers)
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=int(VISIT_S),
            path=place,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return response

    async def _viewer(self, request: Request, page: str = "") -> UserCaller:
        """Return who asks, by a token, or by the cookie of a page; those without see what is public."""
        shown = request.headers.get("authorization", "")
        if not shown.lower().startswith(_BEARER):
            # A script of another page, such as a program's board, reads none with the visitor's cookie.
            is_visit = request.headers.get("sec-fetch-dest", "document") == "document"
            cookie = request.cookies.get(COOKIE, "") if is_visit else ""
            return await self._visits.viewer(cookie, page) or ANYBODY
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
        has_any = any(has_begun(facts.competition, one, now) for one in facts.settings.phases)
        if phase or has_any:
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
        newest, count = await self._competitions.newest(viewer, LISTED)
        messages = [competition_message(one, now) for one in newest]
        further = count - len(messages)
        return await in_own_thread(lambda: index_page(messages, now, further=further))


def _answer(request: Request, body: bytes, *, is_public: bool) -> Response:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {
        **_HEADERS,
        "etag": tag,
        "vary": "authorization, cookie",
        "cache-control": "public, max-age=15" if is_public else "private, no-cache",
    }
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return HTMLResponse(body, headers=headers)
