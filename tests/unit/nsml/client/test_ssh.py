"""ssh servers in sessions: what a client of them is told before any byte of ssh."""

import pytest

from nsml.client import errors
from nsml.spec.frames import MOST_BYTES, NotFrames, first_of, framed
from nsml.v1 import sessions_pb2 as pb


@pytest.fixture
def state(server):
    server.state.add("kim/mnist/1")
    return server.state


async def all_of(server):
    found = b""
    while data := await server.read():
        found += data
    return found


async def test_the_host_key_comes_first_and_no_byte_behind_it_is_lost(client, state):
    async with client.sessions.open_ssh("@last") as server:
        assert server.host_key == state.ssh_answer.host_key
        await server.write(b"SSH-2.0-client\r\n")
        await server.end()
        assert await all_of(server) == b"SSH-2.0-test\r\nSSH-2.0-client\r\n"


async def test_a_refusal_is_told(client, state):
    state.ssh_answer = pb.SshAnswer(refused="it has no room")
    with pytest.raises(errors.StateConflict) as told:
        async with client.sessions.open_ssh("@last"):
            pass
    assert told.value.why == "it has no room"


async def test_a_connection_that_breaks_is_no_end_and_says_what_broke(client, state):
    state.ssh_breaks = True
    async with client.sessions.open_ssh("@last") as server:
        with pytest.raises(errors.ConnectionLost, match="connection to the session broke"):
            await all_of(server)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ssh-rsa AAAA",
        "ssh-ed25519 AAAA\n* ssh-ed25519 BBBB",
        "ssh-ed25519 AAAA BB",
        "ssh-ed25519 ",
    ],
)
async def test_what_is_no_key_is_not_believed(client, state, key):
    """It becomes a line of a file that ssh trusts."""
    state.ssh_answer = pb.SshAnswer(host_key=key)
    with pytest.raises(errors.ConnectionLost):
        async with client.sessions.open_ssh("@last"):
            pass


def test_the_first_message_is_read_alone():
    whole = framed(b"first") + b"\xff" * 9
    assert [first_of(whole[:size]) for size in range(9)] == [None] * 9
    assert first_of(whole) == (b"first", b"\xff" * 9)
    with pytest.raises(NotFrames):
        first_of(b"\xff\xff\xff\xff")
    with pytest.raises(NotFrames):
        first_of((MOST_BYTES + 1).to_bytes(4, "big"))
