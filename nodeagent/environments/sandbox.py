"""Runs builds of environments, with fewer rights than any session: once, each in its own folder.

```
<agent data>/builds/<slot>.lock    held by the agent while the slot is used
<agent data>/builds/<slot>/        a replica folder (`folders.py`): `app/` becomes the environment
```

A build runs like a session, under a shim: at level `namespace` in its own root, which has none of the
agent's data but the folder to fill, at its final path. If the agent is root, it runs under an account that
no user and no other running build has; else as the agent's own user, like sessions there. It has its own
control group, below one of all builds, and its own limits; `build_queue.py` decides how many run at once.
Its output is passed on, and its result sealed by `sealing.py`; neither is trusted.
"""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import json
import os
import platform
import select
import shutil
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from nodeagent.environments.build_queue import BuildQueue, QueueLimits
from nodeagent.environments.builds import LastWords
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.environments.kept import IN_TMP, Kept
from nodeagent.environments.sealing import Rules, Unsound, seal
from nodeagent.folders import ReplicaFolder, ReplicaId, write_atomically
from nodeagent.runtimes.interface import (
    ExitWhy,
    Isolation,
    Mount,
    PythonEnvironment,
    ReplicaSpec,
)
from nodeagent.runtimes.launch import layout_of, shim_spec, writable_entry
from nodeagent.runtimes.launcher import start_directly
from nodeagent.runtimes.records import read_claim, read_exit, write_stop
from nodeagent.runtimes.shims import is_alive
from nodeagent.runtimes.strays import Strays, account_of, group_in, ticks_now, words_of
from nodeagent.safe_paths import remove_tree
from nodeagent.shim.cgroups import BUILDS, parent_group
from nodeagent.shim.disk_usage import Measurement
from nodeagent.storage.eviction import NoRoom
from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nodeagent.environments.build_queue import Turn, Waits
    from nodeagent.environments.builds import Say
    from nodeagent.network.session_network import SessionNetwork
    from nodeagent.runtimes.interface import ExitRecord
    from nodeagent.runtimes.launch import Machine
    from nodeagent.runtimes.launcher import StartedShim
    from nodeagent.shim.namespaces import MountEntry

