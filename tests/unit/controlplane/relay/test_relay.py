"""A relay as its ends see it: real sockets, and keys that it has been told of or not."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from controlplane.relay import server as relay_server
from controlplane.relay.fair_queue import FairQueue
from controlplane.relay.orders import Expect, Forget, decode, encode
from controlplane.relay.server import RelayServer
from nsml.common.tunnel_keys import ANSWER_BYTES, KEY_BYTES, NotProven, check_on, id_of, prove_on

ONE, OTHER = bytes(KEY_BYTES), bytes(range(KEY_BYTES))
EXPECTED = Expect(tunnel_id="t", user="kim", keys=(ONE, OTHER))
MEGABYTE = 1 << 20


class Bench:
    def __init__(self, server: RelayServer, port: int) -> None:
        self.server = server
        self._port = port
        self._opened: list[socket.socket] = []

    async def connected(self) -> socket.socket:
        made = socket.socket()
        self._opened.append(made)
        made.settimeout(0)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self._port))
        return made

    async def end(self, key: bytes) -> socket.socket:
        made = await self.connected()
        await prove_on(made, key)
        return made

    async def joined(self) -> tuple[socket.socket, socket.socket]:
        self.server.obey(EXPECTED)
        return await self.end(ONE), await self.end(OTHER)

    def close(self) -> None:
        for one in self._opened:
            one.close()


@asynccontextmanager
async def relaying() -> AsyncIterator[Bench]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        server = RelayServer(listener)
        serving = asyncio.create_task(server.run())
        bench = Bench(server, listener.getsockname()[1])
        try:
            async with asyncio.timeout(60):
                yield bench
        finally:
            bench.close()
            serving.cancel()
            await asyncio.wait([serving])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with relaying() as made:
        yield made


async def say(end: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(end, data)


async def hear(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := await some_of(end)):
        found += data
    return found


async def some_of(end: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(end, MEGABYTE)
    except ConnectionResetError:
        return b""


async def all_of(end: socket.socket) -> bytes:
    return await hear(end, 1 << 40)


async def test_all_bytes_pass_both_ways(bench: Bench) -> None:
    one, other = await bench.joined()
    there, back = os.urandom(20 * MEGABYTE), os.urandom(10 * MEGABYTE)
    _, _, *found = await asyncio.gather(
        say(one, there), say(other, back), hear(one, len(back)), hear(other, len(there))
    )
    assert found == [back, there]


async def test_who_comes_first_waits(bench: Bench) -> None:
    bench.server.obey(EXPECTED)
    one = await bench.end(ONE)
    await say(one, b"before the other is there")
    other = await bench.end(OTHER)
    assert await hear(other, 25) == b"before the other is there"


async def test_a_reader_that_stops_holds_the_other_back_and_loses_nothing(bench: Bench) -> None:
    one, other = await bench.joined()
    sent = os.urandom(30 * MEGABYTE)  # more than sockets keep
    saying = asyncio.create_task(say(one, sent))
    assert not (await asyncio.wait([saying], timeout=0.2))[0]
    assert await hear(other, len(sent)) == sent
    await saying


async def test_an_end_is_heard_after_all_that_was_said(bench: Bench) -> None:
    one, other = await bench.joined()
    sent = os.urandom(3 * MEGABYTE)

    async def leave() -> None:
        await say(one, sent)
        one.close()

    _, found = await asyncio.gather(leave(), all_of(other))
    assert found == sent


async def test_a_key_is_good_once(bench: Bench) -> None:
    one, other = await bench.joined()
    for key in (ONE, OTHER):
        with pytest.raises(EOFError):
            await bench.end(key)
    await say(one, b"still")
    assert await hear(other, 5) == b"still"


@pytest.mark.parametrize("key", [b"x" * KEY_BYTES, OTHER[::-1]])
async def test_who_has_no_key_is_not_let_in(bench: Bench, key: bytes) -> None:
    bench.server.obey(EXPECTED)
    with pytest.raises((EOFError, ConnectionResetError)):
        await bench.end(key)


async def test_the_id_of_a_key_is_not_the_key(bench: Bench) -> None:
    bench.server.obey(EXPECTED)
    stranger = await bench.connected()
    await say(stranger, b"nsmldir1" + id_of(ONE) + bytes(32))
    await say(stranger, bytes(32))
    assert len(await all_of(stranger)) == ANSWER_BYTES  # then it is closed
    await bench.end(ONE)  # what they tried has spent nothing


async def test_an_end_proves_nothing_to_a_relay_without_its_key() -> None:
    end, pretender = socket.socketpair()
    with end, pretender:
        end.settimeout(0)
        pretender.settimeout(0)
        pretending = asyncio.create_task(check_on(pretender, lambda _: OTHER))
        with pytest.raises(NotProven):
            await prove_on(end, ONE)
        end.close()
        with pytest.raises(EOFError):
            await pretending


@pytest.mark.parametrize("words", [b"", b"nsmldir1", b"GET / HTTP/1.1\r\n"])
async def test_a_connection_that_proves_nothing_is_closed(
    bench: Bench, words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_server, "PROVEN_WITHIN_S", 0.05)
    stranger = await bench.connected()
    await say(stranger, words)
    assert await all_of(stranger) == b""


async def test_one_address_has_only_so_many_that_prove_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_server, "MOST_UNPROVEN_OF_ADDRESS", 2)
    silent = [await bench.connected() for _ in range(2)]
    assert await all_of(await bench.connected()) == b""
    for one in silent:
        one.close()
    bench.server.obey(EXPECTED)
    while True:  # until it has heard that they are gone
        try:
            await bench.end(ONE)
        except (EOFError, ConnectionResetError):
            continue
        break


async def test_a_tunnel_that_is_over_ends_soon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_server, "LINGER_S", 0.05)
    one, other = await bench.joined()
    await say(one, b"first")
    assert await hear(other, 5) == b"first"
    await say(one, b"last words")
    bench.server.obey(Forget(tunnel_id="t"))
    assert await all_of(other) == b"last words"
    assert await all_of(one) == b""


async def test_nobody_is_let_in_to_a_tunnel_that_is_over(bench: Bench) -> None:
    bench.server.obey(EXPECTED)
    one = await bench.end(ONE)
    bench.server.obey(Forget(tunnel_id="t"))
    bench.server.obey(Forget(tunnel_id="t"))
    assert await all_of(one) == b""
    with pytest.raises((EOFError, ConnectionResetError)):
        await bench.end(OTHER)


def test_users_take_turns_and_so_do_their_tunnels() -> None:
    soon: list[Callable[[], None]] = []
    done: list[str] = []
    queue = FairQueue(soon.append)
    for number in range(3):
        queue.add("kim", partial(done.append, f"kim {number}"))
    queue.add("lee", lambda: done.append("lee"))
    rounds = []
    while soon:
        soon.pop()()
        rounds.append(done.copy())
        done.clear()
    assert rounds == [["kim 0", "lee"], ["kim 1"], ["kim 2"]]


def test_work_that_comes_meanwhile_waits_for_the_next_round() -> None:
    soon: list[Callable[[], None]] = []
    done: list[str] = []
    queue = FairQueue(soon.append)

    def again() -> None:
        done.append("again")
        queue.add("kim", lambda: done.append("after"))

    queue.add("kim", again)
    soon.pop()()
    assert done == ["again"]
    soon.pop()()
    assert done == ["again", "after"]
    assert soon == []


def test_orders_are_lines() -> None:
    for order in (EXPECTED, Forget(tunnel_id="t")):
        line = encode(order)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert decode(line) == order
