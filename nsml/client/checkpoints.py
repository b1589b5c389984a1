"""Checkpoints into folders."""

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
"""Sessions with checkpoints whose sizes are added up: a call for each."""


def folder_of(checkpoint: Checkpoint, path: Path) -> Path:
    """Where it is fetched to: PATH/USER_DATASET_N/CHECKPOINT/model."""
    return path / session_folder(checkpoint.session) / folder_name(checkpoint.name) / "model"


async def pull(
    client: Client,
    checkpoint: Checkpoint,
    path: Path,
    *,
    progress: Callable[[Transfer], None] | None = None,
) -> Path:
    """Fetch one that is durable; whole or not at all.

    Every file is held against its digest. Raises ClientError, ContentError (TargetExists where it is there), OSError.
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
    """All checkpoints of sessions; None where that would take too many calls, or one failed."""
    saving = [one.id for one in sessions if one.checkpoint_count]
    if len(saving) > _MOST_SIZED:
        return None
    try:
        found = await each_at_once(saving, client.checkpoints.every, most=_AT_ONCE)
    except ClientError:
        return None
    return [one for every in found for one in every]
