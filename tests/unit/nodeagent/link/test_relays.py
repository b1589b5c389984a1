"""Tunnels by a relay, end to end: a real relay, an agent that connects to it, and clients with the right words or not."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import grpc.aio
import pytest

from controlplane.relay.orders import Expect, Forget
from controlplane.relay.server import RelayServer
from nodeagent.link import relays, tunnels
from nodeagent.link.outbox import replica_message
from nsml.client.direct_tunnels import Came, DirectCall
from nsml.client.errors import Unavailable
from nsml.client.relayed_tunnels import met
from nsml.client.tls_connections import TlsConnection
from nsml.common.tunnel_keys import KEY_BYTES
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2
from tests.unit.nodeagent.link import test_tunnels
from tests.unit.nodeagent.link.test_direct_ways import all_of
from tests.unit.nodeagent.link.test_tunnels import FRAME, REPLICA, Bench, Far, echo, program

EOF: Any = grpc.aio.EOF
TUNNEL = "t1"
bench, tmp_path = test_tunnels.bench, test_tunnels.tmp_path


class Relay:
    """A relay, and what a control plane would tell of it."""

    def __init__(self, server: RelayServer, port: int) -> None:
        self.server = server
        self.address = f"127.0.0.1:{port}"
        self.direct_key = os.urandom(KEY_BYTES)
        self._keys = os.urandom(KEY_BYTES), os.urandom(KEY_BYTES)
        self.is_told = True

    async def ordered(self, bench: Bench, service: str = "web") -> tuple[Far, pb.TunnelRequest]:
        """A tunnel for which both are expected, as the control plane sees it."""
        if self.is_told:
            self.server.obey(Expect(tunnel_id=TUNNEL, user="kim", keys=self._keys))
        dialled = bench.platform.expect(TUNNEL)
        order = pb.OpenTunnel(
            tunnel_id=TUNNEL,
            replica=replica_message(REPLICA),
            service=service,
            direct_key=self.direct_key,
            relay=sessions_pb2.RelayWay(address=self.address, key=self._keys[1]),
        )
        bench.tunnels.open(order)
        far, first = await asyncio.wait_for(dialled, 60)
        assert first.error == first.direct_socket == ""
        return far, first

    def way(self, first: pb.TunnelRequest) -> sessions_pb2.DirectWay:
        """The client's."""
        return sessions_pb2.DirectWay(
            key=self.direct_key,
            relay=sessions_pb2.RelayWay(
                address=self.address, key=self._keys[0], certificate=first.relay_certificate
            ),
        )

    async def met(self, first: pb.TunnelRequest) -> tuple[DirectCall, TlsConnection]:
        found = await met(self.way(first))
        assert found is not None
        return found


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        server = RelayServer(listener)
        serving = asyncio.create_task(server.run())
        async with asyncio.timeout(60):
            yield Relay(server, listener.getsockname()[1])
        serving.cancel()
        await asyncio.wait([serving])


async def test_bytes_pass_beside_the_call_and_the_relay_sees_none(
    bench: Bench, relay: Relay
) -> None:
    sent = b"a secret " * (20 * FRAME // 9)
    async with program(bench.path(), echo):
        far, first = await relay.ordered(bench)
        call, connection = await relay.met(first)
        with closing(connection):
            reading = asyncio.create_task(all_of(call))
            for start in range(0, len(sent), FRAME):
                await call.write(Came(data=sent[start : start + FRAME]))
            await call.write(Came(end=True))
            assert await reading == sent
            assert await far.read() is None  # nothing passed there
    assert b"a secret" not in bytes(relay.server._buffer)


async def test_services_of_the_agent_are_reached_too(bench: Bench, relay: Relay) -> None:
    _, first = await relay.ordered(bench, "agent.turn")
    call, connection = await relay.met(first)
    with closing(connection):
        await call.write(Came(data=b"abc", end=True))
        assert (await all_of(call)).endswith(b" cba")


async def test_a_client_takes_no_other_agent(bench: Bench, relay: Relay) -> None:
    async with program(bench.path(), echo):
        _, first = await relay.ordered(bench)
        way = relay.way(first)
        way.relay.certificate = relays._made_identity()[0]
        assert await met(way) is None


async def test_an_agent_takes_no_other_client(bench: Bench, relay: Relay) -> None:
    async with program(bench.path(), echo):
        far, first = await relay.ordered(bench)
        way = relay.way(first)
        way.key = os.urandom(KEY_BYTES)
        assert await met(way) is None
        await asyncio.wait_for(far.is_over.wait(), 60)


@pytest.mark.parametrize("certificate", [b"", b"no certificate"])
async def test_what_is_no_certificate_is_no_way(relay: Relay, certificate: bytes) -> None:
    assert await met(relay.way(pb.TunnelRequest(relay_certificate=certificate))) is None


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "no.such.host.invalid:1"])
async def test_a_relay_out_of_reach_is_avoided_and_the_call_is_the_way(
    bench: Bench, relay: Relay, address: str
) -> None:
    there, relay.address = relay.address, address
    async with program(bench.path(), echo):
        for _ in range(2):
            far, first = await relay.ordered(bench)
            assert first.relay_certificate == b""
            far.say(b"there", end=True)
            assert await far.heard() == b"there"
            assert await met(relay.way(first)) is None
        assert bench.tunnels._relays._avoided.keys() == {address}
        relay.address = there
        assert (await relay.ordered(bench))[1].relay_certificate


async def test_a_relay_that_knows_no_such_key_is_tried_again(bench: Bench, relay: Relay) -> None:
    async with program(bench.path(), echo):
        relay.is_told = False
        far, first = await relay.ordered(bench)
        assert first.relay_certificate == b""
        far.say(b"there", end=True)
        assert await far.heard() == b"there"
        relay.is_told = True
        assert (await relay.ordered(bench))[1].relay_certificate


async def test_a_tunnel_whose_client_does_not_come_ends(
    bench: Bench, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_COMES_WITHIN_S", 0.05)
    async with program(bench.path(), echo):
        far, first = await relay.ordered(bench)
        await asyncio.wait_for(far.is_over.wait(), 60)
        assert await met(relay.way(first)) is None


async def test_it_breaks_soon_after_the_control_plane_ends_its_call(
    bench: Bench, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "_RELAYED_LINGER_S", 0.05)
    far, first = await relay.ordered(bench, "agent.stay")
    call, connection = await relay.met(first)
    with closing(connection):
        assert (await call.read()).data == b"here"
        far.down.put_nowait(None)
        assert await asyncio.wait_for(bench.ended.get(), 60) == REPLICA
        with pytest.raises(Unavailable):
            await call.read()


async def test_what_the_relay_cuts_is_no_end(
    bench: Bench, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.relay.server.LINGER_S", 0.0)
    far, first = await relay.ordered(bench, "agent.stay")
    call, connection = await relay.met(first)
    with closing(connection):
        assert (await call.read()).data == b"here"
        relay.server.obey(Forget(tunnel_id=TUNNEL))
        with pytest.raises(Unavailable, match="broke"):
            await call.read()
        assert await asyncio.wait_for(bench.ended.get(), 60) == REPLICA
        await asyncio.wait_for(far.is_over.wait(), 60)


async def test_who_is_killed_is_gone(bench: Bench, relay: Relay) -> None:
    far, first = await relay.ordered(bench, "agent.stay")
    call, connection = await relay.met(first)
    assert (await call.read()).data == b"here"
    connection.close()
    assert await asyncio.wait_for(bench.ended.get(), 60) == REPLICA
    await asyncio.wait_for(far.is_over.wait(), 60)
