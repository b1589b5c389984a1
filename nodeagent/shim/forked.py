"""The program of a shim as processes of its own: fork, namespaces, signals, and exit status.

Standard library only: it runs in the shim. At level `namespace` the child is pid 1 of a root of its
own and starts the program; at levels `user` and `none` the child becomes the program. With an account
the program, and pid 1 of its root, run as that; the shim keeps its user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
import warnings  # noqa: F401 - os.execvpe imports it, when the interpreter may be out of sight

from nodeagent.shim import (
    last_reads,
    loopback,
    namespaces,
    process_limits,
    scripts,
    seccomp,
    visitor,
)
from nodeagent.shim.cgroups import PIDS, Entrance, Group
from nodeagent.shim.files import content_of
from nodeagent.shim.pasta import Pasta
from nodeagent.shim.watch import memory_excess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import NoReturn

    from nodeagent.shim.program import Outcome
    from nodeagent.shim.watch import Excess

WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, visitor.VISIT)
ORDERS = (signal.SIGTERM, signal.SIGINT)
START_FAILED_CODE = 127
_MOST_HALTS = 50
_DEFAULTED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
"""A program must not inherit ignored signals of this interpreter, or of the agent's shell."""


class Forked:
    """`Program` as a child of this process with all its descendants.

    With a control group of its own, all processes in it belong to it too, even detached ones.
    """

    def __init__(self, folder: str, spec: dict, network: int | None = None) -> None:  # type: ignore[type-arg]
        self.pid = 0
        self.cpu_s = [0.0, 0.0]
        self.max_rss_bytes = 0
        self.memory_peak_bytes = 0
        self._folder = folder
        self._spec = spec
        self._network = network
        self._pasta: Pasta | None = None
        self._has_first_process = bool(spec["namespace"])
        self._status: int | None = None
        self._report = -1
        wanted = spec.get("group")
        self._group = None if wanted is None else Group(wanted["base"], wanted["name"])
        self._is_bounded = self._group is not None and PIDS in self._group.controllers
        self._is_gone = False
        self._refused_forks: int | None = None

    def start(self) -> None:
        """Fork the program. Raises OSError."""
        self._enter_network()
        loopback.listen(self._spec)
        entrance = self._make_group()
        output = os.open(
            os.path.join(self._folder, "output"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        self._report, report = os.pipe2(os.O_CLOEXEC)
        gate: Sequence[int] = os.pipe2(os.O_CLOEXEC) if self._pasta is not None else ()
        try:
            spec = {**self._spec, "env": {**self._spec["env"], **self._spec["secrets"]}}
            self.pid = _fork_program(self._folder, spec, output, report, entrance, gate=gate)
            if self._pasta is not None:
                self._pasta.furnish()
                os.write(gate[1], b"!")
        finally:
            for descriptor in (output, report, *gate):
                os.close(descriptor)
            entrance.close()

    def is_running(self) -> bool:
        """Whether the program was started and has not ended."""
        self._reap()
        return bool(self.pid) and self._status is None

    def terminate(self) -> None:
        """SIGTERM to the program's group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL all processes; concurrent forks may survive."""
        if self.pid and self._status is None:
            self._signal(signal.SIGKILL)
        if not self._is_bounded:
            halt_descendants()
        if self._group is not None:
            self._note_refused_forks(self._group)
            self._group.kill()
        signal_all(descendants(os.getpid()), signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether no process of it is left; then its group is removed."""
        if not self._is_gone:
            if self._pasta is not None and not self.is_running():
                self._pasta.end()
            self._is_gone = self._reap() and not (self._group and self._group.members())
            if self._is_gone and self._group is not None:
                self._measure(self._group)
                # an ssh server and its programs may have had another parent to reap them
                self.cpu_s = list(max(self.cpu_s, self._group.cpu_s(), key=sum))
                self._note_refused_forks(self._group)
                self._group.remove()
        return self._is_gone

    def processes(self) -> list[int]:
        """Return its current pids without the first process and pasta: those are ours, and count for no limit."""
        found = children_of(os.getpid()) if self._group is None else self._group.members()
        ours = {self.pid} if self._has_first_process else set()
        if self._pasta is not None:
            ours.add(self._pasta.pid)
        return [pid for pid in found if pid not in ours]

    def exceeded(self) -> Excess | None:
        """Whether the kernel killed a process of it for memory."""
        group = self._group
        if group is None or self._is_gone:
            return None
        self._measure(group)
        excess = memory_excess(group, self._spec["group"]["memory_bytes"], self.memory_peak_bytes)
        if excess is not None:
            self.memory_peak_bytes = max(self.memory_peak_bytes, group.memory_peak())
        return excess

    def admit(self) -> None:
        """Fork a visitor, if the program runs; it is a descendant like all others. Raises OSError."""
        if not self.is_running():
            return
        group = self._group
        with contextlib.closing(visitor.Process(self.pid)) as first:
            entrance = Entrance() if group is None else group.open_entrance(cpus=None)
            visitor.fork(
                self._folder,
                self._spec,
                first,
                entrance,
                may_hand_over=self._is_bounded and not self._is_below,
            )

    @property
    def _is_below(self) -> bool:
        """Whether this process made a user namespace of its own for the program's network."""
        is_cut_off = self._spec.get("no_network") and os.geteuid() != 0
        return self._pasta is not None or bool(is_cut_off)

    def remark(self) -> str:
        """Return a hint for its user about a failure other than a stop."""
        times = self._refused_forks
        limit = self._spec["group"]["process_count"] if times else None
        if limit is None:
            return ""
        often = "once" if times == 1 else f"{times} times"
        return f"it reached its limit of {limit} processes, {often}; try --processes {2 * limit}"

    def _enter_network(self) -> None:
        """Join the program's network: it is also found by the pid of this process. Raises OSError."""
        if self._spec.get("no_network"):
            namespaces.no_network()
        elif self._network is not None:
            namespaces.enter_network(self._network)
            os.close(self._network)
            self._network = None
        elif self._spec.get("pasta"):
            self._pasta = Pasta(self._spec["pasta"])
            self._pasta.enter()
        elif self._spec.get("own_network"):
            raise OSError(errno.ENONET, "its own network does not exist")

    def _make_group(self) -> Entrance:
        """Create the group; return the child's entrance. Raises OSError."""
        if self._group is None:
            return Entrance()
        wanted = self._spec["group"]
        count = wanted["process_count"]
        if count is not None and self._has_first_process:
            count += 1
        self._group.make(memory_bytes=wanted["memory_bytes"], process_count=count)
        return self._group.open_entrance(cpus=wanted["cpus"])

    def _note_refused_forks(self, group: Group) -> None:
        """Read once, before the group is first killed: then it has no room, and refuses the last forks."""
        if self._refused_forks is None:
            self._refused_forks = group.refused_forks()

    def _measure(self, group: Group) -> None:
        self.memory_peak_bytes = max(self.memory_peak_bytes, group.memory_used())

    def outcome(self) -> Outcome:
        """Return how it ended; the child's report outweighs its own exit status."""
        status = self._status
        kind, text = self._said()
        if kind == "FAILED":
            return START_FAILED_CODE, None, ("START_FAILED", text)
        if kind == "STATUS":
            status = int(text)
        if status is None:
            return None, None, None
        code = os.waitstatus_to_exitcode(status)
        return (code, None, None) if code >= 0 else (None, -code, None)

    def release(self) -> None:
        """Do nothing: ended processes leave nothing."""

    def _said(self) -> tuple[str, str]:
        """Return kind and text of the child's report; empty without one."""
        if self._report < 0:
            return "", ""
        os.set_blocking(self._report, False)
        try:
            report = os.read(self._report, 65536).decode(errors="replace")
        except BlockingIOError:
            report = ""
        kind, _, text = report.partition("\n")[0].partition(" ")
        return kind, text

    def _reap(self) -> bool:
        """Reap ended children; True when no child is left."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if self._pasta is not None and self._pasta.reaped(pid):
                continue
            self.cpu_s[0] += used.ru_utime
            self.cpu_s[1] += used.ru_stime
            self.max_rss_bytes = max(self.max_rss_bytes, used.ru_maxrss * 1024)
            if pid == self.pid:
                self._status = status

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            if self._has_first_process:
                os.kill(self.pid, number)  # it forwards SIGTERM
            else:
                os.killpg(self.pid, number)


def _fork_program(
    folder: str,
    spec: dict,  # type: ignore[type-arg]
    output: int,
    report: int,
    entrance: Entrance,
    *,
    gate: Sequence[int] = (),
) -> int:
    """Fork the child that becomes the program or, in namespaces, its pid 1; return its pid. Raises OSError.

    With a `gate`, a pipe, pid 1 starts the program when something was written to it.
    """
    shim, isolation = os.getpid(), spec["namespace"]
    if isolation:
        child = namespaces.fork(with_pid=isolation["pid"], account=spec.get("account"))
    else:
        child = os.fork()
    if child:
        if not isolation:
            # in both processes, so that neither has to wait
            with contextlib.suppress(OSError):
                os.setpgid(child, child)
        return child
    try:
        if isolation:
            namespaces.settle(is_required=isolation["pid"])
        namespaces.end_with(shim)
        entrance.join()
        _prepare_streams(output)
        process_limits.set_of(spec)
        if not isolation:
            if spec.get("account"):
                namespaces.drop_privileges(spec.get("account"))
                namespaces.end_with(shim)
            entrance.limit()
            _exec_program(spec, report)
        # the program of any user must pass the folders that lead into its root
        os.umask(0o022)
        namespaces.enter_root(os.path.join(folder, "root"), isolation["mounts"])
        if gate:
            os.close(gate[1])
            if not os.read(gate[0], 1):
                os._exit(START_FAILED_CODE)  # the shim reports why
        _be_first_process(spec, report, shim, entrance)
    except BaseException as error:  # noqa: BLE001 - a forked child must not return to its caller
        _report(report, "FAILED", str(error))
    os._exit(START_FAILED_CODE)


def halt_descendants() -> None:
    """SIGSTOP all of them before killing any: otherwise new forks replace the killed ones."""
    with _first_in_line():
        halted: set[int] = set()
        for _ in range(_MOST_HALTS):
            found = set(descendants(os.getpid()))
            if found <= halted:
                return
            signal_all(found - halted, signal.SIGSTOP)
            halted = found


@contextlib.contextmanager
def _first_in_line() -> Iterator[None]:
    """Run with real-time priority over programs meanwhile, if allowed (root).

    Among thousands of forking processes this one would hardly be scheduled.
    """
    usual = os.sched_param(0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, usual)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal existing processes; those that became another user (sudo) cannot be signalled, and are waited for."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _prepare_streams(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _exec_program(spec: dict, report: int) -> NoReturn:  # type: ignore[type-arg]
    """Execute the program; on failure report why and exit."""
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
    """Start the program in a group of its own, without a copy of this process; return its pid.

    It would outlive us except in our pid namespace: no parent-death signal can be set.
    """
    os.umask(0o022)
    try:
        os.chdir(spec["cwd"])
        os.putenv("PATH", spec["env"].get("PATH", os.defpath))  # posix_spawnp searches it
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
    """Report why the program did not start, and exit."""
    reason = str(error)
    if isinstance(error, OSError):
        path = spec["env"].get("PATH", os.defpath)
        reason = scripts.why_not_started(spec["argv"][0], path, error.errno or 0)
    _report(report, "FAILED", f"cannot start {spec['argv'][0]!r}: {reason}")
    os._exit(START_FAILED_CODE)


def _be_first_process(spec: dict, report: int, shim: int, entrance: Entrance) -> NoReturn:  # type: ignore[type-arg]
    """Run as pid 1 of the namespace: start the program, forward SIGTERM, reap, report, exit.

    Its exit makes the kernel kill the rest of the namespace before the shim can reap it.
    """
    namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-init")
    namespaces.drop_privileges(spec.get("account"))
    namespaces.prctl(namespaces.PR_SET_DUMPABLE, 0)
    namespaces.end_with(shim)
    seccomp.load()
    entrance.limit()
    program = _spawn_program(spec, report) if spec["namespace"]["pid"] else os.fork()
    if program == 0:
        namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
        _exec_program(spec, report)
    # in both processes: an order before the program has a group would be lost
    with contextlib.suppress(OSError):
        os.setpgid(program, program)
    namespaces.close_all_but(report)
    while True:
        received = signal.sigwaitinfo(WATCHED)
        if received.si_signo in ORDERS:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program, signal.SIGTERM)
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == program:
                _report(report, "STATUS", str(status))
                _await_followers(spec["env"].get("NSML_RUN_DIR", ""))
                os._exit(0)
            if pid == 0:
                break


def _await_followers(run: str) -> None:
    """Return when the followers of the ended program have ended, or after a while; the shim may kill us meanwhile."""
    ends_at = time.monotonic() + last_reads.LONGEST_S
    while run and last_reads.remain(run) and time.monotonic() < ends_at:
        signal.sigtimedwait((signal.SIGCHLD,), last_reads.PAUSE_S)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _report(descriptor: int, kind: str, text: str) -> None:
    """Send one line to the shim, which reads only the first."""
    line = f"{kind} {text}".replace("\n", " ")[:1000]
    with contextlib.suppress(OSError):
        os.write(descriptor, line.encode(errors="replace") + b"\n")


def descendants(ancestor: int) -> list[int]:
    """Return every process below `ancestor`, from /proc.

    Including zombies: a process that lost only its first thread looks like one, and lives.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = content_of(f"/proc/{name}/stat").rpartition(b")")[2].split()
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


def children_of(ancestor: int) -> list[int]:
    """Return every process below `ancestor` from the kernel's lists of children, without reading all others.

    Concurrent forks can be missed; use `descendants` for a complete list.
    """
    found: list[int] = []
    todo = [ancestor]
    while todo:
        pid = todo.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                words = content_of(f"/proc/{pid}/task/{thread}/children").split()
                below = [int(word) for word in words]
            except FileNotFoundError:
                if pid == ancestor:
                    return descendants(ancestor)  # a kernel without these lists
                continue
            except OSError:
                continue
            found += below
            todo += below
    return found
