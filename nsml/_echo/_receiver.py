"""An HTTP server in this process, for libraries that report to a server of their own: on 127.0.0.1, in daemon threads.

    receiver().add("/mlflow", handle)
    os.environ["MLFLOW_TRACKING_URI"] = receiver().url("/mlflow")

Other users of the node may reach the port. They lack the secret, which is in the path of `url`, or is sent as the
password or token in the Authorization header of requests to `address`: without it a request is answered 404, and its
content is not read.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
import time
from base64 import b64decode
from contextlib import suppress
from urllib.parse import unquote

from nsml._echo._http import (
    Answer,
    Body,
    Connection,
    Request,
    RequestError,
    encoded,
    error_answer,
    split,
)
from nsml._strict import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Handler = Callable[[Request], Any]

MOST_CONNECTIONS = 64


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
        self._connections: List[Connection] = []
        self._threads = 0

    def add(self, prefix: str, handler: Handler) -> None:
        """Let the handler answer requests for `prefix` and paths below it; the longest prefix counts."""
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
        connection = Connection(accepted)
        if not self._make_room():
            accepted.settimeout(1.0)
            accepted.sendall(encoded(error_answer(503, "too many connections"), closes=True))
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

    def _answer_next(self, connection: Connection) -> bool:
        """Answer one request; return whether another may follow."""
        closes, is_head, request = True, False, None
        try:
            head = connection.head()
            if head is None:
                return False
            method, target, version, headers = head
            is_head = method == "HEAD"
            path, query = split(target)
            path = self._authorized(path, headers)
            connection.is_known = True
            request = Request(method, path, query, headers, Body(connection, headers))
            wanted = headers.get("connection", "").lower()
            closes = wanted == "close" or (version == "HTTP/1.0" and wanted != "keep-alive")
            answer = self._handled(request)
        except RequestError as error:
            answer = error_answer(error.status, str(error))
        if request is None:
            connection.drain()  # else the answer might be lost with what the client still sends
            closes = True
        elif not request.body.finish():
            closes = True
        connection.send(encoded(answer, closes=closes, is_head=is_head))
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
                    return error_answer(error.status, str(error))
                except OSError:
                    raise
                except Exception as error:
                    return error_answer(400, f"{type(error).__name__}: {reason(error)}")
        return error_answer(404, "not found")


def answers(address: str, secret: str) -> bool:
    """Return whether the receiver at `address` answers, perhaps one of a parent process."""
    host, _, port = address.rpartition("/")[2].partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0) as asking:
            asking.sendall(f"GET /{secret} HTTP/1.0\r\n\r\n".encode())
            return asking.recv(12).endswith(b" 200")
    except (OSError, ValueError):
        return False


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


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
