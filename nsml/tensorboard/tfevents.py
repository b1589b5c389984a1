"""The format of TensorBoard's event files: records of scalars, each with its checksums.

It is TensorFlow's: a TFRecord (length, masked CRC-32C of the length, data, masked CRC-32C of
the data) contains one protobuf `Event`. Its numbers are 32-bit floats, its steps whole numbers.
"""

from __future__ import annotations

import math
import struct
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78
_MASK_DELTA: Final = 0xA282EAD8
_ALL: Final = 0xFFFFFFFF
_MOST_STEP: Final = (1 << 63) - 1
_LARGEST_FLOAT: Final = 3.4028235677973366e38
"""From here on a number is closer to infinity than to any 32-bit float."""


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ _POLYNOMIAL if value & 1 else value >> 1
        found.append(value)
    return tuple(found)


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of `data`."""
    table, value = _TABLE, _ALL
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ _ALL


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    rotated = (value >> 15 | value << 17) & _ALL
    return struct.pack("<I", (rotated + _MASK_DELTA) & _ALL)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked(length), data, _masked(data)))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(key: bytes, data: bytes) -> bytes:
    """A field of variable length; `key` is its number and type."""
    return key + _varint(len(data)) + data


def head(wall_time_s: float) -> bytes:
    """Return the header of an event file; `wall_time_s` is Unix time."""
    return _record(b"\x09" + struct.pack("<d", wall_time_s) + _field(b"\x1a", b"brain.Event:2"))


def scalar(tag: str, value: float, *, step: int, wall_time_s: float) -> bytes:
    """Encode one number of the series `tag`. Steps beyond 64 bits are clipped."""
    if math.isfinite(value) and abs(value) >= _LARGEST_FLOAT:
        value = math.copysign(math.inf, value)
    number = _field(b"\x0a", tag.encode("utf-8", "replace")) + b"\x15" + struct.pack("<f", value)
    summary = _field(b"\x0a", number)
    cut = min(max(step, -_MOST_STEP), _MOST_STEP)
    return _record(
        b"\x09"
        + struct.pack("<d", wall_time_s)
        + b"\x10"
        + _varint(cut & 0xFFFF_FFFF_FFFF_FFFF)
        + _field(b"\x2a", summary)
    )
