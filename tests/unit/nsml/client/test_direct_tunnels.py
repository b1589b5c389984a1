"""Tunnels between two programs of one machine: all bytes or an error, and nobody without the key."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from nsml.client.direct_tunnels import (
    Came,
    DirectCall,
    LoopConnection,
    Reader,
    connected,
    proven,
)
from nsml.client.errors import NotSignedIn, Unavailable
from nsml.common.tunnel_keys import KEY_BYTES, NotProven, check, id_of

EOF = grpc.aio.EOF
KEY = bytes(range(KEY_BYTES))


@asynccontextmanager
async def joined():
    """Both ends, with their connections."""
    ends = socket.socketpair()
    connections = [LoopConnection(one) for one in ends]
    for one in ends:
        one.settimeout(0)
    try:
        async with asyncio.timeout(60):
            yield [(DirectCall(one, Reader(one)), one) for one in connections]
    finally:
        for one in connections:
            one.close()


async def all_of(call):
    data = b""
    while (frame := await call.read()) is not EOF:
        data += frame.data
    return data


async def say(call, data):
    for start in range(0, len(data), 100_000):
        await call.write(Came(data=data[start : start + 100_000]))
    await call.write(Came(end=True))


async def test_all_bytes_pass_both_ways_and_both_know_it():
    there, back = os.urandom(3_000_000), os.urandom(2_000_000)
    async with joined() as [(client, _), (agent, _)]:
        found = await asyncio.gather(
            say(client, there), say(agent, back), all_of(client), all_of(agent)
        )
    assert found[2:] == [back, there]


@pytest.mark.parametrize("sent", [[], [Came(data=b"a part")]])
async def test_an_end_that_is_gone_without_a_word_is_no_end(sent):
    async with joined() as [(client, _), (agent, connection)]:
        for frame in sent:
            await agent.write(frame)
        connection.close()
        for frame in sent:
            assert await client.read() == frame
        with pytest.raises(Unavailable, match="broke"):
            await client.read()


async def test_an_end_that_is_gone_has_not_taken_what_it_did_not_read():
    async with joined() as [(client, _), (agent, connection)]:
        await say(client, b"question")
        await say(agent, b"answer")
        connection.close()
        assert [await client.read(), await client.read()] == [
            Came(data=b"answer"),
            Came(end=True),
        ]
        with pytest.raises(Unavailable, match="broke"):
            await client.read()


async def test_the_end_is_taken_only_when_its_reader_comes_back():
    async with joined() as [(client, _), (agent, _)]:
        await say(client, b"question")
        await say(agent, b"")
        assert await client.read() == Came(end=True)
        over = asyncio.create_task(client.read())
        assert await agent.read() == Came(data=b"question")
        assert await agent.read() == Came(end=True)
        assert not (await asyncio.wait([over], timeout=0.1))[0]
        assert await agent.read() is EOF
        assert await over is EOF


async def test_who_leaves_says_how_much_was_taken():
    async with joined() as [(client, _), (agent, _)]:
        await client.write(Came(data=b"taken"))
        assert await agent.read() == Came(data=b"taken")
        await agent.write(Came(data=b"bye", end=True))
        await agent.done_writing()
        assert [await client.read() for _ in range(3)] == [
            Came(data=b"bye"),
            Came(end=True),
            Came(gone=True),
        ]
        await client.done_writing()
        assert await client.read() is EOF
        assert await agent.read() is EOF


async def test_who_leaves_at_the_end_has_taken_it():
    async with joined() as [(client, _), (agent, _)]:
        await say(client, b"")
        await say(agent, b"answer")
        assert [await client.read(), await client.read()] == [
            Came(data=b"answer"),
            Came(end=True),
        ]
        await client.done_writing()
        assert await agent.read() == Came(end=True)
        assert await agent.read() is EOF
        assert await client.read() is EOF


async def test_what_was_written_after_the_other_has_left_is_known_to_be_lost():
    async with joined() as [(client, _), (agent, _)]:
        await agent.write(Came(end=True))
        await agent.done_writing()
        await client.write(Came(data=b"too late", end=True))
        assert await client.read() == Came(end=True)
        assert await client.read() == Came(gone=True)
        await client.done_writing()
        with pytest.raises(Unavailable, match="left"):
            await client.read()


async def test_broken_off_it_gives_what_has_come_and_then_why():
    async with joined() as [(client, _), (agent, _)]:
        await agent.write(Came(data=b"first"))
        client.break_off(NotSignedIn("the token is not valid"))
        assert await client.read() == Came(data=b"first")
        with pytest.raises(NotSignedIn):
            await client.read()
        with pytest.raises(NotSignedIn):
            await client.write(Came())
        with pytest.raises(Unavailable):
            await agent.read()


async def test_what_is_no_frame_breaks_it():
    for nonsense in (b"\x09" + bytes(8), b"\x00" + b"\xff" * 8):
        async with joined() as [(client, _), (_, connection)]:
            await connection.send(nonsense)
            with pytest.raises(Unavailable):
                await client.read()


# Who is at the other end.


async def agents(connection, key):
    """What an agent with this key does."""
    reader = Reader(connection)
    assert await check(reader.exactly, connection.send, lambda _: key) == id_of(KEY)
    await DirectCall(connection, reader).admit()
    return True


async def test_both_prove_that_they_have_the_key():
    async with joined() as [(_, client), (_, agent)]:
        is_proven, call = await asyncio.gather(agents(agent, KEY), proven(client, KEY))
        assert is_proven
        await call.write(Came(data=b"after it"))


async def test_a_client_says_nothing_to_who_has_another_key():
    async with joined() as [(_, client), (_, agent)]:
        pretending = asyncio.create_task(agents(agent, bytes(KEY_BYTES)))
        with pytest.raises(NotProven):
            await proven(client, KEY)
        client.close()
        with pytest.raises(EOFError):
            await pretending


async def test_a_socket_that_is_not_there_is_no_way():
    assert await connected(f"nsml-none-{os.urandom(8).hex()}", KEY) is None
    assert await connected("x" * 200, KEY) is None


async def test_an_end_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr("nsml.client.direct_tunnels._CONNECTED_WITHIN_S", 0.05)
    name = f"nsml-silent-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        assert await connected(name, KEY) is None
