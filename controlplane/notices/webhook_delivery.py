"""Sends one message to a webhook: over HTTP, to a checked address, in bounded time.

A name is resolved once, and one of its addresses is called. Redirects are not followed: their target is
unchecked. Only the answer's status is read, and no more than some kilobytes until there is one.

Users choose the host and thereby the name server, so all of it runs in separate threads, a few for
each user: a slow call delays no other user.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from controlplane.access.listeners import networks_of_this_host
from controlplane.core.webhook_targets import pinned
from controlplane.domain.errors import StateConflict
from nsml._version import RELEASE
from nsml.common.clock import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from ipaddress import IPv4Network, IPv6Network

    from controlplane.core.webhook_targets import Target

WITHIN_S: Final = 10.0
"""Timeout of a delivery."""
STEP_S: Final = 5.0
"""Timeout of each step of the socket."""
ANSWER_BYTES: Final = 16 << 10
"""Maximum bytes of an answer up to its status."""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})[ \r\n]")
MOST_OF_USER: Final = 2
"""Sending threads of one user; more messages wait, within their timeout."""
MOST_CALLS: Final = 16
"""Threads of all users."""


class Poster:
    """Sends to the network.

    Args:
        allows_private: addresses of private networks and this machine may be called.
        roots: PEM of trusted authorities; None: those of the system.
        own: the networks of this machine.
    """

    def __init__(
        self,
        *,
        allows_private: bool,
        roots: str | None = None,
        own: Callable[[], Iterable[IPv4Network | IPv6Network]] = networks_of_this_host,
    ) -> None:
        self.allows_private = allows_private
        self._roots = roots
        self._own = own
        self._turns = asyncio.Semaphore(MOST_CALLS)
        self._turns_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._sending: set[asyncio.Task[int]] = set()

    async def __call__(self, target: Target, body: bytes, *, owner: str) -> int:
        """Send for a user, and return the HTTP status.

        Raises:
            InvalidRequest: its host must not be called.
            StateConflict: it cannot be reached, or does not answer in time.
        """
        call = _Call(target, body, self._roots)
        try:
            async with asyncio.timeout(WITHIN_S):
                sending = await self._begin(call, owner)
                return await asyncio.shield(sending)
        except TimeoutError:
            raise StateConflict(f"{target.origin} does not answer in time") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # Never the error of a request itself: it could include the path.
            why = getattr(error, "strerror", None) or type(error).__name__
            raise StateConflict(f"{target.origin} cannot be reached", why=str(why)) from None
        finally:
            call.cut()

    async def _begin(self, call: _Call, owner: str) -> asyncio.Task[int]:
        """Start sending once a thread is free; it stays claimed until its end, even if its caller gives up."""
        of_owner = self._turns_of.setdefault(owner, asyncio.Semaphore(MOST_OF_USER))
        await of_owner.acquire()
        try:
            await self._turns.acquire()
        except BaseException:
            of_owner.release()
            raise

        def ended(task: asyncio.Task[int]) -> None:
            self._sending.discard(task)
            self._turns.release()
            of_owner.release()
            if not task.cancelled():
                task.exception()  # retrieved, whether or not the caller still waits

        sending = asyncio.create_task(in_own_thread(lambda: call.send(self._address)))
        self._sending.add(sending)
        sending.add_done_callback(ended)
        return sending

    def _address(self, target: Target) -> str:
        """Return the address to call; may take as long as the name server."""
        found = socket.getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
        addresses = [str(one[4][0]) for one in found]
        return pinned(addresses, allows_private=self.allows_private, own=self._own())


class _Call:
    """One request, in a thread; `cut` ends it from outside."""

    def __init__(self, target: Target, body: bytes, roots: str | None) -> None:
        self._target = target
        self._body = body
        self._roots = roots
        self._socket: socket.socket | None = None
        self._is_cut = False

    def send(self, address_of: Callable[[Target], str]) -> int:
        target = self._target
        address = address_of(target)
        self._check()
        with socket.create_connection((address, target.port), timeout=STEP_S) as plain:
            self._use(plain)
            if target.scheme == "http":
                return self._ask(plain)
            context = ssl.create_default_context(cadata=self._roots)
            with context.wrap_socket(
                plain, server_hostname=target.host, do_handshake_on_connect=False
            ) as secure:
                self._use(secure)
                secure.do_handshake()
                return self._ask(secure)

    def _ask(self, connected: socket.socket) -> int:
        target = self._target
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = connected
        headers = {
            "Host": target.origin.partition("://")[2],
            "Content-Type": "application/json",
            "User-Agent": f"nsml/{RELEASE}",
            "Connection": "close",
        }
        connection.request("POST", target.path, self._body, headers)
        return _status(connected)

    def _use(self, connected: socket.socket) -> None:
        self._socket = connected
        self._check()

    def _check(self) -> None:
        if self._is_cut:
            raise TimeoutError

    def cut(self) -> None:
        """End all waits for the socket."""
        self._is_cut = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _status(connected: socket.socket) -> int:
    """Return the answer's status; raises http.client.HTTPException if there is none within some kilobytes."""
    seen, left = b"", ANSWER_BYTES
    while left:
        part = connected.recv(left)
        if not part:
            raise http.client.RemoteDisconnected("")
        seen, left = seen + part, left - len(part)
        while (found := _STATUS.match(seen)) is not None:
            status = int(found[1])
            if not 100 <= status < 200:
                return status
            _, ended, rest = seen.partition(b"\r\n\r\n")
            if not ended:
                break
            seen = rest
        else:
            if b"\n" in seen:
                raise http.client.BadStatusLine("")
    raise http.client.BadStatusLine("")
