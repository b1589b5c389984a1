"""SessionBackupService: back up and restore sessions."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from controlplane.access.current import require_user
from controlplane.backups.session_restore import IDLE_S, MOST_S
from controlplane.backups.session_streams import read_streams
from controlplane.checkpoints.lost_uploads import MOST_WORDS, plain
from controlplane.domain.errors import (
    RETRY_AFTER_S,
    InvalidRequest,
    StateConflict,
    TooLarge,
    Unavailable,
)
from controlplane.domain.names import MOST_CHECKPOINT_NAME
from controlplane.history.records import MAX_NAME_CHARS
from controlplane.history.values import (
    Artifact,
    ArtifactState,
    Channel,
    Checkpoint,
    CheckpointState,
    Chunk,
    Media,
    MediaState,
    Recorded,
    StreamKey,
)
from controlplane.media.media import MOST_CAPTION_CHARS, MOST_FACTS_BYTES
from controlplane.records.ingest import MOST_SUMMARY_BYTES
from controlplane.wire.errors import Context, answering, streaming
from controlplane.wire.times import time_of, timestamp
from nsml.content.media import FILE_NAME
from nsml.spec.labels import is_key
from nsml.v1 import session_backups_pb2 as pb
from nsml.v1 import session_backups_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from google.protobuf.struct_pb2 import Struct

    from controlplane.backups.session_restore import Restorer, Restoring
    from controlplane.backups.session_streams import StreamPiece
    from controlplane.core.core import Core
    from controlplane.domain.identity import UserCaller
    from controlplane.domain.values import Session
    from controlplane.records.logs import Logs
    from controlplane.sessions.session_views import Presenter
    from nsml.v1 import artifacts_pb2, checkpoints_pb2, media_pb2

_MESSAGE_BYTES: Final = 1 << 20
_MESSAGE_RECORDS: Final = 10_000
_NOT_IN_BACKUP: Final = "its files are not in the backup"


class SessionBackupServicer(session_backups_pb2_grpc.SessionBackupServiceServicer):
    """Reads and restores sessions."""

    def __init__(self, core: Core, logs: Logs, restorer: Restorer, presenter: Presenter) -> None:
        self._core = core
        self._logs = logs
        self._restorer = restorer
        self._presenter = presenter

    @streaming
    async def ReadSessionStreams(  # noqa: N802 - named by the contract
        self, request: pb.ReadSessionStreamsRequest, _: Context
    ) -> AsyncGenerator[pb.ReadSessionStreamsResponse, None]:
        """Send stream by stream."""
        who = require_user()
        session = await self._core.references.find_output(who, request.session)
        if not session.state.is_ended:
            raise StateConflict(
                f"{session.name} has not ended",
                why=f"it is {session.state.value}",
                attempt="again when it has; nsml stop ends it",
            )
        async with (
            self._core.reading.turn(who.user.name),
            aclosing(read_streams(self._core.history, self._logs, session)) as parts,
        ):
            async for part in parts:
                for message in _messages(part):
                    yield pb.ReadSessionStreamsResponse(part=message)

    @answering
    async def RestoreSession(  # noqa: N802
        self, requests: AsyncIterator[pb.RestoreSessionRequest], _: Context
    ) -> pb.RestoreSessionResponse:
        """Write its data, then the session."""
        who = require_user()
        first = await anext(requests, pb.RestoreSessionRequest())
        if first.WhichOneof("kind") != "session":
            raise InvalidRequest("the first message of a restore names the session")
        message = first.session
        there = await self._restorer.there(who, message)
        if there is None and message.validate_only:
            await self._restorer.check(who, message)
            return pb.RestoreSessionResponse()
        if there is not None:
            shown = await self._presenter.session(there, who)
            return pb.RestoreSessionResponse(session=shown, was_there=True)
        async with self._restorer.turns.turn(who.user.name):
            try:
                async with asyncio.timeout(MOST_S) as whole:
                    made, was_there = await self._restored(who, message, requests)
            except TimeoutError as error:
                if whole.expired():
                    hours = f"{MOST_S / 3600:g} hours"
                    raise TooLarge(f"a restore of one session may take {hours}") from error
                raise Unavailable(
                    "a part of the platform did not answer in time",
                    attempt="the same again",
                    retry_after_s=RETRY_AFTER_S,
                ) from error
        shown = await self._presenter.session(made, who)
        return pb.RestoreSessionResponse(session=shown, was_there=was_there)

    async def _restored(
        self,
        who: UserCaller,
        message: pb.RestoredSession,
        requests: AsyncIterator[pb.RestoreSessionRequest],
    ) -> tuple[Session, bool]:
        """Return the session, and whether it existed."""
        restoring = await self._restorer.begin(who, message)
        async with self._restorer.given_up_if_it_fails(restoring):
            await self._take_all(restoring, requests)
        made = await self._restorer.end(restoring)
        return made, made.id != restoring.session.id

    async def _take_all(
        self, restoring: Restoring, requests: AsyncIterator[pb.RestoreSessionRequest]
    ) -> None:
        """Write its data up to `is_whole`: a cancelled call looks here like one that has ended."""
        while (request := await _next(requests)) is not None:
            if request.WhichOneof("kind") == "is_whole":
                return
            await self._take(restoring, request)
        raise InvalidRequest("the restore broke off before its end")

    async def _take(self, restoring: Restoring, request: pb.RestoreSessionRequest) -> None:
        session_id = restoring.session.id
        match request.WhichOneof("kind"):
            case "checkpoint":
                tags = [tag for tag in request.checkpoint.tags if is_key(tag)]
                found = _checkpoint(session_id, request.checkpoint)
                await self._restorer.add_checkpoint(restoring, found, tags)
            case "artifact":
                await self._restorer.add_artifact(
                    restoring, _artifact(session_id, request.artifact)
                )
            case "media":
                await self._restorer.add_media(restoring, _media(session_id, request.media))
            case "part":
                chunk = _chunk(session_id, request.part)
                received_at = time_of(request.part.received_at)
                await self._restorer.add_part(restoring, request.part, chunk, received_at)
            case _:
                raise InvalidRequest("a message of a restore that is not known here")


async def _next(
    requests: AsyncIterator[pb.RestoreSessionRequest],
) -> pb.RestoreSessionRequest | None:
    """Return the next message; None at the end. With a timeout, since idle callers block others' turns."""
    try:
        async with asyncio.timeout(IDLE_S) as idle:
            return await anext(requests, None)
    except TimeoutError as error:
        if not idle.expired():
            raise
        raise Unavailable(
            f"nothing of the restore came for {IDLE_S / 60:g} minutes",
            attempt="the same again",
            retry_after_s=RETRY_AFTER_S,
        ) from error


