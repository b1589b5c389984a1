"""The format of a record file: one magic, then frames. `docs/sdk-protocol.md` is the contract.

A frame is `<IIQ` little endian (payload length, CRC-32 of sequence number and payload, sequence
number) followed by the payload, one UTF-8 JSON object. Numbers count 1, 2, 3 ... in each file.
"""

from __future__ import annotations

import struct
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

MAGIC = b"NSMLREC1"
HEADER = struct.Struct("<IIQ")
MAX_PAYLOAD = 1 << 20
MAX_FILES = 4096
LOST_BYTES = 64
"""Size of a writer's file of lost records: overwriting it needs no new room."""
REPORT = b'{"kind":"metric",'
"""Prefix of the SDK's reports, which are nearly all records: a reader sees at once that such a record is no
checkpoint. Those of other writers may start in any way."""

_pack = HEADER.pack


class DamagedError(ValueError):
    """Complete bytes that are no valid frame; `position` is the offset of the bad frame."""

    def __init__(self, position: int) -> None:
        super().__init__(f"no valid frame at byte {position}")
        self.position = position


def frame(seq: int, payload: bytes) -> bytes:
    """Return the bytes that append `payload` as record number `seq`."""
    return _pack(len(payload), crc32(payload, crc32(seq.to_bytes(8, "little"))), seq) + payload


def parse(data: bytes) -> Tuple[List[Tuple[int, bytes]], int]:
    """Parse the start of a record file; return all whole frames, and the size of these and the magic.

    The rest is a frame that is being written, or was when its writer died.

    Raises:
        DamagedError: a complete frame fails its checksum, or the magic is wrong.
    """
    if len(data) < len(MAGIC):
        if MAGIC.startswith(data):
            return [], 0
        raise DamagedError(0)
    if not data.startswith(MAGIC):
        raise DamagedError(0)
    position = len(MAGIC)
    records = []
    while position + HEADER.size <= len(data):
        length, checksum, seq = HEADER.unpack_from(data, position)
        end = position + HEADER.size + length
        if length > MAX_PAYLOAD:
            raise DamagedError(position)
        if end > len(data):
            break
        payload = data[position + HEADER.size : end]
        if crc32(payload, crc32(seq.to_bytes(8, "little"))) != checksum:
            raise DamagedError(position)
        records.append((seq, payload))
        position = end
    return records, position
