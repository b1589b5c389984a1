"""Byte streams to services of programs in sessions, through the control plane.

async with client.sessions.open_tunnel("@last", "web") as tunnel:
    await tunnel.write(b"question")
    await tunnel.end()
    while data := await tunnel.read():
        ...
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from nsml.client.direct_tunnels import Came, boot_id, connected
from nsml.client.errors import (
    ClientError,
    InvalidRequest,
    NodeUnavailable,
    NoSuchService,
    Unavailable,
    Unsupported,
    translate,
)
from nsml.client.relayed_tunnels import met
from nsml.spec import agent_services
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nsml.client.rpc import Rpc

FRAME_BYTES = 256 << 10
"""Most data in one message."""
_MOST_ANSWER_BYTES = 32 << 20
"""For services of the agent: a list of processes takes 3 MB at most, stacks 24."""
_REFUSED_WITHIN_S: Final = 0.5
"""Longest wait for the refusal of a retried call, if the first one was refused during a write."""
_LOOK_S: Final = 0.01
_RELAY_AVOIDED_FOR_S: Final = 60.0
"""How long an unreachable relay is not retried: each try delays a tunnel."""
MessageT = TypeVar("MessageT", bound=Message)
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class _Way(NamedTuple):
    """A method that opens tunnels, and its messages."""

    method: str
    request: type[Message]
    response: type[Message]


_TO_SESSION: Final = _Way("SessionService/OpenTunnel", pb.OpenTunnelRequest, pb.OpenTunnelResponse)


class Tunnel:
    """An open tunnel. One may read while another writes; all methods raise ClientError.

    Cancelling a method breaks the tunnel.
    """

    def __init__(self, call: Any, request: type[Any]) -> None:
        self._call = call
        self._request = request
        self._has_said_all = False
        self._has_heard_all = False
        self._is_gone = False
        self._is_closed = False
        self.ended_under_write = False
        """gRPC does not say why a call ended while something was written to it."""

    async def read(self) -> bytes:
        """Read some bytes; empty at the program's end of stream. Unavailable if the tunnel broke."""
        while not self._has_heard_all:
            frame = await self._next()
            if frame is None:
                raise Unavailable("the tunnel broke")
            self._has_heard_all = frame.end
            data: bytes = frame.data  # each access copies
            if data:
                return data
        return b""

    async def write(self, data: bytes) -> None:
        """Send to the program; blocks until it reads. Unavailable if it is gone."""
        for start in range(0, len(data), FRAME_BYTES):
            await self._send(self._request(data=data[start : start + FRAME_BYTES]))

    async def end(self) -> None:
        """Send end of stream; the program may continue."""
        if not self._has_said_all and not self._is_gone:
            await self._send(self._request(end=True))
        self._has_said_all = True

    async def wait_gone(self) -> None:
        """After `read` returned the end, wait until the program reads no more either."""
        while not self._is_gone:
            frame = await self._next()
            self._is_gone = frame is None or frame.gone

    async def close(self) -> None:
        """After `end`: wait until all data is delivered; Unavailable if some is not."""
        if self._has_said_all and not self._is_closed:
            self._is_closed = True
            await self._call.done_writing()
            while await self._next() is not None:
                pass

    async def refused_at_once(self) -> None:
        """Wait, at most _REFUSED_WITHIN_S, until the call is over."""
        time = asyncio.get_running_loop().time
        give_up_at = time() + _REFUSED_WITHIN_S
        while not self._call.done() and time() < give_up_at:  # noqa: ASYNC110 - a call tells nobody
            await asyncio.sleep(_LOOK_S)

    async def begin(self, target: Message) -> pb.DirectWay | None:
        """Open the tunnel; call it first. Return the direct way for its bytes, if any."""
        await self._send(self._request(target=target))
        first = await self._next()
        if first is None:
            raise Unavailable("the tunnel broke")
        return first.direct if first.HasField("direct") else None

    async def held(self) -> None:
        """Wait for the end of a call that transfers no data."""
        while await self._next() is not None:
            pass

    async def _next(self) -> Any:
        """Read the next message; None at the end of the call."""
        try:
            frame = await self._call.read()
        except grpc.RpcError as error:
            raise translate(error) from error
        return None if frame is _EOF else frame

    async def _send(self, request: Message) -> None:
        if self._is_gone:
            raise Unavailable("the program takes nothing more")
        try:
            await self._call.write(request)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.INTERNAL:  # the call ended during a write
                self.ended_under_write = True
                raise Unavailable("the tunnel broke") from error
            raise translate(error) from error
        except asyncio.InvalidStateError as over:
            while await self._next() is not None:  # raises why it is over
                pass
            raise Unavailable("the tunnel is closed") from over


