"""Names of the services that agents themselves serve at the end of a tunnel.

A program's socket name has no dot, so no program can use one of these names.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "agent."
PROCESSES: Final = f"{PREFIX}processes"
"""The processes of a replica: one ReplicaProcesses."""
STACKS: Final = f"{PREFIX}stacks"
"""Stacks of a replica's Python programs: a StacksRequest, and one ReplicaStacks."""
PROGRAM_INPUT_BYTES: Final = 1 << 20
"""Most unread input for a program. The agent buffers it, so that it can still receive the client's other messages."""
PROGRAM: Final = f"{PREFIX}program"
"""A program started in a replica: frames of ProgramRequest and ProgramResponse (`nsml.spec.frames`)."""
FILES: Final = f"{PREFIX}files"
"""A copy of files out of a replica, or into it: a FilesRequest, a FilesResponse, and the messages of `nsml.copying`."""
SSH: Final = f"{PREFIX}ssh"
"""An ssh server in a replica: one SshAnswer in a frame from the agent, then the bytes of ssh both ways."""
EXEC: Final = f"{PREFIX}exec"
"""Code evaluated by the running program of a replica: an EvaluateRequest, and length-prefixed EvaluateResponses."""
NODE_PROGRAM: Final = f"{PREFIX}node-program"
"""A program on the node itself, with no replica: for administrators."""

LOOKS: Final = frozenset({PROCESSES, STACKS})
"""Read-only services: their users do not count as inside the replica."""
STARTED: Final = frozenset({PROGRAM, FILES, SSH, EXEC, NODE_PROGRAM})
"""Services that start a process, and may last as long as it does."""
PACED: Final = frozenset({PROGRAM, SSH, NODE_PROGRAM})
"""Services whose programs may print without end: their total output is rate-limited. A copy ends."""
