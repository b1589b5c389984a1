"""HTTP/1 as clients speak it to a server of one process: requests, answers and connections, with bounds on all of them."""

from __future__ import annotations

import json
import socket
import time
import zlib
from contextlib import suppress
from urllib.parse import parse_qsl

from nsml._strict import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Optional, Tuple

MOST_BYTES = 64 << 20
"""Most bytes of a content that `Body.read` returns, after it is inflated."""
_MOST_HEAD_BYTES = 64 << 10
_MOST_LINE_BYTES = 1 << 10
_MOST_HEADERS = 100
_MOST_SKIPPED = 1 << 20
"""Content that no handler has read is skipped, if it is not longer; else the connection is closed."""
_MOST_DIGITS = 400
"""Longer integers are read as floats: older versions of Python convert them in quadratic time."""
_HEAD_S = 10.0
"""Within this time a whole head must arrive, and a first one after the connection."""
_SILENT_S = 60.0
"""Longest pause within a content."""
_IDLE_S = 600.0
"""Longest pause between the requests of a connection: clients that reuse one do not expect it closed."""
_LINGER_S = 2.0
_PIECE_BYTES = 256 << 10
_JSON = "application/json"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


class RequestError(Exception):
    """A request that is refused: its answer is {"error": text} with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Answer:
    """An answer that is more than JSON with status 200.

    Args:
        content: bytes, or anything that JSON has.
        status: of HTTP.
        content_type: of bytes.
        headers: further ones.
    """

    def __init__(
        self,
        content: Any = None,
        status: int = 200,
        *,
        content_type: str = "application/octet-stream",
        headers: Optional[Dict[str, str]] = None,
    ) -> None:
        self.status = status
        self.content_type = content_type if isinstance(content, bytes) else _JSON
        self.body = content if isinstance(content, bytes) else _json(content)
        self.headers = headers or {}


class Request:
    """One request; `path` is relative to the handler's prefix and decoded, names of `headers` are in small letters."""

    def __init__(
        self, method: str, path: str, query: Dict[str, str], headers: Dict[str, str], body: Body
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body


class Body:
    """The content of a request, read as it arrives: once, by one of its methods."""

    def __init__(self, connection: Connection, headers: Dict[str, str]) -> None:
        self._connection = connection
        self._encoding = headers.get("content-encoding", "identity").strip().lower()
        coding = headers.get("transfer-encoding", "").strip().lower()
        length = headers.get("content-length", "0")
        if coding not in ("", "chunked"):
            raise RequestError(501, "unknown transfer encoding")
        if coding and "content-length" in headers:
            raise RequestError(400, "a length and a transfer encoding")
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            raise RequestError(400, "the length is no number")
        self._is_chunked = bool(coding)
        self.length = None if coding else int(length)
        """Length of the content as sent; None before it has arrived."""
        self._expects = headers.get("expect", "").strip().lower()
        if self._expects not in ("", "100-continue"):
            raise RequestError(417, "unknown expectation")
        self._is_begun = self._is_read = False

    def pieces(self) -> Iterator[bytes]:
        """Yield the content as it was sent, in pieces. Raises OSError, RequestError."""
        if self._is_begun:
            return
        self._is_begun = True
        if self._expects:
            self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._is_chunked:
            yield from self._chunks()
        else:
            yield from self._connection.pieces(self.length or 0)
        self._is_read = True

    def read(self, most: int = MOST_BYTES) -> bytes:
        """Return the whole content, inflated. Raises OSError; RequestError if it is longer than `most`."""
        if self.length is not None and self.length > most:
            raise RequestError(413, f"more than {most} bytes")
        inflate: Optional[Any] = None
        if self._encoding in ("gzip", "x-gzip", "deflate"):
            inflate = zlib.decompressobj(wbits=47)  # a header of gzip or zlib
        elif self._encoding not in ("", "identity"):
            raise RequestError(400, "unknown content encoding")
        found, size = [], 0
        for sent in self.pieces():
            try:
                piece = sent if inflate is None else inflate.decompress(sent, most + 1 - size)
            except zlib.error as error:
                raise RequestError(400, f"not gzip: {error}") from None
            found.append(piece)
            size += len(piece)
            if size > most:
                raise RequestError(413, f"more than {most} bytes")
        if inflate is not None and not inflate.eof and size:
            raise RequestError(400, "the compressed content is cut off")
        return b"".join(found)

    def json(self, most: int = MOST_BYTES) -> Any:
        """Return the content as JSON, in which NaN and infinities may stand. Raises OSError, RequestError."""
        data = self.read(most)
        try:
            return json.loads(data, parse_int=_integer)
        except (ValueError, RecursionError) as error:
            raise RequestError(400, f"no JSON: {reason(error)}") from None

    def skip(self) -> int:
        """Read and drop the content, however long; return its length as sent. Raises OSError, RequestError."""
        return sum(map(len, self.pieces()))

    def finish(self) -> bool:
        """Skip a short rest; return whether the next request can be read."""
        if not self._is_begun and self.length is not None and self.length <= _MOST_SKIPPED:
            if self._expects and self.length:
                return False
            self.skip()
        if not self._is_read:
            self._connection.drain()
        return self._is_read

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._connection.line()
            size = line.partition(b";")[0].strip()
            if not 0 < len(size) <= 15 or not all(one in b"0123456789abcdefABCDEF" for one in size):
                raise RequestError(400, "a chunk without a length")
            length = int(size, 16)
            if not length:
                break
            yield from self._connection.pieces(length)
            if self._connection.line():
                raise RequestError(400, "a chunk is longer than its length")
        for _ in range(_MOST_HEADERS):
            if not self._connection.line():
                return
        raise RequestError(400, "too many trailers")


class Connection:
    """A client's socket, and what was read from it in advance."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.is_known = False
        """Whether a request has had the secret."""
        self.is_busy = False
        """Whether a request is being answered, or has begun to arrive on a connection of a client with the secret."""
        self._held = b""

    def close(self) -> None:
        """Close it, which ends its thread."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def linger(self) -> None:
        """Drop for a moment what the client still sends: else it might never read the answer."""
        self.is_busy = False
        self.socket.shutdown(socket.SHUT_WR)
        ends = time.monotonic() + _LINGER_S
        while time.monotonic() < ends and self._receive(_PIECE_BYTES, _LINGER_S):
            pass

    def head(self) -> Optional[Tuple[str, str, str, Dict[str, str]]]:
        """Return method, target, version and headers of the next request; None if the client has ended.

        Raises:
            RequestError: it is no head of HTTP/1.
            OSError: the connection is gone, or silent for too long.
        """
        self.is_busy = False
        begins = time.monotonic()
        ends = begins + (_IDLE_S if self.is_known and not self._held else _HEAD_S)
        while b"\r\n\r\n" not in self._held:
            if len(self._held) > _MOST_HEAD_BYTES:
                raise RequestError(431, "the head is too long")
            left = ends - time.monotonic()
            if left <= 0:
                raise RequestError(408, "the head takes too long")
            had = len(self._held)
            piece = self._receive(_MOST_HEAD_BYTES, left)
            if not piece:
                return None
            self._held += piece
            if not had:
                ends = time.monotonic() + _HEAD_S
                self.is_busy = self.is_known
        head, _, self._held = self._held.partition(b"\r\n\r\n")
        if len(head) > _MOST_HEAD_BYTES:
            raise RequestError(431, "the head is too long")
        self.is_busy = True
        return _parsed(head)

    def pieces(self, length: int) -> Iterator[bytes]:
        """Yield the next `length` bytes as they come. Raises OSError if there are fewer."""
        while length:
            if not self._held:
                self._held = self._receive(min(length, _PIECE_BYTES), _SILENT_S)
                if not self._held:
                    raise ConnectionAbortedError("the content is cut off")
            piece, self._held = self._held[:length], self._held[length:]
            length -= len(piece)
            yield piece

    def line(self) -> bytes:
        """Return the next line. Raises OSError, RequestError."""
        while b"\n" not in self._held:
            if len(self._held) > _MOST_LINE_BYTES:
                raise RequestError(400, "a line is too long")
            piece = self._receive(_PIECE_BYTES, _SILENT_S)
            if not piece:
                raise ConnectionAbortedError("the content is cut off")
            self._held += piece
        line, _, self._held = self._held.partition(b"\n")
        if len(line) > _MOST_LINE_BYTES:
            raise RequestError(400, "a line is too long")
        return line.rstrip(b"\r")

    def drain(self) -> None:
        """Drop what has arrived: a socket closed with unread bytes would take the answer away."""
        self._held = b""
        with suppress(OSError):
            self.socket.settimeout(0.0)
            for _ in range(_MOST_SKIPPED // _PIECE_BYTES):
                if not self.socket.recv(_PIECE_BYTES):
                    break

    def send(self, data: bytes) -> None:
        """Send all of it. Raises OSError."""
        self.socket.settimeout(_SILENT_S)
        self.socket.sendall(data)

    def _receive(self, most: int, timeout_s: float) -> bytes:
        self.socket.settimeout(timeout_s)
        return self.socket.recv(most)


def _parsed(head: bytes) -> Tuple[str, str, str, Dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[0].isalpha() or len(words[0]) > 20:
        raise RequestError(400, "no request of HTTP")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise RequestError(505, "only HTTP/1 is spoken here")
    if len(lines) > _MOST_HEADERS:
        raise RequestError(431, "too many headers")
    headers: Dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or not name or name != name.strip():
            raise RequestError(400, "a header has no name")
        if key in headers and key in ("content-length", "transfer-encoding", "authorization"):
            raise RequestError(400, f"{key} is there twice")
        headers[key] = value.strip()
    return method.upper(), target, version, headers


def split(target: str) -> Tuple[str, Dict[str, str]]:
    """Return path and query of a target."""
    if not target.startswith("/"):
        _, mark, rest = target.partition("://")
        if not mark:
            raise RequestError(400, "no path")
        target = "/" + rest.partition("/")[2]
    path, _, query = target.partition("#")[0].partition("?")
    try:
        return path, dict(parse_qsl(query, keep_blank_values=True, max_num_fields=1000))
    except ValueError:
        raise RequestError(400, "too many fields in the query") from None


def _integer(text: str) -> Any:
    return int(text) if len(text) < _MOST_DIGITS else float(text)


def error_answer(status: int, text: str) -> Answer:
    return Answer({"error": text}, status)


def _json(content: Any) -> bytes:
    return json.dumps({} if content is None else content, default=str).encode()


def encoded(answer: Answer, *, closes: bool, is_head: bool = False) -> bytes:
    """Return head and body in one piece: in two, a client waits 40 ms for the second one."""
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Status')}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
        *(["Connection: close"] if closes else []),
    ]
    head = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
    return head if is_head else head + answer.body
