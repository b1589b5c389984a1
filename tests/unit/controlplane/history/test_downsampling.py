"""Levels and looks at them, against the points themselves."""

from __future__ import annotations

import math
import random
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.history.downsampling import (
    FACTOR,
    FIRST,
    ROW,
    Levels,
    Row,
    columns_in,
    columns_of,
    encode_row,
    levels_of,
    merged,
    single,
    size_of,
    together,
)
from controlplane.history.range_read import RangeReader, Span
from controlplane.history.values import SeriesAxis
from nsml.content.errors import BlobCorrupt
from nsml.content.framing import frame
from tests.support.examples import examples

NUMBERS = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.7e308, -1.7e308])
)


def grown(count: int, *, chunk: int = 100, seed: int = 0) -> tuple[Levels, list[Row], list[float]]:
    levels, rows, values = Levels(), [], []
    rng = random.Random(seed)
    for first in range(0, count, chunk):
        some = [rng.gauss(0, 1) for _ in range(min(chunk, count - first))]
        values += some
        points = [(float(first + n), 1e9 + first + n, value) for n, value in enumerate(some)]
        rows += levels.add(first // chunk + 1, points)
    return levels, rows, values


@pytest.mark.parametrize("count", [0, 1, 15, 16, 127, 128, 511, 512, 5_000, 70_000])
def test_every_level_has_every_point_once(count: int) -> None:
    levels, rows, values = grown(count)
    for level in range(1, len(levels.open) + 1):
        buckets = [bucket for row in rows if row.level == level for bucket in row.buckets]
        assert [row.number for row in rows if row.level == level] == list(
            range(levels.sealed[level - 1])
        )
        buckets += levels.open[level - 1]
        assert all(bucket.points == size_of(level) for bucket in buckets)
        for _, _, some, begin in levels.rest(level):
            buckets += some.buckets()[begin:]
        buckets += [bucket for _, bucket in levels.points()]
        assert sum(bucket.finite for bucket in buckets) == count
        assert math.fsum(bucket.total for bucket in buckets) == pytest.approx(math.fsum(values))
        assert merged(buckets)[2:4] == (min(values), max(values))
    assert all(len(buckets) < ROW for buckets in levels.open)
    assert levels.count == count
    assert len(levels.encoded()) < 16 << 10


@given(st.lists(NUMBERS, max_size=1_200), st.lists(st.integers(1, 400), min_size=1, max_size=8))
@settings(max_examples=examples(30))
def test_in_how_many_turns_points_come_changes_nothing(
    values: list[float], sizes: list[int]
) -> None:
    at_once, in_turns = Levels(), Levels()
    points = [(None, float(n), value) for n, value in enumerate(values)]
    rows, others = [], []
    at = chunk = 0
    while at < len(points):
        size = sizes[chunk % len(sizes)]
        chunk += 1
        rows += at_once.add(chunk, points[at : at + size])
        others += levels_of(in_turns.encoded()).add(chunk, ())
        in_turns = levels_of(in_turns.encoded())
        others += in_turns.add(chunk, points[at : at + size])
        at += size
    assert in_turns.encoded() == at_once.encoded()
    assert list(map(encode_row, others)) == list(map(encode_row, rows))
    for row in rows:
        again = row._replace(buckets=tuple(columns_in(encode_row(row)).buckets()))
        assert encode_row(again) == encode_row(row)


def test_what_is_no_number_is_counted_and_nothing_else() -> None:
    values = [math.nan, 1.0, math.inf, -3.0, -math.inf]
    bucket = together([(float(n), 5.0 - n, value, 1.0, 0.0) for n, value in enumerate(values)])
    assert bucket[:10] == (2.0, 3.0, -3.0, 1.0, -2.0, -3.0, 0.0, 4.0, 1.0, 5.0)
    none = merged([single(1.0, 2.0, math.nan), single(3.0, 4.0, math.inf)])
    assert (none.finite, none.odd, none.low, none.high) == (0.0, 2.0, math.inf, -math.inf)
    assert merged([none, single(5.0, 6.0, 7.0), none]).last == 7.0


def test_a_sum_beyond_every_number_is_no_error() -> None:
    levels = Levels()
    levels.add(1, [(float(n), 1.0, 1.7e308) for n in range(FIRST * FACTOR)])
    look = RangeReader(levels, Span(axis=SeriesAxis.STEP), 1, no_rows)
    look.settle()
    [column] = look.columns()
    assert (column.low, column.mean, column.high) == (1.7e308, 1.7e308, 1.7e308)


def test_steps_over_all_numbers_are_no_error() -> None:
    levels = Levels()
    count = 300
    points = [(1.7e308 * (2 * n / count - 1), 1.0, 1.0) for n in range(count + 1)]
    rows = levels.add(1, points)
    assert not rows
    look = RangeReader(levels, Span(axis=SeriesAxis.STEP), 4, no_rows)
    look.settle()
    columns = look.columns()
    assert 2 <= len(columns) <= 2 * 4
    assert sum(columns.finite) == count + 1
    assert (columns.x_low[0], columns.x_high[-1]) == (points[0][0], points[-1][0])


@given(st.binary(max_size=300))
def test_bytes_that_are_no_levels_are_refused(body: bytes) -> None:
    for read in (levels_of, columns_in):
        with pytest.raises(BlobCorrupt):
            read(body)


def test_bytes_that_are_nearly_levels_are_refused() -> None:
    levels, rows, _ = grown(5_000)
    for read, body in ((levels_of, levels.encoded()), (columns_in, encode_row(rows[0]))):
        rng = random.Random(zlib.crc32(body))
        read(body)
        for _ in range(50):
            numbers = struct.pack("8d", 1.0, *(rng.choice([1e300, -1, 7, 0.5]) for _ in range(7)))
            shuffled = b"".join(numbers[at::8] for at in range(8))
            with pytest.raises(BlobCorrupt):
                read(frame(shuffled))
        with pytest.raises(BlobCorrupt):
            read(body[: len(body) // 2])


def no_rows(level: int, numbers: object) -> dict[int, tuple[()]]:
    raise AssertionError((level, numbers))


@pytest.mark.parametrize("count", [100_000, 300_000])
def test_a_look_reads_few_rows_however_long_the_series_is(count: int) -> None:
    levels, rows, values = grown(count, chunk=1_000)
    stored = {(row.level, row.number): columns_of(row.buckets) for row in rows}
    for width in (1, 30, 200, 1_000):
        for low, high in [
            (-math.inf, math.inf),
            (count * 0.3, count * 0.8),
            (count / 2, count / 2),
        ]:
            read = []

            def load(level: int, numbers: object, read: list = read) -> dict:
                read.extend((level, number) for number in numbers)
                return {number: stored[level, number] for number in numbers}

            look = RangeReader(levels, Span(axis=SeriesAxis.STEP, low=low, high=high), width, load)
            look.settle()
            look.serve({})
            columns = look.columns()
            assert len(read) <= FACTOR * width // ROW + 20
            assert len(columns) <= 2 * width
            inside = [v for x, v in enumerate(values) if low <= x <= high]
            extra = sum(column.finite for column in columns) - len(inside)
            assert 0 <= extra <= 2 * FIRST
            if not extra:
                assert min(column.low for column in columns) == min(inside)
                assert max(column.high for column in columns) == max(inside)
