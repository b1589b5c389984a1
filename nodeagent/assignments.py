"""What the agent writes into a replica's folder for its successor, beside what runtimes write.

```
assignment    the order that the replica exists for      before anything else is done for it
unstarted     how it ended, when its program never ran
```
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from nodeagent.folders import ReplicaFolder, write_atomically
from nsml.v1 import agents_pb2 as pb


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


def note_unstarted(folder: ReplicaFolder, end: pb.ReplicaExit, told: bytes) -> None:
    """Remember the end of a replica that never ran; `told` is what its log says of it."""
    folder.create()
    if told:
        with folder.output.open("ab") as output:
            output.write(told)
    write_atomically(folder.path / "unstarted", end.SerializeToString())


def read_unstarted(folder: ReplicaFolder) -> pb.ReplicaExit | None:
    """The noted end, or None."""
    try:
        return pb.ReplicaExit.FromString((folder.path / "unstarted").read_bytes())
    except (FileNotFoundError, DecodeError):
        return None
