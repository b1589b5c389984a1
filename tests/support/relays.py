"""HTTP servers of a test that pass what they are asked to another server, and change the question or the answer."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request; the names of its headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Answering: TypeAlias = Callable[[Asked], Answer]


def ask(server: str, asked: Asked) -> Answer:
    """What a server at http://HOST:PORT answers."""
    host = urlsplit(server).netloc
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        headers = {**asked.headers, "connection": "close"}
        connection.request(asked.method, asked.target, asked.body, headers)
        found = connection.getresponse()
        kept = {name.lower(): value for name, value in found.getheaders()}
        return Answer(status=found.status, headers=kept, body=found.read())
    finally:
        connection.close()


@contextmanager
def relay(answering: Answering) -> Iterator[str]:
    """A server on a free port that answers so; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(method=self.command, target=self.path, headers=headers, body=body)
            answer = answering(asked)
            length = str(len(answer.body))
            if self.command == "HEAD":
                length = answer.headers.get("content-length", length)
            ours = {"content-length", "transfer-encoding", "connection", "date", "server"}
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name not in ours:
                    self.send_header(name, value)
            self.send_header("content-length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Who asked may be gone."""

    with Server(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@dataclass
class Faults:
    """A service of objects as it should not be, in front of one that is as it should; change it at any time.

    Attributes:
        ignores_conditions: an object that is there is overwritten, it says, whatever the condition is.
        ignores_ranges: it gives the whole object for a part.
        gives_wrong_ranges: so many times it gives as many bytes as a part has, and others.
        status: not 0: it answers so, `times` times, where a request has the method `of`, or "" for all.
        waits: set by the test to let answers go, which are held back until then; None: they are not.
        asked: paths, with queries, of all requests.
    """

    server: str
    ignores_conditions: bool = False
    ignores_ranges: bool = False
    gives_wrong_ranges: int = 0
    status: int = 0
    times: int = 1 << 30
    of: str = ""
    waits: threading.Event | None = None
    asked: list[str] = field(default_factory=list)
    _bodies: dict[str, bytes] = field(default_factory=dict)

    def answer(self, asked: Asked) -> Answer:
        """What it answers."""
        self.asked.append(asked.target)
        if self.waits is not None:
            self.waits.wait(60)
        if self.status and self.times and self.of in ("", asked.method):
            self.times -= 1
            return Answer(status=self.status, body=b"<Error><Code>Trouble</Code></Error>")
        found = ask(self.server, asked)
        if asked.method == "PUT" and found.status < 300:
            self._bodies[asked.target] = asked.body
        if self.ignores_conditions and asked.method == "PUT" and found.status in (409, 412):
            return Answer(status=201, headers={**found.headers, "etag": '"e"'})
        if found.status == 206 and self.gives_wrong_ranges:
            self.gives_wrong_ranges -= 1
            return replace(found, body=found.body[::-1])
        if found.status == 206 and self.ignores_ranges:
            return replace(found, status=200, body=self._bodies[asked.target])
        return found
