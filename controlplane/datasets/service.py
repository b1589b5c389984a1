"""DatasetService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.current import require_user
from controlplane.datasets.datasets import cursor_behind, parse_dataset
from controlplane.wire.catalogue import dataset_message
from controlplane.wire.chunking import beside, parts_of
from controlplane.wire.errors import Context, answering
from controlplane.wire.resources import to_visibility
from nsml.v1 import datasets_pb2 as pb
from nsml.v1 import datasets_pb2_grpc

if TYPE_CHECKING:
    from controlplane.content.content import Content
    from controlplane.datasets.datasets import Datasets
    from controlplane.limits.concurrency_limits import Turns


class DatasetServicer(datasets_pb2_grpc.DatasetServiceServicer):
    """Datasets, as users see them."""

    def __init__(self, datasets: Datasets, content: Content, reading: Turns) -> None:
        self._reading = reading
        self._datasets = datasets
        self._content = content

    @answering
    async def CreateDatasetVersion(  # noqa: N802 - named by the contract
        self, request: pb.CreateDatasetVersionRequest, _: Context
    ) -> pb.CreateDatasetVersionResponse:
        """Make content the newest version."""
        who, visibility = require_user(), to_visibility(request.visibility)
        if request.validate_only:
            self._datasets.check(who, request.name, visibility, request.message)
            return pb.CreateDatasetVersionResponse()
        listing, created = await self._datasets.create_version(
            who,
            name=request.name,
            digest=request.digest,
            visibility=visibility,
            message=request.message,
        )
        message = dataset_message(listing)
        return pb.CreateDatasetVersionResponse(dataset=message, created=created)

    @answering
    async def ListDatasets(  # noqa: N802
        self, request: pb.ListDatasetsRequest, _: Context
    ) -> pb.ListDatasetsResponse:
        """A page of those that the caller may see."""
        who = require_user()
        async with self._reading.turn(who.user.name):
            page, cursor = await self._datasets.page(
                who, request.name_glob, size=request.page_size, cursor=request.cursor
            )
            datasets = await beside(
                lambda: next(parts_of(map(dataset_message, page))), of=len(page)
            )
        if len(datasets) < len(page):
            cursor = cursor_behind(page[len(datasets) - 1])
        return pb.ListDatasetsResponse(datasets=datasets, next_cursor=cursor)

    @answering
    async def RemoveDataset(  # noqa: N802
        self, request: pb.RemoveDatasetRequest, _: Context
    ) -> pb.RemoveDatasetResponse:
        """Remove one, or a version of it."""
        reference = parse_dataset(request.name, request.version)
        removed, live = await self._datasets.remove(require_user(), reference)
        return pb.RemoveDatasetResponse(removed=removed, live_sessions=live)

    @answering
    async def GetDataset(  # noqa: N802
        self, request: pb.GetDatasetRequest, _: Context
    ) -> pb.GetDatasetResponse:
        """One of them."""
        who = require_user()
        found = await self._datasets.find(who, parse_dataset(request.name, request.version))
        self._content.show(who, found.version.digest)
        return pb.GetDatasetResponse(dataset=dataset_message(found))
