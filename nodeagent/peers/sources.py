"""Fetches chunks of a dataset from nodes that have it, or are fetching it themselves.

Nothing received is trusted: each chunk is compared with its digest. A node that sends something else, is too slow, or
disconnects is avoided for a while; missing chunks are fetched elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import grpc
import grpc.aio
import structlog

from nodeagent.peers.server import METHOD, SERVICE
from nsml.content.digests import digest_of
from nsml.v1 import peers_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Iterator,
        Sequence,
    )

    from nsml.common.clock import Clock
    from nsml.content.manifest import ChunkRef

PEERS: Final = "peers"
_ASKED_AGAIN_S: Final = 60.0
"""The control plane is asked again after this time: there may be more nodes, and capabilities expire."""
_ASKED_SOON_S: Final = 10.0
"""The same if it knew no node, or none is left."""
_CONNECTED_WITHIN_S: Final = 3.0
_PAUSE_S: Final = 15.0
"""Longest time between messages: longer than a node waits for a chunk that it is fetching."""
_CALL_S: Final = 30.0
"""Longest total wait for one call's messages."""
_LIED_FOR_S: Final = 3600.0
"""How long a node is avoided after sending something else,"""
_AWAY_FOR_S: Final = 60.0
"""after being too slow or unreachable,"""
_EMPTY_FOR_S: Final = 5.0
"""or after having less than half of the requested chunks."""
_BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED

log = structlog.get_logger()


class ChunkLocation(NamedTuple):
    """A chunk, the path of a file with it, and its offset there."""

    ref: ChunkRef
    path: str
    offset: int


class Sources(Protocol):
    """A source of chunks of one dataset version; `kind` is its name in counts."""

    @property
    def kind(self) -> str:
        """For example PEERS."""
        ...

    def bring(
        self, wanted: Sequence[ChunkLocation]
    ) -> AsyncGenerator[tuple[ChunkRef, bytes], None]:
        """Yield the available chunks, in any order, each matching its digest; raises nothing."""
        ...


class PeerChannel(Protocol):
    """Creates a channel to the agent at `address` with this certificate (DER)."""

    def __call__(self, address: str, certificate: bytes) -> grpc.aio.Channel:
        """ValueError: it is not a certificate."""
        ...


class Find(Protocol):
    """Asks the control plane for nodes that have a dataset version or, for a fetch, will have it soon."""

    def __call__(self, root: str, is_stream: bool, /) -> Awaitable[Sequence[pb.Peer]]:
        """Return no nodes without an answer."""
        ...


