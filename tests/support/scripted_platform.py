"""A control plane that does what a test says, over the real contract: what agents are tried on.

It keeps to the comments in agents.proto, content.proto and checkpoints.proto: reports and chunks are
acknowledged once they are kept, overlap is trimmed, gaps are kept as gaps. Faults are switches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from controlplane.objects.errors import BlobDamaged
from controlplane.wire.errors import as_refusal, refuse
from nsml.content.digests import digest_of
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import (
    agents_pb2_grpc,
    artifacts_pb2,
    artifacts_pb2_grpc,
    checkpoints_pb2_grpc,
    content_pb2_grpc,
)
from nsml.v1 import checkpoints_pb2 as checkpoints
from nsml.v1 import content_pb2 as content
from tests.support.trees import stored_tree

StreamName = tuple[str, int, int, int, int]
"""Session, attempt, rank, channel, writer."""


class DisorderError(AssertionError):
    """The agent broke the contract."""


@dataclass
class Kept:
    """One stream as it was received."""

    next: int
    records: list[bytes] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    received_again: int = 0


@dataclass
class Faults:
    """What goes wrong, until it is switched off."""

    lose_report_acks: bool = False
    lose_chunk_acks: bool = False
    hold_chunks: bool = False
    """Take no chunks at all: the stream is open and nobody reads."""
    end_ingest_after: int | None = None
    """End the Ingest stream after so many further messages."""
    leader: str = ""
    """Answer every registration with NOT_LEADER and this address."""


class ScriptedPlatform(
    agents_pb2_grpc.AgentServiceServicer,
    content_pb2_grpc.ContentServiceServicer,
    checkpoints_pb2_grpc.CheckpointServiceServicer,
    artifacts_pb2_grpc.ArtifactServiceServicer,
):
    """All services that an agent calls."""

    def __init__(
        self, *, heartbeat_s: float = 1.0, cluster_id: str = "test", patience_s: float = 1800.0
    ) -> None:
        self.patience_s = patience_s
        self.faults = Faults()
        self.cluster_id = cluster_id
        self.heartbeat_s = heartbeat_s
        self.term = 1
        self.starts_anew = False
        self.revision = 0
        self.assignments: dict[tuple[str, int, int], pb.Assignment] = {}
        self.registrations: list[pb.Register] = []
        self.accepted: list[tuple[int, int]] = []
        self.reports: list[pb.ReplicaReport] = []
        self.devices: list[pb.DevicesChanged] = []
        self.progress: list[pb.ProgressReport] = []
        """With how many reports had been heard before each: `progress_after`."""
        self.progress_after: list[int] = []
        self.heartbeats = 0
        self.clock_said = 0.0
        self.samples: list[pb.NodeSample] = []
        self.streams: dict[StreamName, Kept] = {}
        self.blobs: dict[str, bytes] = {}
        self.room: int | None = None
        """Bytes that may be kept still; None: without a limit."""
        self.blob_calls = 0
        self.checkpoints: dict[tuple[str, str], checkpoints.Checkpoint] = {}
        self.checkpoint_questions: list[tuple[str, str]] = []
        self.has_not_shown = 0
        self.damaged: set[str] = set()
        """Blobs of which the store has other bytes."""
        """Questions for content that are refused, as by control planes that have not shown it."""
        self.commits: list[checkpoints.CommitCheckpointRequest] = []
        self.losses: list[checkpoints.CommitCheckpointRequest] = []
        self.removed_checkpoints: set[str] = set()
        """Names of those that it says to be removed."""
        self.artifacts: list[artifacts_pb2.CommitArtifactRequest] = []
        self.asked_for: list[str] = []
        self.authorization: set[str] = set()
        self._down: set[asyncio.Queue[pb.ControlResponse | None]] = set()
        self._ingests: set[asyncio.Queue[Any]] = set()
        self.takes_blobs = asyncio.Event()
        self.takes_blobs.set()
        self._changed = asyncio.Condition()

    def add_to(self, server: Any) -> None:
        agents_pb2_grpc.add_AgentServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        content_pb2_grpc.add_ContentServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    # What a test says and asks.

    async def order(self, *assignments: pb.Assignment, revision: int | None = None) -> None:
        """Replace the desired set; earlier streams get it at once, later ones when they register."""
        self.revision = self.revision + 1 if revision is None else revision
        self.assignments = {_key(one.replica): one for one in assignments}
        self.send(pb.ControlResponse(orders=self.orders()))

    def orders(self) -> pb.Orders:
        return pb.Orders(
            term=self.term, revision=self.revision, assignments=self.assignments.values()
        )

    def send(self, message: pb.ControlResponse) -> None:
        for queue in self._down:
            queue.put_nowait(message)

    def break_streams(self) -> None:
        """End all streams, as a control plane that stops."""
        for queue in (*self._down, *self._ingests):
            queue.put_nowait(None)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Return when `condition()` holds; looked at after everything that agents say."""
        async with asyncio.timeout(self.patience_s), self._changed:
            await self._changed.wait_for(condition)

    async def phase(self, session: str, phase: pb.ReplicaPhase, rank: int = 0) -> pb.ReplicaReport:
        """The report that a replica of the session has come to `phase`."""
        await self.until(lambda: self.said(session, phase, rank))
        return self.said(session, phase, rank)[-1]

    def said(
        self, session: str, phase: pb.ReplicaPhase | None = None, rank: int = 0
    ) -> list[pb.ReplicaReport]:
        return [
            report
            for report in self.reports
            if (report.replica.session_id, report.replica.rank) == (session, rank)
            and phase in {None, report.phase}
        ]

    def log(self, session: str, *, attempt: int = 1, rank: int = 0) -> bytes:
        kept = self.streams.get((session, attempt, rank, pb.CHANNEL_LOG, 0))
        return bytes(kept.data) if kept else b""

    def records(self, session: str, *, writer: int = 1, attempt: int = 1) -> list[bytes]:
        kept = self.streams.get((session, attempt, 0, pb.CHANNEL_METRIC, writer))
        return kept.records if kept else []

    def put_manifest(self, encoded: bytes, *blobs: bytes) -> str:
        for blob in (encoded, *blobs):
            self.blobs[digest_of(blob)] = blob
        return digest_of(encoded)

    # AgentService.

    async def Control(
        self, requests: AsyncIterator[pb.ControlRequest], context: Any
    ) -> AsyncIterator[pb.ControlResponse]:
        self.authorization.update(_authorization(context))
        if self.faults.leader:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "not the leader",
                (("leader", self.faults.leader),),
            )
        first = await anext(requests)
        if first.WhichOneof("kind") != "register":
            raise DisorderError("the first message is not Register")
        queue: asyncio.Queue[pb.ControlResponse | None] = asyncio.Queue()
        answer = pb.Registered(
            cluster_id=self.cluster_id, starts_anew=self.starts_anew, term=self.term
        )
        answer.heartbeat_interval.FromMilliseconds(round(self.heartbeat_s * 1000))
        self._down.add(queue)
        hearing = asyncio.create_task(self._hear(requests, queue))
        try:
            yield pb.ControlResponse(registered=answer)
            await self._note(self.registrations.append, first.register)
            yield pb.ControlResponse(orders=self.orders())
            while (message := await queue.get()) is not None:
                yield message
        finally:
            hearing.cancel()
            self._down.discard(queue)

    async def _hear(
        self,
        requests: AsyncIterator[pb.ControlRequest],
        queue: asyncio.Queue[pb.ControlResponse | None],
    ) -> None:
        async for request in requests:
            match request.WhichOneof("kind"):
                case "report":
                    await self._note(self.reports.append, request.report)
                    if not self.faults.lose_report_acks:
                        self.ended(request.report)
                        done = pb.ReportsAcknowledged(reports=[request.report])
                        queue.put_nowait(pb.ControlResponse(acknowledged=done))
                case "orders_accepted":
                    accepted = request.orders_accepted
                    await self._note(self.accepted.append, (accepted.term, accepted.revision))
                case "devices_changed":
                    await self._note(self.devices.append, request.devices_changed)
                case "progress":
                    self.progress_after.append(len(self.reports))
                    await self._note(self.progress.append, request.progress)
                case "heartbeat":
                    self.heartbeats += 1
                    self.clock_said = request.heartbeat.sent_at.ToNanoseconds() / 1e9
                    await self._note(lambda _: None, None)
        queue.put_nowait(None)

    def ended(self, report: pb.ReplicaReport) -> None:
        """A replica that is gone leaves the orders, as the allocation does."""
        is_gone = report.phase in {pb.REPLICA_PHASE_EXITED, pb.REPLICA_PHASE_FINALIZED}
        if is_gone and self.assignments.pop(_key(report.replica), None) is not None:
            self.revision += 1
            self.send(pb.ControlResponse(orders=self.orders()))

    async def Ingest(
        self, requests: AsyncIterator[pb.IngestRequest], context: Any
    ) -> AsyncIterator[pb.IngestResponse]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._ingests.add(queue)
        hearing = asyncio.create_task(self._hear_chunks(requests, queue))
        try:
            while (message := await queue.get()) is not None:
                yield message
        finally:
            hearing.cancel()
            self._ingests.discard(queue)

    async def _hear_chunks(
        self, requests: AsyncIterator[pb.IngestRequest], queue: asyncio.Queue[Any]
    ) -> None:
        async for request in requests:
            if self.faults.hold_chunks:
                continue
            answer = pb.IngestResponse()
            for chunk in request.chunks:
                following = self._keep(chunk)
                answer.acknowledged.add(stream=chunk.stream, next=following)
            if request.HasField("sample"):
                self.samples.append(request.sample)
            await self._note(lambda _: None, None)
            if answer.acknowledged and not self.faults.lose_chunk_acks:
                queue.put_nowait(answer)
            if self.faults.end_ingest_after is not None:
                self.faults.end_ingest_after -= 1
                if self.faults.end_ingest_after <= 0:
                    self.faults.end_ingest_after = None
                    queue.put_nowait(None)

    def _keep(self, chunk: pb.Chunk) -> int:
        count = chunk.last - chunk.first + 1
        is_log = chunk.stream.channel == pb.CHANNEL_LOG
        held = 0 if chunk.gap else len(chunk.data) if is_log else len(chunk.records)
        if not chunk.gap and held != count:
            raise DisorderError(f"{held} elements in a chunk of {count}")
        replica = chunk.stream.replica
        name = (*_key(replica), chunk.stream.channel, chunk.stream.writer)
        kept = self.streams.setdefault(name, Kept(0 if is_log else 1))
        if chunk.first > kept.next:
            raise DisorderError(f"{name}: {kept.next} was wanted, {chunk.first} came")
        known = kept.next - chunk.first
        kept.received_again += min(known, count)
        if known >= count:
            return kept.next
        if chunk.gap:
            kept.gaps.append((kept.next, chunk.last))
        kept.data += chunk.data[known:]
        kept.records += chunk.records[known:]
        kept.next = chunk.last + 1
        return kept.next

    # ContentService and CheckpointService.

    async def FindMissingBlobs(
        self, request: content.FindMissingBlobsRequest, context: Any
    ) -> content.FindMissingBlobsResponse:
        if self.room is not None and request.bytes > self.room:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "it is full")
        missing = [digest for digest in request.digests if digest not in self.blobs]
        return content.FindMissingBlobsResponse(missing=missing, room=self.room)

    async def PutBlobs(
        self, requests: AsyncIterator[content.PutBlobsRequest], context: Any
    ) -> content.PutBlobsResponse:
        self.blob_calls += 1
        await self.takes_blobs.wait()
        parts: dict[str, bytes] = {}
        stored = 0
        async for request in requests:
            for blob in request.blobs:
                if len(blob.data) > 1 << 20:
                    raise DisorderError("a part of more than 1 MiB")
                parts[blob.digest] = parts.get(blob.digest, b"") + blob.data
                if blob.last:
                    data = parts.pop(blob.digest)
                    if digest_of(data) != blob.digest:
                        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "digest")
                    stored += blob.digest not in self.blobs
                    self.blobs[blob.digest] = data
        return content.PutBlobsResponse(stored=stored)

    async def GetBlobs(
        self, request: content.GetBlobsRequest, context: Any
    ) -> AsyncIterator[content.GetBlobsResponse]:
        if request.root not in self.blobs or self.has_not_shown:
            self.has_not_shown = max(0, self.has_not_shown - 1)
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such manifest")
        _, members = stored_tree(self.blobs, request.root)
        for digest in list(request.digests) or [request.root]:
            if digest != request.root and digest not in members:
                await context.abort(grpc.StatusCode.NOT_FOUND, "no part of the manifest")
            self.asked_for.append(digest)
            if digest in self.damaged:
                await refuse(context, as_refusal(BlobDamaged(f"blob {digest} is damaged")))
            data = self.blobs[digest]
            for start in range(0, max(len(data), 1), 1 << 20):
                part = data[start : start + (1 << 20)]
                blob = content.Blob(digest=digest, data=part, last=start + len(part) == len(data))
                yield content.GetBlobsResponse(blobs=[blob])

    async def GetCheckpoint(
        self, request: checkpoints.GetCheckpointRequest, context: Any
    ) -> checkpoints.GetCheckpointResponse:
        self.checkpoint_questions.append((request.for_session, request.session))
        found = self.checkpoints.get((request.session, request.name))
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no checkpoint {request.name}")
        return checkpoints.GetCheckpointResponse(checkpoint=found)

    async def FindArtifact(
        self, request: artifacts_pb2.FindArtifactRequest, context: Any
    ) -> artifacts_pb2.FindArtifactResponse:
        found = [one for one in self.artifacts if one.name == request.name]
        if not found:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no artifact {request.name}")
        artifact = artifacts_pb2.Artifact(session="kim/None/1", digest=found[-1].digest)
        return artifacts_pb2.FindArtifactResponse(artifact=artifact)

    async def CommitArtifact(
        self, request: artifacts_pb2.CommitArtifactRequest, _: Any
    ) -> artifacts_pb2.CommitArtifactResponse:
        await self._note(self.artifacts.append, request)
        return artifacts_pb2.CommitArtifactResponse(version=len(self.artifacts))

    async def CommitCheckpoint(
        self, request: checkpoints.CommitCheckpointRequest, context: Any
    ) -> checkpoints.CommitCheckpointResponse:
        if request.why_lost:
            await self._note(self.losses.append, request)
            return checkpoints.CommitCheckpointResponse()
        _, members = stored_tree(self.blobs, request.digest)
        if any(digest not in self.blobs for digest in members):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "blobs are missing")
        self.checkpoints[request.session_id, request.name] = checkpoints.Checkpoint(
            name=request.name,
            session=request.session_id,
            state=checkpoints.CHECKPOINT_STATE_DURABLE,
            digest=request.digest,
        )
        await self._note(self.commits.append, request)
        removed = [name for name in request.held if name in self.removed_checkpoints]
        return checkpoints.CommitCheckpointResponse(removed=removed)

    async def _note(self, append: Callable[[Any], None], item: Any) -> None:
        async with self._changed:
            append(item)
            self._changed.notify_all()


