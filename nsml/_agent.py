"""Requests to the node agent over the replica's socket: one JSON line each way.

Only blocking requests use it; reports and checkpoints are files, and need no agent.
"""

from __future__ import annotations

import _socket
import json
import os
import time

from nsml._notice import notice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

_LONGEST_ANSWER = 1 << 20
_LONGEST_SOCKET_PATH = 100
_PAUSE_S = 0.2


class AgentRefusedError(Exception):
    """The agent refused a request; `code` is the contract's error code, such as NOT_FOUND."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message or code)
        self.code = code


class AgentAwayError(TimeoutError):
    """The agent was unreachable for too long."""


class NotHandedOutError(RuntimeError):
    """The agent could not hand out a checkpoint that exists."""


def request(
    run_dir: str,
    message: Dict[str, Any],
    *,
    timeout_s: float = 60.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Dict[str, Any]:
    """Send a request and return the response; retries while the agent restarts.

    Requests are repeated if the connection breaks, so they must be idempotent.

    Raises:
        AgentRefusedError: the agent refused.
        AgentAwayError: the agent was unreachable for `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    noticed = False
    while True:
        try:
            return ask_once(run_dir, message, timeout_s=None)
        except (OSError, ValueError) as error:
            if time.monotonic() >= deadline:
                raise AgentAwayError(f"the node agent does not answer: {error}") from error
            if not noticed:
                noticed = True
                notice(f"waiting for the node agent: {error}")
            sleep(_PAUSE_S)


def ask_once(
    run_dir: str, message: Dict[str, Any], *, timeout_s: Optional[float] = 5.0
) -> Dict[str, Any]:
    """Send a request once and return the response.

    Raises:
        AgentRefusedError: the agent refused.
        OSError, ValueError: no response.
    """
    with Conversation(run_dir, timeout_s=timeout_s) as agent:
        return agent.ask(message)


class Conversation:
    """A connection for consecutive requests, open while the context lasts.

    Raises:
        OSError: no agent is listening.
    """

    def __init__(self, run_dir: str, *, timeout_s: Optional[float] = None) -> None:
        self._connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self._connection.settimeout(timeout_s)
            _connect(self._connection, run_dir)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Conversation:  # noqa: PYI034 - Self is newer than this Python
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Return the response. Raises AgentRefusedError; OSError, ValueError: there is none."""
        self._connection.sendall(json.dumps({"v": 1, **message}).encode() + b"\n")
        received = b""
        while not received.endswith(b"\n"):
            part = self._connection.recv(65536)
            if not part or len(received) > _LONGEST_ANSWER:
                raise ConnectionError("the connection ended without an answer")
            received += part
        answer = json.loads(received)
        if not isinstance(answer, dict):
            raise ConnectionError("the answer is no object")
        if not answer.get("ok"):
            raise AgentRefusedError(str(answer.get("error", "")), str(answer.get("message", "")))
        return answer


def _connect(connection: Any, run_dir: str) -> None:
    path = os.path.join(run_dir, "socket")
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        connection.connect(path)
        return
    # The kernel accepts 107 bytes; through an open folder any path fits.
    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{folder}/socket")
    finally:
        os.close(folder)
