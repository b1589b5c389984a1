"""The endpoint of one session over a real socket: obstore reads it, and others try what they should not."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import grpc.aio
import obstore
import pytest
from obstore.store import S3Store

from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.replica.assignments import dataset_name
from nodeagent.runtimes.visits import NotAdmitted
from nodeagent.streaming.chunk_cache import ChunkCache
from nodeagent.streaming.connections import Bounds
from nodeagent.streaming.endpoints import Endpoints
from nsml.client.rpc import Rpc
from nsml.common.clock import SystemClock, in_own_thread
from nsml.content.digests import digest_of
from nsml.content.packing import pack
from nsml.v1 import sessions_pb2 as sessions
from tests.support.scripted_platform import ScriptedPlatform, session_id

BIG = Random(1).randbytes(9 << 20)
FILES = {"big.bin": BIG, "a/one.txt": b"one", "a/b/x y+\u00fc": b"two", "empty": b""}
REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
NARROW = Bounds(connections=1, idle_s=0.2, stalled_s=0.4)


@dataclass
class Node:
    """What a session's endpoint stands on, without a session."""

    platform: ScriptedPlatform
    endpoints: Endpoints
    cache: Path
    spec: sessions.SessionSpec
    chunks: list[str]
    listeners: list[socket.socket] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listeners[0].getsockname()
        return host, port

    def store(self, bucket: str = "data", replica: ReplicaId = REPLICA, **more: str) -> S3Store:
        keys = self.endpoints.keys(replica)
        facts: dict[str, Any] = {
            "endpoint": "http://{}:{}".format(*self.address),
            "access_key_id": keys.access_key_id,
            "secret_access_key": keys.secret,
            "region": "us-east-1",
            **more,
        }
        return S3Store(
            bucket, client_options={"allow_http": True}, retry_config={"max_retries": 0}, **facts
        )

    async def said(self, data: bytes) -> bytes:
        """All that is answered, until the connection is closed."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(data)
        await writer.drain()
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    platform = ScriptedPlatform(patience_s=30)
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for name, data in FILES.items():
        (tmp_path / "pushed" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pushed" / name).write_bytes(data)
    packed = pack(tmp_path / "pushed")
    platform.put_manifest(packed.manifest.encode())
    for ref in packed.manifest.refs():
        platform.blobs[ref.digest] = packed.source.read(ref.digest)
    digest = packed.manifest.digest
    spec = sessions.SessionSpec(
        datasets=[
            sessions.DatasetReference(name="lee/data", digest=digest, streamed=True),
            sessions.DatasetReference(name="fetched", digest=digest),
        ]
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = Node(platform, None, tmp_path / "chunks", spec, list(packed.manifest.blobs()))  # type: ignore[arg-type]

        async def listener(_: ReplicaFolder) -> socket.socket:
            """As of a program that begins a little later."""
            if not found.listeners:
                made = socket.create_server(("127.0.0.1", 0))
                # what a client does not take is soon not taken by its socket, either
                made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
                found.listeners.append(made)
                raise NotAdmitted("it is just beginning")
            return found.listeners[0].dup()

        async def pause() -> None:
            await asyncio.sleep(0.01)

        found.endpoints = Endpoints(
            tmp_path / "node",
            ChunkCache(found.cache, kind="chunks", most_bytes=5 << 20),
            rpc=lambda: Rpc(channel),
            listener=listener,
            run_long=in_own_thread,
            pause=pause,
            clock=SystemClock(),
            bounds=getattr(request, "param", None),
        )
        found.endpoints.create()
        yield found
        found.endpoints.close()
        for one in found.listeners:
            one.close()
    await server.stop(None)


@asynccontextmanager
async def served(node: Node) -> AsyncIterator[None]:
    await node.endpoints.prepare(node.spec)
    async with node.endpoints.serving(REPLICA, ReplicaFolder(node.cache), node.spec):
        await until(lambda: bool(node.listeners))
        yield


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def read(store: S3Store, path: str) -> bytes:
    return bytes(await (await obstore.get_async(store, path)).bytes_async())


async def fails(call: Awaitable[object]) -> str:
    with pytest.raises(Exception) as error:
        await call
    return f"{type(error.value).__name__} {error.value}"


async def test_a_client_reads_what_was_pushed_from_a_cache_that_is_smaller(node: Node) -> None:
    async with served(node):
        store = node.store()
        for name, data in FILES.items():
            assert await read(store, name) == data
        ranges = await obstore.get_ranges_async(
            store, "big.bin", starts=[0, 3 << 20, len(BIG) - 5], ends=[9, (6 << 20) + 1, len(BIG)]
        )
        assert [bytes(one) for one in ranges] == [BIG[:9], BIG[3 << 20 : (6 << 20) + 1], BIG[-5:]]
        listed = [one["path"] async for some in obstore.list(store) for one in some]
        assert sorted(listed) == sorted(FILES)
        at_top = await obstore.list_with_delimiter_async(store)
        assert list(at_top["common_prefixes"]) == ["a"]
        kept = sum(one.stat().st_size for one in node.cache.glob("*/*"))
        assert 0 < kept <= 5 << 20


async def test_readers_of_one_chunk_have_it_fetched_once(node: Node) -> None:
    async with served(node):
        store = node.store()
        found = await asyncio.gather(*(read(store, "a/one.txt") for _ in range(20)))
        assert set(found) == {b"one"}
        assert node.platform.asked_for.count(digest_of(b"one")) == 1


async def test_other_keys_other_datasets_and_writes_are_refused(node: Node) -> None:
    async with served(node):
        another = replace(REPLICA, attempt=2)
        assert "PermissionDenied" in await fails(read(node.store(replica=another), "empty"))
        wrong = node.store(secret_access_key="x")
        assert "SignatureDoesNotMatch" in await fails(read(wrong, "empty"))
        assert "FileNotFoundError" in await fails(read(node.store("fetched"), "empty"))
        assert "read-only" in await fails(obstore.put_async(node.store(), "x", b"1"))
        assert b"AccessDenied" in await node.said(
            b"GET /data/empty HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )


async def test_what_comes_damaged_is_cut_off_and_never_passed_on(node: Node) -> None:
    async with served(node):
        store = node.store()
        blobs, last = node.platform.blobs, node.chunks[-1]
        assert len(node.chunks) > 3
        of_big = [one for one in node.chunks if one not in map(digest_of, FILES.values())]
        whole, blobs[of_big[-1]] = blobs[of_big[-1]], b"\0" * len(blobs[of_big[-1]])
        assert "Error" in await fails(read(store, "big.bin"))
        assert (
            bytes(await obstore.get_range_async(store, "big.bin", start=0, end=100)) == BIG[:100]
        ), last
        blobs[of_big[-1]] = whole
        assert await read(store, "big.bin") == BIG


async def test_what_is_damaged_in_the_store_is_told_and_not_asked_for_again(node: Node) -> None:
    async with served(node):
        node.platform.damaged.add(digest_of(b"one"))
        found = await fails(read(node.store(), "a/one.txt"))
        assert "InvalidObjectState" in found
        assert "damaged in the object store" in found
        node.platform.damaged.clear()
        assert await read(node.store(), "a/one.txt") == b"one"


async def test_a_client_is_told_to_come_again_while_the_disk_is_full(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(node):
        with monkeypatch.context() as full:
            full.setattr("nodeagent.streaming.chunk_cache.room_for_builds", lambda *_: 0)
            found = await fails(read(node.store(), "big.bin"))
            assert "SlowDown" in found
            assert "disk of this node is full" in found
        assert await read(node.store(), "big.bin") == BIG


@pytest.mark.parametrize("node", [NARROW], indirect=True)
async def test_a_crowd_of_connections_waits_and_idle_ones_make_room(node: Node) -> None:
    async with served(node):
        crowd = [socket.create_connection(node.address) for _ in range(10)]
        try:
            crowd[0].sendall(b"GET / HTTP/1.1\r\nhost:")  # and never goes on
            # they are closed one after the other, and then somebody else has a turn
            assert await read(node.store(), "a/one.txt") == b"one"
        finally:
            for one in crowd:
                one.close()


@pytest.mark.parametrize("node", [NARROW], indirect=True)
async def test_a_client_that_takes_nothing_is_closed(node: Node) -> None:
    async with served(node):
        slow = await obstore.get_async(node.store(), "big.bin")
        # the only connection is that one's, which is not read
        assert await read(node.store(), "a/one.txt") == b"one"
        assert "Error" in await fails(slow.bytes_async())


@pytest.mark.parametrize(
    "sent",
    [
        b"nothing of the kind\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
        b"GET /" + b"a" * 1_000_000,
        b"GET http://x/ HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999999\r\n\r\n"
        + b"x" * 100_000,
        b"PUT /data/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\nx",
        b"GET /data/%zz%00\xc3 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    ],
)
async def test_what_no_client_sends_is_refused_and_others_are_served(
    node: Node, sent: bytes
) -> None:
    async with served(node):
        answer = await node.said(sent)
        assert answer.startswith((b"HTTP/1.1 4", b"")), answer
        assert b"200" not in answer[:15]
        assert await read(node.store(), "a/one.txt") == b"one"


async def test_an_s3_of_the_users_own_is_left_alone(node: Node) -> None:
    found = node.endpoints.variables(REPLICA, node.spec)
    assert found.plain["AWS_ACCESS_KEY_ID"] == found.plain["NSML_S3_ACCESS_KEY_ID"]
    assert found.plain["NSML_STREAMED"] == dataset_name(node.spec.datasets[0]) == "data"
    assert found.secret["AWS_SECRET_ACCESS_KEY"] not in repr(node.endpoints.keys(REPLICA))
    spec = sessions.SessionSpec(
        datasets=node.spec.datasets,
        environment={"AWS_REGION": "eu-west-1"},
        secrets=[sessions.SecretUse(name="S3", variable="AWS_SECRET_ACCESS_KEY")],
    )
    own = node.endpoints.variables(REPLICA, spec)
    assert not any(
        name.startswith("AWS") for name in {**own.plain, **own.secret, **dict.fromkeys(own.urls)}
    )
    assert own.note.startswith("AWS_SECRET_ACCESS_KEY is set")
    spec.ClearField("secrets")
    assert "AWS_REGION" not in node.endpoints.variables(REPLICA, spec).plain


async def test_keys_outlive_the_agent_and_are_each_replicas_own(node: Node) -> None:
    keys = node.endpoints.keys(REPLICA)
    node.endpoints.create()
    assert node.endpoints.keys(REPLICA) == keys
    other = node.endpoints.keys(replace(REPLICA, rank=1))
    assert (other.access_key_id != keys.access_key_id, other.secret != keys.secret) == (True, True)
    assert os.stat(node.cache.parent / "node" / "key").st_mode & 0o777 == 0o600  # noqa: PTH116
