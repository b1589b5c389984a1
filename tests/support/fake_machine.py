"""A runtime whose replicas are scripts on a clock: the simulation's machine, and tests'.

Same contract and same replica folders as the process runtime, so that all above it works unchanged.
What is virtual are the processes: they live in a `FakeMachine`, which outlives its drivers as a
machine outlives its agent.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Self

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
from nodeagent.runtimes.records import read_exit, write_exit, write_stop
from nsml._frames import MAGIC, frame
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
    from nodeagent.runtimes.interface import ReplicaSpec
    from nsml.common.clock import Clock

_CONTACT_LOOKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something a script does `after_s` seconds after what it did before.

    Writes `output` to the log, `files` (by their paths in the replica's run folder), and each of
    `records` (JSON objects) to the record file of writer 1, where `lost` numbers are missing before each.
    """

    after_s: float = 0.0
    output: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    records: Sequence[Mapping[str, object]] = ()
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a replica does in place of a program: its acts in order, then its end.

    It ends with `exit_code`, or by `signal` when that is set, or runs on (`forever`). On SIGTERM it
    ends after `stops_in_s`, never when that is None. With `start_error` it cannot be started.
    """

    acts: Sequence[Act] = ()
    exit_code: int = 0
    signal: int | None = None
    forever: bool = False
    stops_in_s: float | None = 0.0
    start_error: str = ""


@dataclass(frozen=True, slots=True)
class _Order:
    why: ExitWhy
    reason: str
    grace_s: float


@dataclass(slots=True)
class _Process:
    """One running script with its shim's duties."""

    spec: ReplicaSpec
    folder: ReplicaFolder
    script: Script
    started_at: float
    started_monotonic: float
    orders: asyncio.Queue[_Order | None] = field(default_factory=asyncio.Queue)
    """Orders to stop; None says that the script has come to its end."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False
    contact: float = 0.0
    records: int = 0


class FakeMachine:
    """Where fake replicas run. Entered as a context; leaving it is the machine's power loss.

    `script_of` chooses what each spec does.
    """

    def __init__(self, clock: Clock, script_of: Callable[[ReplicaSpec], Script]) -> None:
        self._clock = clock
        self._script_of = script_of
        self._group = TaskGroup()
        self._tasks: dict[ReplicaId, asyncio.Task[None]] = {}
        self._processes: dict[ReplicaId, _Process] = {}

    async def __aenter__(self) -> Self:
        """Power on."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """End every replica without an exit record."""
        for task in self._tasks.values():
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def start(self, spec: ReplicaSpec, folder: ReplicaFolder) -> None:
        """Run the script of `spec` unless a process for it was ever started."""
        if folder.shim.exists():
            return
        write_atomically(folder.shim, b'{"pid": 0, "start_ticks": 0, "boot_id": "fake"}')
        process = _Process(
            spec=spec,
            folder=folder,
            script=self._script_of(spec),
            started_at=self._clock.time(),
            started_monotonic=self._clock.monotonic(),
            contact=self._clock.monotonic(),
        )
        self._processes[spec.replica_id] = process
        self._tasks[spec.replica_id] = self._group.create_task(self._live(process))

    def running(self, replica_id: ReplicaId) -> bool:
        """Whether the replica's processes are there."""
        process = self._processes.get(replica_id)
        return process is not None and not process.gone.is_set()

    def started_at(self, replica_id: ReplicaId) -> float:
        """When the replica's program began, in Unix seconds."""
        return self._processes[replica_id].started_at

    def order_stop(self, replica_id: ReplicaId, *, grace_s: float, reason: str) -> None:
        """What SIGTERM to a shim does."""
        if self.running(replica_id):
            self._processes[replica_id].orders.put_nowait(_Order(ExitWhy.STOPPED, reason, grace_s))

    def contacted(self, replica_id: ReplicaId) -> None:
        """What touching `contact` does."""
        if self.running(replica_id):
            self._processes[replica_id].contact = self._clock.monotonic()

    def lose(self, replica_id: ReplicaId) -> None:
        """Kill the shim and with it the replica; no exit record is written."""
        self._tasks[replica_id].cancel()

    async def gone(self, replica_id: ReplicaId) -> None:
        """Return when no process of the replica is there."""
        process = self._processes.get(replica_id)
        if process is not None:
            await process.gone.wait()

    async def _live(self, process: _Process) -> None:
        try:
            async with TaskGroup() as group:
                beside = [
                    group.create_task(self._act(process)),
                    group.create_task(self._keep_limits(process)),
                ]
                record = await self._run_script(process)
                for task in beside:
                    task.cancel()
            write_exit(process.folder, record, is_durable=False)
        finally:
            process.gone.set()

    async def _run_script(self, process: _Process) -> ExitRecord:
        """Wait for the script's end or an order to stop, whichever comes first."""
        script = process.script
        if script.start_error:
            return self._record(process, ExitWhy.START_FAILED, 127, None, script.start_error)
        order = await process.orders.get()
        if order is None:
            return self._ended(process, ExitWhy.EXITED, "")
        process.stopping = True
        now = self._clock.monotonic()
        kill_at = now + max(order.grace_s, 0.0)
        obeys_at = kill_at if script.stops_in_s is None else now + script.stops_in_s
        while (left := min(kill_at, obeys_at) - self._clock.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    later = await process.orders.get()
            except TimeoutError:
                continue
            if later is None:
                return self._ended(process, order.why, order.reason)
            kill_at = min(kill_at, self._clock.monotonic() + max(later.grace_s, 0.0))
        number = SIGTERM if obeys_at < kill_at else SIGKILL
        return self._record(process, order.why, None, number, order.reason)

    async def _act(self, process: _Process) -> None:
        for act in process.script.acts:
            await self._clock.sleep(act.after_s)
            if act.output:
                with process.folder.output.open("ab") as log:
                    log.write(act.output)
            for name, content in act.files.items():
                path = process.folder.run / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if act.records:
                _append_records(process, act)
        if not process.script.forever:
            process.orders.put_nowait(None)

    async def _keep_limits(self, process: _Process) -> None:
        """Order the end at the time limit, and when contact is lost, as the shim does."""
        spec = process.spec
        looks = [spec.lost_after_s / _CONTACT_LOOKS] if spec.lost_after_s else []
        if spec.time_limit_s is not None:
            looks.append(spec.time_limit_s)
        if not looks:
            return
        while not process.stopping:
            await self._clock.sleep(min(looks))
            now = self._clock.monotonic()
            if spec.time_limit_s is not None:
                left = process.started_monotonic + spec.time_limit_s - now
                if left <= 0:
                    reason = f"the time limit of {spec.time_limit_s:g} s"
                    process.orders.put_nowait(_Order(ExitWhy.TIME_LIMIT, reason, spec.grace_s))
                    return
                looks[-1] = left
            if spec.lost_after_s is not None:
                grace_s = min(spec.grace_s, spec.lost_after_s / 2)
                spare = grace_s + spec.lost_after_s / _CONTACT_LOOKS
                if now >= process.contact + spec.lost_after_s - spare:
                    reason = f"no contact for {spec.lost_after_s:g} s"
                    process.orders.put_nowait(_Order(ExitWhy.LOST_AFTER, reason, grace_s))
                    return

    def _ended(self, process: _Process, why: ExitWhy, message: str) -> ExitRecord:
        script = process.script
        code = None if script.signal else script.exit_code
        return self._record(process, why, code, script.signal, message)

    def _record(
        self, process: _Process, why: ExitWhy, code: int | None, number: int | None, message: str
    ) -> ExitRecord:
        return ExitRecord(
            why=why,
            exit_code=code,
            signal=number,
            message=message,
            started_at=process.started_at,
            ended_at=self._clock.time(),
            duration_s=self._clock.monotonic() - process.started_monotonic,
            output_bytes=process.folder.output.stat().st_size,
        )


class FakeDriver:
    """`RuntimeDriver` on a `FakeMachine`; several over time may share the machine and folders."""

    def __init__(self, folders: ReplicaFolders, machine: FakeMachine, clock: Clock) -> None:
        self._folders = folders
        self._machine = machine
        self._clock = clock

    async def __aenter__(self) -> Self:
        """Make the replicas' folder."""
        self._folders.create()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Nothing is held."""

    async def start(self, spec: ReplicaSpec) -> ReplicaHandle:
        """See `RuntimeDriver.start`."""
        folder = self._folders.of(spec.replica_id)
        adopted = folder.shim.exists()
        if not adopted:
            if not spec.argv:
                raise StartRefused("there is no program to start: argv is empty")
            for mount in spec.mounts:
                if not mount.source.exists():
                    raise StartRefused(f"{mount.target}: the node has no such folder yet")
            folder.create()
            write_atomically(folder.spec, json.dumps({"argv": list(spec.argv)}).encode())
            self._machine.start(spec, folder)
        return ReplicaHandle(replica_id=spec.replica_id, folder=folder, adopted=adopted)

    async def stop(
        self, replica_id: ReplicaId, *, grace_s: float, reason: str, notice_s: float = 0.0
    ) -> None:
        """See `RuntimeDriver.stop`; its programs can save nothing, so that notice is of no use to them."""
        folder = self._folders.of(replica_id)
        if not folder.spec.exists():
            raise ReplicaNotFound(str(replica_id))
        if not folder.exit.exists():
            write_stop(folder, reason=reason, grace_s=grace_s, notice_s=notice_s)
            self._machine.order_stop(replica_id, grace_s=grace_s, reason=reason)

    async def kill(self, replica_id: ReplicaId, *, reason: str) -> None:
        """See `RuntimeDriver.kill`."""
        await self.stop(replica_id, grace_s=0.0, reason=reason)

    async def list(self) -> Sequence[ReplicaFacts]:
        """See `RuntimeDriver.list`."""
        return [self._facts(replica_id) for replica_id in self._folders.ids()]

    async def wait(self, replica_id: ReplicaId) -> ExitRecord:
        """See `RuntimeDriver.wait`."""
        folder = self._folders.of(replica_id)
        if not folder.shim.exists():
            raise ReplicaNotFound(str(replica_id))
        await self._machine.gone(replica_id)
        return read_exit(folder) or self._settle_lost(folder)

    async def remove(self, replica_id: ReplicaId) -> None:
        """See `RuntimeDriver.remove`."""
        if self._machine.running(replica_id):
            raise ReplicaRunning(str(replica_id))
        self._folders.of(replica_id).remove()

    def _facts(self, replica_id: ReplicaId) -> ReplicaFacts:
        folder = self._folders.of(replica_id)
        if self._machine.running(replica_id):
            return ReplicaFacts(
                replica_id=replica_id,
                state=ReplicaState.RUNNING,
                pid=0,
                started_at=self._machine.started_at(replica_id),
            )
        if not folder.shim.exists():
            return ReplicaFacts(replica_id=replica_id, state=ReplicaState.PREPARED)
        record = read_exit(folder) or self._settle_lost(folder)
        return ReplicaFacts(replica_id=replica_id, state=ReplicaState.EXITED, exit=record)

    def _settle_lost(self, folder: ReplicaFolder) -> ExitRecord:
        now = self._clock.time()
        record = ExitRecord(
            why=ExitWhy.SHIM_LOST,
            exit_code=None,
            signal=None,
            message="the shim was killed or the machine restarted",
            started_at=now,
            ended_at=now,
            duration_s=0.0,
        )
        write_exit(folder, record, is_durable=False)
        return record


def _append_records(process: _Process, act: Act) -> None:
    """Append framed records as the SDK does."""
    frames = []
    for record in act.records:
        process.records += 1 + act.lost
        frames.append(frame(process.records, json.dumps(record).encode()))
    with (process.folder.spool / "1.records").open("ab") as file:
        if file.tell() == 0:
            file.write(MAGIC)
        file.write(b"".join(frames))
