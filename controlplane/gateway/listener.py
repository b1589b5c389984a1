"""An HTTP listener in this process: plaintext on the loopback, the platform's TLS everywhere else."""

from __future__ import annotations

import contextlib
import os
import ssl
from typing import TYPE_CHECKING, Any, Final

from controlplane.gateway.guard import networks
from controlplane.gateway.optional_packages import shows_dashboards
from nsml.common import serving
from nsml.common.connections import Connections, Limits
from nsml.common.hosts import is_loopback, is_within

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Sequence

    from starlette.types import ASGIApp

    from controlplane.access.authority import KeyPair
    from controlplane.access.listeners import Identity

STOP_WITHIN_S: Final = 1
"""Time for requests in progress when we stop."""
_MOST_HEADERS: Final = 32 << 10


class HttpServer(serving.HttpServer):
    """Answers on a socket; `serve` ends orderly when `should_exit` is set.

    Args:
        identity: the certificate to show; None: without TLS.
        limits: limits of one client.
        proxies: addresses and networks of reverse proxies: each has many clients, and names them.
    """

    def __init__(
        self,
        app: ASGIApp,
        taken: socket.socket,
        identity: Identity | None,
        *,
        limits: Limits | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        options: dict[str, Any] = {}
        if not shows_dashboards():
            options["ws"] = "none"  # there is nothing to connect to
        if identity is not None:
            context = _context(identity)
            options["ssl_context_factory"] = lambda *_: context
        if proxies:
            options |= {"proxy_headers": True, "forwarded_allow_ips": list(proxies)}
        super().__init__(
            app,
            Connections(limits or Limits(), _speaks_for_many(proxies)),
            loop="none",
            timeout_graceful_shutdown=STOP_WITHIN_S,
            h11_max_incomplete_event_size=_MOST_HEADERS,
            **options,
        )
        self._taken = taken

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone: they are the control plane's."""
        yield

    async def run_until_told(self) -> None:
        """Serve until `should_exit`."""
        await self.serve(sockets=[self._taken])


def _speaks_for_many(proxies: Sequence[str]) -> Callable[[str], bool]:
    """Return a check whether an address has no limit of its own.

    The loopback has none: ssh and reverse proxies of this machine come from there.
    """
    known = networks(proxies)

    def speaks(address: str) -> bool:
        return is_loopback(address) or is_within(address, known)

    return speaks


def _context(identity: Identity) -> ssl.SSLContext:
    """Show the current certificate at each handshake."""
    shown = identity.current()
    made = _showing(shown)

    def renewed(connection: Any, _: Any, __: Any) -> None:
        nonlocal shown, made
        newest = identity.current()
        if newest is not shown:
            shown, made = newest, _showing(newest)
        connection.context = made

    first = _showing(shown)
    first.sni_callback = renewed
    return first


def _showing(pair: KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # OpenSSL accepts only files: this one has no name, and no other process sees it.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(pair.key + pair.chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context
