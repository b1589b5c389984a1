"""The page and its files, all served from here: textual-serve's terminal, and a frame of our own."""

from __future__ import annotations

import hmac
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

import textual_serve
from starlette.applications import Starlette
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute

from nsml.common.hosts import is_same_place

if TYPE_CHECKING:
    from collections.abc import Container

    from starlette.requests import HTTPConnection, Request
    from starlette.websockets import WebSocket

    from tui.web.visits import Visits

_TERMINAL: Final = Path(textual_serve.__file__).parent / "static"
_OWN: Final = Path(str(files("tui.web") / "static"))
_FILES: Final = {
    "": _OWN / "page.html",
    "page.css": _OWN / "page.css",
    "page.js": _OWN / "page.js",
    "terminal.css": _TERMINAL / "css/xterm.css",
    "terminal.js": _TERMINAL / "js/textual.js",
    "font.ttf": _TERMINAL / "fonts/RobotoMono-VariableFont_wght.ttf",
    "italic.ttf": _TERMINAL / "fonts/RobotoMono-Italic-VariableFont_wght.ttf",
}
"""All files that can be loaded: no folder is listed, and no other file is served."""
_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self' 'unsafe-inline'",  # the terminal writes the colours of its cells there
    "font-src 'self'",
    "img-src data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
HEADERS: Final = {
    "content-security-policy": "; ".join(_POLICY),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_REFUSED: Final = 1008


def make_app(visits: Visits, *, prefix: str, hosts: Container[str] | None) -> Starlette:
    """Build the application.

    Args:
        visits: shown by the page.
        prefix: of all its paths, such as `/view/ID`; other paths do not exist.
        hosts: the allowed host names, with ports; None: the gateway has checked.
    """

    def is_for_us(connection: HTTPConnection) -> bool:
        # DNS rebinding: another's name for this address makes their page look like ours.
        named = hosts is None or connection.headers.get("host", "") in hosts
        path = connection.path_params["prefix"]
        return named and hmac.compare_digest(f"/{path}".encode(), prefix.encode())

    async def page(request: Request) -> Response:
        file = _FILES.get(request.path_params.get("name", ""))
        if file is None or not is_for_us(request):
            return PlainTextResponse("there is nothing here\n", status_code=404, headers=HEADERS)
        return FileResponse(file, headers=HEADERS)

    async def terminal(socket: WebSocket) -> None:
        origin, host = (socket.headers.get(name, "") for name in ("origin", "host"))
        if is_for_us(socket) and (hosts is None or is_same_place(origin, host)):
            await visits.receive(socket)
        else:
            await socket.close(_REFUSED)

    app = Starlette(
        routes=[
            WebSocketRoute("/{prefix:path}/ws", terminal),
            Route("/{prefix:path}/{name}", page, methods=["GET"]),
            Route("/{prefix:path}/", page, methods=["GET"]),
        ]
    )
    app.router.redirect_slashes = False
    return app
