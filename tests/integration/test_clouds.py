"""Buckets of S3, Google Cloud Storage and Azure behind real servers: faults, credentials, and what is refused."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import random
import re
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import obstore
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from controlplane.objects import service as service_module
from controlplane.objects.buckets import open_bucket
from controlplane.objects.errors import BlobDamaged, ObjectsDenied, ObjectsUnavailable
from controlplane.objects.files import Files
from controlplane.objects.packed import PackedObjects
from controlplane.objects.service import BucketService
from controlplane.objects.shared_files import open_shared
from nsml.common.clock import in_thread
from nsml.content.digests import digest_of
from tests.support.azure import ACCOUNT, KEY, AzureServer, azure
from tests.support.gcs import GcsServer, gcs, service_account
from tests.support.living_folders import files_below
from tests.support.packed_objects import pack_index
from tests.support.relays import Answer, Asked, Faults, relay
from tests.support.s3 import KEYS, S3Server, s3
from tests.support.shared_platform import ControlPlaneProcess

__all__ = ["azure", "gcs", "s3"]

DATA = b"data"
DIGEST = digest_of(DATA)


@dataclass(frozen=True)
class Place:
    """A bucket of a real server, empty at first, and what a test may do to it past the object store.

    Attributes:
        settings: of a control plane, but for `objects`.
    """

    server: S3Server | GcsServer | AzureServer
    name: str
    url: str
    endpoint: str
    environment: Mapping[str, str]

    def files(self, **changes: object) -> Files:
        """Its files; `changes` are of the service."""
        service = BucketService(**{"endpoint": self.endpoint, **changes})  # type: ignore[arg-type]
        return open_shared(self.url, in_thread, service=service, environment=self.environment)

    def objects(self, **changes: object) -> PackedObjects:
        """Its objects."""
        return PackedObjects(self.files(**changes), pack_index())

    def names(self) -> list[str]:
        """The names of all that is in the bucket."""
        return self.server.keys(self.name)

    @property
    def settings(self) -> dict[str, str]:
        """Of a control plane."""
        kind = {"s3": "s3", "gs": "gcs", "az": "azure"}[self.url[:2]]
        return {"objects": self.url, f"{kind}_endpoint": self.endpoint}

    @contextmanager
    def faulty(self) -> Iterator[tuple[Place, Faults]]:
        """The same behind a service with faults."""
        faults = Faults(self.endpoint.removesuffix(f"/{ACCOUNT}"))
        with relay(faults.answer) as url:
            endpoint = f"{url}/{ACCOUNT}" if self.is_azure else url
            yield replace(self, endpoint=endpoint), faults

    @property
    def is_azure(self) -> bool:
        """Whether it is a container of Azure."""
        return isinstance(self.server, AzureServer)


OF_AZURE = pytest.param("azure", marks=pytest.mark.variant)


@pytest.fixture(params=["amazon", "google", OF_AZURE])
def place(request: pytest.FixtureRequest) -> Place:
    scheme, fixture = {"amazon": ("s3", "s3"), "google": ("gs", "gcs"), "azure": ("az", "azure")}[
        request.param
    ]
    server: S3Server | GcsServer | AzureServer = request.getfixturevalue(fixture)
    name = server.container() if isinstance(server, AzureServer) else server.bucket()
    return Place(server, name, f"{scheme}://{name}/p", server.endpoint, server.environment)


NOT_AMAZON = pytest.mark.parametrize("place", ["google", OF_AZURE], indirect=True)
"""moto verifies no signature: what there is for it is in test_s3.py."""


async def test_a_bucket_that_is_emptied_is_gone_and_nothing_is_written_to_it(place: Place) -> None:
    objects = place.objects()
    await objects.mark("c1/x")
    await objects.put(DIGEST, DATA)
    assert await objects.has_missing([DIGEST]) == set()
    place.server.empty(place.name)
    for call in (
        objects.put(digest_of(b"new"), b"new"),
        objects.get(DIGEST),
        objects.has_missing([DIGEST]),
        objects.take_back([DIGEST]),
        objects.maintain(lambda: True),
    ):
        with pytest.raises(ObjectsUnavailable, match="gone"):
            await call
    assert place.names() == []


async def test_a_bucket_that_is_not_there_is_named(place: Place) -> None:
    objects = replace(place, url=f"{place.url[:5]}nobodys").objects()
    for call in (objects.put(DIGEST, DATA), objects.get(DIGEST), objects.mark(), objects.mark("x")):
        with pytest.raises(ObjectsDenied, match="gone") as caught:
            await call
        assert "no such bucket" in caught.value.why
        assert caught.value.attempt.startswith("make the ")


async def test_a_service_that_does_what_is_asked_is_used(place: Place) -> None:
    assert await place.files().unfit() == ""
    assert place.names() == []


async def test_large_blobs_go_in_parts_and_come_back(place: Place) -> None:
    data = random.Random(1).randbytes(11 << 20)
    digest = digest_of(data)
    objects = place.objects()
    with place.faulty() as (behind, faults):
        await behind.objects().put(digest, data)
    assert sum("uploadId=" in one or "comp=block&" in one for one in faults.asked) >= 3
    await objects.put(digest, data)
    assert await objects.get(digest) == data


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"ignores_conditions": True}, "two platforms could take the same bucket"),
        ({"ignores_ranges": True}, "does not give a part of an object"),
        ({"gives_wrong_ranges": 1}, "does not give a part of an object"),
    ],
)
async def test_a_service_that_ignores_what_is_asked_is_found_out(
    place: Place, fault: dict[str, int], words: str
) -> None:
    with place.faulty() as (behind, faults):
        for name, value in fault.items():
            setattr(faults, name, value)
        assert words in await behind.files().unfit()
    assert place.names() == []


@pytest.mark.parametrize("status", [400, 405, 501])
async def test_a_service_that_does_not_know_what_is_asked_is_found_out(
    place: Place, status: int
) -> None:
    with place.faulty() as (behind, faults):
        faults.status = status
        assert "does not take an object (http://127.0.0.1" in await behind.files().unfit()


@pytest.mark.parametrize("times", [1, 100])
async def test_a_service_that_fails_while_it_is_tried_is_away_and_not_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(service_module, "_RETRIES", 0)
    with place.faulty() as (behind, faults):
        faults.status, faults.times, faults.of = 500, times, "GET"
        if times == 1:
            assert await behind.files().unfit() == ""
        else:
            with pytest.raises(ObjectsUnavailable, match="cannot be used now"):
                await behind.files().unfit()
    assert place.names() == []


async def test_a_service_in_trouble_is_tried_again_and_then_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.faulty() as (behind, faults):
        faults.status, faults.times = 503, 2
        objects = behind.objects()
        await objects.put(DIGEST, DATA)
        assert faults.times == 0, "two answers of trouble were overcome"
        monkeypatch.setattr(service_module, "_RETRIES", 0)
        objects = behind.objects()
        faults.times = 100
        for call in (
            objects.put(DIGEST, DATA),
            objects.mark(),
            behind.files().unfit(),
            behind.files().read("packs/aa"),
            behind.files().ranges("packs/aa", [(0, 1)]),
            behind.files().remove("packs/aa"),
        ):
            with pytest.raises(ObjectsUnavailable) as caught:
                await call
            assert not isinstance(caught.value, ObjectsDenied)
            assert "503" in caught.value.why


async def test_one_wrong_answer_damages_nothing(place: Place) -> None:
    with place.faulty() as (behind, faults):
        objects = behind.objects()
        await objects.put(DIGEST, DATA)
        faults.gives_wrong_ranges = 1
        assert await objects.get(DIGEST) == DATA
        faults.gives_wrong_ranges = 1
        assert [found.damaged async for found in objects.verify()] == [[]]
        assert await objects.has_missing([DIGEST]) == set()
        faults.gives_wrong_ranges = 2
        with pytest.raises(BlobDamaged):
            await objects.get(DIGEST)
        assert await objects.has_missing([DIGEST]) == {DIGEST}
        faults.gives_wrong_ranges = 0
        await objects.put(DIGEST, DATA)
        assert await objects.get(DIGEST) == DATA


async def test_a_service_that_says_nothing_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_SILENT_S", 1)
    monkeypatch.setattr(service_module, "_RETRIES", 0)
    with place.faulty() as (behind, faults):
        objects = behind.objects()
        faults.waits = threading.Event()
        try:
            async with asyncio.timeout(50):
                with pytest.raises(ObjectsUnavailable) as caught:
                    await objects.put(DIGEST, DATA)
        finally:
            faults.waits.set()
        assert "says nothing in time" in caught.value.why
        await objects.put(DIGEST, DATA)


def said(error: BaseException) -> str:
    """All that a log could have of it, causes too."""
    return "".join(traceback.format_exception(error))


@NOT_AMAZON
async def test_keys_that_the_service_does_not_know_are_refused(
    place: Place, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    if place.is_azure:
        wrong = "d3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmc="
        file.write_text(f"AccountName={ACCOUNT};AccountKey={wrong}")
    else:
        wrong = service_account(rsa.generate_private_key(65537, 2048))
        file.write_text(wrong)
        wrong = json.loads(wrong)["private_key"].splitlines()[3]
    objects = place.objects(credentials=file)
    for call in (objects.mark("x"), objects.put(DIGEST, DATA)):
        with pytest.raises(ObjectsDenied, match="refuses our credentials") as caught:
            await call
        assert wrong not in said(caught.value)
        assert "read, write, list and delete" in caught.value.attempt
    assert place.names() == []


@NOT_AMAZON
async def test_what_a_bucket_had_is_read_in_another_clouds_after_a_copy(
    place: Place, s3: S3Server
) -> None:
    """As docs/control-planes.md says it: every object is copied under its name, nothing else changes."""
    index = pack_index()
    old = open_shared(
        f"s3://{s3.bucket()}/old",
        in_thread,
        service=BucketService(endpoint=s3.endpoint),
        environment=KEYS,
    )
    objects = PackedObjects(old, index)
    await objects.mark("c1/x")
    blobs = {digest_of(data): data for data in (f"blob {n}".encode() * 1000 for n in range(5))}
    for digest, data in blobs.items():
        await objects.put(digest, data)
    new = place.files()
    for under in ("packs", "mark"):
        keys = [one.key async for one in old.list(under)] if under == "packs" else [under]
        for key in keys:
            content = await old.read(key)
            assert content is not None
            await new.put(key, [content])
    moved = PackedObjects(new, index)
    assert await moved.mark() == "c1/x"
    await moved.prepare()
    assert {digest: await moved.get(digest) for digest in blobs} == blobs
    await moved.maintain(lambda: True)
    assert await moved.has_missing(blobs) == set()


@NOT_AMAZON
async def test_urls_are_signed_that_read_one_object(place: Place) -> None:
    files = place.files()
    await files.put("packs/aa/bb", [b"0123456789"])
    service = BucketService(endpoint=place.endpoint)
    backend = open_bucket(place.url, service, place.environment).backend
    url = await obstore.sign_async(backend, "GET", "packs/aa/bb", dt.timedelta(minutes=5))  # type: ignore[arg-type]
    assert _status(url, "bytes=2-4") == (206, b"234")
    assert _status(url.replace("packs", "other"), "")[0] in (401, 403)
    assert _status(url[:-3] + ("AAA" if url[-3:] != "AAA" else "BBB"), "")[0] in (401, 403)


def _status(url: str, part: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Range": part} if part else {})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=30) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


@NOT_AMAZON
@pytest.mark.parametrize("has_fault", [False, True])
def test_a_control_plane_stands_on_it_or_refuses(
    place: Place, tmp_path: Path, *, has_fault: bool
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.bin").write_bytes(random.Random(2).randbytes(3 << 20))
    with place.faulty() as (behind, faults):
        faults.ignores_conditions = has_fault
        settings = {"coordination": "embedded", **behind.settings}
        if isinstance(place.server, GcsServer):
            settings["gcs_credentials"] = str(place.server.credentials)
        else:
            file = written(tmp_path / "key", f"AccountKey={KEY}")
            settings |= {"azure_account": ACCOUNT, "azure_credentials": str(file)}
        with ControlPlaneProcess(tmp_path / "c1", settings, {}) as control:
            if has_fault:
                words = control.refused()
                assert f"the service of {place.url} cannot be used: it overwrites" in words
                assert place.names() == []
                return
            control.nsml("dataset", "push", "mine", str(tmp_path / "data"))
            control.nsml("doctor", "storage")
            checked = control.program("--check")
            assert place.url in checked.stdout + checked.stderr
            control.nsml("dataset", "pull", "mine", str(tmp_path / "again"))
            for secret in (KEY, "PRIVATE KEY"):
                assert secret not in control.said() + checked.stdout + checked.stderr
    [pulled] = files_below(tmp_path / "again", "a.bin")
    assert pulled.read_bytes() == (tmp_path / "data/a.bin").read_bytes()
    assert any(key.startswith("p/packs/") for key in place.names())


def wrong(environment: Mapping[str, str], url: str, **service: object) -> str:
    """What is said of settings with which nothing can be opened."""
    with pytest.raises(ValueError, match=r"\w") as caught:
        open_bucket(url, BucketService(**service), environment)  # type: ignore[arg-type]
    return str(caught.value)


def written(file: Path, content: str, mode: int = 0o600) -> Path:
    file.touch(mode)
    file.chmod(mode)
    file.write_text(content)
    return file


def test_credentials_that_cannot_be_used_are_refused_without_their_content(tmp_path: Path) -> None:
    missing, file = tmp_path / "none", tmp_path / "file"
    for url in ("gs://b", "az://c"):
        assert "No such file" in wrong({}, url, credentials=missing)
        written(file, "very-secret", 0o644)
        assert "may be read by others" in wrong({}, url, credentials=file)
        assert "do not belong into the URL" in wrong({}, f"{url[:5]}key:very-secret@b/p")
        assert "not encrypted: use https" in wrong(
            {"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "k"},
            url,
            endpoint="http://blobs.lab",
        )
    for content, words in (
        ("very-secret", "no credentials file of Google Cloud"),
        ("[]", "no credentials file of Google Cloud"),
        ('{"type": "external_account", "a": "very-secret"}', "another type"),
        ('{"type": "service_account", "private_key": "very-secret"}', "cannot be opened"),
    ):
        for environment, service in (
            ({}, {"credentials": written(file, content)}),
            ({"GOOGLE_APPLICATION_CREDENTIALS": str(file)}, {}),
        ):
            told = wrong(environment, "gs://b", **service)
            assert words in told
            assert "very-secret" not in told
    for content, words in (
        ("very-secret", "no connection string"),
        ("AccountName=very-secret", "no connection string"),
        ("AccountKey=very-secret", "storage account is not known"),
    ):
        for environment, service in (
            ({}, {"credentials": written(file, content)}),
            ({"AZURE_STORAGE_CONNECTION_STRING": content}, {}),
        ):
            told = wrong(environment, "az://c", **service)
            assert words in told
            assert "very-secret" not in told
    assert "AZURE_STORAGE_ACCOUNT" in wrong({}, "az://c")


@pytest.mark.variant
async def test_a_container_is_opened_with_all_that_users_of_azure_have(
    azure: AzureServer, tmp_path: Path
) -> None:
    container = azure.container()
    sas = azure.shared_access(container, until_s=time.time() + 3600)
    by_key = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={azure.endpoint};"
    by_sas = f"BlobEndpoint={azure.endpoint}/;AccountName={ACCOUNT};SharedAccessSignature={sas}"
    index = pack_index()
    for number, (environment, service) in enumerate(
        (
            ({"AZURE_STORAGE_CONNECTION_STRING": by_key}, BucketService()),
            ({"AZURE_STORAGE_CONNECTION_STRING": by_sas}, BucketService()),
            ({}, BucketService(credentials=written(tmp_path / "key", by_key))),
            ({}, BucketService(credentials=written(tmp_path / "sas", by_sas + "\n"))),
            (
                {"AZURE_STORAGE_SAS_TOKEN": f"?{sas}"},
                BucketService(endpoint=azure.endpoint, account=ACCOUNT),
            ),
            (
                {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY},
                BucketService(endpoint=azure.endpoint),
            ),
        )
    ):
        files = open_shared(
            f"az://{container}/p", in_thread, service=service, environment=environment
        )
        assert await files.unfit() == "", number
        data = str(number).encode()
        await PackedObjects(files, index).put(digest_of(data), data)
    assert len(azure.keys(container)) == number + 1


@pytest.mark.variant
async def test_a_signature_that_ended_is_refused_and_in_no_words(
    azure: AzureServer, tmp_path: Path
) -> None:
    container = azure.container()
    sas = azure.shared_access(container, until_s=time.time() - 60)
    file = written(
        tmp_path / "sas",
        f"AccountName={ACCOUNT};BlobEndpoint={azure.endpoint};SharedAccessSignature={sas}",
    )
    files = open_shared(
        f"az://{container}/p",
        in_thread,
        service=BucketService(credentials=file),
        environment={},
    )
    signature = re.search("sig=([^&]*)", sas)
    assert signature
    listed = files.list("packs")
    for call in (files.put("packs/aa", [DATA]), files.mark(), files.unfit(), anext(aiter(listed))):
        with pytest.raises(ObjectsDenied) as caught:
            await call
        assert signature[1] not in said(caught.value)


@pytest.mark.variant
async def test_a_new_key_in_the_file_is_used_without_a_restart(
    azure: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_FILE_READ_AGAIN_S", 0)
    container = azure.container()
    begin = f"AccountName={ACCOUNT};BlobEndpoint={azure.endpoint};"
    file = written(
        tmp_path / "key", f"{begin}AccountKey=d3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmc="
    )
    files = open_shared(
        f"az://{container}", in_thread, service=BucketService(credentials=file), environment={}
    )
    with pytest.raises(ObjectsDenied):
        await files.mark("x")
    file.write_text("half of very-sec")
    with pytest.raises(ObjectsDenied) as caught:
        await files.mark("x")
    assert (
        caught.value.why
        == f"{file} is no connection string with AccountKey or SharedAccessSignature"
    )
    assert "very-sec" not in said(caught.value)
    assert "azure_credentials" in caught.value.attempt
    file.write_text(f"{begin}AccountKey={KEY}")
    assert await files.mark("x") == "x"


Given = Callable[[pytest.MonkeyPatch, str], dict[str, str]]


def _of_google(monkeypatch: pytest.MonkeyPatch, machine: str) -> dict[str, str]:
    monkeypatch.setenv("GCE_METADATA_HOST", machine.removeprefix("http://"))
    return {}


def _of_azure(_: pytest.MonkeyPatch, machine: str) -> dict[str, str]:
    return {"AZURE_STORAGE_ACCOUNT": "a", "IDENTITY_ENDPOINT": f"{machine}/identity"}


@pytest.mark.parametrize(("url", "given"), [("gs://b", _of_google), ("az://c", _of_azure)])
async def test_a_machine_gives_its_own_identity(
    url: str, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Asked] = []

    def machine(one: Asked) -> Answer:
        asked.append(one)
        until = str(int(time.time()) + 3600)
        token = {"access_token": "of-the-machine", "expires_in": "3600", "expires_on": until}
        token |= {"token_type": "Bearer", "resource": "https://storage.azure.com"}
        body = json.dumps({**token, "expires_in": 3600} if url[:2] == "gs" else token)
        return Answer(status=200, headers={"content-type": "application/json"}, body=body.encode())

    def bucket(one: Asked) -> Answer:
        asked.append(one)
        return Answer(
            status=200,
            headers={"etag": '"e"', "last-modified": "Sat, 28 Nov 2026 00:00:00 GMT"},
            body=b"c1/x",
        )

    with relay(machine) as its_url, relay(bucket) as endpoint:
        files = open_shared(
            url,
            in_thread,
            service=BucketService(endpoint=endpoint),
            environment=given(monkeypatch, its_url),
        )
        assert await files.mark() == "c1/x"
    identity, *reads = asked
    assert "metadata" in identity.headers or "metadata-flavor" in identity.headers
    assert {one.headers["authorization"] for one in reads} == {"Bearer of-the-machine"}
