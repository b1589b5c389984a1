"""An HTTP server for the page, on an existing socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsml.common.connections import Connections, Limits
from nsml.common.serving import HttpServer

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

    from tui.web.visits import Visits

STOP_WITHIN_S: Final = 5


class PageServer(HttpServer):
    """Serves a page; its visits end with it."""

    def __init__(self, app: ASGIApp, visits: Visits) -> None:
        # There is only one client: a gateway, or the browser of this machine.
        connections = Connections(Limits(), is_exempt=lambda _: True)
        super().__init__(app, connections, timeout_graceful_shutdown=STOP_WITHIN_S)
        self._visits = visits

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop its visits, too."""
        ending = asyncio.ensure_future(self._visits.stop())
        await super().shutdown(sockets)
        await ending
