"""Download artifacts."""

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
    """Return the target folder of a version: PATH/USER_DATASET_N/artifacts/NAME@VERSION."""
    name = folder_name(f"{artifact.name}@{artifact.version}")
    return path / session_folder(artifact.session) / "artifacts" / name


def files_of(session: str, path: Path) -> Path:
    """Return the target of the files left in a working folder: PATH/USER_DATASET_N/files."""
    return path / session_folder(session) / "files"


def live_files_of(session: str, path: Path) -> Path:
    """Return the target of a running session's working folder: PATH/USER_DATASET_N/live."""
    return path / session_folder(session) / "live"


async def pull_files(
    client: Client,
    artifact: Artifact,
    path: Path,
    *,
    below: str = "",
    progress: Callable[[Transfer], None] | None = None,
) -> Extent:
    """Download the files that a session left, or only the file or folder `below`. Raises as `pull`, and NotFound."""
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
    """Download a durable version, completely or not at all.

    Every file is checked by digest. Raises ClientError, ContentError (TargetExists if the folder exists), OSError.
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
