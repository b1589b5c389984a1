"""Download checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.client.content import download
from nsml.client.errors import ClientError
from nsml.common.concurrency import each_at_once
from nsml.spec.folders import folder_name, session_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.sessions_pb2 import Session

_AT_ONCE = 16
_MOST_SIZED = 200
"""Most sessions whose checkpoints are listed: a call for each."""


def folder_of(checkpoint: Checkpoint, path: Path) -> Path:
    """Return its target folder: PATH/USER_DATASET_N/CHECKPOINT/model."""
    return path / session_folder(checkpoint.session) / folder_name(checkpoint.name) / "model"


async def pull(
    client: Client,
    checkpoint: Checkpoint,
    path: Path,
    *,
    progress: Callable[[Transfer], None] | None = None,
) -> Path:
    """Download a durable checkpoint, completely or not at all.

    Every file is checked by digest. Raises ClientError, ContentError (TargetExists if the folder exists), OSError.
    """
    target = folder_of(checkpoint, path)
    await download(
        client,
        checkpoint.digest,
        target,
        progress=progress,
        shown_by=lambda: client.checkpoints.get(checkpoint.session, checkpoint.name),
    )
    return target


async def saved_in(client: Client, sessions: Sequence[Session]) -> list[Checkpoint] | None:
    """Return all checkpoints of sessions; None if that takes too many calls or one fails."""
    saving = [one.id for one in sessions if one.checkpoint_count]
    if len(saving) > _MOST_SIZED:
        return None
    try:
        found = await each_at_once(saving, client.checkpoints.every, most=_AT_ONCE)
    except ClientError:
        return None
    return [one for every in found for one in every]
