"""How our HTTP servers are set up, whichever program runs them: settings of uvicorn.

A page of the dashboard is served by its own program, and on the way to a browser by the gateway: both take as much, and
notice as soon who is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_MESSAGE: Final = 64 << 10
"""Bytes of what a browser says at once on a connection that stays: a paste of that much is no typing."""
PING_EVERY_S: Final = 15.0
"""Whoever does not answer to that on such a connection, for as long again, is gone."""
SETTINGS: Final[Mapping[str, Any]] = {
    "http": "h11",
    "ws": "websockets-sansio",
    "ws_max_size": MOST_MESSAGE,
    "ws_ping_interval": PING_EVERY_S,
    "ws_ping_timeout": PING_EVERY_S,
    "lifespan": "off",
    "log_config": None,
    "access_log": False,
    "proxy_headers": False,
    "server_header": False,
}
