"""Names of what agents themselves serve at the end of a tunnel.

A name of a program's socket has no dot in it, so that no program can take one of these.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "agent."
PROCESSES: Final = f"{PREFIX}processes"
"""The processes of a replica: one ReplicaProcesses."""
STACKS: Final = f"{PREFIX}stacks"
"""What the Python programs of a replica do: a StacksRequest, and one ReplicaStacks."""
PROGRAM_INPUT_BYTES: Final = 1 << 20
"""How much input may be on its way to a program: an agent keeps that, so that it always hears what else its client says."""
PROGRAM: Final = f"{PREFIX}program"
"""A program that is started in a replica: frames of ProgramRequest and ProgramResponse (`nsml.spec.frames`)."""
FILES: Final = f"{PREFIX}files"
"""A copy of files out of a replica, or into it: a FilesRequest, a FilesResponse, and what `nsml.copying` says."""
SSH: Final = f"{PREFIX}ssh"
"""An ssh server in a replica: one SshAnswer in a frame from the agent, then the bytes of ssh both ways."""
EXEC: Final = f"{PREFIX}exec"
"""Code that the running program of a replica evaluates: an EvaluateRequest, and EvaluateResponses behind their lengths."""
NODE_PROGRAM: Final = f"{PREFIX}node-program"
"""A program on the node itself, with no replica: for administrators."""

LOOKS: Final = frozenset({PROCESSES, STACKS})
"""Those that only show something of a replica: who looks is not inside."""
STARTED: Final = frozenset({PROGRAM, FILES, SSH, EXEC, NODE_PROGRAM})
"""Those that start something, and may last as long as that."""
PACED: Final = frozenset({PROGRAM, SSH, NODE_PROGRAM})
"""Those whose programs may print without end: what they say together has a limit. A copy ends."""
