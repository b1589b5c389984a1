"""Sends one message to a webhook: over HTTP, to an address that was looked at, in bounded time.

Redirects are not followed: their target was not looked at. Of the answer only the status is read.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import StateConflict
from controlplane.domain.webhooks import pinned
from nsml._version import VERSION
from nsml.clock import in_thread

if TYPE_CHECKING:
    from controlplane.domain.webhooks import Target

WITHIN_S: Final = 10.0
"""For all of it."""
STEP_S: Final = 5.0
"""For each step of the socket."""


class Poster:
    """The edge to the network.

    Args:
        allows_private: addresses of private networks and this machine may be called.
        roots: PEM of authorities that vouch for hosts; None: those of the system.
    """

    def __init__(self, *, allows_private: bool, roots: str | None = None) -> None:
        self.allows_private = allows_private
        self._roots = roots

    async def __call__(self, target: Target, body: bytes) -> int:
        """Send, and give the HTTP status.

        Raises:
            InvalidRequest: its host must not be called.
            StateConflict: it cannot be reached, or does not answer in time.
        """
        call = _Call(target, body, self._roots)
        try:
            async with asyncio.timeout(WITHIN_S):
                loop = asyncio.get_running_loop()
                found = await loop.getaddrinfo(
                    target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
                )
                addresses = [str(one[4][0]) for one in found]
                address = pinned(addresses, allows_private=self.allows_private)
                return await in_thread(lambda: call.to(address))
        except TimeoutError:
            raise StateConflict(f"{target.origin} does not answer in time") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # Never the error of a request itself: it could have the path in it.
            why = getattr(error, "strerror", None) or type(error).__name__
            raise StateConflict(f"{target.origin} cannot be reached", why=str(why)) from None
        finally:
            call.cut()


class _Call:
    """One request, in a thread; `cut` ends it from outside."""

    def __init__(self, target: Target, body: bytes, roots: str | None) -> None:
        self._target = target
        self._body = body
        self._roots = roots
        self._socket: socket.socket | None = None
        self._is_cut = False

    def to(self, address: str) -> int:
        target = self._target
        connection = http.client.HTTPConnection(target.host, target.port, timeout=STEP_S)
        plain = socket.create_connection((address, target.port), timeout=STEP_S)
        self._socket = plain
        with plain:
            if self._is_cut:
                raise TimeoutError
            connection.sock = plain
            if target.scheme == "https":
                context = ssl.create_default_context(cadata=self._roots)
                connection.sock = context.wrap_socket(plain, server_hostname=target.host)
                self._socket = connection.sock
            with connection.sock:
                headers = {
                    "Host": target.origin.partition("://")[2],
                    "Content-Type": "application/json",
                    "User-Agent": f"nsml/{VERSION}",
                    "Connection": "close",
                }
                connection.request("POST", target.path, self._body, headers)
                return connection.getresponse().status

    def cut(self) -> None:
        """Whoever waits for the socket waits no longer."""
        self._is_cut = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
