"""Clients and agents move between real control planes: one is killed under streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from controlplane.access.files import write_private
from controlplane.access.platform_keys import KEY_FILE
from nsml.client import contexts
from nsml.client.calls import Client
from nsml.client.connect import connect
from nsml.client.contexts import Context
from nsml.client.errors import ClientError
from nsml.client.streams import read_logs, read_metrics, watch_sessions
from nsml.client.trust import SERVER_NAME
from nsml.v1 import sessions_pb2 as pb
from tests.integration.machine import Machine, until
from tests.support.shared_platform import ControlPlaneProcess, Shared, shared

__all__ = ["shared"]

LISTENERS = {"listen": "127.0.0.1:0", "listen_agents": "127.0.0.1:0", "hosts": ["127.0.0.1"]}
PROGRAM = """\
import os, socket, threading, time
import nsml

def serve():
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.environ["NSML_RUN_DIR"] + "/tunnel/echo")
        listening.listen()
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=answer, args=[connection], daemon=True).start()

def answer(connection):
    while data := connection.recv(4096):
        connection.sendall(data[::-1])
    connection.close()

threading.Thread(target=serve, daemon=True).start()
number = 0
while not os.path.exists(os.environ["NSML_RUN_DIR"] + "/enough") and number < 20_000:
    print("line", number, flush=True)
    nsml.report(step=number, loss=1.0 / (number + 1))
    number += 1
    time.sleep(0.05)
print("done", number, flush=True)
"""


class Seen:
    """What the streams of one client gave, each from its beginning to the end of the session."""

    def __init__(self, client: Client, session: pb.Session) -> None:
        self._client = client
        self._session = session
        self.lines = b""
        self.steps: list[float] = []
        self.revisions: list[int] = []
        self.news = asyncio.Condition()

    async def follow(self) -> None:
        await asyncio.gather(self._log(), self._metrics(), self._watch())

    async def further(self) -> None:
        """Each stream but the watch has given more than it has now."""
        lines, steps = len(self.lines), len(self.steps)
        async with asyncio.timeout(60), self.news:
            await self.news.wait_for(lambda: len(self.lines) > lines and len(self.steps) > steps)

    async def _log(self) -> None:
        async with aclosing(read_logs(self._client, self._session.id, follow=True)) as pieces:
            async for piece in pieces:
                assert (piece.offset, piece.missing_bytes) == (len(self.lines), 0)
                self.lines += piece.data
                await self._note()

    async def _metrics(self) -> None:
        async with aclosing(read_metrics(self._client, self._session.id, follow=True)) as pages:
            async for page in pages:
                self.steps += [point.step for point in page.points]
                await self._note()

    async def _watch(self) -> None:
        chosen = pb.SessionFilter(name_glob=self._session.name)
        async with aclosing(watch_sessions(self._client, chosen)) as answers:
            async for answer in answers:
                self.revisions.append(answer.revision)
                if any(one.state == pb.SESSION_STATE_SUCCEEDED for one in answer.changed):
                    return

    async def _note(self) -> None:
        async with self.news:
            self.news.notify_all()


@contextlib.asynccontextmanager
async def platform(
    shared: Shared, folder: Path
) -> AsyncIterator[tuple[list[ControlPlaneProcess], Context, Machine]]:
    """Two control planes, one node that was told of one of them only, and who uses both."""
    key = secrets.token_bytes(32).hex().encode() + b"\n"
    for name in ("first", "second"):
        write_private(folder / name / "d" / KEY_FILE, key)
    with (
        shared.control_plane(folder / "first", **LISTENERS) as first,
        shared.control_plane(folder / "second", **LISTENERS) as second,
    ):
        planes = [first, second]
        token = json.loads(first.nsml("admin", "join-token", "-j"))["token"]
        context = Context(
            name="lab",
            server=first.ready()["listen"],
            others=(second.ready()["listen"],),
            ca=str(first.data / "ca.pem"),
            server_name=SERVER_NAME,
            token_file=str(first.data / "admin.token"),
        )
        node = Machine(folder / "node")
        join = ("--name", "gpu-7", "--simulate-gpus", "1")
        try:
            joined = node.nsml("join", first.ready()["listen"], *join, "--token", "-", stdin=token)
            assert joined.returncode == 0, joined.stderr
            until(lambda: "READY" in second.nsml("node", "ls").upper())
            yield planes, context, node
        finally:
            node.nsml("down", "-y")
        assert node.leftovers() == []


def leader(planes: list[ControlPlaneProcess]) -> int:
    """Which of them leads, as soon as one does."""
    found = ""

    def is_known() -> bool:
        nonlocal found
        found = json.loads(planes[0].nsml("status", "-j"))["leader"] or ""
        return bool(found)

    until(is_known)
    return [plane.data.parent.name for plane in planes].index(found)


async def echoed(client: Client, session: pb.Session) -> bytes:
    """What the program answers over a tunnel, as soon as there is one."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with client.sessions.open_tunnel(session.id, "echo") as tunnel:
                    await tunnel.write(b"hello")
                    await tunnel.end()
                    return await tunnel.read()
            except ClientError:
                await asyncio.sleep(0.1)


@pytest.mark.every_time
async def test_streams_go_on_when_the_leader_is_killed(shared: Shared, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text(PROGRAM)
    async with platform(shared, tmp_path) as (planes, context, node):
        gone = planes[leader(planes)]
        at = gone.ready()["listen"]
        everywhere = sorted(context.servers, key=lambda one: one != at)
        asked = await asyncio.to_thread(
            node.nsml, "run", "-g", "1", "-o", "name", cwd=code,
            NSML_CONFIG_DIR=str(kept(tmp_path, context.at(everywhere))),
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        async with connect(context.at(everywhere)) as client:
            session = await client.sessions.get(asked.stdout.strip())
            seen = Seen(client, session)
            following = asyncio.create_task(seen.follow())
            await seen.further()
            assert await echoed(client, session) == b"olleh"
            gone.process.kill()
            async with asyncio.timeout(60):
                while client.rpc.ways.now == at:  # noqa: ASYNC110 - it does so when a call breaks
                    await asyncio.sleep(0.02)
            await seen.further()  # what is written from now on is read from the other
            await seen.further()
            assert await echoed(client, session) == b"olleh"
            run_folder = next(node.data.glob("agent/replicas/*/run"))
            (run_folder / "enough").touch()
            async with asyncio.timeout(60):
                await following
        count = len(seen.steps)
        assert seen.steps == list(range(count))
        wanted = "".join(f"line {number}\n" for number in range(count)) + f"done {count}\n"
        assert seen.lines.decode() == wanted
        assert seen.revisions == sorted(seen.revisions)


def kept(folder: Path, context: Context) -> Path:
    """A configuration folder with this context."""
    config = contexts.Config(folder=str(folder / "client"))
    contexts.save(config.with_context(context))
    return folder / "client"
