"""One replica's life on its node: prepare, start, watch, collect, and finally destroy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NoReturn, Protocol

import structlog

from nodeagent.collect.log_metrics import LogRequest
from nodeagent.collect.spool import text_of
from nodeagent.confinement import is_confined, is_sealed
from nodeagent.folders import FIRST_LOST, ReplicaFolder, ReplicaId, write_atomically
from nodeagent.link.outbox import Outbox, replica_of
from nodeagent.link.reports import exit_of, exit_without_start, placed_as, report_of
from nodeagent.machine.accounts import Accounts, AccountsError
from nodeagent.network.gang_network import GangNetwork, hostfile_text
from nodeagent.network.host_network import NetworkOffer, has_no_network, network_of
from nodeagent.replica.assignments import account_of, note_unstarted, owner_of, read_unstarted
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.replica.preparation_steps import (
    Draft,
    Hook,
    PreparationFailed,
    argv_of,
    cause_of,
    environment_of,
)
from nodeagent.replica.progress import LOOKS_S, TOLD_EVERY_S, Looks, Progress, read_progress
from nodeagent.replica.secrets import GivenSecrets
from nodeagent.runtimes.interface import (
    DeviceGrant,
    EngineGone,
    ExitRecord,
    ImageGone,
    Isolation,
    ReplicaFacts,
    ReplicaSpec,
    ReplicaState,
    RuntimeDriver,
    StartRefused,
)
from nodeagent.runtimes.shares import is_kept_by_mps, mps_mount
from nodeagent.safe_paths import open_folder
from nodeagent.storage.checkpoints import OnlyResult, SavedCheckpoint, Uploads
from nodeagent.storage.outputs import has_new_files, keep_files, take_outputs
from nsml.common.clock import Clock, Offload
from nsml.common.concurrency import TaskGroup
from nsml.log_metrics.patterns import check_all
from nsml.spec.output_datasets import output_dataset
from nsml.spec.submission_exits import PREDICTION
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions
from nsml.view.times import seconds_of

_LINGER_S = 0.15
"""A shorter program costs one report, not three: nobody could see it run."""
_STOP_AGAIN_S = 1.0
_WARNING_S, _WARNING_SHARE = 60.0, 0.1
"""How long before its time limit a program is warned: at most this time, and this share of it."""
_ENDED = frozenset({pb.REPLICA_PHASE_EXITED, pb.REPLICA_PHASE_FINALIZED})

log = structlog.get_logger()


class Collection(Protocol):
    """Sends a replica's records to the control plane."""

    def finish(self) -> None:
        """The program has ended, and writes nothing more."""
        ...

    async def finished(self) -> None:
        """Return, after `finish`, once everything is acknowledged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Default limits of a replica; 0: no limit. Sizes in bytes."""

    shm_bytes: int = 1 << 30
    disk_bytes: int = 0
    process_count: int = 0
    keep_files_bytes: int = 1 << 30
    """Limit of the kept files of an attempt."""
    keep_files_by_default_bytes: int = 100 << 20
    """The same if the user did not ask to keep files."""


