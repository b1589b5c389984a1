"""The reader of event files: all forms of values, files that grow, and bytes that are hostile."""

from __future__ import annotations

import io
import math
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml._echo import _event_files
from nsml._echo._event_files import EventReader, EventValue
from nsml.tensorboard import tfevents
from nsml.tensorboard.tfevents import crc32c


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def masked(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def head(length: int) -> bytes:
    data = struct.pack("<Q", length)
    return data + masked(data)


def record(data: bytes) -> bytes:
    return head(len(data)) + data + masked(data)


def event(*values: bytes, step: int = 1, wall: float = 1e9) -> bytes:
    summary = b"".join(field(1, value) for value in values)
    return record(
        b"\x09" + struct.pack("<d", wall) + b"\x10" + varint(step & (2**64 - 1)) + field(5, summary)
    )


def scalar(tag: bytes, value: float) -> bytes:
    return field(1, tag) + b"\x15" + struct.pack("<f", value)


def of_plugin(tag: bytes, plugin: bytes, tensor: bytes, content: bytes = b"") -> bytes:
    metadata = field(9, field(1, field(1, plugin) + field(2, content)))
    return field(1, tag) + field(8, tensor) + metadata


def shape(*sizes: int) -> bytes:
    return field(2, b"".join(field(2, b"\x08" + varint(size)) for size in sizes))


def read(data: bytes, reader: EventReader | None = None) -> list[EventValue]:
    reader = reader or EventReader()
    return [one for part in reader.read(io.BytesIO(data)) for one in part]


def values(data: bytes) -> list[Any]:
    return [one.value for one in read(data)]


FLOAT, DOUBLE, INT64, STRING, HALF, BFLOAT16 = (b"\x08" + bytes([n]) for n in (1, 2, 9, 7, 19, 14))


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        (FLOAT + shape() + field(4, struct.pack("<f", 0.5)), 0.5),
        (FLOAT + shape() + field(5, struct.pack("<f", 0.5)), 0.5),
        (FLOAT + shape() + b"\x2d" + struct.pack("<f", 0.5), 0.5),
        (DOUBLE + shape() + field(4, struct.pack("<d", 0.1)), 0.1),
        (DOUBLE + shape() + field(6, struct.pack("<d", 0.1)), 0.1),
        (INT64 + shape() + field(10, varint(2**64 - 3)), -3.0),
        (INT64 + shape() + b"\x50" + varint(7), 7.0),
        (HALF + shape() + field(13, varint(0x3800)), 0.5),
        (HALF + shape() + field(4, struct.pack("<e", 0.5)), 0.5),
        (BFLOAT16 + shape() + field(4, b"\x00\x3f"), 0.5),
    ],
)
def test_scalars_of_all_types(tensor: bytes, value: float) -> None:
    data = event(of_plugin(b"loss", b"scalars", tensor), step=3, wall=5.5)
    assert read(data) == [("scalar", "loss", 3, 5.5, value)]
    assert read(data * 5)[-1] == ("scalar", "loss", 3, 5.5, value)


