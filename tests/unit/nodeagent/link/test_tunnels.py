"""Tunnels of a node: real Unix sockets on one side, a scripted control plane on the other."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.link import pacing, tunnels
from nodeagent.link.channels import Link
from nodeagent.link.outbox import replica_message
from nodeagent.link.pacing import Pacing
from nodeagent.link.services import (
    MOST_OF_NODE,
    MOST_OF_REPLICA,
    MOST_ON_NODE,
    MOST_PROGRAMS,
    RunningReplica,
    Services,
    ServiceUnreachable,
    Stream,
)
from nodeagent.link.tunnels import Tunnels, connect
from nsml.common.clock import SystemClock
from nsml.spec import agent_services
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import agents_pb2_grpc
from tests.support.scripted_platform import session_id
from tests.unit.nodeagent.replica.test_user_sockets import Trap, send

REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
FRAME = 64 << 10
EOF: Any = grpc.aio.EOF

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Far:
    """One tunnel as the control plane sees it."""

    def __init__(self, requests: AsyncIterator[pb.TunnelRequest]) -> None:
        self._requests = requests
        self.down: asyncio.Queue[pb.TunnelResponse | None] = asyncio.Queue()
        self.is_over = asyncio.Event()

    async def read(self) -> pb.TunnelRequest | None:
        return await anext(self._requests, None)

    async def heard(self) -> bytes:
        """All up to the end."""
        data = b""
        while not (frame := await self.read()).end:  # type: ignore[union-attr]
            data += frame.data  # type: ignore[union-attr]
        return data

    def say(self, data: bytes = b"", **more: bool) -> None:
        self.down.put_nowait(pb.TunnelResponse(data=data, **more))


class Platform(agents_pb2_grpc.AgentServiceServicer):
    """Takes every tunnel that is dialled."""

    def __init__(self) -> None:
        self.dialled: dict[str, asyncio.Future[tuple[Far, pb.TunnelRequest]]] = {}
        self.peers: set[str] = set()

    def expect(self, tunnel_id: str) -> asyncio.Future[tuple[Far, pb.TunnelRequest]]:
        self.dialled[tunnel_id] = asyncio.get_running_loop().create_future()
        return self.dialled[tunnel_id]

    async def Tunnel(self, requests: Any, context: Any) -> AsyncIterator[pb.TunnelResponse]:
        assert ("authorization", "Bearer secret") in context.invocation_metadata()
        self.peers.add(context.peer())
        frames = aiter(requests)
        first = await anext(frames)
        far = Far(frames)
        self.dialled[first.tunnel_id].set_result((far, first))
        try:
            while (frame := await far.down.get()) is not None:
                yield frame
        finally:
            far.is_over.set()


class Bench:
    def __init__(
        self,
        platform: Platform,
        tunnels: Tunnels,
        folder: ReplicaFolder,
        ended: asyncio.Queue[ReplicaId],
    ) -> None:
        self.ended = ended
        self.platform = platform
        self.tunnels = tunnels
        self.folder = folder
        self._count = 0

    async def dialled(
        self, service: str = "web", replica: ReplicaId | None = REPLICA
    ) -> tuple[Far, pb.TunnelRequest]:
        self._count += 1
        name = f"t{self._count}"
        dialled = self.platform.expect(name)
        where = None if replica is None else replica_message(replica)
        order = pb.OpenTunnel(tunnel_id=name, replica=where, service=service)
        self.tunnels.open(order)
        return await asyncio.wait_for(dialled, 60)

    async def open(self, service: str = "web") -> Far:
        far, first = await self.dialled(service)
        assert first.error == ""
        return far

    async def refused(self, service: str = "web", replica: ReplicaId | None = REPLICA) -> str:
        far, first = await self.dialled(service, replica)
        assert await far.read() is None
        far.down.put_nowait(None)
        return first.error

    def path(self, service: str = "web") -> str:
        return str(self.folder.tunnel / service)


@asynccontextmanager
async def program(path: str, serve: Serve) -> AsyncIterator[None]:
    """A program that serves each connection with `serve` and closes it."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(accepted, path)
    try:
        yield
    finally:
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(FRAME):
        writer.write(data)
        await writer.drain()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short path: names of sockets have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="nsml-") as place:
        yield Path(place)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    platform = Platform()
    server = grpc.aio.server()
    agents_pb2_grpc.add_AgentServiceServicer_to_server(platform, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    folder = ReplicaFolders(tmp_path).of(REPLICA)
    folder.create()
    link = Link([f"127.0.0.1:{port}"], channel_factory=_channel, token=lambda: "secret")
    staying = Staying()
    async with _tunnels(link, staying) as tunnels:
        with tunnels.reachable(REPLICA, folder):
            yield Bench(platform, tunnels, folder, staying.ended)
    await server.stop(None)


async def _turn(replica: RunningReplica, stream: Stream) -> None:
    """A service of the agent: everything backwards, behind where the replica is."""
    said = b""
    while data := await stream.read():
        said += data
    await stream.write(replica.folder.path.name.encode() + b" " + said[::-1])


async def _echo(_: RunningReplica, stream: Stream) -> None:
    """A service that says what it hears, in small pieces."""
    while data := await stream.read():
        for at in range(0, len(data), FRAME):
            await stream.write(data[at : at + FRAME])


async def _echo_on_node(stream: Stream) -> None:
    """A service for the node itself."""
    while data := await stream.read():
        await stream.write(data)


class Staying:
    """A service that reads nothing and never ends by itself; `ended` has those that were ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Queue[ReplicaId]()

    async def serve(self, replica: RunningReplica, stream: Stream) -> None:
        try:
            await stream.write(b"here")
            await asyncio.Event().wait()
        finally:
            self.ended.put_nowait(replica.id)


def _tunnels(link: Link, staying: Staying | None = None) -> Tunnels:
    services = Services(
        {
            "agent.turn": _turn,
            "agent.stay": (staying or Staying()).serve,
            agent_services.FILES: _echo,
            agent_services.SSH: _echo,
        },
        node_services={"agent.node-echo": _echo_on_node, "agent.node-off": _echo_on_node},
        off={"agent.node-off": "its setting does not allow it"},
    )
    return Tunnels(link, clock=SystemClock(), services=services)


def _channel(address: str, **_: bool) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))


async def test_a_step_of_a_submission_is_closed_whatever_is_ordered(bench: Bench) -> None:
    async with program(bench.path(), echo):
        for service in ("web", "8080", "agent.turn", agent_services.FILES, agent_services.SSH):
            with bench.tunnels.closed(REPLICA):
                error = await bench.refused(service)
            assert error == "it is a step of a submission, into which nobody reaches", service
        await bench.open()
        await bench.open("agent.turn")


async def test_bytes_pass_both_ways_and_each_way_ends_by_itself(bench: Bench) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.read()
        writer.write(b"you said " + question)
        await writer.drain()

    async with program(bench.path(), serve):
        far = await bench.open()
        far.say(b"hel")
        far.say(b"lo", end=True)
        assert await far.heard() == b"you said hello"
        assert await far.read() is None
        far.down.put_nowait(None)
        await far.is_over.wait()


async def test_the_program_may_end_first(bench: Bench) -> None:
    received = asyncio.Queue[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"banner")
        writer.write_eof()
        received.put_nowait(await reader.read())

    async with program(bench.path(), serve):
        far = await bench.open()
        assert await far.heard() == b"banner"
        far.say(b"still ")
        far.say(b"listening", end=True)
        assert await received.get() == b"still listening"
        assert await far.read() is None


async def test_what_a_program_said_before_it_went_arrives_whatever_is_sent_to_it(
    bench: Bench,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"too large")  # and closes with bytes unread: the connection is reset

    async with program(bench.path(), serve):
        far = await bench.open()
        for _ in range(40):
            far.say(b"x" * FRAME)
        assert await far.heard() == b"too large"
        assert await far.read() is None
        assert not far.is_over.is_set()
        far.down.put_nowait(None)
        await far.is_over.wait()


async def test_a_client_that_takes_nothing_more_closes_the_programs_connection(
    bench: Bench,
) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with pytest.raises(ConnectionError):
            await _speak_on(writer)
        ended.set()

    async with program(bench.path(), serve):
        far = await bench.open()
        assert await far.read()
        far.say(end=True, gone=True)
        while await far.read():
            pass
        await ended.wait()
        far.down.put_nowait(None)


async def _speak_on(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * FRAME)
        await writer.drain()


@pytest.mark.parametrize("how", ["over", "broken"])
async def test_the_end_of_the_call_closes_the_programs_connection(bench: Bench, how: str) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()

    async with program(bench.path(), serve):
        far = await bench.open()
        if how == "over":
            far.down.put_nowait(None)
        else:
            far.down.put_nowait("a defect")  # type: ignore[arg-type]
        await ended.wait()


async def test_the_end_of_the_call_is_heard_of_a_program_that_takes_nothing(bench: Bench) -> None:
    shut = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").shutdown(socket.SHUT_RD)
        shut.set()
        await asyncio.Event().wait()

    async with program(bench.path(), serve):
        far = await bench.open()
        await shut.wait()
        far.say(b"nobody hears it")
        far.down.put_nowait(None)
        async with asyncio.timeout(60):
            while bench.tunnels._open:  # noqa: ASYNC110 - looked at from outside
                await asyncio.sleep(0.01)


async def test_ten_megabytes_there_and_back_on_many_at_once(bench: Bench) -> None:
    async def one(number: int) -> None:
        far = await bench.open()
        sent = bytes([number]) + os.urandom(1 << 20)
        for start in range(0, len(sent), FRAME):
            far.say(sent[start : start + FRAME])
        far.say(end=True)
        assert await far.heard() == sent

    async with program(bench.path(), echo), asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(one(number))
    assert len(bench.platform.peers) == 10  # a connection each


async def test_a_program_with_a_short_queue_is_waited_for(bench: Bench) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(bench.path())
    listener.listen(0)
    listener.settimeout(60)
    dialling = [asyncio.create_task(bench.dialled()) for _ in range(4)]
    await asyncio.wait(dialling, return_when=asyncio.FIRST_COMPLETED)
    accepted = [await asyncio.to_thread(listener.accept) for _ in range(4)]
    assert all(not first.error for _, first in await asyncio.gather(*dialling))
    for connection, _ in accepted:
        connection.close()
    listener.close()


async def test_a_program_that_does_not_read_holds_the_far_side_back(bench: Bench) -> None:
    going = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await going.wait()
        writer.write(b"%d" % len(await reader.read()))

    async with program(bench.path(), serve):
        far = await bench.open()
        for _ in range(640):
            far.say(b"x" * FRAME)
        far.say(end=True)
        before = -1
        while before != far.down.qsize():  # until nothing moves any more
            before = far.down.qsize()
            await asyncio.sleep(0.3)
        assert before > 320, "20 MB went to a program that reads nothing"
        going.set()
        assert await far.heard() == b"%d" % (640 * FRAME)


async def test_nobody_listens(bench: Bench) -> None:
    assert "No such file" in await bench.refused()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(bench.path())
    listener.close()
    assert "refused" in await bench.refused()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../socket", "a/b", "A", "x" * 33, "web\n", "web\0", "agent.turn"]
)
async def test_other_names_are_refused(bench: Bench, name: str) -> None:
    async with program(str(bench.folder.run / "socket"), echo):
        with pytest.raises(ServiceUnreachable, match="name"):
            await connect(bench.folder.run, name, SystemClock())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")
async def test_a_socket_of_another_user_is_not_reached(bench: Bench) -> None:
    async with program(bench.path(), echo):
        bench.folder.tunnel.chmod(0o777)
        os.chown(bench.folder.tunnel, 1_912_345_678, -1)
        assert "no socket of its own" in await bench.refused()


async def test_links_files_and_folders_lead_nowhere(bench: Bench, tmp_path: Path) -> None:
    """A program must not make the agent connect to what it cannot reach itself."""
    outside = str(tmp_path / "outside")
    reached = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()

    tunnel = bench.folder.tunnel
    async with program(outside, serve):
        (tunnel / "soft").symlink_to(outside)
        assert "no socket of its own" in await bench.refused("soft")
        os.link(outside, tunnel / "hard")
        (tunnel / "file").touch()
        (tunnel / "folder").mkdir()
        os.mkfifo(tunnel / "fifo")
        for name in ("hard", "file", "folder", "fifo"):
            assert "no socket of its own" in await bench.refused(name)
        (tmp_path / "elsewhere").mkdir()
        async with program(str(tmp_path / "elsewhere" / "web"), serve):
            tunnel.rename(tunnel.with_name("before"))
            tunnel.symlink_to(tmp_path / "elsewhere")
            assert await bench.refused() != ""
    assert not reached.is_set()


async def test_a_replica_that_does_not_run_here_has_no_services(bench: Bench) -> None:
    other = ReplicaId(session_id=session_id(2), attempt=1, rank=0)
    later = ReplicaId(session_id=REPLICA.session_id, attempt=2, rank=0)
    async with program(bench.path(), echo):
        for replica in (other, later):
            assert "does not run here" in await bench.refused(replica=replica)
        dialled = bench.platform.expect("bad")
        bench.tunnels.open(pb.OpenTunnel(tunnel_id="bad", service="web"))
        far, first = await dialled
        assert "does not run here" in first.error
        far.down.put_nowait(None)


async def test_the_end_of_a_replica_ends_its_tunnels(bench: Bench, tmp_path: Path) -> None:
    other = ReplicaId(session_id=session_id(2), attempt=1, rank=0)
    folder = ReplicaFolders(tmp_path).of(other)
    folder.create()
    stopped = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"last words")
        await stopped.wait()

    async with program(str(folder.tunnel / "web"), serve):
        with bench.tunnels.reachable(other, folder):
            far, first = await bench.dialled(replica=other)
            assert not first.error
        stopped.set()
        assert await far.heard() == b"last words"
        assert await far.read() is None
        assert "does not run here" in await bench.refused(replica=other)


async def test_an_agent_that_ends_breaks_its_tunnels(tmp_path: Path, bench: Bench) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()

    async with program(bench.path(), serve):
        async with _tunnels(bench.tunnels._link) as own:
            with own.reachable(REPLICA, bench.folder):
                dialled = bench.platform.expect("own")
                own.open(
                    pb.OpenTunnel(tunnel_id="own", replica=replica_message(REPLICA), service="web")
                )
                far, _ = await dialled
        await ended.wait()
        await far.is_over.wait()


async def test_a_connection_breaks_soon_only_where_there_is_another_control_plane() -> None:
    made: list[tuple[str, bool, bool]] = []

    def factory(address: str, *, is_hasty: bool = False, is_own: bool = False) -> grpc.aio.Channel:
        made.append((address, is_hasty, is_own))
        return _channel(address)

    async def dial() -> None:
        async with link.dial("AgentService/Tunnel", pb.TunnelRequest, pb.TunnelResponse):
            pass

    link = Link(["127.0.0.1:1"], channel_factory=factory)
    link.warm()
    await dial()
    assert made == [("127.0.0.1:1", False, False), ("127.0.0.1:1", False, True)]
    link.learn(["127.0.0.1:2"])
    made.clear()
    link.warm()
    await dial()
    one, two = "127.0.0.1:1", "127.0.0.1:2"
    assert sorted(made) == [(one, True, False), (one, True, True), (two, True, False)]
    await link.close()


async def test_a_control_plane_that_is_gone_harms_nobody(bench: Bench) -> None:
    link = Link(["127.0.0.1:1"], channel_factory=_channel)
    async with program(bench.path(), echo), _tunnels(link) as tunnels:
        with tunnels.reachable(REPLICA, bench.folder):
            tunnels.open(
                pb.OpenTunnel(tunnel_id="x", replica=replica_message(REPLICA), service="web")
            )
            async with asyncio.timeout(60):
                while tunnels._open:  # noqa: ASYNC110 - looked at from outside
                    await asyncio.sleep(0.01)


async def test_descriptors_that_take_an_hour_to_close_hold_up_no_other_tunnel(
    bench: Bench,
) -> None:
    with Trap() as trap, socket.socket(socket.AF_UNIX) as hostile:
        hostile.bind(bench.path("hostile"))
        hostile.listen()
        hostile.settimeout(60)
        far = await bench.open("hostile")
        accepted, _ = await asyncio.to_thread(hostile.accept)
        # in a thread: where the agent was faster it is this end that waits
        threading.Thread(target=send, args=(accepted, [trap]), daemon=True).start()
        async with program(bench.path(), echo):
            other = await bench.open()
            other.say(b"hello", end=True)
            assert await other.heard() == b"hello"
        far.down.put_nowait(None)
        await far.is_over.wait()
        accepted.close()
        assert not trap.was_waited_for


async def test_a_service_of_the_agent_speaks_both_ways(bench: Bench) -> None:
    far = await bench.open("agent.turn")
    far.say(b"abc" * FRAME)
    far.say(b"d", end=True)
    assert await far.heard() == bench.folder.path.name.encode() + b" d" + b"cba" * FRAME
    assert await far.read() is None
    far.down.put_nowait(None)
    await far.is_over.wait()


async def test_a_program_that_prints_without_end_is_slowed_and_a_copy_is_not(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    monkeypatch.setattr(pacing, "FREE_BYTES", 10 * FRAME)
    slowed = asyncio.Event()

    async def stay(*_: object) -> None:
        slowed.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Pacing, "wait", stay)
    copied, printed = [await bench.open(one) for one in (agent_services.FILES, agent_services.SSH)]
    for far in (copied, printed):
        far.say(b"a" * 40 * FRAME)
    heard = b""
    while len(heard) < 40 * FRAME:
        heard += (await copied.read()).data  # type: ignore[union-attr]
    async with asyncio.timeout(60):
        await slowed.wait()


async def test_a_program_cannot_take_the_place_of_a_service_of_the_agent(bench: Bench) -> None:
    async with program(bench.path("agent.turn"), echo), program(bench.path("agent.new"), echo):
        far = await bench.open("agent.turn")
        far.say(b"x", end=True)
        assert await far.heard() == bench.folder.path.name.encode() + b" x"
        assert "does not offer agent.new" in await bench.refused("agent.new")


async def test_whether_a_service_is_offered_can_be_asked_alone(bench: Bench) -> None:
    dialled = bench.platform.expect("asks")
    bench.tunnels.open(
        pb.OpenTunnel(
            tunnel_id="asks",
            replica=replica_message(REPLICA),
            service="agent.stay",
            only_checks=True,
        )
    )
    far, first = await asyncio.wait_for(dialled, 60)
    assert first.error == ""
    assert await far.read() is None
    assert bench.ended.empty()


async def test_services_of_the_agent_end_with_the_replica(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: only programs get time to pass on their last words."""
    monkeypatch.setattr(tunnels, "_LINGER_S", 3_600.0)
    other = ReplicaId(session_id=session_id(2), attempt=1, rank=0)
    folder = ReplicaFolders(tmp_path).of(other)
    folder.create()
    with bench.tunnels.reachable(other, folder):
        far, first = await bench.dialled("agent.stay", other)
        assert first.error == ""
        assert (await far.read()).data == b"here"  # type: ignore[union-attr]
    async with asyncio.timeout(60):
        assert await bench.ended.get() == other
        await far.is_over.wait()
    assert "does not run here" in await bench.refused("agent.stay", other)


@pytest.mark.parametrize(
    ("how", "frames"), [("closes", 3), ("takes nothing more", 3), ("closes", 30)]
)
async def test_a_client_that_is_gone_ends_a_service(bench: Bench, how: str, frames: int) -> None:
    """Though that reads nothing, and has more before it than is kept for it."""
    far = await bench.open("agent.stay")
    for _ in range(frames):
        far.say(b"x" * FRAME)
    if how == "closes":
        far.down.put_nowait(None)
    else:
        far.say(gone=True)
        while await far.read() is not None:
            pass
        far.down.put_nowait(None)
    assert await asyncio.wait_for(bench.ended.get(), 60) == REPLICA


async def test_a_replica_has_so_many_services_open_and_no_more(bench: Bench) -> None:
    opened = [await bench.open("agent.stay") for _ in range(MOST_OF_REPLICA)]
    assert "open for this replica already" in await bench.refused("agent.stay")
    async with program(bench.path(), echo):
        await bench.open()  # programs' are not counted with them
    opened[0].down.put_nowait(None)
    async with asyncio.timeout(60):
        while (await bench.dialled("agent.stay"))[1].error:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.01)


