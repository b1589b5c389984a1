"""The last output of a failed program, in one line for people."""

from __future__ import annotations

import os
import re
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_TAIL_BYTES = 128 << 10
"""Read at the end: the processes of a launcher all print tracebacks once one of them has failed."""
_LONGEST = 400
"""In characters."""
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Colours and cursor moves of a terminal."""
LOST_PEER = r"(?i)(?:closed|reset) by peer|broken pipe|remote process exited|socket closed"
"""Matches the exception of a process whose connection to another one is gone; the control plane knows it, too."""
_LOST_PEER = re.compile(LOST_PEER)

_TORCHRUN = "Root Cause (first observed failure):"
_TORCHRUN_PROCESS = re.compile(
    r"^  rank +: (\d+) \(local_rank: (\d+)\)\n  exitcode +: (-?\d+) ", re.MULTILINE
)
_LABELLED = re.compile(
    r"^nsml: process (\d+) \(local rank (\d+)\) ended with (exit code|signal) (\d+)$"
)
"""What nsml._labelled prints."""
_MPI_EXIT = re.compile(r"^ +Process name: \[\S+,(\d+)\]\n +Exit code: +(\d+)$", re.MULTILINE)
_MPI_ABORT = re.compile(
    r"^(?:\[\S+>: ?)?MPI_ABORT was invoked on rank (\d+) in communicator \S+[^\n]*\n"
    r"(?:[^\n]* Proc: [^\n]*\n)?[^\n]*Errorcode: (\d+)",
    re.MULTILINE,
)
_MPI_SIGNAL = re.compile(
    r"^\w+ noticed that process rank (\d+) with PID \d+ on node \S+ exited on\s+signal (\d+)",
    re.MULTILINE,
)
_OF_MPI_PROCESS = r"\[(?:\S+@)?\d+,{}\]<std(?:out|err)>: ?"


def last_output(path: str, processes: int = 1) -> str:
    """Return the exception that ended a Python program, else `last output: ` and the last line with a word; "" without any.

    Of a launcher's processes it is that of the one that failed first, after its number:
    `process 3 (local rank 1): ValueError: nan`. mpirun's are of all replicas, with `processes` each.
    """
    try:
        # The program may have replaced the file: follow no link, and never block.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(path, flags), "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return ""
    text = _ESCAPE.sub("", tail.decode("utf-8", "replace"))
    lines = [line.rstrip() for line in text.splitlines() if any(map(str.isalnum, line))]
    found = (
        _of_torchrun(lines)
        or _of_labelled(lines)
        or _of_mpirun(lines, processes)
        or _exception_in(lines)
    )
    if not found and not lines:
        return ""
    return (found or f"last output: {lines[-1].strip()}")[:_LONGEST]


def _exception_in(lines: Sequence[str]) -> str:
    """Return the last exception: the first line after a traceback, else a last line like one, as of a SyntaxError."""
    begins = [place for place, line in enumerate(lines) if line == _TRACEBACK]
    behind = lines[begins[-1] + 1 :] if begins else lines[-1:]
    found = next((line for line in behind if not line[0].isspace()), "")
    return found if begins or _EXCEPTION.match(found) else ""


def _of_torchrun(lines: Sequence[str]) -> str:
    """Read the report of torchrun and accelerate; "" without one.

    Processes that end between two looks of torchrun have no order there: one that lost its peer was not the first.
    """
    places = [place for place, line in enumerate(lines) if line == _TORCHRUN]
    if not places:
        return ""
    before, root = lines[: places[-1]], "\n".join(lines[places[-1] :])
    title = max((place for place, line in enumerate(before) if line == "Failures:"), default=-1)
    if title < 0:
        return ""
    others = "\n".join(before[title:])
    begin = max((place for place, line in enumerate(before) if line == _TRACEBACK), default=title)
    printed = before[:begin]
    found: list[tuple[str, int, Sequence[str]]] = []
    for match in (*_TORCHRUN_PROCESS.finditer(root), *_TORCHRUN_PROCESS.finditer(others)):
        rank, local, code = (int(number) for number in match.groups())
        own = _printed_by_rank(rank, printed)
        found.append((f"process {rank} (local rank {local})", code, own))
    # Its launcher ended it.
    first = [one for one in found if one[1] != -signal.SIGTERM] or found
    if len(first) == 1 and not first[0][2]:
        first = [(first[0][0], first[0][1], printed)]
    texts = [f"{who}: {_how_it_ended(code, own)}" for who, code, own in first]
    return _first_of(texts)


def _first_of(texts: Sequence[str]) -> str:
    """Return the first end, of those that have a reason of their own; "" without any."""
    return min(texts, key=lambda text: bool(_LOST_PEER.search(text)), default="")


def _of_labelled(lines: Sequence[str]) -> str:
    """Read the ends of processes that `nsml._labelled` ran, as those of deepspeed; "" without one."""
    found = []
    for match in filter(None, map(_LABELLED.match, lines)):
        rank, local, code = int(match[1]), int(match[2]), int(match[4])
        own = _printed_by_rank(rank, lines)
        how = _how_it_ended(code if match[3] == "exit code" else -code, own)
        found.append(f"process {rank} (local rank {local}): {how}")
    return _first_of(found)


def _of_mpirun(lines: Sequence[str], processes: int) -> str:
    """Read the report of Open MPI; "" without one."""
    text = "\n".join(lines)
    if found := _MPI_EXIT.search(text) or _MPI_ABORT.search(text):
        rank, code = int(found[1]), int(found[2])
    elif found := _MPI_SIGNAL.search(text):
        rank, code = int(found[1]), -int(found[2])
    else:
        return ""
    own = _printed_by(_OF_MPI_PROCESS.format(rank), lines)
    ends = (place for place, line in enumerate(own) if line.startswith("MPI_ABORT was invoked"))
    own = own[: next(ends, len(own))]
    replica, local = divmod(rank, max(processes, 1))
    return f"process {rank} (replica {replica}, local rank {local}): {_how_it_ended(code, own)}"


def _printed_by(prefix: str, lines: Sequence[str]) -> list[str]:
    """Return the lines with this prefix and a word, without it."""
    begin = re.compile(prefix)
    found = [line[match.end() :] for line in lines if (match := begin.match(line))]
    return [line for line in found if any(map(str.isalnum, line))]


def _printed_by_rank(rank: int, lines: Sequence[str]) -> list[str]:
    """Return the lines of a process, without its rank; only those of torch's own traceback, which has it twice, if any.

    Its other output may be between them: launchers read both streams one after the other.
    """
    tag = rf"\[rank{rank}\]: ?"
    own = _printed_by(tag + tag, lines)
    return own if _TRACEBACK in own else _printed_by(f"(?:{tag})+", lines)


def _how_it_ended(code: int, printed: Sequence[str]) -> str:
    """Describe the end of a process by its exit code, negative for a signal, and by its output."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    if exception := _exception_in(printed):
        return exception
    return f"exit {code}" + (f", last output: {printed[-1].strip()}" if printed else "")
