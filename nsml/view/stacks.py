"""Stacks of a session's Python threads, for people and in raw values; differing ranks stand out."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nsml.common.text import visible
from nsml.common.units import counted
from nsml.v1 import sessions_pb2 as sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nsml.v1.sessions_pb2 import ProcessStacks, ReplicaStacks, StackFrame, ThreadStack

_LIBRARY: Final = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")
_NUMBER: Final = re.compile(r"\d+")
_APP: Final = "/app/"
"""The working folder of programs, with the session's code."""
_MOST_FUNCTION: Final = 60
_STATES: Final = {
    sessions.THREAD_STATE_UNSPECIFIED: "",
    sessions.THREAD_STATE_ACTIVE: "active",
    sessions.THREAD_STATE_IDLE: "idle",
}

T = TypeVar("T")
_Calls = tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReplica:
    """A replica and its stacks; `unseen`: why there are none."""

    rank: int
    found: ReplicaStacks
    unseen: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """One thread of one replica."""

    rank: int
    thread: ThreadStack

    @property
    def calls(self) -> _Calls:
        """Its calls: threads at the same lines are equal."""
        thread = self.thread
        outer = [(one.function, one.file, one.line) for one in thread.frames]
        return (*outer, ("", "", thread.frames_left_out)) if thread.frames_left_out else (*outer,)


def lines(replicas: Sequence[SeenReplica]) -> Iterator[str]:
    """Yield all stacks as text. The outermost call is first, as in a traceback of Python.

    Threads of one name in processes of one program are grouped: that of most ranks is shown whole, then
    the others from the first differing call on, each such line after ">".
    """
    is_alone = len(replicas) == 1
    for replica in replicas:
        if replica.unseen:
            yield visible(f"{_of(replica.rank, is_alone)}cannot be seen: {replica.unseen}")
        elif not replica.found.processes:
            yield f"{_of(replica.rank, is_alone)}no process is called python"
    programs: dict[tuple[str, int], list[tuple[int, ProcessStacks]]] = defaultdict(list)
    for replica in replicas:
        for key, process in _numbered(replica.found.processes, lambda one: _program(one.command)):
            programs[key].append((replica.rank, process))
    for theirs in programs.values():
        yield from _process_lines(theirs, is_alone=is_alone)
    for replica in replicas:
        if left_out := replica.found.left_out:
            more = counted(left_out, "more Python process", "more Python processes")
            yield f"{_of(replica.rank, is_alone)}{more}"


def has_any(replica: SeenReplica) -> bool:
    """Return whether any of its threads was seen."""
    return any(one.threads for one in replica.found.processes)


def why_unseen(replica: SeenReplica) -> str:
    """Return why not, in the program's and the platform's words."""
    found = (replica.unseen, *(one.unseen for one in replica.found.processes))
    return next(filter(None, found), "no process is called python")


def _of(rank: int, is_alone: bool) -> str:
    return "" if is_alone else f"rank {rank}: "


def _numbered(things: Iterable[T], name: Callable[[T], str]) -> Iterator[tuple[tuple[str, int], T]]:
    """Yield each with its name, and its index among those of this name."""
    times: dict[str, int] = defaultdict(int)
    for one in things:
        yield (name(one), times[name(one)]), one
        times[name(one)] += 1


def _program(command: str) -> str:
    """Return the part of a command line that is the same on every rank: the script or module, else all of it."""
    words = command.split(" ")
    for word, following in pairwise([*words, ""]):
        if word == "-m":
            return following
        if word.endswith(".py"):
            return word
    return command


def _thread_name(thread: ThreadStack) -> str:
    """Return its name without its number: "Thread-7 (load)" is in the group of "load"."""
    return _NUMBER.sub("N", thread.name)


