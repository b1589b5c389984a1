"""What the agent itself serves at the end of a tunnel, beside what programs serve: by name, for a replica.

The control plane has decided who may be led here. Names are those of `nsml.spec.agent_services`, which no program can take.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from nodeagent.folders import ReplicaFolder, ReplicaId
from nsml.common.concurrency import TaskGroup
from nsml.v1 import agents_pb2 as pb

MOST_OF_REPLICA = 8
MOST_OF_NODE = 64
"""Open at once, of all services together."""
_FRAME_BYTES = 64 << 10
_WAITING = 4
"""Frames that are taken before the service reads them."""
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class ServiceUnreachable(Exception):
    """Nobody can be reached under this name; the message says why, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReplica:
    """The replica for which something is served."""

    id: ReplicaId
    folder: ReplicaFolder


class Stream:
    """The agent's end of a tunnel, while `serve` lasts."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._came: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        self._has_heard_all = False
        self._is_done = False

    async def read(self) -> bytes:
        """Some bytes of the client; empty once it has said all."""
        if self._has_heard_all:
            return b""
        data = await self._came.get()
        self._has_heard_all = not data
        return data

    async def write(self, data: bytes) -> None:
        """Send to the client; waits while it does not read."""
        for start in range(0, len(data), _FRAME_BYTES):
            await self._call.write(pb.TunnelRequest(data=data[start : start + _FRAME_BYTES]))

    async def serve(self, service: Callable[[Stream], Awaitable[None]]) -> None:
        """Run `service` until it returns, or the client is gone, which cancels it."""
        async with TaskGroup() as group:
            serving = group.create_task(self._run(service))
            while (frame := await self._call.read()) is not _EOF:
                if frame.gone:
                    serving.cancel()
                    await self._call.done_writing()
                if frame.data:
                    await self._take(frame.data)
                if frame.end:
                    await self._take(b"")
            serving.cancel()

    async def _run(self, service: Callable[[Stream], Awaitable[None]]) -> None:
        try:
            await service(self)
            await self._call.write(pb.TunnelRequest(end=True))
            await self._call.done_writing()
        finally:
            self._is_done = True
            while not self._came.empty():  # lets go of who waits to put more
                self._came.get_nowait()

    async def _take(self, data: bytes) -> None:
        if not self._is_done:
            await self._came.put(data)


Service = Callable[[RunningReplica, Stream], Awaitable[None]]


class Services:
    """The services of an agent by name, and how many are in use."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self._services = services
        self._open: Counter[ReplicaId] = Counter()

    @contextmanager
    def taken(self, name: str, replica_id: ReplicaId) -> Iterator[Service]:
        """A service for a replica, which counts as open while the context lasts.

        Raises:
            ServiceUnreachable: there is none of this name, or too many are open.
        """
        service = self._services.get(name)
        if service is None:
            raise ServiceUnreachable(f"its agent does not offer {name}: it may be too old")
        if self._open[replica_id] >= MOST_OF_REPLICA:
            raise ServiceUnreachable(f"{MOST_OF_REPLICA} are open for this replica already")
        if self._open.total() >= MOST_OF_NODE:
            raise ServiceUnreachable(f"{MOST_OF_NODE} are open on the node already")
        self._open[replica_id] += 1
        try:
            yield service
        finally:
            self._open[replica_id] -= 1
            if not self._open[replica_id]:
                del self._open[replica_id]