Collect = Callable[
    [ReplicaId, ReplicaFolder, Uploads, Callable[[bool], None], LogRequest],
    AbstractAsyncContextManager[Collection],
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    """Shared by all runners of a node.

    `grants` looks devices up by uuid, ValueError for a missing one; `collect` sends
    a replica's records and the metrics in its log that the last argument requests, and calls the one before when the program
    pauses or continues; `listen` opens
    its request socket, for its owner; `reachable` allows tunnels to its program, and `closed` refuses them with the reason; `streaming` serves its
    streamed datasets; `run_long` is
    for work that the program can prolong; `mps_folder` has the pipes of the machine's MPS, if it
    is used.
    """

    runtime: RuntimeDriver
    hooks: Sequence[Hook]
    outbox: Outbox
    isolation: Isolation
    accounts: Accounts | None
    gangs: GangNetwork
    networks: NetworkOffer
    mps_folder: Path | None
    sdk_folder: Path | None
    grants: Callable[[Sequence[str]], list[DeviceGrant]]
    uploads: Callable[[ReplicaId, ReplicaFolder, OnlyResult | None], Uploads]
    collect: Collect
    listen: Callable[[ReplicaId, ReplicaFolder, str], AbstractAsyncContextManager[None]]
    reachable: Callable[[ReplicaId, ReplicaFolder], AbstractContextManager[None]]
    closed: Callable[[ReplicaId], AbstractContextManager[None]]
    streaming: Callable[
        [ReplicaId, ReplicaFolder, sessions.SessionSpec], AbstractAsyncContextManager[None]
    ]
    folder: Callable[[ReplicaId], ReplicaFolder]
    clock: Clock
    run: Offload
    run_long: Offload
    defaults: Defaults = Defaults()


@dataclass(slots=True)
class Runner:
    """Runs one assignment; `work` is its life, all else may be called at any time."""

    place: RunnerContext
    replica_id: ReplicaId
    assignment: pb.Assignment
    folder: ReplicaFolder = field(init=False)
    """The replica's folder."""
    phase: pb.ReplicaPhase = pb.REPLICA_PHASE_PREPARING
    exit: pb.ReplicaExit | None = None
    stop_order: pb.StopOrder | None = None
    secrets: GivenSecrets = field(default_factory=GivenSecrets)
    started_at: float = 0.0
    """Unix seconds; 0: its program has not started."""
    has_collected: bool = False
    """Whether cursors of its records may exist."""
    _since: float = 0.0
    _waiting: str = ""
    _image: str = ""
    _python_version: str = ""
    progress: Progress = field(default_factory=Progress)
    """Its progress as reported to the control plane; of rank 0 alone."""
    _looks: Looks = field(default_factory=Looks)
    _told_at: float = float("-inf")
    _is_started: bool = False
    _preparing: asyncio.Task[PreparationFailed | None] | None = None
    _finalized: asyncio.Event = field(default_factory=asyncio.Event)
    _unlisted: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Cache its folder: paths take time to build."""
        self.folder = self.place.folder(self.replica_id)

    @property
    def is_running(self) -> bool:
        """Whether it holds its devices."""
        return self.phase not in _ENDED

    def report(self) -> pb.ReplicaReport:
        """Return its current state."""
        return report_of(
            self.replica_id,
            self.phase,
            at=self._since or self.place.clock.time(),
            end=self.exit,
            waiting=self._waiting if self.phase == pb.REPLICA_PHASE_PREPARING else "",
            image=self._image,
            python_version=self._python_version,
        )

    def introduction(self) -> pb.ReplicaReport:
        """Return its current state, for a control plane that may not know it."""
        report = self.report()
        if self.is_running:
            report.placed_as.CopyFrom(placed_as(self.assignment, started_at=self.started_at))
        return report

    def finalized(self) -> None:
        """The control plane has its end and all of its records."""
        self._finalized.set()

    def unlisted(self) -> None:
        """The orders no longer name it."""
        self._unlisted.set()

    async def stop(self, order: pb.StopOrder) -> None:
        """Order the end, or shorten an earlier order's grace; no effect after its end."""
        if self.stop_order == order or not self.is_running:
            return
        before, self.stop_order = self.stop_order, order
        try:
            if self._is_started:
                await self._order_stop(order)
            elif self._preparing is not None:
                self._preparing.cancel()
        except OSError:
            self.stop_order = before  # so that the same order is carried out when repeated
            raise

    async def work(self, facts: ReplicaFacts | None = None) -> None:
        """Run from the state in `facts` (None: not begun) until its folder is removed."""
        if facts is not None and facts.exit is not None:
            await self._collect(exit_of(facts.exit, self.stop_order, self.folder))
        else:
            owner = owner_of(self.assignment)
            async with (
                self.place.listen(self.replica_id, self.folder, owner),
                self.place.streaming(self.replica_id, self.folder, self.assignment.spec),
            ):
                await self._live(facts)
        await self._destroy()

    async def _live(self, facts: ReplicaFacts | None) -> None:
        """Run from the start, or from a running program, to its last record."""
        is_new = facts is None or facts.state is ReplicaState.PREPARED
        failure = await self._start(is_again=facts is not None) if is_new else None
        self.secrets.forget()
        if failure is not None:
            await self._collect(failure)
            return
        self._is_started = True
        self.started_at = self.started_at or self.place.clock.time()
        if self.stop_order is not None:
            await self._insist_on_stop(self.stop_order)
        record = await self._linger()
        if record is None:
            await self._collect(None)
        elif is_new and self._left_nothing(record) and not await self._left_files():
            self._end(pb.REPLICA_PHASE_FINALIZED, exit_of(record, self.stop_order, self.folder))
        else:
            await self._collect(exit_of(record, self.stop_order, self.folder))

    async def _start(self, *, is_again: bool) -> pb.ReplicaExit | None:
        """Prepare and start; return its end if that failed, else None.

        `is_again`: an earlier agent began, and may have noted its end.
        """
        if is_again:
            noted = await self.place.run(lambda: read_unstarted(self.folder))
            if noted is not None:
                return noted
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        words = PreparationLog(self.folder, lambda: loop.call_soon_threadsafe(told.set))
        try:
            return await self._prepare_and_start(words, told)
        except ImageGone as error:
            # another agent's disk was short between the two
            log.warning("image.gone", replica=str(self.replica_id), reason=str(error))
        try:
            return await self._prepare_and_start(words, told)
        except ImageGone as error:
            draft = Draft(self.assignment, self.folder, words)
            return await self._fail(draft, sessions.CAUSE_START_FAILED, str(error))

    async def _prepare_and_start(
        self, words: PreparationLog, told: asyncio.Event
    ) -> pb.ReplicaExit | None:
        """As `_start`; raises ImageGone when its image was removed before the start."""
        draft = Draft(
            self.assignment,
            self.folder,
            words,
            waits=self._waits_from_thread(),
            logins=self.secrets.logins,
        )
        problem = self.secrets.problem(self.assignment.spec.secrets)
        if problem and self.stop_order is None:
            return await self._fail(draft, sessions.CAUSE_START_FAILED, problem)
        hooks = [hook for hook in self.place.hooks if hook.applies(self.assignment.spec)]
        if hooks and self.stop_order is None:
            failure = await self._prepare(hooks, draft, told)
            if failure is not None:
                return await self._fail(draft, failure.cause, str(failure))
        if self.stop_order is not None:
            cause = self.stop_order.cause or sessions.CAUSE_STOP_REQUESTED
            return await self._unstarted(
                cause, self.stop_order.reason or "stopped before it started"
            )
        try:
            uid = await self._uid()
            spec = self._spec(draft, uid)
            hosts = spec.env["NSML_PARALLEL_WORLD"].split(",")
            text = hostfile_text(hosts, len(spec.devices))
            await self.place.run(partial(self.folder.write_hostfile, text))
            folder = self.place.mps_folder
            if folder is not None and is_kept_by_mps(spec):
                pipes = await self.place.run(partial(mps_mount, folder))
                spec = replace(spec, mps_pipes=pipes)
            await self.place.runtime.start(spec)
        except ImageGone:
            raise
        except EngineGone as error:
            return await self._fail(draft, sessions.CAUSE_NODE_REFUSED, str(error))
        except (AccountsError, StartRefused, OSError, ValueError) as error:
            cause = cause_of(error, sessions.CAUSE_START_FAILED)
            return await self._fail(draft, cause, str(error))
        return None

    async def _prepare(
        self, hooks: Sequence[Hook], draft: Draft, told: asyncio.Event
    ) -> PreparationFailed | None:
        async with TaskGroup() as group:
            telling = group.create_task(self._tell(told))
            preparing = self._preparing = group.create_task(
                _run_hooks(hooks, draft, self.place.clock)
            )
            await asyncio.wait([preparing])
            telling.cancel()
        self._preparing = None
        self._image, self._python_version = draft.pinned_image, draft.python_version
        return None if preparing.cancelled() else preparing.result()

    async def _tell(self, told: asyncio.Event) -> NoReturn:
        """Send messages of the preparation while it runs, from the first one on.

        The later collection continues at the last acknowledged one: those only sent are sent again.
        """
        await told.wait()
        self.has_collected = True
        uploads = self._uploads()
        async with self.place.collect(
            self.replica_id, self.folder, uploads, self._paused, LogRequest()
        ):
            await asyncio.Event().wait()
        raise AssertionError

    async def _uid(self) -> int | None:
        """Return the uid of its program on this machine; None: the agent's own."""
        accounts = self.place.accounts
        owner = account_of(self.assignment)
        if accounts is None:
            return None
        known = accounts.known(owner)
        return await self.place.run(lambda: accounts.of_user(owner)) if known is None else known

    def _spec(self, draft: Draft, uid: int | None) -> ReplicaSpec:
        spec = self.assignment.spec
        grants = self.place.grants(self.assignment.device_uuids)
        given, limits = self.assignment.resources, spec.limits
        network = network_of(spec, self.place.gangs, self.place.networks)
        defaults, endpoint = self.place.defaults, draft.endpoint
        return ReplicaSpec(
            replica_id=self.replica_id,
            argv=argv_of(spec),
            secrets={**self.secrets.values, **(endpoint.secret if endpoint else {})},
            listener_variables=endpoint.urls if endpoint else (),
            env={
                **environment_of(self.assignment, self.replica_id, grants, network),
                **({"NSML_RESUME": draft.resumes_from} if draft.resumes_from else {}),
                **(endpoint.plain if endpoint else {}),
            },
            mounts=draft.mounts,
            devices=grants,
            device_share=given.gpu_thousandths / 1000 / max(len(grants), 1) or 1.0,
            time_limit_s=seconds_of(spec.time_limit) if spec.HasField("time_limit") else None,
            warning_s=min(seconds_of(spec.time_limit) * _WARNING_SHARE, _WARNING_S),
            leaves_at_limit=spec.retry_count > 0,
            grace_s=seconds_of(spec.grace),
            lost_after_s=seconds_of(spec.lost_after) if spec.HasField("lost_after") else None,
            isolation=self.place.isolation,
            memory_bytes=given.memory_bytes or None,
            cpus=given.cpu_thousandths / 1000 or None,
            shm_bytes=limits.shm_bytes or defaults.shm_bytes,
            disk_bytes=limits.disk_bytes or defaults.disk_bytes or None,
            process_count=limits.process_count or defaults.process_count or None,
            sdk_folder=self.place.sdk_folder,
            python=draft.python,
            uid=uid,
            gid=uid,
            groups=draft.groups,
            image=draft.image,
            image_name=draft.image_name,
            names=draft.names,
            gang=network,
            without_network=has_no_network(spec),
        )

    async def _linger(self) -> ExitRecord | None:
        """Return the end of a program that ends at once; None if it runs."""
        try:
            async with asyncio.timeout(_LINGER_S):
                return await self.place.runtime.wait(self.replica_id)
        except TimeoutError:
            return None

    async def _collect(self, end: pb.ReplicaExit | None) -> None:
        """Send the replica's records while it runs (`end` is None) and after."""
        self.has_collected = True
        uploads = self._uploads()
        await uploads.restore()
        collecting = self.place.collect(
            self.replica_id, self.folder, uploads, self._paused, self._log_request()
        )
        async with collecting as collection, TaskGroup() as group:
            uploading = group.create_task(uploads.work())
            if end is None:
                end = await self._watch(group)
            # also of a program that ended unseen: a fork resumes from its last save
            await self._note_progress(is_last=True)
            self._end(pb.REPLICA_PHASE_EXITED, end)
            await self._note_left(uploads, end)
            await self._free()
            await self._say_not_kept(uploads)
            collection.finish()
            await collection.finished()
            await uploads.finished()
            uploading.cancel()
        self._end(pb.REPLICA_PHASE_FINALIZED, end)

    def _log_request(self) -> LogRequest:
        """Return the requests for metrics out of its log that this version understands."""
        spec = self.assignment.spec
        try:
            check_all(spec.log_metrics)
        except ValueError as error:
            log.warning("log_metrics.refused", replica=str(self.replica_id), error=str(error))
            return LogRequest()
        first = self.replica_id.rank * max(len(self.assignment.device_uuids), 1)
        return LogRequest(() if is_sealed(spec) else tuple(spec.log_metrics), first)

    def _uploads(self) -> Uploads:
        only = _only_result(self.assignment.spec)
        return self.place.uploads(self.replica_id, self.folder, only)

    async def _note_left(self, uploads: Uploads, end: pb.ReplicaExit) -> None:
        """Send the program's remaining files, once: a later agent finds its folders moved, sent or removed."""
        if await self.place.run(self.folder.left.exists):
            return
        left = await self._left(end)
        if not await uploads.add_found(*left):
            return
        try:
            noting = partial(write_atomically, self.folder.left, b"", is_durable=True)
            await self.place.run(noting)
        except OSError as error:  # noted files are sent, whether or not the next agent looks again
            log.warning("replica.left_not_noted", replica=str(self.replica_id), error=str(error))
        await self._say_not_made(left, end)

    async def _say_not_made(self, left: list[SavedCheckpoint], end: pb.ReplicaExit) -> None:
        """Append to its log which output datasets get no version, and why."""
        outputs = [output_dataset(one).name for one in self.assignment.spec.output_datasets]
        if self.replica_id.rank or not outputs or not end.HasField("started_at"):
            return
        why = {one.name: one.lost for one in left if one.name in outputs and one.lost}
        if end.cause != sessions.CAUSE_COMPLETED:
            why = dict.fromkeys(outputs, "the program did not succeed")
        await self._say_lines(
            [f"no version of output dataset {name}: {text}" for name, text in why.items()]
        )

    async def _say_not_kept(self, uploads: Uploads) -> None:
        """Append to its log which files of its working folder are not kept, after sending: some failures only show then."""
        kept = await uploads.kept_files()
        if kept is not None and (line := _not_kept(kept)):
            await self._say_lines([line])

    async def _say_lines(self, lines: Sequence[str]) -> None:
        """Append lines to its log, after its last writer."""

        def write() -> None:
            words = PreparationLog(self.folder, lambda: None)
            for line in lines:
                words.note(line)

        try:
            await self.place.run(write)
        except OSError as error:
            log.warning("replica.log_not_written", replica=str(self.replica_id), error=str(error))

    async def _left(self, end: pb.ReplicaExit) -> list[SavedCheckpoint]:
        """Return files to send: output folders of a successful program, and kept files."""
        spec = self.assignment.spec
        if self.replica_id.rank or not end.HasField("started_at"):
            return []
        at = end.ended_at.ToMicroseconds() / 1e6
        found: list[SavedCheckpoint] = []
        if spec.output_datasets and end.cause == sessions.CAUSE_COMPLETED:
            outputs = [output_dataset(one) for one in spec.output_datasets]
            found += await self.place.run_long(partial(take_outputs, self.folder, outputs, at=at))
        if spec.keep_files:
            is_asked, defaults = not spec.keep_files_by_default, self.place.defaults
            limit = defaults.keep_files_bytes if is_asked else defaults.keep_files_by_default_bytes
            kept = await self.place.run_long(
                partial(keep_files, self.folder, at=at, most_bytes=limit, is_asked=is_asked)
            )
            found += [kept] if kept is not None else []
        return found

    async def _free(self) -> None:
        """Free its unneeded disk space: the rest may be waiting for it."""
        try:
            await self.place.run_long(self.folder.free)
        except OSError as error:
            log.warning("replica.not_freed", replica=str(self.replica_id), error=str(error))

    async def _watch(self, group: TaskGroup) -> pb.ReplicaExit:
        following = group.create_task(self._follow_progress())
        place = self.place
        with (
            place.closed(self.replica_id)
            if is_confined(self.assignment.spec)
            else place.reachable(self.replica_id, self.folder)
        ):
            self._say(pb.REPLICA_PHASE_RUNNING)
            record = await self.place.runtime.wait(self.replica_id)
        following.cancel()
        return exit_of(record, self.stop_order, self.folder)

    async def _follow_progress(self) -> NoReturn:
        pause_s, longest_s = LOOKS_S
        while True:
            await self.place.clock.sleep(pause_s)
            await self._note_progress()
            pause_s = min(2 * pause_s, longest_s)

    async def _note_progress(self, *, is_last: bool = False) -> None:
        """Read its progress, and report it if it has changed."""
        if self.replica_id.rank:
            return
        try:
            found = await self.place.run(lambda: read_progress(self.folder.run))
        except OSError:
            return
        known, clock = self.progress, self.place.clock
        now = clock.monotonic()
        found = self._looks.found(found, wall=clock.time(), steady=now)
        is_first = found.is_resumable != known.is_resumable or not known.saved_at
        is_rare = is_first or now >= self._told_at + TOLD_EVERY_S
        if found != known and (is_rare or is_last):
            self.progress, self._told_at = found, now
            self.place.outbox.wake.set()

    async def _destroy(self) -> None:
        """Wait until it is no longer needed, then remove it.

        While the orders name it, its folder shows this agent and the next that it has ended.
        """
        await self._finalized.wait()
        await self._unlisted.wait()
        await self.place.runtime.remove(self.replica_id)
        log.info("replica.removed", replica=str(self.replica_id))

    async def _fail(self, draft: Draft, cause: sessions.Cause, message: str) -> pb.ReplicaExit:
        """Log why a replica could not be started, and return its end."""
        log.warning("replica.preparation_failed", replica=str(self.replica_id), error=message)
        try:
            await self.place.run(lambda: draft.log.note(message))
        except OSError as error:
            log.warning("replica.log_not_written", replica=str(self.replica_id), error=str(error))
        return await self._unstarted(cause, message)

    async def _unstarted(self, cause: sessions.Cause, message: str) -> pb.ReplicaExit:
        end = exit_without_start(cause, message, at=self.place.clock.time())
        try:
            await self.place.run(lambda: note_unstarted(self.folder, end))
        except OSError as error:
            # The next agent would try to start it again, which is harmless: it never ran.
            log.warning("replica.end_not_noted", replica=str(self.replica_id), error=str(error))
        return end

    async def _order_stop(self, order: pb.StopOrder) -> None:
        grace = order.grace if order.HasField("grace") else self.assignment.spec.grace
        await self.place.runtime.stop(
            self.replica_id,
            grace_s=seconds_of(grace),
            reason=order.reason,
            notice_s=seconds_of(order.notice),
        )

    async def _insist_on_stop(self, order: pb.StopOrder) -> None:
        while True:
            try:
                return await self._order_stop(order)
            except OSError as error:
                log.warning("replica.stop_failed", replica=str(self.replica_id), error=str(error))
                await self.place.clock.sleep(_STOP_AGAIN_S)

    def _left_nothing(self, record: ExitRecord) -> bool:
        """Whether the program wrote neither output nor records, and left their folders unchanged."""
        try:
            with open_folder(self.folder.run, ["spool"]) as spool, os.scandir(spool) as files:
                has_reported = any(file.name != FIRST_LOST for file in islice(files, 2))
                is_whole = not has_reported and not text_of(FIRST_LOST, spool).strip()
                return record.output_bytes == 0 and is_whole
        except OSError:
            return False

    async def _left_files(self) -> bool:
        """Whether files of its working folder may have to be sent."""
        spec = self.assignment.spec
        if self.replica_id.rank:
            return False
        return bool(spec.output_datasets) or (
            spec.keep_files and await self.place.run_long(partial(has_new_files, self.folder))
        )

    def _paused(self, is_paused: bool) -> None:
        if is_sealed(self.assignment.spec):
            return  # users see it change: a program could tell them hidden inputs so
        if self.phase in {pb.REPLICA_PHASE_RUNNING, pb.REPLICA_PHASE_PAUSED}:
            self._say(pb.REPLICA_PHASE_PAUSED if is_paused else pb.REPLICA_PHASE_RUNNING)

    def _waits_from_thread(self) -> Callable[[str], None]:
        """Return a function that sets, from any thread, why the preparation waits; "": it continues."""
        loop = asyncio.get_running_loop()

        def wait_for(reason: str) -> None:
            if self.phase == pb.REPLICA_PHASE_PREPARING and reason != self._waiting:
                self._waiting = reason
                self._say(self.phase)

        def wait_from_thread(reason: str) -> None:
            loop.call_soon_threadsafe(wait_for, reason)

        return wait_from_thread

    def _end(self, phase: pb.ReplicaPhase, end: pb.ReplicaExit) -> None:
        self.exit = end
        self._say(phase)

    def _say(self, phase: pb.ReplicaPhase) -> None:
        self.phase = phase
        self._since = self.place.clock.time()
        self.place.outbox.put(self.replica_id, self.report())


def _only_result(spec: sessions.SessionSpec) -> OnlyResult | None:
    """Return all that a sealed session sends; None: anything."""
    if not is_sealed(spec):
        return None
    most = spec.environment.get("NSML_PREDICTION_BYTES", "")
    return OnlyResult(name=PREDICTION, most_bytes=int(most) if most.isdecimal() else 0)


def _not_kept(files: SavedCheckpoint) -> str:
    """Describe the files that are not kept, for the end of a log; "" for none."""
    if files.lost:
        return f"no files of the working folder are kept: {files.lost}"
    left_out = files.all_left_out(is_named=True)
    return left_out and f"files of the working folder {left_out}"


async def _run_hooks(hooks: Sequence[Hook], draft: Draft, clock: Clock) -> PreparationFailed | None:
    """Run the steps in turn, and log how long each took."""
    took_ms: dict[str, float] = {}
    try:
        for hook in hooks:
            began = clock.monotonic()
            await hook.prepare(draft)
            took_ms[type(hook).__name__] = round(1000 * (clock.monotonic() - began), 1)
    except PreparationFailed as failure:
        return failure
    replica = replica_of(draft.assignment.replica)
    log.info("replica.prepared", replica=str(replica), took_ms=took_ms)
    return None