_KILLED_WITHIN_S = 5.0
_SLOTS = 256
"""Concurrent builds if all run as one user."""
_LOOK_EVERY_S = 0.1
_COUNT_PIECE_S = 0.05
_COUNT_SHARE = 0.05
_SMALL_MEMORY_BYTES = 512 << 20
_SMALL_MEMORY_SHARE = 8
_SMALL_DISK_BYTES = 64 << 20
_SMALL_S = 60.0
_SMALL_AT_ONCE = 2
OOM_SCORE = 1000
"""The kernel kills builds first: sessions have 500, and builds can be repeated."""
_MOST_READ_BYTES = 16 << 20
_MOST_AT_ONCE_BYTES = 1 << 20
"""So that builds with too much output to read are still checked."""
_TAIL_BYTES = 64 << 10
_VERDICT = b"nsml: "

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """Limits of one build: bytes, cores, processes with threads, files and folders, seconds.

    `kept_bytes`: cached from one build for the next. At most `at_once` builds run on a node, `per_owner`
    of one user, with `together_bytes` of memory, which includes the reading of users' files.
    """

    memory_bytes: int = 8 << 30
    cpus: float = 4.0
    process_count: int = 256
    disk_bytes: int = 50_000_000_000
    files: int = 500_000
    kept_bytes: int = 10_000_000_000
    time_s: float = 3600.0
    at_once: int = 4
    per_owner: int = 2
    together_bytes: int = 64 << 30

    def small(self) -> BuildLimits:
        """Limits for reading a user's file: that should be quick, and does not wait for builds."""
        part = self.together_bytes // _SMALL_MEMORY_SHARE
        return replace(
            self,
            memory_bytes=min(self.memory_bytes, _SMALL_MEMORY_BYTES, part),
            disk_bytes=min(self.disk_bytes, _SMALL_DISK_BYTES),
            time_s=min(self.time_s, _SMALL_S),
            at_once=_SMALL_AT_ONCE,
            per_owner=1,
        )

    @property
    def most_together_bytes(self) -> int:
        """The most memory that all can use."""
        small = self.small()
        return self.at_once * self.memory_bytes + small.at_once * small.memory_bytes

    def queue(self, room: Callable[[], int]) -> BuildQueue:
        """The queue of builds with these limits; `room` as BuildQueue's."""
        readings_bytes = _SMALL_AT_ONCE * self.small().memory_bytes
        return BuildQueue(
            QueueLimits(
                at_once=self.at_once,
                per_owner=self.per_owner,
                memory_bytes=self.together_bytes - readings_bytes,
            ),
            room,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One program to run.

    Attributes:
        argv: the command line; `{run}` in it is the folder of `files` as the program sees it.
        mounts: of the machine, to read.
        files: private input files: content by name.
        variables: of its environment, never written to disk; `{run}` as in `argv`, `{kept}` is the folder
            that is cached between builds.
        kept: the cache of builds for the next one (`kept.py`); None: nothing is cached.
        kept_by_all: the cache of builds for everybody, shared with this one.
    """

    argv: Sequence[str]
    mounts: Sequence[Mount] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    kept: Path | None = None
    kept_by_all: Path | None = None


class Sandbox:
    """Runs builds of one agent. Blocking; safe for concurrent threads and processes.

    Args:
        folder: of the builds, on the filesystem of their results.
        machine: its facts for starting programs.
        level: the strongest isolation that works here without containers.
        ids: the uids of builds, one each; empty: all run as the agent's own user.
        network: makes the networks of sessions: each build gets one of its own; None: the machine's.
        limits: of one build, and of all.
        room: bytes that builds may still write to the disk; negative: they are ended, since they can
            fill it.

    Callers of `make` have a turn in `queue`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        machine: Machine,
        level: Isolation,
        ids: Sequence[int] = (),
        network: SessionNetwork | None = None,
        limits: BuildLimits | None = None,
        room: Callable[[], int] = lambda: 1 << 62,
    ) -> None:
        self.folder = folder
        self.level = level
        self.limits = limits or BuildLimits()
        self.queue = self.limits.queue(room)
        self._machine = machine
        self._ids = ids
        self._network = network
        self._room = room
        small = self.limits.small()
        self._readings = BuildQueue(
            QueueLimits(
                at_once=small.at_once,
                per_owner=small.per_owner,
                memory_bytes=small.at_once * small.memory_bytes,
            ),
            room,
        )

    def make(
        self,
        place: Path,
        task: Task,
        say: Say,
        cancelled: threading.Event | None = None,
        *,
        turn: Turn,
        sealed: Callable[[Path], object] = lambda _: None,
    ) -> None:
        """Run a program that makes the folder `place`, then make that the agent's own and read-only.

        The program sees it at `place` while it fills it. `say` gets all output, `sealed` the finished folder
        before it is moved there. Raises EnvironmentFailed
        with the last lines of output or the exceeded limit, EnvironmentCancelled soon after
        `cancelled` is set, and OSError where this machine lacks something; nothing is left then.
        """
        remove_tree(place)
        with self._slot(cancelled) as (slot, folder), ExitStack() as finally_:
            rules = self._rules(slot, place, turn.disk_bytes)
            kept = None
            if task.kept is not None:
                kept = Kept(
                    task.kept, folder, rules, self.limits.kept_bytes, by_all=task.kept_by_all
                )
                finally_.callback(kept.put_back)
            with self._seen_at(place, folder) as seen:
                self._run(
                    task,
                    slot,
                    folder,
                    say,
                    cancelled,
                    limits=self.limits,
                    turn=turn,
                    seen=seen,
                    kept=kept,
                )
            try:
                if kept is not None:
                    rules = replace(rules, shared=kept.shared)
                seal(folder.app, rules)
            except Unsound as error:
                why = (kept.refusal if kept is not None else "") or str(error)
                raise EnvironmentFailed(f"the installed environment is refused: {why}") from None
            sealed(folder.app)
            folder.app.rename(place)

    def ask(
        self,
        task: Task,
        *,
        most: int,
        owner: str,
        waits: Waits = lambda _: None,
        cancelled: threading.Event | None = None,
    ) -> bytes:
        """The output, at most `most` bytes, of a program that reads input of `owner`.

        Waits for its turn among readings; `waits` receives why. Raises EnvironmentFailed, EnvironmentCancelled,
        and OSError where this machine lacks something.
        """
        output, limits = bytearray(), self.limits.small()

        def take(piece: bytes) -> None:
            if len(output) <= most:
                output.extend(piece)

        with self._readings.ticket(
            owner, memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes, waits=waits
        ) as ticket:
            turn = ticket.wait(cancelled)
            with self._slot(cancelled) as (slot, folder):
                self._run(task, slot, folder, take, cancelled, limits=limits, turn=turn)
        if len(output) > most:
            raise EnvironmentFailed(f"its output is over {most:,} bytes")
        return bytes(output)

    def tidy(self) -> None:
        """End and remove builds that a killed agent left."""
        for entry in self.folder.glob("*.lock"):
            if entry.stem.isdecimal():
                with self._held(int(entry.stem)):
                    pass

    def _uid(self, slot: int) -> int | None:
        return self._ids[slot] if self._ids else None

    @contextmanager
    def _slot(self, cancelled: threading.Event | None) -> Iterator[tuple[int, ReplicaFolder]]:
        """A free slot for the context, with its folder; waits while there is none."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            for slot in range(len(self._ids) or _SLOTS):
                with self._held(slot) as folder:
                    if folder is not None:
                        yield slot, folder
                        return
            if cancelled is not None and cancelled.is_set():
                raise EnvironmentCancelled
            time.sleep(_LOOK_EVERY_S)

    @contextmanager
    def _held(self, slot: int) -> Iterator[ReplicaFolder | None]:
        """The empty folder of a slot, locked for the context; None: the slot is in use."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(self.folder / f"{slot}.lock", flags, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            folder = ReplicaFolder(self.folder / str(slot))
            if not self._clear(folder):
                yield None
                return
            try:
                yield folder
            finally:
                self._clear(folder)
        finally:
            os.close(lock)

    def _clear(self, folder: ReplicaFolder) -> bool:
        """Kill a build's processes and remove its folder; False while one cannot be killed.

        A process that waits in the kernel for a disk keeps its slot; no other build waits for it.
        """
        if not folder.path.exists():
            return True
        claim = read_claim(folder)
        if claim is not None and is_alive(claim, self._machine.boot_id):
            with suppress(ProcessLookupError):
                os.kill(claim.pid, signal.SIGKILL)
        uid, group = account_of(folder), group_in(folder)
        # else all processes of the account: another agent may use the same uids meanwhile
        is_enclosed = group is not None or self._has_own_pids()
        strays = Strays(
            mark=_mark(folder),
            output=os.path.realpath(folder.output),
            uid=uid,
            began_before=None if uid is None or is_enclosed else ticks_now(),
            group=group,
        )
        until = time.monotonic() + _KILLED_WITHIN_S
        while left := strays.kill():
            if time.monotonic() >= until:
                log.warning("build.cannot_be_killed", left=[words_of(pid) for pid in left])
                return False
            time.sleep(_LOOK_EVERY_S)
        if group is not None:
            group.remove()
        folder.remove()
        return True

    def _has_own_pids(self) -> bool:
        return self.level is Isolation.NAMESPACE and self._machine.with_pid

    @contextmanager
    def _seen_at(self, place: Path, folder: ReplicaFolder) -> Iterator[list[MountEntry]]:
        """Show the build's output at `place`: by a mount if programs have a root, else by a link."""
        if self.level is Isolation.NAMESPACE:
            yield [writable_entry(folder.app, place)]
            return
        place.symlink_to(folder.app)
        try:
            yield []
        finally:
            place.unlink()

    def _run(
        self,
        task: Task,
        slot: int,
        folder: ReplicaFolder,
        say: Say,
        cancelled: threading.Event | None,
        *,
        limits: BuildLimits,
        turn: Turn,
        seen: Sequence[MountEntry] = (),
        kept: Kept | None = None,
    ) -> None:
        spec = self._spec(task, slot, limits, turn)
        layout = layout_of(spec, folder)
        run, cache = layout.run, f"{layout.tmp}/{IN_TMP}"
        secrets = {
            name: text.replace("{run}", run).replace("{kept}", cache)
            for name, text in task.variables.items()
        }
        argv = [word.replace("{run}", run) for word in spec.argv]
        spec = replace(spec, argv=argv, secrets=secrets)
        folder.create()
        if kept is not None:
            kept.take()
        for name, data in task.files.items():
            (folder.run / name).touch(mode=0o600)
            (folder.run / name).write_bytes(data)
        if spec.uid is not None and spec.gid is not None:
            folder.give(spec.uid, spec.gid)
        has_own_root = self.level is Isolation.NAMESPACE
        lent = [] if kept is None else kept.lend(layout.tmp, has_own_root=has_own_root)
        files = None if self._network is None else self._network.files()
        content = {
            **shim_spec(spec, folder, self._grouped(), network_files=files),
            "has_secrets": True,
            "ends_with": os.getpid(),
            "oom_score_adj": OOM_SCORE,
        }
        if content["namespace"]:
            content["namespace"]["mounts"] += [*seen, *lent]
        write_atomically(folder.spec, json.dumps(content).encode())
        words = _Words(say)
        shim = self._started(folder, json.dumps(spec.secrets).encode())
        try:
            self._follow(shim, folder, words, cancelled, turn)
        finally:
            os.close(shim.pidfd)
            if kept is not None:
                kept.collect()
        words.end()
        _judge(read_exit(folder), words, limits, turn)

    def _grouped(self) -> Machine:
        """The machine, with control groups of builds below one that limits their total memory."""
        groups = self._machine.limits.groups
        if groups is None:
            return self._machine
        try:
            groups = parent_group(groups, BUILDS, memory_bytes=self.limits.together_bytes)
        except OSError as error:
            # each still has its own limit, and the queue limits their sum
            log.warning("build.no_common_group", error=str(error))
        return replace(self._machine, limits=replace(self._machine.limits, groups=groups))

    def _started(self, folder: ReplicaFolder, secrets: bytes) -> StartedShim:
        if self._network is None:
            return start_directly(folder, secrets)
        network = self._network.namespace()
        try:
            return start_directly(folder, secrets, network)
        finally:
            os.close(network)

    def _rules(self, slot: int, place: Path, most_bytes: int) -> Rules:
        uid = self._uid(slot)
        return Rules(
            uid=os.geteuid() if uid is None else uid,
            place=place,
            outside=_interpreters(),
            bytes=most_bytes,
            files=self.limits.files,
        )

    def _spec(self, task: Task, slot: int, limits: BuildLimits, turn: Turn) -> ReplicaSpec:
        base, uid = Path(sys.base_prefix), self._uid(slot)
        return ReplicaSpec(
            replica_id=ReplicaId.of_no_session(),
            argv=task.argv,
            mounts=task.mounts,
            isolation=self.level,
            uid=uid,
            gid=uid,
            python=PythonEnvironment(folder=base, base_prefix=base),
            time_limit_s=limits.time_s,
            grace_s=0.0,
            memory_bytes=turn.memory_bytes,
            cpus=limits.cpus,
            process_count=limits.process_count,
            disk_bytes=turn.disk_bytes,
            shm_bytes=min(turn.memory_bytes, 64 << 20),
        )

    def _follow(
        self,
        shim: StartedShim,
        folder: ReplicaFolder,
        words: _Words,
        cancelled: threading.Event | None,
        turn: Turn,
    ) -> None:
        """Pass on the program's output until its shim has ended; end it if it must not continue."""
        ended = select.poll()
        ended.register(shim.pidfd, select.POLLIN)
        count = _Count(folder, self.limits.files, turn)
        why: Exception | None = None
        with folder.output.open("rb", buffering=0) as output:
            while not ended.poll(_LOOK_EVERY_S * 1000):
                words.read(output.fileno())
                if why is None:
                    why = self._why_ended(count, cancelled)
                    if why is not None:
                        write_stop(folder, reason=str(why), grace_s=0.0)
                        with suppress(ProcessLookupError):
                            signal.pidfd_send_signal(shim.pidfd, signal.SIGTERM)
            words.read(output.fileno(), is_last=True)
        if shim.child is not None:
            shim.child.wait()
        if why is not None:
            raise why

    def _why_ended(self, count: _Count, cancelled: threading.Event | None) -> Exception | None:
        if cancelled is not None and cancelled.is_set():
            return EnvironmentCancelled()
        if self._room() < 0:
            # as for a full disk: the node's fault, and another node may have room
            return NoRoom("the node's disk is nearly full, and others need the rest")
        if count.is_over():
            return EnvironmentFailed(
                f"the environment has more than {self.limits.files:,} files, which is what a build may"
                " make on this node (its agent's setting build_files)"
            )
        return None


