"""Direct connections of clients on this machine to their tunnels: one Unix socket, named to them by the control plane.

Any user of the machine can connect to it, and is untrusted until authenticated: it is read in threads of its own, and
the number of unauthenticated connections of each user is limited.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from nodeagent.replica.user_sockets import UserConnection, close_user_socket
from nsml.client.direct_tunnels import DirectCall, Reader
from nsml.common.clock import Clock
from nsml.common.concurrency import TaskGroup
from nsml.common.tunnel_keys import KEY_BYTES, NotProven, check, id_of

_PROVEN_WITHIN_S = 5.0
_COMES_WITHIN_S = 10.0
_MOST_UNPROVEN = 128
_MOST_UNPROVEN_OF_ALL = 512
"""Unauthenticated connections of one user, and of all."""
_BACKLOG = 512
_SENT_BYTES = 1 << 20
"""Send buffer, if the kernel allows it: with less than a frame its reader wakes several times for each."""
_PAUSE_S = 0.1
"""Delay after a failed accept, for example without free descriptors."""
_CREDENTIALS = struct.Struct("3i")

log = structlog.get_logger()


class NobodyCame(Exception):
    """The client did not connect."""


class Awaited:
    """A client that is expected once."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.came: asyncio.Future[tuple[UserConnection, DirectCall]] = (
            asyncio.get_running_loop().create_future()
        )

    async def client(self) -> tuple[DirectCall, Callable[[], Awaitable[None]]]:
        """Return the call with it, admitted, and a function that closes it. Raises NobodyCame, ClientError."""
        try:
            async with asyncio.timeout(_COMES_WITHIN_S):
                connection, call = await asyncio.shield(self.came)
        except TimeoutError as error:
            raise NobodyCame from error
        await call.admit()
        return call, connection.close


class DirectWays:
    """Direct connections of one agent. `run` serves them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awaited: dict[bytes, Awaited] = {}
        self._unproven: Counter[int] = Counter()
        self.name = ""
        """Name of the socket; empty while there is none."""

    @contextmanager
    def awaited(self, key: bytes) -> Iterator[Awaited | None]:
        """Accept the client with this key while the context lasts; None: none can connect."""
        if not self.name or len(key) != KEY_BYTES:
            yield None
            return
        one = self._awaited[id_of(key)] = Awaited(key)
        try:
            yield one
        finally:
            self._awaited.pop(id_of(key), None)
            if one.came.done():
                one.came.result()[0].give_up()

    async def run(self) -> None:
        """Serve until cancelled."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.settimeout(0)
            name = f"nsml-agent-{os.urandom(16).hex()}"
            try:
                listener.bind(f"\0{name}")
            except OSError as error:
                log.warning("direct_ways.none", error=str(error))
                return
            listener.listen(_BACKLOG)
            self.name = name
            try:
                async with TaskGroup() as group:
                    while True:
                        client = await self._accepted(listener)
                        user = _user_of(client)
                        is_full = self._unproven.total() >= _MOST_UNPROVEN_OF_ALL
                        if is_full or self._unproven[user] >= _MOST_UNPROVEN:
                            group.create_task(close_user_socket(client))
                            continue
                        self._unproven[user] += 1
                        group.create_task(self._prove(client, user))
            finally:
                self.name = ""

    async def _accepted(self, listener: socket.socket) -> socket.socket:
        while True:
            try:
                return (await asyncio.get_running_loop().sock_accept(listener))[0]
            except OSError as error:
                log.warning("direct_ways.none_accepted", error=str(error))
                await self._clock.sleep(_PAUSE_S)

    async def _prove(self, client: socket.socket, user: int) -> None:
        """Hand an authenticated client over, or close its connection."""
        try:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BYTES)
            connection = UserConnection(client)
            try:
                async with asyncio.timeout(_PROVEN_WITHIN_S):
                    await self._take(connection)
            except BaseException:
                await connection.close()
                raise
        except (OSError, EOFError, NotProven, TimeoutError) as error:
            log.info("direct_ways.refused", user=user, error=type(error).__name__)
        except Exception:  # a defect in one must not end the others
            log.exception("direct_ways.failed", user=user)
        finally:
            self._unproven[user] -= 1
            if not self._unproven[user]:
                del self._unproven[user]

    async def _take(self, connection: UserConnection) -> None:
        """Authenticate a client and hand it over. Raises NotProven, OSError, EOFError."""
        reader = Reader(connection)
        name = await check(reader.exactly, connection.send, self._key_of)
        # once: the first with the key is the client
        awaited = self._awaited.pop(name, None)
        if awaited is None:
            raise NotProven
        awaited.came.set_result((connection, DirectCall(connection, reader)))

    def _key_of(self, name: bytes) -> bytes | None:
        awaited = self._awaited.get(name)
        return None if awaited is None else awaited.key


def _user_of(client: socket.socket) -> int:
    size = _CREDENTIALS.size
    found: bytes = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    uid: int = _CREDENTIALS.unpack(found)[1]
    return uid