class _Dropped(Exception):
    """A node is to be avoided for `for_s` seconds."""

    def __init__(self, reason: str, for_s: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.for_s = for_s


@dataclass(slots=True)
class _Peer:
    """A node to fetch from, and the number of calls in progress."""

    peer: pb.Peer
    channel: grpc.aio.Channel
    calls: int = 0


class Peers:
    """The nodes that datasets are fetched from.

    Args:
        find: asks the control plane for nodes with a dataset version.
        connect: creates channels to them.
    """

    def __init__(
        self,
        find: Find,
        connect: PeerChannel,
        clock: Clock,
    ) -> None:
        self.dropped = 0
        self._find = find
        self._connect = connect
        self._clock = clock
        self._avoided: dict[str, float] = {}

    @asynccontextmanager
    async def of(self, root: str, *, is_stream: bool = False) -> AsyncIterator[Sources]:
        """Nodes with this dataset version, for one fetch, or for a stream of it."""
        nodes = _Nodes(self, root, is_stream, self._find, self._connect, self._clock)
        try:
            yield nodes
        finally:
            await nodes.close()

    def is_avoided(self, node: str) -> bool:
        """Return whether a node is not to be asked now."""
        return self._clock.monotonic() < self._avoided.get(node, 0.0)

    def avoid(self, node: str, for_s: float) -> None:
        """Avoid a node for a while."""
        now = self._clock.monotonic()
        self._avoided = {one: until for one, until in self._avoided.items() if until > now}
        self._avoided[node] = max(self._avoided.get(node, 0.0), now + for_s)


@dataclass(slots=True)
class _Nodes:
    """See `Sources`."""

    kind: ClassVar[str] = PEERS
    peers: Peers
    root: str
    is_stream: bool
    find: Find
    connect: PeerChannel
    clock: Clock
    _known: dict[str, _Peer] = field(default_factory=dict)
    _left: list[grpc.aio.Channel] = field(default_factory=list)
    _ask_at: float = 0.0
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        """Close all connections."""
        for channel in (*(one.channel for one in self._known.values()), *self._left):
            await channel.close(None)

    async def bring(
        self, wanted: Sequence[ChunkLocation]
    ) -> AsyncGenerator[tuple[ChunkRef, bytes], None]:
        """See `Sources`."""
        left = {one.ref: one for one in wanted}
        tried: set[str] = set()
        while left and (known := await self._next(tried)) is not None:
            tried.add(known.peer.node)
            known.calls += 1
            try:
                asked = tuple(left.values())
                async with aclosing(self._from(known, asked)) as chunks:
                    async for ref, data in chunks:
                        del left[ref]
                        yield ref, data
                if 2 * len(left) > len(asked):
                    self.peers.avoid(known.peer.node, _EMPTY_FOR_S)
            except _Dropped as dropped:
                self._drop(known, dropped)
            finally:
                known.calls -= 1

    def _drop(self, known: _Peer, dropped: _Dropped) -> None:
        node = known.peer.node
        self.peers.avoid(node, dropped.for_s)
        if self._known.get(node) is known:  # it may have been replaced or dropped meanwhile
            self.peers.dropped += 1
            self._left.append(self._known.pop(node).channel)
            log.warning("peer.dropped", node=node, digest=self.root[:16], reason=dropped.reason)

    async def _next(self, tried: set[str]) -> _Peer | None:
        """Return the node to ask next: the known one with the fewest calls."""
        async with self._asking:
            if self.clock.monotonic() >= self._ask_at:
                await self._ask()
        may_be = [
            one
            for node, one in self._known.items()
            if node not in tried and not self.peers.is_avoided(node)
        ]
        if not may_be:
            self._ask_at = min(self._ask_at, self.clock.monotonic() + _ASKED_SOON_S)
        return min(may_be, key=lambda one: one.calls, default=None)

    async def _ask(self) -> None:
        found = await self.find(self.root, self.is_stream)
        for peer in found:
            before = self._known.get(peer.node)
            if before is not None and _is_same(before.peer, peer):
                before.peer = peer  # with a new capability
                continue
            if before is not None:
                self._left.append(before.channel)
            try:
                channel = self.connect(peer.address, peer.certificate)
            except ValueError as error:
                log.warning("peer.not_usable", node=peer.node, error=str(error))
                continue
            self._known[peer.node] = _Peer(peer, channel)
        again_s = _ASKED_AGAIN_S if found else _ASKED_SOON_S
        self._ask_at = self.clock.monotonic() + again_s

    async def _from(
        self, known: _Peer, wanted: Sequence[ChunkLocation]
    ) -> AsyncGenerator[tuple[ChunkRef, bytes], None]:
        """Yield the chunks that one node has. Raises _Dropped."""
        left = deque(wanted)
        try:
            async with aclosing(self._answers(known, wanted)) as answers:
                async for answer in answers:
                    for ref, data in _checked(answer, left):
                        yield ref, data
        except TimeoutError:
            raise _Dropped("it does not answer", _AWAY_FOR_S) from None
        except grpc.aio.AioRpcError as error:
            if error.code() is not _BUSY:
                raise _Dropped(f"{error.code().name}: {error.details()}", _AWAY_FOR_S) from None
            return
        if left:
            raise _Dropped("it sent less than it was asked for", _LIED_FOR_S)

    async def _answers(
        self, known: _Peer, wanted: Sequence[ChunkLocation]
    ) -> AsyncGenerator[pb.GetChunksResponse, None]:
        """Yield the answers of a node. Raises _Dropped, TimeoutError, AioRpcError."""
        async with asyncio.timeout(_CONNECTED_WITHIN_S):
            await known.channel.channel_ready()
        call, waited_s = self._call(known, wanted), 0.0
        try:
            while True:
                began = self.clock.monotonic()
                async with asyncio.timeout(_PAUSE_S):
                    answer = await call.read()
                waited_s += self.clock.monotonic() - began
                if answer is grpc.aio.EOF:  # type: ignore[attr-defined]
                    return
                if waited_s > _CALL_S:
                    raise _Dropped("it is too slow", _AWAY_FOR_S)
                yield answer
        finally:
            call.cancel()

    def _call(self, known: _Peer, wanted: Sequence[ChunkLocation]) -> Any:
        ask = known.channel.unary_stream(
            f"/{SERVICE}/{METHOD}",
            request_serializer=pb.GetChunksRequest.SerializeToString,
            response_deserializer=pb.GetChunksResponse.FromString,
        )
        chunks = [
            pb.WantedChunk(
                path=one.path,
                offset=one.offset,
                size=one.ref.size,
                digest=bytes.fromhex(one.ref.digest),
            )
            for one in wanted
        ]
        return ask(pb.GetChunksRequest(capability=known.peer.capability, chunks=chunks))


def _checked(
    answer: pb.GetChunksResponse, left: deque[ChunkLocation]
) -> Iterator[tuple[ChunkRef, bytes]]:
    """Yield the chunks of a message, and remove them from `left`. Raises _Dropped."""
    if not answer.chunks or len(answer.chunks) > len(left):
        raise _Dropped("it sent what nobody asked for", _LIED_FOR_S)
    for chunk in answer.chunks:
        ref = left.popleft().ref
        if chunk.missing:
            continue
        if len(chunk.data) != ref.size or digest_of(chunk.data) != ref.digest:
            raise _Dropped("it sent other content", _LIED_FOR_S)
        yield ref, chunk.data


def _is_same(one: pb.Peer, other: pb.Peer) -> bool:
    """Return whether it is the same agent, without a restart."""
    return (one.address, one.certificate) == (other.address, other.certificate)
