"""Where a platform of this machine listens: ports that are asked for, checked, or chosen."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.exits import CommandError, ExitCode
from nsml.client import contexts

if TYPE_CHECKING:
    from collections.abc import Container

LOOPBACK = "127.0.0.1"

_EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class Listener:
    """Where other machines are served with TLS: users on `port`, agents on the next one."""

    host: str
    port: int

    @property
    def ports(self) -> tuple[int, int]:
        """That of users, and that of agents."""
        return self.port, self.port + 1

    @property
    def agents(self) -> str:
        """HOST:PORT of the listener for agents."""
        return contexts.server_at(self.host, self.port + 1)

    def __str__(self) -> str:
        return contexts.server_at(self.host, self.port)

    def covers(self, port: int) -> bool:
        """Whether a port of the loopback is one of its own."""
        return port in self.ports and self.host in {*_EVERYWHERE, LOOPBACK, "localhost"}


def parse_listener(text: str) -> Listener:
    """Read HOST[:PORT] or [IPV6][:PORT]; port 0 is for `with_ports` to choose.

    Raises:
        CommandError: it is neither.
    """
    try:
        is_socket = text.startswith("unix:")  # nobody else's machine reaches it
        host, port = contexts.split_server(contexts.parse_server("" if is_socket else text))
    except contexts.ContextError as error:
        raise CommandError(
            f"{text!r} is not HOST:PORT",
            code=ExitCode.USAGE,
            advice="--listen 0.0.0.0:18553   all addresses of this machine",
        ) from error
    if port > 65534:
        raise CommandError(
            f"cannot listen on port {port}",
            code=ExitCode.USAGE,
            why="agents are served on the port after it, and 65535 is the last",
        )
    return Listener(host, port)


def with_ports(listener: Listener, before: str, avoid: int) -> Listener:
    """The same listener with a port: the one it had `before`, or one that is free with the next."""
    if listener.port:
        return listener
    if before and parse_listener(before).host == listener.host:
        return parse_listener(before)
    return Listener(listener.host, _free_pair(listener.host, avoid))


def check_free(listener: Listener) -> None:
    """Raise CommandError unless both ports of a listener can be used."""
    for port in listener.ports:
        if reason := obstacle(listener.host, port):
            raise refusal(
                contexts.server_at(listener.host, port), reason, "--listen HOST:ANOTHER_PORT"
            )


def refusal(address: str, reason: str, advice: str) -> CommandError:
    """The error for an address that was asked for and cannot be used."""
    return CommandError(
        f"cannot listen on {address}", code=ExitCode.CONFLICT, why=reason, advice=advice
    )


def obstacle(host: str, port: int) -> str:
    """Why nobody can listen there now; empty when it is free."""
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def free_port(avoid: Container[int] = ()) -> int:
    """A port of the loopback that nobody uses now."""
    while True:
        port = _any_port(LOOPBACK)
        if port not in avoid:
            return port


def _free_pair(host: str, avoid: int) -> int:
    """A port that nobody uses now, nor the next one; neither is `avoid`.

    Raises:
        CommandError: the host is not one of this machine.
    """
    while True:
        try:
            port = _any_port(host)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise refusal(host, reason, "--listen 0.0.0.0:18553") from error
        if port < 65535 and avoid not in {port, port + 1} and not obstacle(host, port + 1):
            return port


def _any_port(host: str) -> int:
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
