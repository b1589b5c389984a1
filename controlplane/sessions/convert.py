"""Convert sessions between messages and domain values."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from controlplane.codec import codec, encoder
from controlplane.datasets.references import parse_dataset
from controlplane.domain.errors import InvalidRequest, TooLarge
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.program_changes import ChangeKind, KnobValue, ProgramChange
from controlplane.domain.sealing import shown_code
from controlplane.domain.values import (
    After,
    Cause,
    EndedAttempt,
    EpisodeKind,
    GitFacts,
    InitialCheckpoint,
    Launcher,
    Limits,
    Origin,
    OriginKind,
    Progress,
    Replica,
    SecretUse,
    Session,
    SessionSpec,
    SessionStage,
    Usage,
    Visibility,
)
from controlplane.history.summaries import MOST_NAMES
from controlplane.sessions.program_changes import Wanted
from controlplane.sessions.session_listing import Filter
from controlplane.sessions.validation import OriginReference, Submission
from controlplane.wire.resources import (
    to_network,
    to_priority,
    to_resources,
    to_visibility,
)
from controlplane.wire.times import duration, seconds_of, timestamp
from nsml.spec import git_facts, knobs, variables
from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableSequence, Sequence

    from controlplane.domain.identity import User
    from controlplane.domain.values import Stop

# The contract's enum names by our values; message fields accept the names.
_STATES: Final = {state: f"SESSION_STATE_{state.value}" for state in SessionState}
_STATES_BACK: Final = {sessions_pb2.SessionState.Value(_STATES[one]): one for one in SessionState}
_ORIGINS_BACK: Final = {
    sessions_pb2.OriginKind.Value(f"ORIGIN_KIND_{one.value}"): one for one in OriginKind
}
_LAUNCHERS_BACK: Final = {
    sessions_pb2.Launcher.Value(f"LAUNCHER_{one.name}"): one for one in Launcher
}
_STAGES_OF_USERS: Final = {0: None, sessions_pb2.SESSION_STAGE_INFER: SessionStage.INFER}
_EPISODES: Final = {one: f"EPISODE_KIND_{one.value}" for one in EpisodeKind}
_CHANGE_KINDS: Final = {
    sessions_pb2.ProgramChangeKind.Value(f"PROGRAM_CHANGE_KIND_{one.value}"): one
    for one in ChangeKind
}
CAUSES: Final = {cause: f"CAUSE_{cause.value}" for cause in Cause}


def to_submission(request: sessions_pb2.CreateSessionRequest, owner: User) -> Submission:
    """Convert a request."""
    return Submission(
        owner=owner,
        request_id=request.request_id,
        digest=hashlib.sha256(request.SerializeToString(deterministic=True)).digest(),
        spec=_to_spec(request.spec),
        datasets=tuple(
            parse_dataset(
                one.name,
                one.version,
                one.digest,
                one.tag,
                streamed=one.streamed,
                folder=one.folder,
            )
            for one in request.spec.datasets
        ),
        no_queue=request.spec.no_queue,
        memo=request.memo,
        visibility=to_visibility(request.visibility) or Visibility.PRIVATE,
        project=request.project,
        command=tuple(variables.without_values(request.command)),
        origin=_to_origin(request.origin) if request.HasField("origin") else None,
        git=_to_git(request.git) if request.HasField("git") else None,
    )


def _to_origin(origin: sessions_pb2.Origin) -> OriginReference:
    kind = _ORIGINS_BACK.get(origin.kind)
    if kind is None:
        raise InvalidRequest(f"unknown kind of origin: {origin.kind}")
    return OriginReference(kind, origin.session)


def _to_stage(number: int) -> SessionStage | None:
    """Return a requested stage; those of submissions are the platform's alone."""
    try:
        return _STAGES_OF_USERS[number]
    except KeyError:
        raise InvalidRequest(
            "a session cannot be submitted as a step of a submission",
            attempt="nsml submit SESSION CHECKPOINT",
        ) from None


def _to_launcher(number: int) -> Launcher | None:
    """Return a requested launcher; None: Python alone."""
    if number not in sessions_pb2.Launcher.values():
        raise InvalidRequest(f"there is no launcher {number}")
    return _LAUNCHERS_BACK.get(number)


def _to_git(git: sessions_pb2.GitFacts) -> GitFacts:
    return GitFacts(
        commit=git.commit,
        branch=git.branch,
        remote=git_facts.public_remote(git.remote),
        is_dirty=git.dirty if git.HasField("dirty") else None,
    )


