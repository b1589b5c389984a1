"""From a context to a client: the channel, its security, its token."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from nsml.client.calls import Client
from nsml.client.contexts import Context, ContextError, is_local
from nsml.client.rpc import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# A connection that died without a word (a closed laptop, a dropped NAT entry) is noticed by pings;
# a lost one is tried again soon, so that screens are back within seconds of a change of leader.
_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Platforms are private: a proxy of the environment is never meant for them.
    ("grpc.enable_http_proxy", 0),
)


def open_channel(context: Context) -> grpc.aio.Channel:
    """A channel to the context's server, not connected yet.

    TLS, checked against the context's authority or the system's, for the context's name of the
    server or its host; plaintext only to loopback and Unix sockets, and there only without an
    authority. Raises ContextError when the authority's file cannot be read.
    """
    if not context.ca and is_local(context.server):
        return grpc.aio.insecure_channel(_target(context.server), options=_OPTIONS)
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
    return grpc.aio.secure_channel(
        _target(context.server), credentials, options=(*_OPTIONS, *named)
    )


@asynccontextmanager
async def connect(context: Context, *, deadline_s: float = DEADLINE_S) -> AsyncIterator[Client]:
    """A client of the context's platform; the connection is made by the first call.

    `deadline_s` is the longest wait for one answer. Raises ContextError.
    """
    token = context.token()
    async with open_channel(context) as channel:
        yield Client(channel, token=token, deadline_s=deadline_s)


def _target(server: str) -> str:
    """The server as gRPC names it: an address in digits is never looked up by name."""
    if re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}:\d+", server):
        return f"ipv4:{server}"
    return server
