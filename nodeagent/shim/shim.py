"""The parent of one replica: starts it, outlives the agent, and records its end.

Standard library only, single-threaded, started by `shim_command` or forked by the zygote. It reads
`spec.json` of the replica folder (see `folders.py`), and guarantees:

- Only one shim per folder runs anything: `shim.json` is the claim, made by a hard link.
- The program is a child in a process group of its own, its output appended to the file `output`.
- `exit.json` appears once, atomically and on disk, after every process of the replica has ended: the
  agent then frees devices.
- SIGTERM with `stop.json` beside it: SIGTERM to the program's group, then after `grace_s` SIGKILL
  to everything. With `notice_s` a program that can save gets a notice first, and SIGTERM that much
  later, if it has not exited (`save_notice.py`). A second order may only shorten the first.
- While it waits for a container engine it handles orders and limits as while the program runs.
- The time limit uses the monotonic clock; a program that can save gets a notice `warning_s` before,
  and with `leaves_at_limit` may exit then. `lost_after_s` limits the silence of `contact`, measured
  as time since its mtime last changed (a stepped wall clock changes nothing; suspended time counts), and
  all processes have ended by then: stopping begins `grace_s` earlier.
- Limits are enforced by the kernel, which reports it (`Program.exceeded`), or by polling (`watch.py`):
  a program over its limit is killed at once.
- If the shim is killed, so is the program (PR_SET_PDEATHSIG). With `ends_with`, a pid, it stops the
  program when that process, its parent, ends: programs for the agent itself do not outlive it.
- Secret variables are JSON on standard input, if `has_secrets` is set. They are put
  into the program's environment and kept nowhere else.

`why` of the exit record: EXITED, STOPPED, TIME_LIMIT, LOST_AFTER, OUT_OF_MEMORY, LIMIT_EXCEEDED,
START_FAILED, ENGINE_AWAY, ENGINE_LOST, SHIM_LOST.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from nodeagent.shim import disk_reserve, last_reads, namespaces, save_notice
from nodeagent.shim.activity import Stillness
from nodeagent.shim.contained import Contained
from nodeagent.shim.files import content_of
from nodeagent.shim.forked import ORDERS, WATCHED, Forked
from nodeagent.shim.last_output import last_output
from nodeagent.shim.visitor import KINDS, VISIT
from nodeagent.shim.watch import FIRST_LOOK_S, Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nodeagent.shim.program import Program
    from nodeagent.shim.watch import Excess


_CONTACT_LOOKS = 20
"""Checks of `contact` within `lost_after_s`."""


_LOOK_S = 1.0
"""Interval of checks whether the program was killed for a limit."""

_WARN_AGAIN_S = 1.0
"""Interval of notices to a program near its time limit, until it can save."""
_TOGETHER_S = 0.05
"""Work due this soon is done now: each wakeup of a shim costs more than a look."""


_REHEARSED = '{"time_limit_s": null, "lost_after_s": null, "grace_s": 1.0, "namespace": null}'
"""An empty specification."""


def main() -> NoReturn:
    """Run the replica in the folder of the second argument; a descriptor may follow."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    given = sys.argv[3:]
    run(sys.argv[2], int(given[0]) if given else None)


def run(folder: str, network: int | None = None) -> NoReturn:
    """Run the shim of `folder` until its replica has ended; the caller is a session leader, and blocks WATCHED.

    `network` is a descriptor of the program's network namespace; None: the machine's.
    """
    # before the claim: until then a second shim for the folder may be starting, too
    spec = json.loads(content_of(os.path.join(folder, "spec.json")))
    claim = {
        "pid": os.getpid(),
        "start_ticks": _start_ticks(),
        "claimed_ticks": int(_boot_time() * os.sysconf("SC_CLK_TCK")),
        "boot_id": spec["boot_id"],
        "admits": KINDS,
    }
    if not _claim(folder, claim):
        os._exit(0)
    shim = Shim(folder, spec, claim, network)
    try:
        shim.start()
        shim.supervise()
    except Exception as error:  # noqa: BLE001 - the top of a process whose word frees devices
        shim.why, shim.message = "SHIM_LOST", f"the shim failed: {error!r}"
    shim.end_everything()
    shim.write_exit_record()
    shim.release()
    os._exit(0)


def rehearse() -> None:
    """Run the code of each replica without effect: the memory that it writes to is then the process's own.

    A forked process waits for a copy of each page that it writes to, and Python writes even when it reads.
    """
    nowhere = os.devnull  # has no files in it
    Shim(nowhere, json.loads(_REHEARSED), {"start_ticks": _start_ticks()}).rehearse()


