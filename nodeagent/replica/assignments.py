"""What the agent writes into a replica's folder for its successor, beside what runtimes write.

```
assignment    the order that the replica exists for      before anything else is done for it
uses          what it needs of the node's environments and images, a line each, before it has it
unstarted     how it ended, when its program never ran
```
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from nodeagent.folders import ReplicaFolder, ReplicaFolders, write_atomically
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

DATASET, BUNDLE, CHUNKS = "dataset", "bundle", "chunks"
"""What trees are called among what replicas use, and chunks of streamed datasets, of which none is."""


def owner_of(assignment: pb.Assignment) -> str:
    """Who owns it, on this node as elsewhere: an id, which is never given again.

    Users from before there were ids have their name.
    """
    return assignment.owner_id or assignment.owner


def dataset_name(dataset: sessions.DatasetReference) -> str:
    """The folder of /data, or the bucket, that a session has it at: its own, else NAME of a reference OWNER/NAME."""
    return dataset.folder or dataset.name.rsplit("/", 1)[-1]


def keep_assignment(folder: ReplicaFolder, assignment: pb.Assignment) -> None:
    """Make the folder of an assignment; from here on the replica exists on this node."""
    folder.create()
    write_atomically(folder.path / "assignment", assignment.SerializeToString())


def read_assignment(folder: ReplicaFolder) -> pb.Assignment | None:
    """The assignment of a folder; None when its founder died before it was written."""
    try:
        return pb.Assignment.FromString((folder.path / "assignment").read_bytes())
    except (FileNotFoundError, DecodeError):
        return None


def note_use(folder: ReplicaFolder, thing: str) -> None:
    """Note that the replica needs `thing` for as long as its folder is there."""
    if thing not in _uses(folder):
        with folder.uses.open("a", encoding="utf-8") as uses:
            # behind whatever an agent that was killed had written of a line
            uses.write(f"\n{thing}\n")


def used_things(folders: ReplicaFolders) -> frozenset[str]:
    """What the replicas of this node need. Raises OSError when that cannot be known."""
    replicas = [folders.of(one) for one in folders.ids()]
    return frozenset(thing for one in replicas for thing in (*_uses(one), *_trees(one)))


def users_of(folders: ReplicaFolders, kind: str) -> dict[str, set[str]]:
    """By the key of each thing of a kind the ids of the sessions here that need it. Raises OSError."""
    found: dict[str, set[str]] = {}
    for replica in folders.ids():
        for thing in _uses(folders.of(replica)):
            of, _, key = thing.partition(" ")
            if of == kind:
                found.setdefault(key, set()).add(replica.session_id)
    return found


def _trees(folder: ReplicaFolder) -> list[str]:
    """The datasets and the code that its assignment names, from before it is looked for them."""
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
    """Remember the end of a replica that never ran."""
    folder.create()
    write_atomically(folder.path / "unstarted", end.SerializeToString())


def read_unstarted(folder: ReplicaFolder) -> pb.ReplicaExit | None:
    """The noted end, or None."""
    try:
        return pb.ReplicaExit.FromString((folder.path / "unstarted").read_bytes())
    except (FileNotFoundError, DecodeError):
        return None
