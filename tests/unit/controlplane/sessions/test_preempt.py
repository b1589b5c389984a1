"""Giving way: who may be told to, what it is told, and when it may go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Preemption
from controlplane.domain.values import Cause, Device, Priority, Progress, Session, Stop
from controlplane.scheduler.explain import moved_words
from controlplane.sessions.preempt import give_way
from controlplane.sessions.stop import stopped_by
from controlplane.state.progress import ProgressReport, apply_progress
from controlplane.state.replica_reports import BACKOFF_S, SETTLED_WITHIN_S
from controlplane.stored.etcd_codec import decode_session, encode_session
from tests.unit.controlplane.builders import cluster, node, session
from tests.unit.controlplane.snapshot import schedule
from tests.unit.controlplane.workbench import Script


def running(*, resumable: bool = True, **facts) -> tuple[Script, Session, Session]:
    one, waiting = session(spec=facts), session()
    script = Script(node("a", gpus=1), node("b", gpus=1), one, waiting)
    assert script.place(one, ("a", "a-0"))
    script.say(one, "RUNNING")
    if resumable:
        tell(script, one)
    return script, one, waiting


def tell(script: Script, one: Session, *, since_s: float | None = 0.0, **told) -> Progress:
    said = ProgressReport(
        node=told.get("node", "a"),
        session_id=one.id,
        attempt=told.get("attempt", 1),
        rank=told.get("rank", 0),
        is_resumable=told.get("is_resumable", True),
        since_saved_s=since_s,
    )
    script.decide(lambda draft: apply_progress(draft, said, script.now))
    return script.session(one).progress


def preempt(script: Script, one: Session, for_: Session | None = None, attempt: int = 1) -> bool:
    preemption = Preemption(
        session_id=one.id,
        attempt=attempt,
        why="gives way to kim/mnist/12 (high)",
        for_session_id=for_.id if for_ else "",
    )
    return bool(script.decide(lambda draft: give_way(draft, preemption, script.now, notice_s=60.0)))


def with_spec(script: Script, one: Session, **spec) -> None:
    now = script.session(one)
    changed = replace(now, spec=replace(now.spec, **spec))
    script.decide(lambda draft: draft.put_session(changed))


def test_who_gives_way_is_told_why_and_given_notice() -> None:
    script, one, waiting = running()
    assert preempt(script, one, waiting)
    told = script.session(one)
    assert told.state == "STOPPING"
    assert told.stop == Stop(
        grace_s=one.spec.grace_s,
        notice_s=60.0,
        cause=Cause.PREEMPTED,
        reason="gives way to kim/mnist/12 (high)",
        asked_at=script.now,
    )
    assert decode_session(encode_session(told)).stop == told.stop
    script.now += 5
    assert not preempt(script, one, waiting), "once"
    assert script.session(one) == told


def test_what_cannot_be_resumed_is_left_alone_unless_its_owner_allows_it() -> None:
    script, one, waiting = running(resumable=False)
    assert not preempt(script, one, waiting)
    assert script.session(one).state == "RUNNING"
    with_spec(script, one, preemptible=True)
    assert preempt(script, one, waiting)
    script, one, waiting = running(resumable=False)
    with_spec(script, one, priority=Priority.IDLE)
    assert preempt(script, one, waiting)


def test_a_plan_that_no_longer_holds_does_nothing() -> None:
    script, one, waiting = running()
    assert not preempt(script, one, waiting, attempt=2), "another attempt"
    assert not preempt(script, session(), waiting), "gone"
    script.decide(
        lambda draft: draft.put_session(stopped_by(waiting, Stop(grace_s=0, asked_by="kim"), 1.0))
    )
    assert not preempt(script, one, waiting), "nobody waits"
    script.unheard = frozenset({"a"})
    script.decide(
        lambda draft: draft.put_session(replace(script.session(one), state=SessionState.UNKNOWN))
    )
    assert not preempt(script, one), "nobody can tell it"


def test_it_waits_until_what_it_saved_is_safe_and_no_longer() -> None:
    script, one, waiting = running()
    preempt(script, one, waiting)
    script.now += 10
    left = script.say(one, "EXITED", cause="PREEMPTED", exit_code=75)
    assert left.attempts[-1].reason == "gives way to kim/mnist/12 (high)"
    assert decode_session(encode_session(left)).attempts == left.attempts
    assert moved_words(left) == (
        "it gave way to kim/mnist/12 (high), and resumes from its checkpoint once there is room"
    )
    assert (left.state, left.settling, left.not_before) == (
        "QUEUED",
        {0},
        script.now + SETTLED_WITHIN_S,
    )
    assert script.held("a") == 0, "its devices are free meanwhile"
    plan = schedule(cluster(node("a", gpus=1), left), script.now)
    assert not plan.placements
    assert plan.deferrals[0].explanation.reason == "its checkpoint is being stored, to resume from"
    assert script.say(one, "FINALIZED", node="b").settling, "not of another node"
    assert script.say(one, "EXITED", cause="PREEMPTED").settling, "repeated"
    settled = script.say(one, "FINALIZED")
    assert (settled.settling, settled.not_before) == (frozenset(), 0.0)
    assert script.say(one, "FINALIZED") == settled
    stopped = stopped_by(settled, Stop(grace_s=0, asked_by="kim", reason="enough"), script.now)
    assert stopped.end.message == "stopped by kim while it was queued: enough", "it had run"
    assert script.place(one, ("b", "b-0"))
    assert (script.session(one).attempt, script.session(one).stop) == (2, None)


def test_what_ran_on_a_simulated_gpu_stays_marked_when_it_is_queued_again() -> None:
    script, one, waiting = running()
    [replica] = script.session(one).replicas
    replica = replace(replica, devices=(Device(uuid="a-0", index=0, simulated=True),))
    script.decide(
        lambda draft: draft.put_session(replace(script.session(one), replicas=(replica,)))
    )
    assert preempt(script, one, waiting)
    left = script.say(one, "EXITED", cause="PREEMPTED", exit_code=75)
    assert (left.replicas, left.is_simulated) == ((), True)
    assert decode_session(encode_session(left)).is_simulated


def test_a_gang_waits_for_all_of_it() -> None:
    one = session(replicas=2)
    script = Script(node("a"), node("b"), one)
    assert script.place(one, ("a", "a-0"), ("b", "b-0"))
    tell(script, one)
    assert preempt(script, one)
    script.say(one, "EXITED", 0, cause="PREEMPTED")
    script.say(one, "FINALIZED", 1, cause="PREEMPTED", node="b")
    assert script.session(one).settling == {0}
    assert script.say(one, "FINALIZED", 0).not_before == 0.0


def test_when_rank_0_is_gone_the_others_are_given_no_more_notice() -> None:
    one = session(replicas=2)
    script = Script(node("a"), node("b"), one)
    script.place(one, ("a", "a-0"), ("b", "b-0"))
    tell(script, one)
    preempt(script, one)
    script.say(one, "EXITED", 1, cause="PREEMPTED", node="b")
    assert script.session(one).stop.notice_s == 60.0, "who saves is still there"
    stop = script.say(one, "EXITED", 0, cause="PREEMPTED").stop
    assert stop is None, "all are gone"
    one = session(replicas=2)
    script = Script(node("a"), node("b"), one)
    script.place(one, ("a", "a-0"), ("b", "b-0"))
    tell(script, one)
    preempt(script, one)
    asked_at = script.now
    script.now += 20
    stop = script.say(one, "EXITED", 0, cause="PREEMPTED").stop
    assert (stop.notice_s, stop.asked_at) == (0.0, asked_at + 20), "from now on it has its grace"


def test_whoever_of_a_gang_is_left_in_its_grace_has_what_is_left_of_it() -> None:
    one = session(replicas=2)
    script = Script(node("a"), node("b"), one)
    script.place(one, ("a", "a-0"), ("b", "b-0"))
    tell(script, one)
    preempt(script, one)
    until = script.session(one).stop.ends_by
    script.now += 65
    stop = script.say(one, "EXITED", 0, cause="PREEMPTED").stop
    assert (stop.notice_s, stop.ends_by) == (0.0, until)


def test_a_stop_by_its_owner_outweighs_it() -> None:
    script, one, waiting = running()
    preempt(script, one, waiting)
    wish = Stop(grace_s=1.0, asked_by="kim")
    now = script.session(one)
    script.decide(lambda draft: draft.put_session(stopped_by(now, wish, script.now)))
    assert script.session(one).stop.notice_s == 0.0
    assert script.say(one, "FINALIZED", cause="PREEMPTED").state == "STOPPED"


def test_the_others_of_a_gang_say_nothing_of_its_progress() -> None:
    one = session(replicas=2)
    script = Script(node("a"), node("b"), one)
    assert script.place(one, ("a", "a-0"), ("b", "b-0"))
    assert tell(script, one, rank=1, node="b") == Progress()
    assert tell(script, one, rank=0, node="a").is_resumable


def test_progress_is_rank_0s_and_written_rarely() -> None:
    script, one, _ = running(resumable=False)
    assert tell(script, one, since_s=None) == Progress(is_resumable=True)
    assert tell(script, one, node="b", is_resumable=False) == Progress(is_resumable=True)
    assert tell(script, one, attempt=2, is_resumable=False).is_resumable
    saved = tell(script, one, since_s=3.0)
    assert saved.saved_at == script.now - 3.0
    before = script.revision
    script.now += 5.0
    assert tell(script, one, since_s=7.5) == saved, "the same one, told again"
    script.now += 60.0
    assert tell(script, one, since_s=None) == saved, "what an earlier attempt saved stays saved"
    assert tell(script, one, since_s=-3600.0).saved_at == script.now, "a clock that was set"
    assert script.revision > before


@pytest.mark.parametrize(("retries", "again"), [(0, False), (1, True)])
def test_at_its_time_limit_it_goes_on_from_what_it_saved(retries: int, again: bool) -> None:
    script, one, _ = running(retry_count=retries)
    ended = script.say(one, "FINALIZED", cause="TIME_LIMIT")
    assert (ended.state == "QUEUED") is again
    if again:
        assert script.place(one, ("b", "b-0"))
        ended = script.say(one, "FINALIZED", cause="TIME_LIMIT", attempt=2, node="b")
    assert (ended.state, ended.end.cause) == ("FAILED", Cause.TIME_LIMIT)


def test_what_saved_nothing_is_not_begun_anew_at_its_time_limit() -> None:
    script, one, _ = running(resumable=False, retry_count=3)
    tell(script, one, since_s=None)
    assert script.say(one, "FINALIZED", cause="TIME_LIMIT").state == "FAILED"


def withhold(script: Script, name: str) -> None:
    device = Device(uuid=f"{name}-0", index=0, withheld="XID 79: it fell off the bus")
    script.revision += 1
    script.state.put_node(replace(node(name, gpus=1), devices=(device,)), script.revision)


def test_a_device_that_failed_it_is_never_given_to_it_again() -> None:
    script, one, _ = running(retry_count=2)
    withhold(script, "a")
    again = script.say(one, "FINALIZED", cause="PROGRAM_FAILED", exit_code=1)
    assert (again.state, again.avoids) == ("QUEUED", {"a-0"})
    healed = node("a", gpus=1)
    script.state.put_node(healed, script.revision + 1)
    script.revision += 1
    assert not script.place(one, ("a", "a-0")), "not even when it seems well again"
    plan = schedule(cluster(healed, again), script.now)
    assert not plan.placements
    assert "failed it before (a-0)" in plan.deferrals[0].explanation.reason
    plan = schedule(cluster(healed, node("b", gpus=1), again), script.now)
    assert plan.placements[0].replicas[0].node == "b"
    plan = schedule(cluster(node("a", gpus=2), again), script.now)
    assert [one.uuid for one in plan.placements[0].replicas[0].devices] == ["a-1"]
    assert script.place(one, ("b", "b-0"))
    failed = script.say(one, "FINALIZED", cause="PROGRAM_FAILED", attempt=2, node="b")
    assert failed.state == "FAILED", "by itself, on a device that is well"


def test_without_retries_a_failed_device_ends_it() -> None:
    script, one, _ = running()
    withhold(script, "a")
    assert script.say(one, "FINALIZED", cause="PROGRAM_FAILED").state == "FAILED"


def test_a_node_that_fails_it_again_and_again_is_avoided_where_there_is_another() -> None:
    script, one, _ = running(retry_count=5)
    assert not script.say(one, "FINALIZED", cause="NODE_LOST", ran_for_s=900.0).avoids
    assert script.place(one, ("a", "a-0"))
    again = script.say(one, "FINALIZED", cause="NODE_LOST", ran_for_s=900.0, attempt=2)
    assert (again.state, again.avoids, again.not_before) == ("QUEUED", {"a"}, 0.0)
    assert not script.place(one, ("a", "a-0"))
    assert schedule(cluster(node("a"), node("b"), again), 9e9).placements[0].replicas[0].node == "b"
    alone = session(spec={"retry_count": 5})
    script = Script(node("a", gpus=1), alone)
    for attempt in (1, 2):
        assert script.place(alone, ("a", "a-0"))
        lost = script.say(alone, "FINALIZED", cause="NODE_LOST", ran_for_s=900.0, attempt=attempt)
    assert not lost.avoids, "there is nothing better to wait for"


def test_a_node_that_the_rest_cannot_do_without_is_not_avoided() -> None:
    """A second node is there, but not large enough."""
    wide = session(cpu=8000, spec={"retry_count": 5})
    script = Script(node("a"), node("b", cpu=4000), wide)
    for attempt in (1, 2):
        assert script.place(wide, ("a", "a-0"))
        lost = script.say(wide, "FINALIZED", cause="NODE_LOST", ran_for_s=900.0, attempt=attempt)
    assert lost.state == "QUEUED"
    assert not lost.avoids


def test_the_wait_after_a_bad_attempt_is_kept_once_it_is_settled() -> None:
    script, one, _ = running(retry_count=5)
    lost = script.say(one, "EXITED", cause="NODE_LOST", ran_for_s=1.0)
    assert lost.not_before == script.now + SETTLED_WITHIN_S
    assert script.say(one, "FINALIZED").not_before == script.now + BACKOFF_S
