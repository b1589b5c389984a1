"""What user code sends over a Unix socket holds up itself alone."""

from __future__ import annotations

import array
import asyncio
import json
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, cast

import pytest

from nodeagent.collect.pace import BURST_S, Pace
from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.replica import user_sockets
from nodeagent.replica.requests import Loads, RequestServer
from nodeagent.replica.user_sockets import UserConnection, close_user_listener, close_user_socket
from nsml.common.clock import SystemClock
from tests.support.scripted_platform import session_id

REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
AN_HOUR = struct.pack("ii", 1, 3_600)
HELD_S = 60.0
"""How long a loop stands still at most, where it does."""


class Trap:
    """A connection whose last close waits until its bytes are taken: never, but for the end of the test."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            self.end = socket.create_connection(listener.getsockname())
            self._far, _ = listener.accept()
        self.end.settimeout(0)
        with suppress(BlockingIOError):
            while self.end.send(bytes(1 << 16)):
                pass
        self.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AN_HOUR)
        self.was_waited_for = False
        self._rescue = threading.Timer(HELD_S, self._be_waited_for)

    def __enter__(self) -> Self:
        self._rescue.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._rescue.cancel()
        self._far.close()
        self.end.close()

    def _be_waited_for(self) -> None:
        self.was_waited_for = True
        self._far.close()  # with bytes unread: the connection is reset, and nobody waits any more


def send(way: socket.socket, traps: Sequence[Trap], data: bytes = b"x") -> None:
    """Give away the last descriptors of them: nobody receives them before that is done."""
    descriptors = array.array("i", [one.end.fileno() for one in traps])
    way.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    for one in traps:
        one.end.close()


@contextmanager
def connected() -> Iterator[tuple[socket.socket, UserConnection]]:
    theirs, ours = socket.socketpair()
    with theirs:
        yield theirs, UserConnection(ours)


@pytest.fixture
def folder() -> Iterator[ReplicaFolder]:
    """At a short path: names of sockets have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="nsml-") as place:
        made = ReplicaFolders(Path(place)).of(REPLICA)
        made.create()
        yield made


async def ask(folder: ReplicaFolder) -> Any:
    reader, writer = await asyncio.open_unix_connection(str(folder.socket))
    writer.write(b"{}\n")
    answer = json.loads(await reader.readline())
    writer.close()
    return answer


async def test_descriptors_that_take_an_hour_to_close_hold_up_no_other_client(
    folder: ReplicaFolder,
) -> None:
    with Trap() as trap, socket.socket(socket.AF_UNIX) as program:
        async with RequestServer(REPLICA, folder, cast("Loads", None)).listening():
            program.connect(str(folder.socket))
            send(program, [trap])
            assert (await ask(folder))["error"] == "INVALID"
        assert not trap.was_waited_for


async def test_nor_do_those_of_clients_that_are_too_many_or_were_not_accepted(
    folder: ReplicaFolder,
) -> None:
    programs = [socket.socket(socket.AF_UNIX) for _ in range(40)]
    with Trap() as refused, Trap() as waiting:
        async with RequestServer(REPLICA, folder, cast("Loads", None)).listening():
            for number, program in enumerate(programs):
                program.connect(str(folder.socket))
                if number == 20:
                    send(program, [refused])
            with suppress(ConnectionResetError):  # it was closed with bytes unread
                assert await asyncio.to_thread(programs[20].recv, 1) == b""
            with socket.socket(socket.AF_UNIX) as late:
                late.connect(str(folder.socket))
                send(late, [waiting])
        assert not refused.was_waited_for
        assert not waiting.was_waited_for
    for program in programs:
        program.close()


async def test_a_connection_ends_however_much_it_would_have_to_wait_for() -> None:
    theirs, ours = socket.socketpair()
    with Trap() as one, Trap() as other, Trap() as unread, theirs:
        send(theirs, [one, other])
        send(theirs, [unread])
        await UserConnection(ours).close()
        assert not any(trap.was_waited_for for trap in (one, other, unread))


async def test_what_a_socket_has_queued_is_not_waited_for_when_it_is_closed() -> None:
    theirs, ours = socket.socketpair()
    with Trap() as trap, theirs:
        send(theirs, [trap])
        await close_user_socket(ours)
        assert not trap.was_waited_for


def listening(folder: ReplicaFolder) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder.socket))
    listener.listen()
    listener.settimeout(0)
    return listener


async def test_a_listener_does_not_wait_for_what_any_that_were_not_accepted_have_sent(
    folder: ReplicaFolder,
) -> None:
    listener = listening(folder)
    with ExitStack() as stack:
        traps = [stack.enter_context(Trap()) for _ in range(3)]
        for trap in traps:
            program = stack.enter_context(socket.socket(socket.AF_UNIX))
            program.connect(listener.getsockname())
            send(program, [trap])
        await close_user_listener(listener)
        assert not any(trap.was_waited_for for trap in traps)
    assert listener.fileno() == -1


async def test_a_listener_that_nobody_waits_at_is_closed_at_once(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread for each session that ends costs more than all else about its socket."""
    listener = listening(folder)
    monkeypatch.delattr(user_sockets, "_Thread")
    await close_user_listener(listener)
    assert listener.fileno() == -1


async def test_bytes_arrive_in_order_and_to_their_end() -> None:
    sent = b"".join(b"%d\n" % number for number in range(400_000))
    with connected() as (theirs, connection):

        def speak() -> None:
            theirs.sendall(sent)
            theirs.shutdown(socket.SHUT_WR)

        speaking = asyncio.create_task(asyncio.to_thread(speak))
        received = b""
        while data := await connection.receive():
            received += data
        await speaking
        assert received == sent
        assert connection.sends_no_more()
        assert not connection.is_gone()
        await connection.send(b"heard")
        assert theirs.recv(5) == b"heard"
        theirs.close()
        assert connection.is_gone()
        await connection.close()


async def test_a_connection_that_was_given_up_is_closed() -> None:
    with connected() as (theirs, connection):
        connection.give_up()
        assert await asyncio.to_thread(theirs.recv, 1) == b""
        await connection.close()


class Standing(SystemClock):
    """Time that stands still until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for, self.goes_on = asyncio.Event(), asyncio.Event()

    def monotonic(self) -> float:
        return 1_000.0

    async def sleep(self, seconds: float) -> None:
        self.is_waited_for.set()
        await self.goes_on.wait()


async def test_a_flood_of_connections_waits_in_the_kernel(folder: ReplicaFolder) -> None:
    """Each costs the agent a thread: a session that opened them as fast as it could took most of a core from it."""
    clock = Standing()
    four = Pace(4 / BURST_S, clock)
    server = RequestServer(REPLICA, folder, cast("Loads", None), connections=four)
    async with server.listening():
        for _ in range(4):
            assert (await ask(folder))["error"] == "INVALID"
        fifth = asyncio.create_task(ask(folder))
        await clock.is_waited_for.wait()
        assert not fifth.done()
        clock.goes_on.set()
        assert (await fifth)["error"] == "INVALID"
