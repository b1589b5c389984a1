"""Datasets and checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from controlplane.wire.reported import struct
from controlplane.wire.resources import VISIBILITIES
from controlplane.wire.times import timestamp
from nsml.v1 import checkpoints_pb2, datasets_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controlplane.history.sql.checkpoint_marks import Marks
    from controlplane.history.values import Checkpoint, DatasetListing


def dataset_message(
    listing: DatasetListing, *, live: int | None = None, restorable_until: float | None = None
) -> datasets_pb2.Dataset:
    """A dataset with one version; `live`: sessions that use it, None where the caller is not told of its use."""
    dataset, version = listing.dataset, listing.version
    is_used = live is not None and listing.used_at
    is_restorable = version.removed_at and restorable_until
    return datasets_pb2.Dataset(
        name=dataset.name,
        owner=dataset.owner,
        team=dataset.team,
        visibility=VISIBILITIES[dataset.visibility],
        version=version.number,
        digest=version.digest,
        size_bytes=version.size_bytes,
        file_count=version.file_count,
        message=version.message,
        updated_at=timestamp(version.created_at),
        description=dataset.description,
        tags=listing.tags,
        version_count=listing.version_count,
        last_used_at=timestamp(listing.used_at) if is_used else None,
        live_sessions=live or 0,
        removed_at=timestamp(version.removed_at) if version.removed_at else None,
        restorable_until=timestamp(restorable_until or 0) if is_restorable else None,
    )


def tags_by_name(marks: Marks) -> Mapping[str, list[str]]:
    """The tags of each checkpoint that has any, in order."""
    found: dict[str, list[str]] = {}
    for tag, name in sorted(marks.tags.items()):
        found.setdefault(name, []).append(tag)
    return found


def checkpoint_message(
    checkpoint: Checkpoint, session: str, tags: Mapping[str, Sequence[str]] | None = None
) -> checkpoints_pb2.Checkpoint:
    """A checkpoint of the session of this name; `tags` by the names of checkpoints."""
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
