"""Name resolution with a time limit: the system's resolver may wait a minute for a dead server."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import MutableMapping

RESOLVED_WITHIN_S = 2.0
CONNECTED_WITHIN_S = 2.0
"""The kernel accepts for a listening program, however busy it is: a longer silence is a firewall, or nobody."""
_EACH_WITHIN_S = 1
"""Timeout per resolver, in whole seconds, so that a second one is queried in time if the first is dead."""


def bound_resolvers(environment: MutableMapping[str, str]) -> None:
    """Set the timeout per resolver; values set by the user are kept.

    The system's look-ups (default 5 s each) and gRPC's (2 s) both read it from the process's environment, once, at
    the first look-up.
    """
    own = environment.get("RES_OPTIONS", "")
    environment["RES_OPTIONS"] = f"timeout:{_EACH_WITHIN_S} {own}".strip()


def addresses_of(host: str, port: int, *, within_s: float = RESOLVED_WITHIN_S) -> list[str]:
    """Return the addresses of a host, in order of preference.

    Raises:
        OSError: it has none, or no resolver answered in time.
    """
    found: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.put([str(row[4][0]) for row in rows])
        except OSError as error:
            found.put(error)

    # A daemon: getaddrinfo cannot be interrupted, and must not delay the program's exit.
    threading.Thread(target=resolve, name="resolve", daemon=True).start()
    try:
        answer = found.get(timeout=within_s)
    except queue.Empty:
        raise TimeoutError(f"no resolver answers for {host}") from None
    # The system's own timeout may end before ours.
    if isinstance(answer, socket.gaierror) and answer.errno == socket.EAI_AGAIN:
        raise TimeoutError(f"no resolver answers for {host}") from answer
    if isinstance(answer, OSError):
        raise answer
    return answer


def connect(host: str, port: int, *, timeout_s: float) -> socket.socket:
    """Open a TCP connection to the first address that accepts one; OSError if none does.

    Each address has CONNECTED_WITHIN_S to accept; `timeout_s` is the connection's timeout afterwards.
    """
    failure: OSError = OSError(f"{host} has no address")
    for address in addresses_of(host, port):
        try:
            made = socket.create_connection((address, port), timeout=CONNECTED_WITHIN_S)
        except OSError as error:
            failure = error
        else:
            made.settimeout(timeout_s)
            return made
    raise failure
