"""The bytes of a record file: one magic, then frames. `docs/sdk-protocol.md` is the contract.

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
"""Of the file that counts what a writer lost: what overwrites it needs no new room."""
REPORT = b'{"kind":"metric",'
"""How the SDK's reports begin, which are nearly all of the records: no reader need look further to
see that one is no checkpoint. Those of other writers may begin in any way."""

_pack = HEADER.pack


class DamagedError(ValueError):
    """Bytes that are all there and are no frame; `position` is the offset of the bad frame."""

    def __init__(self, position: int) -> None:
        super().__init__(f"no valid frame at byte {position}")
        self.position = position


def frame(seq: int, payload: bytes) -> bytes:
    """The bytes that append `payload` as record number `seq`."""
    return _pack(len(payload), crc32(payload, crc32(seq.to_bytes(8, "little"))), seq) + payload


def parse(data: bytes) -> Tuple[List[Tuple[int, bytes]], int]:
    """All whole frames of a record file's beginning, and how many bytes they and the magic take.

    What follows is a frame that is still being written, or was when its writer died.

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