def test_a_node_has_so_many_services_open_and_no_more() -> None:
    services = Services({"agent.turn": _turn})
    some = [ReplicaId(session_id=session_id(1), attempt=1, rank=rank) for rank in range(100)]
    with ExitStack() as held:
        for number in range(MOST_OF_NODE):
            held.enter_context(services.taken("agent.turn", some[number]))
        with (
            pytest.raises(ServiceUnreachable, match="on the node"),
            services.taken("agent.turn", some[99]),
        ):
            pass
    with services.taken("agent.turn", some[99]) as service:
        assert service is _turn


def test_programs_that_are_started_keep_nobody_from_looking() -> None:
    started = [agent_services.PROGRAM, agent_services.FILES, agent_services.SSH]
    services = Services(dict.fromkeys([*started, agent_services.PROCESSES], _turn))
    with ExitStack() as held:
        for one in islice(cycle(started), MOST_PROGRAMS):
            held.enter_context(services.taken(one, REPLICA))
        held.enter_context(services.taken(agent_services.PROCESSES, REPLICA))
        with (
            pytest.raises(ServiceUnreachable, match=f"{MOST_PROGRAMS} are open for this replica"),
            services.taken(agent_services.PROGRAM, REPLICA),
        ):
            pass


async def test_a_service_for_the_node_needs_no_replica(bench: Bench) -> None:
    far, first = await bench.dialled("agent.node-echo", None)
    assert first.error == ""
    far.say(b"hello", end=True)
    assert await far.heard() == b"hello"
    assert await far.read() is None
    far.down.put_nowait(None)
    await far.is_over.wait()


async def test_services_for_replicas_and_for_the_node_are_apart(bench: Bench) -> None:
    """What was decided for the one is not decided for the other."""
    assert "does not offer agent.node-echo" in await bench.refused("agent.node-echo")
    assert "does not offer agent.turn" in await bench.refused("agent.turn", None)
    assert "does not run here" in await bench.refused("web", None)
    async with program(bench.path("agent.node-echo"), echo):
        assert "does not offer agent.node-echo" in await bench.refused("agent.node-echo")


async def test_what_is_turned_off_is_refused_with_the_reason(bench: Bench) -> None:
    assert await bench.refused("agent.node-off", None) == "its setting does not allow it"


async def test_a_node_has_so_many_services_for_itself_open_and_no_more(bench: Bench) -> None:
    opened = [(await bench.dialled("agent.node-echo", None))[0] for _ in range(MOST_ON_NODE)]
    assert f"{MOST_ON_NODE} are open on the node" in await bench.refused("agent.node-echo", None)
    opened[0].down.put_nowait(None)
    async with asyncio.timeout(60):
        while (await bench.dialled("agent.node-echo", None))[1].error:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
