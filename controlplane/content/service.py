"""ContentService."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from controlplane.access.current import caller
from controlplane.content.verification import ReadSoFar
from controlplane.wire.errors import Context, answering, streaming
from nsml.v1 import content_pb2 as pb
from nsml.v1 import content_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator

    from controlplane.content.admitted_objects import AdmittedObjects
    from controlplane.content.content import Content, Part
    from controlplane.content.verification import Broken, Verification

PART_BYTES: Final = 1 << 20
MESSAGE_BYTES: Final = 1 << 20


class ContentServicer(content_pb2_grpc.ContentServiceServicer):
    """Bytes by digest."""

    def __init__(
        self,
        content: Content,
        verification: Verification,
        admitted: AdmittedObjects | None = None,
    ) -> None:
        self._content = content
        self._verification = verification
        self._admitted = admitted

    @answering
    async def FindMissingBlobs(  # noqa: N802 - named by the contract
        self, request: pb.FindMissingBlobsRequest, _: Context
    ) -> pb.FindMissingBlobsResponse:
        """Which would have to be sent."""
        missing = await self._content.missing(
            caller(),
            request.digests,
            root=request.root,
            bases=request.bases,
            session_id=request.session_id,
        )
        return pb.FindMissingBlobsResponse(missing=missing)

    @answering
    async def PutBlobs(  # noqa: N802
        self, requests: AsyncIterator[pb.PutBlobsRequest], _: Context
    ) -> pb.PutBlobsResponse:
        """Store what comes."""
        first = await anext(requests, pb.PutBlobsRequest())
        if self._admitted is not None:
            self._admitted.count_for(caller(), first.session_id)
        stored = await self._content.put(
            caller(), _parts(first, requests), session_id=first.session_id
        )
        return pb.PutBlobsResponse(stored=stored)

    @streaming
    async def GetBlobs(  # noqa: N802
        self, request: pb.GetBlobsRequest, _: Context
    ) -> AsyncGenerator[pb.GetBlobsResponse, None]:
        """Blobs of one manifest; many small ones share a message."""
        batch: list[pb.Blob] = []
        size = 0
        read = self._content.read(caller(), request.root, request.digests)
        async with aclosing(read) as blobs:
            async for digest, data in blobs:
                for blob in _cut(digest, data):
                    if batch and size + len(blob.data) > MESSAGE_BYTES:
                        yield pb.GetBlobsResponse(blobs=batch)
                        batch, size = [], 0
                    batch.append(blob)
                    size += len(blob.data)
        if batch:
            yield pb.GetBlobsResponse(blobs=batch)

    @streaming
    async def VerifyStorage(  # noqa: N802
        self, _request: pb.VerifyStorageRequest, _: Context
    ) -> AsyncGenerator[pb.VerifyStorageResponse, None]:
        """Everything that is stored is read."""
        read = pb.VerifyStorageResponse()
        async with aclosing(self._verification.all()) as found:
            async for one in found:
                if isinstance(one, ReadSoFar):
                    read = pb.VerifyStorageResponse(
                        blobs=one.blobs, bytes=one.stored_bytes, damaged=one.damaged
                    )
                    yield read
                else:
                    yield pb.VerifyStorageResponse(broken=_broken(one))


def _broken(one: Broken) -> pb.BrokenContent:
    return pb.BrokenContent(
        kind=one.kind.name.lower(),
        owner=one.owner,
        names=one.names,
        digest=one.digest,
        lost=one.lost,
    )


async def _parts(
    first: pb.PutBlobsRequest, others: AsyncIterable[pb.PutBlobsRequest]
) -> AsyncIterator[Part]:
    for blob in first.blobs:
        yield blob.digest, blob.data, blob.last
    async for request in others:
        for blob in request.blobs:
            yield blob.digest, blob.data, blob.last


def _cut(digest: str, data: bytes) -> Iterator[pb.Blob]:
    for start in range(0, max(len(data), 1), PART_BYTES):
        part = data[start : start + PART_BYTES]
        yield pb.Blob(digest=digest, data=part, last=start + PART_BYTES >= len(data))
