"""Create a client from a context: channel, security and token."""

from __future__ import annotations

import os
import re
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from nsml.client.calls import Client
from nsml.client.contexts import Context, ContextError, is_local, split_server
from nsml.client.endpoints import Endpoints
from nsml.client.errors import UntrustedServer
from nsml.client.rpc import DEADLINE_S, HASTY, pinging
from nsml.common.resolving import RESOLVED_WITHIN_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Pings detect connections that died silently (a closed laptop, a dropped NAT entry); reconnects
# are fast, so that screens recover within seconds after a failover.
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Platforms are private: a proxy of the environment is never meant for them.
    ("grpc.enable_http_proxy", 0),
    # Timeout of a resolver that does not answer; gRPC's default is two minutes.
    ("grpc.dns_ares_query_timeout", round(RESOLVED_WITHIN_S * 1000)),
)
_ALONE = pinging(every_s=20, within_s=10)


def open_channel(context: Context, server: str = "") -> grpc.aio.Channel:
    """Create a channel, not connected yet, to a server of the context, by default the first.

    Uses TLS, verified against the context's authority or the system's, for the context's
    `server_name` or the host; plaintext only to Unix sockets and, without an authority, to loopback.
    Raises ContextError if the authority's file cannot be read.
    """
    server = server or context.server
    # Servers of versions without `others` reject such frequent pings, and gRPC then slows down itself.
    options = (*_OPTIONS, *(HASTY if context.others else _ALONE))
    if server.startswith("unix:") or is_plaintext(context, server):
        return grpc.aio.insecure_channel(_target(server), options=options)
    authority = None
    if context.ca:
        try:
            authority = Path(context.ca).read_bytes()
        except OSError as error:
            raise ContextError(
                f"cannot read the certificate authority {context.ca}: {error.strerror}",
                advice="nsml login HOST --ca FILE",
            ) from error
    credentials = grpc.ssl_channel_credentials(authority)
    named = (("grpc.ssl_target_name_override", context.server_name),) if context.server_name else ()
    return grpc.aio.secure_channel(_target(server), credentials, options=(*options, *named))


def is_plaintext(context: Context, server: str) -> bool:
    """Whether a token is sent to this TCP server unencrypted: on loopback only."""
    return not context.ca and not server.startswith("unix:") and is_local(server)


def listening_uids(server: str) -> set[int]:
    """Return the uids of accounts that listen at a loopback HOST:PORT; empty: none, or unknown."""
    if not sys.platform.startswith("linux") or not hasattr(os, "getuid"):
        return set()
    from nsml.common.local_peers import uids_listening

    return uids_listening(*split_server(server))


def check_listener(context: Context, server: str) -> None:
    """Raise UntrustedServer if a token would be sent unencrypted to a program of another account.

    While the control plane is down, anybody can use its port, and gangs use the machine's network.
    """
    if is_plaintext(context, server):
        advice = f"nsml login {server}    if this account runs the platform"
        _check(
            server,
            context.server_uid,
            why="your token would be sent to it unencrypted",
            advice=advice,
        )


def check_own_listener(server: str) -> None:
    """Raise UntrustedServer if a node's token would go unencrypted to a program neither of root nor of our account."""
    if not server.startswith("unix:") and is_local(server):
        _check(
            server,
            why="the node's token would be sent to it unencrypted",
            advice="connect by the control plane's Unix socket (server = unix:PATH), or join with nsml join",
        )


def _check(server: str, *trusted: int | None, why: str, advice: str) -> None:
    if not (found := listening_uids(server)):
        return
    if others := found - {0, os.getuid(), os.geteuid(), *trusted}:
        who = ", ".join(map(account, sorted(others)))
        raise UntrustedServer(
            f"{server} is served by another account ({who})", why=why, advice=advice
        )


def account(uid: int) -> str:
    """Format an account of this machine."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name}, uid {uid}"
    except (KeyError, OverflowError):
        return f"uid {uid}" if uid >= 0 else "unknown"


@asynccontextmanager
async def connect(
    context: Context, *, token: str | None = None, deadline_s: float = DEADLINE_S
) -> AsyncIterator[Client]:
    """Create a client of the context's platform; it connects on demand.

    `token` replaces the context's own, `deadline_s` is the timeout of one response.
    Raises ContextError.
    """
    token = token or context.token()
    ways = Endpoints(
        partial(open_channel, context), context.servers, partial(check_listener, context)
    )
    ways.channel(ways.now)  # errors of the context show before the first call
    try:
        yield Client(ways, token=token, deadline_s=deadline_s)
    finally:
        await ways.close()


def _target(server: str) -> str:
    """Return the gRPC target of a server: an IPv4 address is never looked up by name."""
    if re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}:\d+", server):
        return f"ipv4:{server}"
    return server
