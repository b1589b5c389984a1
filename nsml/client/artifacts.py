"""Artifacts into folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.client.content import download
from nsml.spec.folders import folder_name, session_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.v1.artifacts_pb2 import Artifact


def folder_of(artifact: Artifact, path: Path) -> Path:
    """Where a version is fetched to: PATH/USER_DATASET_N/artifacts/NAME@VERSION."""
    name = folder_name(f"{artifact.name}@{artifact.version}")
    return path / session_folder(artifact.session) / "artifacts" / name


async def pull(
    client: Client,
    artifact: Artifact,
    path: Path,
    *,
    progress: Callable[[Transfer], None] | None = None,
) -> Path:
    """Fetch a version that is durable; whole or not at all.

    Every file is held against its digest. Raises ClientError, ContentError (TargetExists where it is there), OSError.
    """
    target = folder_of(artifact, path)
    await download(
        client,
        artifact.digest,
        target,
        progress=progress,
        shown_by=lambda: client.artifacts.every(artifact.session, artifact.name),
    )
    return target
