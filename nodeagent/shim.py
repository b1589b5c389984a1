"""The parent of one replica: starts it, outlives the agent, and writes down how it ended.

Standard library only, single-threaded, started by `shim_command` or forked by the zygote. It reads
`spec.json` of the replica folder (see `folders.py`), and promises:

- Exactly one shim per folder runs anything: `shim.json` is the claim, made by a hard link.
- The program is a child in a process group of its own, its output appended to the file `output`.
- `exit.json` appears once, atomically and on disk, after every process of the replica is gone: the
  agent frees devices on its word.
- SIGTERM with `stop.json` beside it: SIGTERM to the program's group, then after `grace_s` SIGKILL
  to everything. A second order may only shorten the first.
- The time limit is kept on the monotonic clock. `lost_after_s` is the silence of `contact`, measured
  as time since its mtime last changed (a stepped wall clock changes nothing; time asleep counts), and
  everything is gone by then: stopping begins `grace_s` earlier.
- When the shim is killed, so is the program (PR_SET_PDEATHSIG).

`why` of the exit record: EXITED, STOPPED, TIME_LIMIT, LOST_AFTER, START_FAILED, SHIM_LOST.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
import warnings  # noqa: F401 - os.execvpe imports it, when the interpreter may be out of sight

from nodeagent import namespaces, reserve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ORDERS = (signal.SIGTERM, signal.SIGINT)
_CONTACT_LOOKS = 20
"""How often `contact` is looked at within `lost_after_s`."""
_START_FAILED_CODE = 127
_DEFAULTED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
"""A program must not inherit which signals this interpreter, or the agent's shell, ignores."""


def main() -> NoReturn:
    """Run the replica whose folder is the last argument."""
    run(sys.argv[-1])


