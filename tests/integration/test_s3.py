"""A bucket behind a real HTTP server: faults of the service, keys, and what is refused."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.objects.buckets import open_bucket
from controlplane.objects.errors import ObjectsDenied, ObjectsUnavailable
from controlplane.objects.packed import PackedObjects
from controlplane.objects.service import BucketService
from controlplane.objects.shared_files import open_shared
from nsml.common.clock import in_thread
from nsml.content.digests import digest_of
from tests.support.packed_objects import pack_index, shared_objects
from tests.support.s3 import KEYS, S3Server, s3, start_s3

__all__ = ["s3"]

DIGEST = digest_of(b"data")


def opened(url: str, endpoint: str, **environment: str) -> PackedObjects:
    service = BucketService(endpoint=endpoint)
    return shared_objects(url, in_thread, service=service, environment={**KEYS, **environment})


@pytest.fixture
def own() -> Iterator[S3Server]:
    """A server that the test may kill or pause."""
    server = start_s3()
    yield server
    server.end()


async def refused(objects: PackedObjects) -> list[str]:
    """The words of every call, each of which has to fail by name."""
    said = []
    for call in (
        objects.put(DIGEST, b"data"),
        objects.get(DIGEST),
        objects.has_missing([DIGEST]),
        objects.delete([DIGEST]),
        objects.mark("x"),
    ):
        with pytest.raises(ObjectsUnavailable) as caught:
            await call
        said.append(f"{caught.value} {caught.value.why}")
    with pytest.raises(ObjectsUnavailable):
        _ = [blob async for blob in objects.list()]
    return said


async def test_a_service_that_is_gone_is_said_and_found_again(own: S3Server) -> None:
    objects = opened(f"s3://{own.bucket()}", own.endpoint)
    await objects.put(DIGEST, b"data")
    os.kill(own.process.pid, signal.SIGKILL)
    own.process.wait()
    async with asyncio.timeout(60):  # seven calls, each of which gives up after its few tries
        said = await refused(objects)
    assert all("cannot be used now" in words for words in said)
    assert not any(KEYS["AWS_SECRET_ACCESS_KEY"] in words for words in said)


async def test_keys_that_the_service_does_not_know_are_refused() -> None:
    server = start_s3(INITIAL_NO_AUTH_ACTION_COUNT="1")
    try:
        objects = opened(f"s3://{server.bucket()}", server.endpoint)
        with pytest.raises(ObjectsDenied, match="refuses our credentials"):
            await objects.mark("x")
    finally:
        server.end()


async def test_keys_come_from_the_file_of_the_aws_tools(s3: S3Server, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    url = f"s3://{s3.bucket()}"
    service = BucketService(endpoint=s3.endpoint, credentials=file)
    with pytest.raises(ValueError, match=r"cannot read the credentials: .*: No such file"):
        open_bucket(url, service, {})
    file.write_text("[other]\naws_access_key_id = a\naws_secret_access_key = very-secret\n")
    file.chmod(0o600)
    with pytest.raises(ValueError, match=r"under \[default\]") as caught:
        open_bucket(url, service, {})
    assert "very-secret" not in str(caught.value)
    index = pack_index()
    for environment in (
        {"AWS_PROFILE": "other"},
        {"AWS_PROFILE": "other", "AWS_ACCESS_KEY_ID": "of-the-environment"},
    ):
        objects = shared_objects(
            url, in_thread, service=service, environment=environment, index=index
        )
        await objects.put(DIGEST, b"data")
    named = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "other"}
    service = BucketService(endpoint=s3.endpoint)
    objects = shared_objects(url, in_thread, service=service, environment=named, index=index)
    assert await objects.get(DIGEST) == b"data"


@pytest.mark.parametrize(
    ("url", "endpoint", "words"),
    [
        ("s3://bucket", "http://203.0.113.1:9000", "not encrypted: use https"),
        ("s3://bucket", "http://minio.lab", "not encrypted: use https"),
        ("s3://bucket", "https://key:secret@minio.lab", "https://HOST:PORT"),
        ("s3://bucket", "minio.lab:9000", "https://HOST:PORT"),
        ("s3://key:secret@bucket/p", "", "credentials do not belong"),
        ("s3://", "", "s3://BUCKET/PREFIX"),
        ("https://bucket/p", "", "s3://BUCKET/PREFIX"),
        ("s3://bucket?region=x", "", "s3://BUCKET/PREFIX"),
        ("file://host/folder", "", "file:///FOLDER"),
        ("file:///proc/nowhere/at/all", "", "is it mounted?"),
    ],
)
def test_what_cannot_be_used_is_refused(url: str, endpoint: str, words: str) -> None:
    for service, environment in (
        (BucketService(endpoint=endpoint), KEYS),
        (BucketService(), {**KEYS, "AWS_ENDPOINT_URL": endpoint}),
    ):
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            open_shared(url, in_thread, service=service, environment=environment)
        assert "secret" not in str(caught.value).replace("AWS_SECRET", "")


async def test_control_planes_share_a_folder(tmp_path: Path) -> None:
    """Who opens a shared folder leaves alone what others are writing, and clears what is old."""
    url = tmp_path.as_uri()
    index = pack_index()
    first = shared_objects(url, in_thread, index=index)
    (begun,) = (tmp_path / "incoming").iterdir()
    (begun / "1-half").write_bytes(b"half")
    dead = tmp_path / "incoming/from-dead"
    dead.mkdir()
    (dead / "1-old").write_bytes(b"old")
    for old in (dead / "1-old", dead):
        os.utime(old, (1.0, 1.0))
    second = shared_objects(url, in_thread, index=index)
    assert (begun / "1-half").exists()
    assert not dead.exists() or not list(dead.iterdir())
    blobs = {digest_of(data): data for data in (f"{n}".encode() for n in range(50))}
    await asyncio.gather(*[one.put_many(blobs) for one in (first, second, first)])
    assert await second.has_missing(blobs) == await first.has_missing(blobs) == set()