def _to_initial(asked: sessions_pb2.InitialCheckpoint) -> InitialCheckpoint:
    return InitialCheckpoint(session_id=asked.session, name=asked.name, digest=asked.digest)


def _to_after(asked: sessions_pb2.After) -> After:
    return After(session_id=asked.session, is_any=asked.any_end)


def _to_spec(spec: sessions_pb2.SessionSpec) -> SessionSpec:
    """Convert a spec without its datasets."""
    asked = SessionSpec(
        entry=spec.entry,
        args=tuple(spec.args),
        argv=tuple(spec.argv),
        bundle_digest=spec.bundle_digest,
        resources=to_resources(spec.resources),
        replica_count=spec.replica_count,
        environment=MappingProxyType(dict(spec.environment)),
        secrets=tuple(
            SecretUse(name=one.name, variable=one.variable or one.name) for one in spec.secrets
        ),
        image=spec.image,
        time_limit_s=_named_span(spec, "time_limit", "time limit", "leave it out for no limit"),
        idle_limit_s=_named_span(spec, "idle_limit", "idle limit", "leave it out for no limit"),
        retry_count=spec.retry_count,
        lost_after_s=_named_span(
            spec, "lost_after", "lost_after", "leave it out, or name a longer time"
        ),
        priority=to_priority(spec.priority),
        preemptible=spec.preemptible,
        gpu_model=spec.gpu_model,
        pod=spec.pod,
        network=to_network(spec.network),
        refresh_environment=spec.refresh_environment,
        allow_changed_data=spec.allow_changed_data,
        needs_conda=spec.needs_conda,
        stage=_to_stage(spec.stage),
        launcher=_to_launcher(spec.launcher),
        knobs=tuple(to_knob_value(one) for one in spec.knobs),
        labels=MappingProxyType(dict(spec.labels)),
        limits=_LIMITS.from_message(spec.limits),
        keep_checkpoints=spec.keep_checkpoints,
        environment_lock=spec.environment_lock,
        output_datasets=tuple(spec.output_datasets),
        log_metrics=tuple(spec.log_metrics),
        keep_files=spec.keep_files,
        no_keep_files=spec.no_keep_files,
        dockerfile=spec.dockerfile,
        build_arguments=MappingProxyType(dict(spec.build_arguments)),
        initial_checkpoint=(
            _to_initial(spec.initial_checkpoint) if spec.HasField("initial_checkpoint") else None
        ),
        after=tuple(map(_to_after, spec.after)),
    )
    return replace(asked, grace_s=seconds_of(spec.grace)) if spec.HasField("grace") else asked


def to_wanted(request: sessions_pb2.ChangeProgramRequest) -> Wanted:
    """Convert a requested change of running programs."""
    kind = _CHANGE_KINDS.get(request.kind)
    if kind is None:
        raise InvalidRequest(f"unknown kind of change: {request.kind}")
    return Wanted(
        kind=kind,
        values=MappingProxyType(dict(request.values)),
        checkpoint=request.checkpoint,
        checkpoint_session=request.checkpoint_session,
        limit_s=(
            0.0
            if kind is not ChangeKind.PAUSE
            else seconds_of(request.limit)
            if request.HasField("limit")
            else knobs.USUAL_PAUSE_S
        ),
        at=request.at if request.HasField("at") else None,
        wait_s=seconds_of(request.wait) if request.HasField("wait") else knobs.USUAL_WAIT_S,
    )


def to_knob_value(message: sessions_pb2.KnobValue) -> KnobValue:
    """Convert a knob's value from a step on."""
    return KnobValue(
        name=message.name,
        value=message.value,
        at=message.at if message.HasField("at") else None,
        counter=message.counter,
    )


def knob_message(value: KnobValue) -> sessions_pb2.KnobValue:
    """Convert a knob's value from a step on."""
    return _KNOB.to_message(value)


def change_message(change: ProgramChange) -> sessions_pb2.ProgramChange:
    """Convert a change of running programs, for viewers and agents."""
    message = _CHANGE.to_message(change)
    _set_limit(change, message)
    return message


def _set_limit(change: ProgramChange, message: sessions_pb2.ProgramChange) -> None:
    if change.kind is ChangeKind.PAUSE:
        message.limit.CopyFrom(duration(change.limit_s))


def _named_span(spec: sessions_pb2.SessionSpec, field: str, what: str, attempt: str) -> float:
    """Return seconds, 0 if the field is not set; an explicit 0 is refused."""
    if not spec.HasField(field):
        return 0.0
    seconds = seconds_of(getattr(spec, field))
    if not seconds:
        raise InvalidRequest(f"a {what} of 0 s", attempt=attempt)
    return seconds


