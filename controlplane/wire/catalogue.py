"""Messages of datasets and checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.values import PartAccess
from controlplane.history.values import RootKind
from controlplane.wire.reported import struct
from controlplane.wire.resources import VISIBILITIES
from controlplane.wire.times import timestamp
from nsml.v1 import checkpoints_pb2, datasets_pb2, sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from controlplane.history.sql.checkpoint_marks import Marks
    from controlplane.history.values import (
        Checkpoint,
        DatasetListing,
        DatasetRoot,
        DatasetUse,
        SeenLineage,
    )


def dataset_message(
    listing: DatasetListing,
    *,
    is_own: bool,
    live: int = 0,
    restorable_until: float | None = None,
    lineage: SeenLineage | None = None,
) -> datasets_pb2.Dataset:
    """Return a dataset with one version; `is_own`: the caller may read all of it, and sees `live`, the number of live sessions."""
    dataset, version = listing.dataset, listing.version
    size_bytes, file_count = version.size_bytes, version.file_count
    for one in listing.parts.roots if listing.parts and is_own else ():
        if one.kind is RootKind.WHOLE:
            size_bytes, file_count = one.size_bytes, one.file_count
    is_used = is_own and listing.used_at
    is_restorable = version.removed_at and restorable_until
    return datasets_pb2.Dataset(
        name=dataset.name,
        owner=dataset.owner,
        team=dataset.team,
        visibility=VISIBILITIES[dataset.visibility],
        version=version.number,
        digest=listing.whole_digest if is_own else version.digest,
        size_bytes=size_bytes,
        file_count=file_count,
        message=version.message,
        updated_at=timestamp(version.created_at),
        description=dataset.description,
        tags=listing.tags,
        version_count=listing.version_count,
        last_used_at=timestamp(listing.used_at) if is_used else None,
        live_sessions=live,
        removed_at=timestamp(version.removed_at) if version.removed_at else None,
        restorable_until=timestamp(restorable_until or 0) if is_restorable else None,
        parts=[
            _part_message(root, access, is_told=is_own or access is PartAccess.OPEN)
            for root, access in (listing.parts.parts() if listing.parts else ())
        ],
        in_place=version.in_place,
        lineage=_lineage_message(lineage) if lineage else None,
    )


def _lineage_message(seen: SeenLineage) -> datasets_pb2.DatasetLineage:
    made = seen.lineage
    return datasets_pb2.DatasetLineage(
        session=made.session,
        session_id=made.session_id,
        attempt=made.attempt,
        code=made.code,
        environment_lock=made.environment_lock,
        command=made.command,
        datasets=version_names(made.datasets),
        withheld_datasets=seen.withheld,
    )


def version_names(versions: Iterable[DatasetUse]) -> list[sessions_pb2.DatasetReference]:
    """Return the full names of dataset versions."""
    return [
        sessions_pb2.DatasetReference(name=f"{one.owner}/{one.name}", version=one.number)
        for one in versions
    ]


def _part_message(
    root: DatasetRoot, access: PartAccess, *, is_told: bool
) -> datasets_pb2.DatasetPart:
    # The digest of a small part would let one check a guess of its content.
    return datasets_pb2.DatasetPart(
        path=root.path,
        access=f"PART_ACCESS_{access.name}",
        digest=root.digest if is_told else "",
        size_bytes=root.size_bytes if is_told else 0,
        file_count=root.file_count if is_told else 0,
    )


def to_parts(parts: Iterable[datasets_pb2.DatasetPart]) -> dict[str, PartAccess]:
    """Return the access to parts, by path."""
    found: dict[str, PartAccess] = {}
    for one in parts:
        if one.path in found:
            raise InvalidRequest(f"the part {one.path[:80]!r} is named twice")
        try:
            found[one.path] = PartAccess(one.access)
        except ValueError:
            raise InvalidRequest(f"there is no access {one.access} of parts") from None
    return found


def tags_by_name(marks: Marks) -> Mapping[str, list[str]]:
    """Return the tags of each tagged checkpoint, in order."""
    found: dict[str, list[str]] = {}
    for tag, name in sorted(marks.tags.items()):
        found.setdefault(name, []).append(tag)
    return found


def checkpoint_message(
    checkpoint: Checkpoint, session: str, tags: Mapping[str, Sequence[str]] | None = None
) -> checkpoints_pb2.Checkpoint:
    """Return a checkpoint of the session of this name; `tags` by the names of checkpoints."""
    _, content_saved_at = checkpoint.content_of
    summary = json.loads(checkpoint.summary)
    return checkpoints_pb2.Checkpoint(
        name=checkpoint.name,
        session=session,
        state=f"CHECKPOINT_STATE_{checkpoint.state.value}",
        digest=checkpoint.digest or "",
        size_bytes=checkpoint.size_bytes,
        file_count=checkpoint.file_count,
        saved_at=timestamp(checkpoint.saved_at),
        elapsed_s=checkpoint.elapsed_s,
        summary=struct(summary),
        summary_names=summary,
        step=checkpoint.step,
        why_lost=checkpoint.why_lost,
        attempt=checkpoint.attempt,
        content_saved_at=timestamp(content_saved_at) if checkpoint.digest else None,
        tags=(tags or {}).get(checkpoint.name, ()),
    )
