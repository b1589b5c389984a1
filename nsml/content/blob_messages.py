"""Messages with blobs, in protobuf's encoding but without its copies.

protobuf copies each blob three times to encode a message, and twice to decode it. Here blobs are joined once, and
read in place. Other valid encodings of the same messages are decoded by protobuf.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Blob(NamedTuple):
    """A blob or a part of one; `last` as in `nsml.v1.Blob`. `data` may be a view that keeps the whole message alive."""

    digest: str
    data: bytes | memoryview
    last: bool


_NUMBER: Final = rb"([\x80-\xff]{0,3}[\x00-\x7f])"
_HEAD: Final = re.compile(rb"\n" + _NUMBER + rb"\n\x40([0-9a-f]{64})\x12" + _NUMBER, re.DOTALL)
"""Head of a blob in a message: length of the blob field, digest, length of the bytes that follow."""
_LAST: Final = b"\x18\x01"
"""Follows the bytes of a last part only."""
_SESSION_ID: Final = b"\x12"


class _BlobMessage:
    """Replaces protobuf's class of the same name, with the same attributes."""

    _OTHERWISE: ClassVar[Any]

    def __init__(self, blobs: Sequence[Blob], session_id: str = "") -> None:
        self.blobs = blobs
        self.session_id = session_id

    def SerializeToString(self) -> bytes:  # noqa: N802 - as in protobuf's classes
        """Encode the message."""
        return b"".join(_pieces(self.blobs, self.session_id.encode()))

    @classmethod
    def FromString(cls, message: bytes) -> Self:  # noqa: N802 - as in protobuf's classes
        """Decode a message. Raises google.protobuf.message.DecodeError."""
        blobs = _read(message)
        return cls._OTHERWISE.FromString(message) if blobs is None else cls(blobs)


class PutBlobsRequest(_BlobMessage):
    """See nsml.v1.PutBlobsRequest."""

    _OTHERWISE = pb.PutBlobsRequest


class GetBlobsResponse(_BlobMessage):
    """See nsml.v1.GetBlobsResponse."""

    _OTHERWISE = pb.GetBlobsResponse


def _pieces(blobs: Iterable[Blob], session_id: bytes) -> Iterator[bytes | memoryview]:
    for digest, data, last in blobs:
        size, name = len(data), digest.encode()
        head = b"\n%b%b\x12%b" % (_number(len(name)), name, _number(size))
        yield b"\n%b%b" % (_number(len(head) + size + len(_LAST) * last), head)
        yield data
        if last:
            yield _LAST
    if session_id:
        yield _SESSION_ID + _number(len(session_id)) + session_id


def _read(message: bytes) -> list[Blob] | None:
    """Decode a message as written by `_pieces` without a session ID; None for any other encoding."""
    blobs: list[Blob] = []
    view, at = memoryview(message), 0
    while at < len(message):
        head = _HEAD.match(message, at)
        if head is None:
            return None
        start = head.end()
        end = start + _value(head[3])
        # The field length minus head and bytes is the length of the tail.
        tail = at + 1 + len(head[1]) + _value(head[1]) - end
        last = tail == len(_LAST) and message[end : end + tail] == _LAST
        if (tail and not last) or end + tail > len(message):
            return None
        blobs.append(Blob(head[2].decode(), view[start:end], last))
        at = end + tail
    return blobs


def _number(value: int) -> bytes:
    """Encode a protobuf varint: seven bits per byte, lowest first."""
    low, rest = value & 0x7F, value >> 7
    return bytes((low | 0x80,)) + _number(rest) if rest else bytes((low,))


def _value(number: bytes) -> int:
    value = 0
    for byte in reversed(number):
        value = value << 7 | byte & 0x7F
    return value
