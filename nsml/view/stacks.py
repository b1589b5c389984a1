"""What the Python threads of a session do, for people and in raw values; ranks that do another thing stand out."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, Final

from nsml.common.text import visible
from nsml.common.units import counted
from nsml.v1 import sessions_pb2 as sessions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsml.v1.sessions_pb2 import ProcessStacks, ReplicaStacks, StackFrame, ThreadStack

_LIBRARY: Final = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")
_APP: Final = "/app/"
"""The working folder of programs; in it lies the code of a session."""
_MOST_FUNCTION: Final = 60
_STATES: Final = {
    sessions.THREAD_STATE_UNSPECIFIED: "",
    sessions.THREAD_STATE_ACTIVE: "active",
    sessions.THREAD_STATE_IDLE: "idle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReplica:
    """A replica, and what was seen of it: `unseen` says why nothing was."""

    rank: int
    found: ReplicaStacks
    unseen: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """One thread of one replica."""

    rank: int
    thread: ThreadStack

    @property
    def calls(self) -> tuple[tuple[str, str, int], ...]:
        """What it does: two threads that are at the same lines do the same."""
        return tuple((one.function, one.file, one.line) for one in self.thread.frames)


def lines(replicas: Sequence[SeenReplica]) -> Iterator[str]:
    """All of them in text. The outermost call is first, as in a traceback of Python.

    Threads of one name, in processes of one place in their replicas, are together: what most ranks do is shown
    whole, then what others do from the call on where they differ, each such line behind ">".
    """
    for replica in replicas:
        if replica.unseen:
            yield visible(f"rank {replica.rank} cannot be seen: {replica.unseen}")
        elif not replica.found.processes:
            yield f"rank {replica.rank} runs no Python program"
    most = max((len(one.found.processes) for one in replicas), default=0)
    for place in range(most):
        theirs = [
            (one.rank, one.found.processes[place])
            for one in replicas
            if place < len(one.found.processes)
        ]
        yield from _process_lines(theirs, is_alone=len(replicas) == 1)
    for replica in replicas:
        if left_out := replica.found.left_out:
            more = counted(left_out, "more Python process", "more Python processes")
            yield f"rank {replica.rank} has {more}"


def _process_lines(theirs: Sequence[tuple[int, ProcessStacks]], *, is_alone: bool) -> Iterator[str]:
    _, first = theirs[0]
    pid = f"pid {first.pid}  " if is_alone else ""
    yield visible(f"{pid}{first.command}")
    for rank, process in theirs:
        if process.unseen:
            where = "" if is_alone else f"rank {rank}: "
            yield visible(f"  {where}its stacks cannot be seen: {process.unseen}")
    threads: dict[tuple[str, int], list[_Seen]] = defaultdict(list)
    for rank, process in theirs:
        times: dict[str, int] = defaultdict(int)
        for thread in process.threads:
            threads[thread.name, times[thread.name]].append(_Seen(rank, thread))
            times[thread.name] += 1
    for (name, _), seen in threads.items():
        yield from _thread_lines(name, seen, is_alone=is_alone)
    for rank, process in theirs:
        if process.threads_left_out:
            more = counted(process.threads_left_out, "more thread", "more threads")
            yield f"  {more}" if is_alone else f"  rank {rank}: {more}"


def _thread_lines(name: str, seen: Sequence[_Seen], *, is_alone: bool) -> Iterator[str]:
    groups: dict[tuple[tuple[str, str, int], ...], list[_Seen]] = defaultdict(list)
    for one in seen:
        groups[one.calls].append(one)
    usual, *others = sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
    title = visible(f"  {name}")
    yield (f"{title}{_state(usual)}" if is_alone else f"{title}, {_ranks(usual)}{_state(usual)}")
    yield from _frame_lines(usual[0].thread, same=0, mark=" ")
    for group in others:
        pairs = zip(usual[0].calls, group[0].calls, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        yield f"{title}, {_ranks(group)}{_state(group)}"
        if same:
            yield f"    {counted(same, 'call', 'calls')} as above"
        yield from _frame_lines(group[0].thread, same=same, mark=">")


def _frame_lines(thread: ThreadStack, *, same: int, mark: str) -> Iterator[str]:
    frames = list(thread.frames)
    names = [visible(one.function)[:_MOST_FUNCTION] for one in frames]
    widest = max(map(len, names[same:]), default=0)
    gap = len(frames) // 2 if thread.frames_left_out else None
    for number, (name, frame) in enumerate(zip(names, frames, strict=True)):
        if number == gap:
            yield f"  {mark} ... {counted(thread.frames_left_out, 'more call', 'more calls')}"
        if number < same:
            continue
        yield f"  {mark} {name.ljust(widest)}  {visible(_place(frame))}"
        for local in frame.locals:
            yield visible(f"  {mark}     {local.name} = {local.value}")
    if not frames:
        yield f"  {mark} no Python code"


def _place(frame: StackFrame) -> str:
    """File and line, without the folder of the code or of a library."""
    file = frame.file.removeprefix(_APP)
    file = _LIBRARY.sub("", file, count=1)
    return f"{file}:{frame.line}" if frame.line else file


def _state(group: Sequence[_Seen]) -> str:
    """What the threads were found doing: of several, in the order of their ranks."""
    words = dict.fromkeys(
        "holds the GIL" if one.thread.holds_gil else _STATES[one.thread.state] for one in group
    )
    return f" ({', '.join(filter(None, words))})" if any(words) else ""


def _ranks(group: Iterable[_Seen]) -> str:
    """Ranks as ranges: 0-2, 5."""
    numbers = sorted(one.rank for one in group)
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(texts)


def record(replica: SeenReplica) -> dict[str, Any]:
    """Everything of a replica in raw values."""
    return {
        "rank": replica.rank,
        "unseen": replica.unseen or None,
        "processes": [
            {
                "pid": process.pid,
                "node_pid": process.node_pid,
                "command": process.command,
                "unseen": process.unseen or None,
                "threads": list(map(_thread_record, process.threads)),
                "threads_left_out": process.threads_left_out,
            }
            for process in replica.found.processes
        ],
        "processes_left_out": replica.found.left_out,
    }


def _thread_record(thread: ThreadStack) -> dict[str, Any]:
    return {
        "name": thread.name,
        "holds_gil": thread.holds_gil,
        "state": _STATES[thread.state] or None,
        "frames": [
            {
                "function": one.function,
                "file": one.file,
                "line": one.line or None,
                "locals": {local.name: local.value for local in one.locals},
            }
            for one in thread.frames
        ],
        "frames_left_out": thread.frames_left_out,
    }
