"""Messages that carry blobs, as protobuf encodes them but without its copies.

protobuf copies each blob three times on its way into a message, and twice on its way out. Here blobs are put together once, and
read where they lie. What other programs encode in another way, which protobuf allows, is left to protobuf.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Blob(NamedTuple):
    """A blob, or a part of one; `last` as in `nsml.v1.Blob`. The bytes may lie in the message: that stays while they do."""

    digest: str
    data: bytes | memoryview
    last: bool


_NUMBER: Final = rb"([\x80-\xff]{0,3}[\x00-\x7f])"
_HEAD: Final = re.compile(rb"\n" + _NUMBER + rb"\n\x40([0-9a-f]{64})\x12" + _NUMBER, re.DOTALL)
"""Of a blob in a message: its length there, digest, and the length of its bytes, which follow."""
_LAST: Final = b"\x18\x01"
"""Behind the bytes of a last part; behind others is nothing."""
_SESSION_ID: Final = b"\x12"


class _BlobMessage:
    """In the place of protobuf's class of the same name, whose attributes it has."""

    _OTHERWISE: ClassVar[Any]

    def __init__(self, blobs: Sequence[Blob], session_id: str = "") -> None:
        self.blobs = blobs
        self.session_id = session_id

    def SerializeToString(self) -> bytes:  # noqa: N802 - as in protobuf's classes
        """The message as it is sent."""
        return b"".join(_pieces(self.blobs, self.session_id.encode()))

    @classmethod
    def FromString(cls, message: bytes) -> Self:  # noqa: N802 - as in protobuf's classes
        """The message that was received. Raises google.protobuf.message.DecodeError."""
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
    """The blobs of a message; None where it is not written as `_pieces` does without a session."""
    blobs: list[Blob] = []
    view, at = memoryview(message), 0
    while at < len(message):
        head = _HEAD.match(message, at)
        if head is None:
            return None
        start = head.end()
        end = start + _value(head[3])
        # What stands between the length and the bytes has a length of its own.
        tail = at + 1 + len(head[1]) + _value(head[1]) - end
        last = tail == len(_LAST) and message[end : end + tail] == _LAST
        if (tail and not last) or end + tail > len(message):
            return None
        blobs.append(Blob(head[2].decode(), view[start:end], last))
        at = end + tail
    return blobs


def _number(value: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first."""
    low, rest = value & 0x7F, value >> 7
    return bytes((low | 0x80,)) + _number(rest) if rest else bytes((low,))


def _value(number: bytes) -> int:
    value = 0
    for byte in reversed(number):
        value = value << 7 | byte & 0x7F
    return value
