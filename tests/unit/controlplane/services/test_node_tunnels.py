"""OpenNodeTunnel and Tunnel joined, through real gRPC: who may, what is refused, what the trail has."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from controlplane.domain.identity import Role
from controlplane.history.values import AuditQuery
from controlplane.tunnels import tunnels
from nsml.spec import agent_services
from nsml.v1 import accounts_pb2, agents_pb2, nodes_pb2
from nsml.v1 import nodes_pb2 as pb
from tests.unit.controlplane.rig import Agent, Rig, Stubs, platform, say_first, until
from tests.unit.controlplane.services.test_leader_forwarding import two
from tests.unit.controlplane.services.test_tunnels import all_of, dial, failure, up

EOF: Any = grpc.aio.EOF


@pytest.fixture
async def rig():
    async with platform() as rig:
        yield rig


@pytest.fixture
async def agent(rig: Rig) -> Agent:
    return await (await rig.agent()).connect()


async def begin(user: Stubs, node: str = "a", service: str = agent_services.NODE_PROGRAM) -> Any:
    call = user.nodes._stub.OpenNodeTunnel(metadata=user.metadata, timeout=60)
    target = pb.NodeTunnelTarget(node=node, service=service)
    await say_first(call, pb.OpenNodeTunnelRequest(target=target))
    return call


def down(data: bytes = b"", **more: Any) -> pb.OpenNodeTunnelRequest:
    return pb.OpenNodeTunnelRequest(data=data, **more)


async def root_of(rig: Rig) -> Stubs:
    return await rig.user("root1", role=Role.ADMIN)


async def passes(client: Any, program: Any) -> None:
    """Both ways, to the end."""
    assert await client.read() == pb.OpenNodeTunnelResponse()
    await client.write(down(b"question", end=True))
    assert (await program.read()).data == b"question"
    assert (await program.read()).end
    await program.write(up(b"answer", end=True))
    assert await all_of(client) == b"answer"
    assert await client.read() is EOF
    assert await client.code() is await program.code() is grpc.StatusCode.OK


async def test_bytes_pass_both_ways(rig: Rig, agent: Agent) -> None:
    client = await begin(await root_of(rig))
    program = await dial(agent)
    await passes(client, program)


async def test_the_agent_is_asked_for_no_replica(rig: Rig, agent: Agent) -> None:
    call = await begin(await root_of(rig))

    async def asked() -> bool:
        return bool(agent.tunnels)

    await until(asked, "the agent is asked")
    assert not agent.tunnels[0].HasField("replica")
    assert agent.tunnels[0].service == agent_services.NODE_PROGRAM
    call.cancel()


async def test_administrators_may_and_nobody_else(rig: Rig, agent: Agent) -> None:
    kim, nobody = await rig.user("kim"), await root_of(rig)
    nobody.metadata = ()
    assert await failure(await begin(kim)) == ("PERMISSION_DENIED", "DENIED")
    assert (await failure(await begin(nobody)))[0] == "UNAUTHENTICATED"
    as_agent = await begin(agent.stubs)
    assert (await failure(as_agent))[0] == "PERMISSION_DENIED"
    assert not agent.tunnels


async def test_what_cannot_be_opened_is_named(rig: Rig, agent: Agent) -> None:
    root = await root_of(rig)
    assert await failure(await begin(root, "b")) == ("NOT_FOUND", "NOT_FOUND")
    assert (await failure(await begin(root, "No Node")))[0] == "INVALID_ARGUMENT"
    for service in ("web", agent_services.PROGRAM):
        refused = await failure(await begin(root, service=service))
        assert refused == ("FAILED_PRECONDITION", "NO_SUCH_SERVICE")
    call = await begin(root)
    assert await (await dial(agent, error="node_shell is off")).read() is EOF
    assert await failure(call) == ("FAILED_PRECONDITION", "NO_SUCH_SERVICE")
    await agent.close()

    async def gone() -> bool:
        return rig.plane.core.contacts.link("a") is None

    await until(gone, "the stream has ended")
    assert await failure(await begin(root)) == ("UNAVAILABLE", "NODE_UNAVAILABLE")


async def test_an_older_agent_is_not_asked(rig: Rig) -> None:
    abilities = [agents_pb2.AGENT_ABILITY_SERVICES]
    agent = await (await rig.agent("old", abilities=abilities, agent_version="0.1.0")).connect()
    refused = await failure(await begin(await root_of(rig), "old"))
    assert refused[0] == "FAILED_PRECONDITION"
    assert not agent.tunnels


async def test_a_node_that_takes_no_sessions_is_reached(rig: Rig, agent: Agent) -> None:
    root = await root_of(rig)
    await root.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a"))
    client = await begin(root)
    program = await dial(agent)
    await passes(client, program)


async def test_an_agent_that_is_gone_breaks_it(rig: Rig, agent: Agent) -> None:
    client = await begin(await root_of(rig))
    program = await dial(agent)
    assert await client.read() == pb.OpenNodeTunnelResponse()
    program.cancel()
    assert await failure(client) == ("UNAVAILABLE", "UNAVAILABLE")


async def test_one_in_which_nothing_passes_ends_with_the_token(
    rig: Rig, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "LOOKS_EVERY_S", 0.05)
    client = await begin(await root_of(rig))
    program = await dial(agent)
    assert await client.read() == pb.OpenNodeTunnelResponse()
    await rig.plane.core.accounts.revoke_all("root1")
    assert await failure(program) == ("UNAVAILABLE", "UNAVAILABLE")
    assert await failure(client) == ("UNAUTHENTICATED", "NOT_SIGNED_IN")


async def test_the_trail_has_it_before_anything_is_passed_on(rig: Rig, agent: Agent) -> None:
    kim, root = await rig.user("kim"), await root_of(rig)
    await failure(await begin(kim))
    client = await begin(root)
    program = await dial(agent)
    assert await client.read() == pb.OpenNodeTunnelResponse()
    await client.write(down(b"start it"))
    assert (await program.read()).data == b"start it"
    query = AuditQuery(method="NodeService/OpenNodeTunnel", actor="root1")
    [(_, row)] = await rig.on.history.ledger.newest_audited(query)
    assert (row.actor, row.outcome) == ("root1", "OK")
    assert row.target == f"a {agent_services.NODE_PROGRAM}"
    program.cancel()

    async def refusal_is_written() -> bool:
        query = AuditQuery(method="NodeService/OpenNodeTunnel", actor="kim")
        rows = [row for _, row in await rig.on.history.ledger.newest_audited(query)]
        return [(row.target, row.outcome) for row in rows] == [("a", "PERMISSION_DENIED")]

    await until(refusal_is_written, "the refusal is in the trail")


async def test_by_way_of_a_standby() -> None:
    async with two() as (leader, standby):
        root = await standby.also(await root_of(leader))
        agent = await (await leader.agent()).connect()
        client = await begin(root)
        program = await dial(agent)
        await passes(client, program)


async def test_who_is_no_administrator_any_more_passes_nothing_on(rig: Rig, agent: Agent) -> None:
    root, other = await root_of(rig), await rig.user("root2", role=Role.ADMIN)
    client = await begin(root)
    program = await dial(agent)
    assert await client.read() == pb.OpenNodeTunnelResponse()
    await client.write(down(b"before"))
    assert (await program.read()).data == b"before"
    await other.accounts.DeleteUser(accounts_pb2.DeleteUserRequest(name="root1"))
    await client.write(down(b"after"))
    assert (await failure(client))[0] == "UNAVAILABLE"
    with pytest.raises(grpc.aio.AioRpcError):
        await all_of(program)
