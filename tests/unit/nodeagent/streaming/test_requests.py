"""What is asked of a dataset as S3 has it: pages of keys, ranges, and its index."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.streaming.errors import S3Error
from nodeagent.streaming.index import Index, build_index
from nodeagent.streaming.requests import Bucket, Reply, answer, page_of, range_of
from nodeagent.streaming.signatures import SignedRequest
from nsml.content.digests import digest_of
from nsml.content.errors import ContentError
from nsml.content.manifest import ChunkRef, Entry, build

SIZES = {"a.txt": [3], "d/one": [5, 7, 2], "d/two": [], "d/e/x y+ü": [1], "z": [4]}


def index_of(folder: Path, sizes: dict[str, list[int]]) -> Index:
    entries = [
        Entry(
            path=path,
            mode=0o644,
            size=sum(parts),
            chunks=tuple(
                ChunkRef(digest_of(f"{path} {at}".encode()), size) for at, size in enumerate(parts)
            ),
        )
        for path, parts in sizes.items()
    ]
    (folder / "manifest").write_bytes(build(entries).encode())
    build_index(folder / "manifest", folder / "index")
    return Index(folder / "index")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with index_of(tmp_path, SIZES) as found:
        yield found


def asked(index: Index, target: str, method: str = "GET", **headers: str) -> Reply:
    path, _, query = target.partition("?")
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    request = SignedRequest(method=method, path=path, query=query, headers=named)
    return answer(request, {"big": Bucket(root="r" * 64, index=index)})


def refused(index: Index, target: str, **headers: str) -> tuple[int, str]:
    with pytest.raises(S3Error) as error:
        asked(index, target, **headers)
    return error.value.status, error.value.code


def test_the_chunks_of_any_range_hold_it(index: Index) -> None:
    file = index.find(b"d/one")
    assert file is not None
    assert (index.files, index.size, file.size) == (5, 22, 14)
    for start in range(14):
        for end in range(start + 1, 15):
            found = index.chunks(file, start, end)
            assert found[0].start <= start < found[0].start + found[0].size
            assert found[-1].start < end <= found[-1].start + found[-1].size
            assert all(a.start + a.size == b.start for a, b in pairwise(found))
    assert index.find(b"d") is None


def test_what_is_no_manifest_makes_no_index(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_bytes(b'{"entries":[],"version":2}')
    with pytest.raises(ContentError):
        build_index(tmp_path / "manifest", tmp_path / "index")
    assert [one.name for one in tmp_path.iterdir()] == ["manifest"]
    (tmp_path / "index").write_bytes(b"SQLite format 3\0 and nothing of the kind" * 100)
    with pytest.raises(OSError, match="cannot be read"):
        Index(tmp_path / "index")


def test_a_file_is_answered_with_its_size_its_tag_and_a_range(index: Index) -> None:
    whole = asked(index, "/big/d/e/x%20y+%C3%BC")
    assert whole.part is not None
    assert (whole.status, whole.part.start, whole.part.end) == (200, 0, 1)
    part = asked(index, "/big/d/one", range="bytes=-3")
    headers = dict(part.headers)
    assert (part.status, headers["content-range"]) == (206, "bytes 11-13/14")
    assert headers["content-length"] == "3"
    tag = headers["etag"]
    assert asked(index, "/big/d/one", if_none_match=tag).status == 304
    assert refused(index, "/big/d/one", if_match='"other"') == (412, "PreconditionFailed")
    assert asked(index, "/big/d/one", if_match=f'"other", {tag}').status == 200
    assert dict(asked(index, "/big/z").headers)["etag"] != tag


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("/other/z", (404, "NoSuchBucket")),
        ("/big/none", (404, "NoSuchKey")),
        ("/big/%ff%00../../etc/passwd", (404, "NoSuchKey")),
        ("/big/z?acl", (501, "NotImplemented")),
        ("/big?uploads", (501, "NotImplemented")),
        ("/big?list-type=2&max-keys=-1", (400, "InvalidArgument")),
        ("/big?list-type=2&continuation-token=%C3%BC", (400, "InvalidArgument")),
    ],
)
def test_what_is_not_there_or_not_served(index: Index, target: str, found: tuple[int, str]) -> None:
    assert refused(index, target) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bytes=0-", (0, 10)),
        ("bytes=3-3", (3, 4)),
        ("bytes=3-99", (3, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes=10-", 416),
        ("bytes=5-4", 416),
        ("bytes=-0", 416),
        ("bytes=0-0,5-6", 400),
        ("bytes=" + "0-0," * 10_000, 400),
        ("bytes=-", 400),
        ("bytes=" + "9" * 5000 + "-", 400),
        ("lines=0-1", 400),
    ],
)
def test_a_request_has_one_range(text: str, found: tuple[int, int] | int) -> None:
    if isinstance(found, tuple):
        assert range_of(text, 10) == found
    else:
        with pytest.raises(S3Error) as error:
            range_of(text, 10)
        assert error.value.status == found


def test_a_listing_is_what_clients_read(index: Index) -> None:
    text = asked(index, "/big?list-type=2&prefix=d%2F&delimiter=%2F&encoding-type=url").body
    found = ET.fromstring(text.decode())
    names = {"s3": "http://s3.amazonaws.com/doc/2006-03-01/"}
    assert [one.text for one in found.iterfind("s3:Contents/s3:Key", names)] == ["d/one", "d/two"]
    assert [one.text for one in found.iterfind("s3:Contents/s3:Size", names)] == ["14", "0"]
    assert [one.text for one in found.iterfind("s3:CommonPrefixes/s3:Prefix", names)] == ["d/e/"]
    assert found.findtext("s3:IsTruncated", namespaces=names) == "false"
    assert b"x%20y%2B%C3%BC" in asked(index, "/big?list-type=2&encoding-type=url").body
    assert b"<Name>big</Name>" in asked(index, "/").body


@given(
    paths=st.sets(
        st.text("ab/ü", min_size=1, max_size=4).filter(
            lambda path: all(path.split("/"))  # no empty part
        ),
        max_size=12,
    ),
    prefix=st.text("ab/", max_size=2),
    delimiter=st.sampled_from(["", "/", "a"]),
    most=st.integers(1, 4),
)
def test_pages_together_are_what_s3_lists(
    tmp_path_factory: pytest.TempPathFactory,
    paths: set[str],
    prefix: str,
    delimiter: str,
    most: int,
) -> None:
    files = {one for one in paths if not any(other.startswith(f"{one}/") for other in paths)}
    expected = set()
    for path in files:
        if path.startswith(prefix):
            at = path.find(delimiter, len(prefix)) if delimiter else -1
            expected.add((path[: at + len(delimiter)] if at >= 0 else path).encode())
    after, found = b"", []
    with index_of(tmp_path_factory.mktemp("index"), {path: [1] for path in files}) as index:
        while True:
            some, prefixes, after = page_of(
                index, prefix.encode(), delimiter.encode(), after, most=most
            )
            page = sorted([*(one.path for one in some), *prefixes])
            assert len(page) <= most
            found += page
            if not after:
                break
            assert len(page) == most
    assert found == sorted(expected)
