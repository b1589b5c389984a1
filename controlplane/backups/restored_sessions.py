"""Convert sessions of backups to sessions of this platform. A backup may be forged: nothing in it is trusted.

Data that affects decisions here (nodes, charges, times ahead of our clock, digests of data) is left out; text is kept.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from controlplane.checkpoints.lost_uploads import plain
from controlplane.domain.errors import InvalidRequest, TooLarge
from controlplane.domain.idle import MOST_EPISODES
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.limits import NO_TIME_LIMITS
from controlplane.domain.names import MOST_CHECKPOINT_NAME, NO_DATASET, check_digest
from controlplane.domain.program_changes import COUNTERS, ChangeKind, ChangePhase, ProgramChange
from controlplane.domain.values import (
    Cause,
    DatasetVersion,
    Device,
    End,
    EndedAttempt,
    Episode,
    EpisodeKind,
    ImportedFrom,
    InitialCheckpoint,
    Progress,
    Replica,
    Session,
    Usage,
    Visibility,
)
from controlplane.projects.projects import check_keep
from controlplane.sessions.convert import CAUSES, to_submission
from controlplane.sessions.program_changes import MOST_CHANGES, MOST_HISTORY_BYTES
from controlplane.sessions.validation import validated
from controlplane.wire.times import seconds_of, time_of
from nsml.spec import knobs
from nsml.spec.dataset_names import is_dataset_name
from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.domain.identity import User
    from controlplane.domain.values import SessionSpec
    from controlplane.sessions.validation import Submission
    from nsml.v1 import session_backups_pb2 as pb

MOST_ATTEMPTS: Final = 10_000
MOST_REPLICAS: Final = 10_000
MOST_DEVICES: Final = 64
"""Per replica."""
_MOST_CHARS: Final = 256
_MOST_REASON: Final = 2_048
_NO_CODE: Final = "0" * 64
_ENDED: Final = {
    sessions_pb2.SESSION_STATE_SUCCEEDED: SessionState.SUCCEEDED,
    sessions_pb2.SESSION_STATE_FAILED: SessionState.FAILED,
    sessions_pb2.SESSION_STATE_STOPPED: SessionState.STOPPED,
}
_MOST_NUMBER: Final = knobs.MOST_STEP
_KINDS: Final = {
    sessions_pb2.ProgramChangeKind.Value(f"PROGRAM_CHANGE_KIND_{one.value}"): one
    for one in ChangeKind
}
_PHASES: Final = {
    sessions_pb2.ProgramChangePhase.Value(f"PROGRAM_CHANGE_PHASE_{one.value}"): one
    for one in ChangePhase
}
_EPISODES: Final = {
    sessions_pb2.EpisodeKind.Value(f"EPISODE_KIND_{one.value}"): one for one in EpisodeKind
}
_CAUSES_BACK: Final = {sessions_pb2.Cause.Value(name): cause for cause, name in CAUSES.items()}


def request_id_of(message: pb.RestoredSession) -> str:
    """Return a stable id for a session of a platform, so that it is restored only once."""
    where = f"{message.platform}\n{message.session.id}".encode(errors="replace")
    return f"restore-{hashlib.sha256(where).hexdigest()[:48]}"


def restored(
    message: pb.RestoredSession,
    owner: User,
    datasets: tuple[DatasetVersion, ...],
    *,
    id: str,  # noqa: A002
    now: float,
) -> Session:
    """Build the session, with the number 0. `now` in Unix seconds.

    Raises:
        InvalidRequest, TooLarge: the session is not valid.
    """
    source = message.session
    request_id = request_id_of(message)
    if source.attempt > MOST_ATTEMPTS or len(source.attempts) > MOST_ATTEMPTS:
        raise TooLarge(f"a restored session has at most {MOST_ATTEMPTS:,} attempts")
    if len(source.replicas) > MOST_REPLICAS:
        raise TooLarge(f"a restored session has at most {MOST_REPLICAS:,} replicas")
    state = _ENDED.get(source.state)
    if state is None:
        raise InvalidRequest("the backup has a session that had not ended")
    spec, asked = _asked(message, owner)
    is_default = not (spec.keep_files or spec.no_keep_files) and source.spec.keep_files_by_default
    created_at = _by(time_of(source.created_at), now) or now
    ended_at = max(_by(time_of(source.ended_at), now), created_at)
    imported = ImportedFrom(
        platform=_text(message.platform),
        session_id=_text(source.id),
        name=_text(source.name),
        owner=_text(source.owner),
        restored_at=now,
    )
    return Session(
        id=id,
        name=f"{owner.name}/{_dataset(source, datasets)}/0",
        owner=owner.name,
        owner_id="" if owner.id == owner.name else owner.id,
        spec=replace(
            spec,
            datasets=datasets,
            keep_files_by_default=is_default,
            initial_checkpoint=_initial(source, id, created_at),
        ),
        created_at=created_at,
        project=owner.name,
        team=owner.team,
        visibility=Visibility.PRIVATE,
        state=state,
        attempt=source.attempt,
        replicas=tuple(_replica(one, rank) for rank, one in enumerate(source.replicas)),
        started_at=_by(time_of(source.started_at), now),
        ended_at=ended_at,
        end=_end(source.end) if source.HasField("end") else None,
        memo=plain(asked.memo),
        command=tuple(map(plain, asked.command)),
        request_id=request_id,
        request_digest=hashlib.sha256(request_id.encode()).digest(),
        attempts=tuple(_attempt(one, now) for one in source.attempts),
        usage=_usage(source.usage),
        git=asked.git,
        imported=imported,
        progress=Progress(
            is_resumable=source.progress.resumable,
            saved_at=_by(time_of(source.progress.saved_at), now),
        ),
        changes=tuple(_changes(source, now)),
        episodes=tuple(_episodes(source, now)),
    )


def foreign_dataset(message: sessions_pb2.DatasetReference, source_owner: str) -> DatasetVersion:
    """Build a version not on this platform: name and number, no content."""
    owner, slash, name = message.name.rpartition("/")
    if not is_dataset_name(name):
        raise InvalidRequest(f"{message.name[:80]!r} is not the name of a dataset")
    folder = message.folder if is_dataset_name(message.folder) else ""
    return DatasetVersion(
        owner=_text(owner if slash else source_owner),
        name=name,
        version=message.version,
        digest="",
        streamed=message.streamed,
        folder=folder,
    )


def _asked(message: pb.RestoredSession, owner: User) -> tuple[SessionSpec, Submission]:
    """Validate the spec by the rules of new sessions."""
    source = message.session
    request = sessions_pb2.CreateSessionRequest(
        request_id=request_id_of(message),
        spec=source.spec,
        memo=source.memo,
        command=source.command,
    )
    if source.HasField("git"):
        request.git.CopyFrom(source.git)
    spec = request.spec
    check_keep(spec.keep_checkpoints)  # from a response, which leaves no metric to a project
    # Of another platform, or useless for an ended session.
    for field in ("datasets", "after", "initial_checkpoint", "no_queue"):
        spec.ClearField(field)
    if spec.environment_lock:
        check_digest(spec.environment_lock)
        spec.environment_lock = ""
    if spec.stage not in {sessions_pb2.SESSION_STAGE_UNSPECIFIED, sessions_pb2.SESSION_STAGE_INFER}:
        # A step of a submission of another platform, which set variables that users may not.
        spec.ClearField("stage")
        for name in [one for one in spec.environment if one.startswith("NSML_")]:
            del spec.environment[name]
    code = spec.bundle_digest
    # Its code may not be in the backup.
    spec.bundle_digest = code or _NO_CODE
    submission = to_submission(request, owner)
    return replace(validated(submission, NO_TIME_LIMITS), bundle_digest=code), submission


def _initial(
    source: sessions_pb2.Session, session_id: str, created_at: float
) -> InitialCheckpoint | None:
    """Build its initial checkpoint as one of its own, since the session that saved it is on another platform.

    The caller must check its digest, like those of all content named by an archive.
    """
    if not source.spec.HasField("initial_checkpoint"):
        return None
    asked = source.spec.initial_checkpoint
    name = plain(asked.name)
    if not 0 < len(name.encode()) <= MOST_CHECKPOINT_NAME:
        raise InvalidRequest(f"a checkpoint's name has 1 to {MOST_CHECKPOINT_NAME} bytes")
    return InitialCheckpoint(
        session_id=session_id,
        name=name,
        digest=check_digest(asked.digest) if asked.digest else "",
        session_name=_text(asked.session_name),
        saved_at=created_at,
    )


def _dataset(source: sessions_pb2.Session, datasets: tuple[DatasetVersion, ...]) -> str:
    """Return the middle part of its name."""
    if datasets:
        return datasets[0].name
    parts = source.name.split("/", 2)
    if len(parts) == 3 and parts[1] != NO_DATASET and is_dataset_name(parts[1]):
        return parts[1]
    return NO_DATASET


def _replica(message: sessions_pb2.Replica, rank: int) -> Replica:
    """Its node gets an invalid name, so that a node of the same name here is not affected."""
    devices = tuple(
        Device(
            uuid=_text(one.uuid),
            index=min(one.index, 1 << 16),
            model=_text(one.model),
            memory_bytes=min(one.memory_bytes, (1 << 53) - 1),
            simulated=one.simulated,
            driver_version=_text(one.driver_version),
            cuda_version=_text(one.cuda_version),
        )
        for one in message.devices[:MOST_DEVICES]
    )
    return Replica(
        rank=rank,
        node=f"{_text(message.node)} (elsewhere)",
        devices=devices,
        image=_text(message.image),
        python_version=_text(message.python_version),
    )


def _attempt(message: sessions_pb2.EndedAttempt, now: float) -> EndedAttempt:
    """Build an attempt without nodes, whose agents could send records of it, and without charges."""
    return EndedAttempt(
        number=message.number,
        cause=_cause(message.cause),
        placed_at=_by(time_of(message.placed_at), now),
        ended_at=_by(time_of(message.ended_at), now),
        gpu_thousandths=0,
        held_s=0.0,
        reason=_text(message.reason, _MOST_REASON),
        gpu_models={
            _text(model): min(share, 1 << 30)
            for model, share in list(message.gpu_models.items())[:MOST_DEVICES]
        },
        driver_versions=tuple(map(_text, message.driver_versions[:MOST_DEVICES])),
        python_versions=tuple(map(_text, message.python_versions[:MOST_DEVICES])),
    )


def _changes(source: sessions_pb2.Session, now: float) -> Iterator[ProgramChange]:
    """Yield changes of its programs, without the processes' reports: a fork reports changes it does not repeat."""
    size = 0
    for one in source.changes[-MOST_CHANGES:]:
        kind, phase = _KINDS.get(one.kind), _PHASES.get(one.phase)
        if kind is None or phase is None:
            continue
        values = {
            name: value
            for name, value in list(one.values.items())[: knobs.MOST_AT_ONCE]
            if knobs.is_name(name) and not knobs.value_error(value)
        }
        if kind is ChangeKind.SET and not values:
            continue
        change = ProgramChange(
            number=min(one.number, _MOST_NUMBER),
            kind=kind,
            attempt=one.attempt,
            asked_by=_text(one.asked_by),
            asked_at=_by(time_of(one.asked_at), now),
            # An ended session has no open changes.
            phase=ChangePhase.WITHDRAWN if phase.is_open else phase,
            values=MappingProxyType(values),
            checkpoint=_text(one.checkpoint),
            checkpoint_session=_text(one.checkpoint_session),
            limit_s=min(_amount(seconds_of(one.limit)), knobs.LONGEST_PAUSE_S),
            asked_at_step=(
                min(one.asked_at_step, _MOST_NUMBER) if one.HasField("asked_at_step") else None
            ),
            counter=one.counter if one.counter in COUNTERS else "",
            at=min(one.at, _MOST_NUMBER) if one.HasField("at") else None,
            reason=_text(one.reason, knobs.MOST_REASON_CHARS),
            ended_at=_by(time_of(one.ended_at), now),
        )
        size += change.size
        if size > MOST_HISTORY_BYTES:
            return
        yield change


