"""DatasetService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.current import require_user
from controlplane.datasets.pushes import InPlace
from controlplane.datasets.references import (
    cursor_behind,
    cursor_behind_version,
    own_dataset,
    parse_dataset,
)
from controlplane.domain.policy import ALLOW, CHANGE, may
from controlplane.wire.catalogue import dataset_message, to_parts
from controlplane.wire.chunking import beside, parts_of
from controlplane.wire.errors import Context, answering
from controlplane.wire.resources import to_visibility
from controlplane.wire.times import timestamp
from nsml.v1 import datasets_pb2 as pb
from nsml.v1 import datasets_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.content.content import Content
    from controlplane.datasets.datasets import Datasets
    from controlplane.datasets.lookup import Use
    from controlplane.datasets.references import DatasetReference
    from controlplane.domain.identity import UserCaller
    from controlplane.history.values import DatasetListing, SeenLineage
    from controlplane.limits.concurrency_limits import Turns


_MOST_BYTES = 1 << 60


class DatasetServicer(datasets_pb2_grpc.DatasetServiceServicer):
    """Implements nsml.v1.DatasetService."""

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
        name = own_dataset(request.name, who.user.name)
        parts = to_parts(request.parts)
        in_place = _in_place(request) if request.in_place else None
        if request.validate_only:
            self._datasets.pushes.check(
                who, name, visibility, request.message, parts=parts, in_place=in_place
            )
            return pb.CreateDatasetVersionResponse()
        found, created = await self._datasets.pushes.create_version(
            who,
            name=name,
            digest=request.digest,
            visibility=visibility,
            message=request.message,
            parts=parts,
            in_place=in_place,
        )
        message = await self._one(who, found)
        return pb.CreateDatasetVersionResponse(dataset=message, created=created)

    @answering
    async def ListDatasets(  # noqa: N802
        self, request: pb.ListDatasetsRequest, _: Context
    ) -> pb.ListDatasetsResponse:
        """List a page of visible datasets, or of removed versions."""
        who = require_user()
        if request.removed:
            return await self._removed(who, request)
        async with self._reading.turn(who.user.name):
            page, cursor = await self._datasets.lookup.page(
                who,
                request.name_glob,
                size=request.page_size,
                cursor=request.cursor,
                words=request.words,
            )
            shown = self._shown(who)
            datasets = await beside(
                lambda: next(parts_of(shown(one, None) for one in page)), of=len(page)
            )
        if len(datasets) < len(page):
            cursor = cursor_behind(page[len(datasets) - 1])
        return pb.ListDatasetsResponse(datasets=datasets, next_cursor=cursor)

    async def _removed(
        self, who: UserCaller, request: pb.ListDatasetsRequest
    ) -> pb.ListDatasetsResponse:
        async with self._reading.turn(who.user.name):
            page, cursor = await self._datasets.lookup.removed_page(
                who, request.name_glob, size=request.page_size, cursor=request.cursor
            )
            datasets = next(parts_of(self._version(who, one) for one in page))
        if len(datasets) < len(page):
            cursor = cursor_behind_version(page[len(datasets) - 1])
        return pb.ListDatasetsResponse(datasets=datasets, next_cursor=cursor)

    async def _one(self, who: UserCaller, listing: DatasetListing) -> pb.Dataset:
        """Build the message of one dataset, with its lineage."""
        [lineage] = await self._datasets.lineages.seen(who, [listing])
        return self._shown(who)(listing, lineage)

    def _shown(self, who: UserCaller) -> Callable[[DatasetListing, SeenLineage | None], pb.Dataset]:
        """Return a builder of messages for a caller; their own datasets include the use."""
        uses = self._datasets.lookup.live_uses()

        def message(listing: DatasetListing, lineage: SeenLineage | None = None) -> pb.Dataset:
            found = listing.dataset
            is_own = may(who, CHANGE, found) is ALLOW
            live = uses[found.owner, found.name] if is_own else 0
            return dataset_message(listing, is_own=is_own, live=live, lineage=lineage)

        return message

    @answering
    async def ListDatasetVersions(  # noqa: N802
        self, request: pb.ListDatasetVersionsRequest, _: Context
    ) -> pb.ListDatasetVersionsResponse:
        """List a page of the versions of a dataset."""
        who = require_user()
        async with self._reading.turn(who.user.name):
            page, cursor = await self._datasets.lookup.versions(
                who,
                parse_dataset(request.name),
                with_removed=request.with_removed,
                size=request.page_size,
                cursor=request.cursor,
            )
            seen = await self._datasets.lineages.seen(who, page)
            versions = next(
                parts_of(
                    self._version(who, one, lineage)
                    for one, lineage in zip(page, seen, strict=True)
                )
            )
        if len(versions) < len(page):
            cursor = str(page[len(versions) - 1].version.number)
        return pb.ListDatasetVersionsResponse(versions=versions, next_cursor=cursor)

    def _version(
        self, who: UserCaller, listing: DatasetListing, lineage: SeenLineage | None = None
    ) -> pb.Dataset:
        until = self._datasets.lookup.restorable_until(listing.version.removed_at)
        is_own = may(who, CHANGE, listing.dataset) is ALLOW
        return dataset_message(listing, is_own=is_own, restorable_until=until, lineage=lineage)

    @answering
    async def UpdateDataset(  # noqa: N802
        self, request: pb.UpdateDatasetRequest, _: Context
    ) -> pb.UpdateDatasetResponse:
        """Change visibility, access to parts, or description."""
        who = require_user()
        found = await self._datasets.update(
            who,
            parse_dataset(request.name),
            visibility=to_visibility(request.visibility),
            description=request.description if request.HasField("description") else None,
            parts=to_parts(request.parts),
        )
        return pb.UpdateDatasetResponse(dataset=await self._one(who, found))

    @answering
    async def TagDatasetVersion(  # noqa: N802
        self, request: pb.TagDatasetVersionRequest, _: Context
    ) -> pb.TagDatasetVersionResponse:
        """Move a tag to a version."""
        who, reference = require_user(), _reference(request)
        found, before = await self._datasets.tag(who, reference, request.new_tag)
        message = await self._one(who, found)
        return pb.TagDatasetVersionResponse(dataset=message, version_before=before)

    @answering
    async def UntagDatasetVersion(  # noqa: N802
        self, request: pb.UntagDatasetVersionRequest, _: Context
    ) -> pb.UntagDatasetVersionResponse:
        """Remove a tag."""
        reference = parse_dataset(request.name)
        version = await self._datasets.untag(require_user(), reference, request.tag)
        return pb.UntagDatasetVersionResponse(version=version)

    @answering
    async def RestoreDataset(  # noqa: N802
        self, request: pb.RestoreDatasetRequest, _: Context
    ) -> pb.RestoreDatasetResponse:
        """Restore removed versions."""
        who = require_user()
        reference = parse_dataset(request.name, request.version)
        found, versions = await self._datasets.restore(who, reference)
        message = await self._one(who, found)
        return pb.RestoreDatasetResponse(dataset=message, versions=versions)

    @answering
    async def RemoveDataset(  # noqa: N802
        self, request: pb.RemoveDatasetRequest, _: Context
    ) -> pb.RemoveDatasetResponse:
        """Remove a dataset, or one version."""
        done = await self._datasets.remove(require_user(), _reference(request))
        until = done.restorable_until
        return pb.RemoveDatasetResponse(
            removed=done.versions,
            live_sessions=done.live,
            restorable_until=None if until is None else timestamp(until),
        )

    @answering
    async def GetDataset(  # noqa: N802
        self, request: pb.GetDatasetRequest, _: Context
    ) -> pb.GetDatasetResponse:
        """Get a dataset and its use."""
        who, reference = require_user(), _reference(request)
        since = self._content.withdrawals_revision
        found = await self._datasets.lookup.find(who, reference)
        message = await self._one(who, found)
        self._content.show(who, message.digest, owner=found.dataset.owner, since=since)
        is_one = reference.version or reference.tag
        use = await self._datasets.lookup.use(who, found, found.version.number if is_one else 0)
        return pb.GetDatasetResponse(
            dataset=message, use=None if use is None else _use_message(use)
        )


def _reference(
    request: pb.GetDatasetRequest | pb.RemoveDatasetRequest | pb.TagDatasetVersionRequest,
) -> DatasetReference:
    return parse_dataset(request.name, request.version, tag=request.tag)


def _in_place(request: pb.CreateDatasetVersionRequest) -> InPlace:
    return InPlace(
        path=request.in_place,
        size_bytes=min(request.in_place_bytes, _MOST_BYTES),
        file_count=min(request.in_place_files, _MOST_BYTES),
    )


def _use_message(use: Use) -> pb.DatasetUse:
    return pb.DatasetUse(
        live_sessions=use.live,
        queued_sessions=use.queued,
        names=use.names,
        ended_sessions=use.ended,
        ended_names=use.ended_names,
    )