def to_filter(message: sessions_pb2.SessionFilter) -> Filter:
    """Convert a filter."""
    try:
        states = tuple(_STATES_BACK[number] for number in message.states)
    except KeyError as error:
        raise InvalidRequest(f"there is no session state {error}") from None
    return Filter(
        owners=tuple(message.owners),
        states=states,
        dataset=message.dataset,
        project=message.project,
        name_glob=message.name_glob,
        text=message.text,
        include_ended=message.include_ended,
        without_submission_steps=message.without_submission_steps,
    )


def to_summary_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the summary values a list shows beside the first ones."""
    if len(names) > MOST_NAMES:
        raise TooLarge(f"at most {MOST_NAMES} values of summaries by name")
    return tuple(dict.fromkeys(names))


_LIMITS: Final = codec(Limits, sessions_pb2.Limits)
_KNOB: Final = encoder(KnobValue, sessions_pb2.KnobValue)
encoder(
    InitialCheckpoint,
    sessions_pb2.InitialCheckpoint,
    rename={"session_id": "session"},
    omit=("saved_at",),
)
encoder(After, sessions_pb2.After, rename={"session_id": "session", "is_any": "any_end"})
encoder(GitFacts, sessions_pb2.GitFacts, rename={"is_dirty": "dirty"})
_SPEC: Final = encoder(
    SessionSpec,
    sessions_pb2.SessionSpec,
    extra=(
        "datasets",
        "grace",
        "time_limit",
        "idle_limit",
        "lost_after",
        "preemptible",
        "no_queue",
    ),
    omit=("datasets", "grace_s", "time_limit_s", "idle_limit_s", "lost_after_s", "preemptible"),
)


def spec_message(spec: SessionSpec, owner: str) -> sessions_pb2.SessionSpec:
    """Convert a spec with defaults filled in; other owners' datasets are named OWNER/NAME."""
    message = sessions_pb2.SessionSpec()
    _fill_spec(spec, owner, message)
    return message


def _fill_spec(spec: SessionSpec, owner: str, message: sessions_pb2.SessionSpec) -> None:
    _SPEC.fill(spec, message)
    for one in spec.datasets:
        message.datasets.add(
            name=one.name if one.owner == owner else f"{one.owner}/{one.name}",
            version=one.version,
            digest=one.digest,
            streamed=one.streamed,
            folder=one.folder,
            in_place=one.in_place,
        )
    message.preemptible = spec.may_be_preempted
    message.grace.CopyFrom(duration(spec.grace_s))
    if spec.time_limit_s:
        message.time_limit.CopyFrom(duration(spec.time_limit_s))
    if spec.idle_limit_s:
        message.idle_limit.CopyFrom(duration(spec.idle_limit_s))
    if spec.lost_after_s:
        message.lost_after.CopyFrom(duration(spec.lost_after_s))


SHORT_BYTES: Final = 4 << 10
"""Limit for a command, and for an environment, in short messages."""
SHORT_CHANGES: Final = 16
"""Number of latest program changes in short messages; only the last one has the reports of its processes."""


def shorten(message: sessions_pb2.Session) -> None:
    """Truncate long commands and environments, drop early changes, and set `left_out_bytes`."""
    left_out = sum(one.ByteSize() for one in message.changes[:-SHORT_CHANGES])
    del message.changes[:-SHORT_CHANGES]
    for change in message.changes[:-1]:
        del change.members[:]
    spec = message.spec
    entry, missing = _beginning(spec.entry, SHORT_BYTES)
    left_out += missing
    if missing:  # assigning would create a spec where there is none
        spec.entry = entry
    for words in (spec.args, spec.argv, message.command):
        left_out += _shorten(words)
    room = SHORT_BYTES
    for name, value in sorted(spec.environment.items()):
        size = len(name.encode()) + len(value.encode())
        room -= size
        if room < 0:
            del spec.environment[name]
            left_out += size
    message.left_out_bytes = left_out


def _shorten(words: MutableSequence[str]) -> int:
    """Truncate words in place to SHORT_BYTES together; return the number of bytes left out."""
    room = SHORT_BYTES
    for place, word in enumerate(words):
        size = len(word.encode())
        if size > room:
            words[place], missing = _beginning(word, room)
            missing += sum(len(one.encode()) for one in words[place + 1 :])
            del words[place + 1 :]
            return missing
        room -= size
    return 0


