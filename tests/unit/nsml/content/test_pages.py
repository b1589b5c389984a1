"""Trees in pages: one name for each, few pages for a change, and hostile roots refused before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsml.content.chunks import LARGEST_CHUNK, MAX_CHUNK, MIN_CHUNK, WHOLE_BELOW, chunks_of
from nsml.content.digests import digest_of
from nsml.content.errors import ManifestRefused
from nsml.content.manifest import ChunkRef, Entry, Manifest, build, decode
from nsml.content.pages import Naming, Page, Root, pages_in, root_of
from nsml.content.stored_manifest import StoredManifest, check_stream

DIGEST = "0123456789abcdef" * 4


def refs(count: int, seed: int = 0) -> tuple[ChunkRef, ...]:
    sizes = (1 + (seed + number) % LARGEST_CHUNK for number in range(count))
    return tuple(ChunkRef(digest_of(b"%d %d" % (seed, n)), size) for n, size in enumerate(sizes))


def tree(files: int, chunks: int = 1) -> Manifest:
    parts = [refs(chunks, number) for number in range(files)]
    return build(
        [
            Entry(path=f"{n:06}", mode=0o644, size=sum(ref.size for ref in part), chunks=part)
            for n, part in enumerate(parts)
        ]
    )


def changed(manifest: Manifest, *further: Entry) -> Manifest:
    return build([*manifest.entries, *further])


def encoded(pages: list[tuple[str, int]], version: int = 2) -> bytes:
    items = ",".join(f'["{digest}",{size}]' for digest, size in pages)
    return f'{{"pages":[{items}],"version":{version}}}'.encode()


def blobs_of(manifest: Manifest) -> dict[str, bytes]:
    """The blobs that name it."""
    root = manifest.root
    return dict(manifest.naming_blobs({root.digest, *(page.digest for page in root.pages)}))


def test_the_format_is_the_one_of_all_that_is_stored() -> None:
    """Another library, or another rule, would give trees other names than they have."""
    many = build([Entry(path=f"{n:05}", mode=0o644, size=0, chunks=()) for n in range(30_000)])
    large = tree(2, 10_000)
    assert [page.size for page in many.root.pages] == [103910, 569655, 422647, 277538, 186275]
    assert many.digest == "c382eb00f7dbeeec717b73b1629bb181b7e6daa5ff9e09df1857680efe3aae39"
    assert [page.size for page in large.root.pages] == [
        357721,
        287603,
        221892,
        277712,
        188008,
        144999,
    ]
    assert large.digest == "5dba11c923207ee5f8d05779c834ba63d429d48e7ab4db247ded8d34410a141f"
    small = build([Entry(path="a", mode=0o755, size=0, chunks=())])
    assert small.root == Root(
        digest=digest_of(small.encode()), data=small.encode(), encoded_bytes=len(small.encode())
    )
    first, second = Page(DIGEST, MAX_CHUNK), Page(DIGEST[::-1], 5)
    data = encoded([first, second])
    assert data == (
        b'{"pages":[["%b",1048576],["%b",5]],"version":2}'
        % (DIGEST.encode(), DIGEST[::-1].encode())
    )
    assert pages_in(data) == (first, second)


@st.composite
def _trees(draw: st.DrawFn) -> Manifest:
    """Around the size from which on they have pages, and some times that."""
    files = draw(st.integers(1, 40))
    chunks = draw(st.sampled_from([300, 340, 350, 1_000]))
    extra = draw(st.integers(0, 3))
    more = [Entry(path="~" * n, mode=0o755, size=0, chunks=()) for n in range(1, extra + 1)]
    return changed(tree(files, chunks), *more)


@settings(max_examples=15, deadline=None)
@given(_trees())
def test_any_tree_is_what_its_pages_say(manifest: Manifest) -> None:
    blobs, root = blobs_of(manifest), manifest.root
    assert list(blobs)[-1] == root.digest == manifest.digest
    assert all(digest_of(data) == digest for digest, data in blobs.items())
    pages = pages_in(root.data)
    assert (pages is None) == (len(manifest.encode()) <= WHOLE_BELOW)
    joined = b"".join(blobs[page.digest] for page in pages or [Page(root.digest, 0)])
    assert joined == manifest.encode()
    assert decode(joined) == manifest
    naming = Naming(BytesIO(joined))
    taken: list[ChunkRef] = []
    extent = check_stream(naming.read, lambda *ref: taken.append(ChunkRef(*ref)))
    assert (extent.files, extent.size) == (len(manifest.entries), manifest.size)
    assert taken == list(manifest.refs())
    assert naming.root() == root_of(BytesIO(joined)) == root
    assert naming.is_named(root.digest)


@pytest.mark.parametrize("name", ["000", "005000x", "~"])
def test_one_file_more_changes_at_most_three_pages(name: str) -> None:
    before = tree(20_000)
    after = changed(before, Entry(path=name, mode=0o644, size=1, chunks=(ChunkRef(DIGEST, 1),)))
    new = {*after.root.pages} - {*before.root.pages}
    assert len(before.root.pages) > 6
    assert 1 <= len(new) <= 3


def test_an_earlier_name_of_a_large_tree_is_known_still() -> None:
    """Versions before stored it as one blob."""
    manifest = tree(10_000)
    naming = Naming(BytesIO(manifest.encode()))
    while naming.read():
        pass
    assert naming.is_named(digest_of(manifest.encode()))
    assert naming.is_named(manifest.digest)
    assert not naming.is_named(manifest.root.pages[0].digest)
    assert pages_in(manifest.encode()) is None


PAGE = (DIGEST, MAX_CHUNK)
# Made by the tests: the first has 70 MB, and each worker collects them all.
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a million pages": lambda: encoded([(DIGEST, MIN_CHUNK)] * 1_000_000),
    "one page over and over": lambda: encoded([PAGE] * 1_000),
    "none": lambda: encoded([]),
    "small": lambda: encoded([(DIGEST, WHOLE_BELOW)]),
    "a short page before the last": lambda: encoded([PAGE, (DIGEST, 5), PAGE]),
    "a long page": lambda: encoded([(DIGEST, MAX_CHUNK + 1), PAGE]),
    "no size": lambda: encoded([(DIGEST, 0), PAGE, PAGE]),
    "2^63 bytes": lambda: encoded([(DIGEST, 1 << 63), PAGE]),
    "negative": lambda: encoded([(DIGEST, -1), PAGE]),
    "a digest in capitals": lambda: encoded([PAGE, (DIGEST.upper(), 5)]),
    "no digest": lambda: encoded([PAGE, ("0", 5)]),
    "version": lambda: encoded([PAGE, PAGE], 3),
    "white space": lambda: encoded([PAGE, PAGE]).replace(b",[", b", ["),
    "more": lambda: encoded([PAGE, PAGE]) + b"\n",
    "another field": lambda: encoded([PAGE, PAGE]).replace(b',"v', b',"u":1,"v'),
    "cut short": lambda: encoded([PAGE, PAGE])[:-20],
    "too many bytes": lambda: encoded([(digest_of(b"%d" % n), MAX_CHUNK) for n in range(4_100)]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_root_is_refused_before_a_page_is_read(what: str) -> None:
    with pytest.raises(ManifestRefused):
        pages_in(HOSTILE[what]())


def test_a_root_of_a_root_is_no_tree(tmp_path: Path) -> None:
    """Pages that are a root again are no encoding, and so nothing further is read."""
    inner = encoded([(digest_of(b"%d" % n), MIN_CHUNK) for n in range(20_000)])
    assert len(inner) > WHOLE_BELOW
    (tmp_path / "joined").write_bytes(b"".join(chunks_of(BytesIO(inner))))
    with (
        StoredManifest(tmp_path / "joined") as stored,
        pytest.raises(ManifestRefused, match="canonical form at byte 0"),
    ):
        stored.check()
