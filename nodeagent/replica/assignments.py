"""Files that the agent writes into a replica's folder for its successor, beside those of runtimes.

```
assignment  the order of the replica               before anything else is done for it
uses        the node's environments and images that it needs, one a line, before it has them
unstarted   its end, when its program never ran
```
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from nodeagent.confinement import is_confined
from nodeagent.folders import ReplicaFolder, ReplicaFolders, write_atomically
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

DATASET, BUNDLE, CHUNKS = "dataset", "bundle", "chunks"
"""Kinds of trees in `uses` of replicas, and of chunks of streamed datasets, which are no tree."""


def owner_of(assignment: pb.Assignment) -> str:
    """Return the id of its owner, which is never reused.

    Users older than ids have their name.
    """
    return assignment.owner_id or assignment.owner


def account_of(assignment: pb.Assignment) -> str:
    """Return whose account its program has: that of its owner, and of its stage if it is confined.

    So no other session of its owner, and of the other stages, has its uid.
    """
    owner = owner_of(assignment)
    return f"{owner}/{stage_word(assignment.spec)}" if is_confined(assignment.spec) else owner


def stage_word(spec: sessions.SessionSpec) -> str:
    """Return the stage of a session as its program reads it, such as "predict-test"."""
    name = sessions.SessionStage.Name(spec.stage)
    return name.removeprefix("SESSION_STAGE_").lower().replace("_", "-")


def dataset_name(dataset: sessions.DatasetReference) -> str:
    """Return its folder in /data, or its bucket: its own, else NAME of a reference OWNER/NAME."""
    return dataset.folder or dataset.name.rsplit("/", 1)[-1]


def keep_assignment(folder: ReplicaFolder, assignment: pb.Assignment) -> None:
    """Create the folder of an assignment; from here on the replica exists on this node."""
    folder.create()
    write_atomically(folder.path / "assignment", assignment.SerializeToString())


def read_assignment(folder: ReplicaFolder) -> pb.Assignment | None:
    """Return the assignment of a folder; None when its agent died before writing it."""
    try:
        return pb.Assignment.FromString((folder.path / "assignment").read_bytes())
    except (FileNotFoundError, DecodeError):
        return None


def note_use(folder: ReplicaFolder, thing: str) -> None:
    """Note that the replica needs `thing` for as long as its folder is there."""
    if thing not in _uses(folder):
        with folder.uses.open("a", encoding="utf-8") as uses:
            # after a line that a killed agent may have left incomplete
            uses.write(f"\n{thing}\n")


def used_things(folders: ReplicaFolders) -> frozenset[str]:
    """Return the needs of this node's replicas. Raises OSError if they cannot be read."""
    replicas = [folders.of(one) for one in folders.ids()]
    return frozenset(thing for one in replicas for thing in (*_uses(one), *_trees(one)))


def users_of(folders: ReplicaFolders, kind: str) -> dict[str, set[str]]:
    """Return the ids of the sessions here that need each thing of a kind, by its key. Raises OSError."""
    found: dict[str, set[str]] = {}
    for replica in folders.ids():
        for thing in _uses(folders.of(replica)):
            of, _, key = thing.partition(" ")
            if of == kind:
                found.setdefault(key, set()).add(replica.session_id)
    return found


def _trees(folder: ReplicaFolder) -> list[str]:
    """Return the datasets and the code that its assignment names, even before they are looked up."""
    assignment = read_assignment(folder)
    if assignment is None:
        return []
    fetched = [one.digest for one in assignment.spec.datasets if not one.streamed]
    datasets = [f"{DATASET} {digest}" for digest in fetched]
    return [*datasets, f"{BUNDLE} {assignment.spec.bundle_digest}"]


def _uses(folder: ReplicaFolder) -> list[str]:
    try:
        return folder.uses.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def note_unstarted(folder: ReplicaFolder, end: pb.ReplicaExit) -> None:
    """Write the end of a replica that never ran."""
    folder.create()
    write_atomically(folder.path / "unstarted", end.SerializeToString())


def read_unstarted(folder: ReplicaFolder) -> pb.ReplicaExit | None:
    """The noted end, or None."""
    try:
        return pb.ReplicaExit.FromString((folder.path / "unstarted").read_bytes())
    except (FileNotFoundError, DecodeError):
        return None