def _messages(part: StreamPiece) -> Iterator[pb.StreamPart]:
    stream, content = part.stream, part.content
    first = content.first

    def message(last: int, **fields: object) -> pb.StreamPart:
        return pb.StreamPart(
            attempt=stream.attempt,
            rank=stream.rank,
            writer=stream.writer,
            is_log=stream.channel is Channel.LOG,
            first=first,
            last=last,
            **fields,  # type: ignore[arg-type]
        )

    if not isinstance(content, Recorded):
        yield message(content.last, is_lost=True)
        return
    received_at = timestamp(content.received_at)
    for start in range(0, len(content.data), _MESSAGE_BYTES):
        data = content.data[start : start + _MESSAGE_BYTES]
        yield message(first + len(data) - 1, data=data, received_at=received_at)
        first += len(data)
    for records in _batches(content.records):
        yield message(first + len(records) - 1, records=records, received_at=received_at)
        first += len(records)


def _batches(records: tuple[bytes, ...]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for record in records:
        if batch and (size + len(record) > _MESSAGE_BYTES or len(batch) == _MESSAGE_RECORDS):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    if batch:
        yield batch


def _chunk(session_id: str, part: pb.StreamPart) -> Chunk:
    channel = Channel.LOG if part.is_log else Channel.METRIC
    writer = 0 if part.is_log else part.writer
    if part.attempt < 1 or writer >= 1 << 63:
        raise InvalidRequest("a stream of no attempt")
    stream = StreamKey(session_id, part.attempt, part.rank, channel, writer)
    try:
        return Chunk(
            stream=stream,
            first=part.first,
            last=part.last,
            records=tuple(part.records),
            data=part.data,
            is_gap=part.is_lost,
        )
    except ValueError as error:
        raise InvalidRequest("a part of a stream that is none", why=str(error)) from error


def _checkpoint(session_id: str, message: checkpoints_pb2.Checkpoint) -> Checkpoint:
    why_lost = plain(message.why_lost)[:MOST_WORDS] or _NOT_IN_BACKUP
    state = CheckpointState.DURABLE if message.digest else CheckpointState.LOST
    return Checkpoint(
        session_id=session_id,
        name=_name(message.name, "checkpoint"),
        saved_at=time_of(message.saved_at),
        size_bytes=_size(message.size_bytes),
        file_count=message.file_count,
        state=state,
        digest=message.digest or None,
        elapsed_s=_number(message.elapsed_s) or 0.0,
        summary=_summary(message.summary, message.summary_names),
        step=_number(message.step) if message.HasField("step") else None,
        attempt=message.attempt,
        why_lost="" if message.digest else why_lost,
    )


def _artifact(session_id: str, message: artifacts_pb2.Artifact) -> Artifact:
    why_lost = plain(message.why_lost)[:MOST_WORDS] or _NOT_IN_BACKUP
    if message.version >= 1 << 31:
        raise InvalidRequest(f"there is no version {message.version} of an artifact")
    return Artifact(
        session_id=session_id,
        attempt=message.attempt,
        rank=message.rank,
        folder="",
        name=_name(message.name, "artifact"),
        saved_at=time_of(message.saved_at),
        version=message.version if message.digest else 0,
        size_bytes=_size(message.size_bytes),
        file_count=message.file_count,
        step=_number(message.step) if message.HasField("step") else None,
        state=ArtifactState.DURABLE if message.digest else ArtifactState.LOST,
        digest=message.digest or None,
        why_lost="" if message.digest else why_lost,
        note=plain(message.note)[:MOST_WORDS],
    )


def _media(session_id: str, message: media_pb2.Media) -> Media:
    if not FILE_NAME.fullmatch(message.file):
        raise InvalidRequest(f"{message.file[:100]!r} is not a media file")
    name = plain(message.name)
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidRequest(f"{name[:80]!r} is not the name of media")
    why_lost = plain(message.why_lost)[:MOST_WORDS] or _NOT_IN_BACKUP
    facts = _json(message.facts)
    return Media(
        session_id=session_id,
        attempt=message.attempt,
        rank=message.rank,
        file=message.file,
        name=name,
        kind=_kind(message.kind),
        time=time_of(message.time),
        step=_number(message.step) if message.HasField("step") else None,
        content_type=plain(message.content_type)[:100],
        caption=plain(message.caption)[:MOST_CAPTION_CHARS],
        facts=facts if len(facts) <= MOST_FACTS_BYTES else "{}",
        size_bytes=_size(message.size_bytes),
        state=MediaState.DURABLE if message.root else MediaState.LOST,
        root=message.root or None,
        why_lost="" if message.root else why_lost,
    )


def _kind(text: str) -> str:
    if not (0 < len(text) <= 32 and all(one == "_" or "a" <= one <= "z" for one in text)):
        raise InvalidRequest(f"{text[:40]!r} is no kind of media")
    return text


def _name(text: str, what: str) -> str:
    name = plain(text)
    if not 0 < len(name.encode()) <= MOST_CHECKPOINT_NAME:
        raise InvalidRequest(f"the name of {what} has 1 to {MOST_CHECKPOINT_NAME} bytes")
    return name


def _size(number: int) -> int:
    return min(number, (1 << 53) - 1)


def _number(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _summary(values: Struct, names: object) -> str:
    """Encode a summary in its reported order."""
    found = json.loads(_json(values))
    order = dict.fromkeys(name for name in names if name in found)  # type: ignore[attr-defined]
    text = json.dumps(
        {name: found[name] for name in (*order, *(n for n in found if n not in order))}
    )
    return text if len(text) <= MOST_SUMMARY_BYTES else "{}"


def _json(values: Struct) -> str:
    """Encode as JSON with integers: a message has only floats."""
    from google.protobuf.json_format import MessageToJson  # noqa: PLC0415 - seldom

    try:
        found = json.loads(MessageToJson(values), parse_float=_whole)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the backup has values that are no JSON") from error
    return json.dumps(found)


def _whole(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= 1 << 53 else number
