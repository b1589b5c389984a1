"""OpenTunnel and Tunnel joined, through real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from controlplane.access.secret import parse_secret
from controlplane.domain.identity import Role
from controlplane.history.values import AuditQuery
from controlplane.tunnels import calls, tunnels
from controlplane.tunnels.frames import FRAME_BYTES
from nsml.spec import agent_services
from nsml.v1 import agents_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, say_first, until
from tests.unit.controlplane.services.test_sessions import refusal

EOF: Any = grpc.aio.EOF
FRAME = 64 << 10


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


async def running(rig: Rig, user: Stubs, **submission: Any) -> tuple[Agent, pb.Session]:
    agent = await (await rig.agent()).connect()
    session = await user.submit(**submission)
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    return agent, await user.reaches(session.id, "RUNNING")


async def begin(user: Stubs, session: str, service: str = "web", rank: int = 0) -> Any:
    call = user.sessions._stub.OpenTunnel(metadata=user.metadata, timeout=60)
    target = pb.TunnelTarget(session=session, rank=rank, service=service)
    await say_first(call, pb.OpenTunnelRequest(target=target))
    return call


async def dial(agent: Agent, error: str = "") -> Any:
    await until(lambda: _asked(agent), "the agent is asked")
    order = agent.tunnels.pop(0)
    call = agent.stubs.agents._stub.Tunnel(metadata=agent.stubs.metadata, timeout=60)
    await call.write(agents_pb2.TunnelRequest(tunnel_id=order.tunnel_id, error=error))
    return call


async def _asked(agent: Agent) -> bool:
    return bool(agent.tunnels)


async def joined(rig: Rig, user: Stubs) -> tuple[Any, Any]:
    """The client's and the agent's call of an open tunnel."""
    agent, session = await running(rig, user)
    client = await begin(user, session.name)
    program = await dial(agent)
    assert await client.read() == pb.OpenTunnelResponse()
    return client, program


async def failure(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rest_of(call)
    return refusal(caught.value)[:2]


async def rest_of(call: Any) -> None:
    while await call.read() is not EOF:
        pass


async def all_of(call: Any) -> bytes:
    """Everything up to its end."""
    data = b""
    while not (frame := await call.read()).end:
        data += frame.data
    return data


def up(data: bytes = b"", **more: Any) -> agents_pb2.TunnelRequest:
    return agents_pb2.TunnelRequest(data=data, **more)


def down(data: bytes = b"", **more: Any) -> pb.OpenTunnelRequest:
    return pb.OpenTunnelRequest(data=data, **more)


async def test_bytes_pass_both_ways_and_each_way_ends_by_itself(rig: Rig) -> None:
    client, program = await joined(rig, await rig.user("kim"))
    await client.write(down(b"question"))
    assert (await program.read()).data == b"question"
    await client.write(down(end=True))
    assert (await program.read()).end
    await program.write(up(b"answer"))
    assert (await client.read()).data == b"answer"
    await program.write(up(b"and more", end=True))
    assert await all_of(client) == b"and more"
    assert await client.read() is EOF
    assert await program.read() is EOF
    assert await client.code() is await program.code() is grpc.StatusCode.OK


async def test_the_agent_is_told_which_replica_and_service(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim)
    call = await begin(kim, "@last", "tensor-board2")
    await until(lambda: _asked(agent), "the agent is asked")
    asked = agent.tunnels[0]
    assert asked.replica == agents_pb2.ReplicaId(session_id=session.id, attempt=1, rank=0)
    assert asked.service == "tensor-board2"
    call.cancel()


async def test_a_program_that_is_gone_loses_nothing_of_what_it_said(rig: Rig) -> None:
    client, program = await joined(rig, await rig.user("kim"))
    await program.write(up(b"x" * FRAME))
    await program.write(up(b"last words", end=True))
    await program.done_writing()
    assert await program.read() is EOF
    assert await all_of(client) == b"x" * FRAME + b"last words"
    assert (await client.read()).gone
    await client.done_writing()
    assert await client.read() is EOF
    assert await client.code() is grpc.StatusCode.OK


async def test_bytes_that_nobody_took_are_no_success(rig: Rig) -> None:
    """And what the program said before is there, whatever the client goes on to send."""
    client, program = await joined(rig, await rig.user("kim"))
    await program.write(up(b"too large", end=True))
    await program.done_writing()
    assert await program.read() is EOF
    for _ in range(20):
        await client.write(down(b"x" * FRAME))
    await client.write(down(end=True))
    assert await all_of(client) == b"too large"
    assert (await client.read()).gone
    await client.done_writing()
    assert await failure(client) == ("UNAVAILABLE", "UNAVAILABLE")


async def test_a_broken_agent_breaks_the_client(rig: Rig) -> None:
    client, program = await joined(rig, await rig.user("kim"))
    await program.write(up(b"a part"))
    assert (await client.read()).data == b"a part"
    program.cancel()
    assert await failure(client) == ("UNAVAILABLE", "UNAVAILABLE")


async def test_an_agent_that_closes_without_an_end_breaks_the_client(rig: Rig) -> None:
    client, program = await joined(rig, await rig.user("kim"))
    await program.done_writing()
    assert await failure(client) == ("UNAVAILABLE", "UNAVAILABLE")


async def test_a_broken_client_breaks_the_agent(rig: Rig) -> None:
    client, program = await joined(rig, await rig.user("kim"))
    client.cancel()
    assert await failure(program) == ("UNAVAILABLE", "UNAVAILABLE")


@pytest.mark.parametrize("is_stalled", [False, True])
@pytest.mark.parametrize("is_removed", [False, True])
async def test_one_in_which_nothing_passes_ends_with_the_right_to_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, is_removed: bool, is_stalled: bool
) -> None:
    """Also where its client takes nothing of what waits for it; the program's side hears of it in any case."""
    monkeypatch.setattr(tunnels, "LOOKS_EVERY_S", 0.05)
    client, program = await joined(rig, await rig.user("kim"))
    await client.write(down(b"begin"))
    assert (await program.read()).data == b"begin"
    writing = await stuck(lambda: program.write(up(b"x" * FRAME))) if is_stalled else None
    accounts = rig.plane.core.accounts
    await (accounts.delete_user("kim") if is_removed else accounts.revoke_all("kim"))
    assert await failure(program) == ("UNAVAILABLE", "UNAVAILABLE")
    assert await failure(client) == ("UNAUTHENTICATED", "NOT_SIGNED_IN")
    if writing is not None:
        await asyncio.wait([writing])
        writing.exception()


