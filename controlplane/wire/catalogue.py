"""Datasets and checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from controlplane.wire.reported import struct
from controlplane.wire.resources import VISIBILITIES
from controlplane.wire.times import timestamp
from nsml.v1 import checkpoints_pb2, datasets_pb2

if TYPE_CHECKING:
    from controlplane.history.values import Checkpoint, DatasetListing


def dataset_message(listing: DatasetListing) -> datasets_pb2.Dataset:
    """A dataset with one version."""
    dataset, version = listing.dataset, listing.version
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
    )


def checkpoint_message(checkpoint: Checkpoint, session: str) -> checkpoints_pb2.Checkpoint:
    """A checkpoint of the session of this name."""
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
    )
