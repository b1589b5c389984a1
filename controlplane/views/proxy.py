"""Proxy from a browser to a view: exchanges tickets for cookies, forwards requests and WebSockets to the view's socket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import httpx
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from nsml.common.concurrency import first_to_end
from nsml.common.hosts import is_same_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.websockets import WebSocket
    from websockets.asyncio.client import ClientConnection

    from controlplane.views.views import Views

COOKIE: Final = "nsml_view"
LOGIN: Final = "/dashboard"
MOST_BODY: Final = 1 << 20
"""Maximum bytes of a request's body."""
ANSWER_WITHIN_S: Final = 60.0
USED_EVERY_S: Final = 30.0
"""Interval at which an open WebSocket counts as a use of its view."""
MOST_SHOWN: Final = 4 << 20
"""Maximum bytes of a view's WebSocket message: a screen of 1,000 by 1,000 cells."""
_REFUSED: Final = 1008
_GONE: Final = 1001
_SAYS: Final = frozenset({1000, 1008, 1011, *range(4000, 5000)})
"""A view's close codes that are forwarded to the browser."""

_SENT_ON: Final = frozenset({"accept", "accept-encoding", "content-type", "if-none-match", "range"})
_NOT_BACK: Final = frozenset(
    {"connection", "keep-alive", "set-cookie", "transfer-encoding", "upgrade", "server", "date"}
)
_LOGIN_THERE: Final = {"link": f'<{LOGIN}>; rel="login"'}
"""Tells a page that it is behind a gateway, and where to sign in."""
_NO_TRACE: Final = {"cache-control": "no-store", "referrer-policy": "no-referrer"}


def view_routes(views: Views) -> list[Route | WebSocketRoute]:
    """Return the routes below /view/ID/."""

    async def view(request: Request) -> Response:
        view_id = request.path_params["view"]
        ticket = request.query_params.get("ticket")
        if ticket is not None and request.method == "GET":
            return _let_in(request, views, view_id, ticket)
        viewer = views.admit(view_id, request.cookies.get(COOKIE, ""))
        if viewer is None:
            return _refused()
        path = request.scope["raw_path"].decode("latin-1").removeprefix(f"/view/{view_id}")
        if not viewer.allows(request.method, path):
            return PlainTextResponse("this view is for looking alone\n", status_code=403)
        return await _passed_on(request, viewer.socket)

    async def sign_out(request: Request) -> Response:
        view_id = request.path_params["view"]
        origin, host = (request.headers.get(name, "") for name in ("origin", "host"))
        # Other sites' pages must not sign users out.
        is_own = is_same_place(origin, host)
        if not is_own or not await views.leave(view_id, request.cookies.get(COOKIE, "")):
            return _refused()
        answer = Response(status_code=204, headers={**_NO_TRACE, **_LOGIN_THERE})
        answer.delete_cookie(COOKIE, path=f"/view/{view_id}/")
        return answer

    async def connected(socket: WebSocket) -> None:
        view_id, cookie = socket.path_params["view"], socket.cookies.get(COOKIE, "")
        origin, host = (socket.headers.get(name, "") for name in ("origin", "host"))
        # Other sites' pages must not connect, not even with the cookie.
        viewer = views.admit(view_id, cookie) if is_same_place(origin, host) else None
        if viewer is None or not viewer.allows("WEBSOCKET", f"/{socket.path_params['path']}"):
            await socket.close(_REFUSED)
            return
        await _carried(socket, viewer.socket, lambda: views.admit(view_id, cookie) is not None)

    return [
        WebSocketRoute("/view/{view}/{path:path}", connected),
        Route("/view/{view}/sign-out", sign_out, methods=["POST"]),
        Route("/view/{view}/{path:path}", view, methods=["GET", "HEAD", "POST"]),
    ]


def _let_in(request: Request, views: Views, view_id: str, ticket: str) -> Response:
    cookie = views.redeem(view_id, ticket)
    if not cookie:
        return _refused()
    # Without the ticket: it is used up, and should be in no browser history.
    place = f"/view/{view_id}/"
    response = RedirectResponse(place, status_code=303, headers=_NO_TRACE)
    response.set_cookie(
        COOKIE,
        cookie,
        path=place,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return response


def _refused() -> Response:
    """Return the same response for an ended view, another user's view, and a used ticket."""
    return PlainTextResponse(
        "this view has ended, or is not open to you\n"
        "nsml tensorboard SESSION, nsml visdom SESSION or nsml dashboard gives a new address;\n"
        f"with a token, {LOGIN} here leads to a dashboard\n",
        status_code=403,
        headers={**_NO_TRACE, **_LOGIN_THERE},
    )


async def _passed_on(request: Request, socket: str) -> Response:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            return PlainTextResponse("too large\n", status_code=413)
    client = httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=socket), timeout=ANSWER_WITHIN_S, trust_env=False
    )
    # Neither cookie nor token: the view needs none, and could leak them.
    headers = {name: value for name, value in request.headers.items() if name in _SENT_ON}
    headers.setdefault("accept-encoding", "identity")  # the library would ask for others
    # Verbatim: escapes in the path are kept.
    target = request.scope["raw_path"] + b"?" + request.scope["query_string"]
    url = httpx.URL("http://view", raw_path=target.removesuffix(b"?"))
    try:
        sent = client.build_request(request.method, url, headers=headers, content=bytes(body))
        answer = await client.send(sent, stream=True)
    except httpx.HTTPError:
        await client.aclose()
        return PlainTextResponse("the view does not answer\n", status_code=502)
    except BaseException:
        await client.aclose()
        raise
    back = {name: value for name, value in answer.headers.items() if name not in _NOT_BACK}
    return StreamingResponse(
        answer.aiter_raw(),
        status_code=answer.status_code,
        headers={**back, **_LOGIN_THERE, "referrer-policy": "no-referrer"},
        background=BackgroundTask(client.aclose),
    )


async def _carried(socket: WebSocket, place: str, is_admitted: Callable[[], bool]) -> None:
    """Forward messages both ways, until one end closes, or the browser is no longer admitted."""
    from websockets.asyncio.client import unix_connect  # noqa: PLC0415 - where that is installed
    from websockets.exceptions import WebSocketException  # noqa: PLC0415

    # The request is already checked: neither cookie nor origin is forwarded.
    target = f"ws://view{socket.url.path}?{socket.url.query}"
    why = _GONE
    try:
        async with unix_connect(
            place, target, compression=None, ping_interval=None, max_size=MOST_SHOWN
        ) as inner:
            await socket.accept()
            with contextlib.suppress(WebSocketException):
                await first_to_end(
                    _to_view(socket, inner), _to_browser(inner, socket), _while(is_admitted)
                )
            if (said := inner.close_code) is not None and said in _SAYS:
                why = said
    except (OSError, WebSocketException):
        pass  # the view has ended, as it may
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await socket.close(why)


async def _to_view(socket: WebSocket, inner: ClientConnection) -> None:
    with contextlib.suppress(WebSocketDisconnect, KeyError):
        while True:
            await inner.send(await socket.receive_text())


async def _to_browser(inner: ClientConnection, socket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        async for message in inner:
            if isinstance(message, str):
                await socket.send_text(message)
            else:
                await socket.send_bytes(message)


async def _while(holds: Callable[[], bool]) -> None:
    while holds():  # noqa: ASYNC110 - nobody tells who is admitted
        await asyncio.sleep(USED_EVERY_S)
