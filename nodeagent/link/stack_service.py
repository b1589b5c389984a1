"""The service agent.stacks: the current stacks of a replica's Python programs."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from google.protobuf.message import DecodeError

from nodeagent.probes import python_stacks
from nodeagent.probes.process_list import command_of, inner_pid, look, read_commands, why_unseen
from nodeagent.probes.processes import enclosure_of
from nodeagent.probes.python_stacks import MOST_PROCESSES, ProcessGone, StacksUnseen
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from nodeagent.folders import ReplicaId
    from nodeagent.link.services import RunningReplica, Stream
    from nodeagent.probes.process_list import Look
    from nodeagent.probes.python_stacks import SeenThread

MOST_BYTES: Final = 16 << 20
"""Limit of one answer: the rest is left out, so that no program fills the memory of the agent."""
_BEGINS_WITHIN_S: Final = 8.0
"""Time after the first process of a replica in which others are begun: the client does not wait for ever."""
_STATES: Final = {
    None: pb.THREAD_STATE_UNSPECIFIED,
    True: pb.THREAD_STATE_ACTIVE,
    False: pb.THREAD_STATE_IDLE,
}
_MOST_REQUEST = 1 << 10
_AT_ONCE = 2
"""Replicas of a node read at the same time, each one process after another."""


class PythonStacks:
    """Serves `agent.stacks`; `boot_id` is of this boot."""

    def __init__(self, *, boot_id: str) -> None:
        self._boot_id = boot_id
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._readers: WeakValueDictionary[ReplicaId, asyncio.Lock] = WeakValueDictionary()

    async def serve(self, replica: RunningReplica, stream: Stream) -> None:
        """Answer one request; an invalid one is answered as an empty one."""
        said = b""
        while (data := await stream.read()) and len(said) <= _MOST_REQUEST:
            said += data
        try:
            request = pb.StacksRequest.FromString(said)
        except DecodeError:
            request = pb.StacksRequest()
        found = await self._found(replica, with_locals=request.with_locals)
        await stream.write(await asyncio.to_thread(found.SerializeToString))

    async def _found(self, replica: RunningReplica, *, with_locals: bool) -> pb.ReplicaStacks:
        program = await asyncio.to_thread(python_stacks.reader)
        if program is None:
            return pb.ReplicaStacks(unseen="py-spy is not installed on its node")
        enclosure = await asyncio.to_thread(enclosure_of, replica.folder, self._boot_id)
        seen = None if enclosure is None else await asyncio.to_thread(look, enclosure)
        if seen is None:
            return pb.ReplicaStacks(unseen=why_unseen(enclosure))
        pids = await asyncio.to_thread(python_stacks.python_processes, seen)
        shown = pids[:MOST_PROCESSES]
        commands = await asyncio.to_thread(read_commands, shown)
        answer = _Answer(left_out=len(pids) - len(shown))
        alone = self._readers.setdefault(replica.id, asyncio.Lock())
        async with alone:
            for pid in shown:
                # so that other replicas can come in between
                async with self._turns:
                    await answer.add(
                        pid, seen, commands.get(pid, b""), program, with_locals=with_locals
                    )
        return answer.message


class _Answer:
    """One answer, filled process by process."""

    def __init__(self, *, left_out: int) -> None:
        self.message = pb.ReplicaStacks(left_out=left_out)
        self._room = MOST_BYTES
        self._until: float | None = None

    async def add(
        self, pid: int, seen: Look, line: bytes, program: str, *, with_locals: bool
    ) -> None:
        """Read a process, and add as much of it as fits."""
        now = time.monotonic()
        self._until = now + _BEGINS_WITHIN_S if self._until is None else self._until
        found = pb.ProcessStacks(pid=inner_pid(pid), node_pid=pid, command=command_of(line))
        if self._room <= 0:
            found.unseen = "the stacks of the session's other processes are too long"
        elif now > self._until:
            found.unseen = "the session's other processes took too long to read"
        else:
            try:
                threads, found.threads_left_out = await python_stacks.read_threads(
                    pid, seen.stats[pid].start_ticks, program=program, with_locals=with_locals
                )
                found.threads.extend(await asyncio.to_thread(lambda: [*map(_message, threads)]))
            except ProcessGone:
                return
            except StacksUnseen as error:
                found.unseen = str(error)
        self._room -= found.ByteSize()
        self.message.processes.append(found)


def _message(thread: SeenThread) -> pb.ThreadStack:
    return pb.ThreadStack(
        name=thread.name,
        holds_gil=thread.holds_gil,
        state=_STATES[thread.is_active],
        frames=[
            pb.StackFrame(
                function=one.function,
                file=one.file,
                line=one.line,
                locals=[pb.LocalVariable(name=name, value=value) for name, value in one.variables],
            )
            for one in thread.frames
        ],
        frames_left_out=thread.frames_left_out,
    )