def test_media_and_hyperparameters() -> None:
    pixels, sound = b"\x89PNG", b"RIFF"
    strings = b"".join(field(8, one) for one in (b"4", b"5", b"one", b"two"))
    bins = struct.pack("<9d", 0, 1, 5, 1, 2, 6, 2, 3, 7)
    curve = struct.pack("<12f", *range(12))
    number = field(2, b"\x11" + struct.pack("<d", 0.1))
    hparams = field(3, field(1, field(1, b"lr") + number) + field(1, field(1, b"on") + field(2, b"\x20\x01")))  # fmt: skip
    buckets = field(6, struct.pack("<3d", 0, 1, 1e308)) + field(7, struct.pack("<3d", 0, 4, 2))
    histo = b"\x09" + struct.pack("<d", 0.5) + b"\x11" + struct.pack("<d", 9.0) + buckets
    data = event(
        field(1, b"old/image") + field(4, b"\x08\x04" + field(4, pixels)),
        field(1, b"old/audio") + field(6, field(4, sound)),
        field(1, b"old/histogram") + field(5, histo),
        of_plugin(b"images", b"images", STRING + shape(4) + strings),
        of_plugin(b"text", b"text", STRING + shape(1) + field(8, b"hello")),
        of_plugin(b"audio", b"audio", STRING + shape(1, 2) + field(8, sound) + field(8, b"label")),
        of_plugin(b"histogram", b"histograms", DOUBLE + shape(3, 3) + field(4, bins)),
        of_plugin(b"curve", b"pr_curves", FLOAT + shape(6, 2) + field(4, curve)),
        of_plugin(b"_hparams_/session_start_info", b"hparams", b"", hparams),
        of_plugin(b"mesh", b"mesh", FLOAT + shape(1) + field(4, curve)),
    )
    assert [(one.kind, one.tag, one.value) for one in read(data)] == [
        ("image", "old/image", pixels),
        ("audio", "old/audio", sound),
        ("histogram", "old/histogram", ([0.5, 1.0, 9.0], [4.0, 2.0])),
        ("image", "images/0", b"one"),
        ("image", "images/1", b"two"),
        ("text", "text", "hello"),
        ("audio", "audio", sound),
        ("histogram", "histogram", ([0.0, 1.0, 2.0, 3.0], [5.0, 6.0, 7.0])),
        ("pr_curve", "curve", [[8.0, 10.0], [9.0, 11.0]]),
        ("hparams", "", {"lr": 0.1, "on": True}),
    ]


def test_metadata_of_the_first_event_counts_for_later_ones() -> None:
    tensor = FLOAT + shape() + field(4, struct.pack("<f", 0.5))
    later = event(field(1, b"loss") + field(8, tensor), step=2)
    assert values(event(of_plugin(b"loss", b"scalars", tensor)) + later) == [0.5, 0.5]
    assert values(later) == []


def test_a_restart_is_reported() -> None:
    start = record(b"\x09" + struct.pack("<d", 1.0) + b"\x10\x05" + field(7, b"\x08\x01"))
    assert read(start) == [("purge", "", 5, 1.0, None)]


@pytest.mark.parametrize("step", [-1, 2**63 - 1, -(2**63), 0, 127, 128, 2**35])
@pytest.mark.parametrize("wall", [math.nan, 0.0, 1.0, 2.0**60, -math.inf])
def test_odd_steps_and_times(step: int, wall: float) -> None:
    data = event(scalar(b"a", 1.0), step=step, wall=wall) * 3
    for one in read(data):
        assert (one.step, one.value) == (step, 1.0)
        assert one.time == wall or math.isnan(wall)


def test_reading_continues_as_the_file_grows(tmp_path: Path) -> None:
    data = tfevents.head(1.0) + b"".join(
        tfevents.scalar("loss", step, step=step, wall_time_s=1.0) for step in range(50)
    )
    path = tmp_path / "events"
    path.touch()
    reader, found = EventReader(), []
    with path.open("rb") as reading, path.open("ab") as writing:
        for at in range(0, len(data), 7):
            writing.write(data[at : at + 7])
            writing.flush()
            for part in reader.read(reading):
                found += part
            assert reader.offset <= at + 7
    assert [one.step for one in found] == [*range(50)]
    assert (reader.offset, reader.damage, reader.skipped) == (len(data), "", 0)


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("<Q", 2**63) + b"\0\0\0\0",
        head(2**63),
        head(2**31),
        bytes(1000),
        random.Random(7).randbytes(100),
    ],
    ids=["checksum", "2**63 bytes", "2**31 bytes", "zeros", "noise"],
)
def test_nothing_is_read_after_a_damaged_length(bad: bytes) -> None:
    good = event(scalar(b"a", 1.0))
    reader = EventReader()
    assert len(read(good + bad + good, reader)) == 1
    assert reader.damage
    assert reader.offset == len(good)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 100_000,
        b"\x2a" + b"\x80" * 100_000,
        field(5, b"\x0a\xff\x7f" + b"a" * 10),
        field(5, field(1, b"\x0a" + varint(2**63) + b"a")),
        b"\x0b" * 50,
        field(5, field(1, scalar(b"t" * 1_000_000, 1.0))),
        field(5, field(1, of_plugin(b"a", b"scalars", FLOAT + field(4, b"\0")))),
        field(5, field(1, of_plugin(b"a", b"scalars", INT64 + field(10, b"\x80" * 1000)))),
        field(
            5,
            field(1, of_plugin(b"a", b"histograms", DOUBLE + shape(2**62, 3) + field(6, bytes(8)))),
        ),
        field(5, field(1, field(1, b"a") + field(5, field(6, bytes(80_000))))),
        field(5, field(1, of_plugin(b"h", b"hparams", b"", b"\x1a\xff"))),
    ],
)
def test_records_that_cannot_be_read_are_skipped(data: bytes) -> None:
    good = event(scalar(b"a", 1.0))
    found = read(record(data) + good)
    assert found[-1].value == 1.0
    assert len(found) <= 2


