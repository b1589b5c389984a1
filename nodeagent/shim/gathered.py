"""A connection that combines its writes, once in each turn of the event loop.

Many small messages would cost a system call each, and as many pieces for every relay.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


class GatheringLoop(asyncio.SelectorEventLoop):
    """An event loop that combines writes of connections over `gathered`, a socket."""

    def __init__(self, gathered: socket.socket) -> None:
        super().__init__()
        self._gathered = gathered

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], *args: Any, **options: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect as every event loop does."""
        if options.get("sock") is not self._gathered:
            return await super().create_connection(protocol_factory, *args, **options)
        joint = _Joint(protocol_factory())
        await super().create_connection(lambda: joint, *args, **options)
        return joint.transport, joint.protocol


class _Joint(asyncio.Protocol):
    """Gives a protocol another transport than the loop's."""

    transport: _Transport

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        self.data_received = protocol.data_received  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = _Transport(transport)
        self.protocol.connection_made(self.transport)


class _Transport(asyncio.Transport):
    """A transport that passes on the writes of one turn of the loop at once."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner
        self._written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._written:
            asyncio.get_running_loop().call_soon(self._flush)
        self._written.append(bytes(data))

    def _flush(self) -> None:
        written, self._written = self._written, []
        if written:
            self._inner.write(b"".join(written))

    def write_eof(self) -> None:
        self._flush()
        self._inner.write_eof()

    def close(self) -> None:
        self._flush()
        self._inner.close()

    def abort(self) -> None:
        self._flush()
        self._inner.abort()

    def get_write_buffer_size(self) -> int:
        waiting: int = self._inner.get_write_buffer_size()
        return waiting + sum(map(len, self._written))

    def can_write_eof(self) -> bool:
        return bool(self._inner.can_write_eof())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return bool(self._inner.is_closing())

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def is_reading(self) -> bool:
        return bool(self._inner.is_reading())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)