def shared_copy(folder: Path, name: str, sources: Mapping[str, Path]) -> Path:
    """A folder below `folder` with copies of `sources`, by name, which programs in it can read.

    Made once for each content; compiled here, since builds do not keep their bytecode.
    """
    content = [name, platform.python_version(), *map(str, sources.items())]
    content += [
        f"{path.relative_to(source)} {facts.st_size} {facts.st_mtime_ns}"
        for source in sources.values()
        for path in sorted([source, *source.rglob("*.py")])
        for facts in [path.stat()]
    ]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    place = folder / f"{name}-{digest}"
    if place.exists():
        return place
    draft = folder / f".{place.name}.{os.getpid()}.{threading.get_ident()}"
    draft.mkdir(mode=0o700, parents=True)
    for target, source in sources.items():
        if source.is_dir():
            shutil.copytree(source, draft / target)
        else:
            shutil.copy2(source, draft / target)
    compileall.compile_dir(draft, quiet=2)
    for path in (draft, *draft.rglob("*")):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    with suppress(OSError):  # another has made it meanwhile
        draft.rename(place)
    for other in [draft, *folder.glob(f"{name}-*")]:
        if other != place:
            shutil.rmtree(other, ignore_errors=True)
    return place


def base_python() -> Path:
    """The base interpreter of environments, at its own path on this machine."""
    folder = Path(sys.base_prefix) / "bin"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = (folder / name for name in (version, "python3", "python"))
    return next((path for path in found if path.exists()), Path(sys.executable).resolve())


