"""Base of all runtimes over shims: one shim per replica, found again through its folder.

Subclasses check what they can start and fill `spec.json`; starting, stopping, waiting,
adopting and cleaning up after a killed shim are shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import structlog

from nodeagent.folders import write_atomically
from nodeagent.runtimes.interface import (
    ExitRecord,
    ExitWhy,
    ReplicaFacts,
    ReplicaHandle,
    ReplicaNotFound,
    ReplicaRunning,
    ReplicaState,
    StartRefused,
)
from nodeagent.runtimes.launcher import StartedShim
from nodeagent.runtimes.records import read_claim, read_exit, write_exit, write_stop
from nodeagent.runtimes.strays import (
    Strays,
    account_of,
    group_in,
    has_own_pids,
    id_group_in,
    ticks_now,
    words_of,
)
from nodeagent.shim.cgroups import remove_empty

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.runtimes.launch import Machine
    from nodeagent.runtimes.launcher import Launcher
    from nodeagent.runtimes.records import ShimClaim
    from nodeagent.shim.cgroups import Group
    from nsml.common.clock import Clock, Offload

_SHORTEST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_SETTLED_WITHIN_S = 5.0
"""How long `list` waits for processes of a lost shim; later ones are stuck in the kernel."""
_SAID_AFTER_S = 5.0

log = structlog.get_logger()


@dataclass(slots=True)
class _Watched:
    """A shim whose end this driver awaits."""

    shim: StartedShim
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class ShimDriver(ABC):
    """`RuntimeDriver` over shims; see `interface.py` for the contract.

    `boot_id` is this boot's: claims of others are void. `run_long` is for work that programs can
    prolong; it must not delay `run`.
    """

    def __init__(
        self,
        folders: ReplicaFolders,
        *,
        machine: Machine,
        launcher: Launcher,
        clock: Clock,
        run: Offload,
        run_long: Offload,
    ) -> None:
        self._folders = folders
        self._machine = machine
        self._boot_id = machine.boot_id
        self._launcher = launcher
        self._clock = clock
        self._run = run
        self._run_long = run_long
        self._watched: dict[ReplicaId, _Watched] = {}
        self._turns: dict[ReplicaId, asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        """Open the launcher and create the replicas' folder."""
        await self._run(self._folders.create)
        await self._launcher.open()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Stop watching; the shims continue. Without replicas, control groups are removed too."""
        for replica_id in list(self._watched):
            self._unwatch(replica_id)
        await self._launcher.close()
        # a new shim has no group yet, and needs ours to create it
        if not self._has_live_replicas():
            remove_empty(self._machine.limits.places)

    def _has_live_replicas(self) -> bool:
        return any(not self._folders.of(one).exit.exists() for one in self._folders.ids())

    async def start(self, spec: ReplicaSpec) -> ReplicaHandle:
        """See `RuntimeDriver.start`."""
        folder = self._folders.of(spec.replica_id)
        async with self._turn(spec.replica_id):
            if folder.shim.exists() or folder.exit.exists() or spec.replica_id in self._watched:
                self._watch_claimed(spec.replica_id)
                return ReplicaHandle(replica_id=spec.replica_id, folder=folder, adopted=True)
            await self._refuse_unless_possible(spec)
            await self._run_long(lambda: self._prepare(spec, folder))
            shim = await self._launched(spec, folder)
            self._watch(spec.replica_id, shim)
        log.info("replica.started", replica=str(spec.replica_id), pid=shim.pid)
        return ReplicaHandle(replica_id=spec.replica_id, folder=folder, adopted=False)

    async def _launched(self, spec: ReplicaSpec, folder: ReplicaFolder) -> StartedShim:
        network = None
        try:
            network = await self._network_of(spec)
            return await self._launcher.start(folder, _written(spec.secrets), network)
        except OSError as error:
            raise StartRefused(f"no shim could be started: {error}") from error
        finally:
            if network is not None:
                os.close(network)

    async def _network_of(self, _spec: ReplicaSpec) -> int | None:
        """Return a descriptor of a program's network namespace; None: the machine's. Raises OSError."""
        return None

    async def stop(
        self, replica_id: ReplicaId, *, grace_s: float, reason: str, notice_s: float = 0.0
    ) -> None:
        """See `RuntimeDriver.stop`."""
        folder = self._folders.of(replica_id)
        if not folder.spec.exists():
            raise ReplicaNotFound(str(replica_id))
        if folder.exit.exists():
            return
        # a shim without a claim is not ready for signals, and reads the order after its claim
        is_ready = folder.shim.exists()
        try:
            await self._run(
                lambda: write_stop(folder, reason=reason, grace_s=grace_s, notice_s=notice_s)
            )
        except OSError as error:
            if not is_ready:
                raise
            # A program that fills the disk must be stoppable: a signal alone is an order too.
            log.warning("replica.stop_unwritten", replica=str(replica_id), error=str(error))
        claim, watched = read_claim(folder), self._watched.get(replica_id)
        if claim is not None and watched is not None and watched.shim.pid != claim.pid:
            await watched.gone.wait()  # another has the claim: this one ends at once
        if claim is None or not self._watch_claimed(replica_id):
            return
        with contextlib.suppress(ProcessLookupError):
            pidfd = self._watched[replica_id].shim.pidfd
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)

    async def kill(self, replica_id: ReplicaId, *, reason: str) -> None:
        """See `RuntimeDriver.kill`."""
        await self.stop(replica_id, grace_s=0.0, reason=reason)

    async def list(self) -> Sequence[ReplicaFacts]:
        """See `RuntimeDriver.list`; also watches running ones."""
        ids = await self._run(self._folders.ids)
        return await asyncio.gather(*map(self._facts, ids))

    async def wait(self, replica_id: ReplicaId) -> ExitRecord:
        """See `RuntimeDriver.wait`."""
        folder = self._folders.of(replica_id)
        if not folder.shim.exists() and replica_id not in self._watched:
            raise ReplicaNotFound(str(replica_id))
        self._watch_claimed(replica_id)
        while (watched := self._watched.get(replica_id)) is not None:
            await watched.gone.wait()
            if folder.exit.exists() or not self._watch_claimed(replica_id):
                break
        record = read_exit(folder)
        if record is not None:
            return record
        async with self._turn(replica_id):
            return await self._settle_lost(replica_id, folder)

    async def remove(self, replica_id: ReplicaId) -> None:
        """See `RuntimeDriver.remove`."""
        folder = self._folders.of(replica_id)
        async with self._turn(replica_id):
            if not folder.exit.exists() and self._watch_claimed(replica_id):
                raise ReplicaRunning(str(replica_id))
            if folder.shim.exists() and not folder.exit.exists():
                await self._settle_lost(replica_id, folder)
            self._unwatch(replica_id)
            await self._run_long(folder.remove)
        self._turns.pop(replica_id, None)

    def _turn(self, replica_id: ReplicaId) -> asyncio.Lock:
        return self._turns.setdefault(replica_id, asyncio.Lock())

    @abstractmethod
    async def _refuse_unless_possible(self, spec: ReplicaSpec) -> None:
        """Raises StartRefused if this runtime cannot start `spec` on this machine."""

    @abstractmethod
    def _content(self, spec: ReplicaSpec, folder: ReplicaFolder) -> Mapping[str, Any]:
        """Return the content of `spec.json`: all that the shim needs. The folder exists."""

    def _prepare(self, spec: ReplicaSpec, folder: ReplicaFolder) -> None:
        """Create all files for the shim; `spec.json` last, since it marks the rest as complete."""
        folder.create()
        folder.touch_contact()
        if spec.uid is not None and spec.gid is not None:
            folder.give(spec.uid, spec.gid)
        # Only whether there are secrets: their values are never on a disk.
        content = {**self._content(spec, folder), "has_secrets": bool(spec.secrets)}
        write_atomically(folder.spec, json.dumps(content).encode())

    async def _clear(self, replica_id: ReplicaId, folder: ReplicaFolder) -> None:
        """Return once nothing is left of a replica whose shim is gone.

        That may be never: a process blocked in the kernel, by a device or a disk, dies only when that
        returns. Even reading its environment may hang, in a thread for this alone.
        """
        strays = await self._run(lambda: self._strays(replica_id, folder))
        await self._insist(
            "replica.cannot_be_killed",
            lambda: [words_of(pid) for pid in strays.kill()],
            replica=str(replica_id),
        )
        if strays.group is not None:
            await self._run(strays.group.remove)

    async def _insist(self, event: str, work: Callable[[], Sequence[str]], **facts: str) -> None:
        """Repeat `work`, in a thread for this alone, until it returns no remains.

        Remains are logged as `event` with these facts, ever more rarely.
        """
        began, said_after_s, pause_s = self._clock.monotonic(), _SAID_AFTER_S, _SHORTEST_PAUSE_S
        while left := await self._run_long(work):
            waited_s = self._clock.monotonic() - began
            if waited_s >= said_after_s:
                said_after_s = 4 * waited_s
                log.warning(event, left=left, waited_s=round(waited_s), **facts)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _strays(self, replica_id: ReplicaId, folder: ReplicaFolder) -> Strays:
        now = ticks_now()  # first: later processes are counted below, or are younger
        uid, group, id_group = account_of(folder), group_in(folder), id_group_in(folder)
        others = (self._folders.of(other) for other in self._folders.ids() if other != replica_id)
        is_enclosed = id_group is not None or self._is_enclosed(group) or has_own_pids(folder)
        is_alone = not is_enclosed and not any(
            account_of(other) == uid and not other.exit.exists() for other in others
        )
        return Strays(
            mark=f"NSML_REPLICA={replica_id}".encode(),
            output=os.path.realpath(folder.output),
            uid=uid,
            began_before=now if uid is not None and is_alone else None,
            group=group,
            id_group=id_group,
        )

    def _is_enclosed(self, group: Group | None) -> bool:
        """Whether no process of a replica can hide: another agent's, of the same uid, may be here."""
        return group is not None

    async def _facts(self, replica_id: ReplicaId) -> ReplicaFacts:
        folder = self._folders.of(replica_id)
        record = read_exit(folder)
        if record is None and self._watch_claimed(replica_id):
            pid = self._watched[replica_id].shim.pid
            return self._running(replica_id, folder, pid)
        if record is None and folder.shim.exists():
            record = await self._settled_soon(replica_id, folder)
            if record is None:
                return self._running(replica_id, folder, None)
        if record is None:
            return ReplicaFacts(replica_id=replica_id, state=ReplicaState.PREPARED)
        return ReplicaFacts(replica_id=replica_id, state=ReplicaState.EXITED, exit=record)

    def _running(
        self, replica_id: ReplicaId, folder: ReplicaFolder, pid: int | None
    ) -> ReplicaFacts:
        return ReplicaFacts(
            replica_id=replica_id,
            state=ReplicaState.RUNNING,
            pid=pid,
            started_at=_started_at(folder, self._clock.time()),
        )

    async def _settled_soon(
        self, replica_id: ReplicaId, folder: ReplicaFolder
    ) -> ExitRecord | None:
        """Return the end of a replica whose shim is gone; None while processes of it are left.

        `list` must not wait long: `wait` does.
        """
        turn = self._turn(replica_id)
        if turn.locked():  # a waiting caller settles it
            return read_exit(folder)
        try:
            async with turn:
                return await self._settle_lost(replica_id, folder, within_s=_SETTLED_WITHIN_S)
        except TimeoutError:
            return None

    def _watch_claimed(self, replica_id: ReplicaId) -> bool:
        """Watch the shim named in the folder's claim; False if it is gone, OSError if unknown.

        It may not be the one that this driver started: of two, only one got the claim.
        """
        watched = self._watched.get(replica_id)
        if watched is not None and not watched.gone.is_set():
            return True
        claim = read_claim(self._folders.of(replica_id))
        if claim is None or claim.boot_id != self._boot_id:
            return False
        if watched is not None and watched.shim.pid == claim.pid:
            return False
        try:
            pidfd = os.pidfd_open(claim.pid)
        except ProcessLookupError:
            return False
        is_ours = False
        try:
            # only now is the pid bound to a process, and can be compared with the claim
            is_ours = is_alive(claim, self._boot_id)
        finally:
            if not is_ours:
                os.close(pidfd)
        if not is_ours:
            return False
        self._unwatch(replica_id)
        self._watch(replica_id, StartedShim(claim.pid, pidfd))
        log.info("replica.adopted", replica=str(replica_id), pid=claim.pid)
        return True

    def _watch(self, replica_id: ReplicaId, shim: StartedShim) -> None:
        watched = _Watched(shim)
        self._watched[replica_id] = watched
        asyncio.get_running_loop().add_reader(shim.pidfd, self._shim_ended, watched)

    def _shim_ended(self, watched: _Watched) -> None:
        asyncio.get_running_loop().remove_reader(watched.shim.pidfd)
        if watched.shim.child:
            watched.shim.child.poll()
        watched.gone.set()

    def _unwatch(self, replica_id: ReplicaId) -> None:
        watched = self._watched.pop(replica_id, None)
        if watched is not None:
            asyncio.get_running_loop().remove_reader(watched.shim.pidfd)
            os.close(watched.shim.pidfd)

    async def _settle_lost(
        self, replica_id: ReplicaId, folder: ReplicaFolder, *, within_s: float | None = None
    ) -> ExitRecord:
        """Write an exit record for a replica whose shim died, once no process of it is left.

        Raises:
            TimeoutError: some are left after `within_s`.
        """
        record = read_exit(folder)
        if record is not None:
            return record
        async with asyncio.timeout(within_s):
            await self._clear(replica_id, folder)
        now = self._clock.time()
        started_at = _started_at(folder, now)
        record = ExitRecord(
            why=ExitWhy.SHIM_LOST,
            exit_code=None,
            signal=None,
            message="the shim was killed or the machine restarted",
            started_at=started_at,
            ended_at=now,
            duration_s=self._ran_s(folder, now - started_at),
            output_bytes=folder.output.stat().st_size if folder.output.exists() else 0,
        )
        log.warning("replica.shim_lost", replica=str(replica_id))
        try:
            await self._run(lambda: write_exit(folder, record))
        except OSError as error:
            # The next call, or a successor, finds a lost shim again: nothing else depends on it.
            log.warning("replica.end_unwritten", replica=str(replica_id), error=str(error))
        return record

    def _ran_s(self, folder: ReplicaFolder, by_wall_s: float) -> float:
        """Return how long a lost shim may have run; after a reboot by the wall clock, which can be set."""
        claim = read_claim(folder)
        if claim is None or claim.boot_id != self._boot_id:
            return max(by_wall_s, 0.0)
        return max(ticks_now() - claim.claimed_ticks, 0) / os.sysconf("SC_CLK_TCK")


def refuse_unsound(spec: ReplicaSpec) -> None:
    """Raise StartRefused for what no runtime can start."""
    if not spec.argv:
        raise StartRefused("there is no program to start: argv is empty")
    for mount in spec.mounts:
        if not mount.source.exists():
            raise StartRefused(f"{mount.target}: the node has no such folder yet")
        if not mount.target.startswith("/") or ".." in Path(mount.target).parts:
            raise StartRefused(f"{mount.target!r} is not an absolute path")


def _started_at(folder: ReplicaFolder, otherwise: float) -> float:
    """Return when all was ready for the shim, in Unix seconds."""
    try:
        return folder.spec.stat().st_mtime
    except FileNotFoundError:
        return otherwise


def _written(secrets: Mapping[str, str]) -> bytes:
    return json.dumps(dict(secrets)).encode() if secrets else b""


def is_alive(claim: ShimClaim, boot_id: str) -> bool:
    """Whether the pid of `claim` is, in this boot, still the process that made it, and no zombie.

    Raises OSError if unknown, for lack of descriptors.
    """
    if claim.boot_id != boot_id:
        return False
    try:
        stat = Path(f"/proc/{claim.pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    fields = stat.rpartition(b")")[2].split()
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == claim.start_ticks
