"""The keeper of a container: a child of the shim that waits for the engine in its place.

Standard library only: it runs beside the shim. It has the container created and started, for which a slow
engine may take minutes, while the shim enforces limits and obeys orders. Then it waits for the container's
end, which wakes the shim. When the shim is gone, or gives the container up, it ends and removes the
container, however late the engine carries out its requests.

No program of a session begins without its shim: the first program in the container waits at a named
pipe, the gate, for a final command that only the shim writes. A container created after its shim
gave up receives nothing, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time

from nodeagent.engine.wire import Container, Refused, Unanswered
from nodeagent.shim import namespaces
from nodeagent.shim.cgroups import group_of_process
from nodeagent.shim.presence import Presence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypedDict

    from nodeagent.shim.cgroups import Group

    class Word(TypedDict, total=False):
        """A message of a keeper to its shim, one of these.

        pid: the container was started; its first process, 0 if that has ended; with its pidfd.
        gate: that process reads the gate; with a descriptor to write to.
        failed: the container was not started, or does not begin: why; with away, if the engine did not answer.
        cpu_s, peak_bytes: it has ended, with this resource usage of its control group.
        engine_lost: it has ended together with the engine, which ends its containers with itself.
        """

        pid: int
        gate: bool
        failed: str
        away: bool
        cpu_s: tuple[float, float]
        peak_bytes: int
        engine_lost: bool


_KEEP_ASKING_S = 3600.0
_MAY_COME_S = 600.0
"""How long after an unanswered request an engine may still carry it out."""
_LONGEST_PAUSE_S = 5.0
_SOONEST_READING_S, _LONGEST_READING_S = 0.05, 1.0
"""Interval of readings of a container's usage; from the longer one on the shim's own are as good."""
_LONGEST_WORD = 8192
_PROCESSES_TO_START = 64
"""Smallest limit of processes with which the engine's own starter, some threads in the container, never fails."""


