"""ContentService."""

from __future__ import annotations

from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from controlplane.access.current import caller, require_user
from controlplane.content.verification import ReadSoFar
from controlplane.domain.errors import NotLeader
from controlplane.domain.names import check_digest
from controlplane.wire.errors import Context, answering, streaming
from nsml.content.blob_messages import Blob, GetBlobsResponse, PutBlobsRequest
from nsml.v1 import content_pb2 as pb
from nsml.v1 import content_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        AsyncIterator,
        Callable,
        Iterator,
        Mapping,
    )

    from controlplane.content.admitted_objects import AdmittedObjects
    from controlplane.content.content import Content, Part
    from controlplane.content.node_repairs import NodeRepairs
    from controlplane.content.verification import Broken, Verification

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["ContentService"].full_name
PART_BYTES: Final = 1 << 20
MESSAGE_BYTES: Final = 1 << 20
MOST_REPAIRED: Final = 10_000
MOST_LOST: Final = 100
"""Max blobs named in a response."""

_log = structlog.get_logger()


class ContentServicer(content_pb2_grpc.ContentServiceServicer):
    """Upload, download and repair of blobs."""

    def __init__(
        self,
        content: Content,
        verification: Verification,
        repairs: NodeRepairs,
        admitted: AdmittedObjects | None = None,
        *,
        leads: Callable[[], bool],
    ) -> None:
        self._content = content
        self._verification = verification
        self._repairs = repairs
        self._leads = leads
        self._admitted = admitted

    @answering
    async def FindMissingBlobs(  # noqa: N802 - named by the contract
        self, request: pb.FindMissingBlobsRequest, _: Context
    ) -> pb.FindMissingBlobsResponse:
        """Return the blobs to send."""
        room = self._content.room(
            caller(), request.bytes, session_id=request.session_id, project=request.project
        )
        missing = await self._content.missing(
            caller(),
            request.digests,
            root=request.root,
            bases=request.bases,
            session_id=request.session_id,
        )
        return pb.FindMissingBlobsResponse(missing=missing, room=room)

    @answering
    async def PutBlobs(  # noqa: N802
        self, requests: AsyncIterator[PutBlobsRequest], _: Context
    ) -> pb.PutBlobsResponse:
        """Store blobs."""
        first = await anext(requests, PutBlobsRequest(()))
        if self._admitted is not None:
            self._admitted.count_for(caller(), first.session_id)
        stored = await self._content.put(
            caller(), _parts(first, requests), session_id=first.session_id
        )
        return pb.PutBlobsResponse(stored=stored)

    @streaming
    async def GetBlobs(  # noqa: N802
        self, request: pb.GetBlobsRequest, _: Context
    ) -> AsyncGenerator[GetBlobsResponse, None]:
        """Stream blobs of a manifest; small ones share a message."""
        batch: list[Blob] = []
        size = 0
        read = self._content.read(caller(), request.root, request.digests)
        async with aclosing(read) as blobs:
            async for digest, data in blobs:
                for blob in _cut(digest, data):
                    if batch and size + len(blob.data) > MESSAGE_BYTES:
                        yield GetBlobsResponse(batch)
                        batch, size = [], 0
                    batch.append(blob)
                    size += len(blob.data)
        if batch:
            yield GetBlobsResponse(batch)

    @answering
    async def LocateBlobs(  # noqa: N802
        self, request: pb.LocateBlobsRequest, _: Context
    ) -> pb.LocateBlobsResponse:
        """Return URLs for nodes to read blobs directly."""
        packs, authority = await self._content.locate(caller(), request.root, request.digests)
        numbers = {digest: number for number, digest in enumerate(request.digests)}
        located = [
            pb.LocatedPack(
                url=pack.url,
                blobs=[
                    pb.LocatedBlob(index=numbers[one.digest], start=one.start, stored=one.stored)
                    for one in pack.places
                ],
            )
            for pack in packs
        ]
        return pb.LocateBlobsResponse(packs=located, authority=authority)

    @streaming
    async def VerifyStorage(  # noqa: N802
        self, _request: pb.VerifyStorageRequest, _: Context
    ) -> AsyncGenerator[pb.VerifyStorageResponse, None]:
        """Read all stored blobs."""
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

    @streaming
    async def RepairStorage(  # noqa: N802
        self, _request: pb.RepairStorageRequest, _: Context
    ) -> AsyncGenerator[pb.RepairStorageResponse, None]:
        """Read all stored blobs, and restore damaged ones from other packs."""
        async with aclosing(self._verification.all(repairs=True)) as found:
            async for one in found:
                if isinstance(one, ReadSoFar):
                    yield pb.RepairStorageResponse(
                        blobs=one.blobs, bytes=one.stored_bytes, damaged=one.damaged
                    )
                else:
                    broken = _broken(one)
                    broken.repaired.extend(islice(_repaired(one.repaired), MOST_REPAIRED))
                    yield pb.RepairStorageResponse(broken=broken)

    @answering
    async def RepairContent(  # noqa: N802
        self, request: pb.RepairContentRequest, _: Context
    ) -> pb.RepairContentResponse:
        """Restore lost blobs from nodes."""
        if not self._leads():
            raise NotLeader("")  # only the leader talks to agents
        if request.is_from_start:
            self._repairs.ask_anew(check_digest(request.digest))
        done = await self._repairs.repair(require_user().user.id, check_digest(request.digest))
        _log.info("content.repaired", digest=request.digest, blobs=len(done.sources))
        return pb.RepairContentResponse(
            repaired=_repaired(done.sources),
            lost=len(done.lost),
            lost_digests=sorted(done.lost)[:MOST_LOST],
            reasons=done.reasons,
            is_partial=done.is_partial,
            nodes_in_vain=done.in_vain,
        )