async def stuck(write: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Write until the other side takes no more; the last one."""
    for _ in range(1000):
        writing = asyncio.create_task(write())
        if not (await asyncio.wait([writing], timeout=0.5))[0]:
            return writing
    raise AssertionError("64 MB went nowhere")


async def test_a_client_that_has_sent_all_may_close(rig: Rig) -> None:
    client, program = await joined(rig, await rig.user("kim"))
    await client.write(down(b"all", end=True))
    await client.done_writing()
    assert await client.read() is EOF
    assert await client.code() is grpc.StatusCode.OK
    for _ in range(20):
        await program.write(up(b"x" * FRAME))
    assert await all_of(program) == b"all"
    assert (await program.read()).gone
    await program.write(up(end=True))
    await program.done_writing()
    assert await failure(program) == ("UNAVAILABLE", "UNAVAILABLE")


async def test_an_agent_that_does_not_leave_is_not_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for a program that reads nothing, and not see that its client is gone."""
    monkeypatch.setattr(calls, "LEAVES_WITHIN_S", 0.1)
    client, program = await joined(rig, await rig.user("kim"))
    await client.write(down(b"all", end=True))
    await client.done_writing()
    assert await client.read() is EOF
    assert await all_of(program) == b"all"
    assert (await program.read()).gone
    assert await program.read() is EOF


async def test_a_program_that_does_not_read_holds_the_client_back(rig: Rig) -> None:
    client, program = await joined(rig, await rig.user("kim"))
    count, stuck = 0, False
    while not stuck:
        assert count < 1000, "64 MB went nowhere"
        writing = asyncio.create_task(client.write(down(bytes([count % 256]) * FRAME)))
        stuck = not (await asyncio.wait([writing], timeout=0.5))[0]
        count += 1
    found = b""
    while len(found) < count * FRAME:
        found += (await program.read()).data
    await writing
    assert found == b"".join(bytes([number % 256]) * FRAME for number in range(count))


async def test_frames_are_bounded(rig: Rig) -> None:
    client, program = await joined(rig, await rig.user("kim"))
    await client.write(down(b"x" * (FRAME_BYTES + 1)))
    assert await failure(client) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert (await failure(program))[0] == "UNAVAILABLE"


async def test_who_may_open_one(rig: Rig) -> None:
    kim, lee = await rig.user("kim", team="lab"), await rig.user("lee", team="lab")
    stranger = await rig.user("stranger")
    root = await rig.user("root", role=Role.ADMIN)
    agent, session = await running(rig, kim, visibility=resources_pb2.VISIBILITY_TEAM)
    assert await failure(await begin(lee, session.name)) == ("PERMISSION_DENIED", "DENIED")
    assert await failure(await begin(stranger, session.name)) == ("NOT_FOUND", "NOT_FOUND")
    assert await failure(await begin(stranger, session.id)) == ("NOT_FOUND", "NOT_FOUND")
    assert not agent.tunnels
    allowed = await begin(root, session.name)
    program = await dial(agent)
    assert await allowed.read() == pb.OpenTunnelResponse()
    program.cancel()


async def test_the_trail_says_who_went_where(rig: Rig) -> None:
    kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
    agent, session = await running(rig, kim)
    went = ((kim, "web"), (root, agent_services.PROGRAM), (kim, agent_services.SSH))
    for who, service in went:
        call = await begin(who, session.id, service)
        program = await dial(agent)
        assert await call.read() == pb.OpenTunnelResponse()
        program.cancel()

    async def written() -> bool:
        await rig.plane.core.audit.flush()
        query = AuditQuery(method="SessionService/OpenTunnel", target=session.name)
        rows = [row for _, row in await rig.on.history.ledger.newest_audited(query)]
        return [(row.actor, row.target, row.outcome) for row in rows] == [
            ("kim", f"{session.name} agent.ssh in rank 0", "OK"),
            ("root", f"{session.name} agent.program in rank 0", "OK"),
            ("kim", f"{session.name} web in rank 0", "OK"),
        ]

    await until(written, "both are in the trail while they last")


async def test_what_cannot_be_opened_is_named(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim)
    call = await begin(kim, session.name, "nothing")
    assert await (await dial(agent, error="no such socket")).read() is EOF
    assert await failure(call) == ("FAILED_PRECONDITION", "NO_SUCH_SERVICE")
    assert (await failure(await begin(kim, session.name, "A")))[0] == "INVALID_ARGUMENT"
    assert (await failure(await begin(kim, session.name, rank=1)))[0] == "INVALID_ARGUMENT"
    assert (await failure(await begin(kim, "kim/None/99")))[0] == "NOT_FOUND"
    waiting = await kim.submit(resources=resources_pb2.Resources(gpu_thousandths=2000))
    assert (await failure(await begin(kim, waiting.name)))[0] == "FAILED_PRECONDITION"
    await agent.close()

    async def gone() -> bool:
        return rig.plane.core.contacts.link("a") is None

    await until(gone, "the stream has ended")
    assert await failure(await begin(kim, session.name)) == ("UNAVAILABLE", "NODE_UNAVAILABLE")


async def test_without_a_first_message_there_is_no_tunnel(rig: Rig) -> None:
    kim = await rig.user("kim")
    call = kim.sessions._stub.OpenTunnel(metadata=kim.metadata, timeout=60)
    await call.done_writing()
    assert (await failure(call))[0] == "INVALID_ARGUMENT"


async def test_only_the_node_that_was_asked_can_claim(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent, session = await running(rig, kim)
    other = await rig.agent("b")
    client = await begin(kim, session.name)
    await until(lambda: _asked(agent), "the agent is asked")
    other.tunnels = list(agent.tunnels)
    assert await failure(await dial(other)) == ("NOT_FOUND", "NOT_FOUND")
    program = await dial(agent)
    assert await client.read() == pb.OpenTunnelResponse()
    program.cancel()
    assert await failure(client) == ("UNAVAILABLE", "UNAVAILABLE")


# Past the control plane, where client and agent are on one machine.


async def direct(rig: Rig, user: Stubs) -> tuple[Any, Any, Agent]:
    """The client's and the agent's call of a tunnel whose bytes pass beside them."""
    agent, session = await running(rig, user)
    call = user.sessions._stub.OpenTunnel(metadata=user.metadata, timeout=60)
    target = pb.TunnelTarget(session=session.name, service="web", boot_id="boot1")
    await call.write(pb.OpenTunnelRequest(target=target))
    await until(lambda: _asked(agent), "the agent is asked")
    order = agent.tunnels.pop(0)
    program = agent.stubs.agents._stub.Tunnel(metadata=agent.stubs.metadata, timeout=60)
    await program.write(
        agents_pb2.TunnelRequest(tunnel_id=order.tunnel_id, direct_socket="nsml-agent-1")
    )
    first = await call.read()
    assert first.direct == pb.DirectWay(socket="nsml-agent-1", key=order.direct_key)
    assert len(order.direct_key) == 32
    return call, program, agent


async def test_both_ends_are_told_of_the_direct_way_and_end_together(rig: Rig) -> None:
    client, program, _ = await direct(rig, await rig.user("kim"))
    client.cancel()
    await rest_of(program)
    assert await program.code() is grpc.StatusCode.OK
    again, program, _ = await direct(rig, await rig.user("lee"))
    program.cancel()
    await rest_of(again)
    assert await again.code() is grpc.StatusCode.OK


async def test_a_direct_way_ends_with_the_rights_of_its_client(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "LOOKS_EVERY_S", 0.05)
    monkeypatch.setattr(calls, "LOOKS_EVERY_S", 0.05)
    client, program, _ = await direct(rig, await rig.user("kim"))
    await rig.plane.core.accounts.delete_user("kim")
    assert await failure(client) == ("UNAUTHENTICATED", "NOT_SIGNED_IN")
    await rest_of(program)
    assert await program.code() is grpc.StatusCode.OK


async def test_a_direct_way_ends_with_the_rights_of_its_node(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LOOKS_EVERY_S", 0.05)
    client, program, agent = await direct(rig, await rig.user("kim"))
    token = parse_secret(dict(agent.stubs.metadata)["authorization"].removeprefix("Bearer "))
    assert token is not None
    assert await rig.plane.core.accounts.revoke(token.fingerprint) == 1
    assert await failure(program) == ("UNAUTHENTICATED", "NOT_SIGNED_IN")
    await rest_of(client)


async def test_an_agent_that_awaits_nobody_has_the_bytes_pass_here(rig: Rig) -> None:
    agent, session = await running(rig, kim := await rig.user("kim"))
    call = kim.sessions._stub.OpenTunnel(metadata=kim.metadata, timeout=60)
    target = pb.TunnelTarget(session=session.name, service="web", boot_id="boot1")
    await call.write(pb.OpenTunnelRequest(target=target))
    program = await dial(agent)
    assert await call.read() == pb.OpenTunnelResponse()
    await program.write(up(b"here", end=True))
    assert await all_of(call) == b"here"
