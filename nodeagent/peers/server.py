"""Serves chunks of datasets to peers: of cached ones, and of those being fetched.

A client has proven to be a node of the platform (mutual TLS), and shows a capability of the control plane for reading
this dataset version. Only files in a dataset's own folder are read, and only requested chunks are sent. Memory, rate
and the number of clients served at once are bounded: sessions come first.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
import grpc.aio
import structlog

from nodeagent.collect.pace import Pace
from nsml.common.peer_capabilities import is_valid
from nsml.content.chunks import LARGEST_CHUNK
from nsml.content.manifest import DEFAULT_LIMITS
from nsml.v1 import peers_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

    from nsml.common.clock import Clock, Offload

SERVICE: Final = "nsml.v1.Peers"
METHOD: Final = "GetChunks"
MOST_CHUNKS: Final = 2_000
MOST_BYTES: Final = 64 << 20
UPLOADS: Final = 4
"""Calls that read at a time;"""
MOST_CALLS: Final = 32
"""others wait for their turn, for a chunk being fetched here, or for their client;"""
MOST_OF_ONE: Final = 8
"""and the most of one node."""
COMES_WITHIN_S: Final = 10.0
"""How long to wait for a chunk that is being fetched here."""
_LOOK_EVERY_S: Final = 0.05
_LONGEST_CALL_S: Final = 120.0
"""Timeout of a call: slower clients are not served."""
_MESSAGE_BYTES: Final = 1 << 20
_READ_AT_ONCE: Final = 256
_BURST_S: Final = 0.25

log = structlog.get_logger()


class Shelf(Protocol):
    """The dataset versions of a node; see `nodeagent.storage.tree_folder`."""

    def read_first(
        self, root: str, wanted: Sequence[pb.WantedChunk], most_bytes: int
    ) -> list[bytes]:
        """Return the first of these chunks of a version, as far as they are here: at least one, if it is. Blocking.

        Each matches its digest.
        """
        ...

    def is_fetching(self, root: str) -> bool:
        """Whether that version is being fetched."""
        ...


class ChunkServer:
    """Answers GetChunks.

    Args:
        shelf: the served datasets.
        key: verifies capabilities.
        bytes_per_s: limit for all nodes together.
        run: runs disk work in a thread.
    """

    def __init__(
        self, shelf: Shelf, *, key: bytes, bytes_per_s: float, clock: Clock, run: Offload
    ) -> None:
        self.given_bytes = 0
        self.calls: Counter[str] = Counter()
        """Calls in progress, by node."""
        self._shelf = shelf
        self._key = key
        self._clock = clock
        self._run = run
        self._pace = Pace(bytes_per_s, clock, burst_s=_BURST_S)
        self._turns = asyncio.Semaphore(UPLOADS)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service."""
        handler = grpc.unary_stream_rpc_method_handler(
            self.get_chunks,
            request_deserializer=pb.GetChunksRequest.FromString,
            response_serializer=pb.GetChunksResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )

    async def get_chunks(
        self, request: pb.GetChunksRequest, context: Any
    ) -> AsyncIterator[pb.GetChunksResponse]:
        """See GetChunksRequest."""
        node, told = _node_of(context), request.capability
        if not is_valid(
            told.mac,
            self._key,
            root=told.root,
            node=node,
            expires_at=told.expires_at,
            now=self._clock.time(),
        ):
            log.warning("peer.refused", node=node, digest=told.root[:16])
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the capability does not count")
        if not _is_bounded(request.chunks):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too much at a time")
        if self.calls[node] >= MOST_OF_ONE or self.calls.total() >= MOST_CALLS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many nodes ask")
        self.calls[node] += 1
        try:
            async with asyncio.timeout(_LONGEST_CALL_S):
                async with aclosing(self._answers(told.root, request.chunks)) as answers:
                    async for answer in answers:
                        yield answer
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it took too long")
        finally:
            self.calls[node] -= 1
            self.calls += Counter()  # drop nodes without calls

    async def _answers(
        self, root: str, wanted: Iterable[pb.WantedChunk]
    ) -> AsyncGenerator[pb.GetChunksResponse, None]:
        left = deque(wanted)
        give_up_at: float | None = None
        while left:
            next_ones = tuple(islice(left, _READ_AT_ONCE))
            async with self._turns:
                found = await self._run(
                    partial(self._shelf.read_first, root, next_ones, _MESSAGE_BYTES)
                )
                await self._pace.wait(sum(map(len, found)))
            now = self._clock.monotonic()
            if found:
                give_up_at = None
                self.given_bytes += sum(map(len, found))
                for _ in found:
                    left.popleft()
                yield pb.GetChunksResponse(chunks=[pb.PeerChunk(data=data) for data in found])
            elif self._shelf.is_fetching(root) and now < (
                give_up_at := give_up_at or now + COMES_WITHIN_S
            ):
                await self._clock.sleep(_LOOK_EVERY_S)
            else:
                left.popleft()
                yield pb.GetChunksResponse(chunks=[pb.PeerChunk(missing=True)])


def _is_bounded(wanted: Sequence[pb.WantedChunk]) -> bool:
    """Return whether a request is within the limits."""
    return (
        len(wanted) <= MOST_CHUNKS
        and sum(one.size for one in wanted) <= MOST_BYTES
        and all(one.size <= LARGEST_CHUNK and one.offset <= DEFAULT_LIMITS.bytes for one in wanted)
    )


def _node_of(context: Any) -> str:
    """Return the calling node: the name in the certificate of its connection."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode(errors="replace") if names else ""
