"""The stacks of Python processes' threads, read from outside by py-spy, whatever the programs do.

Programs control the result: the number of processes, threads and frames, and every text. All of it is bounded.
py-spy requires nothing of a process. A hanging one is read as it is; only a running one is stopped, for some
milliseconds. It runs with the rights of `nodeagent.shim.stack_reader`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from nodeagent.probes.process_list import inner_pid
from nodeagent.probes.processes import read_stat
from nodeagent.runtimes.launcher import shim_command

if TYPE_CHECKING:
    from nodeagent.probes.process_list import Look

MOST_PROCESSES: Final = 32
_MOST_THREADS = 256
_MOST_FRAMES = 200
_MOST_LOCALS = 50
_MOST_TEXT = 500
_MOST_VALUE = 200
_LAST_LINE = (1 << 32) - 1
_MOST_COMPLAINT = 4096
_WITHIN_S = 6.0
"""A reading and its two repetitions take less than the time a client waits, with other processes of the replica before them."""
_NONSENSE = "its stacks cannot be understood"
_MAIN, _UNNAMED = "MainThread", "(unnamed)"
_PYTHON = re.compile(r"python[0-9.]*[a-z]?( \(deleted\))?")
_BETWEEN = " \t\r\n,"
_RUNS = re.compile(r"^State:\tR", re.MULTILINE)
_INNER = re.compile(r"^NSpid:.*?(\d+)$", re.MULTILINE)
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenFrame:
    """One call: `variables` are names and values; `line` is 0 if unknown."""

    function: str
    file: str
    line: int
    variables: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenThread:
    """One thread: its outermost call first; `frames_left_out` are omitted in the middle. Active is None if unknown."""

    name: str
    holds_gil: bool
    is_active: bool | None
    frames: Sequence[SeenFrame]
    frames_left_out: int


class StacksUnseen(Exception):
    """The threads of a process cannot be read; the message gives the reason, for people."""


class ProcessGone(StacksUnseen):
    """It has ended."""


def reader() -> str | None:
    """Return the path of py-spy; None if it is not installed."""
    beside = Path(sysconfig.get_path("scripts"), "py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def python_processes(found: Look, proc: Path = _PROC) -> Sequence[int]:
    """Return the Python interpreters of a look, oldest first. Blocking."""
    ours = [pid for pid, stat in found.stats.items() if not stat.is_dead and _is_python(pid, proc)]
    return sorted(ours, key=lambda pid: (found.stats[pid].start_ticks, pid))


def _is_python(pid: int, proc: Path) -> bool:
    try:
        return _PYTHON.fullmatch((proc / str(pid) / "exe").readlink().name) is not None
    except OSError:  # gone, or not visible to us
        return False


async def read_threads(
    pid: int, start_ticks: int, *, program: str, with_locals: bool
) -> tuple[Sequence[SeenThread], int]:
    """Return the stacks of a process with that start, and the number of further threads.

    Raises:
        ProcessGone: it has ended.
        StacksUnseen: it cannot be read.
    """
    uid, gid = _owner(pid)
    options = ["dump", "--json", "--pid", str(pid), *(["--locals"] if with_locals else [])]
    command = shim_command("stack_reader", str(pid), str(uid), str(gid), program, *options)
    said = await _read(command, pid)
    stat = read_stat(pid)
    if stat is None or stat.start_ticks != start_ticks:
        raise ProcessGone("it has ended")  # the result may be of another process
    try:
        threads, left_out = await asyncio.to_thread(_threads_of, said.threads, pid)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StacksUnseen(_NONSENSE) from error
    if said.is_cut:
        left_out = max(await asyncio.to_thread(_count_threads, pid) - len(threads), 1)
    return threads, left_out


async def _read(command: Sequence[str], pid: int) -> _Said:
    """Return the output of py-spy. Raises StacksUnseen.

    A running process may change its stack while it is read, mixing two moments: the result is right if
    two readings agree and nothing runs. Otherwise the process is stopped meanwhile, if possible: a computing one
    can be misread twice in the same way, with calls missing.
    """
    seen: list[_Said] = []
    runs = False
    for _ in range(2):
        with suppress(StacksUnseen):
            seen.append(await _said(command, "--nonblocking"))
        runs = runs or bool(await asyncio.to_thread(running_threads, pid))
        if not seen:
            break  # if the first reading fails, the second will too
        if seen[0].is_cut:
            return seen[0]
    with suppress(KeyError, TypeError, AttributeError, ValueError):
        first, second = (_places(one.threads) for one in seen)
        if first == second and not runs:
            return seen[-1]
    try:
        return await _said(command)
    except StacksUnseen:
        if not seen:
            raise
        return seen[-1]


class _Said(NamedTuple):
    """Threads as output by py-spy; cut if they were too long."""

    threads: Sequence[Mapping[str, Any]]
    is_cut: bool


async def _said(command: Sequence[str], *options: str) -> _Said:
    written, is_cut = await _output_of([*command, *options])
    try:
        decode = _complete if is_cut else json.loads
        return _Said(list(await asyncio.to_thread(decode, written)), is_cut)
    except (ValueError, TypeError, RecursionError) as error:
        raise StacksUnseen(_NONSENSE) from error


def _complete(written: bytes) -> Sequence[Any]:
    """Return the complete elements of a truncated JSON array."""
    text, decoder, found = written.decode(errors="replace"), json.JSONDecoder(), []
    at = text.index("[") + 1
    with suppress(ValueError, IndexError):
        while True:
            while text[at] in _BETWEEN:
                at += 1
            one, at = decoder.raw_decode(text, at)
            found.append(one)
    return found


def _places(said: Sequence[Mapping[str, Any]]) -> Sequence[object]:
    """Return the position of each thread."""
    return [
        (one["thread_id"], [(call["name"], call["line"]) for call in one["frames"]]) for one in said
    ]


def _owner(pid: int) -> tuple[int, int]:
    """Return a process's uid and gid; the owner of its folder in /proc may be root. Raises StacksUnseen."""
    try:
        said = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError as error:
        raise ProcessGone("it has ended") from error
    uid, gid = (re.search(rf"^{kind}:\t(\d+)", said, re.MULTILINE) for kind in ("Uid", "Gid"))
    if uid is None or gid is None:
        raise ProcessGone("it has ended")
    return int(uid[1]), int(gid[1])


