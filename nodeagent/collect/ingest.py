"""The Ingest stream: output of replicas and measurements of the node, up; acknowledgements, down.

Each replica has a `Collection`: it reads the replica's files from the acknowledged cursors on,
sends their content, and moves the cursors with the acknowledgements. When the stream breaks, all of
them return to their cursors and begin again on the next one: the control plane removes duplicates.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
import structlog

from nodeagent.collect.file_watcher import Writes
from nodeagent.collect.log_metrics import LogMetrics
from nodeagent.collect.pace import Pace
from nodeagent.collect.send_window import SendQueue
from nodeagent.collect.spool import ReplicaSpool, SpoolFollower
from nodeagent.collect.streams import Batch, Channel, Cursor, Gap, Item, StreamId, held_bytes
from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.link.channels import Backoff, Link
from nodeagent.link.outbox import replica_message, replica_of
from nodeagent.storage.checkpoints import SavedCheckpoint, Uploads
from nodeagent.storage.media import file_in
from nodeagent.storage.transfer import uninterrupted
from nsml._frames import REPORT
from nsml.client.errors import ClientError
from nsml.common.clock import Clock, Offload, SystemClock
from nsml.common.concurrency import TaskGroup
from nsml.v1 import agents_pb2 as pb

T = TypeVar("T")

_UNREADABLE_PAUSE_S = 5.0
_UNACKNOWLEDGED_BYTES = 4 << 20
"""Most unacknowledged data of one replica; it does not delay others."""
_CHECKPOINTS_PER_S, _CHECKPOINTS_BURST_S = 10.0, 20.0
"""Limits of a replica's checkpoints while it runs, each of which is noted on disk and sent. Reports without a folder are
dropped before, and after its end there is no limit: a backlog must take no longer than it takes to send."""
_STATES_PER_S = 5.0
_CONCERNING = (b'"checkpoint"', b'"artifact"', b'"media"', b'"state"')
"""Kinds of records that the agent acts on."""
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]

_CHANNELS = {
    Channel.METRIC: pb.CHANNEL_METRIC,
    Channel.LOG: pb.CHANNEL_LOG,
    Channel.STATE: pb.CHANNEL_STATE,
}
_CHANNEL_OF = {number: channel for channel, number in _CHANNELS.items()}

log = structlog.get_logger()

Remember = Callable[[Mapping[StreamId, Cursor | None]], Awaitable[None]]


class Collection:
    """The output of one replica, until all of it is acknowledged.

    Args:
        replica_id: of the replica.
        folder: its folder.
        cursors: already acknowledged.
        uploads: gets checkpoints and media.
        paused: called with True or False when the program reports that it waits or continues.
        run: runs disk work.
        writes: signals data to read; None: files are polled.
        clock: measures the rate of its work.
        pace: of its log; None: unlimited.
        log_metrics: requests for metrics out of its log (`nsml.log_metrics.patterns`).
        process: the first of the replica's, of those that a launcher starts.
    """

    def __init__(
        self,
        replica_id: ReplicaId,
        folder: ReplicaFolder,
        cursors: Mapping[StreamId, Cursor],
        *,
        uploads: Uploads,
        paused: Callable[[bool], None],
        run: Offload,
        writes: Writes | None = None,
        clock: Clock | None = None,
        pace: Pace | None = None,
        log_metrics: Sequence[str] = (),
        process: int = 0,
    ) -> None:
        clock = clock or SystemClock()
        self._pace = pace
        self._checkpoints = Pace(_CHECKPOINTS_PER_S, clock, burst_s=_CHECKPOINTS_BURST_S)
        self._states = Pace(_STATES_PER_S, clock)
        self._is_paused: bool | None = None
        self.replica_id = replica_id
        self._folder = folder
        self._writes = writes
        metrics = LogMetrics(folder, log_metrics, clock, process=process) if log_metrics else None
        self._spool = ReplicaSpool(replica_id, folder, cursors, log_metrics=metrics)
        self._acknowledged = dict(cursors)
        self._noticed = {stream: cursor.last for stream, cursor in cursors.items()}
        self._uploads = uploads
        self._paused = paused
        self._run = run
        self._sent: dict[StreamId, deque[Item]] = {}
        self._unacknowledged = 0
        self._moved = asyncio.Event()
        self._follower: SpoolFollower | None = None
        self._has_gaps = False
        self._has_ended = False
        self._done = asyncio.Event()

    def finish(self) -> None:
        """The program has ended, and writes nothing more."""
        self._has_ended = True
        self._checkpoints.lift()
        if self._follower is not None:
            self._follower.end()

    async def finished(self) -> None:
        """Return, after `finish`, once everything is acknowledged."""
        await self._done.wait()

    async def pump(self, outgoing: SendQueue) -> None:
        """Send over one connection; returns when all is acknowledged, otherwise never."""
        self._spool.rewind(self._acknowledged)
        self._sent.clear()
        self._unacknowledged = 0
        with self._writes.told(self._folder) if self._writes else nullcontext() as written:
            self._follower = SpoolFollower(self._spool, self._undisturbed, written=written)
            if self._has_ended:
                self._follower.end()
            async for items in self._follower:
                for item in items:
                    await self._notice(item)
                    await self._room()
                    if self._pace is not None and isinstance(item, Batch) and item.text:
                        await self._pace.wait(len(item.text))
                    self._sent.setdefault(item.stream, deque()).append(item)
                    self._unacknowledged += held_bytes(item)
                    await outgoing.put(self.replica_id, _chunk(item))
        while self._unacknowledged or any(self._sent.values()):
            await self._movement()
        self._done.set()

    def acknowledge(self, stream: StreamId, following: int) -> Cursor | None:
        """Everything before position `following` is safe; return the cursor to store, if it moved."""
        sent = self._sent.get(stream)
        cursor = None
        while sent and sent[0].last < following:
            item = sent.popleft()
            cursor = item.cursor
            self._unacknowledged -= held_bytes(item)
        if cursor is not None:
            self._acknowledged[stream] = cursor
            self._moved.set()
        return cursor

    def forget_removed(self) -> list[StreamId]:
        """Forget the acknowledged streams of removed files; return them."""
        over = [stream for stream in tuple(self._spool.gone) if not self._sent.get(stream)]
        for stream in over:
            for known in (self._sent, self._acknowledged, self._noticed):
                known.pop(stream, None)
            self._spool.forget(stream)
        return over

    async def _undisturbed(self, work: Callable[[], T], /) -> T:
        return await uninterrupted(self._run, work)

    async def _room(self) -> None:
        while self._unacknowledged >= _UNACKNOWLEDGED_BYTES:
            await self._movement()

    async def _movement(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def _notice(self, item: Item) -> None:
        """Act on records for the agent, once each."""
        if isinstance(item, Gap):
            self._notice_gap(item)
            return
        known = self._noticed.get(item.stream, 0)
        noticed = _Noticed()
        for position, payload in enumerate(item.records, start=item.first):
            if payload.startswith(REPORT):
                continue
            if position > known and any(kind in payload for kind in _CONCERNING):
                noticed.add(payload)
        await self._act(noticed)
        self._noticed[item.stream] = max(known, item.last)

    async def _act(self, noticed: _Noticed) -> None:
        """Only the newest of each checkpoint and of the state counts: above the pace they wait, and cost once."""
        if noticed.checkpoints:
            saved = await self._uploads.existing(noticed.checkpoints.values())
            await self._checkpoints.wait(len(saved))
            await self._uploads.add(*saved)
        for file in noticed.media:
            self._uploads.add_media(file)
        if noticed.is_paused not in {None, self._is_paused} and not self._has_ended:
            await self._states.wait()
            self._is_paused = noticed.is_paused
            self._paused(noticed.is_paused is True)

    def _notice_gap(self, gap: Gap) -> None:
        """Log only the first: users see each, and a program can cause any number."""
        if self._has_gaps:
            return
        self._has_gaps = True
        log.warning(
            "stream.gap",
            replica=str(self.replica_id),
            channel=gap.stream.channel.value,
            first=gap.first,
            last=gap.last,
            reason=gap.reason,
        )


@dataclass(slots=True)
class _Noticed:
    """Contents of records for the agent."""

    checkpoints: dict[tuple[bool, str], SavedCheckpoint] = field(default_factory=dict)
    media: list[str] = field(default_factory=list)
    is_paused: bool | None = None

    def add(self, payload: bytes) -> None:
        """Add a record."""
        try:
            record = json.loads(payload)
        except (ValueError, RecursionError):
            return
        match record:
            case {"kind": "checkpoint" | "artifact"}:
                checkpoint = SavedCheckpoint.from_record(record)
                if checkpoint is not None:
                    self.checkpoints.pop(checkpoint.key, None)
                    self.checkpoints[checkpoint.key] = checkpoint
            case {"kind": "media"}:
                if (file := file_in(record)) is not None:
                    self.media.append(file)
            case {"kind": "state", "state": "PAUSED" | "RUNNING" as state}:
                self.is_paused = state == "PAUSED"


class Ingest:
    """Keeps the stream connected, once the node is registered.

    Args:
        link: connects; any control plane accepts records.
        remember: stores cursors for the next agent.
        clock, rng, longest_backoff_s: pauses between attempts.
    """

    def __init__(
        self,
        link: Link,
        *,
        remember: Remember,
        clock: Clock,
        rng: random.Random,
        longest_backoff_s: float,
    ) -> None:
        self._link = link
        self._remember = remember
        self._clock = clock
        self._backoff = Backoff(
            clock, rng, longest_s=longest_backoff_s, free=lambda: len(link.ways.addresses)
        )
        self._collections: dict[ReplicaId, Collection] = {}
        self._pumps: dict[ReplicaId, asyncio.Task[None]] = {}
        self._group: TaskGroup | None = None
        self._outgoing = SendQueue()

    @asynccontextmanager
    async def collecting(self, collection: Collection) -> AsyncIterator[Collection]:
        """Send the output of `collection`'s replica while the context lasts."""
        self._collections[collection.replica_id] = collection
        self._start_pump(collection)
        try:
            yield collection
        finally:
            del self._collections[collection.replica_id]
            pump = self._pumps.pop(collection.replica_id, None)
            if pump is not None:
                pump.cancel()

    def offer(self, sample: pb.NodeSample) -> None:
        """Send a reading of the node, dropped without a connection."""
        if self._group is not None:
            self._outgoing.offer(sample)

    async def run(self) -> NoReturn:
        """Connect to any control plane, leader or not, send, and reconnect."""
        while True:
            await self._link.known.wait()
            address = self._link.ways.now
            reason = await self._converse()
            log.warning("ingest.lost", address=address, reason=reason)
            self._link.ways.failed(address)
            await self._backoff.pause()

    async def _converse(self) -> str:
        """Run one stream to its end; return why it ended."""
        try:
            call = self._link.open_any("AgentService/Ingest", pb.IngestRequest, pb.IngestResponse)
        except ClientError as error:
            return str(error)
        self._outgoing = SendQueue()
        try:
            async with TaskGroup() as group:
                self._group = group
                sender = group.create_task(self._send(call))
                for collection in self._collections.values():
                    self._start_pump(collection)
                reason = await self._read(call)
                self._group = None
                sender.cancel()
                for pump in self._pumps.values():
                    pump.cancel()
        finally:
            self._group = None
            self._pumps.clear()
            call.cancel()
        return reason

    def _start_pump(self, collection: Collection) -> None:
        if self._group is not None:
            pump = self._group.create_task(self._pump(collection, self._outgoing))
            self._pumps[collection.replica_id] = pump

    async def _pump(self, collection: Collection, outgoing: SendQueue) -> None:
        """An unreadable disk of one replica, or a defect, must not end the stream of the others."""
        while True:
            try:
                await collection.pump(outgoing)
            except Exception:
                log.exception("ingest.unreadable", replica=str(collection.replica_id))
                await self._clock.sleep(_UNREADABLE_PAUSE_S)
            else:
                return

    async def _send(self, call: Any) -> None:
        try:
            while True:
                await call.write(await self._outgoing.next_message())
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the reader gets the reason

    async def _read(self, call: Any) -> str:
        try:
            while (message := await call.read()) is not _EOF:
                self._backoff.reset()
                self._outgoing.answered()
                moved = self._take(message)
                if moved:
                    await self._remember(moved)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "the control plane ended the stream"

    def _take(self, message: pb.IngestResponse) -> dict[StreamId, Cursor | None]:
        moved: dict[StreamId, Cursor | None] = {}
        for acknowledged in message.acknowledged:
            try:
                stream = _stream_of(acknowledged.stream)
            except (KeyError, ValueError):
                log.warning("ingest.unknown_stream", stream=str(acknowledged.stream)[:200])
                continue
            collection = self._collections.get(stream.replica_id)
            cursor = collection.acknowledge(stream, acknowledged.next) if collection else None
            if collection is not None and cursor is not None:
                moved[stream] = cursor
                moved |= dict.fromkeys(collection.forget_removed())
        return moved


def _chunk(item: Item) -> pb.Chunk:
    stream = pb.StreamKey(
        replica=replica_message(item.stream.replica_id),
        channel=_CHANNELS[item.stream.channel],
        writer=item.stream.writer,
    )
    if isinstance(item, Batch):
        return pb.Chunk(
            stream=stream, first=item.first, last=item.last, records=item.records, data=item.text
        )
    return pb.Chunk(stream=stream, first=item.first, last=item.last, gap=True)


def _stream_of(key: pb.StreamKey) -> StreamId:
    return StreamId(
        replica_id=replica_of(key.replica),
        channel=_CHANNEL_OF[key.channel],
        writer=key.writer,
    )
