"""Background programs: started apart from the terminal, found again, reliably ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nsml.client.contexts import write_private
from nsml.common.log_files import put_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

_POLL_S = 0.02
_LAST_WORDS = 4000


class StartFailed(Exception):
    """A program ended before it was ready, or did not get ready; the message is its last output.

    Attributes:
        code: its exit code; None if it has not ended, or if unknown.
    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A process by its id and start time in clock ticks: ids alone are reused."""

    pid: int
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; zombies do not."""
        return _ticks_and_state(self.pid) in {(self.start_ticks, s) for s in "RSDTtWPI"}


def find(pid: int) -> Program | None:
    """Return the process with this id."""
    found = _ticks_and_state(pid)
    return None if found is None else Program(pid=pid, start_ticks=found[0])


def recorded(file: Path) -> Program | None:
    """Return the process of a record ({"pid", "start_ticks"}), if it is still alive."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        program = Program(pid=int(record["pid"]), start_ticks=int(record["start_ticks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return program if program.is_alive else None


class Launched:
    """A program of ours that is starting."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, offset: int) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._offset = offset

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_ready(
        self, ready: Path, *, deadline_s: float, more_s: Callable[[], float] = lambda: 0.0
    ) -> Mapping[str, Any]:
        """Return the contents of `ready` once it was written by this process; times as for `wait_until`.

        Raises:
            StartFailed: it ended, or timed out.
        """

        def said() -> Mapping[str, Any]:
            found = read_json(ready)
            return found if found.get("pid") == self.pid else {}

        try:
            return wait_until(
                said,
                alive=lambda: self._process.poll() is None,
                deadline_s=deadline_s,
                more_s=more_s,
            )
        except StartFailed as error:
            words = self.last_words() or str(error)
            raise StartFailed(words, code=self._process.poll()) from error

    def last_words(self) -> str:
        """Return the end of its text output since the start, without JSON events."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._offset, size - _LAST_WORDS))
            lines = file.read().decode(errors="replace").split("\n")
        words = [line.rstrip() for line in lines if line.strip() and not line.startswith("{")]
        return "\n".join(words[-3:])


def log_of(name: str, folder: Path) -> Path:
    """Return the log file of `nsml-NAME`."""
    return folder / f"{name}.log"


def launch(
    name: str, arguments: Sequence[str], *, folder: Path, environ: Mapping[str, str]
) -> Launched:
    """Start `nsml-NAME ARGUMENTS` in a new session.

    Its output is appended to `folder/NAME.log`, and `folder/NAME.pid` records the process.
    """
    log = log_of(name, folder)
    put_aside(log)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab") as output:
        offset = output.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [*program(name), *arguments],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            umask=0o077,
        )
    found = find(process.pid)
    ticks = 0 if found is None else found.start_ticks
    write_private(
        folder / f"{name}.pid", json.dumps({"pid": process.pid, "start_ticks": ticks}) + "\n"
    )
    return Launched(name, process, log, offset)


def refusal(name: str, settings: Path, *, environ: Mapping[str, str]) -> str:
    """Return why `nsml-NAME` would not start with these settings, in its own words; "": they are valid."""
    # An agent's files are created by the control plane, which starts first.
    check = "--check=settings" if name == "agent" else "--check"
    said = subprocess.run(
        [*program(name), "--config", str(settings), check],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if said.returncode == 0:
        return ""
    return said.stderr.strip()[-_LAST_WORDS:] or f"it ended with code {said.returncode}"


def program(name: str) -> list[str]:
    """Return the command of `nsml-NAME`: installed beside this interpreter, else run from its module."""
    script = Path(sys.executable).parent / f"nsml-{name}"
    if script.exists():
        return [str(script)]
    module = {"controlplane": "controlplane.main", "agent": "nodeagent.main"}[name]
    return [sys.executable, "-c", f"from {module} import main; main()"]


def wait_until(
    said: Callable[[], T],
    *,
    alive: Callable[[], bool],
    deadline_s: float,
    more_s: Callable[[], float] = lambda: 0.0,
) -> T:
    """Wait until `said` returns a true value, and return it.

    `more_s` may extend `deadline_s` during the wait.

    Raises:
        StartFailed: `alive` was no longer so, or the time was over.
    """
    began = time.monotonic()
    while time.monotonic() < began + deadline_s + more_s():
        if answer := said():
            return answer
        if not alive():
            raise StartFailed("it ended")
        time.sleep(_POLL_S)
    raise StartFailed(f"not ready after {time.monotonic() - began:.0f} s")


def signal_program(program: Program, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; return False if it is gone."""
    try:
        descriptor = os.pidfd_open(program.pid)
    except ProcessLookupError:
        return False
    try:
        # the id cannot be used again while the descriptor is open
        if not program.is_alive:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_gone(program: Program, *, deadline_s: float) -> bool:
    """Wait until a process has ended; return False on timeout."""
    try:
        descriptor = os.pidfd_open(program.pid)
    except ProcessLookupError:
        return True
    try:
        if not program.is_alive:
            return True
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        return bool(waiting.poll(deadline_s * 1000))
    finally:
        os.close(descriptor)


def end(program: Program, *, grace_s: float) -> bool:
    """End a process and the rest of its session; return False if it had to be killed."""
    signal_program(program, signal.SIGCONT)
    signal_program(program, signal.SIGTERM)
    is_orderly = wait_gone(program, deadline_s=grace_s)
    if not is_orderly:
        signal_program(program, signal.SIGKILL)
        wait_gone(program, deadline_s=grace_s)
    end_session(program.pid)
    return is_orderly


def end_session(leader: int) -> None:
    """Kill the rest of the session of `leader`: its remaining children.

    Processes with their own session, such as replicas, are not touched.
    """
    for child in members(leader):
        _kill(child)


def end_orphans(leader: int, folder: Path) -> None:
    """Like `end_session` for a leader that died long ago, whose id may have been reused.

    Only processes that work in `folder`, or name it in their command line, are killed.
    """
    for child in members(leader):
        if child.pid != leader and _belongs_to(child.pid, folder):
            _kill(child)


def _kill(program: Program) -> None:
    signal_program(program, signal.SIGKILL)
    wait_gone(program, deadline_s=5.0)


def _belongs_to(pid: int, folder: Path) -> bool:
    try:
        place = Path(f"/proc/{pid}/cwd").readlink()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return place.is_relative_to(folder) or os.fsencode(folder) in command


def members(leader: int) -> list[Program]:
    """Return the live processes of a session."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            child = find(int(entry.name))
            if child is not None and child.is_alive and _session_of(child.pid) == leader:
                found.append(child)
    return found


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _ticks_and_state(pid: int) -> tuple[int, str] | None:
    """Read start ticks (field 22) and state (field 3) of /proc/PID/stat."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the second field is a name in parentheses with any characters
    fields = text.rpartition(")")[2].split()
    return int(fields[19]), fields[0]


def read_json(file: Path) -> Mapping[str, object]:
    """Return the JSON object in a file; empty if there is none."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
