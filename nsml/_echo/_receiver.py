"""An HTTP server in this process, for libraries that report to a server of their own: on 127.0.0.1, in daemon threads.

    receiver().add("/mlflow", handle)
    os.environ["MLFLOW_TRACKING_URI"] = receiver().url("/mlflow")

Other users of the node may reach the port. They lack the secret, which is in the path of `url`, or is sent as the
password or token in the Authorization header of requests to `address`: without it a request is answered 404, and its
content is not read.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
import time
import zlib
from base64 import b64decode
from contextlib import suppress
from urllib.parse import parse_qsl, unquote

from nsml._strict import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

    Handler = Callable[["Request"], Any]

MOST_BYTES = 64 << 20
"""Most bytes of a content that `Body.read` returns, after it is inflated."""
MOST_CONNECTIONS = 64
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


class Receiver:
    """Serves from the first `url` or `address` on.

    A handler gets a Request and returns an Answer, bytes, or anything that JSON has; None is {}. It runs in the thread of
    the connection. What it raises is answered: RequestError with its status, others with 400, since clients repeat a
    request for minutes after a 5xx.
    """

    def __init__(self) -> None:
        self.secret = os.urandom(20).hex()
        self._pid = os.getpid()
        self._handlers: List[Tuple[str, Handler]] = []
        self._lock = threading.Lock()
        self._socket: Optional[socket.socket] = None
        self._port = 0
        self._connections: List[_Connection] = []
        self._threads = 0

    def add(self, prefix: str, handler: Handler) -> None:
        """Let the handler answer requests whose path is `prefix` or below it; the longest prefix counts."""
        prefix = prefix.rstrip("/")
        others = [one for one in self._handlers if one[0] != prefix]
        self._handlers = sorted([*others, (prefix, handler)], key=lambda one: -len(one[0]))

    def url(self, prefix: str = "") -> str:
        """Return the URL of a prefix with the secret in its path. Raises OSError or RuntimeError if there is no server."""
        self._start()
        return f"http://127.0.0.1:{self._port}/{self.secret}{prefix.rstrip('/')}"

    def address(self, prefix: str = "") -> str:
        """Return it without the secret, which clients then send as password (Basic) or token (Bearer)."""
        self._start()
        return f"http://127.0.0.1:{self._port}{prefix.rstrip('/')}"

    def close(self) -> None:
        """Stop: from now on connections are refused."""
        listening, self._socket = self._socket, None
        if listening is not None:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listening.close()
        for connection in [*self._connections]:
            connection.close()

    def leave(self) -> None:
        """Close the sockets in a child after a fork: else clients would wait for answers once the parent has ended."""
        listening, self._socket = self._socket, None
        for one in (listening, *(connection.socket for connection in self._connections)):
            if one is not None:
                with suppress(OSError):
                    one.close()
        self._connections = []

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a child of the one that serves."""
        return self._pid != os.getpid()

    def _start(self) -> None:
        with self._lock:
            if self._port:
                return
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listening.bind(("127.0.0.1", 0))
                listening.listen(MOST_CONNECTIONS)
                self._socket = listening
                threading.Thread(
                    target=self._accept, args=(listening,), name="nsml-receiver", daemon=True
                ).start()
            except BaseException:
                self._socket = None
                listening.close()
                raise
            self._port = listening.getsockname()[1]
            _bypass_proxies(os.environ)

    def _accept(self, listening: socket.socket) -> None:
        while self._socket is listening:
            if self._threads >= 2 * MOST_CONNECTIONS:  # those of closed connections are ending
                time.sleep(0.01)
                continue
            try:
                accepted, _ = listening.accept()
            except OSError:
                if self._socket is listening:
                    time.sleep(0.1)  # no free file descriptor
                continue
            try:
                self._serve(accepted)
            except Exception:  # no thread can be started, or the connection is gone
                with self._lock:
                    self._connections = [
                        one for one in self._connections if one.socket is not accepted
                    ]
                accepted.close()

    def _serve(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(accepted)
        if not self._make_room():
            accepted.settimeout(1.0)
            accepted.sendall(_encoded(_error(503, "too many connections"), closes=True))
            accepted.close()
            return
        with self._lock:
            self._connections = [*self._connections, connection]

        def serve() -> None:
            try:
                while self._answer_next(connection):
                    pass
                connection.linger()
            except (OSError, ValueError):
                pass  # the client went away
            finally:
                connection.close()
                with self._lock:
                    self._threads -= 1
                    self._connections = [one for one in self._connections if one is not connection]

        with self._lock:
            self._threads += 1
        try:
            threading.Thread(target=serve, name="nsml-receiver-connection", daemon=True).start()
        except RuntimeError:  # no more threads
            with self._lock:
                self._threads -= 1
            raise

    def _make_room(self) -> bool:
        """Return whether one more connection is served; an idle one, of strangers first, is closed for it."""
        with self._lock:
            if len(self._connections) < MOST_CONNECTIONS:
                return True
            idle = [one for one in self._connections if not one.is_busy]
            strangers = [one for one in idle if not one.is_known]
            for one in (strangers or idle)[:1]:
                one.close()
                self._connections = [other for other in self._connections if other is not one]
                return True
        return False

    def _answer_next(self, connection: _Connection) -> bool:
        """Answer one request; return whether another may follow."""
        closes, is_head, request = True, False, None
        try:
            head = connection.head()
            if head is None:
                return False
            method, target, version, headers = head
            is_head = method == "HEAD"
            path, query = _split(target)
            path = self._authorized(path, headers)
            connection.is_known = True
            request = Request(method, path, query, headers, Body(connection, headers))
            wanted = headers.get("connection", "").lower()
            closes = wanted == "close" or (version == "HTTP/1.0" and wanted != "keep-alive")
            answer = self._handled(request)
        except RequestError as error:
            answer = _error(error.status, str(error))
        if request is None:
            connection.drain()  # else the answer might be lost with what the client still sends
            closes = True
        elif not request.body.finish():
            closes = True
        connection.send(_encoded(answer, closes=closes, is_head=is_head))
        return not closes

    def _authorized(self, path: str, headers: Dict[str, str]) -> str:
        """Return the path without the secret. Raises RequestError: neither path nor header has it."""
        first, slash, rest = path.lstrip("/").partition("/")
        if _is_same(first, self.secret):
            return slash + rest
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                value = b64decode(value.encode(), validate=True).decode().partition(":")[2]
            except ValueError:
                value = ""
        if _is_same(value.strip(), self.secret):
            return path
        raise RequestError(404, "not found")

    def _handled(self, request: Request) -> Answer:
        path = request.path
        if path in ("", "/") and request.method == "GET":
            return Answer()  # `answers` asks
        for prefix, handler in self._handlers:
            if path == prefix or path.startswith(prefix + "/"):
                request.path = unquote(path[len(prefix) :])
                try:
                    answer = handler(request)
                    return answer if isinstance(answer, Answer) else Answer(answer)
                except RequestError as error:
                    return _error(error.status, str(error))
                except OSError:
                    raise
                except Exception as error:
                    return _error(400, f"{type(error).__name__}: {reason(error)}")
        return _error(404, "not found")


class Body:
    """The content of a request, read as it arrives: once, by one of its methods."""

    def __init__(self, connection: _Connection, headers: Dict[str, str]) -> None:
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


class _Connection:
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


def answers(address: str, secret: str) -> bool:
    """Return whether the receiver at `address` answers, perhaps one of a parent process."""
    host, _, port = address.rpartition("/")[2].partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0) as asking:
            asking.sendall(f"GET /{secret} HTTP/1.0\r\n\r\n".encode())
            return asking.recv(12).endswith(b" 200")
    except (OSError, ValueError):
        return False


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


def _split(target: str) -> Tuple[str, Dict[str, str]]:
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


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _integer(text: str) -> Any:
    return int(text) if len(text) < _MOST_DIGITS else float(text)


def _error(status: int, text: str) -> Answer:
    return Answer({"error": text}, status)


def _json(content: Any) -> bytes:
    return json.dumps({} if content is None else content, default=str).encode()


def _encoded(answer: Answer, *, closes: bool, is_head: bool = False) -> bytes:
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


def _bypass_proxies(environment: Any) -> None:
    """Keep HTTP clients from asking a proxy for 127.0.0.1."""
    names = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    if not any(environment.get(name) for name in names):
        return
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [host.strip() for host in environment.get(name, "").split(",") if host.strip()]
        if "127.0.0.1" not in hosts and "*" not in hosts:
            environment[name] = ",".join([*hosts, "127.0.0.1"])


_receivers: List[Receiver] = []
_starting = threading.Lock()


def receiver() -> Receiver:
    """Return this process's receiver; a child has its own."""
    with _starting:
        if not _receivers:
            _receivers.append(Receiver())
    return _receivers[0]


def _after_fork() -> None:
    global _starting
    _starting = threading.Lock()
    for one in _receivers:
        one.leave()
    _receivers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
