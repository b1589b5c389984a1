"""What a shim runs, as a container: made, started, watched and removed beside it.

Standard library only: it runs in the shim. The engine only starts the container and says at the end
how it ended. That it has ended is known by a pidfd of its first process, and signals go to its
processes directly: an engine that restarts, hangs or breaks a stream changes nothing.

A second process, the keeper, wakes the shim at the container's end, and ends the container when the
shim is killed. It is there before the container, so that none starts which nobody keeps.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

from nodeagent.engine.wire import Container, Refused
from nodeagent.shim import namespaces
from nodeagent.shim.cgroups import group_of_process
from nodeagent.shim.watch import OUT_OF_MEMORY, memory_excess, memory_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from nodeagent.shim.cgroups import Group
    from nodeagent.shim.shim import Outcome
    from nodeagent.shim.watch import Excess

START_FAILED_CODE = 127
_SIGNALLED = 128
"""A first process that passes on how its child ended says `128 + signal`, as shells do."""
_SIGNALS = frozenset(range(1, 65))
SAID = ".said"
"""Where, in run/, the first program in the container says that it begins, or why it cannot."""
BEGUN = "begun"
SECRETS = ".secrets"
"""A named pipe in run/, through which the first program gets secret variables: no file, no engine
and no image ever holds them."""
FIRST_PROGRAM = (
    "if [ -p /nsml/.secrets ]; then . /nsml/.secrets;"
    ' if [ "$nsml_given" != all ]; then echo "the secrets did not come with it" >/nsml/.said; exit 127; fi;'
    " unset nsml_given; fi;"
    'if command -v "$1" >/dev/null 2>&1; then echo begun >/nsml/.said; exec "$@" >>/.nsml/output 2>&1; fi;'
    "echo \"cannot start '$1': the image has no such program\" >/nsml/.said; exit 127"
)
"""A script for /bin/sh: its arguments become the program, whose output the host keeps as bytes."""
_BEGINS_WITHIN_S = 10.0
_GIVE_UP_S = 600.0
"""How long an engine is asked how a container ended of which nothing is left."""
_KEEP_ASKING_S = 3600.0
_LONGEST_PAUSE_S = 5.0


class Contained:
    """`shim.Program` as a container of an engine on this machine."""

    def __init__(self, folder: str, spec: dict) -> None:  # type: ignore[type-arg]
        plan = spec["container"]
        self.pid = 0
        self.cpu_s = [0.0, 0.0]
        self.max_rss_bytes = 0
        self.memory_peak_bytes = 0
        self._group: Group | None = None
        self._folder = folder
        self._spec = spec
        self._config = plan["config"]
        self._image = plan["image"]
        self._container = Container(plan["socket"], plan["api"], plan["name"])
        self._pidfd = -1
        self._keeper = 0
        self._channel: socket.socket | None = None
        self._is_asked_for = False
        self._may_start_yet = False
        self._ended_at: float | None = None
        self._state: dict | None = None  # type: ignore[type-arg]
        self._is_known = False

    def start(self) -> None:
        """Make the container and start it. Raises OSError."""
        self._keep()
        self._is_asked_for = True
        pipe = self._make_pipe() if self._spec["secrets"] else None
        self._container.create(self._config)
        self._may_start_yet = True
        try:
            self._container.start()
        except Refused as error:
            self._may_start_yet = False
            raise OSError(_start_refusal(str(error), self._image)) from error
        self._may_start_yet = False
        self._hold()
        if pipe is not None:
            try:
                self._give_secrets(pipe)
            except OSError:
                self.kill()
                raise
        self._await_beginning()

    def is_running(self) -> bool:
        """Whether the container was started and has not ended."""
        if self._pidfd < 0 or _has_ended(self._pidfd):
            return False
        if _reaped(self._keeper):
            self._keep()
        return True

    def terminate(self) -> None:
        """SIGTERM to the first process, which passes it on to the program's group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the first process: the kernel then ends all that is in the container."""
        if self._pidfd >= 0:
            self._signal(signal.SIGKILL)
        elif self._is_asked_for:
            # Its start was not answered: it may run, and only the engine knows which it is.
            with contextlib.suppress(OSError):
                self._container.remove()

    def is_gone(self) -> bool:
        """Whether nothing of it is left, and how it ended is known or will never be."""
        if self._pidfd >= 0 and not _has_ended(self._pidfd):
            return False
        if not self._is_known:
            self._is_known = self._learn()
        if self._is_known:
            self._end_keeper()
        return self._is_known

    def outcome(self) -> Outcome:
        """How it ended, as the engine says."""
        state = self._state
        if self._pidfd < 0:
            return None, None, None
        if state is None:
            return None, None, ("SHIM_LOST", "nobody knows how the container ended: it was removed")
        code = int(state.get("ExitCode", 0))
        if code == START_FAILED_CODE and (said := self._said()) != BEGUN:
            reason = said or f"image {self._image} cannot start programs by its /bin/sh"
            return START_FAILED_CODE, None, ("START_FAILED", reason)
        verdict = None
        if state.get("OOMKilled") and code != 0:
            limit = self._memory_limit() or 0
            self.memory_peak_bytes = max(self.memory_peak_bytes, limit)
            verdict = (OUT_OF_MEMORY, memory_message(self.memory_peak_bytes, limit))
        number = code - _SIGNALLED
        if number in _SIGNALS:
            return None, number, verdict
        return code, None, verdict

    def release(self) -> None:
        """Remove the container, whose end is written down; the agent removes what is left."""
        if self._is_asked_for:
            with contextlib.suppress(OSError):
                self._container.remove()

    def processes(self) -> Sequence[int]:
        """Those in its control group, where that can be seen."""
        return [] if self._group is None else self._group.members()

    def exceeded(self) -> Excess | None:
        """Whether the kernel killed something of it for memory: the rest is then ended with it."""
        group = self._group
        if group is None or self._pidfd < 0:
            return None
        self.memory_peak_bytes = max(self.memory_peak_bytes, group.memory_used())
        excess = memory_excess(group, self._memory_limit(), self.memory_peak_bytes)
        if excess is not None:
            self.memory_peak_bytes = max(self.memory_peak_bytes, group.memory_peak())
        return excess

    def remark(self) -> str:
        """Nothing: how often its group refused something is gone with it."""
        return ""

    def _memory_limit(self) -> int | None:
        return self._config["HostConfig"].get("Memory") or None

    def _learn(self) -> bool:
        """Ask the engine how it ended; False: ask again."""
        if not self._is_asked_for:
            return True
        now = time.monotonic()
        if self._ended_at is None:
            self._ended_at = now
        try:
            found = self._container.inspect()
        except OSError:
            # Without a pidfd nobody but the engine knows whether it runs.
            return self._pidfd >= 0 and now - self._ended_at > _GIVE_UP_S
        if found is None or self._may_start_yet:
            # an engine may still come to an order that it did not answer
            return found is None
        state = found["State"]
        if state.get("Running") or state.get("Restarting"):
            if self._pidfd < 0:
                return False
            # the engine has not noticed yet
            return now - self._ended_at > _GIVE_UP_S
        self._state = state
        return True

    def _hold(self) -> None:
        """Bind this process and the keeper to the container's first process. Raises OSError."""
        while True:
            found = self._container.inspect()
            pid = _pid_of(found)
            try:
                pidfd = os.pidfd_open(pid) if pid else _ended_pidfd()
            except ProcessLookupError:
                continue  # it has just ended, and the engine will know in a moment
            if found is None or pid == 0 or _is_of_container(pid, str(found["Id"])):
                break
            is_over = _has_ended(pidfd)
            os.close(pidfd)
            if not is_over and pid == _pid_of(self._container.inspect()):
                raise OSError("the engine's processes are not to be seen from here")
        self.pid, self._pidfd = pid, pidfd
        # of a first process that has just ended the number may be another's by now
        group = group_of_process(pid) if pid else None
        self._group = None if _has_ended(pidfd) else group
        self._tell_keeper()

    def _make_pipe(self) -> str:
        """The pipe, for whoever the program runs as. Raises OSError."""
        run = os.path.join(self._folder, "run")
        path = os.path.join(run, SECRETS)
        os.mkfifo(path, 0o600)
        owner = os.stat(run)
        os.chown(path, owner.st_uid, owner.st_gid)
        return path

    def _give_secrets(self, pipe: str) -> None:
        """Write what the first program reads, while it is there. Raises OSError."""
        left = memoryview(_as_shell_words(self._spec["secrets"]))
        until = time.monotonic() + _BEGINS_WITHIN_S
        descriptor = -1
        try:
            while left and not _has_ended(self._pidfd):
                if time.monotonic() >= until:
                    raise OSError(f"image {self._image} does not read the secrets of the session")
                # Refused until it reads at all, and again while it has not read what is in the pipe.
                with contextlib.suppress(OSError):
                    if descriptor < 0:
                        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                        descriptor = os.open(pipe, flags)
                    left = left[os.write(descriptor, left) :]
                    continue
                time.sleep(0.002)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
            # The program runs by now, and the folder is its own: whatever it has made of the place.
            with contextlib.suppress(OSError):
                os.unlink(pipe)

    def _await_beginning(self) -> None:
        """Return when signals reach the program: an order that came earlier would be lost."""
        until = time.monotonic() + _BEGINS_WITHIN_S
        while not self._said() and not _has_ended(self._pidfd) and time.monotonic() < until:
            time.sleep(0.002)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _said(self) -> str:
        """What the first program in the container wrote: that it begins, or why it cannot."""
        with contextlib.suppress(OSError):
            # among what user code may write: no link is followed, and nothing waited for
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(os.path.join(self._folder, "run", SAID), flags)
            try:
                return os.read(file, 500).decode(errors="replace").partition("\n")[0].strip()
            finally:
                os.close(file)
        return ""

    def _keep(self) -> None:
        """Fork the keeper."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shim = os.pidfd_open(os.getpid())
        self._keeper = os.fork()
        if self._keeper == 0:
            try:
                ours.close()
                namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-keeper")
                _keep(theirs, shim, self._container)
            finally:
                os._exit(1)
        os.close(shim)
        theirs.close()
        if self._channel is not None:
            self._channel.close()
        self._channel = ours
        if self._pidfd >= 0:
            self._tell_keeper()

    def _tell_keeper(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it was killed: the next one is told
                socket.send_fds(self._channel, [b"started"], [self._pidfd])

    def _end_keeper(self) -> None:
        """The shim ends for good now: nothing is left to be kept."""
        if self._keeper:
            with contextlib.suppress(OSError):
                os.kill(self._keeper, signal.SIGKILL)
                os.waitpid(self._keeper, 0)
            self._keeper = 0


def _keep(channel: socket.socket, shim: int, container: Container) -> NoReturn:
    """Be the keeper: end with the container, which wakes the shim, or end it after the shim."""
    started = -1
    poll = select.poll()
    poll.register(shim, select.POLLIN)
    poll.register(channel, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if shim in ready:
            if started >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(started, signal.SIGKILL)
            _remove(container)
            os._exit(0)
        if started in ready:
            os._exit(0)
        if channel.fileno() in ready:
            _, descriptors, _, _ = socket.recv_fds(channel, 64, 1)
            poll.unregister(channel)
            if descriptors:
                started = descriptors[0]
                poll.register(started, select.POLLIN)


def _remove(container: Container) -> None:
    """Remove the container of a shim that was killed; what the engine does not do, the agent does."""
    until, pause = time.monotonic() + _KEEP_ASKING_S, 0.1
    while time.monotonic() < until:
        # Refused while another removes it: the next answer is that there is none, which is as good.
        with contextlib.suppress(OSError):
            container.remove()
            return
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _pid_of(found: dict | None) -> int:  # type: ignore[type-arg]
    return int(found["State"]["Pid"]) if found else 0


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _as_shell_words(variables: dict[str, str]) -> bytes:
    """Commands for a POSIX shell that set and export each; the last one says that this is all."""
    lines = []
    for name, value in variables.items():
        quoted = value.replace("'", "'\\''")
        lines.append(f"export {name}='{quoted}'\n")
    return "".join([*lines, "nsml_given=all\n"]).encode()


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _ended_pidfd() -> int:
    """A pidfd that is readable for good."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    os.waitpid(child, 0)
    return pidfd


def _is_of_container(pid: int, whole_id: str) -> bool:
    """Whether process `pid` of this machine is the container's: its control groups bear the id."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="ascii", errors="replace") as file:
            return whole_id in file.read()
    except OSError:
        return False


def _start_refusal(reason: str, image: str) -> str:
    """Why a container did not start, in words for the session's user."""
    if "/bin/sh" in reason and "no such file" in reason:
        return f"image {image} has no /bin/sh, which starting a program in it needs"
    return f"the container engine could not start it: {reason}"
