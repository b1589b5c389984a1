"""Everything that a session's record says, through a backup: a new field is restored, or named here with the reason."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, replace
from types import MappingProxyType
from typing import Any, Final

from controlplane.backups.restored_sessions import restored
from controlplane.domain.identity import User
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.program_changes import ChangeKind, ChangePhase, KnobValue, ProgramChange
from controlplane.domain.values import (
    After,
    Cause,
    DatasetVersion,
    End,
    EndedAttempt,
    Episode,
    EpisodeKind,
    GitFacts,
    InitialCheckpoint,
    Launcher,
    Limits,
    Network,
    Priority,
    Progress,
    Replica,
    Resources,
    SecretUse,
    Session,
    SessionSpec,
    SessionStage,
    Usage,
)
from controlplane.sessions.convert import session_message
from nsml.spec.run_flags import put_again
from nsml.v1 import session_backups_pb2, sessions_pb2

NOT_RESTORED: Final = {
    # Of the spec.
    "after": "it has ended, and those of the other platform are not here",
    "environment_lock": "the lock is restored beside it, and a fork asks for that",
    "datasets": "those that are here, as the caller gives them",
    "submission_id": "the submission is of another platform",
    # Of the session.
    "id": "a fresh one",
    "name": "its number is given when it is written",
    "owner": "whoever restores it",
    "owner_id": "as above",
    "team": "as above",
    "project": "as above",
    "visibility": "private",
    "spec": "field by field, see above",
    "request_id": "follows from the platform and the id",
    "request_digest": "as above",
    "replicas": "their nodes are named as none can be",
    "attempts": "without their nodes and charges",
    "imported": "says where it comes from, in place of the origin",
    "origin": "the session is of another platform, and in the archive",
    "stop": "of a session that is being stopped",
    "bad_attempts": "what a live session is decided by",
    "competition_teams": "as above",
    "not_before": "as above",
    "settling": "as above",
    "avoids": "as above",
    "resume": "as above",
    "durable": "as above",
    "held_cause": "of a held session",
}
KIM: Final = User(name="kim")
SPEC: Final = SessionSpec(
    entry="train.py",
    args=("--lr", "1"),
    bundle_digest="a" * 64,
    datasets=(DatasetVersion(owner="kim", name="mnist", version=1, digest="b" * 64),),
    resources=Resources(gpu_thousandths=2000, cpu_thousandths=3000, memory_bytes=1 << 30),
    replica_count=2,
    environment=MappingProxyType({"A": "1"}),
    image="pytorch:2",
    time_limit_s=3600.0,
    idle_limit_s=600.0,
    grace_s=20.0,
    retry_count=2,
    lost_after_s=900.0,
    limits=Limits(shm_bytes=1 << 30, disk_bytes=1 << 31, process_count=100),
    secrets=(SecretUse(name="token", variable="TOKEN"),),
    priority=Priority.HIGH,
    preemptible=True,
    gpu_model="A100",
    pod="pod-1",
    network=Network.OWN,
    refresh_environment=True,
    knobs=(KnobValue(name="lr", value="0.1", at=5, counter="step"),),
    labels=MappingProxyType({"team": "vision"}),
    initial_checkpoint=InitialCheckpoint(
        session_id="s1", name="best", digest="c" * 64, session_name="kim/mnist/1", saved_at=5.0
    ),
    after=(After(session_id="s1", name="kim/mnist/1"),),
    keep_checkpoints="last:2",
    environment_lock="d" * 64,
    output_datasets=("made=out",),
    log_metrics=("auto", r"q=q is (\d+)"),
    allow_changed_data=True,
    keep_files=True,
    needs_conda=True,
)
OTHER: Final = {
    # What contradicts one of the above.
    "argv": SessionSpec(argv=("true", "x")),
    "stage": SessionSpec(argv=("true",), stage=SessionStage.INFER),
    "submission_id": SessionSpec(
        argv=("true",),
        stage=SessionStage.EVALUATE,
        submission_id="u1",
        environment=MappingProxyType({"NSML_EVALUATE_S": "600"}),
    ),
    "launcher": SessionSpec(entry="a.py", bundle_digest="a" * 64, launcher=Launcher.RAY),
    "no_keep_files": SessionSpec(argv=("true",), no_keep_files=True),
    "keep_files_by_default": SessionSpec(argv=("true",), keep_files_by_default=True),
    "dockerfile": SessionSpec(entry="a.py", bundle_digest="a" * 64, dockerfile="Dockerfile"),
    "build_arguments": SessionSpec(
        entry="a.py",
        bundle_digest="a" * 64,
        dockerfile="Dockerfile",
        build_arguments=MappingProxyType({"V": "1"}),
    ),
}
WHOLE: Final = Session(
    id="s2",
    name="kim/mnist/2",
    owner="kim",
    spec=SPEC,
    created_at=10.0,
    state=SessionState.FAILED,
    attempt=2,
    replicas=(Replica(rank=0, node="n1"),),
    started_at=20.0,
    ended_at=30.0,
    end=End(cause=Cause.PROGRAM_FAILED, exit_code=3, rank=1, message="it failed"),
    memo="a memo",
    command=("nsml", "run"),
    attempts=(
        EndedAttempt(
            number=1,
            cause=Cause.PROGRAM_FAILED,
            placed_at=11.0,
            ended_at=12.0,
            gpu_thousandths=0,
            held_s=0.0,
        ),
    ),
    progress=Progress(is_resumable=True, saved_at=25.0),
    usage=Usage(
        device_seconds=5.0, utilization=50.0, utilization_peak=60.0, memory_peak=7.0, watt_hours=8.0
    ),
    episodes=(Episode(kind=EpisodeKind.IDLE, since=21.0, until=22.0, reason="nothing"),),
    changes=(
        ProgramChange(
            number=1,
            kind=ChangeKind.SET,
            attempt=1,
            asked_by="kim",
            asked_at=21.0,
            phase=ChangePhase.APPLIED,
            values=MappingProxyType({"lr": "0.2"}),
            asked_at_step=7,
            counter="step",
            at=8,
            reason="odd",
            ended_at=22.0,
        ),
    ),
    git=GitFacts(commit="0" * 40, branch="main", remote="https://example.org/x", is_dirty=True),
)


def _default(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def _through_a_backup(session: Session) -> Session:
    message = session_message(session, shows_values=True)
    backup = session_backups_pb2.RestoredSession(session=message, platform="c1")
    return restored(backup, KIM, session.spec.datasets, id="s9", now=100.0)


def test_every_field_of_a_record_is_restored_or_named() -> None:
    made = _through_a_backup(WHOLE)
    for one in fields(SessionSpec):
        spec = OTHER.get(one.name, SPEC)
        before = getattr(spec, one.name)
        assert before != _default(one), f"give {one.name} a value here"
        after = getattr(_through_a_backup(replace(WHOLE, spec=spec)).spec, one.name)
        if one.name == "initial_checkpoint":
            # As one of its own, saved before it was made.
            before = replace(before, session_id="s9", saved_at=WHOLE.created_at)
        if one.name not in NOT_RESTORED:
            assert after == before, one.name
    for one in fields(Session):
        if one.name not in NOT_RESTORED:
            before = getattr(WHOLE, one.name)
            assert before != _default(one), f"give {one.name} a value here"
            assert getattr(made, one.name) == before, one.name


def test_a_step_of_a_submission_is_restored_as_an_ordinary_session() -> None:
    spec = _through_a_backup(replace(WHOLE, spec=OTHER["submission_id"])).spec
    assert (spec.argv, spec.stage, spec.submission_id, dict(spec.environment)) == (
        ("true",),
        None,
        "",
        {},
    )


def test_a_fork_asks_for_every_field_of_a_restored_spec() -> None:
    """Beside what a flag asks of one submission alone."""
    once = {"after", "refresh_environment", "allow_changed_data"}
    for spec in (SPEC, *OTHER.values()):
        source = session_message(_through_a_backup(replace(WHOLE, spec=spec)), shows_values=True)
        request = sessions_pb2.CreateSessionRequest()
        put_again(request, source, {}, ())
        for field in sessions_pb2.SessionSpec.DESCRIPTOR.fields:
            if field.name not in once | {"keep_files_by_default"}:
                before, after = (getattr(each.spec, field.name) for each in (source, request))
                assert after == before, field.name


def test_a_run_of_another_tool_has_its_dataset_and_may_have_slashes_in_its_name() -> None:
    source = sessions_pb2.Session(
        id="r1",
        name="wandb/digits/group/run-1",
        state=sessions_pb2.SESSION_STATE_SUCCEEDED,
        attempt=1,
        end=sessions_pb2.SessionEnd(cause=sessions_pb2.CAUSE_COMPLETED),
    )
    source.spec.argv.append("(unknown)")
    message = session_backups_pb2.RestoredSession(session=source, platform="wandb")
    made = restored(message, User(name="lee"), (), id="s1", now=2e9)
    assert made.name == "lee/digits/0"
    assert made.imported is not None
    assert (made.imported.platform, made.imported.name) == ("wandb", "wandb/digits/group/run-1")
