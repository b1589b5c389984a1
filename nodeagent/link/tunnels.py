"""Tunnels: from the control plane, which orders them, to sockets of programs here.

Services of the agent itself, with names that no socket can have, are in `nodeagent.link.services`.
A program serves by listening on the Unix socket `run/tunnel/SERVICE` of its replica, or on a TCP port, whose
number is then the service. Whatever it puts there, and whatever the other end sends, only that one tunnel suffers.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
import grpc.aio
import structlog

from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.link.channels import Link
from nodeagent.link.direct_ways import Awaited, DirectWays, NobodyCame
from nodeagent.link.outbox import replica_of
from nodeagent.link.pacing import Pacing
from nodeagent.link.relays import AtRelay, NotMet, Relays
from nodeagent.link.services import (
    NodeService,
    RunningReplica,
    Services,
    ServiceUnreachable,
    Stream,
)
from nodeagent.link.tcp_ports import listener_on, port_of
from nodeagent.replica.user_sockets import UserConnection, close_user_socket
from nodeagent.safe_paths import allow, open_folder, path_of
from nsml.client.errors import ClientError, Unavailable
from nsml.common.clock import Clock
from nsml.common.concurrency import TaskGroup
from nsml.spec import agent_services
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

_MOST_OPEN = 256
"""Most tunnels to programs of one node at once: the agent's services have their own limits."""
_ACCEPT_WITHIN_S = 5.0
"""Timeout for a program with a full queue of connections."""
_BUSY_PAUSE_S = 0.02
_LOOK_S = (0.01, 1.0)
"""First and longest interval of checks whether a program that sends nothing more is gone."""
_LINGER_S = 5.0
"""Time for tunnels of an ended replica to deliver its last bytes."""
_RELAYED_LINGER_S = 1.0
"""Time for the last bytes of a disconnected client to arrive by a relay."""
_SERVICE = re.compile(r"[a-z0-9-]{1,32}")
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]

log = structlog.get_logger()


class _Way(NamedTuple):
    """Destination of a tunnel (None: none; `to_agent`: a service of the agent itself), its user, and its start."""

    replica_id: ReplicaId | None
    to_agent: bool
    service: str
    user: str
    since: float
    """By the agent's monotonic clock, in seconds."""


