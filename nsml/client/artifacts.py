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
    from nsml.content.stored_manifest import Extent
    from nsml.v1.artifacts_pb2 import Artifact


def folder_of(artifact: Artifact, path: Path) -> Path:
    """Where a version is fetched to: PATH/USER_DATASET_N/artifacts/NAME@VERSION."""
    name = folder_name(f"{artifact.name}@{artifact.version}")
    return path / session_folder(artifact.session) / "artifacts" / name


def files_of(session: str, path: Path) -> Path:
    """Where what a session left in its working folder is fetched to: PATH/USER_DATASET_N/files."""
    return path / session_folder(session) / "files"


def live_files_of(session: str, path: Path) -> Path:
    """Where the working folder of a running session is copied to: PATH/USER_DATASET_N/live."""
    return path / session_folder(session) / "live"


async def pull_files(
    client: Client,
    artifact: Artifact,
    path: Path,
    *,
    below: str = "",
    progress: Callable[[Transfer], None] | None = None,
) -> Extent:
    """Fetch the files that a session left, or one of them or a folder of them (`below`). Raises as `pull`, NotFound."""
    return await download(
        client,
        artifact.digest,
        files_of(artifact.session, path),
        progress=progress,
        shown_by=lambda: client.artifacts.every(artifact.session, artifact.name),
        below=(below,) if below else (),
    )


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
