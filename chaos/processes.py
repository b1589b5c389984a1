"""One process of a tormented platform: started, killed, paused, stopped, and each of that proved."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ETCD, DATABASE, CONTROL_PLANE, AGENT = "etcd", "database", "control plane", "agent"
"""Kinds of parts."""

MARK: Final = "NSML_CHAOS"
"""Variable that every part of a run has, with the folder of the run."""

_GONE_WITHIN_S = 10.0
_STANDS_WITHIN_S = 5.0
STOP_GRACE_S = 15.0


class NotDone(Exception):
    """What was to be done to a part did not take hold."""


@dataclass
class Program:
    """A program on a host, in a session of its own.

    Attributes:
        enter: what runs it on its host.
        stop_signal: what asks it to end in good order.
    """

    name: str
    kind: str
    host: str
    command: Sequence[str]
    enter: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    stop_signal: signal.Signals = signal.SIGTERM
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    starts: int = 0

    @property
    def log(self) -> Path:
        """What it writes for people."""
        return self.folder / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, if it does not run."""
        if self.is_running:
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.enter, *self.command],
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL.

        Raises:
            NotDone: it had ended before, or does not go.
        """
        process = self._running()
        process.send_signal(signal.SIGKILL)
        self._await_end(process)
        if process.returncode != -signal.SIGKILL:
            raise NotDone(f"{self.name} had ended with {process.returncode}")

    def stop(self, number: signal.Signals | None = None) -> None:
        """Ask it to end, and wait.

        Raises:
            NotDone: it does not; then it was killed.
        """
        process = self._running()
        process.send_signal(number or self.stop_signal)
        self._await_end(process)

    def pause(self) -> None:
        """SIGSTOP, and wait until every thread stands still: an answer could slip out before.

        Raises:
            NotDone: it does not run, or does not stand still.
        """
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        ends_at = time.monotonic() + _STANDS_WITHIN_S
        while time.monotonic() < ends_at:
            if _stands(process.pid):
                return
            time.sleep(0.002)
        process.send_signal(signal.SIGCONT)
        raise NotDone(f"{self.name} does not stand still")

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Make sure that it and its group are gone."""
        process = self.process
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_GONE_WITHIN_S)

    def last_words(self) -> str:
        """The end of its log."""
        with suppress(OSError):
            lines = self.log.read_bytes()[-2000:].decode(errors="replace").splitlines()
            return "\n".join(lines[-4:])
        return ""

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            raise NotDone(f"{self.name} does not run")
        return self.process

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait(_GONE_WITHIN_S)
            raise NotDone(f"{self.name} did not end within {STOP_GRACE_S:g} s") from error


def _stands(pid: int) -> bool:
    with suppress(OSError):
        threads = list(Path(f"/proc/{pid}/task").glob("*/stat"))
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in threads]
        return bool(states) and all(state == "T" for state in states)
    return False


def processes_with(variable: str, value: Path) -> list[int]:
    """Processes with this variable in their environment, by id; not this one."""
    mark = f"{variable}={value}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            # Gone meanwhile, or somebody else's.
            with suppress(OSError):
                if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def variable_of(pid: int, variable: str) -> str:
    """A variable of a process; empty where it has none, or is gone."""
    mark = f"{variable}=".encode()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(mark):
                return entry.removeprefix(mark).decode(errors="replace")
    return ""


def command_of(pid: int) -> str:
    """What a process runs; empty when it is gone."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()
    return ""
