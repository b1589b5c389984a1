"""Calls of those who ask a standby, and streams of those whose control plane stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from cli.local.ports import Held
from controlplane import plane as plane_module
from controlplane.access.authority import make_authority
from controlplane.access.current import set_caller
from controlplane.access.peers import SocketPeers
from controlplane.core import leader as leader_module
from controlplane.domain.errors import NotLeader, StateConflict
from controlplane.domain.identity import JumpHostCaller, Role, User
from controlplane.leadership.leader_forwarding import Relay
from nsml.common.clock import SystemClock
from nsml.spec.metadata import SSH_KEY
from nsml.v1 import nodes_pb2, nodes_pb2_grpc, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.support.proxy import Proxy
from tests.unit.controlplane.rig import Rig, one_leads, platform, serving, surroundings, until
from tests.unit.controlplane.services.test_sessions import refusal
from tests.unit.controlplane.services.test_tunnels import begin, dial, down, up

RELAY = (("nsml-relay", "1"),)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the next leader, and for those that it sends away, however busy the machine is."""
    monkeypatch.setattr(leader_module, "SENT_ON_WITHIN_S", 60.0)
    monkeypatch.setattr(plane_module, "_SUCCESSOR_WITHIN_S", 60.0)
    monkeypatch.setattr(plane_module, "_TOLD_WITHIN_S", 5.0)


@contextlib.asynccontextmanager
async def two(**other: Any) -> AsyncIterator[tuple[Rig, Rig]]:
    """The leader and a standby on one store, each reached at its own port."""
    async with surroundings(**other) as on, contextlib.AsyncExitStack() as stack:
        ports, rigs = stack.enter_context(Held()), []
        for name in ("one", "two"):
            peers = SocketPeers(make_authority(SystemClock()), name)
            stack.push_async_callback(peers.close)
            where = {"member": name, "instance": name, "address": f"127.0.0.1:{ports.free()}"}
            rig = await stack.enter_async_context(serving(replace(on, peers=peers), **where))
            rigs.append(rig)
            await until(lambda: one_leads(rigs[0]), "the first leads")
        leader, standby = rigs

        async def known() -> bool:
            return standby.plane.core.leading.leader_address() == leader.address

        await until(known, "the standby knows the leader")
        yield leader, standby


async def test_a_decision_is_made_by_the_leader_for_the_caller_alone() -> None:
    async with two() as (leader, standby):
        root = await standby.also(await leader.user("root1", role=Role.ADMIN))
        kim = await standby.also(await leader.user("kim"))
        await (await leader.agent()).connect()
        answer = await root.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a", reason="x"))
        assert answer.node.drain.asked_by == "root1"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kim.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a"))
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await root.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="b"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert "nsml node ls" in str(refusal(caught.value))


async def test_a_standby_asks_the_leader_whether_anything_is_free() -> None:
    gpu = resources_pb2.Resources(gpu_thousandths=1000)
    async with two() as (leader, standby):
        kim = await standby.also(await leader.user("kim"))
        await (await leader.agent(gpus=1)).connect()
        assert (await kim.submit(resources=gpu, no_queue=True)).owner == "kim"
        for only_asks in (False, True):
            spec = pb.SessionSpec(argv=["true"], resources=gpu, no_queue=True)
            asked = pb.CreateSessionRequest(request_id="r", spec=spec, validate_only=only_asks)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await kim.sessions.CreateSession(asked)
            assert "no whole GPU is free" in str(refusal(caught.value))


