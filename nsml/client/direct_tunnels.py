"""The bytes of a tunnel between two programs of one machine, past the control plane, over a Unix socket.

Both ends have a key from the control plane, which has decided that they may speak, and prove to each other that they
have it. Either end looks like a gRPC call of frames: `write`, `read`, `done_writing`. What ended well and what broke is
told apart as there: each side says that nothing follows, and is told once the other one has taken all of it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc.aio

from nsml.client.errors import ClientError, Unavailable
from nsml.common.tunnel_keys import NotProven, prove

MOST_BYTES: Final = 256 << 10
"""Of data in one frame."""
_HEADER: Final = struct.Struct(">BQ")
_DATA, _END, _TAKEN, _CLOSED, _ADMITTED = range(5)
"""Data of so many bytes; nothing follows; all was taken that the other side had to say; so many bytes were taken, and no
more will be; first of all: this is the client, and its tunnel begins."""
_CONNECTED_WITHIN_S: Final = 2.0
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""By which machines are told apart."""
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Connection(Protocol):
    """A connected socket."""

    async def receive(self, most: int) -> bytes:
        """Some of what comes, at most so many bytes; empty when nothing comes any more. Raises OSError."""
        ...

    async def send(self, *parts: bytes) -> None:
        """Send all of them. Raises OSError."""
        ...

    def shut(self, way: int) -> None:
        """Shut it down, as `socket.shutdown` does."""
        ...


class Frame(Protocol):
    """What is sent."""

    @property
    def data(self) -> bytes:
        """Some bytes."""
        ...

    @property
    def end(self) -> bool:
        """Whether nothing follows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What comes: as the frames of a call."""

    data: bytes = b""
    end: bool = False
    gone: bool = False


def boot_id() -> str:
    """Of this machine and all its containers; empty where it cannot be read."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class Reader:
    """Reads a connection in parts of known sizes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def exactly(self, size: int) -> bytes:
        """So many bytes. EOFError: it ended before."""
        pieces, missing = [], size
        while missing:
            try:
                data = await self._connection.receive(missing)
            except OSError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            pieces.append(data)
            missing -= len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class DirectCall:
    """One end of the bytes of a tunnel; methods raise ClientError. One may read while others write."""

    def __init__(self, connection: Connection, reader: Reader) -> None:
        self._connection = connection
        self._reader = reader
        self._writes = asyncio.Lock()
        self._sent = 0
        self._taken = 0
        self._has_ended = False
        self._has_closed = False
        self._is_owed = False
        """That all was taken, which is said when who reads comes back for more."""
        self._has_heard_end = False
        self._is_settled = False
        """Whether the other end has taken all that was sent, and its end."""
        self._left_at: int | None = None
        """How many bytes the other end took before it closed its stream."""
        self._broken: ClientError | None = None

    async def write(self, frame: Frame) -> None:
        """Send a frame; waits while the other end does not read. An empty one tells whether it is there."""
        data = frame.data
        async with self._writes:
            if self._broken is not None:
                raise self._broken
            if data:
                self._sent += len(data)
                await self._send(_DATA, len(data), data)
            if frame.end and not self._has_ended:
                self._has_ended = True
                await self._send(_END, 0)

    async def done_writing(self) -> None:
        """Close our stream: what comes from now on is not taken."""
        if not self._has_closed:
            self._has_closed = True
            await self._say_taken()
            async with self._writes:
                with suppress(ClientError):  # `read` tells what that means
                    await self._send(_CLOSED, self._taken)

    async def read(self) -> Any:
        """The next frame (Came); EOF at the end, when all was taken that either side sent.

        Raises:
            ClientError: it broke, or something was not taken.
        """
        await self._say_taken()
        while not (self._has_heard_end and self._is_settled):
            if self._left_at is not None and self._has_closed:
                if self._sent > self._left_at:
                    raise Unavailable("the other end of the tunnel has left it")
                return _EOF
            try:
                frame = await self._next()
            except EOFError as gone:
                if self._has_closed and self._has_ended:
                    return _EOF  # who left needs nothing of us
                raise self._broken or Unavailable("the tunnel broke") from gone
            if frame is not None:
                return frame
        return _EOF

    async def _say_taken(self) -> None:
        if self._is_owed:
            self._is_owed = False
            async with self._writes:
                with suppress(ClientError):  # an end that is gone needs it no more
                    await self._send(_TAKEN, 0)

    async def _next(self) -> Came | None:
        kind, number = _HEADER.unpack(await self._reader.exactly(_HEADER.size))
        if kind == _DATA and number <= MOST_BYTES and not self._has_heard_end:
            data = await self._reader.exactly(number)
            if not self._has_closed:
                self._taken += number
            return Came(data=data)
        if kind == _END:
            self._has_heard_end = self._is_owed = True
            return Came(end=True)
        if kind == _TAKEN:
            self._is_settled = self._has_ended
        elif kind == _CLOSED:
            self._left_at = number
            return Came(gone=True) if not self._is_settled else None
        else:
            raise EOFError
        return None

    async def admit(self) -> None:
        """Tell a client that it has come to its tunnel. Raises Unavailable: it is gone."""
        async with self._writes:
            await self._send(_ADMITTED, 0)

    def break_off(self, error: ClientError) -> None:
        """Nothing passes any more; what has come already is still read, and then `error` raised."""
        self._broken = self._broken or error
        self._connection.shut(socket.SHUT_RDWR)

    async def _send(self, kind: int, number: int, data: bytes = b"") -> None:
        try:
            await self._connection.send(_HEADER.pack(kind, number), data)
        except OSError as error:
            raise self._broken or Unavailable("the tunnel broke") from error


async def proven(connection: Connection, key: bytes) -> DirectCall:
    """The client's end, once both have proven themselves and the tunnel has begun.

    Raises:
        NotProven, OSError, EOFError: this is no agent that knows the key.
    """
    reader = Reader(connection)
    await prove(reader.exactly, connection.send, key)
    if await reader.exactly(_HEADER.size) != _HEADER.pack(_ADMITTED, 0):
        raise NotProven
    return DirectCall(connection, reader)


async def send_all(to: socket.socket, parts: Sequence[bytes]) -> None:
    """Send all of them by a socket that never blocks, uncopied where it has room. Raises OSError."""
    try:
        sent = to.sendmsg(parts)
    except BlockingIOError:
        sent = 0
    if sent < sum(map(len, parts)):
        left = memoryview(b"".join(parts))[sent:]
        await asyncio.get_running_loop().sock_sendall(to, left)


class LoopConnection:
    """A connection of ours, which the event loop reads."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def receive(self, most: int) -> bytes:
        """See `Connection`."""
        return await asyncio.get_running_loop().sock_recv(self._socket, most)

    async def send(self, *parts: bytes) -> None:
        """See `Connection`."""
        await send_all(self._socket, parts)

    def shut(self, way: int) -> None:
        """See `Connection`."""
        with suppress(OSError):
            self._socket.shutdown(way)

    def close(self) -> None:
        """Close it."""
        self._socket.close()


async def connected(name: str, key: bytes) -> tuple[DirectCall, LoopConnection] | None:
    """The direct way to an agent; None where it cannot be gone."""
    program = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    program.settimeout(0)
    connection = LoopConnection(program)
    try:
        async with asyncio.timeout(_CONNECTED_WITHIN_S):
            program.connect(b"\0" + name.encode())
            return await proven(connection, key), connection
    except (OSError, EOFError, NotProven, TimeoutError, ValueError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
