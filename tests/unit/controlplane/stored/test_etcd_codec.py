"""What other versions wrote: read past by an older one, and lost when it rewrites the record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.domain.lifecycle import ReplicaPhase, SessionState
from controlplane.domain.values import (
    Budget,
    Cause,
    End,
    Exit,
    Fence,
    HeldCause,
    Keeping,
    KeptLimits,
    Limits,
    Network,
    Priority,
    Project,
    Quota,
    Replica,
    Resources,
    Resume,
    TeamQuota,
)
from controlplane.stored.etcd_codec import (
    decode_allocation,
    decode_node,
    decode_project,
    decode_session,
    decode_team_quota,
    encode_allocation,
    encode_node,
    encode_project,
    encode_session,
    encode_team_quota,
)
from controlplane.stored.v1 import records_pb2 as pb
from tests.unit.controlplane.builders import held, node, session

LATER_FIELD = b"\xf8\x7c\x01"
"""Number 1999, value 1: no version has it yet."""


@pytest.mark.parametrize(
    ("value", "encode", "decode"),
    [
        (session(memo="first"), encode_session, decode_session),
        (session(competition_teams=("c1/lee", "c2/park")), encode_session, decode_session),
        (
            TeamQuota(
                competition_id="c1",
                competition="cup",
                datasets=("kim/digits", "kim/triples"),
                gpu_thousandths=2500,
                merged={"lee": "both"},
            ),
            encode_team_quota,
            decode_team_quota,
        ),
        (node("n1", gpus=2), encode_node, decode_node),
        (
            Project(
                name="vision",
                owner="kim",
                members=frozenset({"kim", "lee"}),
                created_at=1.5,
                quota=Quota(gpu_thousandths=1, cpu_thousandths=2, memory_bytes=3, sessions=4),
                member_quota=Quota(sessions=5),
                budget=Budget(gpu_seconds=6.5, period_days=7, anchor=8.5),
                weight=2.5,
                most_priority=Priority.LOW,
            ),
            encode_project,
            decode_project,
        ),
        (
            node("n2", owner="kim", only_owner="it has no root", setting_note="no image"),
            encode_node,
            decode_node,
        ),
        (held("n1", ("n1-0", 500)), encode_allocation, decode_allocation),
    ],
)
def test_a_field_of_a_later_version_is_not_kept(value, encode, decode) -> None:
    later = encode(value) + LATER_FIELD
    assert decode(later) == value
    assert encode(decode(later)) == encode(value), "so versions must not run side by side"


def test_all_of_a_replica_is_kept() -> None:
    ended = Exit(
        cause=Cause.OUT_OF_MEMORY,
        exit_code=137,
        message="killed",
        started_at=1.0,
        ended_at=2.0,
        ran_for_s=3.0,
        memory_peak_bytes=6,
    )
    replica = Replica(
        rank=1,
        node="n1",
        devices=node("n1").devices,
        resources=Resources(gpu_thousandths=500, cpu_thousandths=1, memory_bytes=2),
        phase=ReplicaPhase.EXITED,
        started_at=4.0,
        exit=ended,
        heard_at=5.0,
    )
    one = replace(session(replicas=2), replicas=(replica,))
    assert decode_session(encode_session(one)) == one


def test_from_what_an_attempt_goes_on_is_kept() -> None:
    for resume in (None, Resume(attempt=2), Resume(attempt=3, checkpoint="last", digest="d")):
        one = replace(session(), resume=resume)
        assert decode_session(encode_session(one)) == one


def test_what_a_fence_gave_up_is_kept() -> None:
    fence = Fence(
        boot_id="b",
        asked_by="kim",
        reason="burnt",
        asked_at=1.0,
        replicas=frozenset({("s1", 1, 0), ("s2", 3, 5)}),
    )
    one = node("n1", fence=fence)
    assert decode_node(encode_node(one)) == one


def test_limits_and_how_a_node_keeps_them_are_kept() -> None:
    limits = Limits(shm_bytes=1, disk_bytes=2, process_count=3)
    one = session()
    one = replace(one, spec=replace(one.spec, limits=limits))
    assert decode_session(encode_session(one)) == one
    kept = KeptLimits(
        memory=Keeping.GROUP,
        cpus=Keeping.WATCHED,
        processes=Keeping.NONE,
        disk=Keeping.WATCHED,
        note="no root",
    )
    machine = replace(node("n1"), limits=kept)
    assert decode_node(encode_node(machine)) == machine


def test_priority_model_pod_and_network_are_kept() -> None:
    one = session()
    for priority in Priority:
        wishes = replace(
            one.spec, priority=priority, preemptible=True, gpu_model="A100 80GB", pod="p1"
        )
        wishes = replace(wishes, network=Network.HOST)
        asked = replace(one, spec=wishes)
        assert decode_session(encode_session(asked)) == asked


def test_the_networks_of_a_node_are_kept() -> None:
    for networks in ((), (Network.OWN,), (Network.OWN, Network.HOST)):
        one = node("n1", networks=networks)
        assert decode_node(encode_node(one)) == one


def test_labels_are_kept_and_a_record_from_before_them_has_none() -> None:
    one = session()
    labelled = replace(one, spec=replace(one.spec, labels={"stage": "dev", "try": "둘째"}))
    assert decode_session(encode_session(labelled)) == labelled
    record = pb.SessionRecord.FromString(encode_session(labelled))
    record.spec.ClearField("labels")
    assert decode_session(record.SerializeToString()) == one


def test_why_a_session_is_held_is_kept_and_derived_of_a_record_from_before_that() -> None:
    for last, cause in (
        (Cause.DATA_FAILED, HeldCause.START_FAILURES),
        (Cause.PORT_TAKEN, HeldCause.START_FAILURES),
        (Cause.NODE_REFUSED, HeldCause.START_FAILURES),
        (Cause.NODE_LOST, HeldCause.NODE_LOSSES),
        (Cause.LOST_AFTER, HeldCause.NODE_LOSSES),
    ):
        one = session(state=SessionState.HELD, end=End(cause=last), held_cause=cause)
        assert decode_session(encode_session(one)) == one
        record = pb.SessionRecord.FromString(encode_session(one))
        record.ClearField("held_cause")
        assert decode_session(record.SerializeToString()) == one
    # The stored cause wins: later causes have nothing to do with the last attempt.
    one = replace(one, held_cause=HeldCause.START_FAILURES)
    assert decode_session(encode_session(one)) == one
    failed = session(state=SessionState.FAILED, end=End(cause=Cause.DATA_FAILED))
    assert decode_session(encode_session(failed)).held_cause is None


def test_a_record_without_a_priority_is_of_a_normal_session() -> None:
    record = pb.SessionRecord.FromString(encode_session(session()))
    for field in ("priority", "preemptible", "gpu_model", "pod"):
        record.spec.ClearField(field)
    spec = decode_session(record.SerializeToString()).spec
    assert spec.priority is Priority.NORMAL
    assert (spec.preemptible, spec.gpu_model, spec.pod) == (False, "", "")


def test_a_record_without_what_was_added_since_is_read() -> None:
    written = encode_session(session(memo="first"))
    record = pb.SessionRecord.FromString(written)
    for field in ("not_before", "bad_attempts", "attempts", "command", "memo", "team"):
        record.ClearField(field)
    read = decode_session(record.SerializeToString())
    assert (read.not_before, read.attempts, read.memo, read.team) == (0.0, (), "", "")
    assert read.state is SessionState.QUEUED
