"""The program of a shim as a container: created, started, watched and removed beside it.

Standard library only: it runs in the shim. The engine only starts the container and reports
its end. A pidfd of its first process shows that it has ended, and signals go to its
processes directly: an engine that restarts, hangs or breaks a stream changes nothing. A second
process, the keeper, waits for the engine while the container starts: the shim enforces limits and
carries out orders meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import time

from nodeagent.engine.wire import Container
from nodeagent.shim import loopback, visitor
from nodeagent.shim.cgroups import Entrance
from nodeagent.shim.keeper import Keeper, Opening, bring_up, end, group_held, has_ended, keep
from nodeagent.shim.presence import JUDGED_WITHIN_S, Presence
from nodeagent.shim.watch import OUT_OF_MEMORY, memory_excess, memory_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.shim.cgroups import Group
    from nodeagent.shim.keeper import Word
    from nodeagent.shim.program import Outcome
    from nodeagent.shim.watch import Excess

START_FAILED_CODE = 127
_SIGNALLED = 128
"""A first process that forwards its child's end exits with `128 + signal`, as shells do."""
_SIGNALS = frozenset(range(1, 65))
SAID = ".said"
"""File in run/ where the first program in the container reports that it begins, or why it cannot."""
BEGUN = "begun"
GATE = ".gate"
"""A named pipe in run/, by which the first program receives commands that set secret variables (no
file, no engine and no image ever has them), and the last one, with which it may begin."""
GIVEN = "nsml_given"
"""A variable that the last command sets to `all`."""
ENGINE_LOST = "the container engine of the node was restarted or ended, and the program with it"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LAST_WORDS_S = 2.0
"""Time for a keeper to report a container's resource usage after its end."""
_GIVE_UP_S = 600.0
"""How long an engine is asked how a vanished container ended."""


