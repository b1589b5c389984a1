"""Services of the agent itself at the end of a tunnel, beside those of programs: by name, for a replica or the node.

The control plane has authorized the user. Names are those of `nsml.spec.agent_services`, which no program can use.
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
from nodeagent.link.pacing import ConnectionPacing
from nsml.client.direct_tunnels import Came, DirectCall
from nsml.common.concurrency import TaskGroup
from nsml.spec import agent_services
from nsml.v1 import agents_pb2 as pb

MOST_OF_REPLICA = 8
MOST_OF_NODE = 64
"""Most open at once, of the services that inspect a replica."""
MOST_PROGRAMS = 128
MOST_PROGRAMS_OF_NODE = 512
"""Most clients joined at once to started programs, copies and ssh servers, in a replica and in all of the node."""
MOST_ON_NODE = 32
"""Most open at once, of the services for the node itself."""
_FRAME_BYTES = 256 << 10
_WAITING = 4
"""Frames received before the service reads them."""
_TRIES_EVERY_S = 2.0
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class ServiceUnreachable(Exception):
    """There is no service of this name; the message gives the reason, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReplica:
    """The replica that a service is for."""

    id: ReplicaId
    folder: ReplicaFolder
    user: str = ""
    """The user, as the control plane names it; "" from one that does not."""
    ssh_entrance: pb.SshEntrance | None = None
    """The identity of its ssh server, and who may log in; None: the user is authenticated already."""


class Stream:
    """The agent's end of a tunnel, while `serve` lasts. `pacing`: of its output; None: it waits for the client alone."""

    def __init__(self, call: Any, pacing: ConnectionPacing | None = None) -> None:
        self._call = call
        self._pacing = pacing
        # a message of the contract would copy every byte twice more
        self._frame = Came if isinstance(call, DirectCall) else pb.TunnelRequest
        self._came: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        self._has_heard_all = False
        self._is_done = False
        self._writes = asyncio.Lock()

    async def read(self) -> bytes:
        """Return some bytes of the client; empty at their end."""
        if self._has_heard_all:
            return b""
        data = await self._came.get()
        self._has_heard_all = not data
        return data

    async def write(self, data: bytes) -> None:
        """Send to the client; waits while it does not read."""
        for start in range(0, len(data), _FRAME_BYTES):
            piece = data[start : start + _FRAME_BYTES]
            if self._pacing is not None:
                await self._pacing.wait(len(piece))
            await self._send(self._frame(data=piece))

    async def _send(self, frame: Came | pb.TunnelRequest) -> None:
        async with self._writes:
            await self._call.write(frame)

    async def serve(self, service: Callable[[Stream], Awaitable[None]]) -> None:
        """Run `service` until it returns, or the client disconnects, which cancels it."""
        async with TaskGroup() as group:
            serving = group.create_task(self._run(service))
            while (frame := await self._call.read()) is not _EOF:
                if frame.gone:
                    serving.cancel()
                    await self._call.done_writing()
                if data := frame.data:  # each access copies
                    await self._take(data)
                if frame.end:
                    await self._take(b"")
            serving.cancel()

    async def _run(self, service: Callable[[Stream], Awaitable[None]]) -> None:
        try:
            await service(self)
            await self._send(self._frame(end=True))
            await self._call.done_writing()
        finally:
            self._is_done = True
            while not self._came.empty():  # releases a blocked `put`
                self._came.get_nowait()

    async def _take(self, data: bytes) -> None:
        """Queue data for the service.

        While it reads nothing, empty frames are sent: behind queued messages only a write notices the end of the call.
        """
        while not self._is_done:
            try:
                async with asyncio.timeout(_TRIES_EVERY_S):
                    await self._came.put(data)
            except TimeoutError:
                await self._send(self._frame())
            else:
                break


Service = Callable[[RunningReplica, Stream], Awaitable[None]]
NodeService = Callable[[Stream], Awaitable[None]]


class Services:
    """The services of an agent by name, with counts of open ones.

    Args:
        services: for a replica.
        node_services: for the node itself.
        off: why a service of this agent is not offered.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        *,
        node_services: Mapping[str, NodeService] | None = None,
        off: Mapping[str, str] | None = None,
    ) -> None:
        self._services = services
        self._node_services = node_services or {}
        self._off = off or {}
        self._open: Counter[tuple[ReplicaId, bool]] = Counter()
        self._open_on_node = 0

    @contextmanager
    def taken(self, name: str, replica_id: ReplicaId) -> Iterator[Service]:
        """Return a service for a replica, which counts as open while the context lasts.

        Raises:
            ServiceUnreachable: none has this name, or too many are open.
        """
        service = self._services.get(name)
        if service is None:
            raise _not_offered(name)
        is_program = name in agent_services.STARTED
        most = MOST_PROGRAMS if is_program else MOST_OF_REPLICA
        most_of_node = MOST_PROGRAMS_OF_NODE if is_program else MOST_OF_NODE
        key = (replica_id, is_program)
        if self._open[key] >= most:
            raise ServiceUnreachable(f"{most} are open for this replica already")
        of_node = sum(count for (_, one), count in self._open.items() if one is is_program)
        if of_node >= most_of_node:
            raise ServiceUnreachable(f"{most_of_node} are open on the node already")
        self._open[key] += 1
        try:
            yield service
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    @contextmanager
    def taken_on_node(self, name: str) -> Iterator[NodeService]:
        """Return a service for the node itself, which counts as open while the context lasts.

        Raises:
            ServiceUnreachable: none has this name, or too many are open, or it is not offered.
        """
        if name in self._off:
            raise ServiceUnreachable(self._off[name])
        service = self._node_services.get(name)
        if service is None:
            raise _not_offered(name)
        if self._open_on_node >= MOST_ON_NODE:
            raise ServiceUnreachable(f"{MOST_ON_NODE} are open on the node already")
        self._open_on_node += 1
        try:
            yield service
        finally:
            self._open_on_node -= 1


def _not_offered(name: str) -> ServiceUnreachable:
    return ServiceUnreachable(f"its agent does not offer {name}: it may be too old")
