"""Tunnels between two programs of one machine, past the control plane, over a Unix socket.

Both ends have a key from the control plane, which has authorized them, and prove to each other that they have it.
Either end has the interface of a gRPC call of frames: `write`, `read`, `done_writing`. As in gRPC, a clean end differs
from a break: each side sends an end of stream, and gets a confirmation once the other one has read all data.
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
"""Most data in one frame."""
_HEADER: Final = struct.Struct(">BQ")
_DATA, _END, _TAKEN, _CLOSED, _ADMITTED = range(5)
"""Frame types: data, with its size; end of stream; all data of the other side was read; reading stopped, with the number
of bytes read; first frame to a client: the tunnel begins."""
_CONNECTED_WITHIN_S: Final = 2.0
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Identifies the machine."""
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Connection(Protocol):
    """A connected socket."""

    async def receive(self, most: int) -> bytes:
        """Receive some bytes, at most `most`; empty at the end. Raises OSError."""
        ...

    async def send(self, *parts: bytes) -> None:
        """Send all parts. Raises OSError."""
        ...

    def shut(self, way: int) -> None:
        """Shut it down, as `socket.shutdown` does."""
        ...


class Frame(Protocol):
    """A frame to send."""

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
    """A received frame, as of a gRPC call."""

    data: bytes = b""
    end: bool = False
    gone: bool = False


def boot_id() -> str:
    """Return the boot id of this machine, same in containers; "" if unreadable."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class Reader:
    """Reads a connection in parts of known sizes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def exactly(self, size: int) -> bytes:
        """Read `size` bytes. EOFError: it ended before."""
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
    """One end of a tunnel; methods raise ClientError. One task may read while others write."""

    def __init__(self, connection: Connection, reader: Reader) -> None:
        self._connection = connection
        self._reader = reader
        self._writes = asyncio.Lock()
        self._sent = 0
        self._taken = 0
        self._has_ended = False
        self._has_closed = False
        self._is_owed = False
        """Whether the next `read` must send _TAKEN."""
        self._has_heard_end = False
        self._is_settled = False
        """Whether the other end has read all sent data and its end."""
        self._left_at: int | None = None
        """How many bytes the other end read before it closed its stream."""
        self._broken: ClientError | None = None

    async def write(self, frame: Frame) -> None:
        """Send a frame; blocks until the other end reads. An empty one only checks for a break."""
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
        """Close our stream: later data does not count as read."""
        if not self._has_closed:
            self._has_closed = True
            await self._say_taken()
            async with self._writes:
                with suppress(ClientError):  # `read` reports it
                    await self._send(_CLOSED, self._taken)

    async def read(self) -> Any:
        """Return the next frame (Came); EOF once both sides have read all data.

        Raises:
            ClientError: the tunnel broke, or data was not read.
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
                    return _EOF  # nothing is due to the other end
                raise self._broken or Unavailable("the tunnel broke") from gone
            if frame is not None:
                return frame
        return _EOF

    async def _say_taken(self) -> None:
        if self._is_owed:
            self._is_owed = False
            async with self._writes:
                with suppress(ClientError):  # the other end may be gone
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
        """Tell a client that its tunnel begins. Raises Unavailable: the client is gone."""
        async with self._writes:
            await self._send(_ADMITTED, 0)

    def break_off(self, error: ClientError) -> None:
        """Break the tunnel; data already received can be read, then `error` is raised."""
        self._broken = self._broken or error
        self._connection.shut(socket.SHUT_RDWR)

    async def _send(self, kind: int, number: int, data: bytes = b"") -> None:
        try:
            await self._connection.send(_HEADER.pack(kind, number), data)
        except OSError as error:
            raise self._broken or Unavailable("the tunnel broke") from error


async def proven(connection: Connection, key: bytes) -> DirectCall:
    """Return the client's end, after mutual proof and the start of the tunnel.

    Raises:
        NotProven, OSError, EOFError: the peer is no agent with this key.
    """
    reader = Reader(connection)
    await prove(reader.exactly, connection.send, key)
    if await reader.exactly(_HEADER.size) != _HEADER.pack(_ADMITTED, 0):
        raise NotProven
    return DirectCall(connection, reader)


async def send_all(to: socket.socket, parts: Sequence[bytes]) -> None:
    """Send all parts over a non-blocking socket, uncopied if it has room. Raises OSError."""
    try:
        sent = to.sendmsg(parts)
    except BlockingIOError:
        sent = 0
    if sent < sum(map(len, parts)):
        left = memoryview(b"".join(parts))[sent:]
        await asyncio.get_running_loop().sock_sendall(to, left)


class LoopConnection:
    """A `Connection` over a socket, on the event loop."""

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
    """Connect directly to an agent; None if that fails."""
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
