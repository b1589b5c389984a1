"""Several control planes: calls and streams move to one that is there, and harm nothing by it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import aclosing

import grpc
import pytest

from cli.local.ports import Held
from nsml.client import errors
from nsml.client.connect import connect
from nsml.client.content import download
from nsml.client.contexts import Context
from nsml.client.endpoints import PATIENCE_S, Endpoints, asked_of_any, asked_once
from nsml.client.idempotency import is_idempotent, only_reads
from nsml.client.streams import read_logs, read_metrics, watch_sessions
from nsml.client.uploads import push
from nsml.content.listing import list_folder
from nsml.v1 import sessions_pb2 as pb
from tests.support.proxy import Proxy
from tests.unit.controlplane.access.test_access_table import contract_files
from tests.unit.nsml.client.contract_server import ContractServer


@pytest.fixture
def other(server):
    """A second control plane of the same platform."""
    with ContractServer(server.state) as running:
        yield running


@pytest.fixture
async def both(server, other, context):
    async with connect(context._replace(others=(other.address,))) as connected:
        yield connected


@contextlib.contextmanager
def mute():
    """An address where connections are taken and nothing is ever said, as of a paused process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def closed():
    """Gives addresses where connections are refused; nobody begins to take them."""
    with Held() as held:
        yield lambda: f"127.0.0.1:{held.free()}"


async def test_reads_go_to_whoever_is_there(server, context, closed) -> None:
    name = server.state.add("kim/mnist/1").name
    dead = context._replace(server=closed(), others=(server.address,))
    async with connect(dead) as client:
        assert (await client.sessions.get(name)).name == name
        assert client.rpc.ways.now == server.address


async def test_nobody_is_waited_for_alone(server, context) -> None:
    name = server.state.add("kim/mnist/1").name
    with mute() as silent:
        paused = context._replace(server=silent, others=(server.address,))
        async with connect(paused) as client, asyncio.timeout(PATIENCE_S + 60):
            assert (await client.sessions.get(name)).name == name
            assert client.rpc.ways.now == server.address


async def test_what_may_not_be_repeated_goes_where_there_is_a_connection(
    server, context, closed
) -> None:
    session = server.state.add("kim/mnist/1")
    with mute() as silent:
        addresses = (closed(), silent, server.address)
        several = context._replace(server=addresses[0], others=addresses[1:])
        async with connect(several) as client, asyncio.timeout(PATIENCE_S + 60):
            await client.sessions.update(session.id, memo="x")
    assert server.state.sessions[session.id].memo == "x"


async def test_nobody_there_is_said_after_all_were_asked(context, closed) -> None:
    several = context._replace(server=closed(), others=(closed(),))
    async with connect(several) as client:
        for call in (client.sessions.get("@last"), client.sessions.stop("@last")):
            with pytest.raises(errors.Unavailable) as caught:
                await call
            assert caught.value.is_undone


class Asked:
    """Control planes that answer as they are told to."""

    def __init__(self, **answers: object) -> None:
        self.ways = Endpoints(lambda _: Ready(), list(answers))  # type: ignore[arg-type,return-value]
        self.answers = answers
        self.asked: list[str] = []

    async def ask(self, address: str, within_s: float) -> str:
        self.asked.append(address)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.sleep(within_s)
            raise errors.Unavailable("not in time")
        return str(answer)


class Ready:
    def get_state(self, *, try_to_connect: bool) -> object:
        return grpc.ChannelConnectivity.READY


def lost() -> errors.Unavailable:
    return errors.Unavailable("the connection broke")


def undone() -> errors.Unavailable:
    error = errors.Unavailable("not the leader")
    error.is_undone = True
    return error


async def test_a_lost_answer_is_asked_for_elsewhere_only_where_that_does_no_harm() -> None:
    reads = Asked(a=lost(), b="answer")
    assert await asked_of_any(reads.ways, reads.ask, 30) == "answer"
    assert (reads.asked, reads.ways.now) == (["a", "b"], "b")
    writes = Asked(a=lost(), b="answer")
    with pytest.raises(errors.Unavailable, match="the connection broke"):
        await asked_once(writes.ways, writes.ask, 30)
    assert (writes.asked, writes.ways.now) == (["a"], "b")


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
async def test_who_was_not_there_does_not_hide_what_others_said(order: str) -> None:
    away = errors.Unavailable("the history does not answer", retry_after_s=1.0)
    said = {"a": away, "b": undone(), "c": lost()}
    asked = Asked(**{name: said[name] for name in order})
    with pytest.raises(errors.Unavailable) as caught:
        await asked_of_any(asked.ways, asked.ask, 30)
    assert caught.value is away
    asked = Asked(**{name: said[name] for name in order if name != "a"})
    with pytest.raises(errors.Unavailable, match="the connection broke") as caught:
        await asked_of_any(asked.ways, asked.ask, 30)
    assert not caught.value.is_undone, "whom the connection was lost to may have done it"