def run(folder: str) -> NoReturn:
    """Be the shim of `folder` until its replica has ended; the caller is a session leader."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    # before the claim: until it, a second shim for the same folder may be on its way too
    with open(os.path.join(folder, "spec.json"), "rb") as file:
        spec = json.load(file)
    claim = {"pid": os.getpid(), "start_ticks": _start_ticks(), "boot_id": spec["boot_id"]}
    if not _claim(folder, claim):
        os._exit(0)
    shim = Shim(folder, spec, claim)
    try:
        shim.start()
        shim.supervise()
    except Exception as error:  # noqa: BLE001 - the top of a process whose word frees devices
        shim.why, shim.message = "SHIM_LOST", f"the shim failed: {error!r}"
    shim.end_everything()
    shim.write_exit_record()
    os._exit(0)


class Shim:
    """One replica, from its start to its exit record."""

    def __init__(self, folder: str, spec: dict, claim: dict) -> None:  # type: ignore[type-arg]
        self.folder = folder
        self.spec = spec
        self.claim = claim
        self.why = "EXITED"
        self.message = ""
        self._child = 0
        self._status: int | None = None
        self._report = -1
        self._has_first_process = bool(spec["namespace"])
        self._started = (time.time(), time.monotonic())
        self._cpu_s = [0.0, 0.0]
        self._max_rss_bytes = 0
        self._kill_at: float | None = None
        limit = spec["time_limit_s"]
        self._limit_at = None if limit is None else time.monotonic() + limit
        self._contact_mtime = self._contact_stamp()
        self._contact_changed = _boot_time()

    def start(self) -> None:
        """Fork the program; when this returns, its pid is in `shim.json`."""
        reserve.take(self.folder)
        namespaces.prctl(namespaces.PR_SET_CHILD_SUBREAPER, 1)
        namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-shim")
        output = os.open(
            os.path.join(self.folder, "output"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        self._report, report = os.pipe2(os.O_CLOEXEC)
        if os.path.exists(os.path.join(self.folder, "stop.json")):
            self.why, self.message = "STOPPED", self._stop_order()[0]
            return
        isolation = self.spec["namespace"]
        try:
            if isolation:
                namespaces.new_user_and_pid(with_pid=isolation["pid"])
            self._child = _fork_program(self.folder, self.spec, output, report)
        except OSError as error:
            self.why, self.message = "START_FAILED", str(error)
        os.close(output)
        os.close(report)
        if self._child:
            _replace(self.folder, "shim.json", {**self.claim, "child": self._child})

    def supervise(self) -> None:
        """Return when the program has ended, stopped by an order or a limit or by itself."""
        while self._child and self._status is None:
            timeout = self._until_next_deadline()
            received: signal.struct_siginfo | None
            if timeout is None:
                received = signal.sigwaitinfo(_WATCHED)
            else:
                received = signal.sigtimedwait(_WATCHED, timeout)
            # first of all: an order that comes behind the program's own end is not its cause
            self._reap()
            if self._status is None:
                if received is not None and received.si_signo in _ORDERS:
                    self._begin_stop("STOPPED", *self._stop_order())
                self._keep_limits()

    def end_everything(self) -> None:
        """Kill what the program left behind; return when no process of the replica is alive."""
        pause = 0.005
        while not self._reap():
            for pid in _descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait((signal.SIGCHLD,), pause)
            pause = min(pause * 2, 1.0)

    def write_exit_record(self) -> None:
        """Write `exit.json`, when the disk takes it; without its folder there is nobody to tell."""
        record = self._exit_record()
        while os.path.isdir(self.folder) and not self._is_written(record):
            time.sleep(1.0)

    def _is_written(self, record: dict[str, object]) -> bool:
        """Write the record, on a full disk into the room that was taken; whether that worked."""
        with contextlib.suppress(OSError):
            _replace(self.folder, "exit.json", record, durable=True)
            return True
        with contextlib.suppress(OSError):
            reserve.spend(self.folder, "exit.json", record)
            return True
        return False

    def _exit_record(self) -> dict[str, object]:
        code, number = self._outcome()
        try:
            output_bytes = os.stat(os.path.join(self.folder, "output")).st_size
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
            "user_s": self._cpu_s[0],
            "system_s": self._cpu_s[1],
            "max_rss_bytes": self._max_rss_bytes,
            "output_bytes": output_bytes,
        }

    def _outcome(self) -> tuple[int | None, int | None]:
        """Exit code and signal of the program itself; what the child reported outweighs its own."""
        status = self._status
        if self._report >= 0:
            os.set_blocking(self._report, False)
            try:
                report = os.read(self._report, 65536).decode(errors="replace")
            except BlockingIOError:
                report = ""  # nothing was started, the other end is our own
            kind, _, text = report.partition("\n")[0].partition(" ")
            if kind == "FAILED" and self.why != "STOPPED":
                self.why, self.message = "START_FAILED", text
                return _START_FAILED_CODE, None
            if kind == "STATUS":
                status = int(text)
        if status is None:
            return None, None
        code = os.waitstatus_to_exitcode(status)
        return (code, None) if code >= 0 else (None, -code)

    def _reap(self) -> bool:
        """Collect what has ended; True when there is no child left at all."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self._cpu_s[0] += used.ru_utime
            self._cpu_s[1] += used.ru_stime
            self._max_rss_bytes = max(self._max_rss_bytes, used.ru_maxrss * 1024)
            if pid == self._child:
                self._status = status

    def _stop_order(self) -> tuple[str, float]:
        """What `stop.json` says; a signal without it (a machine that shuts down) is an order too."""
        try:
            with open(os.path.join(self.folder, "stop.json"), "rb") as file:
                order = json.load(file)
            return str(order["reason"]), float(order["grace_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return "the shim was told to stop", float(self.spec["grace_s"])

    def _begin_stop(self, why: str, message: str, grace_s: float) -> None:
        kill_at = time.monotonic() + max(grace_s, 0.0)
        if self._kill_at is None:
            self.why, self.message = why, message
            self._kill_at = kill_at
            if grace_s > 0:
                self._signal_program(signal.SIGTERM)
        self._kill_at = min(self._kill_at, kill_at)

    def _signal_program(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._has_first_process:
                os.kill(self._child, number)  # it passes SIGTERM on
            else:
                os.killpg(self._child, number)

    def _keep_limits(self) -> None:
        now = time.monotonic()
        if self._limit_at is not None and now >= self._limit_at:
            limit = self.spec["time_limit_s"]
            self._limit_at = None
            self._begin_stop("TIME_LIMIT", f"the time limit of {limit:g} s", self.spec["grace_s"])
        if self._lost_in() == 0:
            silence = self.spec["lost_after_s"]
            grace_s = min(self.spec["grace_s"], silence / 2)
            self._begin_stop("LOST_AFTER", f"no contact for {silence:g} s", grace_s)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal_program(signal.SIGKILL)
            for pid in _descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._kill_at = time.monotonic() + 0.05  # again, for what was forked meanwhile

    def _lost_in(self) -> float | None:
        """Seconds until silence means loss, 0 when it does; None when nothing watches."""
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

    def _until_next_deadline(self) -> float | None:
        now = time.monotonic()
        waits = [at - now for at in (self._limit_at, self._kill_at) if at is not None]
        lost_in = self._lost_in()
        if lost_in is not None:
            waits.append(min(lost_in, self.spec["lost_after_s"] / _CONTACT_LOOKS))
        return max(min(waits), 0.0) if waits else None


def _fork_program(folder: str, spec: dict, output: int, report: int) -> int:  # type: ignore[type-arg]
    """Fork the child that becomes the program or, in namespaces, its pid 1; give its pid."""
    shim = os.getpid()
    child = os.fork()
    if child:
        if not spec["namespace"]:
            # in both processes, so that neither has to wait for the other
            with contextlib.suppress(OSError):
                os.setpgid(child, child)
        return child
    try:
        namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
        # a parent outside our pid namespace reads as 0
        if os.getppid() not in (shim, 0):
            os._exit(_START_FAILED_CODE)
        _prepare_streams(output)
        # the agent's own limit is higher than select() can count
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spec["open_files"], most))
        if not spec["namespace"]:
            _exec_program(spec, report)
        namespaces.enter_root(os.path.join(folder, "root"), spec["namespace"]["mounts"])
        _be_first_process(spec, report)
    except BaseException as error:  # noqa: BLE001 - a forked child must not return to its caller
        _report(report, "FAILED", str(error))
    os._exit(_START_FAILED_CODE)


def _prepare_streams(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # user code is what the machine should sacrifice when memory runs out
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def _exec_program(spec: dict, report: int) -> NoReturn:  # type: ignore[type-arg]
    """Become the program; on failure report why and exit."""
    os.setpgid(0, 0)
    for number in _DEFAULTED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    try:
        os.chdir(spec["cwd"])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606
    except (OSError, ValueError) as error:
        _not_started(spec, report, error)


def _spawn_program(spec: dict, report: int) -> int:  # type: ignore[type-arg]
    """Start the program in a group of its own, without a copy of this process; give its pid.

    It would outlive us anywhere but in a pid namespace of ours: nothing can be set to end it.
    """
    os.umask(0o022)
    try:
        os.chdir(spec["cwd"])
        os.putenv("PATH", spec["env"].get("PATH", os.defpath))  # where the program is looked for
        return os.posix_spawnp(
            spec["argv"][0],
            spec["argv"],
            spec["env"],
            setpgroup=0,
            setsigmask=(),
            setsigdef=_DEFAULTED,
        )
    except (OSError, ValueError) as error:
        _not_started(spec, report, error)


def _not_started(spec: dict, report: int, error: OSError | ValueError) -> NoReturn:  # type: ignore[type-arg]
    """Report why the program does not run, and exit."""
    reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
    _report(report, "FAILED", f"cannot start {spec['argv'][0]!r}: {reason}")
    os._exit(_START_FAILED_CODE)


def _be_first_process(spec: dict, report: int) -> NoReturn:  # type: ignore[type-arg]
    """Be pid 1 of the namespace: start the program, pass SIGTERM on, reap, report, exit.

    Its exit makes the kernel kill all that is left in the namespace before the shim can reap it.
    """
    namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-init")
    namespaces.prctl(namespaces.PR_SET_DUMPABLE, 0)
    namespaces.drop_privileges()
    program = _spawn_program(spec, report) if spec["namespace"]["pid"] else os.fork()
    if program == 0:
        namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
        _exec_program(spec, report)
    # in both processes: an order that comes before the program has a group would be lost
    with contextlib.suppress(OSError):
        os.setpgid(program, program)
    close_all_but(report)
    while True:
        received = signal.sigwaitinfo(_WATCHED)
        if received.si_signo in _ORDERS:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program, signal.SIGTERM)
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == program:
                _report(report, "STATUS", str(status))
                os._exit(0)
            if pid == 0:
                break


def close_all_but(*kept: int) -> None:
    """Close every descriptor of this process that is not in `kept`, standard streams included."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _report(descriptor: int, kind: str, text: str) -> None:
    """Tell the shim, in one line; of several lines it believes the first."""
    line = f"{kind} {text}".replace("\n", " ")[:1000]
    with contextlib.suppress(OSError):
        os.write(descriptor, line.encode(errors="replace") + b"\n")


def _descendants(ancestor: int) -> list[int]:
    """Every process below `ancestor`, as /proc shows them.

    Zombies too: what lost only its first thread looks like one, and lives.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = [ancestor]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _start_ticks() -> int:
    """When this process started, in clock ticks since boot: with the pid, who it is."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _claim(folder: str, claim: dict[str, object]) -> bool:
    """Make `shim.json` unless it is there already; True when it is ours."""
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
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