async def test_what_was_passed_on_is_not_passed_on_again() -> None:
    async with two() as (leader, standby):
        root = await standby.also(await leader.user("root1", role=Role.ADMIN))
        metadata = (*root.metadata, ("nsml-passed-on", "1"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await root.nodes._stub.DrainNode(
                nodes_pb2.DrainNodeRequest(name="a"), metadata=metadata, timeout=60
            )
        assert "NOT_LEADER" in str(refusal(caught.value))


async def test_one_that_hangs_holds_no_call_of_another_one() -> None:
    wanted = nodes_pb2.ListNodesRequest()
    async with platform() as rig, Proxy(rig.address) as proxy:
        peers = SocketPeers(make_authority(SystemClock()), "other")
        try:
            stub: Any = nodes_pb2_grpc.NodeServiceStub(peers.channel(proxy.address, is_tls=False))
            metadata = (await rig.user("kim")).metadata
            await stub.ListNodes(wanted, metadata=metadata)
            proxy.silence()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListNodes(wanted, metadata=metadata, timeout=60)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        finally:
            await peers.close()


async def test_a_standby_says_what_the_leader_hears_of_nodes() -> None:
    async with two() as (leader, standby):
        kim = await standby.also(await leader.user("kim"))
        agent = await (await leader.agent()).connect()
        answer = await kim.nodes.ListNodes(nodes_pb2.ListNodesRequest())
        assert [one.state for one in answer.nodes] == [nodes_pb2.NODE_STATE_READY]
        await agent.close()

        async def silent() -> bool:
            shown = await kim.nodes.GetNode(nodes_pb2.GetNodeRequest(name="a"))
            return shown.node.state == nodes_pb2.NODE_STATE_SILENT

        await until(silent, "the standby says that it is silent")


async def test_an_agent_that_asks_for_it_is_relayed_to_the_leader() -> None:
    async with two() as (leader, standby):
        kim = await leader.user("kim")
        agent = await standby.agent()
        agent.further = RELAY
        await agent.connect()
        assert agent.registered is not None
        assert leader.plane.core.contacts.link("a") is not None
        assert standby.plane.core.contacts.link("a") is None
        session = await kim.submit()
        [assignment] = await agent.assignments(1)
        await agent.report(assignment.replica, "RUNNING")
        await kim.reaches(session.id, "RUNNING")


async def test_an_agent_that_does_not_ask_is_told_where_the_leader_is() -> None:
    async with two() as (leader, standby):
        agent = await (await standby.agent()).connect()
        assert agent.registered is None
        assert agent.error is not None
        assert leader.address in str(refusal(agent.error))


async def test_a_tunnel_by_way_of_a_standby_on_both_sides() -> None:
    async with two() as (leader, standby):
        kim = await standby.also(await leader.user("kim"))
        agent = await standby.agent()
        agent.further = RELAY
        await agent.connect()
        session = await kim.submit()
        [assignment] = await agent.assignments(1)
        await agent.report(assignment.replica, "RUNNING")
        await kim.reaches(session.id, "RUNNING")
        client = await begin(kim, session.name)
        program = await dial(agent)  # at the standby, which did not ask for it
        assert await client.read() == pb.OpenTunnelResponse()
        await client.write(down(b"question", end=True))
        assert (await program.read()).data == b"question"
        await program.write(up(b"answer", end=True))
        assert (await client.read()).data == b"answer"


async def test_who_asks_while_nobody_leads_waits_for_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two() as (leader, standby):
        root = await standby.also(await leader.user("root1", role=Role.ADMIN))
        agent = await standby.agent()
        # The leader is known to be dead, and its successor not yet elected.
        monkeypatch.setattr(standby.plane.core.leading, "trust", lambda _: None)
        known = standby.plane.core.leading.leader
        assert known is not None
        standby.plane.core.leading.suspect(known)
        connecting = asyncio.create_task(agent.connect())
        draining = root.nodes.DrainNode(nodes_pb2.DrainNodeRequest(name="a"))
        await asyncio.sleep(0.2)
        assert not connecting.done()
        await leader.plane.resign()
        await connecting
        assert agent.registered is not None
        with contextlib.suppress(grpc.aio.AioRpcError):  # it may come before the agent
            await draining
        assert standby.plane.core.leading.term > 0


async def test_readers_do_not_wait_for_the_next_leader_and_agents_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two() as (leader, standby):
        kim = await leader.user("kim")
        agent = await (await leader.agent()).connect()

        def watch() -> Any:
            return kim.sessions._stub.WatchSessions(
                pb.WatchSessionsRequest(), metadata=kim.metadata, timeout=60
            )

        early = watch()
        await early.read()
        may_resign, resign = asyncio.Event(), leader.plane.core.leading.resign

        async def slowly() -> None:
            await may_resign.wait()
            await resign()

        monkeypatch.setattr(leader.plane.core.leading, "resign", slowly)
        resigning = asyncio.create_task(leader.plane.resign())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await early.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch().read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert agent.error is None
        may_resign.set()
        await resigning

        async def told() -> bool:
            return agent.error is not None

        await until(told, "the agent is told")
        assert standby.address in str(refusal(agent.error))


@pytest.mark.parametrize("is_refused", [False, True], ids=["told something", "said something"])
async def test_no_agent_is_sent_away_before_it_is_known_where_to(is_refused: bool) -> None:
    async with two() as (leader, standby):
        agent = await (await leader.agent()).connect()
        leading = leader.plane.core.leading
        leading._leadership = None  # as while the lease is being given back
        for link in leader.plane.core.contacts.links():
            # What an agent says meanwhile is refused, which ends the reading of its stream.
            link.close(NotLeader("")) if is_refused else link.order()
        await asyncio.sleep(0.2)
        assert agent.error is None
        await leader.plane.resign()

        async def told() -> bool:
            return agent.error is not None

        await until(told, "the agent is told")
        assert standby.address in str(refusal(agent.error))


async def test_readers_are_sent_away_one_after_the_other() -> None:
    async with two() as (leader, _):
        kim = await leader.user("kim")
        watches = [
            kim.sessions._stub.WatchSessions(
                pb.WatchSessionsRequest(), metadata=kim.metadata, timeout=60
            )
            for _ in range(4)
        ]
        for watch in watches:
            await watch.read()
        open_then: list[int] = []
        passing_on, sleep = leader.plane._passing_on, leader.plane._passing_on._clock.sleep

        async def seen(seconds: float) -> None:
            await sleep(seconds)
            open_then.append(sum(not one.is_to_end for one in passing_on._open))

        passing_on._clock = SimpleNamespace(sleep=seen)
        leader.plane.leave()
        await leader.plane.resign()
        assert open_then[:4] == [3, 2, 1, 0]
        for watch in watches:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch.read()
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_one_that_resigns_hands_over_and_ends_its_streams() -> None:
    async with two() as (leader, standby):
        kim = await leader.user("kim")
        agent = await (await leader.agent()).connect()
        watch = kim.sessions._stub.WatchSessions(
            pb.WatchSessionsRequest(), metadata=kim.metadata, timeout=60
        )
        await watch.read()
        await leader.plane.resign()

        async def told() -> bool:
            return agent.error is not None

        await until(told, "the agent is told")
        assert standby.address in str(refusal(agent.error))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await until(lambda: one_leads(standby), "the standby leads")
        assert not leader.plane.core.committer.is_leading


async def test_the_nodes_of_one_that_resigns_are_used_before_they_come() -> None:
    async with two() as (leader, standby):
        await (await leader.agent()).connect()
        await leader.plane.resign()
        await until(lambda: one_leads(standby), "the standby leads")
        assert standby.plane.core.contacts.link("a") is None
        assert "a" not in standby.plane.core.state.silent


async def test_a_jump_hosts_call_is_passed_on_for_the_user_of_its_key_without_its_credential() -> (
    None
):
    """That is known to its own control plane alone; the leader takes our certificate's word for the key."""
    said: list[Any] = []

    async def answers() -> AsyncIterator[pb.OpenTunnelResponse]:
        yield pb.OpenTunnelResponse(end=True)

    class Call:
        def __aiter__(self) -> AsyncIterator[pb.OpenTunnelResponse]:
            return answers()

        def cancel(self) -> None:
            pass

    def opened(_requests: Any, metadata: Any) -> Call:
        said.extend(metadata)
        return Call()

    channel = SimpleNamespace(stream_stream=lambda *_, **__: opened)
    leader = SimpleNamespace(address="x:1", is_tls=True, term=1)
    leading: Any = SimpleNamespace(
        term=0, elsewhere=lambda: leader, changed=asyncio.Event().wait, leader=leader
    )
    relay = Relay(leading=leading, peers=SimpleNamespace(channel=lambda *_, **__: channel))
    context: Any = SimpleNamespace(
        invocation_metadata=lambda: (("authorization", "Bearer secret"), (SSH_KEY, "ab"))
    )
    kinds = (pb.OpenTunnelRequest, pb.OpenTunnelResponse)
    set_caller(JumpHostCaller(user=User(name="kim"), key="ab", key_name="laptop"))
    passed = relay.stream("SessionService/OpenTunnel", kinds, answers(), context)  # type: ignore[arg-type]
    assert [one.end async for one in passed] == [True]
    assert said == [("nsml-passed-on", "1"), (SSH_KEY, "ab")]
    leader.is_tls = False
    with pytest.raises(StateConflict):
        await anext(relay.stream("SessionService/OpenTunnel", kinds, answers(), context))  # type: ignore[arg-type]
