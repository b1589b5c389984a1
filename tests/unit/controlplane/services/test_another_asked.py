"""What was sent to one control plane counts at another; what was shown is asked for again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from controlplane.history.values import Checkpoint, CheckpointState
from nsml.client.calls import Client
from nsml.client.content import download
from nsml.client.endpoints import Endpoints
from nsml.client.errors import MissingBlobs, NotFound
from nsml.client.uploads import made_of, upload
from nsml.content.packing import Packed, pack
from nsml.v1 import datasets_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.controlplane.rig import Rig
from tests.unit.controlplane.services.test_leader_forwarding import two


@contextlib.asynccontextmanager
async def asking() -> AsyncIterator[tuple[Rig, Rig, Client]]:
    """A leader and a standby, and a client of both that asks the leader first."""
    async with two() as (leader, standby), contextlib.AsyncExitStack() as stack:
        kim = await standby.also(await leader.user("kim"))
        await (await leader.agent()).connect()

        def opened(address: str) -> grpc.aio.Channel:
            channel = grpc.aio.insecure_channel(address)
            stack.push_async_callback(channel.close)
            return channel

        ways = Endpoints(opened, (leader.address, standby.address))
        yield leader, standby, Client(ways, token=kim.metadata[0][1].removeprefix("Bearer "))


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print()\n")
    return pack(tmp_path / "code")


def session(digest: str) -> pb.CreateSessionRequest:
    spec = pb.SessionSpec(argv=["true"], bundle_digest=digest)
    spec.resources.CopyFrom(resources_pb2.Resources(gpu_thousandths=1000))
    return pb.CreateSessionRequest(request_id="r1", spec=spec)


@pytest.mark.parametrize("kind", ["session", "dataset"])
async def test_what_one_was_sent_counts_at_the_other(packed: Packed, kind: str) -> None:
    async with asking() as (_, standby, client):
        sent = await upload(client, packed)
        client.rpc.ways.worked(standby.address)
        version = datasets_pb2.CreateDatasetVersionRequest(name="digits", digest=sent.digest)

        async def make() -> object:
            if kind == "session":
                return await client.sessions.create(session(sent.digest))
            return await client.datasets.create_version(version)

        assert await make()
        assert client.rpc.ways.now == standby.address


@pytest.mark.parametrize("kind", ["session", "dataset"])
async def test_what_was_sent_too_long_ago_is_sent_again(packed: Packed, kind: str) -> None:
    async with asking() as (leader, _, client):
        sent = await upload(client, packed)
        await leader.on.history.sent.forget(before=1 << 30)
        version = datasets_pb2.CreateDatasetVersionRequest(name="digits", digest=sent.digest)

        async def make() -> object:
            if kind == "session":
                return await client.sessions.create(session(sent.digest))
            return await client.datasets.create_version(version)

        with pytest.raises(MissingBlobs):
            await make()
        assert await made_of(client, packed, make)


async def test_what_one_has_shown_the_other_is_asked_for(packed: Packed, tmp_path: Path) -> None:
    async with asking() as (leader, standby, client):
        sent = await upload(client, packed)
        created = await client.sessions.create(session(""))
        checkpoint = Checkpoint(
            session_id=created.id,
            name="best",
            saved_at=7.0,
            size_bytes=1,
            file_count=1,
            state=CheckpointState.DURABLE,
            digest=sent.digest,
        )
        await leader.on.history.catalogue.put_checkpoint(checkpoint)
        shown = partial(client.checkpoints.get, created.name, "best")
        await shown()
        await download(client, sent.digest, tmp_path / "first")
        client.rpc.ways.worked(standby.address)
        with pytest.raises(NotFound):
            await download(client, sent.digest, tmp_path / "back")
        await download(client, sent.digest, tmp_path / "back", shown_by=shown)
        assert (tmp_path / "back" / "main.py").read_text() == "print()\n"
        assert client.rpc.ways.now == standby.address
