"""Refusals before routing: foreign host names, sessions, and everything but health when all connections are busy."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse

from nsml.common.clock import in_own_thread
from nsml.common.hosts import is_loopback, is_within
from nsml.common.local_peers import uid_of_peer
from nsml.common.serving import CONNECTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from nsml.common.connections import Connection

ALWAYS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that always answer, under any host name: they disclose nothing, or need a token."""
_LONGEST_NAME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The accepted clients.

    Attributes:
        hosts: our host names, in lower case and without ports. Addresses and loopback names are
            always accepted: no other site's page can be loaded under them.
        session_uids: accounts of sessions on this machine; empty: sessions are answered.
        own: addresses of this machine.
        refused: networks that are not answered.
    """

    hosts: frozenset[str] = frozenset()
    session_uids: range = range(0)
    own: frozenset[str] = frozenset()
    refused: tuple[IPv4Network | IPv6Network, ...] = ()

    def names(self, header: str) -> bool:
        """Return whether a Host header names this server."""
        name = host_name(header)
        return is_loopback(name) or _is_address(name) or name in self.hosts

    def refuses(self, address: str) -> bool:
        """Return whether an address is refused."""
        return is_within(address, self.refused)


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with the reason."""
        refusal = None if scope["path"] in ALWAYS else await self._why_not(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            status, *lines = refusal
            answer = PlainTextResponse(
                "".join(f"{line}\n" for line in lines),
                status_code=int(status),
                headers={"cache-control": "no-store", "connection": "close"},
            )
            await answer(scope, receive, send)

    async def _why_not(self, scope: Scope) -> Sequence[str] | None:
        """Return status and words of a refusal; None: accepted."""
        held: Connection | None = scope.get("state", {}).get(CONNECTION)
        if held is not None and held.is_reserved:
            return "503", "too many connections are open", "try again in a moment"
        header = _header(scope, b"host")
        if not self._rules.names(header):
            name = host_name(header)[:_LONGEST_NAME]
            return (
                "421",
                f"{name!r} is not a name of this server",
                "a page of another site could use it to read what is shown here",
                "open it under a name or address of the control plane, or add the name to http_hosts in its settings",
            )
        client, server = scope.get("client"), scope.get("server")
        if client and (self._rules.refuses(client[0]) or await self._is_session(client, server)):
            return (
                "403",
                "sessions are not answered here",
                "http_sessions and http_refused in the settings of the control plane say so",
            )
        return None

    async def _is_session(self, client: tuple[str, int], server: tuple[str, int] | None) -> bool:
        uids = self._rules.session_uids
        is_local = is_loopback(client[0]) or client[0] in self._rules.own
        if not uids or not is_local or server is None:
            return False
        return await in_own_thread(lambda: uid_of_peer(client, server)) in uids


def host_name(header: str) -> str:
    """Return the name in a Host header, in lower case, without port and trailing dot."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def networks(texts: Iterable[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read addresses and networks; raises ValueError."""
    return tuple(ip_network(text, strict=False) for text in texts)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _header(scope: Scope, wanted: bytes) -> str:
    values = [value for name, value in scope["headers"] if name == wanted]
    return values[0].decode("latin-1") if len(values) == 1 else ""
