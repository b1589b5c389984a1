"""Reads of a bucket past the control plane, against a real S3 server and against servers that misbehave."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from controlplane.access.authority import make_authority
from controlplane.content.direct import DirectReads, SignedPack
from controlplane.history.sql.packs import SqlPacks
from controlplane.objects.bucket_files import Bucket as SharedBucket
from controlplane.objects.files import Files
from controlplane.objects.packed import PackedObjects
from controlplane.objects.service import BucketService
from controlplane.objects.shared_files import open_shared
from nodeagent.peers.sources import ChunkLocation
from nodeagent.storage.bucket import Bucket
from nodeagent.storage.bucket_reader import BucketReader, NotRead, Reading
from nsml.common.clock import SystemClock, in_own_thread, in_thread
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef
from nsml.v1 import content_pb2 as pb
from tests.support.packed_objects import pack_index
from tests.support.s3 import KEYS, S3Server, s3

__all__ = ["s3"]

ROOT = "a" * 64


class Store:
    """A bucket with an index, and who may be given URLs of it."""

    def __init__(self, s3: S3Server) -> None:
        service = BucketService(endpoint=s3.endpoint)
        url = f"s3://{s3.bucket()}/p"
        self.files: Files = open_shared(url, in_thread, service=service, environment=KEYS)
        self.index: SqlPacks = pack_index()
        self.objects = PackedObjects(self.files, self.index)
        self.direct = DirectReads(SharedBucket(self.files, b""), self.index)

    async def put(self, *blobs: bytes) -> list[str]:
        """All in one pack."""
        found = {digest_of(one): one for one in blobs}
        await self.objects.put_many(found)
        return list(found)

    async def signed(self, wanted: Sequence[str], readable: Sequence[str]) -> list[SignedPack]:
        return await self.direct.packs(ROOT, wanted, set(readable))


def some(count: int, size: int = 50_000) -> list[bytes]:
    """Blobs, every other one of which is compressed where it is stored."""
    return [
        os.urandom(size) if number % 2 else os.urandom(16) * (size // 16) for number in range(count)
    ]


async def test_only_packs_with_nothing_else_in_them_are_signed(s3: S3Server) -> None:
    store = Store(s3)
    own = await store.put(*some(4))
    [pack] = await store.signed(own[:1], own)
    assert [one.digest for one in pack.places] == own[:1]
    mixed = await store.put(*some(3))
    # the URL would read the last one, too
    assert not await store.direct.packs("b" * 64, mixed, set(mixed[:-1]))
    assert len(await store.direct.packs("c" * 64, mixed, set(mixed))) == 1
    assert not await store.direct.packs("d" * 64, ["0" * 64], {"0" * 64})


async def test_bytes_that_the_index_has_elsewhere_or_no_more_are_not_signed(s3: S3Server) -> None:
    store = Store(s3)
    first, second = some(2)
    both = await store.put(first, second)
    again = await store.put(second, third := os.urandom(5000))
    # `second` lies in this pack as well, and the index says that it lies in the other one
    assert not await store.signed([digest_of(third)], [digest_of(third), *again])
    assert len(await store.signed(both, both)) == 1
    deleted = digest_of(second)
    await store.objects.put_aside([deleted], lambda: True)
    await store.objects.delete([deleted])
    assert not await store.direct.packs("b" * 64, both[:1], {both[0]})


class Platform:
    """Stands for the connection to a control plane that gives these URLs."""

    def __init__(self, locate: Callable[[Sequence[str]], Any]) -> None:
        self._locate = locate
        self.calls = 0

    async def unary(self, _: str, request: Any, __: Any) -> pb.LocateBlobsResponse:
        self.calls += 1
        return await self._locate(request.digests)


def bucket_of(
    platform: Platform,
    notes: list[str],
    *,
    allows_plaintext: bool = True,
    clock: SystemClock | None = None,
) -> Bucket:
    made = Bucket(
        rpc=lambda: platform,  # type: ignore[arg-type, return-value]
        run_long=in_own_thread,
        clock=clock or SystemClock(),
        allows_plaintext=allows_plaintext,
        changed=notes.append,
    )
    made.is_offered = True
    return made


def located(blobs: Sequence[bytes]) -> list[ChunkLocation]:
    return [ChunkLocation(ChunkRef(digest_of(one), len(one)), "file", 0) for one in blobs]


async def brought(bucket: Bucket, wanted: Sequence[ChunkLocation]) -> dict[str, bytes]:
    return {ref.digest: data async for ref, data in bucket.of(ROOT).bring(wanted)}


async def test_chunks_come_from_a_real_service_by_few_requests(s3: S3Server) -> None:
    store, notes = Store(s3), []
    blobs = some(60, 300_000)
    digests = [*await store.put(*blobs[:30]), *await store.put(*blobs[30:])]

    async def locate(asked: Sequence[str]) -> pb.LocateBlobsResponse:
        packs = await store.signed(asked, digests)
        numbers = {digest: number for number, digest in enumerate(asked)}
        return pb.LocateBlobsResponse(
            packs=[
                pb.LocatedPack(
                    url=pack.url,
                    blobs=[
                        pb.LocatedBlob(index=numbers[p.digest], start=p.start, stored=p.stored)
                        for p in pack.places
                    ],
                )
                for pack in packs
            ]
        )

    bucket = bucket_of(Platform(locate), notes)
    wanted = located(blobs)
    random.Random(1).shuffle(wanted)
    assert await brought(bucket, wanted) == {digest_of(one): one for one in blobs}
    assert not notes
    bucket.close()


class Lying(BaseHTTPRequestHandler):
    """Answers as its server's `mode` says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        mode, body = self.server.mode, self.server.body  # type: ignore[attr-defined]
        self.server.asked += 1  # type: ignore[attr-defined]
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part, status = body[first : last + 1], 206
        said = f"bytes {first}-{last}/{len(body)}"
        headers: dict[str, str] = {}
        match mode:
            case "whole":
                part, status = body, 200
            case "denied" | "moved" | "missing":
                status = {"denied": 403, "moved": 302, "missing": 404}[mode]
                headers["Location"] = "http://127.0.0.1:1/elsewhere"
            case "another":
                said = f"bytes {first + 1}-{last + 1}/{len(body)}"
            case "flipped":
                part = bytes([part[0], *(one ^ 1 for one in part[1:])])
            case "more":
                part += b"more"
            case "silent":
                self.server.released.wait(60)  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Range", said)
        self.send_header("Content-Length", str(len(part)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(part[:-1] if mode == "less" else part)
        self.close_connection = mode == "less"

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def lying(
    mode: str, body: bytes, tls: ssl.SSLContext | None = None
) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Lying)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.mode, server.body, server.asked = mode, body, 0  # type: ignore[attr-defined]
    server.released = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()
        server.server_close()


def giving(url: str, blobs: Sequence[bytes]) -> Platform:
    async def locate(_: Sequence[str]) -> pb.LocateBlobsResponse:
        places, start = [], 0
        for number, one in enumerate(blobs):
            places.append(pb.LocatedBlob(index=number, start=start, stored=len(one) + 1))
            start += len(one) + 1
        # what it says may be as wrong as what the bucket sends
        places += [pb.LocatedBlob(index=999, start=0, stored=5), pb.LocatedBlob(stored=1 << 31)]
        return pb.LocateBlobsResponse(packs=[pb.LocatedPack(url=url, blobs=places)])

    return Platform(locate)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("whole", "answers 200"),
        ("denied", "answers 403"),
        ("moved", "answers 302"),
        ("another", "another part"),
        ("flipped", "other content"),
        ("more", "more than was asked"),
        ("less", "less than was asked"),
    ],
)
async def test_a_bucket_that_misbehaves_is_left_alone_and_that_is_said(
    mode: str, reason: str
) -> None:
    blobs = [os.urandom(1000) for _ in range(3)]
    notes: list[str] = []
    with lying(mode, b"".join(b"\0" + one for one in blobs)) as server:
        url = f"http://127.0.0.1:{server.server_port}/b/k?X-Amz-Signature=sesame"
        platform = giving(url, blobs)
        bucket = bucket_of(platform, notes)
        assert await brought(bucket, located(blobs)) == {}
        assert await brought(bucket, located(blobs)) == {}
        assert (platform.calls, server.asked) == (1, 1)  # type: ignore[attr-defined]
    [note] = notes
    assert reason in note
    assert "sesame" not in note, "a URL is a secret"


