"""Names from a server lead nowhere outside of the folder that a user, or a node, meant."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from cli.results.export import _paths
from cli.results.media import _path_of
from cli.results.points import FileFormat
from nodeagent.link.outbox import replica_of
from nodeagent.replica.preparation_steps import DataHook, PreparationFailed
from nsml.client.checkpoints import folder_of
from nsml.content.backups import BackupError, drafting
from nsml.content.errors import PathRefused
from nsml.content.manifest import Entry, Manifest
from nsml.spec.folders import folder_name, is_one_name
from nsml.tensorboard.event_files import EventFiles
from nsml.v1 import agents_pb2
from nsml.v1.checkpoints_pb2 import Checkpoint
from nsml.v1.media_pb2 import Media
from nsml.v1.sessions_pb2 import DatasetReference, Session, SessionSpec

HOSTILE = (
    "",
    ".",
    "..",
    "../..",
    "../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "a/..",
    "..\\..\\x",
    "a\0b",
    "\n",
    "\x1b[2J",
    "-rf",
    "--target=x",
    "~",
    "C:",
    "x" * 300,
)


def held_in(folder: Path, path: Path) -> bool:
    """Whether a path is below a folder, by its letters: not by what lies there today."""
    parts = path.relative_to(folder).parts
    plain = all(part.isprintable() and part not in {".", ".."} for part in parts)
    return bool(parts) and plain and not any(part.startswith("-") for part in parts)


@pytest.mark.parametrize("name", HOSTILE)
def test_files_of_a_user_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    checkpoint = folder_of(Checkpoint(session=name, name=name), tmp_path)
    assert held_in(tmp_path, checkpoint)
    assert len(checkpoint.relative_to(tmp_path).parts) == 3
    assert held_in(tmp_path, tmp_path / _path_of(Media(name=name, file=name)))
    two = [Session(name=name, id=f"../{name}"), Session(name=name, id="b")]
    for _, path in _paths(tmp_path, two, FileFormat.CSV):
        assert path.parent == tmp_path
        assert held_in(tmp_path, path)
    assert held_in(
        tmp_path, EventFiles(Session(name=name, id=name), tmp_path, joined=1).place(1, 0)
    )
    assert is_one_name(folder_name(name))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../..", "../../etc/passwd", "/etc/passwd", "a/../../b", "a/..", "a\0b"]
)
def test_trees_from_a_server_stay_in_their_folder(name: str) -> None:
    with pytest.raises(PathRefused):
        Manifest(entries=(Entry(path=name, mode=0o644, size=0, chunks=()),)).check()


@pytest.mark.parametrize("name", HOSTILE)
def test_parts_of_a_backup_have_names_of_ours(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(BackupError, match="has no part"),
        drafting(tmp_path, "backup") as draft,
        draft.writing(name),
    ):
        pass


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/..", "a\0b", "\n", "\x1b[2J", "-rf", "--target=x"]
)
async def test_a_node_mounts_no_dataset_elsewhere(name: str) -> None:
    hook = DataHook(None, None, None)  # type: ignore[arg-type] # it is refused before these are used
    spec = SessionSpec(datasets=[DatasetReference(name=f"kim/{name}")])
    draft: Any = types.SimpleNamespace(assignment=agents_pb2.Assignment(spec=spec), mounts=[])
    with pytest.raises(PreparationFailed, match="no name of a dataset"):
        await hook.prepare(draft)
    with pytest.raises(ValueError, match="not a replica id"):
        replica_of(agents_pb2.ReplicaId(session_id=name, attempt=1))
