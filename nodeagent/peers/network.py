"""Connections between agents: mutual TLS.

A client shows the certificate of its node, signed by the platform's authority. A server shows one of its own, which
the control plane has sent to the client: certificates of nodes are for clients alone.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from nodeagent.link.own_certificate import NAME, OwnCertificate

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.ssl_target_name_override", NAME),
)
_SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 1 << 20),
    # Programs of sessions may connect, and send nothing: each connection is a descriptor of the agent's.
    ("grpc.max_allowed_incoming_connections", 256),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
)


@dataclass(frozen=True, slots=True)
class NodeProof:
    """Identity of a node: PEM of the platform's authority, of the node's key and of its certificate."""

    authority: bytes
    key: bytes
    certificate: bytes


@dataclass(frozen=True, slots=True)
class PeerNetwork:
    """Connects this node to others.

    Attributes:
        proof: returns its identity, for each connection: certificates are renewed.
    """

    proof: Callable[[], NodeProof]

    def connect(self, address: str, certificate: bytes) -> grpc.aio.Channel:
        """Return a channel to the agent with this certificate (DER). ValueError: it is not one."""
        ours = self.proof()
        credentials = grpc.ssl_channel_credentials(
            ssl.DER_cert_to_PEM_cert(certificate).encode(), ours.key, ours.certificate
        )
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)

    def server(self, own: OwnCertificate, listen: str) -> tuple[grpc.aio.Server, int]:
        """Return a server for nodes alone at HOST:PORT, and its port. RuntimeError: it cannot listen there."""
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        credentials = grpc.ssl_server_credentials(
            [(own.key, own.certificate)],
            root_certificates=self.proof().authority,
            require_client_auth=True,
        )
        return server, server.add_secure_port(listen, credentials)