@asynccontextmanager
async def open_tunnel(
    rpc: Rpc, reference: str, service: str, *, rank: int = 0, ssh_host: str = ""
) -> AsyncIterator[Tunnel]:
    """Open a tunnel to `service` of one replica. `ssh_host`: for jump hosts, as in TunnelTarget.

    On exit after `end` and without an error, all written data has been delivered. Otherwise the
    tunnel is cut.

    Raises:
        Denied, NotFound: somebody else's session.
        StateConflict: it does not run, or (NoSuchService) its program has no such service.
        NotEnough: too many tunnels.
        Unavailable: the node does not answer, or the tunnel broke.
    """
    target = pb.TunnelTarget(session=reference, rank=rank, service=service, ssh_host=ssh_host)
    async with _open(rpc, _TO_SESSION, target) as tunnel:
        yield tunnel


@asynccontextmanager
async def open_node_service(
    rpc: Rpc, node: str, service: str, *, what: str
) -> AsyncIterator[Tunnel]:
    """As `open_tunnel`, to a service of the node itself by its agent; for administrators.

    Raises:
        Denied: the caller is no administrator.
        NotFound: there is no such node.
        NoSuchService: the agent does not allow it.
        Unsupported: the control plane is too old for `what`.
        NotEnough, Unavailable: as `open_tunnel`.
    """
    from nsml.v1 import nodes_pb2

    way = _Way(
        "NodeService/OpenNodeTunnel",
        nodes_pb2.OpenNodeTunnelRequest,
        nodes_pb2.OpenNodeTunnelResponse,
    )
    target = nodes_pb2.NodeTunnelTarget(node=node, service=service)
    try:
        async with _open(rpc, way, target) as tunnel:
            yield tunnel
    except Unsupported as error:
        raise _too_old(what) from error


async def check_service(rpc: Rpc, reference: str, service: str, *, rank: int = 0) -> None:
    """Raise NoSuchService unless something listens there; otherwise as `open_tunnel`."""
    target = pb.TunnelTarget(session=reference, rank=rank, service=service, only_checks=True)
    async with _open(rpc, _TO_SESSION, target):
        pass


async def processes(rpc: Rpc, reference: str, *, rank: int = 0) -> pb.ReplicaProcesses:
    """Return a replica's current processes. Raises as `open_tunnel`; Unsupported: the control plane is too old."""
    said = await _asked_agent(
        rpc, reference, rank, agent_services.PROCESSES, b"", what="the processes of sessions"
    )
    return _understood(pb.ReplicaProcesses, said)


async def stacks(
    rpc: Rpc, reference: str, *, rank: int = 0, with_locals: bool = False
) -> pb.ReplicaStacks:
    """Return the stacks of a replica's Python programs. Raises as `processes`."""
    request = pb.StacksRequest(with_locals=with_locals).SerializeToString()
    said = await _asked_agent(
        rpc, reference, rank, agent_services.STACKS, request, what="the stacks of sessions"
    )
    return _understood(pb.ReplicaStacks, said)


async def _asked_agent(
    rpc: Rpc, reference: str, rank: int, service: str, request: bytes, *, what: str
) -> bytes:
    """Return the response of an agent's service."""
    said = bytearray()
    try:
        async with (
            asyncio.timeout(rpc.deadline_s),
            open_agent_service(rpc, reference, service, rank=rank, what=what) as tunnel,
        ):
            if request:
                await tunnel.write(request)
            await tunnel.end()
            while data := await tunnel.read():
                said += data
                if len(said) > _MOST_ANSWER_BYTES:
                    raise NodeUnavailable("the node's answer is too long")
        return bytes(said)
    except TimeoutError as error:
        raise NodeUnavailable("the node did not answer in time") from error


