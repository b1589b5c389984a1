"""Ports of a platform on this machine: requested, checked, chosen, or held."""

from __future__ import annotations

import contextlib
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cli.exits import CommandError, ExitCode
from nsml.client import contexts

if TYPE_CHECKING:
    from collections.abc import Container
    from types import TracebackType

LOOPBACK = "127.0.0.1"

_LAST_PORT = 65535 - 3
"""Last port for users, so that the ports after it are valid."""
_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class Listener:
    """The listener for other machines: users with TLS on `port`, agents on the next one, tunnels on the third after it.

    The one between is for HTTP, if requested on its usual port.
    """

    host: str
    port: int

    @property
    def ports(self) -> tuple[int, int, int]:
        """The ports of users, agents, and the relay."""
        return self.port, self.port + 1, self.port + 3

    @property
    def agents(self) -> str:
        """HOST:PORT of the listener for agents."""
        return contexts.server_at(self.host, self.port + 1)

    @property
    def relay(self) -> str:
        """HOST:PORT of the listener for tunnel data."""
        return contexts.server_at(self.host, self.port + 3)

    def __str__(self) -> str:
        return contexts.server_at(self.host, self.port)

    def covers(self, port: int) -> bool:
        """Return whether a port of the loopback is one of its own."""
        return port in self.ports and self.host in {*_EVERYWHERE, LOOPBACK, "localhost"}


def parse_listener(text: str) -> Listener:
    """Read HOST[:PORT] or [IPV6][:PORT]; port 0 is for `with_ports` to choose.

    Raises:
        CommandError: it is neither.
    """
    try:
        is_socket = text.startswith("unix:")  # not reachable from other machines
        host, port = contexts.split_server(contexts.parse_server("" if is_socket else text))
    except contexts.ContextError as error:
        raise CommandError(
            f"{text!r} is not HOST:PORT",
            code=ExitCode.USAGE,
            advice="--listen 0.0.0.0:18553   all addresses of this machine",
        ) from error
    if port > _LAST_PORT:
        raise CommandError(
            f"cannot listen on port {port}",
            code=ExitCode.USAGE,
            why="agents are served on the port after it, tunnels on the third, and 65535 is the last",
        )
    return Listener(host, port)


def parse_http(text: str) -> tuple[str, int]:
    """Read HOST:PORT or [IPV6]:PORT of the listener for health and metrics.

    Raises:
        CommandError: it is neither.
    """
    return _parsed(
        text,
        "--http 127.0.0.1:18555   for this machine, without TLS\n"
        "--http 0.0.0.0:18555     for others too, with TLS",
    )


def parse_ssh(text: str) -> tuple[str, int]:
    """Read HOST:PORT or [IPV6]:PORT of the jump host.

    Raises:
        CommandError: it is neither.
    """
    return _parsed(text, "--ssh 0.0.0.0:18557   all addresses of this machine")


def _parsed(text: str, advice: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= 65535
    if not colon or not host or "/" in text or not is_port:
        raise CommandError(
            f"{text!r} is not HOST:PORT",
            code=ExitCode.USAGE,
            advice=advice,
        )
    return host, int(port)


def with_ports(listener: Listener, before: str, avoid: int) -> Listener:
    """Return the listener with a port: the one of `before`, or one that is free with its further ports."""
    if listener.port:
        return listener
    if before and parse_listener(before).host == listener.host:
        return parse_listener(before)
    return Listener(listener.host, _free_port_of(listener.host, avoid))


def check_free(listener: Listener) -> None:
    """Raise CommandError unless all ports of a listener are free."""
    for port in listener.ports:
        if reason := obstacle(listener.host, port):
            raise refusal(
                contexts.server_at(listener.host, port), reason, "--listen HOST:ANOTHER_PORT"
            )


def refusal(address: str, reason: str, advice: str) -> CommandError:
    """Return the error for a requested address that cannot be used."""
    return CommandError(
        f"cannot listen on {address}", code=ExitCode.CONFLICT, why=reason, advice=advice
    )


def obstacle(host: str, port: int) -> str:
    """Return why the port cannot be used now; "" if it is free."""
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


class Held:
    """Ports protected from accidental use, from their choice until a program listens there, and after.

    They are bound without listening. Beside such a socket Linux allows binds that name the port with
    SO_REUSEADDR, as by our programs, etcd and PostgreSQL, repeatedly; it assigns the port neither to
    requests for any port, nor to outgoing connections. On other systems nothing is held.
    """

    def __init__(self) -> None:
        self._sockets = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def free(self) -> int:
        """Choose a free port of the loopback, and hold it."""
        return self._hold(LOOPBACK, 0)

    def hold(self, host: str, port: int) -> bool:
        """Hold a port; return whether it was free."""
        try:
            self._hold(host, port)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Release all of them; listening programs go on."""
        self._sockets.close()

    def _hold(self, host: str, port: int) -> int:
        holding = socket.socket(_family(host))
        try:
            holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holding.bind((host, port))
        except OSError:
            holding.close()
            raise
        self._sockets.enter_context(holding)
        number = int(holding.getsockname()[1])
        if sys.platform != "linux":
            holding.close()
        return number


def free_port(avoid: Container[int] = ()) -> int:
    """Return a free port of the loopback."""
    while True:
        port = _any_port(LOOPBACK)
        if port not in avoid:
            return port


def _free_port_of(host: str, avoid: int) -> int:
    """Return a port for a listener with all its ports free; none is `avoid`.

    Raises:
        CommandError: the host is not one of this machine.
    """
    while True:
        try:
            port = _any_port(host)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise refusal(host, reason, "--listen 0.0.0.0:18553") from error
        _, *others = chosen = Listener(host, port).ports
        if port > _LAST_PORT or avoid in chosen:
            continue
        if not any(obstacle(host, other) for other in others):
            return port


def _any_port(host: str) -> int:
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