class Contained:
    """`Program` as a container of an engine on this machine."""

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
        self._keeper: Keeper | None = None
        self._is_all_heard = False
        self._outlives_engine = bool(plan.get("outlives_engine", True))
        self._is_engine_away = False
        self._is_engine_lost = False
        self._failure = ""
        self._has_begun = False
        self._is_given_up = False
        self._ended_at: float | None = None
        self._state: dict | None = None  # type: ignore[type-arg]
        self._is_known = False
        self._visitors: list[int] = []

    def start(self) -> None:
        """Begin to create and start the container; `is_running` until that has failed. Raises OSError."""
        plan = self._spec["container"]
        words = _as_shell_words(
            {**plan.get("environment", {}), **self._spec["secrets"]}, plan.get("unset", ())
        )
        opening = Opening(
            self._config,
            self._image,
            self._make_gate(),
            words,
            begins_within_s=plan["begins_within_s"],
            presence=self._presence(),
        )
        self._keeper = Keeper(lambda line: bring_up(line, self._container, opening))

    def is_running(self) -> bool:
        """Whether the container is starting, or runs."""
        self._hear()
        if self._pidfd < 0:
            return self._is_on_its_way()
        return not self._failure and not has_ended(self._pidfd)

    def terminate(self) -> None:
        """SIGTERM the first process, which forwards it to the program's group."""
        if self._has_begun:
            self._signal(signal.SIGTERM)
        else:
            self.kill()

    def kill(self) -> None:
        """SIGKILL the first process: the kernel then ends the whole container."""
        if not self._has_begun and not (self._pidfd >= 0 and has_ended(self._pidfd)):
            self._give_up()  # not if it has ended by itself: its result is still needed
        self._signal(signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether nothing of it is left, and its result is known or never will be.

        A container given up, or failed to start, may still be created later; no program begins in it.
        """
        self._hear()
        if self._pidfd < 0:
            return not self._is_on_its_way()
        if not has_ended(self._pidfd):
            return False
        if not self._is_known:
            self._is_known = self._learn()
        return self._is_known

    def outcome(self) -> Outcome:
        """Return how it ended, according to the engine."""
        state = self._state
        if self._failure:
            why = "ENGINE_AWAY" if self._is_engine_away else "START_FAILED"
            return None, None, (why, self._failure)
        if self._pidfd < 0 or self._is_given_up:
            return None, None, None
        if self._is_engine_lost or state is None:
            words = "the container's result is unknown: it was removed"
            lost = ("ENGINE_LOST", ENGINE_LOST) if self._is_engine_lost else ("SHIM_LOST", words)
            return None, None, lost
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
        """Remove the container after its end was recorded; the agent removes leftovers.

        One that did not begin is removed by the keeper: only that knows whether it may still be created.
        """
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                self._container.remove()

    def processes(self) -> Sequence[int]:
        """Return the pids in its control group, if visible."""
        return [] if self._group is None else self._group.members()

    def exceeded(self) -> Excess | None:
        """Whether the kernel killed a process of it for memory: the rest is then ended too."""
        group = self._group
        if group is None or self._pidfd < 0:
            return None
        # the last reading counts if its group is removed before the keeper reads it
        self._note_use(group.cpu_s(), group.memory_used())
        excess = memory_excess(group, self._memory_limit(), self.memory_peak_bytes)
        if excess is not None:
            self.memory_peak_bytes = max(self.memory_peak_bytes, group.memory_peak())
        return excess

    def admit(self) -> None:
        """Fork a visitor that copies files or serves ssh, if the container runs. Raises OSError.

        Programs are started by the container's engine.
        """
        if self._pidfd < 0 or has_ended(self._pidfd):
            return
        with contextlib.closing(visitor.Process(self.pid, os.dup(self._pidfd))) as first:
            entrance = Entrance()
            if self._group is not None:
                with contextlib.suppress(OSError):  # the visitor reports why
                    entrance = self._group.open_entrance(cpus=None)
            # whatever its parent, a process in the container ends with it
            hands_over = bool(entrance.member_files)
            self._visitors.append(
                visitor.fork(self._folder, self._spec, first, entrance, may_hand_over=hands_over)
            )

    def remark(self) -> str:
        """Empty: the counts of refusals are gone with its group."""
        return ""

    def _memory_limit(self) -> int | None:
        return self._config["HostConfig"].get("Memory") or None

    def _is_on_its_way(self) -> bool:
        """Whether the keeper is still starting it, and has not reached its first process."""
        return self._keeper is not None and not self._failure and not self._is_given_up

    def _hear(self) -> None:
        """Process the keeper's messages, and replace a dead keeper."""
        self._visitors = [pid for pid in self._visitors if os.waitpid(pid, os.WNOHANG)[0] == 0]
        keeper = self._keeper
        if keeper is None or self._is_given_up:
            return
        is_lost = self._is_all_heard = keeper.has_ended()
        for word, descriptors in keeper.heard():
            self._take(word, descriptors)
        if not is_lost or self._failure or (self._pidfd >= 0 and has_ended(self._pidfd)):
            return
        keeper.leave()
        container, pidfd, group = self._container, self._pidfd, self._group
        if not self._has_begun:
            self._failure = "it was not started: the process that saw to it was killed"
        with contextlib.suppress(OSError):
            # fails without room for a process, and is retried at the next look
            presence = self._presence()
            if self._has_begun:
                self._keeper = Keeper(lambda line: keep(line, container, pidfd, group, presence))
            else:
                self._keeper = Keeper(lambda _: end(container, pidfd, may_come=pidfd < 0))

    def _take(self, word: Word, descriptors: list[int]) -> None:
        if "pid" in word:
            self.pid, (self._pidfd,) = word["pid"], descriptors
            self._group = group_held(self.pid, self._pidfd)
            self._tell_group()
        elif "gate" in word:
            self._open_gate(descriptors[0])
        elif "failed" in word:
            self._failure = word["failed"]
            self._is_engine_away = word.get("away", False)
        elif "engine_lost" in word:
            self._is_engine_lost = True
        else:
            self._note_use(word["cpu_s"], word["peak_bytes"])

    def _open_gate(self, gate: int) -> None:
        """Let the program begin, with its listener; without that it does not."""
        try:
            words = _as_shell_words(self._listen(), ())
        except OSError as error:
            self._failure = f"it cannot be given a listener: {error.strerror or error}"
        else:
            self._has_begun = True
            with contextlib.suppress(OSError):  # the waiting process has ended
                os.write(gate, words + f"{GIVEN}=all\n".encode())
        os.close(gate)

    def _listen(self) -> dict[str, str]:
        """Create the requested listener in the container's network; return its variables. Raises OSError."""
        if not self._spec.get(loopback.LISTENER):
            return {}
        network = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if has_ended(self._pidfd):
                raise OSError(errno.ESRCH, "its container has ended")
            return loopback.listen(self._spec, network)
        except PermissionError as error:
            reason = "its node's agent is not root, and may not enter containers"
            raise OSError(errno.EPERM, reason) from error
        finally:
            os.close(network)

    def _tell_group(self) -> None:
        """Write where the agent can read its resource usage; on failure that stays unknown."""
        if self._group is None:
            return
        path = os.path.join(self._folder, "group.json")
        with contextlib.suppress(OSError):
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump({"group": self._group.described()}, file)
            os.replace(f"{path}.new", path)

    def _note_use(self, cpu_s: Sequence[float], peak_bytes: int) -> None:
        self.cpu_s = [max(pair) for pair in zip(self.cpu_s, cpu_s, strict=True)]
        self.memory_peak_bytes = max(self.memory_peak_bytes, peak_bytes)
        self.max_rss_bytes = self.memory_peak_bytes

    def _presence(self) -> Presence | None:
        """Return what to watch of an engine that ends its containers with itself."""
        return None if self._outlives_engine else Presence(self._container)

    def _give_up(self) -> None:
        """Stop a start in progress; the keeper cleans up."""
        if self._keeper is not None and not self._is_given_up:
            self._is_given_up = True
            self._keeper.leave()

    def _learn(self) -> bool:
        """Ask the engine how it ended; False: ask again."""
        if self._failure or self._is_given_up or self._is_engine_lost:
            return True
        now = time.monotonic()
        if self._ended_at is None:
            self._ended_at = now
        within_s = _LAST_WORDS_S if self._outlives_engine else _LAST_WORDS_S + JUDGED_WITHIN_S
        if not self._is_all_heard and now - self._ended_at < within_s:
            return False
        try:
            found = self._container.inspect()
        except OSError:
            return now - self._ended_at > _GIVE_UP_S
        if found is None:
            return True
        state = found["State"]
        if state.get("Running") or state.get("Restarting"):
            # the engine has not noticed yet
            return now - self._ended_at > _GIVE_UP_S
        self._state = state
        return True

    def _make_gate(self) -> str:
        """Create the gate, owned by the program's user. Raises OSError."""
        run = os.path.join(self._folder, "run")
        path = os.path.join(run, GATE)
        os.mkfifo(path, 0o600)
        owner = os.stat(run)
        os.chown(path, owner.st_uid, owner.st_gid)
        return path

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _said(self) -> str:
        """Return the report of the first program in the container: that it begins, or why it cannot."""
        with contextlib.suppress(OSError):
            # user code may write here: follow no link, and never block
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(os.path.join(self._folder, "run", SAID), flags)
            try:
                return os.read(file, 500).decode(errors="replace").partition("\n")[0].strip()
            finally:
                os.close(file)
        return ""


def _as_shell_words(variables: dict[str, str], unset: Sequence[str]) -> bytes:
    """Return commands for a POSIX shell that set and export `variables`, and unset others."""
    lines = [f"unset {name}\n" for name in unset if _VARIABLE.fullmatch(name)]
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            continue  # no shell accepts it, and an image may have any
        quoted = value.replace("'", "'\\''")
        lines.append(f"export {name}='{quoted}'\n")
    return "".join(lines).encode()