def _process_lines(theirs: Sequence[tuple[int, ProcessStacks]], *, is_alone: bool) -> Iterator[str]:
    _, first = theirs[0]
    pid = f"pid {first.pid}  " if is_alone else ""
    yield visible(f"{pid}{first.command}")
    for rank, process in theirs:
        if process.unseen:
            yield visible(f"  {_of(rank, is_alone)}its stacks cannot be seen: {process.unseen}")
    threads: dict[tuple[str, int], list[_Seen]] = defaultdict(list)
    for rank, process in theirs:
        for key, thread in _numbered(process.threads, _thread_name):
            threads[key].append(_Seen(rank, thread))
    for seen in threads.values():
        yield from _thread_lines(seen, is_alone=is_alone)
    for rank, process in theirs:
        if process.threads_left_out:
            more = counted(process.threads_left_out, "more thread", "more threads")
            yield f"  {_of(rank, is_alone)}{more}"


def _thread_lines(seen: Sequence[_Seen], *, is_alone: bool) -> Iterator[str]:
    groups: dict[_Calls, list[_Seen]] = defaultdict(list)
    for one in seen:
        groups[one.calls].append(one)
    usual, *others = sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
    title = visible(f"  {seen[0].thread.name}")
    yield f"{title}{_state(usual)}" if is_alone else f"{title}, {_ranks(usual)}{_state(usual)}"
    yield from _frame_lines(usual, same=0, mark=" ")
    for group in others:
        pairs = zip(usual[0].calls, group[0].calls, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        yield f"{title}, {_ranks(group)}{_state(group)}"
        if same:
            more = "" if same < len(group[0].calls) else ", and no further"
            yield f"    {counted(same, 'call', 'calls')} as above{more}"
        yield from _frame_lines(group, same=same, mark=">")


def _frame_lines(group: Sequence[_Seen], *, same: int, mark: str) -> Iterator[str]:
    """Yield the calls of threads at the same lines, with their variables."""
    thread = group[0].thread
    frames = list(thread.frames)
    names = [visible(one.function)[:_MOST_FUNCTION] for one in frames]
    widest = max(map(len, names[same:]), default=0)
    gap = len(frames) // 2 if thread.frames_left_out else None
    for number, (name, frame) in enumerate(zip(names, frames, strict=True)):
        if number == gap:
            yield f"  {mark} ... {counted(thread.frames_left_out, 'more call', 'more calls')}"
        if number >= same:
            yield f"  {mark} {name.ljust(widest)}  {visible(_place(frame))}"
            for variable in _variables(group, number):
                yield visible(f"  {mark}     {variable}")
    if not frames:
        yield f"  {mark} no Python code"


def _variables(group: Sequence[_Seen], number: int) -> Iterator[str]:
    """Yield the local variables of a call; if values differ, with their ranks."""
    values: dict[str, dict[str, list[_Seen]]] = defaultdict(lambda: defaultdict(list))
    for one in group:
        for local in one.thread.frames[number].locals:
            values[local.name][local.value].append(one)
    for name, by_value in values.items():
        if len(by_value) == 1 and len(next(iter(by_value.values()))) == len(group):
            yield f"{name} = {next(iter(by_value))}"
        else:
            texts = [f"{value} ({_ranks(those)})" for value, those in by_value.items()]
            yield f"{name} = {', '.join(texts)}"


def _place(frame: StackFrame) -> str:
    """Return file and line, without the folder of the code or of a library."""
    file = frame.file.removeprefix(_APP)
    file = _LIBRARY.sub("", file, count=1)
    return f"{file}:{frame.line}" if frame.line else file


def _state(group: Sequence[_Seen]) -> str:
    """Return the states of the threads; several in the order of their ranks."""
    words = dict.fromkeys(
        "holds the GIL" if one.thread.holds_gil else _STATES[one.thread.state] for one in group
    )
    return f" ({', '.join(filter(None, words))})" if any(words) else ""


def _ranks(group: Iterable[_Seen]) -> str:
    """Format ranks as ranges: 0-2, 5."""
    numbers = sorted(one.rank for one in group)
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(texts)


def record(replica: SeenReplica) -> dict[str, Any]:
    """Return all fields of a replica in raw values."""
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
