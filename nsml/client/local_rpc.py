"""One unary call to a control plane on this machine, without the gRPC library.

Importing gRPC and asyncio takes twenty times as long as the call. This module therefore implements the
part of the protocol needed for one unary call: frames (RFC 9113, sections 4 and 6), the request's
headers as literals without indexing (RFC 7541, section 6.2), and gRPC's five-byte prefix of a message
("gRPC over HTTP2"). The headers of the response are not read: either it has one complete message, or
the caller repeats the call through `nsml.client.connect`, which names the error. So this is only for
calls that only read.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

PATIENCE_S = 5.0
"""Timeout of each step of the response; slower calls are repeated with gRPC, which waits longer."""
SHORT_PATIENCE_S = 1.0
"""The same, if there are other control planes."""
ANSWER_LIMIT = 4 << 20
"""Bytes of one message, as everywhere."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_LIMIT = 1 << 14
"""Most bytes of a frame's payload, unless the receiver allows more; we never do."""
_WINDOW = ANSWER_LIMIT + _FRAME_LIMIT
"""Initial flow-control window, in bytes; no valid response needs more."""
_PREFIX = 5
"""Bytes before a message: the compression flag and the length."""
_STREAM = 1
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 0x1
_END_HEADERS = 0x4
_PADDED = 0x8
_PUSH_SETTING, _WINDOW_SETTING = 2, 4


def ask(
    path: str,
    method: str,
    request: bytes,
    *,
    token: str | None = None,
    patience_s: float = PATIENCE_S,
) -> bytes | None:
    """Make one unary call over the Unix socket at `path`; None unless it returns a plain response.

    `method` is "Service/Method" of package nsml.v1; `request` and response are serialised messages.
    """
    headers = _headers(method, token)
    message = struct.pack(">BI", 0, len(request)) + request
    if max(len(headers), len(message)) > _FRAME_LIMIT or not hasattr(socket, "AF_UNIX"):
        return None
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(patience_s)
            connection.connect(path)
            connection.sendall(
                _PREFACE
                + _frame(
                    _SETTINGS, struct.pack(">HIHI", _PUSH_SETTING, 0, _WINDOW_SETTING, _WINDOW)
                )
                + _frame(_WINDOW_UPDATE, struct.pack(">I", _WINDOW))
                + _frame(_HEADERS, headers, flags=_END_HEADERS, stream=_STREAM)
                + _frame(_DATA, message, flags=_END_STREAM, stream=_STREAM)
            )
            with connection.makefile("rb") as incoming:
                body = _body(connection, incoming)
    except (OSError, ValueError):
        return None
    return _message(body)


def _headers(method: str, token: str | None) -> bytes:
    """Encode the request's headers. Numbers index HPACK's static table (RFC 7541, A)."""
    block = b"\x83\x86"  # :method POST, :scheme http
    block += b"\x01" + _string("localhost")  # :authority
    block += b"\x04" + _string(f"/nsml.v1.{method}")  # :path
    block += b"\x0f\x10" + _string("application/grpc")  # content-type
    block += b"\x00" + _string("te") + _string("trailers")
    if token:
        block += b"\x1f\x08" + _string(f"Bearer {token}")  # authorization, never to be indexed
    return block


def _string(text: str) -> bytes:
    """Encode a string literal without Huffman coding (RFC 7541, 5.1 and 5.2)."""
    data = text.encode("ascii")
    rest = len(data) - 0x7F
    if rest < 0:
        return bytes([len(data)]) + data
    length = b"\x7f"
    while rest >= 0x80:
        length += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return length + bytes([rest]) + data


def _frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _body(connection: socket.socket, incoming: IO[bytes]) -> bytes:
    """Read the stream to its end; ValueError if it is cut short or too long."""
    body = bytearray()
    for kind, flags, stream, payload in _frames(incoming):
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, b"", flags=_ACK))
        elif kind == _PING and not flags & _ACK:
            connection.sendall(_frame(_PING, payload, flags=_ACK))
        elif kind in {_RST_STREAM, _GOAWAY}:
            break
        elif kind == _DATA:
            body += _unpadded(payload) if flags & _PADDED else payload
            if len(body) >= _PREFIX and _announced(body) > ANSWER_LIMIT:
                break
        if stream == _STREAM and kind in {_DATA, _HEADERS} and flags & _END_STREAM:
            return bytes(body)
    raise ValueError("the answer has no end")


def _frames(incoming: IO[bytes]) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield kind, flags, stream and payload of each frame until the connection ends."""
    while len(head := incoming.read(9)) == 9:
        first, flags, stream = struct.unpack(">IBI", head)
        length, kind = first >> 8, first & 0xFF
        payload = incoming.read(length) if length <= _FRAME_LIMIT else b""
        if len(payload) != length:
            return
        yield kind, flags, stream & 0x7FFFFFFF, payload


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ValueError("more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def _message(body: bytes) -> bytes | None:
    """Return the message in a response body; None unless it is exactly one, uncompressed."""
    if len(body) < _PREFIX or body[0] != 0 or len(body) - _PREFIX != _announced(body):
        return None
    return body[_PREFIX:]


def _announced(body: bytes | bytearray) -> int:
    """Return the length in a message's prefix."""
    return int.from_bytes(body[1:_PREFIX], "big")
