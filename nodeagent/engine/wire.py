"""The few calls of the engine's HTTP API that a shim makes for its own container.

Standard library only and no more of it than sockets and JSON: every shim keeps the imports in memory
for as long as its session runs. All else goes through `client.py`.
"""

from __future__ import annotations

import json
import socket
import time

_ANSWERS_WITHIN_S = 30.0
_STARTS_WITHIN_S = 120.0
"""Creating and starting a container waits for the disk, and for other starts."""
_LONGEST_ANSWER = 1 << 22


class Refused(OSError):
    """The engine refuses; the text is its reason."""


class Unanswered(OSError):
    """No answer, or not in time: the call may have been carried out or not."""


class Container:
    """One container by its name, behind the engine's Unix socket `path`."""

    def __init__(self, path: str, api: str, name: str) -> None:
        self._path = path
        self._base = f"/v{api}/containers"
        self._name = name

    def create(self, config: dict) -> None:  # type: ignore[type-arg]
        """Create it, replacing one of its name. Raises Refused, Unanswered."""
        path = f"{self._base}/create?name={self._name}"
        status, answer = self._call("POST", path, config, _STARTS_WITHIN_S)
        if status == 409:
            self.remove()
            status, answer = self._call("POST", path, config, _STARTS_WITHIN_S)
        _expect(status, answer, 201)

    def start(self) -> None:
        """Start it; no effect on a running one. Raises Refused, Unanswered."""
        path = f"{self._base}/{self._name}/start"
        status, answer = self._call("POST", path, None, _STARTS_WITHIN_S)
        _expect(status, answer, 204, 304)

    def limit_processes(self, count: int) -> None:
        """Let it have at most so many processes, threads included. Raises Refused, Unanswered."""
        path = f"{self._base}/{self._name}/update"
        status, answer = self._call("POST", path, {"PidsLimit": count}, _STARTS_WITHIN_S)
        _expect(status, answer, 200)

    def inspect(self) -> dict | None:  # type: ignore[type-arg]
        """Return the engine's facts of it; None: there is none. Raises Refused, Unanswered."""
        path = f"{self._base}/{self._name}/json"
        status, answer = self._call("GET", path, None, _ANSWERS_WITHIN_S)
        if status == 404:
            return None
        _expect(status, answer, 200)
        return answer

    def hold(self) -> socket.socket:
        """Return a connection that lasts until the engine's process ends, or reports the container's end.

        The first data shows whether the engine accepted the call. Raises Unanswered.
        """
        return _asked(self._path, "POST", f"{self._base}/{self._name}/wait")

    def ping(self) -> socket.socket:
        """Return a connection on which an engine that accepts calls answers. Raises Unanswered."""
        return _asked(self._path, "GET", "/_ping")

    def remove(self) -> bool:
        """End it and delete it with its data; False: there was none. Raises Refused, Unanswered."""
        path = f"{self._base}/{self._name}?force=1&v=1"
        status, answer = self._call("DELETE", path, None, _STARTS_WITHIN_S)
        _expect(status, answer, 204, 404)
        return status != 404

    def _call(
        self,
        method: str,
        path: str,
        body: dict | None,  # type: ignore[type-arg]
        within_s: float,
    ) -> tuple[int, dict]:  # type: ignore[type-arg]
        try:
            return _exchange(self._path, method, path, body, within_s)
        except (OSError, ValueError) as error:
            raise Unanswered(f"the container engine does not answer: {error}") from error


def _asked(place: str, method: str, path: str) -> socket.socket:
    """Send a request on a new non-blocking connection. Raises Unanswered."""
    engine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        engine.settimeout(0.0)
        engine.connect(place)
        engine.send(
            f"{method} {path} HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\n\r\n".encode()
        )
    except OSError as error:
        engine.close()
        raise Unanswered(f"the container engine does not answer: {error}") from error
    return engine


def _exchange(
    place: str,
    method: str,
    path: str,
    body: dict | None,  # type: ignore[type-arg]
    within_s: float,
) -> tuple[int, dict]:  # type: ignore[type-arg]
    """Send one request on a connection of its own; return status and answer. Raises OSError, ValueError.

    In HTTP/1.0, where the answer ends with the connection, unchunked.
    """
    until = time.monotonic() + within_s
    content = b"" if body is None else json.dumps(body).encode()
    request = (
        f"{method} {path} HTTP/1.0\r\nHost: engine\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    ).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as engine:
        engine.settimeout(within_s)
        engine.connect(place)
        engine.sendall(request + content)
        answer = b""
        while True:
            engine.settimeout(max(until - time.monotonic(), 0.001))
            piece = engine.recv(65536)
            if not piece:
                break
            answer += piece
            if len(answer) > _LONGEST_ANSWER:
                raise ValueError("its answer has no end")
    head, found, text = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not found or len(words) < 2:
        raise ValueError("its answer was cut short")
    said = json.loads(text) if text.strip() else {}
    if not isinstance(said, dict):
        raise ValueError("its answer has an unexpected format")  # noqa: TRY004 - of the answer
    return int(words[1]), said


def _expect(status: int, answer: dict, *wanted: int) -> None:  # type: ignore[type-arg]
    if status not in wanted:
        reason = " ".join(str(answer.get("message", f"HTTP {status}")).split())
        raise Refused(reason[:500])
