"""A manifest in a file: what is accepted is what `decode` accepts, and its size costs no memory."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.content.chunks import LARGEST_CHUNK
from nsml.content.errors import ContentError
from nsml.content.extract import Extraction
from nsml.content.manifest import ChunkRef, Entry, Limits, Manifest, build, decode
from nsml.content.stored_manifest import StoredManifest

DIGEST = "0123456789abcdef" * 4
_PART = st.sampled_from(
    [
        "a",
        "A",
        "b",
        "ab",
        "a-b",
        "a.b",
        'q"u',
        "ä",
        "Ä",
        "a b",
        "\u3042",
        "\U0001f600",
        "c\x7f",
        "\\",
        "..",
        "con",
        "",
    ]
)
_PATHS = st.lists(_PART, min_size=1, max_size=4).map("/".join)
_REFS = st.lists(
    st.builds(
        ChunkRef, st.sampled_from([DIGEST, DIGEST[::-1]]), st.sampled_from([1, 5, LARGEST_CHUNK])
    ),
    max_size=3,
)


@st.composite
def _entries(draw: st.DrawFn) -> Entry:
    chunks = tuple(draw(_REFS))
    size = sum(ref.size for ref in chunks) + draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
    return Entry(
        path=draw(_PATHS), mode=draw(st.sampled_from([0o644, 0o755])), size=size, chunks=chunks
    )


@st.composite
def _encodings(draw: st.DrawFn) -> bytes:
    """Mostly of trees, some of them damaged."""
    entries = draw(st.lists(_entries(), max_size=6, unique_by=lambda entry: entry.path))
    if draw(st.integers(0, 3)):
        entries.sort(key=lambda entry: entry.path.encode())
    data = Manifest(entries=tuple(entries)).encode()
    if draw(st.integers(0, 3)):
        return data
    place = draw(st.integers(0, len(data)))
    end = min(place + draw(st.integers(0, 3)), len(data))
    junk = draw(st.sampled_from([b"", b" ", b'"', b",", b"0", b"\\", b"\xff", b"]", b'{"a":1}']))
    return data[:place] + junk + data[end:]


def _stored(data: bytes) -> list[Entry] | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "manifest")
        path.write_bytes(data)
        try:
            with StoredManifest(path) as manifest:
                manifest.check()
                found = [
                    Entry(path=one.path, mode=one.mode, size=one.size, chunks=tuple(one.chunks))
                    for one in manifest.entries
                ]
                assert manifest.files == len(found)
                assert manifest.size == sum(one.size for one in found)
                assert list(manifest.refs()) == [ref for one in found for ref in one.chunks]
                return found
        except ContentError:
            return None


def _decoded(data: bytes) -> list[Entry] | None:
    try:
        return list(decode(data).entries)
    except ContentError:
        return None


@given(_encodings())
def test_it_is_read_as_by_decode(data: bytes) -> None:
    assert _stored(data) == _decoded(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"entries":[],"version":1}',
        b'{"entries":[],"version":1}\n',
        b'{"entries":[],"version":1} ',
        b'{"entries":[],"version":2}',
        b'{"entries":[,],"version":1}',
        b'{"entries":[{}],"version":1}',
        b'{"entries":[{"chunks":[],"mode":"0644","path":"a","size":0}],"version":1}',
        b'{"entries":[{"chunks":[],"mode":"0644","path":"\\u0061","size":0}],"version":1}',
        b'{"entries":[{"chunks":[],"mode":"0644","path":"a","size":00}],"version":1}',
        b'{"entries":[{"chunks":[],"mode":"0600","path":"a","size":0}],"version":1}',
        b'{"entries":[{"chunks":[],"mode":"0644","path":"a","size":0},],"version":1}',
        json.dumps({"entries": [], "version": 1}).encode("utf-16"),
    ],
)
def test_odd_ones_are_read_as_by_decode(data: bytes) -> None:
    assert _stored(data) == _decoded(data)


def test_entries_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    refs = tuple(ChunkRef(DIGEST, 1 + number % 3) for number in range(20_000))
    size = sum(ref.size for ref in refs)
    entries = [Entry(path=name, mode=0o644, size=size, chunks=refs) for name in ("a", "b")]
    entries += [Entry(path=f"c/{n:05}", mode=0o644, size=0, chunks=()) for n in range(10_000)]
    manifest = build(entries)
    path = tmp_path / "manifest"
    path.write_bytes(manifest.encode())
    with StoredManifest(path) as stored:
        stored.check()
        assert (stored.size, stored.files, stored.folders) == (manifest.size, 10_002, 1)
        assert list(stored.refs()) == list(manifest.refs())


def test_a_manifest_of_many_files_takes_little_memory(tmp_path: Path) -> None:
    """Of 20,000 files a quarter of what reading it at once takes: of 100,000 it is a tenth."""
    entries = [Entry(path=f"{n:06}/f", mode=0o644, size=0, chunks=()) for n in range(20_000)]
    path = tmp_path / "manifest"
    path.write_bytes(Manifest(entries=tuple(entries)).encode())
    del entries
    tracemalloc.start()
    with StoredManifest(path) as manifest:
        manifest.check()
        sum(1 for _ in manifest.entries)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert manifest.folders == 20_000
    assert peak < 9 << 19


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(entries=2), "over the limit of 2 files"),
        (Limits(folders=3), "more than 3 folders"),
        (Limits(encoded_bytes=10), "over the limit of 10"),
        (Limits(bytes=2), "over the limit of 2"),
    ],
)
def test_limits(tmp_path: Path, limits: Limits, says: str) -> None:
    """Folders count, too: a short path has many, and each takes what a file takes."""
    chunk = (ChunkRef(DIGEST, 1),)
    entries = [Entry(path=f"{n}/a/f", mode=0o644, size=1, chunks=chunk) for n in range(3)]
    path = tmp_path / "manifest"
    path.write_bytes(build(entries).encode())
    with StoredManifest(path) as manifest, pytest.raises(ContentError, match=says):
        manifest.check(limits)
    with pytest.raises(ContentError):
        decode(path.read_bytes(), limits=limits)


def test_a_check_can_be_ended(tmp_path: Path) -> None:
    path = tmp_path / "manifest"
    path.write_bytes(
        build([]).encode().replace(b"[]", b'[{"chunks":[],"mode":"0644","path":"a","size":0}]')
    )

    def look() -> None:
        raise KeyboardInterrupt

    with StoredManifest(path) as manifest, pytest.raises(KeyboardInterrupt):
        manifest.check(look=look)


def test_files_without_content_are_made_some_at_a_time(tmp_path: Path) -> None:
    """Whoever lays a tree out can look around in between, and end it."""
    entries = [Entry(path=f"{n:05}", mode=0o644, size=0, chunks=()) for n in range(1_000)]
    with Extraction(build(entries), tmp_path / "out") as extraction:
        made = []
        while (step := extraction.advance()) is not None:
            made.append(step)
        assert sum(made) == 1_000
        assert max(made) < 500
        extraction.finish()
    assert len(list((tmp_path / "out").iterdir())) == 1_000
