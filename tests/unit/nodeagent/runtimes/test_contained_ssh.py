"""What the agent does for an ssh server in a container, and what such a server learns of it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeagent.runtimes import contained_ssh
from nodeagent.runtimes.contained_ssh import Room
from nodeagent.runtimes.visits import NotStarted, VisitOrder
from nodeagent.shim.contained_ssh import Agent, ContainedLoop, HostKey, addresses_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
SHELL: dict[str, object] = {"command": None, "env": {}, "terminal": None}


class Engine:
    """In place of an engine: one that never has anything begin."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.orders: list[VisitOrder] = []
        self.running = 0
        self._refusal = refusal

    @asynccontextmanager
    async def started(self, order: VisitOrder) -> AsyncIterator[Any]:
        self.orders.append(order)
        if self._refusal is not None:
            raise self._refusal
        self.running += 1
        try:
            await asyncio.Event().wait()
            yield
        finally:
            self.running -= 1


@asynccontextmanager
async def served(
    engine: Engine, room: Room | None = None, container: str = "one"
) -> AsyncIterator[socket.socket]:
    """The server's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    serving = asyncio.create_task(
        contained_ssh.serve(theirs, container, engine.started, KEY.sign, room or Room())
    )
    with ours:
        yield ours
    await asyncio.wait_for(serving, 60)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of other tasks nobody sets an event
            await asyncio.sleep(0.01)


async def test_what_is_signed_is_signed_by_the_host_key() -> None:
    async with served(Engine()) as end:
        key = HostKey(Agent(end), PUBLIC)
        signature = await asyncio.to_thread(key.sign, b"something")
    public = asyncssh.import_public_key(PUBLIC)
    assert public.verify(b"something", signature)
    assert not public.verify(b"something else", signature)


@pytest.mark.parametrize(
    "said",
    [
        b"{",
        b"[]",
        b"\xff",
        {"sign": "no base64!"},
        {"sign": "AAAA" * 2000},
        {"command": 5, "env": {}},
        {"command": "x\0", "env": {}},
        {"command": "x"},
        {"command": "x", "env": {"A": 1}},
        {"command": "x", "env": {"A=": "1"}},
        {"command": "x", "env": {f"A{number}": "" for number in range(100)}},
        {**SHELL, "terminal": [1]},
        {**SHELL, "terminal": ["1", "2"]},
        {"argv": "rm", "env": {}},
    ],
)
async def test_one_that_cannot_be_understood_is_left(said: object) -> None:
    engine = Engine()
    async with served(engine) as end:
        end.send(said if isinstance(said, bytes) else json.dumps(said).encode())
        assert await asyncio.to_thread(end.recv, 100) == b""
    assert engine.orders == []


async def test_a_command_is_a_word_of_a_shell_and_never_read_by_another() -> None:
    engine = Engine()
    async with served(engine) as end:
        words = {**SHELL, "command": "echo '$(x)'; `y`", "env": {"A": "b"}, "terminal": [0, 99999]}
        program, streams = await asyncio.to_thread(Agent(end).program, words)
        await until(lambda: engine.running)
        program.close()
        os.close(*streams)
    [order] = engine.orders
    assert order.argv[-1] == "echo '$(x)'; `y`"
    assert not any("$(x)" in one for one in order.argv[:-1])
    assert (order.environment, order.terminal) == ({"A": "b"}, (1, 10_000))


async def test_there_are_so_many_programs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, number in (("CONNECTION", 2), ("CONTAINER", 3), ("NODE", 4)):
        monkeypatch.setattr(contained_ssh, f"MOST_OF_{most}", number)
    engine, room = Engine(), Room()
    programs = []
    async with (
        served(engine, room) as first,
        served(engine, room) as beside,
        served(engine, room, "another") as other,
    ):
        for end, taken, refusal in (
            (first, 2, "2 programs"),
            (beside, 1, "3 .* replica"),
            (other, 1, "4 .* node"),
        ):
            agent = Agent(end)
            for _ in range(taken):
                program, streams = await asyncio.to_thread(agent.program, SHELL)
                programs.append(program)
                for one in streams:
                    os.close(one)
            with pytest.raises(OSError, match=refusal):
                await asyncio.to_thread(agent.program, SHELL)
        await until(lambda: engine.running == 4)
        programs.pop(0).close()
        await until(lambda: engine.running == 3)
        programs.append((await asyncio.to_thread(Agent(other).program, SHELL))[0])
    assert engine.running == 0
    assert not room.refusal("one")


async def test_a_program_whose_server_leaves_it_is_left() -> None:
    engine = Engine()
    async with served(engine) as end:
        left, streams = await asyncio.to_thread(Agent(end).program, SHELL)
        await until(lambda: engine.running == 1)
        left.close()
        await until(lambda: engine.running == 0)
        for one in streams:
            os.close(one)


async def test_why_nothing_was_started_comes_after_its_streams_have_ended() -> None:
    async with served(Engine(NotStarted("there is no shell", 127))) as end:
        program, streams = await asyncio.to_thread(Agent(end).program, SHELL)
        with program:
            said = json.loads(await asyncio.to_thread(program.recv, 1000))
            assert said == {"failed": "there is no shell", "code": 127}
            assert await asyncio.to_thread(program.recv, 1000) == b""
        assert [os.read(one, 1) for one in streams[1:]] == [b"", b""]
        for one in streams:
            os.close(one)


def test_names_are_those_of_the_file_of_hosts() -> None:
    text = "127.0.0.1 localhost\n# 10.0.0.9 db\n10.0.0.2\tdb Db.local # main\nnonsense db\n\n::7 db"
    assert addresses_in(text, "DB") == ["10.0.0.2", "::7"]
    assert addresses_in(text, "main") == []
    assert addresses_in("", "db") == []


@pytest.mark.parametrize(
    ("host", "flags", "found"),
    [
        ("10.0.0.7", 0, ["10.0.0.7"]),
        ("::1", 0, ["::1"]),
        ("localhost", 0, ["127.0.0.1", "::1"]),
        ("LOCALHOST.", socket.AI_PASSIVE, ["127.0.0.1"]),
    ],
)
def test_what_needs_no_lookup(host: str, flags: int, found: list[str]) -> None:
    assert [one[4][0] for one in looked_up(host, flags)] == found


@pytest.mark.parametrize("host", ["", "-s", "a b", "x/../y", "a\n10.0.0.1 b", "x" * 300])
def test_what_is_no_name_is_not_asked_for(host: str) -> None:
    with pytest.raises(socket.gaierror):
        looked_up(host, 0)


def looked_up(host: str, flags: int) -> list[Any]:
    """Without an agent to ask."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        agent = Agent(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        with asyncio.Runner(loop_factory=lambda: ContainedLoop(ours, agent)) as runner:
            loop = runner.get_loop()
            kind = socket.SOCK_STREAM
            return runner.run(loop.getaddrinfo(host, 80, type=kind, flags=flags))
