"""Ends, retries and gangs: what follows from what agents say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.domain.values import Cause, Drain, HeldCause, Node, Session, Stop
from controlplane.nodes import lost_nodes as silence
from controlplane.sessions.stop import stopped_by
from controlplane.state.replica_reports import (
    BACKOFF_S,
    LOST_PEER,
    SETTLED_WITHIN_S,
    Report,
    released,
)
from controlplane.stored.etcd_codec import decode_session, encode_session
from nodeagent.shim import last_output
from tests.support.examples import examples
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.workbench import Script, report

HOUR_S = 3_600.0


def placed(**facts) -> tuple[Script, Session]:
    one = session(**facts)
    script = Script(node("a"), one)
    assert script.place(one, ("a", "a-0"))
    return script, one


def gang() -> tuple[Script, Session]:
    one = session(replicas=2)
    script = Script(node("a"), node("b"), one)
    assert script.place(one, ("a", "a-0"), ("b", "b-0"))
    return script, one


def test_a_short_session_ends_in_one_step() -> None:
    script, one = placed()
    script.now += 60
    ended = script.say(one, "FINALIZED", cause="COMPLETED", started_at=90.0)
    assert (ended.state, ended.end.cause, ended.started_at) == ("SUCCEEDED", Cause.COMPLETED, 90.0)
    assert script.held("a") == 0
    [attempt] = ended.attempts
    assert (attempt.held_s, attempt.gpu_thousandths, attempt.nodes) == (60.0, 1000, ("a",))


def test_devices_are_freed_before_the_session_is_finalized() -> None:
    script, one = placed()
    assert script.say(one, "RUNNING").state == "RUNNING"
    ended = script.say(one, "EXITED", cause="PROGRAM_FAILED", exit_code=3)
    assert (ended.state, ended.end.exit_code, script.held("a")) == ("FINALIZING", 3, 0)
    assert not ended.ended_at
    ended = script.say(one, "FINALIZED")
    assert (ended.state, ended.end.exit_code) == ("FAILED", 3)
    assert len(ended.attempts) == 1


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("COMPLETED", "SUCCEEDED"),
        ("STOP_REQUESTED", "STOPPED"),
        ("PROGRAM_FAILED", "FAILED"),
        ("TIME_LIMIT", "FAILED"),
        ("OUT_OF_MEMORY", "FAILED"),
        ("ENVIRONMENT_FAILED", "FAILED"),
        ("START_FAILED", "FAILED"),
        ("NODE_LOST", "FAILED"),
        ("LOST_AFTER", "FAILED"),
    ],
)
def test_every_cause_has_its_end(cause: str, state: str) -> None:
    script, one = placed()
    ended = script.say(one, "FINALIZED", cause=cause, ran_for_s=100.0)
    assert (ended.state, ended.end.cause) == (state, cause)


def test_what_a_replica_waits_for_is_known_until_it_goes_on() -> None:
    script, one = placed()

    def waits(phase: str, waiting: str = "") -> str:
        return script.say(one, phase, waiting=waiting).replicas[0].waiting

    assert waits("PREPARING", "waiting for other builds") == "waiting for other builds"
    assert waits("PREPARING", "waiting for other builds") == "waiting for other builds"
    assert waits("PREPARING", "waiting for room") == "waiting for room"
    assert waits("PREPARING") == ""
    assert waits("PREPARING", "waiting again") == "waiting again"
    assert waits("RUNNING", "of an odd agent") == ""
    assert waits("PREPARING", "said late") == ""


def test_a_report_twice_is_one_report() -> None:
    script, one = placed()
    first = script.say(one, "FINALIZED", cause="COMPLETED")
    assert script.say(one, "FINALIZED", cause="PROGRAM_FAILED") == first
    assert script.say(one, "RUNNING") == first


def test_a_report_of_another_node_or_attempt_is_nothing() -> None:
    script, one = placed()
    before = script.session(one)
    assert script.say(one, "FINALIZED", cause="COMPLETED", node="b") == before
    assert script.say(one, "FINALIZED", cause="COMPLETED", attempt=2) == before


def test_pausing() -> None:
    script, one = placed()
    assert script.say(one, "PAUSED").state == "PAUSED"
    assert script.say(one, "RUNNING").state == "RUNNING"
    assert script.say(one, "PAUSED").state == "PAUSED"


def test_a_gang_runs_when_all_run() -> None:
    script, one = gang()
    assert script.say(one, "RUNNING", 0).state == "PREPARING"
    assert script.say(one, "RUNNING", 1, node="b").state == "RUNNING"


def test_the_first_bad_exit_stops_the_gang_and_is_its_cause() -> None:
    script, one = gang()
    script.say(one, "RUNNING", 0)
    script.say(one, "RUNNING", 1, node="b")
    stopping = script.say(one, "EXITED", 1, node="b", cause="OUT_OF_MEMORY", at=50.0)
    assert (stopping.state, stopping.stop.cause) == ("STOPPING", Cause.GANG_MEMBER_FAILED)
    assert script.held("a") == script.held("b") == 1000
    ended = script.say(one, "FINALIZED", 0, cause="GANG_MEMBER_FAILED", at=40.0)
    assert (script.held("a"), script.held("b"), ended.state) == (0, 0, "FINALIZING")
    ended = script.say(one, "FINALIZED", 1, node="b")
    assert (ended.state, ended.end.cause, ended.end.rank) == ("FAILED", Cause.OUT_OF_MEMORY, 1)


def test_the_exit_that_was_heard_first_is_the_cause_whatever_the_clocks_of_nodes_say() -> None:
    script, one = gang()
    script.say(one, "RUNNING", 0)
    script.say(one, "RUNNING", 1, node="b")
    stopping = script.say(one, "EXITED", 1, node="b", cause="OUT_OF_MEMORY", at=5_000.0)
    assert stopping.stop.reason == "replica 1 ended: OUT_OF_MEMORY"
    script.now += 1
    script.say(one, "EXITED", 0, cause="PROGRAM_FAILED", exit_code=1, at=3.0)
    script.now += 1
    script.say(one, "FINALIZED", 0)
    ended = script.say(one, "FINALIZED", 1, node="b")
    assert (ended.state, ended.end.cause, ended.end.rank) == ("FAILED", Cause.OUT_OF_MEMORY, 1)


@pytest.mark.parametrize(
    ("within_s", "code", "cause", "rank"),
    [
        (0.5, 137, "PROGRAM_FAILED", 1),
        (0.5, 139, "PROGRAM_FAILED", 1),
        (0.5, 137, "OUT_OF_MEMORY", 1),
        (0.5, 137, "LIMIT_EXCEEDED", 1),
        (0.5, 143, "TIME_LIMIT", 1),
        (0.5, 1, "PROGRAM_FAILED", 0),
        (0.5, 134, "PROGRAM_FAILED", 0),  # libraries abort when a peer is gone
        (0.5, 1, "DATA_FAILED", 0),
        (1.5, 137, "PROGRAM_FAILED", 0),
        (1.5, 143, "TIME_LIMIT", 0),
    ],
)
def test_of_exits_reported_together_a_killed_or_limited_program_is_the_cause(
    within_s: float, code: int, cause: str, rank: int
) -> None:
    script, one = running_gang()
    script.say(one, "EXITED", 0, cause="PROGRAM_FAILED", exit_code=1)
    script.now += within_s
    ended = script.say(one, "EXITED", 1, node="b", cause=cause, exit_code=code)
    assert ended.end.rank == rank


@pytest.mark.parametrize("within_s", [0.5, 1.5])
@pytest.mark.parametrize(
    "message",
    [
        "process 0 (local rank 0): RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:9629",
        "RuntimeError: Read error [10.0.0.2]:9629: Connection reset by peer",
        "torch.distributed.DistBackendError: ncclRemoteError: remote process exited or there was a network error",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_a_program_that_lost_its_peer_is_not_the_cause(message: str, within_s: float) -> None:
    script, one = running_gang()
    script.say(one, "EXITED", 0, cause="PROGRAM_FAILED", exit_code=1, message=message)
    script.now += within_s
    cause = "process 3 (local rank 1): ValueError: nan"
    ended = script.say(
        one, "EXITED", 1, node="b", cause="PROGRAM_FAILED", exit_code=1, message=cause
    )
    assert (ended.end.rank, ended.end.message) == (1, cause)


def test_where_all_lost_their_peers_the_first_is_the_cause() -> None:
    script, one = running_gang()
    lost = "RuntimeError: Connection closed by peer"
    script.say(one, "EXITED", 1, node="b", cause="PROGRAM_FAILED", exit_code=1, message=lost)
    ended = script.say(one, "EXITED", 0, cause="GANG_MEMBER_FAILED", exit_code=143)
    assert (ended.end.rank, ended.end.message) == (1, lost)


def test_agents_know_lost_peers_by_the_same_words() -> None:
    assert LOST_PEER.pattern == last_output.LOST_PEER


def running_gang(**spec) -> tuple[Script, Session]:
    one = session(replicas=2, spec=spec)
    script = Script(node("a"), node("b"), one)
    assert script.place(one, ("a", "a-0"), ("b", "b-0"))
    script.say(one, "RUNNING", 0)
    script.say(one, "RUNNING", 1, node="b")
    return script, one


def wish(script: Script, one: Session) -> Session:
    made = Stop(grace_s=5.0, asked_by="kim")
    script.decide(lambda draft: draft.put_session(stopped_by(script.session(one), made, 5.0)))
    script.now += 1
    return script.session(one)


def test_what_fails_because_others_of_its_gang_are_stopped_was_stopped() -> None:
    script, one = running_gang()
    wish(script, one)
    script.say(one, "EXITED", 1, node="b", cause="PROGRAM_FAILED", exit_code=1)
    script.now += 1
    wish(script, one)  # again, while it stops
    ended = script.say(one, "EXITED", 0, cause="STOP_REQUESTED", message="ended by signal 15")
    assert (ended.state, ended.end.cause) == ("FINALIZING", Cause.STOP_REQUESTED)
    assert ended.end.message == "stopped by kim; ended by signal 15"


def test_a_wish_again_gives_nobody_more_time() -> None:
    script, one = running_gang()
    first = wish(script, one).stop
    assert first.ends_by == 10.0
    later = Stop(grace_s=60.0, asked_by="root")
    again = stopped_by(script.session(one), later, 8.0).stop
    assert (again.asked_by, again.ends_by) == ("root", 10.0)
    assert stopped_by(script.session(one), replace(later, grace_s=1.0), 8.0).stop.ends_by == 9.0


def test_the_others_of_a_gang_have_their_grace_from_when_one_failed() -> None:
    script, one = running_gang(grace_s=7.0)
    script.now += 30
    stop = script.say(one, "EXITED", 1, node="b", cause="PROGRAM_FAILED", exit_code=1).stop
    assert (stop.cause, stop.ends_by) == (Cause.GANG_MEMBER_FAILED, script.now + 7)


def test_a_wish_after_a_failure_does_not_hide_it_nor_is_the_session_repeated() -> None:
    script, one = running_gang(retry_count=3)
    script.say(one, "EXITED", 1, node="b", cause="NODE_LOST", ran_for_s=90.0)
    script.now += 1
    assert wish(script, one).stop.cause is Cause.STOP_REQUESTED
    ended = script.say(one, "EXITED", 0, cause="STOP_REQUESTED")
    assert (ended.state, ended.end.cause, ended.end.rank) == ("FINALIZING", Cause.NODE_LOST, 1)


def test_whoever_ended_by_itself_before_all_were_told_decides() -> None:
    script, one = running_gang()
    wish(script, one)
    script.say(one, "EXITED", 1, node="b", cause="PROGRAM_FAILED", exit_code=7)
    ended = script.say(one, "EXITED", 0, cause="COMPLETED")
    assert (ended.end.cause, ended.end.exit_code) == (Cause.PROGRAM_FAILED, 7)


def test_a_lost_node_is_why_the_others_lost_their_connection() -> None:
    """Its loss is proved long after them, and began before."""
    script, one = running_gang(retry_count=1)
    last_word_at = script.now
    script.now += 30
    script.say(one, "EXITED", 0, cause="PROGRAM_FAILED", exit_code=1, ran_for_s=90.0)
    script.now += 300
    register(script, one, node("b", boot_id="boot2"), last_word_at=last_word_at)
    again = script.session(one)
    assert (again.state, [attempt.cause for attempt in again.attempts]) == (
        "QUEUED",
        [Cause.NODE_LOST],
    )


@pytest.mark.parametrize(("ended_at", "first"), [(1_010.0, 1), (500.0, 1), (1_040.0, 0)])
def test_what_a_silent_node_tells_happened_in_its_silence(ended_at: float, first: int) -> None:
    script, one = running_gang()
    last_word_at = script.now
    script.now += 30
    script.say(one, "EXITED", 0, cause="PROGRAM_FAILED", exit_code=5)
    script.now += 30
    said = report(one, "EXITED", 1, node="b", cause="LOST_AFTER", at=ended_at)
    register(script, one, node("b"), said, last_word_at=last_word_at)
    assert script.session(one).end.rank == first


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_a_program_started_since_it_was_placed_whatever_its_node_says(ahead_s: float) -> None:
    script, one = placed()
    placed_at = script.now
    script.now += 40
    started = script.say(one, "RUNNING", at=script.now + ahead_s)
    assert placed_at <= started.started_at == started.replicas[0].started_at <= script.now


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize(("ran_s", "bad"), [(5, 1), (200, 0)])
def test_whether_a_lost_attempt_was_a_bad_one_is_no_matter_of_its_nodes_clock(
    ahead_s: float, ran_s: float, bad: int
) -> None:
    script, one = placed(spec={"retry_count": 1})
    script.say(one, "RUNNING", at=script.now + ahead_s)
    script.now += ran_s
    register(script, one, node("a", boot_id="boot2"))
    assert script.session(one).bad_attempts == bad


def test_a_good_exit_stops_nobody() -> None:
    script, one = gang()
    script.say(one, "RUNNING", 0)
    assert script.say(one, "FINALIZED", 1, node="b", cause="COMPLETED").stop is None
    assert script.say(one, "FINALIZED", 0, cause="COMPLETED").state == "SUCCEEDED"


def test_the_platforms_fault_is_repeated_while_retries_are_left() -> None:
    script, one = placed(spec={"retry_count": 1})
    script.say(one, "RUNNING")
    again = script.say(one, "FINALIZED", cause="NODE_LOST", ran_for_s=100.0)
    assert (again.state, again.replicas, again.end, again.not_before) == ("QUEUED", (), None, 0.0)
    assert script.held("a") == 0
    assert script.place(one, ("a", "a-1"))
    assert script.session(one).attempt == 2
    ended = script.say(one, "FINALIZED", cause="NODE_LOST", attempt=2, ran_for_s=100.0)
    assert (ended.state, [a.number for a in ended.attempts]) == ("FAILED", [1, 2])


def test_a_gang_that_lost_a_node_is_repeated() -> None:
    one = session(replicas=2, spec={"retry_count": 1})
    script = Script(node("a"), node("b"), one)
    script.place(one, ("a", "a-0"), ("b", "b-0"))
    script.say(one, "RUNNING", 0)
    script.say(one, "RUNNING", 1, node="b")
    stopping = script.say(one, "FINALIZED", 1, node="b", cause="NODE_LOST", ran_for_s=90.0)
    assert stopping.state == "STOPPING"
    again = script.say(one, "EXITED", 0, cause="GANG_MEMBER_FAILED", ran_for_s=90.0)
    assert (again.state, again.stop) == ("QUEUED", None)


@pytest.mark.parametrize("cause", ["DATA_FAILED", "PORT_TAKEN", "NODE_REFUSED"])
def test_three_bad_attempts_are_held(cause: str) -> None:
    one = session()
    script = Script(node("a"), one)
    for attempt in (1, 2):
        assert script.place(one, ("a", "a-0"))
        after = script.say(one, "FINALIZED", cause=cause, attempt=attempt)
        assert (after.state, after.not_before) == ("QUEUED", script.now + BACKOFF_S * attempt)
    script.place(one, ("a", "a-0"))
    after = script.say(one, "FINALIZED", cause=cause, attempt=3)
    assert (after.state, after.end.cause, script.held("a")) == ("HELD", Cause(cause), 0)
    assert after.held_cause is HeldCause.START_FAILURES
    ended = stopped_by(after, Stop(grace_s=0, asked_by="kim"), script.now)
    assert (ended.state, ended.held_cause) == ("STOPPED", None)


def test_a_released_session_has_its_attempts_anew_once_what_it_saved_is_safe() -> None:
    one = session()
    script = Script(node("a"), one)
    for attempt in (1, 2, 3):
        script.place(one, ("a", "a-0"))
        after = script.say(one, "EXITED", cause="DATA_FAILED", attempt=attempt)
        if attempt < 3:
            script.say(one, "FINALIZED", attempt=attempt)
    assert after.state == "HELD"
    script.decide(lambda draft: draft.put_session(released(after, script.now)))
    again = script.session(one)
    assert (again.state, again.held_cause, again.end, again.bad_attempts) == (
        "QUEUED",
        None,
        None,
        0,
    )
    assert (again.replicas, again.settling, len(again.attempts)) == ((), {0}, 3)
    assert again.not_before == script.now + SETTLED_WITHIN_S
    settled = script.say(one, "FINALIZED", attempt=3)
    assert (settled.settling, settled.not_before) == (frozenset(), 0.0)
    assert script.place(one, ("a", "a-0"))
    after = script.say(one, "FINALIZED", cause="DATA_FAILED", attempt=4)
    assert (after.state, after.bad_attempts) == ("QUEUED", 1), "not held at once"


@pytest.mark.parametrize(
    ("causes", "held_cause"),
    [
        (["NODE_LOST", "LOST_AFTER", "NODE_LOST"], HeldCause.NODE_LOSSES),
        (["DATA_FAILED", "NODE_REFUSED", "LOST_AFTER"], HeldCause.NODE_LOSSES),
        (["NODE_LOST", "NODE_LOST", "DATA_FAILED"], HeldCause.START_FAILURES),
    ],
)
def test_the_last_bad_attempt_says_why_it_is_held(causes: list[str], held_cause: HeldCause) -> None:
    one = session(spec={"retry_count": 9})
    script = Script(node("a"), one)
    for attempt, cause in enumerate(causes, start=1):
        assert script.session(one).held_cause is None
        script.place(one, ("a", "a-0"))
        after = script.say(one, "FINALIZED", cause=cause, attempt=attempt)
    assert (after.state, after.held_cause) == ("HELD", held_cause)


def test_what_its_node_refuses_costs_no_retry_and_leads_to_another_node() -> None:
    one = session(spec={"retry_count": 1})
    script = Script(node("a"), node("b"), one)
    for attempt in (1, 2):
        assert script.place(one, ("a", "a-0"))
        after = script.say(one, "FINALIZED", cause="NODE_REFUSED", attempt=attempt)
        assert after.state == "QUEUED"
    assert after.avoids == {"a"}, "refused there a second time"
    script.place(one, ("b", "b-0"))
    script.say(one, "RUNNING", node="b", attempt=3)
    after = script.say(one, "FINALIZED", node="b", cause="NODE_LOST", attempt=3, ran_for_s=100.0)
    assert after.state == "QUEUED", "its one retry was left"
    script.place(one, ("b", "b-0"))
    after = script.say(one, "FINALIZED", node="b", cause="NODE_LOST", attempt=4, ran_for_s=100.0)
    assert after.state == "FAILED"


def test_a_good_run_forgives_bad_attempts() -> None:
    one = session(spec={"retry_count": 9})
    script = Script(node("a"), one)
    for attempt, ran in enumerate([0.0, 0.0, 500.0, 0.0, 0.0], start=1):
        script.place(one, ("a", "a-0"))
        after = script.say(one, "FINALIZED", cause="NODE_LOST", attempt=attempt, ran_for_s=ran)
        assert after.state == "QUEUED"
    script.place(one, ("a", "a-0"))
    after = script.say(one, "FINALIZED", cause="NODE_LOST", attempt=6)
    assert after.state == "HELD"


def register(
    script: Script, one: Session, as_node: Node, *has: Report, last_word_at: float | None = None
) -> None:
    proof = silence.Proof(
        cause=Cause.NODE_LOST,
        message="test",
        now=script.now,
        last_word_at=script.now if last_word_at is None else last_word_at,
    )
    script.decide(
        lambda d: silence.settle(
            d, one.id, as_node.name, reports=has, proof=proof, unheard=script.unheard
        )
    )
    script.decide(lambda d: silence.put_node(d, as_node))


def test_silence_keeps_devices_until_there_is_proof() -> None:
    script, one = placed()
    script.say(one, "RUNNING")
    script.unheard = frozenset({"a"})
    script.decide(lambda d: silence.contact_changed(d, one.id, script.unheard, script.now))
    assert (script.session(one).state, script.held("a")) == ("UNKNOWN", 1000)
    script.unheard = frozenset()
    register(script, one, node("a"), report(one, "RUNNING"))
    assert (script.session(one).state, script.held("a")) == ("RUNNING", 1000)


def test_a_new_boot_without_the_replica_is_proof() -> None:
    script, one = placed()
    script.say(one, "RUNNING")
    fresh = node("a", boot_id="boot2")
    register(script, one, fresh)
    ended = script.session(one)
    assert (ended.state, ended.end.cause, script.held("a")) == ("FAILED", Cause.NODE_LOST, 0)
    assert script.state.nodes["a"].value.boot_id == "boot2"


def test_an_order_of_which_the_node_never_spoke_stands() -> None:
    script, one = placed()
    register(script, one, node("a"))
    assert (script.session(one).state, script.held("a")) == ("PREPARING", 1000)


def test_what_an_ended_replica_left_is_lost_with_it() -> None:
    script, one = placed()
    script.say(one, "EXITED", cause="COMPLETED")
    assert script.session(one).state == "FINALIZING"
    register(script, one, node("a"))
    assert script.session(one).state == "SUCCEEDED"


def test_draining_survives_a_registration() -> None:
    script = Script(node("a", draining=True))
    script.decide(lambda d: silence.put_node(d, node("a")))
    assert script.state.nodes["a"].value.drain == Drain(asked_by="root")


def test_a_placement_that_does_not_fit_is_dropped() -> None:
    first, second, large = session(), session(), session(replicas=2)
    script = Script(node("a"), node("b", 1), first, second, large)
    assert script.place(first, ("a", "a-0"))
    assert not script.place(second, ("a", "a-0"))
    assert not script.place(large, ("a", "a-1"), ("b", "b-7"))
    assert not script.place(large, ("a", "a-1"))
    assert (script.held("a"), script.held("b")) == (1000, 0)
    assert not script.place(first, ("a", "a-1")), "it is placed already"


def test_no_replica_of_a_gang_gets_a_device_that_is_gone() -> None:
    large = session(replicas=2)
    script = Script(node("a"), large)
    assert not script.place(large, ("a", "a-7"), ("a", "a-1"))
    assert script.place(large, ("a", "a-0"), ("a", "a-1"))


@pytest.mark.parametrize("lacks", [{"cpu": 150}, {"memory": 1_500}, {"draining": True}])
def test_a_placement_takes_no_more_than_the_node_has(lacks: dict[str, int]) -> None:
    first, second = session(), session()
    script = Script(node("a"), first, second)
    assert script.place(first, ("a", "a-0"))
    script.decide(lambda draft: draft.put_node(node("a", **lacks)))
    assert not script.place(second, ("a", "a-1"))
    assert script.held("a") == 1000


def test_who_was_told_to_stop_is_not_repeated_when_its_node_is_lost() -> None:
    script, one = placed(spec={"retry_count": 3})
    script.say(one, "RUNNING")
    wish = Stop(grace_s=1.0, asked_by="kim")
    script.decide(lambda draft: draft.put_session(stopped_by(script.session(one), wish, 5.0)))
    lost = script.say(one, "FINALIZED", cause="NODE_LOST", ran_for_s=90.0)
    assert (lost.state, len(lost.attempts)) == ("FAILED", 1)


def test_the_first_word_on_an_end_stands() -> None:
    script, one = placed()
    script.say(one, "EXITED", cause="PROGRAM_FAILED", exit_code=3)
    ended = script.say(one, "FINALIZED", cause="COMPLETED")
    assert (ended.state, ended.end.exit_code) == ("FAILED", 3)
    assert ended.replicas[0].exit.cause is Cause.PROGRAM_FAILED


def test_a_gang_began_when_the_first_of_its_programs_did() -> None:
    script, one = gang()
    script.say(one, "FINALIZED", cause="PROGRAM_FAILED", started_at=90.0)
    ended = script.say(one, "FINALIZED", 1, node="b", cause="GANG_MEMBER_FAILED")
    assert ended.started_at == 90.0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["RUNNING", "PAUSED", "EXITED", "FINALIZED"]),
        st.integers(0, 1),
        st.sampled_from(["COMPLETED", "PROGRAM_FAILED", "NODE_LOST", "DATA_FAILED"]),
    ),
    max_size=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS, st.integers(0, 2))
def test_whatever_is_said_devices_are_held_exactly_while_placed(steps, retries: int) -> None:
    one = session(replicas=2, spec={"retry_count": retries})
    script = Script(node("a"), node("b"), one)
    phases: dict[tuple[int, int], ReplicaPhase] = {}
    for phase, rank, cause in steps:
        now = script.session(one)
        if now.state == "QUEUED":
            script.place(one, ("a", "a-0"), ("b", "b-0"))
        attempt = script.session(one).attempt
        told = cause if phase in ("EXITED", "FINALIZED") else ""
        after = script.say(
            one, phase, rank, node="ab"[rank], cause=told, attempt=attempt, ran_for_s=90.0
        )
        assert (script.held("a") + script.held("b")) == (2000 if after.state.holds_devices else 0)
        assert after.attempt == len(after.attempts) + after.state.holds_devices
        for replica in after.replicas:
            key = (after.attempt, replica.rank)
            assert phases.get(key) != ReplicaPhase.FINALIZED or replica.phase == phases[key]
            phases[key] = replica.phase
        if now.state.is_ended:
            assert after == now


def test_the_image_of_a_replica_stays_known() -> None:
    one = session()
    script = Script(node("a"), one)
    script.place(one, ("a", "a-0"))
    assert (
        script.say(one, "RUNNING", image="python@sha256:1").replicas[0].image == "python@sha256:1"
    )
    ended = script.say(one, "FINALIZED", cause="COMPLETED")
    assert decode_session(encode_session(ended)).replicas[0].image == "python@sha256:1"
