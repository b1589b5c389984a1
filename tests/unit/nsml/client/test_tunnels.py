"""The client's end of a tunnel, against a control plane that does what a test says."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager

import grpc
import pytest

from nsml.client import errors
from nsml.client.calls import Client
from nsml.client.direct_tunnels import (
    DirectCall,
    LoopConnection,
    Reader,
    boot_id,
)
from nsml.client.rpc import Rpc
from nsml.client.tunnels import FRAME_BYTES, open_tunnel
from nsml.common.tunnel_keys import KEY_BYTES, check
from nsml.v1 import sessions_pb2 as pb
from nsml.v1 import sessions_pb2_grpc


class Scripted(sessions_pb2_grpc.SessionServiceServicer):
    """Runs `script` for each tunnel."""

    def __init__(self):
        self.script = None
        self.targets = []
        self.metadata = {}

    async def OpenTunnel(self, requests, context):
        self.metadata = dict(context.invocation_metadata())
        frames = aiter(requests)
        self.targets.append((await anext(frames)).target)
        async for answer in self.script(frames, context):
            yield answer


def frame(data=b"", **more):
    return pb.OpenTunnelResponse(data=data, **more)


@pytest.fixture
async def platform():
    scripted = Scripted()
    server = grpc.aio.server()
    sessions_pb2_grpc.add_SessionServiceServicer_to_server(scripted, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        scripted.client = Client(channel, token="secret", deadline_s=20)
        async with asyncio.timeout(60):
            yield scripted
    await server.stop(None)


async def echo(frames, context):
    yield frame()
    async for one in frames:
        assert len(one.data) <= FRAME_BYTES
        yield frame(one.data, end=one.end)


async def all_of(tunnel):
    found = b""
    while data := await tunnel.read():
        found += data
    return found


async def write_on(tunnel):
    while True:
        await tunnel.write(b"x" * FRAME_BYTES)


async def test_bytes_there_and_back(platform):
    platform.script = echo
    sent = bytes(range(256)) * 4096
    async with platform.client.sessions.open_tunnel("@last", "web", rank=2) as tunnel:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(all_of(tunnel))
            await tunnel.write(sent)
            await tunnel.end()
        assert reading.result() == sent
        assert await tunnel.read() == b""
    assert platform.targets == [
        pb.TunnelTarget(session="@last", service="web", rank=2, boot_id=boot_id(), uses_relay=True)
    ]
    assert platform.metadata["authorization"] == "Bearer secret"


async def test_a_part_is_never_taken_for_the_whole(platform):
    async def script(frames, context):
        yield frame()
        yield frame(b"a part")

    platform.script = script
    async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
        assert await tunnel.read() == b"a part"
        with pytest.raises(errors.Unavailable, match="broke"):
            await tunnel.read()


async def test_refusals_have_their_names(platform):
    async def script(frames, context):
        await context.abort(grpc.StatusCode.NOT_FOUND, "there is no session '1'")
        yield

    platform.script = script
    with pytest.raises(errors.NotFound, match="no session"):
        async with platform.client.sessions.open_tunnel("1", "web"):
            raise AssertionError("it was opened")


async def test_a_program_that_is_gone_is_known_and_told_to_who_writes(platform):
    closed = asyncio.Event()

    async def script(frames, context):
        yield frame()
        yield frame(b"bye", end=True)
        yield frame(gone=True)
        async for _ in frames:
            pass
        closed.set()

    platform.script = script
    async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
        assert await all_of(tunnel) == b"bye"
        await tunnel.wait_gone()
        with pytest.raises(errors.Unavailable, match="takes nothing more"):
            await tunnel.write(b"x")
        await tunnel.end()
    await closed.wait()


async def test_leaving_after_the_end_waits_until_everything_was_passed_on(platform):
    received = []

    async def script(frames, context):
        yield frame()
        received.extend([one.data async for one in frames])
        yield frame(end=True)

    platform.script = script
    async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
        await tunnel.write(b"all of it")
        await tunnel.end()
    assert received == [b"all of it", b""]


async def test_what_was_not_passed_on_is_told(platform):
    async def script(frames, context):
        yield frame()
        yield frame(end=True)
        async for _ in frames:
            pass
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection to the program broke")

    platform.script = script
    async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
        await tunnel.write(b"lost")
        await tunnel.end()
        with pytest.raises(errors.Unavailable, match="to the program"):
            await tunnel.close()


async def test_leaving_without_an_end_breaks_it_off(platform):
    broken = asyncio.Event()

    async def script(frames, context):
        try:
            yield frame()
            await asyncio.Event().wait()
        finally:
            broken.set()

    platform.script = script
    async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
        await tunnel.write(b"half")
    await broken.wait()


async def test_writing_into_a_call_that_is_over_says_so(platform):
    async def script(frames, context):
        yield frame()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the tunnel broke")

    platform.script = script
    async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
        with pytest.raises(errors.Unavailable):
            await write_on(tunnel)


async def test_a_control_plane_that_says_nothing_is_not_waited_for(platform):
    async def script(frames, context):
        await asyncio.Event().wait()
        yield

    platform.script = script
    platform.client.rpc.deadline_s = 0.2
    with pytest.raises(errors.Unavailable, match="in time"):
        async with platform.client.sessions.open_tunnel("1", "web"):
            raise AssertionError("it was opened")


async def test_processes_come_in_pieces(platform):
    sent = pb.ReplicaProcesses(
        processes=[pb.ReplicaProcess(pid=n, command="x" * 4096) for n in range(50)]
    )
    data = sent.SerializeToString()

    async def script(frames, context):
        yield frame()
        for start in range(0, len(data), FRAME_BYTES):
            yield frame(data[start : start + FRAME_BYTES])
        yield frame(end=True)
        assert [one.end async for one in frames] == [True]

    platform.script = script
    assert await platform.client.sessions.processes("@last", rank=1) == sent
    assert platform.targets == [
        pb.TunnelTarget(
            session="@last", service="agent.processes", rank=1, boot_id=boot_id(), uses_relay=True
        )
    ]


async def test_a_part_of_the_processes_is_not_taken_for_all(platform):
    async def script(frames, context):
        yield frame()
        yield frame(pb.ReplicaProcesses(left_out=1).SerializeToString())

    platform.script = script
    with pytest.raises(errors.Unavailable, match="broke"):
        await platform.client.sessions.processes("@last")


@pytest.mark.parametrize(
    ("part", "times"), [(b"\xff", 9), (b"x", 33 << 20)], ids=["no message", "endless"]
)
async def test_what_is_no_list_of_processes_is_refused(platform, part, times):
    data = part * times

    async def script(frames, context):
        yield frame()
        for start in range(0, len(data), FRAME_BYTES):
            yield frame(data[start : start + FRAME_BYTES])
        yield frame(end=True)
        async for _ in frames:
            pass

    platform.script = script
    with pytest.raises(errors.Unavailable, match="the node's answer"):
        await platform.client.sessions.processes("@last")


async def test_what_is_asked_of_a_node_goes_before_the_end(platform):
    sent = pb.ReplicaStacks(processes=[pb.ProcessStacks(pid=7, command="python")])

    async def script(frames, context):
        yield frame()
        asked = [await anext(frames), await anext(frames)]
        assert pb.StacksRequest.FromString(asked[0].data).with_locals
        assert [one.end for one in asked] == [False, True]
        yield frame(sent.SerializeToString())
        yield frame(end=True)
        assert [one async for one in frames] == []

    platform.script = script
    assert await platform.client.sessions.stacks("@last", with_locals=True) == sent


async def test_a_control_plane_that_knows_no_services_of_agents_is_called_too_old(platform):
    async def script(frames, context):
        said = "'agent.processes' is no name of a service"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, said)
        yield

    platform.script = script
    with pytest.raises(errors.Unsupported, match="does not offer the processes"):
        await platform.client.sessions.processes("@last")


# Past the control plane, where the agent is on this machine.


class Near:
    """An agent on this machine, for one client."""

    def __init__(self):
        self.key = os.urandom(KEY_BYTES)
        self.name = f"nsml-test-{os.urandom(8).hex()}"
        self.way = pb.DirectWay(socket=self.name, key=self.key)

    @asynccontextmanager
    async def awaits(self):
        """Its end of the connection."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.settimeout(0)
            listener.bind(f"\0{self.name}")
            listener.listen()
            came = loop.create_task(self._admitted(listener))
            try:
                yield came
            finally:
                connection, _ = await came
                connection.close()

    async def _admitted(self, listener):
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        connection = LoopConnection(accepted)
        reader = Reader(connection)
        await check(reader.exactly, connection.send, lambda _: self.key)
        call = DirectCall(connection, reader)
        await call.admit()
        return connection, call


