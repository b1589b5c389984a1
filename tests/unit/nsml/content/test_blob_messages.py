"""Messages of blobs: what we write and read is what protobuf does, byte for byte."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from nsml.content import blob_messages
from nsml.content.blob_messages import Blob, GetBlobsResponse, PutBlobsRequest
from nsml.content.digests import digest_of
from nsml.v1 import content_pb2 as pb

BLOBS = st.lists(
    st.builds(
        Blob,
        st.binary(max_size=3).map(digest_of),
        # Lengths are written in one to four bytes.
        st.sampled_from((1, 60, 61, 127, 128, 16_400, 70_000)).map(lambda size: b"\n\x12@" * size),
        st.booleans(),
    ),
    max_size=4,
)


def parsed(message: pb.PutBlobsRequest | PutBlobsRequest) -> tuple[object, str]:
    blobs = [(one.digest, bytes(one.data), one.last) for one in message.blobs]
    return blobs, message.session_id


@given(BLOBS, st.sampled_from(("", "a1", "session " * 20)))
def test_they_are_written_as_protobuf_writes_them(blobs: list[Blob], session_id: str) -> None:
    ours = PutBlobsRequest(blobs, session_id)
    theirs = pb.PutBlobsRequest(
        blobs=[pb.Blob(digest=one.digest, data=one.data, last=one.last) for one in blobs],
        session_id=session_id,
    )
    encoded = ours.SerializeToString()
    assert encoded == theirs.SerializeToString()
    assert parsed(PutBlobsRequest.FromString(encoded)) == parsed(theirs)


def test_blobs_are_read_where_they_lie() -> None:
    encoded = GetBlobsResponse([Blob(digest_of(b"ab"), b"ab", last=True)]).SerializeToString()
    [blob] = GetBlobsResponse.FromString(encoded).blobs
    assert isinstance(blob.data, memoryview)
    assert blob.data.obj is encoded


@given(st.data())
def test_whatever_is_sent_is_read_as_protobuf_reads_it(data: st.DataObject) -> None:
    """Also what no program writes: bytes changed, left out, put in, or cut off."""
    blobs = data.draw(BLOBS.filter(bool))
    message = bytearray(PutBlobsRequest(blobs).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        # Near the ends of blobs, where their numbers are.
        at = data.draw(st.integers(0, min(len(message), 80)))
        at = data.draw(st.sampled_from((at, max(len(message) - at - 1, 0))))
        put = data.draw(
            st.binary(max_size=2) | st.sampled_from((b"\x18\x01", b"\x18\x00", b"\n\x00"))
        )
        message[at : at + data.draw(st.integers(0, 2))] = put
    try:
        theirs = pb.PutBlobsRequest.FromString(bytes(message))
    except DecodeError:
        with pytest.raises(DecodeError):
            PutBlobsRequest.FromString(bytes(message))
    else:
        assert parsed(PutBlobsRequest.FromString(bytes(message))) == parsed(theirs)


@pytest.mark.parametrize(
    "written",
    [
        pb.Blob(digest="short", data=b"1", last=True).SerializeToString(),
        pb.Blob(digest=digest_of(b""), last=True).SerializeToString(),
        pb.Blob(digest=digest_of(b""), data=b"1").SerializeToString() + b"\x18\x00",
        b"\x18\x01" + pb.Blob(digest=digest_of(b""), data=b"1").SerializeToString(),
    ],
)
def test_other_ways_to_write_a_blob_are_read_too(written: bytes) -> None:
    message = b"\n" + bytes((len(written),)) + written
    assert blob_messages._read(message) is None
    assert parsed(PutBlobsRequest.FromString(message)) == parsed(
        pb.PutBlobsRequest.FromString(message)
    )
