from __future__ import annotations

import json
from typing import Any

import pytest

from nsml.content.digests import digest_of
from nsml.content.errors import ContentError, ManifestRefused, PathRefused
from nsml.content.manifest import ChunkRef, Entry, Limits, Manifest, build, decode

CHUNK = ChunkRef(digest_of(b"hello"), 5)


def entry(path: str, mode: int = 0o644) -> Entry:
    return Entry(path=path, mode=mode, size=5, chunks=(CHUNK,))


def document(**changes: Any) -> dict[str, Any]:
    one = {"chunks": [[CHUNK.digest, 5]], "mode": "0644", "path": "a", "size": 5, **changes}
    return {"entries": [one], "version": 1}


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def test_encoding_is_canonical_and_its_digest_names_the_tree() -> None:
    manifest = build([entry("b/두"), entry("a", 0o755)])
    assert [item.path for item in manifest.entries] == ["a", "b/두"]
    data = manifest.encode()
    assert data.decode() == (
        f'{{"entries":[{{"chunks":[["{CHUNK.digest}",5]],"mode":"0755","path":"a","size":5}},'
        f'{{"chunks":[["{CHUNK.digest}",5]],"mode":"0644","path":"b/두","size":5}}],"version":1}}'
    )
    assert decode(data, digest=manifest.digest) == manifest
    assert build([entry("a", 0o755), entry("b/두")]).digest == manifest.digest
    assert manifest.size == 10
    assert manifest.blobs() == {CHUNK.digest: 5}


def test_an_empty_file_has_no_chunks() -> None:
    empty = Entry(path="empty", mode=0o644, size=0, chunks=())
    assert decode(build([empty]).encode()).entries == (empty,)


def test_a_long_manifest_is_encoded_as_a_short_one() -> None:
    entries = [Entry(path=f"{n:05}", mode=0o644, size=0, chunks=()) for n in range(2_001)]
    encoded = Manifest(entries=tuple(entries)).encode()
    assert encoded == json.dumps(json.loads(encoded), separators=(",", ":")).encode()
    assert decode(encoded).entries == tuple(entries)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"\xff",
        b"[" * 100_000,
        encoded({"entries": [], "version": 2}),
        encoded({"entries": [], "version": True}),
        encoded({"entries": {}, "version": 1}),
        encoded({"entries": [], "version": 1, "more": 1}),
        encoded({"entries": [3], "version": 1}),
        json.dumps(document()).encode(),
        encoded(document()).replace(b'"size":5', b'"size":5,"size":5'),
        encoded(document()).replace(b'"size":5', b'"size":5.0'),
        encoded(document()).replace(b'"size":5', b'"size":NaN'),
        encoded(document(size=6)),
        encoded(document(size=-5)),
        encoded(document(size="5")),
        encoded(document(mode="0777")),
        encoded(document(mode=420)),
        encoded(document(mode=["0644"])),
        encoded(document(extra=1)),
        encoded(document(path=5)),
        encoded(document(path="../x")),
        encoded(document(path="/x")),
        encoded(document(chunks=[[CHUNK.digest, 5, 1]])),
        encoded(document(chunks=[[CHUNK.digest.upper(), 5]])),
        encoded(document(chunks=[["../" + CHUNK.digest[3:], 5]])),
        encoded(document(chunks=[[CHUNK.digest, True]], size=1)),
        encoded(document(chunks=[[CHUNK.digest, 0]], size=0)),
        encoded(document(chunks=[[CHUNK.digest, 4 << 20]], size=4 << 20)),
        encoded({"entries": document()["entries"] * 2, "version": 1}),
    ],
)
def test_anything_but_a_canonical_manifest_is_refused(data: bytes) -> None:
    with pytest.raises((ManifestRefused, PathRefused)):
        decode(data)


def test_order_is_part_of_the_form() -> None:
    manifest = Manifest(entries=(entry("b"), entry("a")))
    with pytest.raises(PathRefused, match="order"):
        decode(manifest.encode())


def test_limits_hold() -> None:
    data = build([entry("a"), entry("b")]).encode()
    for limits in (Limits(entries=1), Limits(bytes=9), Limits(encoded_bytes=20)):
        with pytest.raises(ManifestRefused):
            decode(data, limits=limits)


def test_other_bytes_than_the_digest_names_are_refused() -> None:
    one, other = build([entry("a")]), build([entry("b")])
    with pytest.raises(ContentError):
        decode(one.encode(), digest=other.digest)
