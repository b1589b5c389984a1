"""Programs in sessions and on nodes: what a client of them is told."""

import asyncio

import pytest

from nsml.client import errors
from nsml.client.direct_tunnels import boot_id
from nsml.client.programs import PIECE_BYTES, Output
from nsml.spec.frames import MOST_BYTES, framed
from nsml.v1 import nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.nsml.client.contract_server import ENDED


@pytest.fixture
def programs(server):
    server.state.add("kim/mnist/1")
    return server.state.programs


@pytest.fixture(params=["in a session", "on a node"])
def opened(request, client, server, programs):
    if request.param == "in a session":
        return lambda *argv, **more: client.sessions.open_program("@last", argv, rank=3, **more)
    server.state.nodes = [nodes_pb2.Node(name="gpu-1")]
    return lambda *argv, **more: client.nodes.open_program("gpu-1", argv, **more)


async def all_of(program):
    return [one async for one in program.output()]


@pytest.mark.parametrize(
    ("argv", "code"),
    [(("exit", "0"), 0), (("exit", "300"), 300), (("killed", "15"), 143), (("lost",), None)],
)
async def test_how_it_ended(opened, argv, code):
    async with opened(*argv) as program:
        assert program.exit_code is None
        assert await all_of(program) == []
        assert program.exit_code == code


async def test_what_it_writes_comes_in_its_order(opened):
    async with opened("both") as program:
        kinds = [kind for kind, _ in await all_of(program)]
    assert kinds == [Output.STANDARD, Output.ERRORS] * 3


async def test_input_of_any_length_goes_in_pieces(opened, programs):
    sent = bytes(range(256)) * 2048
    async with opened("cat") as program:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(all_of(program))
            await program.write(sent)
            await program.end_input()
        assert b"".join(data for _, data in reading.result()) == sent
    assert max(len(one.input) for one in programs.requests) == PIECE_BYTES


async def test_what_is_asked_for_arrives(opened, programs):
    async with opened("signals", "9", environment={"TERM": "vt100"}, terminal=(0, 80)) as it:
        await it.resize(30, 0)
        await it.signal(9)
        assert (await all_of(it))[-1] == (Output.STANDARD, b"signal 9\n")
        assert it.exit_code == 137
    [started], [target] = programs.started, programs.targets
    assert started.environment == {"TERM": "vt100"}
    where = {
        pb.TunnelTarget: pb.TunnelTarget(
            session="@last", rank=3, service="agent.program", boot_id=boot_id(), uses_relay=True
        ),
        nodes_pb2.NodeTunnelTarget: nodes_pb2.NodeTunnelTarget(
            node="gpu-1", service="agent.node-program", boot_id=boot_id(), uses_relay=True
        ),
    }
    assert target == where[type(target)]
    assert started.terminal == pb.TerminalSize(rows=1, columns=80)
    assert programs.requests[0].resize == pb.TerminalSize(rows=30, columns=1)


async def test_a_part_is_never_taken_for_the_whole(opened):
    async with opened("broken", terminal=(24, 80)) as program:
        output = program.output()
        assert await anext(output) == (Output.STANDARD, b"a part\n")
        with pytest.raises(errors.ConnectionLost, match="the connection to the program broke"):
            await anext(output)
        assert program.exit_code is None


async def test_a_refusal_says_why(opened, programs):
    programs.refusal = "its program is just beginning"
    with pytest.raises(errors.StateConflict) as refused:
        async with opened("cat"):
            raise AssertionError("it was started")
    assert refused.value.why == "its program is just beginning"


async def test_arguments_that_no_message_has_room_for_are_not_sent(opened, programs):
    with pytest.raises(errors.TooLarge, match="arguments"):
        async with opened("x" * MOST_BYTES):
            raise AssertionError("it was started")
    assert programs.started == []


async def test_leaving_ends_the_connection(opened, programs):
    async with opened("endless") as program:
        await anext(program.output())
    async with asyncio.timeout(60):
        while not programs.left:  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0.01)


async def test_a_node_that_does_not_answer_is_not_waited_for(client, programs, monkeypatch):
    await client.sessions.get("@last")  # connects
    programs.starts = False
    monkeypatch.setattr("nsml.client.programs._DEADLINES", 1.0 / client.rpc.deadline_s)
    with pytest.raises(errors.ConnectionLost, match="the node did not answer in time"):
        async with client.sessions.open_program("@last", ["cat"]):
            raise AssertionError("it was started")


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        framed(b"\xff"),
        framed(pb.ProgramResponse(output=b"early").SerializeToString()),
    ],
    ids=["no frames", "no message", "output before the start"],
)
async def test_an_answer_that_cannot_be_understood(opened, programs, answer):
    programs.answer = answer
    with pytest.raises(errors.ConnectionLost, match="cannot be understood"):
        async with opened("cat"):
            raise AssertionError("it was started")


async def test_a_session_that_does_not_run_has_none(client, server, programs):
    [session] = server.state.sessions.values()
    server.state.change(session, state=next(iter(ENDED)))
    with pytest.raises(errors.StateConflict, match="has ended"):
        async with client.sessions.open_program("@last", ["cat"]):
            raise AssertionError("it was started")


async def test_a_node_that_is_not_there_or_refuses_says_so(client, server):
    server.state.nodes = [nodes_pb2.Node(name="gpu-1")]
    server.state.no_node_shell.add("gpu-1")
    with pytest.raises(errors.NotFound, match="no node gpu-2"):
        async with client.nodes.open_program("gpu-2", ["cat"]):
            raise AssertionError("it was started")
    with pytest.raises(errors.NoSuchService, match="gpu-1 refuses") as refused:
        async with client.nodes.open_program("gpu-1", ["cat"]):
            raise AssertionError("it was started")
    assert "node_shell" in refused.value.why


async def test_a_control_plane_that_knows_no_programs_on_nodes_is_called_too_old(
    client, monkeypatch
):
    monkeypatch.setattr(
        "nsml.client.tunnels._Way.__new__",
        lambda cls, _, *kinds: tuple.__new__(cls, ("NodeService/Unknown", *kinds)),
    )
    with pytest.raises(errors.Unsupported, match="does not offer programs on nodes"):
        async with client.nodes.open_program("gpu-1", ["cat"]):
            raise AssertionError("it was started")
