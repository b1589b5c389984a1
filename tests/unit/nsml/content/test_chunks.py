from __future__ import annotations

import io
import random
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyfastcdc.py import FastCDC as FastCdcWithoutCompiledPart

from nsml.content import chunks as chunking
from nsml.content.chunks import (
    AVERAGE_CHUNK,
    MAX_CHUNK,
    MIN_CHUNK,
    SAMPLE_CUTS,
    WHOLE_BELOW,
    chunks_of,
    sample,
)
from nsml.content.digests import digest_of
from nsml.content.errors import BlobCorrupt, CutsDiffer
from nsml.content.framing import RAW, ZSTD, frame, unframe
from tests.support.examples import examples

EXPECTED_SIZES = [278914, 292048, 305716, 477575, 270770, 304431, 291710, 347199, 386146, 191219]
SAMPLE_DIGEST = "eeddcf88172a389787150540c432ce47f93317640822c3885ca51bc97940b738"
EXPECTED_DIGEST = "44a1264dd8def6bc1eacb1cdae46a59ece6b0a2ed92c1b048e60ab4f7d6f9492"


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


class Trickle(io.RawIOBase):
    """Gives at most `step` bytes a read, as a pipe or network file may."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = io.BytesIO(data)
        self._step = step

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, self._step))

    def readinto(self, buffer: memoryview) -> int:
        return self._data.readinto(buffer[: self._step])


def test_small_files_are_one_chunk_and_empty_ones_none() -> None:
    assert list(chunks_of(io.BytesIO(b""))) == []
    for size in (1, WHOLE_BELOW):
        data = noise(size)
        assert list(chunks_of(io.BytesIO(data))) == [data]


@pytest.mark.parametrize("size", [WHOLE_BELOW + 1, MAX_CHUNK, 13 << 20, 31 << 20])
def test_large_files_are_cut_within_bounds_and_nothing_is_lost(size: int) -> None:
    data = noise(size)
    chunks = list(chunks_of(io.BytesIO(data)))
    assert b"".join(chunks) == data
    assert all(MIN_CHUNK <= len(chunk) <= MAX_CHUNK for chunk in chunks[:-1])
    assert 0 < len(chunks[-1]) <= MAX_CHUNK


PIECES = st.tuples(
    st.sampled_from(["noise", "zeros", "text"]),
    st.sampled_from([1, MIN_CHUNK, WHOLE_BELOW, MAX_CHUNK, 4 * MAX_CHUNK]),
    st.integers(-2, 2),
)
"""A run of bytes: its kind, and a size near one at which something changes."""


def run_of(kind: str, size: int) -> bytes:
    size = max(size, 0)
    if kind == "noise":
        return noise(size)
    return bytes(size) if kind == "zeros" else (b"loss 0.1\n" * (size // 9 + 1))[:size]


@given(st.lists(PIECES, max_size=4))
@settings(max_examples=examples(25), deadline=None)
@example([("zeros", 4 * MAX_CHUNK, 0), ("noise", MAX_CHUNK, 0)])
@example([("zeros", 4 * MAX_CHUNK, 0), ("zeros", 4 * MAX_CHUNK, 0)])
def test_nothing_is_lost_of_runs_without_a_place_to_cut(pieces: list[tuple[str, int, int]]) -> None:
    data = b"".join(run_of(kind, size + more) for kind, size, more in pieces)
    chunks = list(chunks_of(io.BytesIO(data)))
    assert b"".join(chunks) == data
    assert all(0 < len(chunk) <= MAX_CHUNK for chunk in chunks)


def test_cuts_do_not_depend_on_how_the_file_is_read() -> None:
    data = noise(30 << 20, seed=3)
    at_once = [len(chunk) for chunk in chunks_of(io.BytesIO(data))]
    trickled = [len(chunk) for chunk in chunks_of(Trickle(data, 700_001))]  # type: ignore[arg-type]
    assert trickled == at_once


def test_the_library_without_its_compiled_part_cuts_alike() -> None:
    data = noise(3 << 20, seed=9)
    cutter = FastCdcWithoutCompiledPart(
        AVERAGE_CHUNK, min_size=MIN_CHUNK, max_size=MAX_CHUNK, normalized_chunking=2
    )
    sizes = [cut.length for cut in cutter.cut_buf(data)]
    assert sizes == [len(chunk) for chunk in chunks_of(io.BytesIO(data))]


def test_a_library_that_cuts_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "SAMPLE_CUTS", (*SAMPLE_CUTS[:-1], 792_999, 1))
    monkeypatch.setattr(chunking, "_cutter", chunking._cutter.__wrapped__)
    with pytest.raises(CutsDiffer, match=r"cuts files otherwise .* pip install pyfastcdc=="):
        list(chunks_of(io.BytesIO(noise(WHOLE_BELOW + 1))))
    assert list(chunks_of(io.BytesIO(b"small"))) == [b"small"]


def test_data_made_to_be_cut_everywhere_is_cut_no_finer_than_the_least() -> None:
    """What decides about a cut is the 64 bytes before it: of those of any cut can be made as many as one likes."""
    cuts = chunks_of(io.BytesIO(noise(8 << 20, seed=7)))
    early, after = next((one, then) for one, then in pairwise(cuts) if len(one) < AVERAGE_CHUNK)
    block = bytes(MIN_CHUNK) + early[-64:] + after[:1]
    sizes = [len(chunk) for chunk in chunks_of(io.BytesIO(block * 40))]
    assert set(sizes[1:-1]) == {len(block)}


def test_data_without_a_place_to_cut_is_one_longest_chunk_again_and_again() -> None:
    chunks = list(chunks_of(io.BytesIO(bytes(20 * MAX_CHUNK))))
    assert [len(chunk) for chunk in chunks] == [MAX_CHUNK] * 20
    assert len({digest_of(chunk) for chunk in chunks}) == 1


def test_an_insertion_changes_few_chunks() -> None:
    data = noise(24 << 20, seed=5)
    changed = data[: 8 << 20] + b"inserted" + data[8 << 20 :]
    before = {digest_of(chunk) for chunk in chunks_of(io.BytesIO(data))}
    after = {digest_of(chunk) for chunk in chunks_of(io.BytesIO(changed))}
    assert len(after - before) <= 3


def test_the_format_has_not_drifted() -> None:
    """Other numbers, or another library, would make everything stored unfindable."""
    assert digest_of(sample()) == SAMPLE_DIGEST
    assert tuple(len(chunk) for chunk in chunks_of(io.BytesIO(sample()))) == SAMPLE_CUTS
    sizes = [len(chunk) for chunk in chunks_of(io.BytesIO(noise(3 << 20, seed=1)))]
    assert sizes == EXPECTED_SIZES
    assert digest_of(b"nsml") == EXPECTED_DIGEST


@given(st.binary(max_size=4096))
@settings(max_examples=examples(200))
def test_a_frame_gives_its_bytes_back(data: bytes) -> None:
    assert unframe(frame(data), max_bytes=4096) == data


def test_text_is_compressed_and_noise_is_not() -> None:
    text = b"loss 0.1 accuracy 0.9\n" * 10_000
    assert frame(text)[0] == ZSTD
    assert len(frame(text)) < len(text) // 10
    assert frame(noise(1 << 20))[0] == RAW


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x02abc",
        b"\x01abc",
        b"\x00" + bytes(101),
        frame(bytes(1 << 20)),  # a bomb: a few bytes that say a megabyte
        frame(b"text " * 15)[:-3],
        frame(b"text " * 15) + b"x",
    ],
)
def test_broken_and_oversized_frames_are_refused(blob: bytes) -> None:
    with pytest.raises(BlobCorrupt):
        unframe(blob, max_bytes=100)
