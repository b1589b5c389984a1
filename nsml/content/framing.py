"""Framing of stored bytes: one flag byte, then raw bytes or one zstd frame.

`0x00` + raw bytes, or `0x01` + a zstd frame with its content size. Compression is used
if it saves at least 1/16, so already compressed content is stored raw and can be read by range.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nsml.content.errors import BlobCorrupt

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

RAW = 0
ZSTD = 1
_LEVEL = 3
_SMALLEST = 64
_PROBE = 64 * 1024


_OF_THREAD = threading.local()
"""Each thread's (de)compressors: creating one costs more than a small frame, and threads may not share one."""


def frame(data: bytes, level: int = _LEVEL) -> bytes:
    """Frame `data` for storage; `level` is zstd's, from 1 (fast) to 22."""
    return b"".join(frame_pieces(data, level))


def frame_pieces(data: bytes | memoryview, level: int = _LEVEL) -> tuple[bytes, bytes | memoryview]:
    """Like `frame`, in pieces: raw data is not copied."""
    if len(data) >= _SMALLEST and _seems_compressible(data):
        packed = _compressor(level).compress(data)
        if len(packed) <= len(data) - len(data) // 16:
            return bytes((ZSTD,)), packed
    return bytes((RAW,)), data


def unframe(blob: bytes | memoryview, *, max_bytes: int) -> bytes:
    """Return the content of a frame.

    Raises BlobCorrupt for anything not written by `frame`, and for content over `max_bytes`, which
    bounds the reader's memory.
    """
    view = memoryview(blob)
    if len(view) == 0:
        raise BlobCorrupt("an empty frame")
    flag, body = view[0], view[1:]
    if flag == RAW:
        if len(body) > max_bytes:
            raise BlobCorrupt(f"a frame of {len(body)} bytes, over the limit of {max_bytes}")
        return bytes(body)
    if flag != ZSTD:
        raise BlobCorrupt(f"a frame of unknown kind {flag}")
    return _decompress(body, max_bytes)


def _decompress(body: memoryview, max_bytes: int) -> bytes:
    import zstandard

    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= max_bytes:
            raise BlobCorrupt(f"a frame that says {size} bytes, over the limit of {max_bytes}")
        data = _decompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BlobCorrupt(f"a broken zstd frame: {error}") from error
    if len(data) != size:
        raise BlobCorrupt(f"a zstd frame of {len(data)} bytes that says {size}")
    return data


def _seems_compressible(data: bytes | memoryview) -> bool:
    """Try the first 64 KiB of large data: compressing media is wasted work."""
    if len(data) <= _PROBE:
        return True
    head = memoryview(data)[:_PROBE]
    return len(_compressor(1).compress(head)) <= len(head) - len(head) // 16


def _compressor(level: int) -> ZstdCompressor:
    name = f"compressor_{level}"
    try:
        kept: ZstdCompressor = getattr(_OF_THREAD, name)
    except AttributeError:
        import zstandard

        kept = zstandard.ZstdCompressor(level)
        setattr(_OF_THREAD, name, kept)
    return kept


def _decompressor() -> ZstdDecompressor:
    try:
        kept: ZstdDecompressor = _OF_THREAD.decompressor
    except AttributeError:
        import zstandard

        kept = _OF_THREAD.decompressor = zstandard.ZstdDecompressor()
    return kept