class _Handlers:
    """Stands in for a server: collects the handlers that the generated function adds."""

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Ignore: the same handlers in another form."""

    def add_registered_method_handlers(self, _: str, handlers: dict[str, Any]) -> None:
        """Keep the handlers by method name."""
        self.by_method = handlers


def add_content_service(servicer: ContentServicer, server: Any) -> None:
    """Register as the generated function does, but with zero-copy messages for blobs."""
    generated = _Handlers()
    content_pb2_grpc.add_ContentServiceServicer_to_server(servicer, generated)  # type: ignore[no-untyped-call]
    handlers = {
        **generated.by_method,
        "PutBlobs": grpc.stream_unary_rpc_method_handler(
            servicer.PutBlobs,
            PutBlobsRequest.FromString,
            pb.PutBlobsResponse.SerializeToString,
        ),
        "GetBlobs": grpc.unary_stream_rpc_method_handler(
            servicer.GetBlobs, pb.GetBlobsRequest.FromString, GetBlobsResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_registered_method_handlers(_SERVICE, handlers)


def _repaired(sources: Mapping[str, str]) -> Iterator[pb.RepairedBlob]:
    return (pb.RepairedBlob(digest=one, source=source) for one, source in sources.items())


def _broken(one: Broken) -> pb.BrokenContent:
    return pb.BrokenContent(
        kind=one.kind.name.lower(),
        owner=one.owner,
        names=one.names,
        digest=one.digest,
        lost=one.lost,
    )


async def _parts(
    first: PutBlobsRequest, others: AsyncIterable[PutBlobsRequest]
) -> AsyncIterator[Part]:
    for blob in first.blobs:
        yield blob.digest, blob.data, blob.last
    async for request in others:
        for blob in request.blobs:
            yield blob.digest, blob.data, blob.last


def _cut(digest: str, data: bytes) -> Iterator[Blob]:
    for start in range(0, max(len(data), 1), PART_BYTES):
        part = data[start : start + PART_BYTES]
        yield Blob(digest, part, start + PART_BYTES >= len(data))