class Tunnels:
    """All tunnels of a node. Entered as a context, which owns them.

    Args:
        link: dials the control plane.
        clock: for pauses.
        services: the agent's own services.
        has_sockets: False if programs are simulated: nothing is reachable.
    """

    def __init__(
        self, link: Link, *, clock: Clock, services: Services, has_sockets: bool = True
    ) -> None:
        self._link = link
        self._services = services
        self._clock = clock
        self._has_sockets = has_sockets
        self._direct = DirectWays(clock)
        self._relays = Relays(clock)
        self._pacing = Pacing(clock)
        self._folders: dict[ReplicaId, ReplicaFolder] = {}
        self._closed: set[ReplicaId] = set()
        self._open: dict[asyncio.Task[None], _Way] = {}
        self._group = TaskGroup()
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start accepting direct connections."""
        await self._group.__aenter__()
        if self._has_sockets:
            self._listening = self._group.create_task(self._direct.run())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Break all tunnels."""
        for tunnel in self._open:
            tunnel.cancel()
        if self._listening is not None:
            self._listening.cancel()
        await self._group.__aexit__(None, None, None)

    @contextmanager
    def reachable(self, replica_id: ReplicaId, folder: ReplicaFolder) -> Iterator[None]:
        """Allow tunnels to a replica while the context lasts, which is while it runs.

        After that, those to the program end by themselves, at once or soon; those to the agent are ended at once.
        """
        self._folders[replica_id] = folder
        try:
            yield
        finally:
            del self._folders[replica_id]
            loop = asyncio.get_running_loop()
            for tunnel, way in self._open.items():
                if way.replica_id == replica_id:
                    loop.call_later(0.0 if way.to_agent else _LINGER_S, tunnel.cancel)

    @contextmanager
    def closed(self, replica_id: ReplicaId) -> Iterator[None]:
        """Refuse all tunnels to a replica while the context lasts, whatever is ordered, with the reason."""
        self._closed.add(replica_id)
        try:
            yield
        finally:
            self._closed.discard(replica_id)

    def open(self, order: pb.OpenTunnel) -> None:
        """Dial a tunnel; returns at once. Errors are sent to its client."""
        try:
            replica_id = replica_of(order.replica)
        except ValueError:
            replica_id = None
        tunnel = self._group.create_task(self._live(order, replica_id))
        self._open[tunnel] = _Way(
            None if order.only_checks else replica_id,
            _is_agents(order.service),
            order.service,
            order.user,
            self._clock.monotonic(),
        )
        tunnel.add_done_callback(self._open.pop)

    def visitors(self, replica_id: ReplicaId) -> Iterator[sessions.Visitor]:
        """Yield the users connected to a replica, oldest first, without those who only look."""
        now = self._clock.monotonic()
        for way in self._open.values():
            if way.replica_id == replica_id and way.service not in agent_services.LOOKS:
                visitor = sessions.Visitor(user=way.user, service=way.service)
                visitor.age.FromNanoseconds(round((now - way.since) * 1e9))
                yield visitor

    async def _live(self, order: pb.OpenTunnel, replica_id: ReplicaId | None) -> None:
        """Run one tunnel; a defect in it must not end the others."""
        try:
            if _is_agents(order.service):
                await self._offer(order, replica_id)
            else:
                await self._serve(order, replica_id)
        except* (
            ClientError,
            grpc.RpcError,
            asyncio.InvalidStateError,
            OSError,
            NobodyCame,
            NotMet,
        ) as broken:
            log.info("tunnel.broken", replica=str(replica_id), errors=str(broken.exceptions))
        except* Exception:
            log.exception("tunnel.failed", replica=str(replica_id))

    async def _offer(self, order: pb.OpenTunnel, replica_id: ReplicaId | None) -> None:
        """Run a tunnel to a service of the agent."""
        first = pb.TunnelRequest(tunnel_id=order.tunnel_id)
        service: NodeService | None = None
        with ExitStack() as held:
            try:
                if order.HasField("replica"):
                    replica = self._running(replica_id, order)
                    offered = self._services.taken(order.service, replica.id)
                    service = partial(held.enter_context(offered), replica)
                else:
                    service = held.enter_context(self._services.taken_on_node(order.service))
                if order.only_checks:
                    service = None
            except ServiceUnreachable as error:
                first.error = str(error)
            async with self._dialled(order, first, leads=service is not None) as call:
                if service is not None:
                    is_paced = order.service in agent_services.PACED
                    await Stream(call, self._pacing.of_connection() if is_paced else None).serve(
                        service
                    )

    async def _serve(self, order: pb.OpenTunnel, replica_id: ReplicaId | None) -> None:
        first = pb.TunnelRequest(tunnel_id=order.tunnel_id)
        program: UserConnection | None = None
        try:
            try:
                program = await self._connect(replica_id, order)
            except ServiceUnreachable as error:
                first.error = str(error)
            async with self._dialled(order, first, leads=program is not None) as call:
                if program is not None:
                    await _Relay(program, call, self._clock).run()
        finally:
            if program is not None:
                await program.close()

    @asynccontextmanager
    async def _dialled(
        self, order: pb.OpenTunnel, first: pb.TunnelRequest, *, leads: bool
    ) -> AsyncIterator[Any]:
        """Yield what carries the frames: the control plane's call, or a direct connection to the client.

        `first` has been sent. Unless the tunnel `leads` somewhere, the call has ended.
        """
        dialled = self._link.dial("AgentService/Tunnel", pb.TunnelRequest, pb.TunnelResponse)
        async with AsyncExitStack() as held:
            awaited: Awaited | AtRelay | None = None
            linger_s = 0.0
            if leads and order.HasField("relay"):
                awaited = await held.enter_async_context(self._relays.at(order))
                if awaited is not None:
                    first.relay_certificate = self._relays.certificate
                    linger_s = _RELAYED_LINGER_S
            elif leads and order.direct_key:
                awaited = held.enter_context(self._direct.awaited(order.direct_key))
                if awaited is not None:
                    first.direct_socket = self._direct.name
            call = await held.enter_async_context(dialled)
            await call.write(first)
            if not leads:
                await call.done_writing()
                await _drain(call)
            if awaited is None:
                yield call
            else:
                yield await held.enter_async_context(_direct(awaited, call, linger_s))

    async def _connect(
        self, replica_id: ReplicaId | None, order: pb.OpenTunnel
    ) -> UserConnection | None:
        """Connect to the program; None with `only_checks`."""
        replica = self._running(replica_id, order)
        if sum(not way.to_agent for way in self._open.values()) > _MOST_OPEN:
            raise ServiceUnreachable(f"the node has {_MOST_OPEN} tunnels open already")
        folder, replica_id = replica.folder, replica.id
        port = port_of(order.service)
        if port is not None:
            program = await _connect_port(folder, replica_id, port, only_checks=order.only_checks)
            return None if program is None else UserConnection(program)
        program = await connect(folder.run, order.service, self._clock)
        if order.only_checks:
            await close_user_socket(program)
            return None
        return UserConnection(program)

    def _running(self, replica_id: ReplicaId | None, order: pb.OpenTunnel) -> RunningReplica:
        """Return a replica open to tunnels. Raises ServiceUnreachable."""
        if replica_id in self._closed:
            raise ServiceUnreachable("it is a step of a submission, into which nobody reaches")
        folder = None if replica_id is None else self._folders.get(replica_id)
        if replica_id is None or folder is None or not self._has_sockets:
            raise ServiceUnreachable("its program does not run here")
        return RunningReplica(
            id=replica_id,
            folder=folder,
            user=order.user,
            ssh_entrance=order.ssh_entrance if order.HasField("ssh_entrance") else None,
        )


