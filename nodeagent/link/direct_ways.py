"""Where clients on this machine come to their tunnels directly: one Unix socket, whose name the control plane tells them.

Anybody on the machine can connect to it, and is user code until proven: it is read in threads of its own, and
each user has only so many connections that are not proven.
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
"""Connections of one user, and of all, that have not proven themselves."""
_BACKLOG = 512
_SENT_BYTES = 1 << 20
"""Not yet read, if the kernel allows so much: where less than a frame has room its reader wakes several times for it."""
_PAUSE_S = 0.1
"""When no connection can be accepted, as for want of descriptors."""
_CREDENTIALS = struct.Struct("3i")

log = structlog.get_logger()


class NobodyCame(Exception):
    """The client did not come."""


class Awaited:
    """A client that is to come, once."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.came: asyncio.Future[tuple[UserConnection, DirectCall]] = (
            asyncio.get_running_loop().create_future()
        )

    async def client(self) -> tuple[DirectCall, Callable[[], Awaitable[None]]]:
        """The call with it, which it knows now, and what closes it. Raises NobodyCame, ClientError."""
        try:
            async with asyncio.timeout(_COMES_WITHIN_S):
                connection, call = await asyncio.shield(self.came)
        except TimeoutError as error:
            raise NobodyCame from error
        await call.admit()
        return call, connection.close


class DirectWays:
    """Of one agent. `run` serves them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awaited: dict[bytes, Awaited] = {}
        self._unproven: Counter[int] = Counter()
        self.name = ""
        """Of the socket; empty while there is none."""

    @contextmanager
    def awaited(self, key: bytes) -> Iterator[Awaited | None]:
        """Let the client that has this key come, while the context lasts; None: none can."""
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
        """Until cancelled."""
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
        """Hand a client over to who awaits it, or close its connection."""
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
        """Give it to who awaits it. Raises NotProven, OSError, EOFError."""
        reader = Reader(connection)
        name = await check(reader.exactly, connection.send, self._key_of)
        # once: who had the key first is the client
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
