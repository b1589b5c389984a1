"""The Control stream over several control planes, on real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from cli.local.ports import Held
from nodeagent.config import SettingsError
from nodeagent.folders import ReplicaId
from nodeagent.link.channels import Link
from nodeagent.link.control import Control
from nodeagent.link.outbox import Outbox
from nsml.client.rpc import pinging
from nsml.common.clock import SystemClock
from nsml.spec.metadata import RELAY
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import agents_pb2_grpc


class Plane(agents_pb2_grpc.AgentServiceServicer):
    """Leads, or says who does."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.relays = False
        self.calls: list[bool] = []
        self.registered = asyncio.Event()
        self.others: list[str] = []
        self.news: asyncio.Queue[pb.ControlResponse] = asyncio.Queue()
        self.server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        agents_pb2_grpc.add_AgentServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def Control(
        self, requests: AsyncIterator[pb.ControlRequest], context: Any
    ) -> AsyncIterator[pb.ControlResponse]:
        is_relayed = dict(context.invocation_metadata()).get(RELAY) == "1"
        self.calls.append(is_relayed)
        if self.refusal is not None:
            await refuse(context, *self.refusal)
        if self.leader is not None and not (is_relayed and self.relays):
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", leader=self.leader)
        await anext(requests)
        answer = pb.Registered(cluster_id="c", term=1)
        answer.heartbeat_interval.FromMilliseconds(500)
        answer.control_planes.addresses.extend(self.others)
        yield pb.ControlResponse(registered=answer)
        self.registered.set()
        try:
            while True:
                yield await self.news.get()
        finally:
            self.registered.clear()


async def refuse(context: Any, code: grpc.StatusCode, reason: str, **metadata: str) -> None:
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(domain="nsml", reason=reason, metadata=metadata))
    status = status_pb2.Status(code=code.value[0], message=reason, details=[detail])
    trailers = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(code, reason, trailers)


class Node:
    """Whom the stream speaks for."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.learned: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        self.obeyed: asyncio.Queue[pb.Orders] = asyncio.Queue()

    def describe(self) -> pb.Register:
        return pb.Register(node="n1")

    def progress(self) -> dict[Any, Any]:
        return {}

    def stock(self) -> pb.StockReport:
        return pb.StockReport()

    def changes(self) -> dict[ReplicaId, list[pb.MemberReport]]:
        return {}

    def devices(self) -> pb.DevicesChanged:
        return pb.DevicesChanged()

    async def registered(self, answer: pb.Registered) -> None: ...

    async def learn(self, control_planes: pb.ControlPlanes) -> None:
        self.link.learn(control_planes.addresses)
        self.learned.put_nowait(tuple(control_planes.addresses))

    async def obey(self, orders: pb.Orders) -> bool:
        self.obeyed.put_nowait(orders)
        return True

    def finalized(self, replica_id: object) -> None: ...

    def contact(self) -> None: ...

    def open_tunnel(self, order: pb.OpenTunnel) -> None: ...

    def order_image(self, order: pb.ImageOrder) -> None: ...

    def order_environment(self, order: pb.EnvironmentOrder) -> None: ...

    def environment_reports(self) -> list[pb.EnvironmentReport]:
        return []

    def repair_reports(self) -> list[pb.RepairReport]:
        return []

    def image_reports(self) -> list[pb.ImageReport]:
        return []

    def questions(self) -> list[pb.FindPeers]:
        return []

    def found_peers(self, answer: pb.FoundPeers) -> None: ...


class Pauses(SystemClock):
    """Long pauses are noted, and are none."""

    def __init__(self) -> None:
        self.long: list[float] = []
        self.paused = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds > 10:
            self.long.append(seconds)
            self.paused.set()
            seconds = 0.05
        await super().sleep(seconds)


def channel(address: str, **_: bool) -> grpc.aio.Channel:
    if address.startswith("far"):
        raise SettingsError("not allowed")
    return grpc.aio.insecure_channel(address, options=pinging(every_s=1, within_s=1))


class Platform:
    """Control planes and one agent's Control stream."""

    def __init__(self, count: int) -> None:
        self.planes = [Plane() for _ in range(count)]
        self.clock = Pauses()

    @contextlib.asynccontextmanager
    async def agent(self, *addresses: str, first: str = "") -> AsyncIterator[Node]:
        """Runs at these addresses, by default all; goes to `first` first."""
        for plane in self.planes:
            await plane.server.start()
        link = Link(addresses or [one.address for one in self.planes], channel_factory=channel)
        while first and link.address != first:
            link.routes.lost()
        node = Node(link)
        control = Control(
            node,
            link,
            Outbox(),
            clock=self.clock,
            rng=random.Random(0),
            longest_backoff_s=1.0,
        )
        running = asyncio.create_task(control.run())
        try:
            async with asyncio.timeout(60):
                yield node
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await link.close()
            for plane in self.planes:
                await plane.server.stop(0)


async def test_the_leader_is_found_at_once() -> None:
    platform = Platform(2)
    standby, leader = platform.planes
    standby.leader = leader.address
    async with platform.agent(first=standby.address):
        await leader.registered.wait()
    assert (standby.calls, leader.calls) == ([False], [False])
    assert platform.clock.long == []