def _is_agents(service: str) -> bool:
    return service.startswith(agent_services.PREFIX)


async def _connect_port(
    folder: ReplicaFolder, replica_id: ReplicaId, port: int, *, only_checks: bool
) -> socket.socket | None:
    """Connect to a port of a replica's program; None with `only_checks`: nothing connects then.

    Raises:
        ServiceUnreachable: no program of it listens there, or none accepts.
    """
    program: socket.socket | None = None
    try:
        visit = await asyncio.to_thread(listener_on, folder, replica_id, port)
        if only_checks:
            return None
        program = await asyncio.to_thread(visit.socket)
        async with asyncio.timeout(_ACCEPT_WITHIN_S):
            loop = asyncio.get_running_loop()
            await loop.sock_connect(program, (visit.listener.address, port))
    except (OSError, subprocess.SubprocessError) as error:
        if program is not None:
            program.close()
        words = getattr(error, "strerror", None) or str(error) or "no answer"
        raise ServiceUnreachable(words) from error
    except BaseException:
        if program is not None:
            program.close()
        raise
    return program


async def connect(run_folder: Path, service: str, clock: Clock) -> socket.socket:
    """Connect to the listener on `tunnel/SERVICE` below `run_folder`, with a non-blocking socket.

    No link is followed: programs write in that folder.

    Raises:
        ServiceUnreachable: there is no such socket, or nothing accepts.
    """
    program = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        program.settimeout(0)
        with _socket_file(run_folder, service) as descriptor:
            await _accepted(program, path_of(descriptor), clock)
    except OSError as error:
        program.close()
        raise ServiceUnreachable(f"tunnel/{service}: {error.strerror or error}") from error
    except BaseException:
        program.close()
        raise
    return program


