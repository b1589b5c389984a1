from __future__ import annotations

import io
import random

import pytest
from fastcdc.fastcdc_py import fastcdc_py
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsml.content.chunks import AVERAGE_CHUNK, MAX_CHUNK, MIN_CHUNK, WHOLE_BELOW, chunks_of
from nsml.content.digests import digest_of
from nsml.content.errors import BlobCorrupt
from nsml.content.framing import RAW, ZSTD, frame, unframe
from tests.support.examples import examples

EXPECTED_SIZES = [1267775, 1137393, 1042551, 778567, 574691, 974501, 716051, 885698, 778570, 232811]
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
    sizes = [cut.length for cut in fastcdc_py(data, MIN_CHUNK, AVERAGE_CHUNK, MAX_CHUNK)]
    assert sizes == [len(chunk) for chunk in chunks_of(io.BytesIO(data))]


def test_an_insertion_changes_few_chunks() -> None:
    data = noise(24 << 20, seed=5)
    changed = data[: 8 << 20] + b"inserted" + data[8 << 20 :]
    before = {digest_of(chunk) for chunk in chunks_of(io.BytesIO(data))}
    after = {digest_of(chunk) for chunk in chunks_of(io.BytesIO(changed))}
    assert len(after - before) <= 3


def test_the_format_has_not_drifted() -> None:
    """Other numbers, or another library, would make everything stored unfindable."""
    sizes = [len(chunk) for chunk in chunks_of(io.BytesIO(noise(8 << 20, seed=1)))]
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
