"""Runs one process of a launcher that does not tell processes apart: each line begins with its rank, and its end is named.

Lines are as torchrun's are with `--tee`: `[rank3]: loss 0.5`. A bad end is a line of its own, which agents read:
`nsml: process 3 (local rank 1) ended with exit code 1`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, List, Mapping, Sequence

_PIECE_BYTES = 64 << 10
_LONGEST_LINE = 64 << 10
"""Longer lines are written in parts."""
_AFTER_END_S = 1.0
"""Children of the program may hold its output open: they are not waited for longer."""
_PR_SET_PDEATHSIG = 1


def run(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run it to its end; return the exit code, 128 + signal for a signal.

    Launchers and agents send signals to all processes below them: this one only waits for the program.
    """
    rank, local_rank = env.get("RANK", "0"), env.get("LOCAL_RANK", "0")
    prefix = f"[rank{rank}]: ".encode()
    stopped: List[int] = []
    program = subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - no thread runs yet
    )

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda given, _frame: stopped.append(given))
    pumps = [
        threading.Thread(target=_pump, args=(stream, output, prefix), daemon=True)
        for stream, output in ((program.stdout, 1), (program.stderr, 2))
    ]
    for pump in pumps:
        pump.start()
    code = program.wait()
    until = time.monotonic() + _AFTER_END_S
    for pump in pumps:
        pump.join(max(until - time.monotonic(), 0.0))
    if code and not stopped:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        _write(2, f"nsml: process {rank} (local rank {local_rank}) ended with {how}\n".encode())
    return 128 - code if code < 0 else code


def _end_with_parent() -> None:
    """Have the program killed with this process, where the system can do that."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except Exception:
        pass


def _pump(stream: Any, output: int, prefix: bytes) -> None:
    for line in lines_of(iter(lambda: os.read(stream.fileno(), _PIECE_BYTES), b"")):
        _write(output, prefix + line)


def lines_of(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """Yield lines with their ends, as they are complete; a bar's updates, which end in CR, are lines, too."""
    rest = b""
    for piece in pieces:
        rest += piece
        while rest:
            at = min((at for at in (rest.find(b"\n"), rest.find(b"\r")) if at >= 0), default=-1)
            if at < 0 and len(rest) < _LONGEST_LINE:
                break
            if at < 0:
                yield rest + b"\n"
                rest = b""
                break
            if rest[at : at + 1] == b"\r" and at + 1 == len(rest):
                break  # a line feed may follow
            end = at + 2 if rest[at : at + 2] == b"\r\n" else at + 1
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest + b"\n"


def _write(output: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(output, data) :]
    except OSError:
        pass  # nobody reads it
