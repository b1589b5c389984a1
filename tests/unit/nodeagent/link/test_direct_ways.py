"""Clients that come to an agent of their own machine: once, with the key of their tunnel, while its call is open."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nodeagent.link import direct_ways
from nodeagent.link.outbox import replica_message
from nsml.client.direct_tunnels import Came, DirectCall, LoopConnection, connected
from nsml.client.errors import Unavailable
from nsml.common.tunnel_keys import HELLO_BYTES, KEY_BYTES, id_of
from nsml.v1 import agents_pb2 as pb
from tests.unit.nodeagent.link import test_tunnels
from tests.unit.nodeagent.link.test_tunnels import FRAME, REPLICA, Bench, Far, echo, program
from tests.unit.nodeagent.replica.test_user_sockets import Trap, send

EOF: Any = grpc.aio.EOF
bench, tmp_path = test_tunnels.bench, test_tunnels.tmp_path


async def ordered(bench: Bench, key: bytes, service: str = "web") -> tuple[Far, str]:
    """A tunnel with this key, as the control plane sees it, and where its client is awaited."""
    name = key.hex()
    dialled = bench.platform.expect(name)
    bench.tunnels.open(
        pb.OpenTunnel(
            tunnel_id=name, replica=replica_message(REPLICA), service=service, direct_key=key
        )
    )
    far, first = await asyncio.wait_for(dialled, 60)
    assert first.error == ""
    return far, first.direct_socket


async def came(name: str, key: bytes) -> tuple[DirectCall, LoopConnection]:
    found = await connected(name, key)
    assert found is not None
    return found


async def all_of(call: DirectCall) -> bytes:
    data = b""
    while (frame := await call.read()) is not EOF:
        data += frame.data
    return data


@pytest.fixture
async def key() -> AsyncIterator[bytes]:
    async with asyncio.timeout(60):
        yield os.urandom(KEY_BYTES)


async def test_bytes_pass_beside_the_call(bench: Bench, key: bytes) -> None:
    sent = os.urandom(20 * FRAME)
    async with program(bench.path(), echo):
        far, name = await ordered(bench, key)
        call, _ = await came(name, key)
        reading = asyncio.create_task(all_of(call))
        for start in range(0, len(sent), FRAME):
            await call.write(Came(data=sent[start : start + FRAME]))
        await call.write(Came(end=True))
        assert await reading == sent
        assert await far.read() is None  # nothing passed there


async def test_services_of_the_agent_are_reached_too(bench: Bench, key: bytes) -> None:
    _, name = await ordered(bench, key, "agent.turn")
    call, _ = await came(name, key)
    await call.write(Came(data=b"abc", end=True))
    assert (await all_of(call)).endswith(b" cba")


async def test_a_key_is_good_once(bench: Bench, key: bytes) -> None:
    async with program(bench.path(), echo):
        _, name = await ordered(bench, key)
        call, _ = await came(name, key)
        assert await connected(name, key) is None
        await call.write(Came(data=b"still", end=True))
        assert await all_of(call) == b"still"


async def test_only_who_has_the_key_is_taken(bench: Bench, key: bytes) -> None:
    async with program(bench.path(), echo):
        _, name = await ordered(bench, key)
        assert await connected(name, os.urandom(KEY_BYTES)) is None
        stranger = await hello(name, b"nsmldir1" + id_of(key) + bytes(32))
        await asyncio.get_running_loop().sock_sendall(stranger, bytes(32))
        assert await ends(stranger)
        call, _ = await came(name, key)  # what they tried has spent nothing
        await call.write(Came(end=True))
        assert await all_of(call) == b""


async def hello(name: str, words: bytes) -> socket.socket:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.settimeout(0)
    stranger.connect(f"\0{name}")
    await asyncio.get_running_loop().sock_sendall(stranger, words)
    return stranger


async def ends(stranger: socket.socket) -> bool:
    """Whether the agent closes its connection; what it says before is passed over."""
    with stranger:
        try:
            while await asyncio.get_running_loop().sock_recv(stranger, FRAME):
                pass
        except ConnectionResetError:
            pass
    return True


async def test_what_is_no_hello_is_closed(bench: Bench, key: bytes) -> None:
    async with program(bench.path(), echo):
        _, name = await ordered(bench, key)
        for words in (bytes(HELLO_BYTES), b"GET / HTTP/1.1\r\n\r\n" * 8):
            assert await ends(await hello(name, words))


async def test_one_user_has_only_so_many_that_are_not_proven(
    bench: Bench, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_ways, "_MOST_UNPROVEN", 2)
    async with program(bench.path(), echo):
        _, name = await ordered(bench, key)
        silent = [await hello(name, b"") for _ in range(2)]
        assert await ends(await hello(name, b""))
        for one in silent:
            one.close()
        while (found := await connected(name, key)) is None:  # noqa: ASYNC110 - tries are connections
            await asyncio.sleep(0.01)
        await found[0].write(Came(end=True))
        assert await all_of(found[0]) == b""


async def test_a_client_that_says_nothing_is_closed(
    bench: Bench, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_ways, "_PROVEN_WITHIN_S", 0.05)
    async with program(bench.path(), echo):
        _, name = await ordered(bench, key)
        assert await ends(await hello(name, b""))


async def test_a_tunnel_whose_client_does_not_come_ends(
    bench: Bench, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_ways, "_COMES_WITHIN_S", 0.05)
    async with program(bench.path(), echo):
        far, name = await ordered(bench, key)
        await asyncio.wait_for(far.is_over.wait(), 60)
        assert await connected(name, key) is None


async def test_it_breaks_when_the_control_plane_ends_its_call(bench: Bench, key: bytes) -> None:
    far, name = await ordered(bench, key, "agent.stay")
    call, _ = await came(name, key)
    assert (await call.read()).data == b"here"
    far.down.put_nowait(None)
    assert await asyncio.wait_for(bench.ended.get(), 60) == REPLICA
    with pytest.raises(Unavailable):
        await call.read()


async def test_a_client_may_come_no_more_once_the_call_is_over(bench: Bench, key: bytes) -> None:
    far, name = await ordered(bench, key, "agent.stay")
    far.down.put_nowait(None)
    await asyncio.wait_for(far.is_over.wait(), 60)
    while not await refuses(name, key):  # noqa: ASYNC110 - tries are connections; it hears of it a moment later
        await asyncio.sleep(0.01)


async def refuses(name: str, key: bytes) -> bool:
    found = await connected(name, key)
    if found is not None:
        found[1].close()
    return found is None


async def test_who_is_killed_is_gone(bench: Bench, key: bytes) -> None:
    far, name = await ordered(bench, key, "agent.stay")
    call, connection = await came(name, key)
    assert (await call.read()).data == b"here"
    connection.close()
    assert await asyncio.wait_for(bench.ended.get(), 60) == REPLICA
    await asyncio.wait_for(far.is_over.wait(), 60)


async def test_no_key_no_direct_way(bench: Bench) -> None:
    async with program(bench.path(), echo):
        far, first = await bench.dialled()
        assert first.direct_socket == ""
        far.say(b"there", end=True)
        assert await far.heard() == b"there"


async def test_agents_without_sockets_offer_none(tmp_path: Path) -> None:
    ways = direct_ways.DirectWays(test_tunnels.SystemClock())
    with ways.awaited(os.urandom(KEY_BYTES)) as awaited:
        assert awaited is None


async def test_descriptors_that_a_stranger_sends_hold_nothing_up(bench: Bench, key: bytes) -> None:
    with Trap() as trap:
        async with program(bench.path(), echo):
            _, name = await ordered(bench, key)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.connect(f"\0{name}")
                send(stranger, [trap], b"nsmldir1")
                call, _ = await came(name, key)
                await call.write(Came(data=b"at once", end=True))
                assert await all_of(call) == b"at once"
    assert not trap.was_waited_for