@pytest.mark.parametrize("how", ["closed", "mute", "forbidden"])
async def test_a_leader_out_of_reach_is_reached_through_another(how: str) -> None:
    platform = Platform(2)
    standby, other = platform.planes
    with contextlib.ExitStack() as stack:
        far = "far:1"
        if how != "forbidden":
            port = stack.enter_context(Held()).free()
            far = f"127.0.0.1:{port}"
        if how == "mute":
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        for plane in (standby, other):
            plane.leader, plane.relays = far, True
        async with platform.agent(first=standby.address):
            done = [asyncio.create_task(one.registered.wait()) for one in platform.planes]
            await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.cancel()
    assert [True] in ([c for c in one.calls if c] for one in platform.planes)
    assert platform.clock.long == []


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_who_knows_one_control_plane_is_relayed_by_it_where_the_leader_hangs_up() -> None:
    """As a listener with TLS does on who speaks in plain text."""
    platform = Platform(1)
    (standby,) = platform.planes
    leading = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    host, port = leading.sockets[0].getsockname()
    standby.leader, standby.relays = f"{host}:{port}", True
    async with leading, platform.agent():
        await standby.registered.wait()
    assert standby.calls[-1]


async def test_a_leader_that_only_fails_is_reached_through_another() -> None:
    platform = Platform(2)
    standby, leader = platform.planes
    leader.refusal = (grpc.StatusCode.UNAVAILABLE, "INTERNAL")
    standby.leader, standby.relays = leader.address, True
    async with platform.agent(first=leader.address):
        await standby.registered.wait()
    assert standby.calls[-1]
    assert platform.clock.long == []


async def test_when_the_leader_dies_the_next_is_found() -> None:
    platform = Platform(2)
    leader, standby = platform.planes
    standby.leader = leader.address
    async with platform.agent(first=leader.address):
        await leader.registered.wait()
        standby.leader = None
        await leader.server.stop(None)
        await standby.registered.wait()
    assert platform.clock.long == []


async def test_who_refuses_is_left_for_one_that_does_not() -> None:
    """As a leader whose term is over refuses a node that obeys the next one already."""
    platform = Platform(2)
    stale, leader = platform.planes
    stale.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "STATE_CONFLICT")
    async with platform.agent(first=stale.address):
        await leader.registered.wait()
    assert platform.clock.long == []


async def test_where_nobody_takes_the_node_it_asks_seldom() -> None:
    platform = Platform(2)
    for plane in platform.planes:
        plane.refusal = (grpc.StatusCode.PERMISSION_DENIED, "DENIED")
    async with platform.agent():
        await platform.clock.paused.wait()
    assert sum(len(plane.calls) for plane in platform.planes) >= 2


async def test_an_agent_that_was_supplanted_does_not_supplant_at_once() -> None:
    platform = Platform(2)
    for plane in platform.planes:
        plane.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "SUPERSEDED")
    async with platform.agent():
        await platform.clock.paused.wait()
        assert sum(len(plane.calls) for plane in platform.planes) == 1


async def test_it_learns_where_the_others_are_and_uses_that() -> None:
    platform = Platform(2)
    leader, other = platform.planes
    leader.others = [other.address, "far:1"]
    async with platform.agent(leader.address) as node:
        assert await node.learned.get() == (other.address, "far:1")
        assert set(node.link.routes.addresses) == {leader.address, other.address}
        assert set(node.link.ways.addresses) == {leader.address, other.address}
        # Once more over a connection that is left sooner when the other end hangs.
        assert await node.learned.get() == (other.address, "far:1")
        await leader.registered.wait()
        third = pb.ControlPlanes(addresses=["127.0.0.1:9", other.address])
        leader.news.put_nowait(pb.ControlResponse(control_planes=third))
        assert await node.learned.get() == ("127.0.0.1:9", other.address)
        assert "127.0.0.1:9" in node.link.routes.addresses
        await leader.server.stop(None)
        await other.registered.wait()


@pytest.mark.parametrize("ahead_s", [-7200, 0, 7200])
async def test_times_in_orders_are_by_the_nodes_own_clock(ahead_s: int) -> None:
    """The node's clock is ahead of the control plane's, which sends what is 60 s old by its own."""
    platform = Platform(1)
    (plane,) = platform.planes
    async with platform.agent() as node:
        await plane.registered.wait()
        before = time.time()
        for more in (True, False):
            orders = pb.Orders(term=1, more=more)
            assignment = orders.assignments.add()
            assignment.built_after.FromSeconds(round(before) - ahead_s - 60)
            orders.assignments.add()
            if not more:
                orders.sent_at.FromSeconds(round(before) - ahead_s)
            plane.news.put_nowait(pb.ControlResponse(orders=orders))
        obeyed = await node.obeyed.get()
        passed_s = time.time() - before
        for assignment in obeyed.assignments[::2]:
            age_s = before - assignment.built_after.ToNanoseconds() / 1e9
            assert 60 - passed_s - 1 <= age_s <= 61
        assert not any(one.HasField("built_after") for one in obeyed.assignments[1::2])
        plane.news.put_nowait(pb.ControlResponse(orders=orders_of_an_earlier_version()))
        (assignment,) = (await node.obeyed.get()).assignments
        assert assignment.built_after.seconds == 1000


def orders_of_an_earlier_version() -> pb.Orders:
    orders = pb.Orders(term=1)
    orders.assignments.add().built_after.FromSeconds(1000)
    return orders
