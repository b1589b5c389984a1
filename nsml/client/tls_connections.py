"""TLS over a connected socket, between two ends that already have each other's certificate or key."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsml.client.direct_tunnels import LoopConnection

_PIECE_BYTES: Final = 256 << 10


def client_of(certificate: bytes) -> ssl.SSLContext:
    """Return a client's context that accepts only this self-signed server certificate (DER).

    Raises:
        ssl.SSLError, ValueError: not a certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


class TlsConnection:
    """An encrypted `nsml.client.direct_tunnels.Connection`. One task may receive while others send.

    asyncio's own TLS reads ahead without limit, and makes two more copies.
    """

    def __init__(self, inner: LoopConnection, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._buffer = memoryview(bytearray(_PIECE_BYTES))
        self._sends = asyncio.Lock()

    async def handshake(self) -> None:
        """Call it first. Raises OSError (ssl.SSLError is one) and EOFError."""
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
        """See `Connection`. Sends no TLS end: the protocol above must mark its own end."""
        self._inner.shut(way)

    def close(self) -> None:
        """Close it."""
        self._inner.close()

    def _decrypted(self, most: int) -> int:
        """Decrypt all complete records received, up to `most` bytes, to the buffer; return the size."""
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
        """Send the encrypted data, in order."""
        async with self._sends:
            if data := self._outgoing.read():
                await self._inner.send(data)