def _interpreters() -> frozenset[str]:
    """The paths under which an environment may name its interpreter."""
    python = base_python()
    return frozenset({str(python), os.path.realpath(python)})


def _mark(folder: ReplicaFolder) -> bytes:
    """A variable that only a build's processes have; before its start, one that no process has."""
    with suppress(OSError, ValueError, KeyError):
        return f"NSML_REPLICA={json.loads(folder.spec.read_bytes())['replica']}".encode()
    return b"NSML_REPLICA=none"


def _judge(record: ExitRecord | None, words: _Words, limits: BuildLimits, turn: Turn) -> None:
    """Raises EnvironmentFailed unless the program succeeded, NoRoom if the disk is to blame."""
    if record is None:
        raise EnvironmentFailed("the build was killed")
    if record.why is ExitWhy.EXITED:
        if record.exit_code == 0:
            return
        is_exit = record.signal is None
        how = f"exit code {record.exit_code}" if is_exit else f"signal {record.signal}"
        raise EnvironmentFailed(
            words.reason(
                f"the build of the environment ended with {how} and printed nothing: try again, and tell an"
                " administrator if it fails again"
            )
        )
    if record.why is ExitWhy.LIMIT_EXCEEDED and turn.is_disk_short:
        raise NoRoom(
            f"the build was ended: it wrote more than {size_text(turn.disk_bytes)}, its share of what the"
            " node's disk has left for builds",
        )
    what = record.message.partition("; try ")[0]
    is_own = turn.memory_bytes == limits.memory_bytes
    settings = {
        ExitWhy.OUT_OF_MEMORY: "build_memory_bytes" if is_own else "builds_memory_bytes",
        ExitWhy.LIMIT_EXCEEDED: "build_disk_bytes",
        ExitWhy.TIME_LIMIT: "build_time_limit_s",
    }
    if record.why is ExitWhy.TIME_LIMIT:
        what = f"it took longer than {limits.time_s:g} s"
    if record.why in settings:
        raise EnvironmentFailed(
            f"the build of the environment was ended: {what}. Require less, or ask an administrator"
            f" (the agent's setting {settings[record.why]})"
        )
    raise EnvironmentFailed(f"the build of the environment was ended: {what}")