async def test_urls_are_asked_for_again_before_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of 4 MiB takes more than the four minutes for which URLs are used."""
    blobs, notes, clock, now = [os.urandom(3 << 20) for _ in range(3)], [], SystemClock(), [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    by_digest, asked = {digest_of(one): one for one in blobs}, []
    with lying("right", b"".join(b"\0" + one for one in blobs)) as server:
        url = f"http://127.0.0.1:{server.server_port}/b/k"

        async def locate(digests: Sequence[str]) -> pb.LocateBlobsResponse:
            asked.append(len(digests))
            places = [
                pb.LocatedBlob(
                    index=number,
                    start=blobs.index(by_digest[digest]) * (len(blobs[0]) + 1),
                    stored=len(blobs[0]) + 1,
                )
                for number, digest in enumerate(digests)
            ]
            return pb.LocateBlobsResponse(packs=[pb.LocatedPack(url=url, blobs=places)])

        bucket = bucket_of(Platform(locate), notes, clock=clock)
        found = {}
        async for ref, data in bucket.of(ROOT).bring(located(blobs)):
            found[ref.digest] = data
            now[0] += 241.0
    assert (found, asked, notes) == (by_digest, [3, 2, 1], [])


async def test_an_object_that_went_says_nothing_of_the_bucket() -> None:
    blobs, notes = [os.urandom(1000)], []
    with lying("missing", b"\0" + blobs[0]) as server:
        platform = giving(f"http://127.0.0.1:{server.server_port}/b/k", blobs)
        bucket = bucket_of(platform, notes)
        assert await brought(bucket, located(blobs)) == {}
        server.mode = "right"  # type: ignore[attr-defined]
        assert await brought(bucket, located(blobs)) == {digest_of(blobs[0]): blobs[0]}
    assert not notes


async def test_a_read_that_nobody_waits_for_ends_though_the_bucket_is_silent() -> None:
    blobs = [os.urandom(1000)]
    with lying("silent", b"\0" + blobs[0]) as server:
        platform = giving(f"http://127.0.0.1:{server.server_port}/b/k", blobs)
        reading = asyncio.create_task(brought(bucket_of(platform, []), located(blobs)))
        while not server.asked:  # type: ignore[attr-defined] # noqa: ASYNC110 - a thread counts
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not server.released.is_set()  # type: ignore[attr-defined]


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, bytes]:
    """What a server of a private authority shows, and that authority."""
    authority = make_authority(SystemClock())
    pair = authority.issue_server(["127.0.0.1"])
    (tmp_path / "pair").write_bytes(pair.key + pair.chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair")
    return context, authority.pem


def test_a_private_authority_counts_where_it_was_told(tls: tuple[ssl.SSLContext, bytes]) -> None:
    body = os.urandom(3 << 20)
    with lying("right", body, tls[0]) as server:
        url = f"https://127.0.0.1:{server.server_port}/b/k?X-Amz-Signature=sesame"
        reader = BucketReader(tls[1], allows_plaintext=False)
        for start, length in ((0, len(body)), (7, 2 << 20), (len(body) - 1, 1)):
            assert reader.read(url, start, length, Reading()) == body[start : start + length]
        reader.close()
        with pytest.raises(NotRead, match="no TLS") as refused:
            BucketReader(b"", allows_plaintext=False).read(url, 0, 10, Reading())
        assert "sesame" not in str(refused.value)


def test_a_read_over_tls_is_ended_from_another_thread(tls: tuple[ssl.SSLContext, bytes]) -> None:
    reader, reading = BucketReader(tls[1], allows_plaintext=False), Reading()
    with lying("silent", b"body", tls[0]) as server:

        def end() -> None:
            while not server.asked:  # type: ignore[attr-defined]
                time.sleep(0.01)
            reading.end()

        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(NotRead):
            reader.read(f"https://127.0.0.1:{server.server_port}/b", 0, 4, reading)
        assert not server.released.is_set()  # type: ignore[attr-defined]
        ending.join()


@pytest.mark.parametrize(
    ("url", "allows", "reason"),
    [
        ("http://192.0.2.1/b", True, "not encrypted"),
        ("http://127.0.0.1:1/b", False, "not encrypted"),
        ("file:///etc/passwd", True, "not encrypted"),
        ("http://127.0.0.1:1/b", True, "refused"),
        ("https://127.0.0.1:x/b", True, "HTTP"),
        ("https://[::1/b", True, "none"),
        ("", True, "not encrypted"),
    ],
)
def test_where_nothing_is_read(url: str, allows: bool, reason: str) -> None:
    reader = BucketReader(b"", allows_plaintext=allows)
    with pytest.raises(NotRead, match=reason):
        reader.read(url, 0, 10, Reading())