class Keeper:
    """A keeper as seen by its shim: a child that does `work`, and its messages.

    SIGCHLD is sent with each message, and at the keeper's end.
    """

    def __init__(self, work: Callable[[Line], None]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shim = os.pidfd_open(os.getpid())
        self._has_ended = False
        self._pid = os.fork()
        if self._pid == 0:
            try:
                ours.close()
                namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-keeper")
                work(Line(theirs, shim))
            finally:
                os._exit(0)
        os.close(shim)
        theirs.close()
        ours.settimeout(0.0)
        self._channel = ours

    def has_ended(self) -> bool:
        """Whether it has ended: all of its messages are readable then."""
        if not self._has_ended:
            try:
                self._has_ended = os.waitpid(self._pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                self._has_ended = True
        return self._has_ended

    def heard(self) -> Iterator[tuple[Word, list[int]]]:
        """Yield its new messages, with descriptors that the caller then owns."""
        with contextlib.suppress(OSError):
            while True:
                word, descriptors, _, _ = socket.recv_fds(self._channel, _LONGEST_WORD, 1)
                if not word:
                    return
                yield json.loads(word), descriptors

    def leave(self) -> None:
        """Disconnect: it ends the container, if still running, and removes it."""
        self._channel.close()


class Line:
    """The keeper's connection to its shim."""

    def __init__(self, channel: socket.socket, shim: int) -> None:
        self._channel = channel
        self._shim = shim
        self._poll = select.poll()
        self._poll.register(channel, 0)

    def say(self, word: Word, *descriptors: int) -> None:
        """Send a message to the shim, and wake it; no effect if it is gone."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [json.dumps(word).encode()], list(descriptors))
            signal.pidfd_send_signal(self._shim, signal.SIGCHLD)

    def is_cut(self) -> bool:
        """Whether the shim is gone, or gave the container up."""
        return bool(self._poll.poll(0))

    def await_end(self, pidfd: int, timeout_s: float | None = None, *, also: int = -1) -> bool:
        """Whether the process has ended, or the line is cut, within the time; None: no limit.

        Returns sooner when the descriptor `also`, if any, is readable.
        """
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(self._channel, 0)
        if also >= 0:
            poll.register(also, select.POLLIN)
        found = poll.poll(None if timeout_s is None else timeout_s * 1000)
        return any(number != also for number, _ in found)


class Opening:
    """The container to start: the engine's `config`, and the input of the `gate`.

    `begins_within_s`: limit for its shell to read that. `presence` is watched if the engine ends
    its containers with itself.
    """

    def __init__(
        self,
        config: dict,  # type: ignore[type-arg]
        image: str,
        gate: str,
        words: bytes,
        *,
        begins_within_s: float,
        presence: Presence | None = None,
    ) -> None:
        self.begins_within_s = begins_within_s
        self.config = config
        self.presence = presence
        self.image = image
        self.gate = gate
        self.words = words


def bring_up(line: Line, container: Container, opening: Opening) -> None:
    """Create the container, start it, open the gate to its first program, and keep it."""
    may_come, pidfd, group = False, -1, None
    try:
        _make(container, _startable(opening.config))
        if not line.is_cut():
            _start(container, opening.image)
            pid, pidfd = _first_process(container)
            line.say({"pid": pid}, pidfd)
            group = group_held(pid, pidfd)
            if (limit := _late_process_limit(opening.config)) and not has_ended(pidfd):
                container.limit_processes(limit)
            _lead_to_gate(line, pidfd, opening)
    except OSError as error:
        may_come = isinstance(error, _Unmade)
        is_away = may_come or isinstance(error, Unanswered)
        line.say({"failed": str(error)[:1000], "away": is_away})
    else:
        if pidfd >= 0:
            keep(line, container, pidfd, group, opening.presence)
            return
    end(container, pidfd, may_come=may_come)


def keep(
    line: Line,
    container: Container,
    pidfd: int,
    group: Group | None,
    presence: Presence | None = None,
) -> None:
    """Return at the container's end, which wakes the shim, or end it after the shim."""
    presence = presence or Presence(None)
    if group is None:
        while not line.await_end(pidfd, presence.look(), also=presence.descriptor):
            pass
    else:
        cpu_s, peak_bytes = _use_until_end(line, pidfd, group, presence)
        line.say({"cpu_s": cpu_s, "peak_bytes": peak_bytes})
    if line.is_cut():
        end(container, pidfd, may_come=False)
    elif presence.has_ended():
        line.say({"engine_lost": True})


def _use_until_end(
    line: Line, pidfd: int, group: Group, presence: Presence
) -> tuple[tuple[float, float], int]:
    """Return processor seconds and peak bytes of a container's `group`, at its end.

    The engine removes the group a moment after its last process, mostly after this reads it. On a busy
    machine it may be sooner: for a short container, hardly read by the shim itself, a reading from its
    last tenth counts then.
    """
    began, cpu_s, peak_bytes = time.monotonic(), (0.0, 0.0), 0
    is_over = False
    while not is_over:
        reading_s = max(_SOONEST_READING_S, (time.monotonic() - began) / 10)
        pauses = [presence.look(), reading_s if reading_s < _LONGEST_READING_S else None]
        pause_s = min((one for one in pauses if one is not None), default=None)
        is_over = line.await_end(pidfd, pause_s, also=presence.descriptor)
        cpu_s = max(cpu_s, group.cpu_s(), key=sum)
        peak_bytes = max(peak_bytes, group.memory_peak_held())
    return cpu_s, peak_bytes


def end(container: Container, pidfd: int, *, may_come: bool) -> None:
    """End the container and remove it; on failure of the engine, the agent does.

    `may_come`: the engine may still create it, so that its absence proves nothing yet.
    """
    if pidfd >= 0:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    began, pause = time.monotonic(), 0.1
    while (now := time.monotonic()) < began + _KEEP_ASKING_S:
        # Refused during another removal: the next answer is that it is gone, which is as good.
        with contextlib.suppress(OSError):
            if container.remove() or not may_come or now > began + _MAY_COME_S:
                return
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def group_held(pid: int, pidfd: int) -> Group | None:
    """Return the control group of a process held by `pidfd`; None if it has ended, or none is visible."""
    group = group_of_process(pid) if pid else None
    # the pid of an ended one may be reused
    return None if has_ended(pidfd) else group


def has_ended(pidfd: int) -> bool:
    """Whether the process has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _late_process_limit(config: dict) -> int:  # type: ignore[type-arg]
    """Return the limit of processes to set after the start, before the gate opens; 0: none."""
    limit = config.get("HostConfig", {}).get("PidsLimit", 0)
    return limit if 0 < limit < _PROCESSES_TO_START else 0


def _startable(config: dict) -> dict:  # type: ignore[type-arg]
    """Return the config with processes enough to start."""
    if not _late_process_limit(config):
        return config
    return {**config, "HostConfig": {**config["HostConfig"], "PidsLimit": _PROCESSES_TO_START}}


class _Unmade(OSError):
    """The engine was asked for a container and did not answer."""


def _make(container: Container, config: dict) -> None:  # type: ignore[type-arg]
    try:
        container.create(config)
    except Unanswered as error:
        raise _Unmade(str(error)) from error


def _start(container: Container, image: str) -> None:
    try:
        container.start()
    except Refused as error:
        raise OSError(_start_refusal(str(error), image)) from error


def _start_refusal(reason: str, image: str) -> str:
    """Explain why a container did not start, for the session's user."""
    if "/bin/sh" in reason and "no such file" in reason:
        return f"image {image} has no /bin/sh, which starting a program in it needs"
    return f"the container engine could not start it: {reason}"


def _first_process(container: Container) -> tuple[int, int]:
    """Return the container's first process, and a pidfd of it; 0 if it has ended. Raises OSError."""
    while True:
        found = container.inspect()
        _refuse_uncounted(found)
        pid = _pid_of(found)
        try:
            pidfd = os.pidfd_open(pid) if pid else _ended_pidfd()
        except ProcessLookupError:
            continue  # it has just ended; the engine will notice in a moment
        if found is None or pid == 0 or _is_of_container(pid, str(found["Id"])):
            return pid, pidfd
        is_over = has_ended(pidfd)
        os.close(pidfd)
        if not is_over and pid == _pid_of(container.inspect()):
            raise OSError("the engine's processes are not to be seen from here")


def _refuse_uncounted(found: dict | None) -> None:  # type: ignore[type-arg]
    """Raise OSError for a container with a volume of the engine: its size is not counted."""
    kept = [one for one in (found or {}).get("Mounts") or () if one.get("Type") == "volume"]
    if kept:
        raise OSError(
            f"its image declares a volume at {str(kept[0].get('Destination'))[:80]!r} whose size"
            " cannot be limited: use an image without that VOLUME"
        )


def _pid_of(found: dict | None) -> int:  # type: ignore[type-arg]
    return int(found["State"]["Pid"]) if found else 0


def _ended_pidfd() -> int:
    """Return a pidfd that is always readable."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    os.waitpid(child, 0)
    return pidfd


def _is_of_container(pid: int, whole_id: str) -> bool:
    """Whether process `pid` of this machine is the container's: its control groups contain the id."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="ascii", errors="replace") as file:
            return whole_id in file.read()
    except OSError:
        return False


def _lead_to_gate(line: Line, pidfd: int, opening: Opening) -> None:
    """Write the commands through the gate, then send the gate to the shim for the last. Raises OSError.

    Returns without that when the container has ended, or the line is cut.
    """
    left, gate = memoryview(opening.words), -1
    until = time.monotonic() + opening.begins_within_s
    try:
        while not has_ended(pidfd) and not line.is_cut():
            if time.monotonic() >= until:
                raise OSError(
                    f"image {opening.image} does not begin: its /bin/sh reads no commands"
                )
            # Refused until it reads at all, and while the pipe is full.
            with contextlib.suppress(OSError):
                if gate < 0:
                    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                    gate = os.open(opening.gate, flags)
                if left:
                    left = left[os.write(gate, left) :]
                    continue
                if _has_room(gate):
                    line.say({"gate": True}, gate)
                    return
            time.sleep(0.002)
    finally:
        if gate >= 0:
            os.close(gate)
        # The program owns the folder, and may have replaced the gate.
        with contextlib.suppress(OSError):
            os.unlink(opening.gate)


def _has_room(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return bool(poll.poll(0))