def _beginning(text: str, size: int) -> tuple[str, int]:
    """Truncate a text to `size` bytes of whole characters; return it and the number of bytes cut."""
    data = text.encode()
    if len(data) <= size:
        return text, 0
    kept = data[:size].decode(errors="ignore")
    return kept, len(data) - len(kept.encode())


encoder(
    Replica,
    sessions_pb2.Replica,
    rename={"is_near_data": "near_data"},
    extra=("use",),
    omit=("phase", "started_at", "exit", "heard_at", "waiting"),
)
encoder(
    EndedAttempt,
    sessions_pb2.EndedAttempt,
    convert={"nodes": dict.fromkeys},  # each once
    omit=("gpu_thousandths", "held_s", "devices", "simulated"),
)
encoder(Origin, sessions_pb2.Origin, rename={"session_id": "session"})
_CHANGE: Final = encoder(
    ProgramChange,
    sessions_pb2.ProgramChange,
    extra=("limit",),
    omit=("limit_s", "wait_s", "tries", "since"),
)
_PROGRESS: Final = encoder(Progress, sessions_pb2.Progress, rename={"is_resumable": "resumable"})
_USAGE: Final = encoder(
    Usage,
    sessions_pb2.SessionUsage,
    rename={
        "utilization": "utilization_percent",
        "utilization_peak": "utilization_peak_percent",
        "memory_peak": "memory_peak_bytes",
    },
    convert={"memory_peak": round},
    extra=("idle_since", "forgotten_attempts"),
)
_SESSION: Final = encoder(
    Session,
    sessions_pb2.Session,
    extra=(
        *("spec", "stop", "command", "usage", "episodes", "progress", "simulated"),
        # Data from outside its record.
        *("waiting", "revision", "checkpoint_count", "lost_checkpoint_count"),
        *("summary", "summary_names", "summary_left_out", "left_out_bytes", "environment_lock"),
        *("made_datasets", "reported_config", "training"),
    ),
    omit=(
        *("spec", "stop", "command", "usage", "episodes", "progress"),
        *("request_id", "request_digest", "owner_id", "bad_attempts"),
        *("not_before", "settling", "resume", "durable", "competition_teams"),
    ),
)


def session_message(session: Session, *, shows_values: bool) -> sessions_pb2.Session:
    """Convert a session's record for viewers.

    `shows_values`: include the values of its environment, which are private to its owner.
    """
    spec, environment = session.spec, session.spec.environment
    if not shows_values:
        # Before building the message: a message's map skips names if changed during iteration.
        spec = replace(spec, environment=dict.fromkeys(environment, variables.HIDDEN))
        environment = {}
    message = _SESSION.to_message(session)
    _fill_spec(spec, session.owner, message.spec)
    if session.spec.is_sealed:
        # Of trees with hidden inputs: who guesses them could see whether it is right.
        for dataset in message.spec.datasets:
            dataset.digest = ""
    for change, its_message in zip(session.changes, message.changes, strict=True):
        _set_limit(change, its_message)
    message.simulated = session.is_simulated
    message.command.extend(variables.with_values(session.command, environment))
    if session.stop is not None and session.state is SessionState.STOPPING:
        message.stop.CopyFrom(_stop_message(session.stop))
    if session.usage is not None and not session.spec.is_sealed:
        message.usage.CopyFrom(usage_message(session.usage, session.attempts))
    for one in session.episodes:
        message.episodes.add(
            kind=_EPISODES[one.kind],
            since=timestamp(one.since),
            until=timestamp(one.until or session.ended_at),
            reason=one.reason,
        )
    if session.end is not None:
        message.end.exit_code = shown_code(session, session.end.exit_code)
    if session.progress != Progress() and not session.spec.is_sealed:
        _PROGRESS.fill(session.progress, message.progress)
    return message


def usage_message(
    usage: Usage, attempts: Iterable[EndedAttempt], idle_since: float = 0.0
) -> sessions_pb2.SessionUsage:
    """Convert the measured device usage, and count attempts without measurements."""
    message = _USAGE.to_message(usage)
    since = timestamp(idle_since)
    if since is not None:
        message.idle_since.CopyFrom(since)
    message.forgotten_attempts = sum(
        bool(one.gpu_thousandths and not one.devices) for one in attempts
    )
    return message


def _stop_message(stop: Stop) -> sessions_pb2.SessionStop:
    return sessions_pb2.SessionStop(
        cause=CAUSES[stop.cause],
        reason=stop.reason,
        asked_by=stop.asked_by,
        until=timestamp(stop.ends_by),
    )