def test_an_event_with_very_many_values_is_cut() -> None:
    reader = EventReader()
    data = event(*[scalar(b"%d" % number, 1.0) for number in range(500_000)])
    assert len(read(data, reader)) == _event_files.MOST_VALUES
    assert reader.skipped == 1


def test_a_huge_record_is_skipped_without_loading_it(tmp_path: Path) -> None:
    path = tmp_path / "events"
    length = 1 << 30
    with path.open("wb") as file:  # sparse
        file.write(event(scalar(b"a", 1.0)) + head(length))
        file.seek(length + 4, os.SEEK_CUR)
        file.write(event(scalar(b"b", 2.0)))
    reader = EventReader()
    with path.open("rb") as file:
        found = [one for part in reader.read(file) for one in part]
    assert [(one.tag, one.value) for one in found] == [("a", 1.0), ("b", 2.0)]
    assert reader.skipped == 1


def test_damaged_data_is_found_on_request() -> None:
    good = event(scalar(b"a", 1.0))
    bad = bytearray(good)
    bad[-6] ^= 0x40
    reader = EventReader(verify=True)
    assert [one.value for one in read(good + bytes(bad) + good, reader)] == [1.0, 1.0]
    assert reader.skipped == 1


@given(st.binary(max_size=200), st.integers(0, 30), st.randoms(use_true_random=False))
def test_no_bytes_raise(noise: bytes, times: int, chance: random.Random) -> None:
    tensor = FLOAT + shape() + field(4, struct.pack("<f", 0.5))
    data = bytearray(
        event(scalar(b"a", 1.0)) * 2 + event(of_plugin(b"loss", b"scalars", tensor)) * 3
    )
    for _ in range(times):
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
    read(bytes(data))
    read(record(noise))
    read(record(bytes(data)))
    # Bytes inside of records: their lengths stay valid.
    for inner in (data[12:-4], noise):
        found = read(record(bytes(inner)) * 3)
        assert len(found) % 3 == 0


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.floats(width=32),
            st.sampled_from([b"a", b"b" * 200, "ä/\x1b".encode()]),
            st.booleans(),
        )
    )
)
def test_remembered_forms_change_no_value(points: list[tuple[int, float, bytes, bool]]) -> None:
    data = b""
    for step, value, tag, is_tensor in points:
        tensor = FLOAT + shape() + field(4, struct.pack("<f", value))
        one = of_plugin(tag, b"scalars", tensor) if is_tensor else scalar(tag, value)
        data += event(one, step=step, wall=value)
    found = read(data)
    assert [(one.step, one.tag) for one in found] == [(p[0], p[2].decode()) for p in points]
    for one, (_, value, _, _) in zip(found, points, strict=True):
        assert one.value == value or (math.isnan(value) and math.isnan(one.value))
        assert struct.pack("<d", one.time) == struct.pack("<d", value) or math.isnan(value)