@asynccontextmanager
async def open_agent_service(
    rpc: Rpc, reference: str, service: str, *, rank: int, what: str, ssh_host: str = ""
) -> AsyncIterator[Tunnel]:
    """As `open_tunnel`, to a service of the agent itself. Also raises Unsupported: the control plane is too old."""
    try:
        async with open_tunnel(rpc, reference, service, rank=rank, ssh_host=ssh_host) as tunnel:
            yield tunnel
    except NoSuchService as error:
        if service in error.message:  # the control plane does not know it
            raise _too_old(what) from error
        raise
    except InvalidRequest as error:
        # Control planes without services of agents reject the name as a socket's.
        if not error.message.endswith(" is no name of a service"):
            raise
        raise _too_old(what) from error


def _too_old(what: str) -> Unsupported:
    return Unsupported(
        f"this control plane does not offer {what}", why="it is older than this program"
    )


def _understood(kind: type[MessageT], said: bytes) -> MessageT:
    try:
        return kind.FromString(said)
    except DecodeError as error:
        raise NodeUnavailable("the node's answer cannot be understood") from error


@asynccontextmanager
async def _open(rpc: Rpc, way: _Way, target: Any) -> AsyncIterator[Tunnel]:
    async with AsyncExitStack() as held:
        try:
            async with asyncio.timeout(rpc.deadline_s):
                tunnel = await _opened(rpc, way, target, held)
        except TimeoutError as error:
            raise Unavailable("the control plane did not answer in time") from error
        yield tunnel
        await tunnel.close()


async def _opened(rpc: Rpc, way: _Way, target: Any, held: AsyncExitStack) -> Tunnel:
    """Open the tunnel through the first available control plane; `held` closes it."""
    failure = Unavailable("nobody was asked")
    for address in rpc.ways.round():
        try:
            return await _opened_at(rpc, address, way, target, held)
        except Unavailable as error:
            rpc.ways.failed(address)
            failure = error
    raise failure


async def _opened_at(
    rpc: Rpc, address: str, way: _Way, target: Any, held: AsyncExitStack
) -> Tunnel:
    now = asyncio.get_running_loop().time()
    target.boot_id, target.uses_relay = boot_id(), now >= rpc.ways.avoids_relay_until
    is_first = True
    while True:
        call: Any = rpc.duplex(way.method, way.request, way.response, address=address)
        async with AsyncExitStack() as calling:
            calling.callback(call.cancel)
            tunnel = Tunnel(call, way.request)
            if not is_first:
                await tunnel.refused_at_once()
            try:
                direct = await tunnel.begin(target)
            except Unavailable:
                if not (is_first and tunnel.ended_under_write):
                    raise
                # refused during a write: the retry waits for the reason before it writes
                is_first = False
                continue
            if direct is not None:
                beside = await _directly(tunnel, direct, calling)
                if beside is None:
                    _without(direct, target)
                    if not direct.socket:
                        rpc.ways.avoids_relay_until = now + _RELAY_AVOIDED_FOR_S
                    continue
                tunnel = beside
            await held.enter_async_context(calling.pop_all())
            return tunnel


def _without(direct: pb.DirectWay, target: Any) -> None:
    """Stop requesting an unreachable way. Raises Unavailable if it was not requested."""
    if direct.socket and target.boot_id:
        target.boot_id = ""
    elif target.uses_relay and not direct.socket:
        target.uses_relay = False
    else:
        raise Unavailable("the tunnel broke")


async def _directly(tunnel: Tunnel, direct: pb.DirectWay, calling: AsyncExitStack) -> Tunnel | None:
    """Return the tunnel past the control plane, open while its call is; None if unreachable."""
    found = await connected(direct.socket, direct.key) if direct.socket else await met(direct)
    if found is None:
        return None
    call, connection = found

    def end() -> None:
        connection.shut(socket.SHUT_RDWR)
        # after the cancellation of pending reads and writes
        asyncio.get_running_loop().call_soon(connection.close)

    calling.callback(end)
    holding = asyncio.create_task(tunnel.held(), name="tunnel.held")
    calling.callback(holding.cancel)

    def ended(over: asyncio.Task[None]) -> None:
        error = None if over.cancelled() else over.exception()
        if isinstance(error, ClientError):
            call.break_off(error)

    holding.add_done_callback(ended)
    return Tunnel(call, Came)
