"""The service agent.exec, with a real program that uses nsml on the other side of the replica's socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.link.exec_service import Expressions
from nodeagent.link.services import RunningReplica
from nodeagent.replica.orders import PAGE, ProgramOrders
from nodeagent.replica.requests import Loads, RequestServer
from nsml._agent import Conversation
from nsml.common.clock import in_thread
from nsml.spec.frames import Frames
from nsml.v1 import sessions_pb2 as pb
from tests.support.scripted_platform import session_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
WITHIN_S = 60.0
TRAINS = """
import sys, time, nsml
def train():
    state = {"lr": 0.1}
    for step in range(1 << 30):
        nsml.step(step)
        if step == 0:
            print("trains", flush=True)
        time.sleep(0.002)
train()
"""
WAITS = "import sys, nsml\nprint('waits', flush=True)\nfor line in sys.stdin: nsml.step()\n"


HOLDS = """
import time, weakref, nsml
class Batch:
    is_done = False
told = Batch()
def train():
    batch = Batch()
    seen = weakref.ref(batch)
    while not batch.is_done:
        nsml.step()
        time.sleep(0.002)
    batch = None
    print(seen(), flush=True)
def configured(rate):
    config = locals()
    for name in config:
        while not told.is_done:
            nsml.step()
            time.sleep(0.002)
    print(*config, flush=True)