def _program_of(folder: str, spec: dict, network: int | None) -> Program:  # type: ignore[type-arg]
    return Contained(folder, spec) if spec.get("container") else Forked(folder, spec, network)


class Shim:
    """One replica, from its start to its exit record."""

    def __init__(
        self,
        folder: str,
        spec: dict,  # type: ignore[type-arg]
        claim: dict,  # type: ignore[type-arg]
        network: int | None = None,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.claim = claim
        self.why = "EXITED"
        self.message = ""
        self._program = _program_of(folder, spec, network)
        self._started = (time.time(), time.monotonic())
        self._terminate_at: float | None = None
        self._grace_s = 0.0
        self._kill_at: float | None = None
        limit = spec["time_limit_s"]
        self._limit_at = None if limit is None else time.monotonic() + limit
        warning = spec.get("warning_s", 0.0)
        self._warn_at = self._limit_at - warning if self._limit_at and warning else None
        self._watch = None
        if "watch" in spec:
            processes, has_own_shm = self._program.processes, bool(spec.get("namespace"))
            self._watch = Watch(folder, spec["watch"], processes, has_own_shm=has_own_shm)
        self._look_at = time.monotonic() + FIRST_LOOK_S
        self._stillness = Stillness(lambda: {self._program.pid, *self._program.processes()} - {0})
        self._contact_mtime = self._contact_stamp()
        self._contact_changed = _boot_time()

    def rehearse(self) -> None:
        """Run code without effects."""
        self._stop_order()
        self._keep_limits()
        self._until_next_deadline()
        json.dumps(self._exit_record())

    def start(self) -> None:
        """Begin to start the program, which may continue under supervision."""
        disk_reserve.take(self.folder)
        namespaces.prctl(namespaces.PR_SET_CHILD_SUBREAPER, 1)
        namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-shim")
        if os.path.exists(os.path.join(self.folder, "stop.json")):
            self.why, self.message = "STOPPED", self._stop_order()[0]
            return
        try:
            self.spec["secrets"] = _take_secrets() if self.spec.get("has_secrets") else {}
            self._program.start()
        except OSError as error:
            self.why, self.message = "START_FAILED", str(error)
        self.spec["secrets"] = {}
        self._end_with_parent()

    def supervise(self) -> None:
        """Return when the program has ended, by an order, a limit or itself."""
        while self._program.is_running():
            received = signal.sigtimedwait(WATCHED, self._until_next_deadline())
            # checked first: an order after the program's own end is not its cause
            if self._program.is_running():
                if received is not None:
                    self._take(received.si_signo)
                self._keep_limits()
        self._end_if_exceeded(self._program.exceeded())
        self._await_followers()

    def _await_followers(self) -> None:
        """Let the program's followers end, for a while; in a namespace or container they are out of sight here."""
        if self.spec.get("namespace") or self.spec.get("container") or self._kill_at is not None:
            return
        ends_at = time.monotonic() + last_reads.LONGEST_S
        while last_reads.remain(self._run) and time.monotonic() < ends_at:
            received = signal.sigtimedwait(WATCHED, last_reads.PAUSE_S)
            self._program.is_running()  # it reaps
            if received is not None and received.si_signo in ORDERS:
                return

    def _take(self, number: int) -> None:
        """Act on a signal."""
        if number in ORDERS:
            self._begin_stop("STOPPED", *self._stop_order())
        elif number == VISIT:
            with contextlib.suppress(OSError):  # the agent stops waiting after a while
                self._program.admit()
        elif number == signal.SIGCHLD:
            self._stillness.end()

    def _end_with_parent(self) -> None:
        """Called after the start: a new user namespace resets the parent-death signal."""
        parent = self.spec.get("ends_with")
        if parent is not None:
            namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                self._begin_stop("STOPPED", *self._stop_order())

    def _note_child(self) -> None:
        """Write the program's pid to `shim.json`, unless it ends at once: a note for people."""
        if self._program.pid and "child" not in self.claim:
            self.claim["child"] = self._program.pid
            with contextlib.suppress(OSError):  # a full disk must not end the program
                _replace(self.folder, "shim.json", self.claim)

    def end_everything(self) -> None:
        """Kill the remaining processes; return when no process of the replica is alive."""
        pause = 0.005
        while not self._program.is_gone():
            self._program.kill()
            signal.sigtimedwait((signal.SIGCHLD,), pause)
            pause = min(pause * 2, 1.0)

    def write_exit_record(self) -> None:
        """Write `exit.json`, retrying until the disk accepts it; without its folder nobody reads it."""
        record = self._exit_record()
        while os.path.isdir(self.folder) and not self._is_written(record):
            time.sleep(1.0)

    def release(self) -> None:
        """Leave only the folder behind."""
        self._program.release()

    def _is_written(self, record: dict[str, object]) -> bool:
        """Write the record, into the reserved space or, without it, a new file; return whether that worked."""
        with contextlib.suppress(OSError):
            disk_reserve.spend(self.folder, "exit.json", record)
            return True
        with contextlib.suppress(OSError):
            _replace(self.folder, "exit.json", record, durable=True)
            return True
        return False

    def _exit_record(self) -> dict[str, object]:
        code, number, verdict = self._program.outcome()
        is_noticed = self._terminate_at is not None and self._kill_at is None
        if is_noticed and code == 0 and not save_notice.has_left(self._run):
            self.why, self.message = "EXITED", ""  # it ended by itself in time
        if verdict is not None and self.why == "EXITED":
            self.why, self.message = verdict
        output = os.path.join(self.folder, "output")
        if self.why == "EXITED" and code != 0:
            self.message = self._program.remark() or (
                last_output(output, self._processes()) if code else ""
            )
        try:
            output_bytes = os.stat(output).st_size
        except OSError:
            output_bytes = 0
        return {
            "version": 1,
            "why": self.why,
            "exit_code": code,
            "signal": number,
            "message": self.message,
            "started_at": self._started[0],
            "ended_at": time.time(),
            "started_monotonic": self._started[1],
            "ended_monotonic": time.monotonic(),
            "user_s": self._program.cpu_s[0],
            "system_s": self._program.cpu_s[1],
            "max_rss_bytes": self._program.max_rss_bytes,
            "memory_peak_bytes": self._memory_peak_bytes(),
            "output_bytes": output_bytes,
        }

    def _processes(self) -> int:
        """Return the number of processes of its launcher, if it has one."""
        env = self.spec.get("env") or (self.spec.get("container") or {}).get("environment") or {}
        gpus = str(env.get("NSML_GPU_NUM", ""))
        return max(int(gpus), 1) if gpus.isdecimal() else 1

    def _memory_peak_bytes(self) -> int:
        """Return the highest measured peak; for processes between two looks, that of the largest one."""
        watched = self._watch.memory_peak_bytes if self._watch is not None else 0
        return max(watched, self._program.memory_peak_bytes, self._program.max_rss_bytes)

    @property
    def _run(self) -> str:
        return os.path.join(self.folder, "run")

    def _stop_order(self) -> tuple[str, float, float]:
        """Return the content of `stop.json`; a signal without it (a machine that shuts down) is an order too."""
        try:
            with open(os.path.join(self.folder, "stop.json"), "rb") as file:
                order = json.load(file)
            notice_s = float(order.get("notice_s", 0.0))
            return str(order["reason"]), float(order["grace_s"]), notice_s
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return "the shim received a request to stop", float(self.spec["grace_s"]), 0.0

    def _begin_stop(self, why: str, message: str, grace_s: float, notice_s: float = 0.0) -> None:
        """Give notice, if useful, and then `_terminate`; a second order may shorten both."""
        grace_s = max(grace_s, 0.0)
        if self._terminate_at is None:
            self.why, self.message, self._grace_s = why, message, grace_s
            if not (notice_s > 0 and save_notice.post(self._run, goes=True, reason=message)):
                notice_s = 0.0
            self._terminate_at = time.monotonic() + notice_s
        self._terminate_at = min(self._terminate_at, time.monotonic() + notice_s)
        self._grace_s = min(self._grace_s, grace_s)
        if self._kill_at is not None:
            self._kill_at = min(self._kill_at, time.monotonic() + grace_s)
        elif time.monotonic() >= self._terminate_at:
            self._terminate()

    def _terminate(self) -> None:
        self._kill_at = time.monotonic() + self._grace_s
        if self._grace_s > 0:
            self._program.terminate()

    def _warn(self) -> None:
        """Give notice of the time limit, so that work can be saved. A program that cannot save yet gets it once it can."""
        self._warn_at, words = None, self._limit_words()
        if self._terminate_at is not None:
            return
        goes = bool(self.spec.get("leaves_at_limit"))
        if not save_notice.post(self._run, goes=goes, reason=words):
            self._warn_at = time.monotonic() + _WARN_AGAIN_S
        elif goes:
            self.why, self.message, self._grace_s = "TIME_LIMIT", words, self.spec["grace_s"]
            self._terminate_at = self._limit_at

    def _limit_words(self) -> str:
        return f"the time limit of {self.spec['time_limit_s']:g} s"

    def _end_if_exceeded(self, excess: Excess | None) -> None:
        if excess is not None:
            self._begin_stop(*excess, 0.0)

    def _keep_limits(self) -> None:
        if time.monotonic() >= self._next_look_at():
            self._look()
        now = time.monotonic()
        if self._warn_at is not None and now >= self._warn_at:
            self._warn()
        if self._limit_at is not None and now >= self._limit_at:
            self._limit_at = None
            self._begin_stop("TIME_LIMIT", self._limit_words(), self.spec["grace_s"])
        if self._lost_in() == 0:
            silence = self.spec["lost_after_s"]
            grace_s = min(self.spec["grace_s"], silence / 2)
            self._begin_stop("LOST_AFTER", f"no contact for {silence:g} s", grace_s)
        if self._kill_at is None and self._terminate_at is not None and now >= self._terminate_at:
            self._terminate()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._program.kill()
            self._kill_at = time.monotonic() + 0.05  # again, for concurrent forks

    def _next_look_at(self) -> float:
        return self._look_at if self._watch is None else min(self._look_at, self._watch.next_at)

    def _look(self) -> None:
        """Check what is due by now, and only cheaply if nothing has run since the last look."""
        self._note_child()
        now = time.monotonic() + _TOGETHER_S
        is_still = self._stillness.look()
        if now >= self._look_at:
            if not is_still:
                self._end_if_exceeded(self._program.exceeded())
            self._look_at = time.monotonic() + _LOOK_S
        if self._watch is not None and now >= self._watch.next_at:
            self._end_if_exceeded(self._watch.look(is_still=is_still))

    def _lost_in(self) -> float | None:
        """Return seconds until silence means loss, 0 if it does; None without a limit."""
        lost_after: float | None = self.spec["lost_after_s"]
        if lost_after is None or self._kill_at is not None:
            return None
        stamp, now = self._contact_stamp(), _boot_time()
        if stamp != self._contact_mtime:
            self._contact_mtime, self._contact_changed = stamp, now
        # one look earlier, because a contact is noticed up to one look late
        grace: float = self.spec["grace_s"]
        spare = min(grace, lost_after / 2) + lost_after / _CONTACT_LOOKS
        return max(self._contact_changed + lost_after - spare - now, 0.0)

    def _contact_stamp(self) -> int:
        try:
            return os.stat(os.path.join(self.folder, "contact")).st_mtime_ns
        except OSError:
            return 0

    def _until_next_deadline(self) -> float:
        now = time.monotonic()
        ats = [self._next_look_at(), self._limit_at, self._warn_at]
        ats.append(self._terminate_at if self._kill_at is None else self._kill_at)
        waits = [at - now for at in ats if at is not None]
        lost_in = self._lost_in()
        if lost_in is not None:
            waits.append(min(lost_in, self.spec["lost_after_s"] / _CONTACT_LOOKS))
        return max(min(waits), 0.0)


def _take_secrets() -> dict[str, str]:
    """Return the variables on standard input, and close that. Raises OSError."""
    try:
        content = os.pread(0, os.fstat(0).st_size, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        return dict(json.loads(content))
    except (OSError, ValueError, TypeError):
        # Without the error's text: it might quote secrets.
        raise OSError("the secrets of the session did not come with it") from None


def _start_ticks() -> int:
    """Return when this process started, in clock ticks since boot: with the pid, its identity."""
    return int(content_of("/proc/self/stat").rpartition(b")")[2].split()[19])


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _claim(folder: str, claim: dict[str, object]) -> bool:
    """Create `shim.json` unless it exists; True if it is ours."""
    staged = os.path.join(folder, f".shim.json.{os.getpid()}")
    _write(staged, claim, durable=False)
    try:
        os.link(staged, os.path.join(folder, "shim.json"))
    except FileExistsError:
        return False
    finally:
        os.unlink(staged)
    return True


def _replace(folder: str, name: str, content: dict[str, object], *, durable: bool = False) -> None:
    staged = os.path.join(folder, f".{name}.{os.getpid()}")
    _write(staged, content, durable=durable)
    os.rename(staged, os.path.join(folder, name))
    if durable:
        disk_reserve.flush_names(folder)


def _write(path: str, content: dict[str, object], *, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    encoded = json.dumps(content).encode()
    try:
        if os.write(descriptor, encoded) != len(encoded):
            raise OSError("the disk took a part only")
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
