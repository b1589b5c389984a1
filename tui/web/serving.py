"""An HTTP server for the page, on a socket that is there already."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import uvicorn

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

    from tui.web.visits import Visits

MOST_MESSAGE: Final = 64 << 10
"""Bytes of what a page says at once: a paste of that much is no typing."""
PING_EVERY_S: Final = 15.0
"""A browser that does not answer to that, for as long again, is gone."""
STOP_WITHIN_S: Final = 5


class PageServer(uvicorn.Server):
    """Answers for a page; its visits end with it."""

    def __init__(self, app: ASGIApp, visits: Visits) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="websockets-sansio",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                ws_max_size=MOST_MESSAGE,
                ws_ping_interval=PING_EVERY_S,
                ws_ping_timeout=PING_EVERY_S,
                timeout_graceful_shutdown=STOP_WITHIN_S,
            )
        )
        self._visits = visits

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is shown, too."""
        ending = asyncio.ensure_future(self._visits.stop())
        await super().shutdown(sockets)
        await ending