print("trains", flush=True)
train()
configured(0.1)
"""


class Client:
    """The other end of the stream."""

    def __init__(self, request: pb.EvaluateRequest) -> None:
        self._says = [request.SerializeToString()]
        self._frames = Frames()
        self.heard: list[pb.EvaluateResponse] = []
        self.is_told = asyncio.Condition()

    async def read(self) -> bytes:
        return self._says.pop(0) if self._says else b""

    async def write(self, data: bytes) -> None:
        async with self.is_told:
            self.heard += map(pb.EvaluateResponse.FromString, self._frames.feed(data))
            self.is_told.notify_all()

    async def hears(self, kind: str) -> pb.EvaluateResponse:
        def found() -> list[pb.EvaluateResponse]:
            return [one for one in self.heard if one.WhichOneof("kind") == kind]

        async with asyncio.timeout(WITHIN_S), self.is_told:
            await self.is_told.wait_for(found)
        return found()[0]


class Node:
    """An agent's part for one replica."""

    def __init__(self, folder: ReplicaFolder) -> None:
        self.folder = folder
        self.page = folder.run / PAGE
        self._orders = ProgramOrders()
        self._expressions = Expressions(self._orders)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        with self._orders.open_to(REPLICA, self.folder.run) as orders:
            server = RequestServer(
                REPLICA, self.folder, cast("Loads", None), orders=orders, run=in_thread
            )
            async with server.listening():
                yield

    def asks(
        self, code: str, *, user: str = "kim", **options: Any
    ) -> tuple[Client, asyncio.Task[None]]:
        request = pb.EvaluateRequest(expression=code, local_rank=options.get("local_rank", 0))
        request.limit.FromMilliseconds(round(options.get("limit_s", 30.0) * 1e3))
        request.wait.FromMilliseconds(round(options.get("wait_s", WITHIN_S) * 1e3))
        client = Client(request)
        replica = RunningReplica(id=REPLICA, folder=self.folder, user=user)
        return client, asyncio.create_task(self._expressions.serve(replica, client))  # type: ignore[arg-type]

    async def gets(self, code: str, **options: Any) -> pb.EvaluateResponse:
        """What comes of it at last."""
        client, serving = self.asks(code, **options)
        await asyncio.wait_for(serving, 2 * WITHIN_S)
        return client.heard[-1]

    @asynccontextmanager
    async def running(
        self, code: str, **variables: str
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """A program of the replica that has said a line."""
        environment = {**os.environ, "NSML_RUN_DIR": str(self.folder.run), **variables}
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert program.stdout is not None
            assert await asyncio.wait_for(program.stdout.readline(), WITHIN_S)
            yield program
        finally:
            with suppress(ProcessLookupError):
                program.kill()
            await program.communicate()


@pytest.fixture
async def node(tmp_path) -> AsyncIterator[Node]:
    folder = ReplicaFolders(tmp_path).of(REPLICA)
    folder.create()
    node = Node(folder)
    async with node.listening():
        yield node


async def test_a_running_program_evaluates_it_and_trains_on(node: Node) -> None:
    async with node.running(TRAINS) as program:
        found = (await node.gets("state['lr'] = 0.5; step")).evaluated
        later = (await node.gets("state['lr'], step > " + found.value)).evaluated
        assert (later.value, later.error) == ("(0.5, True)", "")
        assert found.took.ToNanoseconds() > 0
        failed = (await node.gets("1/0")).evaluated
        assert failed.error.endswith("ZeroDivisionError: division by zero")
        late = (await node.gets("while True: pass", limit_s=0.2)).evaluated
        assert (late.is_late, late.error) == (True, "")
        assert (await node.gets("'x' * 100_000")).evaluated.is_cut
        assert (await node.gets("'\\x00' * 60_000, 'é' * 60_000")).evaluated.value
        assert program.returncode is None


async def test_reading_variables_holds_none_and_changes_none(node: Node) -> None:
    async with node.running(HOLDS) as program:
        assert program.stdout is not None
        assert not (await node.gets("batch.is_done = True")).evaluated.error
        assert await program.stdout.readline() == b"None\n"
        assert not (await node.gets("told.is_done = True")).evaluated.error
        assert await program.stdout.readline() == b"rate\n"


async def test_what_cannot_be_evaluated_says_why(node: Node) -> None:
    code = WAITS.replace("nsml.step()", "nsml.report(a=1, scope=5)")
    async with node.running(code) as program:
        assert program.stdin is not None
        client, serving = node.asks("1")
        await client.hears("waits")
        program.stdin.write(b"\n")
        await asyncio.wait_for(serving, WITHIN_S)
        assert "could not be evaluated" in client.heard[-1].evaluated.error


async def test_a_child_of_it_prints_where_the_program_does(node: Node) -> None:
    code = (
        "import os\nchild = os.fork()\nif not child:\n print('of the child', flush=True)\n os._exit(0)\n"
        "os.waitpid(child, 0)[1]"
    )
    async with node.running(TRAINS) as program:
        assert program.stdout is not None
        assert (await node.gets(code)).evaluated.value == "0"
        assert await program.stdout.readline() == b"of the child\n"


async def test_an_agent_that_begins_anew_is_heard_as_well(tmp_path) -> None:
    folder = ReplicaFolders(tmp_path).of(REPLICA)
    folder.create()
    first = Node(folder)
    async with first.listening(), first.running(TRAINS):
        assert (await first.gets("1 + 1")).evaluated.value == "2"
        assert (await first.gets("1 + 2")).evaluated.value == "3"
        second = Node(folder)
        async with second.listening():
            assert (await second.gets("1 + 3")).evaluated.value == "4"


async def test_it_waits_for_a_safe_point_and_for_its_turn(node: Node) -> None:
    async with node.running(WAITS) as program:
        assert program.stdin is not None
        assert "no safe point within 0.1 s" in (await node.gets("1", wait_s=0.1)).refused
        first, serving_first = node.asks("'first'")
        await first.hears("waits")
        second, serving_second = node.asks("'second'", user="lee")
        assert (await second.hears("behind")).behind == "kim"
        assert [one.WhichOneof("kind") for one in second.heard] == ["behind"]
        while not (serving_first.done() and serving_second.done()):
            program.stdin.write(b"\n")  # a safe point each
            await program.stdin.drain()
            await asyncio.sleep(0.01)
        assert first.heard[-1].evaluated.value == "'first'"
        assert second.heard[-1].evaluated.value == "'second'"
        assert "no safe point within 0 s" in (await node.gets("1", wait_s=0.0)).refused


async def test_who_leaves_asks_nothing_any_more(node: Node) -> None:
    async with node.running(WAITS) as program:
        assert program.stdin is not None
        client, serving = node.asks("print('never')")
        await client.hears("waits")
        serving.cancel()
        await asyncio.wait([serving])
        client, serving = node.asks("'asked'")
        while not serving.done():
            program.stdin.write(b"\n")
            await program.stdin.drain()
            await asyncio.sleep(0.01)
        assert (client.heard[-1].evaluated.output, client.heard[-1].evaluated.value) == (
            "",
            "'asked'",
        )


@pytest.mark.parametrize(
    "code", ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
)
async def test_a_program_that_ends_by_it_is_told(node: Node, code: str) -> None:
    async with node.running(TRAINS) as program:
        assert "its program ended" in (await node.gets(code)).refused
        await asyncio.wait_for(program.wait(), WITHIN_S)
    async with node.running(TRAINS):
        assert (await node.gets("'next'")).evaluated.value == "'next'"


async def test_what_holds_all_threads_is_given_up(node: Node, monkeypatch) -> None:
    monkeypatch.setattr("nodeagent.link.exec_service._BEYOND_LIMIT_S", 0.2)
    async with node.running(TRAINS) as program:
        client, serving = node.asks("import os; os.kill(os.getpid(), 19)", limit_s=0.2)
        await client.hears("runs")
        await asyncio.wait_for(serving, WITHIN_S)
        assert "has not stopped" in client.heard[-1].refused
        program.send_signal(signal.SIGCONT)
        assert (await node.gets("'again'")).evaluated.value == "'again'"


async def test_of_several_processes_the_one_that_is_named_evaluates_it(node: Node) -> None:
    code = TRAINS.replace("lr", "rank")
    async with node.running(code, LOCAL_RANK="0"), node.running(code, LOCAL_RANK="1"):
        for rank in (0, 1, 0):
            found = await node.gets("__import__('os').environ['LOCAL_RANK']", local_rank=rank)
            assert found.evaluated.value == f"'{rank}'"
        assert "no safe point" in (await node.gets("1", local_rank=2, wait_s=0.5)).refused


def removed(page) -> None:
    page.unlink()


def a_link(page) -> None:
    page.rename(page.with_name("elsewhere"))
    page.symlink_to(page.with_name("elsewhere"))


def a_second_name(page) -> None:
    os.link(page, page.with_name("elsewhere"))


def a_pipe(page) -> None:
    page.unlink()
    os.mkfifo(page)


def a_folder(page) -> None:
    page.unlink()
    page.mkdir()


def another_file(page) -> None:
    page.write_bytes(b"\1" * 64)


def a_longer_file(page) -> None:
    page.write_bytes(page.read_bytes() + b"\0")


@pytest.mark.parametrize(
    "replace", [removed, a_link, a_second_name, a_pipe, a_folder, another_file, a_longer_file]
)
async def test_a_page_that_is_replaced_is_not_written(
    node: Node, replace: Callable[..., None]
) -> None:
    async with node.running(WAITS):
        replace(node.page)
        before = {one.name: one.read_bytes() for one in node.folder.run.iterdir() if one.is_file()}
        assert "run/orders" in (await node.gets("1")).refused
        after = {one.name: one.read_bytes() for one in node.folder.run.iterdir() if one.is_file()}
        assert after == before


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"value": 7, "output": [1], "error": {"a": 1}, "is_late": "no", "took_s": "long"},
        {"value": "x" * 500_000, "output": "\ud800" * 70_000, "took_s": 1e300},
        {"took_s": float("nan")},
        {"took_s": -1.0, "is_cut": 1},
        {"hides": ["x" * 500, 7, None, *"abcdefg"]},
        {"hides": "lr"},
    ],
)
async def test_a_program_that_lies_is_taken_as_far_as_it_makes_sense(node: Node, answer) -> None:
    client, serving = node.asks("1")
    await client.hears("waits")

    def lie() -> None:
        with Conversation(str(node.folder.run), timeout_s=WITHIN_S) as agent:
            assert agent.ask({"op": "order", "local_rank": "0"})["order"]["expression"] == "1"
            agent.ask({"op": "answer", "answer": answer})

    await asyncio.to_thread(lie)
    await asyncio.wait_for(serving, WITHIN_S)
    found = client.heard[-1].evaluated
    assert len(found.value) <= 65_536
    assert not found.is_late
    assert len(found.hides) <= 5
    assert all(0 < len(one) <= 100 for one in found.hides)
    assert found.took.ToNanoseconds() == 0