def assignment(
    session: str, *argv: str, attempt: int = 1, rank: int = 0, **fields: Any
) -> pb.Assignment:
    """An order to run `argv`; further fields are those of SessionSpec."""
    made = pb.Assignment(
        replica=pb.ReplicaId(session_id=session, attempt=attempt, rank=rank),
        session_name=f"kim/None/{attempt}",
        owner="kim",
        hosts=["localhost"],
    )
    made.spec.argv.extend(argv)
    made.spec.replica_count = 1
    made.spec.grace.FromSeconds(10)
    for name, value in fields.items():
        target = getattr(made.spec, name)
        if isinstance(value, (str, int)):
            setattr(made.spec, name, value)
        elif isinstance(value, dict):
            target.update(value)
        elif isinstance(value, float):
            target.FromMilliseconds(round(value * 1000))
        else:
            target.extend(value)
    return made


def session_id(number: int) -> str:
    """An id of the right form."""
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    text = ""
    for _ in range(16):
        text += letters[number % 32]
        number //= 32
    return "s" + text


def _key(replica: pb.ReplicaId) -> tuple[str, int, int]:
    return (replica.session_id, replica.attempt, replica.rank)


def _authorization(context: Any) -> list[str]:
    return [value for key, value in context.invocation_metadata() if key == "authorization"]