async def test_what_was_refused_at_the_door_is_asked_of_the_next() -> None:
    writes = Asked(a=undone(), b="answer")
    assert await asked_once(writes.ways, writes.ask, 30) == "answer"
    assert (writes.asked, writes.ways.now) == (["a", "b"], "b")


async def test_an_answer_that_is_no_is_an_answer() -> None:
    for asked_by in (asked_of_any, asked_once):
        calls = Asked(a=errors.NotFound("no such session"), b="answer")
        with pytest.raises(errors.NotFound):
            await asked_by(calls.ways, calls.ask, 30)
        assert calls.asked == ["a"]


async def test_who_is_slow_may_still_be_the_only_one(monkeypatch) -> None:
    monkeypatch.setattr("nsml.client.endpoints.PATIENCE_S", 0.01)
    calls = Asked(a=None, b=lost())
    with pytest.raises(errors.Unavailable, match="not in time"):
        await asked_of_any(calls.ways, calls.ask, 0.2)
    assert calls.asked == ["a", "b"]


def test_what_only_reads_may_be_repeated_and_a_submission() -> None:
    reads = ("Get", "List", "Read", "Find", "Explain", "Locate")
    unary = [
        (f"{service.name}/{method.name}", method.input_type._concrete_class)
        for file in contract_files()
        if file.package == "nsml.v1"
        for service in file.services_by_name.values()
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    ]
    reading = {method for method, _ in unary if method.partition("/")[2].startswith(reads)}
    assert {method for method, request in unary if only_reads(method, request)} == reading
    repeatable = {method for method, request in unary if is_idempotent(method, request)}
    assert repeatable == reading | {
        "SessionService/CreateSession",
        "SubmissionService/CreateSubmission",
    }
    assert len(unary) > 2 * len(reading) > 40


async def test_streams_go_on_at_another_control_plane(both, server) -> None:
    session = server.state.add("kim/mnist/1")
    text = b"".join(b"line %d\n" % number for number in range(300))
    server.state.log(session, text[:700])
    server.state.report(session, "loss", 1.0, step=0)
    seen: list[int] = []
    begun = asyncio.Event()

    async def watch() -> None:
        async with aclosing(watch_sessions(both, pb.SessionFilter())) as answers:
            async for answer in answers:
                seen.append(answer.revision)
                begun.set()
                if any(one.state == pb.SESSION_STATE_SUCCEEDED for one in answer.changed):
                    return

    async def logs() -> bytes:
        return b"".join([piece.data async for piece in read_logs(both, session.id, follow=True)])

    async def metrics() -> list[float]:
        pages = read_metrics(both, session.id, follow=True)
        return [point.step async for page in pages for point in page.points]

    async with asyncio.timeout(60):
        watching, logged, read = (asyncio.create_task(one()) for one in (watch, logs, metrics))
        await begun.wait()
        await asyncio.to_thread(server.cut)
        server.state.log(session, text[700:])
        server.state.report(session, "loss", 0.5, step=1)
        server.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
        assert await logged == text
        assert await read == [0, 1]
        await watching
    assert seen == sorted(seen)


async def test_a_stream_leaves_a_control_plane_that_hangs(server, other, context) -> None:
    session = server.state.add("kim/mnist/1")
    server.state.log(session, b"before\n")
    async with Proxy(server.address) as proxy:
        hanging = context._replace(server=proxy.address, others=(other.address,))
        async with connect(hanging) as client, asyncio.timeout(60):
            got = b""
            async with aclosing(read_logs(client, session.id, follow=True)) as pieces:
                async for piece in pieces:
                    got += piece.data
                    if got == b"before\n":
                        proxy.silence()
                        server.state.log(session, b"after\n")
                        server.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
            assert got == b"before\nafter\n"


async def test_content_goes_and_comes_through_whoever_is_there(both, server, tmp_path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 300_000)
    listed = list_folder(folder)
    first = True

    def cut_once(_: object) -> None:
        nonlocal first
        if first:
            first = False
            server.cut()

    sent = await push(both, listed, progress=cut_once)
    assert not first
    first = True
    server.restore()
    both.rpc.ways.worked(server.address)
    await download(both, sent.digest, tmp_path / "back", progress=cut_once)
    assert not first
    for number in range(20):
        assert (tmp_path / "back" / f"{number}.bin").read_bytes() == bytes([number]) * 300_000


def test_a_context_has_several_servers() -> None:
    context = Context(name="lab", server="a:1", others=("b:1", "a:1"))
    assert context.servers == ("a:1", "b:1")
    assert context.at(["c:1", "d:1"]).servers == ("c:1", "d:1")
