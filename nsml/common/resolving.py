"""Names of hosts to addresses, within a time: the system's resolver may wait for a minute for one that is dead."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import MutableMapping

RESOLVED_WITHIN_S = 2.0
CONNECTED_WITHIN_S = 2.0
"""The kernel answers for a program that listens, however busy that is: longer silence is a firewall, or nobody."""
_EACH_WITHIN_S = 1
"""The wait for one resolver, so that a second one is asked in time where the first is dead; whole seconds alone."""


def bound_resolvers(environment: MutableMapping[str, str]) -> None:
    """Bound the wait for each resolver; what the user has set stands.

    The system's look-ups (else 5 s for each) and gRPC's (2 s) both read it from the process's environment, once, at
    the first of them.
    """
    own = environment.get("RES_OPTIONS", "")
    environment["RES_OPTIONS"] = f"timeout:{_EACH_WITHIN_S} {own}".strip()


def addresses_of(host: str, port: int, *, within_s: float = RESOLVED_WITHIN_S) -> list[str]:
    """The addresses of a host, those to try first at the front.

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

    # A daemon: nothing ends getaddrinfo, and the program must not wait for it at its end either.
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
    """A TCP connection to whichever address of a host takes one; OSError where none does.

    Each address has CONNECTED_WITHIN_S to take it; `timeout_s` is that of the later calls of the connection.
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
