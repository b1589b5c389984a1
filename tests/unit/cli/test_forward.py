"""What `nsml forward` says before anything is forwarded; tests/e2e/test_forward.py has the rest."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cli.sessions import forward
from nsml.v1 import sessions_pb2 as pb


def test_a_session_that_is_not_there(nsml):
    result = nsml("forward", "kim/mnist/7", "web", check=False)
    assert result.code == 5
    assert result.stdout == ""


def test_a_session_that_has_ended(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    result = nsml("forward", "kim/mnist/1", "web", check=False)
    assert (result.code, result.stdout) == (6, "")
    assert "kim/mnist/1 has ended" in result.stderr


def test_a_number_that_is_no_port(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING)
    for port in ("0", "70000"):
        result = nsml("forward", "kim/mnist/1", port, check=False)
        assert (result.code, result.stdout) == (2, "")
        assert "PORT|SERVICE: " in result.stderr


def test_a_name_that_no_service_has_is_refused_before_an_address_is_printed(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING)
    for name in ("53/udp", "Web", "a b", "x" * 33, "caf\u00e9"):
        result = nsml("forward", "kim/mnist/1", name, check=False)
        assert (result.code, result.stdout) == (2, "")
        assert "is not a port or service" in result.stderr


def test_a_port_that_is_taken(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = nsml("forward", "kim/mnist/1", "web", "--port", str(port), check=False)
    assert (result.code, result.stdout) == (6, "")
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_the_address_is_all_that_is_printed(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING)
    for limit in ("200ms", "2s", "20s"):  # on a busy machine it may end before it is connected
        result = nsml("forward", "@last", "web", "--timeout", limit, check=False)
        assert result.code == 8
        if result.stdout:
            break
    host, port = result.stdout.strip().split(":")
    assert (host, port.isdigit()) == ("127.0.0.1", True)
    assert "web of kim/mnist/1" in result.stderr


def test_two_ports_in_one_word_are_refused_with_the_option_for_them(nsml, state):
    state.add("kim/mnist/1")
    result = nsml("forward", "kim/mnist/1", "18888:8888", check=False)
    assert result.code == 2
    assert "nsml forward SESSION 8888 --port 18888" in result.stderr
    assert "why: --port is the port on this machine" in result.stderr


class Answered:
    """A tunnel to a program that says this at once, and takes all that comes."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else await self.wait_gone()

    async def write(self, data: bytes) -> None:
        pass

    async def wait_gone(self) -> bytes:
        await asyncio.Event().wait()
        return b""


@pytest.mark.parametrize("answer", [(), (b"220 hello\r\n",), (b"220 hello\r\n", b""), (b"",)])
async def test_a_request_that_is_refused_ends_its_own_connection_alone(answer):
    """Also where the program has spoken first, or has said all: then no page is put behind its words."""
    is_over = asyncio.get_running_loop().create_future()

    async def join(reader, writer):
        try:
            await forward._join(Answered(*answer), reader, writer, ())
        except (forward._RequestRefused, RuntimeError) as error:
            is_over.set_result(error)
        writer.close()

    async with await asyncio.start_server(join, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        said = b"".join(answer)
        assert await reader.readexactly(len(said)) == said
        writer.write(b"x" * (65 << 10))  # what may still be the beginning of a request
        assert isinstance(await is_over, forward._RequestRefused)
        if not answer:
            assert (await reader.read()).startswith(b"HTTP/1.1 421 ")
        elif answer[-1]:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            assert await reader.read() == b""
        writer.close()