@contextmanager
def _socket_file(run_folder: Path, service: str) -> Iterator[int]:
    """Yield a descriptor of the socket itself, even if its name is reused meanwhile."""
    if not _SERVICE.fullmatch(service):
        raise ServiceUnreachable("not a name of a service")
    with open_folder(run_folder, ["tunnel"]) as folder:
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):  # the umask may have removed the right to connect
            allow(service, folder, stat.S_IRUSR | stat.S_IWUSR)
        descriptor = os.open(service, flags, dir_fd=folder)
        owner = os.fstat(folder).st_uid
    try:
        facts = os.fstat(descriptor)
        # A second hard link would be in a folder that the program cannot connect in, and so the socket
        # would be somebody else's.
        is_own = facts.st_nlink == 1 and facts.st_uid == owner
        if not stat.S_ISSOCK(facts.st_mode) or not is_own:
            raise ServiceUnreachable(f"tunnel/{service} is no socket of its own")
        yield descriptor
    finally:
        os.close(descriptor)


async def _accepted(program: socket.socket, path: Path, clock: Clock) -> None:
    """Connect, waiting while the listener's queue is full."""
    give_up_at = clock.monotonic() + _ACCEPT_WITHIN_S
    while True:
        try:
            program.connect(str(path))
        except BlockingIOError:
            if clock.monotonic() >= give_up_at:
                raise
            await clock.sleep(_BUSY_PAUSE_S)
        else:
            return


class _Relay:
    """Relays bytes between a program's connection and a call, with backpressure."""

    def __init__(self, program: UserConnection, call: Any, clock: Clock) -> None:
        self._program = program
        self._call = call
        self._clock = clock
        self._is_unwanted = False

    async def run(self) -> None:
        """Relay until the call ends."""
        async with TaskGroup() as group:
            giving = group.create_task(self._give())
            await self._take()
            giving.cancel()

    async def _give(self) -> None:
        """Relay the program's output, and close the stream when it disconnects."""
        while data := await self._program.receive():
            await self._call.write(pb.TunnelRequest(data=data))
        await self._call.write(pb.TunnelRequest(end=True))
        pause_s, longest_s = _LOOK_S
        while not self._is_unwanted and not self._program.is_gone():
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
        await self._call.done_writing()

    async def _take(self) -> None:
        """Relay data to the program, until the call ends.

        A program that no longer reads may still write: data for it is dropped then.
        """
        takes = True
        while (frame := await self._call.read()) is not _EOF:
            if takes:
                try:
                    await self._program.send(frame.data)
                except OSError:
                    takes = False
            if frame.end:
                self._program.shut(socket.SHUT_WR)
            if frame.gone:
                self._is_unwanted = True
                self._program.shut(socket.SHUT_RD)


@asynccontextmanager
async def _direct(awaited: Awaited | AtRelay, call: Any, linger_s: float) -> AsyncIterator[Any]:
    """Yield the call with a client that connects directly; it breaks `linger_s` after the control plane ends its own."""
    came = asyncio.ensure_future(awaited.client())
    over = asyncio.ensure_future(_drain(call))
    try:
        await asyncio.wait([came, over], return_when=asyncio.FIRST_COMPLETED)
        if not came.done():
            await over
            raise Unavailable("the tunnel ended before its client came")
        direct, close = await came
        ended = Unavailable("the control plane has ended the tunnel")
        loop = asyncio.get_running_loop()
        over.add_done_callback(lambda _: loop.call_later(linger_s, direct.break_off, ended))
        try:
            yield direct
        finally:
            await close()
    finally:
        came.cancel()
        over.cancel()
        await asyncio.gather(came, over, return_exceptions=True)


async def _drain(call: Any) -> None:
    """Wait for the end of a call, ignoring messages, so that all writes are delivered."""
    while await call.read() is not _EOF:
        pass