async def test_who_has_given_up_on_a_slow_agent_takes_no_order(node: Node) -> None:
    gone = socket.socket(socket.AF_UNIX)
    gone.connect(str(node.folder.run / "socket"))
    gone.sendall(b'{"v": 1, "op": "order"}\n')
    gone.close()
    client, serving = node.asks("1")  # before the agent has read that
    async with node.running(TRAINS):
        await asyncio.wait_for(serving, WITHIN_S)
    assert client.heard[-1].evaluated.value == "1"


async def test_code_that_is_too_long_is_refused(node: Node) -> None:
    assert "64 KiB" in (await node.gets("#" * (64 << 10) + "1")).refused


async def test_nothing_is_told_within_a_time_limit(node: Node) -> None:
    """A write that is cancelled breaks the connection, and its client would not know what happened."""
    client, serving = node.asks("1", wait_s=0.0)
    write = client.write
    cancelled: list[bytes] = []

    async def slow(data: bytes) -> None:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            cancelled.append(data)
            raise
        await write(data)

    client.write = slow  # type: ignore[method-assign]
    await asyncio.wait_for(serving, WITHIN_S)
    assert not cancelled
    assert "no safe point" in client.heard[-1].refused


async def test_an_answer_to_nothing_is_refused(node: Node) -> None:
    def answer() -> None:
        with Conversation(str(node.folder.run), timeout_s=WITHIN_S) as agent:
            assert agent.ask({"op": "order"})["order"] is None
            agent.ask({"op": "answer", "answer": {}})

    with pytest.raises(Exception, match="nothing was asked"):
        await asyncio.to_thread(answer)