async def _output_of(command: Sequence[str]) -> tuple[bytes, bool]:
    """Return the command's output, and whether it was cut. Raises StacksUnseen."""
    with _in_memory() as said, _in_memory() as complaint:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=said, stderr=complaint, env={}
        )
        try:
            async with asyncio.timeout(_WITHIN_S):
                await process.wait()
        except TimeoutError as late:
            raise StacksUnseen(f"it could not be read within {_WITHIN_S:g} s") from late
        finally:
            # also on cancellation
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode not in {0, -signal.SIGXFSZ}:
            raise StacksUnseen(_reason(_content(complaint)[:_MOST_COMPLAINT]))
        return _content(said), process.returncode != 0


def _in_memory() -> BinaryIO:
    """Create an anonymous file; `stack_reader` limits its size."""
    return os.fdopen(os.memfd_create("nsml-stacks"), "w+b")


def _content(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def _reason(written: bytes) -> str:
    """Return why py-spy failed, in one line."""
    complaint = written.decode(errors="replace")
    if re.search("permission denied|operation not permitted", complaint, re.IGNORECASE):
        return (
            "another debugger reads it, or the agent lacks the capability CAP_SYS_PTRACE"
            if os.geteuid() == 0
            else "the kernel does not let the agent look into it: without root it needs kernel.yama.ptrace_scope=0"
        )
    if re.search("python (version|interpreter)|No such process", complaint):
        return "it is just starting, some thousand calls deep, or no Python that can be read"
    lines = [line for line in complaint.splitlines() if line.strip()]
    last = lines[0].removeprefix("Error: ") if lines else "its stacks could not be read"
    return last[:_MOST_TEXT]


def running_threads(pid: int, proc: Path = _PROC) -> frozenset[int]:
    """Return the running or runnable threads of a process, by their numbers in its innermost pid namespace. Blocking.

    py-spy looks for them by the process's own numbers, which are not those of the node.
    """
    found = set()
    with suppress(OSError):  # it ends meanwhile
        for task in (proc / str(pid) / "task").iterdir():
            with suppress(OSError):
                said = (task / "status").read_text(errors="replace")
                if _RUNS.search(said) and (inner := _INNER.search(said)):
                    found.add(int(inner[1]))
    return frozenset(found)


def _count_threads(pid: int) -> int:
    with suppress(OSError):
        return sum(1 for _ in (_PROC / str(pid) / "task").iterdir())
    return 0


def _threads_of(said: Sequence[Mapping[str, Any]], pid: int) -> tuple[Sequence[SeenThread], int]:
    return _threads(said, running_threads(pid), inner_pid(pid))


def _threads(
    said: Sequence[Mapping[str, Any]], running: Container[int], main: int
) -> tuple[Sequence[SeenThread], int]:
    """Return all threads, the main thread first: its number, known to Python since 3.11, is `main`."""
    numbers = [one["os_thread_id"] or (main if one["thread_name"] == _MAIN else 0) for one in said]
    order = sorted(range(len(said)), key=lambda at: (numbers[at] != main, numbers[at]))
    shown = order[:_MOST_THREADS]
    return [_thread(said[at], numbers[at], running, main) for at in shown], len(said) - len(shown)


def _thread(said: Mapping[str, Any], number: int, running: Container[int], main: int) -> SeenThread:
    frames = list(reversed(said["frames"]))
    left_out = max(len(frames) - _MOST_FRAMES, 0)
    if left_out:
        half = _MOST_FRAMES // 2
        frames = [*frames[:half], *frames[-half:]]
    return SeenThread(
        # threads have names in programs that have imported `threading`
        name=_cut(said["thread_name"] or (_MAIN if number == main else _UNNAMED)),
        holds_gil=bool(said["owns_gil"]),
        is_active=number in running if number else None,
        frames=list(map(_frame, frames)),
        frames_left_out=left_out,
    )


def _frame(said: Mapping[str, Any]) -> SeenFrame:
    return SeenFrame(
        function=_cut(said["name"]),
        file=_cut(said["filename"]),
        line=min(max(int(said["line"] or 0), 0), _LAST_LINE),
        variables=[
            (_cut(one["name"]), _cut(one["repr"] or "?", _MOST_VALUE))
            for one in (said["locals"] or [])[:_MOST_LOCALS]
        ],
    )


def _cut(text: str, most: int = _MOST_TEXT) -> str:
    """Truncate a text of the program; half a surrogate pair, invalid in messages, is replaced."""
    whole = str(text).encode("utf-8", "replace").decode()
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"
