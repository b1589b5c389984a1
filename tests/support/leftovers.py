"""A pytest plugin: whatever ends a run of the tests, nothing of it stays on the machine.

Each run has a folder that holds all of its temporary files, and every program that it starts inherits
`MARK`, and a limit that shims keep, too, which get an empty environment. A guardian, a process of its own in a session of its own, waits for the end of the run: in order,
by Ctrl-C, by SIGTERM, or by SIGKILL, which no code of the run would survive. It then ends the processes,
containers, mounts and network namespaces of the run and removes its folder. After a run that ended in
order, anything it finds is a defect of a test: the run fails and names it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

import pytest

from nodeagent.network.session_network import tidy

MARK = "TEST_RUN_FOLDER"
"""Names the run's folder. Not NSML_...: what tests start often inherits no setting of ours."""
PREFIX = "nt-"
KEPT_FOLDERS = 2
"""So many folders of failed runs stay for a look."""
_ENDS_BY_ITSELF_S = 10.0
_ENDS_IN_ORDER_S = 5.0
_LONGEST_S = 60.0
_ROOT = Path(__file__).parents[2]


# -- in pytest's main process --------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give the run its folder and its guardian; workers of pytest-xdist inherit both."""
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o1777)  # as /tmp: programs of other accounts pass and write here, too
    for name in (MARK, "TMPDIR"):
        os.environ[name] = str(folder)
    _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
    resource.setrlimit(resource.RLIMIT_RTTIME, (_limit_of(folder), most))
    tempfile.tempdir = None
    if config.option.basetemp is None:
        config.option.basetemp = str(folder / "t")
    config.stash[_GUARDIAN] = _Guardian(folder)
    signal.signal(signal.SIGTERM, _interrupt)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Fail a run that passed and left something."""
    yield
    guardian = session.config.stash.get(_GUARDIAN, None)
    if guardian is None:
        return
    del session.config.stash[_GUARDIAN]
    has_failed = session.exitstatus == pytest.ExitCode.TESTS_FAILED
    left = guardian.finish(keep=has_failed)
    if left and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.get_terminal_writer().line("\nleft behind by tests, and removed:", red=True)
        for line in left:
            session.config.get_terminal_writer().line(f"  {line}")
    if has_failed:
        session.config.get_terminal_writer().line(f"\nfiles of this run: {guardian.folder}")


def _interrupt(*_: object) -> None:
    """SIGTERM ends a run as Ctrl-C does: fixtures are torn down."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise KeyboardInterrupt


class _Guardian:
    """The process that outlives the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {
            key: value for key, value in os.environ.items() if key not in {MARK, "TMPDIR"}
        }
        # Held as long as the guardian lives: the folder is in use.
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.leftovers", str(folder), str(os.getpid())],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[lock],
            text=True,
        )
        os.close(lock)

    def finish(self, *, keep: bool) -> list[str]:
        """Have all that is left ended and removed; what that was, a line each."""
        answer, _ = self._process.communicate("keep\n" if keep else "remove\n")
        return json.loads(answer or "[]")


_GUARDIAN = pytest.StashKey[_Guardian]()


# -- in the guardian -----------------------------------------------------------------------------


def guard(folder: Path, owner: int) -> None:
    """Wait for the end of the run whose main process is `owner`; then end what is left of it.

    The standard output has the answer and nothing else: what is called here logs to it, too.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
    resource.setrlimit(resource.RLIMIT_RTTIME, (most, most))  # it is not of the run
    _forget_old_folders(folder)
    try:
        process = os.pidfd_open(owner)
    except ProcessLookupError:
        ready, order = [], ""
    else:
        # The pipe alone would not do: a forked child of the run may hold its other end open.
        ready, _, _ = select.select([process, sys.stdin], [], [])
        order = sys.stdin.readline().strip() if sys.stdin in ready else ""
    spared = {os.getpid(), owner} if order else {os.getpid()}
    if order:
        _wait(lambda: not _processes(folder, spared), _ENDS_BY_ITSELF_S)
    left = [*end_processes(folder, spared), *remove_containers(folder), *remove_places(folder)]
    if order != "keep":
        _remove(folder)
    if os.geteuid() == 0:
        tidy()  # an agent that was killed leaves its networks to the next one
    if order:
        print(json.dumps(left), file=answers, flush=True)