async def test_bytes_pass_by_the_control_plane(platform):
    near, sent = Near(), os.urandom(3 * FRAME_BYTES)

    async def script(frames, context):
        yield frame(direct=near.way)
        yield frame()
        async for _ in frames:
            raise AssertionError("something passed here")

    platform.script = script
    opened = platform.client.sessions.open_tunnel("1", "web")
    async with near.awaits() as came, opened as tunnel, asyncio.TaskGroup() as group:
        _, agent = await came
        writing = group.create_task(tunnel.write(sent))
        found = b""
        while len(found) < len(sent):
            found += (await agent.read()).data
        assert found == sent
        await writing
        await tunnel.end()
        await agent.write(frame(b"answer", end=True))
        assert await all_of(tunnel) == b"answer"
        assert (await agent.read()).end
        # it can be left when the agent has said that all was taken
        leaving = group.create_task(tunnel.close())
        assert await agent.read() is grpc.aio.EOF
        await leaving


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, errors.NotSignedIn),
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
    ],
)
async def test_the_direct_way_ends_with_the_call_and_its_error(platform, code, error):
    near, ends = Near(), asyncio.Event()

    async def script(frames, context):
        yield frame(direct=near.way)
        await ends.wait()
        await context.abort(code, "no more")

    platform.script = script
    async with near.awaits() as came:
        async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
            _, agent = await came
            await agent.write(frame(b"before"))
            assert await tunnel.read() == b"before"
            ends.set()
            with pytest.raises(error):
                await tunnel.read()
        with pytest.raises(errors.Unavailable):
            await agent.read()


