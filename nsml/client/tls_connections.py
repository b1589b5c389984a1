"""TLS over a connected socket, between two ends that know each other's certificate or key already."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsml.client.direct_tunnels import LoopConnection

_PIECE_BYTES: Final = 256 << 10


def client_of(certificate: bytes) -> ssl.SSLContext:
    """For a client of the server with this certificate (DER), which signs itself, and of no other.

    Raises:
        ssl.SSLError, ValueError: it is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


class TlsConnection:
    """A `nsml.client.direct_tunnels.Connection`, encrypted. One may receive while others send.

    asyncio's own TLS reads ahead as much as comes, and copies all of it twice more.
    """

    def __init__(self, inner: LoopConnection, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._buffer = memoryview(bytearray(_PIECE_BYTES))
        self._sends = asyncio.Lock()

    async def handshake(self) -> None:
        """First of all. Raises OSError (ssl.SSLError is one) and EOFError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            else:
                await self._flush()
                return

    async def receive(self, most: int) -> bytes:
        """See `Connection`."""
        most = min(most, _PIECE_BYTES)
        while not (size := self._decrypted(most)):
            try:
                await self._feed()
            except EOFError:
                return b""
        return bytes(self._buffer[:size])

    async def send(self, *parts: bytes) -> None:
        """See `Connection`."""
        self._tls.write(b"".join(parts))
        await self._flush()

    def shut(self, way: int) -> None:
        """See `Connection`. Whoever speaks over it says itself that nothing follows: TLS does not."""
        self._inner.shut(way)

    def close(self) -> None:
        """Close it."""
        self._inner.close()

    def _decrypted(self, most: int) -> int:
        """How many bytes are in the buffer now: those of all whole records that are here, as far as they go."""
        size = 0
        while size < most:
            try:
                found: int = self._tls.read(most - size, self._buffer[size:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                break
            if not found:
                break
            size += found
        return size

    async def _feed(self) -> None:
        data = await self._inner.receive(_PIECE_BYTES)
        if not data:
            raise EOFError
        self._incoming.write(data)

    async def _flush(self) -> None:
        """Send what was encrypted, in its order."""
        async with self._sends:
            if data := self._outgoing.read():
                await self._inner.send(data)