def end_processes(folder: Path, spared: Iterable[int]) -> list[str]:
    """End all processes of the run, in order where they can; the command line of each."""
    ends_at = time.monotonic() + _LONGEST_S
    found: dict[int, str] = {}
    first = True
    while (living := _processes(folder, spared)) and time.monotonic() < ends_at:
        found |= living
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM if first else signal.SIGKILL)
        _wait(lambda: not _processes(folder, spared), _ENDS_IN_ORDER_S if first else 0.2)
        first = False
    return [f"process {pid}: {command}" for pid, command in sorted(found.items())]


def _processes(folder: Path, spared: Iterable[int]) -> dict[int, str]:
    """The command lines of the living processes of a run, by pid."""
    parents, marked = {}, set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            pid = int(entry.name)
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                parents[pid] = int(parent)
                if _is_of(entry, folder):
                    marked.add(pid)
    spared = set(spared)
    of_run = {pid for pid in parents if marked.intersection(_line_of(pid, parents))} - spared
    return {pid: _command(pid) for pid in of_run}


def _line_of(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """The process and those it comes from."""
    while pid in parents:
        yield pid
        pid = parents[pid]


def _limit_of(folder: Path) -> int:
    """The run's limit of real-time work without a pause, in microseconds: years, and no other run's."""
    return 10**15 + int.from_bytes(hashlib.sha256(bytes(folder)).digest()[:6])


def _is_of(entry: Path, folder: Path) -> bool:
    """Whether a process has the run's mark or limit, works in its folder, or has a root made of it."""
    below = f"{folder}/".encode()
    with contextlib.suppress(OSError):
        if f" {_limit_of(folder)} ".encode() in (entry / "limits").read_bytes():
            return True
    with contextlib.suppress(OSError):
        if f"{MARK}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
            return True
    for link in ("cwd", "exe"):
        with contextlib.suppress(OSError):
            if bytes((entry / link).readlink()).startswith(below):
                return True
    with contextlib.suppress(OSError):
        if (entry / "ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink():
            # Not where things are mounted: a namespace of somebody else's copies the machine's mounts.
            lines = (entry / "mountinfo").read_bytes().splitlines()
            return any(f"/{folder.name}/".encode() in line.split()[3] for line in lines)
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""


def remove_containers(folder: Path) -> list[str]:
    """Remove the containers of agents whose data was in the run's folder; the name of each."""
    removed = []
    # os.walk passes over what it cannot list: some tests make paths that no call takes.
    places = [Path(path) for path, _, files in os.walk(folder) if "engine.mark" in files]
    marks = [(place / "engine.mark").read_text().strip() for place in places]
    for mark in marks if shutil.which("docker") else []:
        listed = _output("docker", "ps", "-aq", "--filter", f"label=nsml.agent={mark}").split()
        for name in listed:
            _output("docker", "rm", "--force", "--volumes", name)
            removed.append(f"container {name}")
    return removed


def remove_places(folder: Path) -> list[str]:
    """Unmount what the run mounted and delete its network namespaces; the name of each."""
    removed = []
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4] for line in lines]
    for place in reversed([one for one in mounts if one.startswith(f"{folder}/")]):
        _output("umount", "--lazy", place)
        removed.append(f"mount {place}")
    for namespace in sorted(Path("/run/netns").glob(f"{folder.name}-*")):
        _output("ip", "netns", "delete", namespace.name)
        removed.append(f"network namespace {namespace.name}")
    return removed


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout


def _forget_old_folders(current: Path) -> None:
    """Remove this account's folders of runs that are over, but for the newest few."""
    over = []
    for path in current.parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # a run beside this one removes its own
            facts = path.stat()
            if path != current and facts.st_uid == os.geteuid() and not _is_in_use(path):
                over.append((facts.st_mtime, path))
    for _, path in sorted(over)[:-KEPT_FOLDERS]:
        _remove(path)


def _is_in_use(folder: Path) -> bool:
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _remove(folder: Path) -> None:
    """Also what was made read-only."""
    if os.geteuid() != 0:
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                Path(path).chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _wait(condition: Callable[[], bool], longest_s: float) -> None:
    ends_at = time.monotonic() + longest_s
    while not condition() and time.monotonic() < ends_at:
        time.sleep(0.05)


if __name__ == "__main__":
    guard(Path(sys.argv[1]), int(sys.argv[2]))
