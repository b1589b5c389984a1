"""Exchange of datasets between this node and others, in both directions."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from nodeagent.link.own_certificate import make_own_certificate
from nodeagent.peers.finding import PeerFinder
from nodeagent.peers.server import ChunkServer
from nodeagent.peers.sources import Peers
from nsml.client.contexts import server_at
from nsml.common.peer_capabilities import KEY_BYTES
from nsml.v1 import peers_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nodeagent.peers.network import PeerNetwork
    from nodeagent.peers.server import Shelf
    from nsml.common.clock import Clock, Offload

log = structlog.get_logger()


class Exchange:
    """The exchange of one agent.

    Args:
        network: connects peers; None: there are none, as for an agent without a certificate.
        listen: HOST:PORT to serve datasets at; empty: they are not served.
        host: this node's host for peers.
        bytes_per_s: limit of bytes sent to them.
        asked: called when there is a question to the control plane.
    """

    def __init__(
        self,
        network: PeerNetwork | None,
        *,
        listen: str,
        host: str,
        bytes_per_s: float,
        asked: Callable[[], object],
        clock: Clock,
    ) -> None:
        self.finder = PeerFinder(asked)
        self.peers = None if network is None else Peers(self.finder.find, network.connect, clock)
        self.offer: pb.PeerOffer | None = None
        """Where this node serves datasets; None: it does not."""
        self.problem = ""
        """Why it does not, though configured."""
        self._network = network
        self._listen = listen
        self._host = host
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._server: ChunkServer | None = None

    @property
    def given_bytes(self) -> int:
        """Bytes sent to peers."""
        return self._server.given_bytes if self._server is not None else 0

    @property
    def dropped(self) -> int:
        """How often a peer was dropped."""
        return self.peers.dropped if self.peers is not None else 0

    @asynccontextmanager
    async def serving(self, shelf: Shelf, run: Offload) -> AsyncIterator[None]:
        """Serve the shelf while the context lasts, if configured."""
        network = self._network
        if network is None or not self._listen:
            if self._listen:
                self.problem = (
                    "listen_peers: only a node with a certificate (nsml join) serves others"
                )
            yield
            return
        own, key = make_own_certificate(), os.urandom(KEY_BYTES)
        try:
            server, port = network.server(own, self._listen)
        except RuntimeError:
            # Sessions here need the agent more than others need its datasets.
            self.problem = f"listen_peers: it cannot listen on {self._listen}"
            log.warning("peers.not_served", listen=self._listen)
            yield
            return
        self._server = ChunkServer(
            shelf, key=key, bytes_per_s=self._bytes_per_s, clock=self._clock, run=run
        )
        self._server.add_to(server)
        await server.start()
        address = server_at(self._host, port)
        self.offer = pb.PeerOffer(address=address, certificate=own.der, key=key)
        log.info("peers.served", address=address)
        try:
            yield
        finally:
            await server.stop(None)
