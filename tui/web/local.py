"""`nsml-tui --web`: the dashboard for the same user's browsers, on this machine alone."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
from typing import TYPE_CHECKING

import click

from nsml.common.hosts import is_loopback
from tui.web.page import make_app
from tui.web.serving import PageServer
from tui.web.visits import Visits

if TYPE_CHECKING:
    from collections.abc import Sequence


class NotServed(Exception):
    """It cannot be served; `advice` says what to do."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


def serve(arguments: Sequence[str], *, host: str, port: int) -> None:
    """Print an address, and serve there until a signal ends it.

    Args:
        arguments: of the shown program.
        host: an address of this machine.
        port: 0 for a free one.

    Raises:
        NotServed: it is no address of this machine alone, or the port is taken.
    """
    with _taken(host, port) as taken:
        number = taken.getsockname()[1]
        names = [f"[{host}]" if ":" in host else host, "localhost", "127.0.0.1", "[::1]"]
        # Nobody can guess it, no other page can read it, and no cookie sends it to other ports of this machine.
        prefix = f"/{secrets.token_urlsafe(24)}"
        visits = Visits(arguments, {}, os.environ)
        app = make_app(visits, prefix=prefix, hosts={f"{name}:{number}" for name in names})
        click.echo(f"http://{names[0]}:{number}{prefix}/")
        click.echo("  anyone with this address acts as you; Ctrl-C ends it", err=True)
        # Ctrl-C ends it.
        with contextlib.suppress(KeyboardInterrupt):
            PageServer(app, visits).run(sockets=[taken])


def _taken(host: str, port: int) -> socket.socket:
    if not is_loopback(host):
        raise NotServed(
            f"--web answers on this machine alone, not on {host}",
            f"through ssh: ssh -L {port or 8000}:127.0.0.1:{port or 8000} HOST\n"
            "for everybody, with TLS and their own rights: nsml dashboard",
        )
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NotServed(f"port {port} is taken", "nsml-tui --web: a free one") from error
        raise NotServed(f"cannot answer on {host}:{port}: {error.strerror}", "--port 0") from error