async def test_an_agent_that_is_killed_is_no_end(platform):
    near = Near()

    async def script(frames, context):
        yield frame(direct=near.way)
        async for _ in frames:
            pass

    platform.script = script
    opened = platform.client.sessions.open_tunnel("1", "web")
    async with near.awaits() as came, opened as tunnel:
        connection, agent = await came
        await agent.write(frame(b"a part"))
        connection.close()
        assert await tunnel.read() == b"a part"
        with pytest.raises(errors.Unavailable, match="broke"):
            await tunnel.read()


async def test_where_the_agent_cannot_be_reached_the_control_plane_is_the_way(platform):
    async def script(frames, context):
        if platform.targets[-1].boot_id:
            yield frame(direct=Near().way)
            await asyncio.Event().wait()
        async for one in echo(frames, context):
            yield one

    platform.script = script
    async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
        await tunnel.write(b"there")
        await tunnel.end()
        assert await all_of(tunnel) == b"there"
    assert [bool(one.boot_id) for one in platform.targets] == [True, False]


async def test_who_reaches_neither_the_agent_nor_a_relay_goes_through_the_control_plane(platform):
    async def script(frames, context):
        target = platform.targets[-1]
        if target.boot_id:
            yield frame(direct=Near().way)
        elif target.uses_relay:
            nowhere = pb.RelayWay(address="127.0.0.1:1", key=bytes(KEY_BYTES))
            yield frame(direct=pb.DirectWay(key=bytes(KEY_BYTES), relay=nowhere))
        else:
            async for one in echo(frames, context):
                yield one
            return
        await asyncio.Event().wait()

    platform.script = script
    async with platform.client.sessions.open_tunnel("1", "web") as tunnel:
        await tunnel.write(b"there")
        await tunnel.end()
        assert await all_of(tunnel) == b"there"
    others = Rpc(platform.client.rpc.ways)  # as a jump host has for each user
    async with open_tunnel(others, "1", "web"):
        pass  # the relay is not tried again at once
    asked = [(bool(one.boot_id), one.uses_relay) for one in platform.targets]
    assert asked[:3] == [(True, True), (False, True), (False, False)]
    assert asked[3:] == [(True, False), (False, False)]


async def test_a_way_that_was_not_asked_for_is_not_gone(platform):
    async def script(frames, context):
        yield frame(direct=Near().way)
        await asyncio.Event().wait()

    platform.script = script
    with pytest.raises(errors.Unavailable):
        async with platform.client.sessions.open_tunnel("1", "web"):
            pass
    assert len(platform.targets) == 2