def _episodes(source: sessions_pb2.Session, now: float) -> Iterator[Episode]:
    for one in source.episodes[-MOST_EPISODES:]:
        if (kind := _EPISODES.get(one.kind)) is not None:
            since = _by(time_of(one.since), now)
            until = max(_by(time_of(one.until), now), since)
            reason = _text(one.reason, _MOST_REASON)
            yield Episode(kind=kind, since=since, until=until, reason=reason)


def _end(message: sessions_pb2.SessionEnd) -> End:
    return End(
        cause=_cause(message.cause),
        exit_code=message.exit_code,
        rank=message.rank,
        message=_text(message.message, _MOST_REASON),
    )


def _cause(number: int) -> Cause:
    if (cause := _CAUSES_BACK.get(number)) is None:
        raise InvalidRequest(f"the backup has an end of a cause that is not known here: {number}")
    return cause


def _usage(message: sessions_pb2.SessionUsage) -> Usage:
    return Usage(
        device_seconds=_amount(message.device_seconds),
        utilization=(
            min(_amount(message.utilization_percent), 100.0)
            if message.HasField("utilization_percent")
            else None
        ),
        utilization_peak=min(_amount(message.utilization_peak_percent), 100.0),
        memory_peak=_amount(message.memory_peak_bytes),
        watt_hours=_amount(message.watt_hours),
    )


def _amount(number: float) -> float:
    return number if math.isfinite(number) and number > 0 else 0.0


def _by(at: float, now: float) -> float:
    """Limit a time to our clock, which decisions use."""
    return min(at, now)


def _text(text: str, most: int = _MOST_CHARS) -> str:
    return plain(text)[:most]
