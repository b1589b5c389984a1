"""From a context to a client: the channel, its security, its token."""

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

# A connection that died without a word (a closed laptop, a dropped NAT entry) is noticed by pings;
# a lost one is tried again soon, so that screens are back within seconds of a change of leader.
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Platforms are private: a proxy of the environment is never meant for them.
    ("grpc.enable_http_proxy", 0),
    # A resolver that says nothing is waited for no longer; by itself gRPC would ask it for two minutes.
    ("grpc.dns_ares_query_timeout", round(RESOLVED_WITHIN_S * 1000)),
)
_ALONE = pinging(every_s=20, within_s=10)


def open_channel(context: Context, server: str = "") -> grpc.aio.Channel:
    """A channel to one of the context's servers, by default the first, not connected yet.

    TLS, checked against the context's authority or the system's, for the context's name of the
    server or its host; plaintext only to Unix sockets and, without an authority, to loopback. Raises
    ContextError when the authority's file cannot be read.
    """
    server = server or context.server
    # Those of a version without others refuse to be asked so often, and gRPC then asks more seldom itself.
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
    """Whether a token goes to this TCP server unencrypted: on the loopback alone."""
    return not context.ca and not server.startswith("unix:") and is_local(server)


def listening_uids(server: str) -> set[int]:
    """The accounts of this machine that listen at a loopback HOST:PORT; none: nobody, or that is not known."""
    if not sys.platform.startswith("linux") or not hasattr(os, "getuid"):
        return set()
    from nsml.common.local_peers import uids_listening

    return uids_listening(*split_server(server))


def check_listener(context: Context, server: str) -> None:
    """Raise UntrustedServer where a token would go unencrypted to a program of another account.

    While the control plane is away its port is anybody's, and sessions of gangs use the machine's network.
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
    """Raise UntrustedServer where a node's token would go unencrypted to a program of neither root nor our account."""
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
    """An account of this machine, for people."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name}, uid {uid}"
    except (KeyError, OverflowError):
        return f"uid {uid}" if uid >= 0 else "unknown"


@asynccontextmanager
async def connect(
    context: Context, *, token: str | None = None, deadline_s: float = DEADLINE_S
) -> AsyncIterator[Client]:
    """A client of the context's platform; connections are made as calls need them.

    `token` is taken in place of the context's own, `deadline_s` is the longest wait for one answer.
    Raises ContextError.
    """
    token = token or context.token()
    ways = Endpoints(
        partial(open_channel, context), context.servers, partial(check_listener, context)
    )
    ways.channel(ways.now)  # what is wrong with the context shows before the first call
    try:
        yield Client(ways, token=token, deadline_s=deadline_s)
    finally:
        await ways.close()


def _target(server: str) -> str:
    """The server as gRPC names it: an address in digits is never looked up by name."""
    if re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}:\d+", server):
        return f"ipv4:{server}"
    return server