class _Words:
    """A build's output: passed on in whole lines, and kept as by `LastWords`."""

    def __init__(self, say: Say) -> None:
        self._words = LastWords(say)
        self._at = 0
        self._rest = b""
        self._verdict = ""

    def read(self, output: int, *, is_last: bool = False) -> None:
        """Take new output from the open file, to the end if `is_last`; of very much only the tail."""
        size = os.fstat(output).st_size
        if size > _MOST_READ_BYTES or (is_last and size > self._at + _MOST_AT_ONCE_BYTES):
            self._at = max(self._at, size - _TAIL_BYTES)
        until = self._at + _MOST_AT_ONCE_BYTES
        while self._at < until and (piece := os.pread(output, 1 << 16, self._at)):
            self._at += len(piece)
            whole, newline, self._rest = (self._rest + piece).rpartition(b"\n")
            if newline or len(self._rest) > _TAIL_BYTES:
                self._take(whole + newline or self._rest)
                self._rest = self._rest if newline else b""

    def end(self) -> None:
        """Flush the last line."""
        if self._rest:
            self._take(self._rest)
        self._rest = b""

    def reason(self, otherwise: str) -> str:
        """On one line, why it failed."""
        return self._verdict or self._words.reason(otherwise)

    def _take(self, piece: bytes) -> None:
        for line in piece.splitlines(keepends=True):
            if line.startswith(_VERDICT):
                # not passed on: the build's error reports it
                self._verdict = line.removeprefix(_VERDICT)[:1000].decode(errors="replace").strip()
            else:
                self._words(line)


class _Count:
    """Counts a build's files, a little at a time, and updates the bytes in `turn`."""

    def __init__(self, folder: ReplicaFolder, most: int, turn: Turn) -> None:
        self._folder = folder
        self._most = most
        self._turn = turn
        self._walk: Measurement | None = None
        self._next_at = 0.0
        self._walked_s = 0.0

    def is_over(self) -> bool:
        """Continue counting if it is time; whether there are too many."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        if self._walk is None:
            parts = [self._folder.app.name, self._folder.tmp.name, self._folder.run.name]
            self._walk, self._walked_s = Measurement(str(self._folder.path), parts, ()), 0.0
        walk = self._walk
        walk.advance(_COUNT_PIECE_S)
        took_s = time.monotonic() - now
        self._walked_s += took_s
        self._next_at = now + took_s / _COUNT_SHARE
        if walk.done:
            self._walk = None
            self._turn.written_bytes = walk.occupied_bytes
        return walk.file_count > self._most or walk.has_too_many
