"""However an attempt ends, its charge says by what it can be priced later."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.domain.values import Cause, Priority, Session, Stop
from controlplane.nodes import lost_nodes
from controlplane.sessions.charges import charges_of
from controlplane.sessions.preempt import leaving
from controlplane.sessions.stop import stopped_by
from controlplane.state.progress import DURABLE_EVERY_S, checkpoint_is_durable
from controlplane.stored.etcd_codec import decode_session, encode_session
from tests.support.examples import examples
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.workbench import Script


def change(script: Script, one: Session, made: Callable[[Session], Session]) -> None:
    script.decide(lambda draft: draft.put_session(made(script.session(one))))


def commit(script: Script, one: Session, attempt: int, saved_at: float) -> None:
    change(script, one, lambda now: checkpoint_is_durable(now, attempt, saved_at))


def places(attempt: int) -> list[str]:
    """The nodes of an attempt of a gang, of which the next one uses none: it may avoid them."""
    return [f"a{attempt}", f"b{attempt}"]


def finish(script: Script, one: Session, cause: str) -> None:
    attempt = script.session(one).attempt
    for rank, name in enumerate(places(attempt)):
        script.say(one, "EXITED", rank, node=name, cause=cause, attempt=attempt, ran_for_s=90.0)


def preempt(script: Script, one: Session) -> None:
    change(script, one, lambda now: leaving(now, "gives way", script.now, notice_s=60.0))
    finish(script, one, "PREEMPTED")


def stop(script: Script, one: Session) -> None:
    wish = Stop(grace_s=1.0, asked_by="kim", came_first=True)
    change(script, one, lambda now: stopped_by(now, wish, script.now))
    finish(script, one, "STOP_REQUESTED")


def lose(script: Script, one: Session) -> None:
    proof = lost_nodes.Proof(
        cause=Cause.NODE_LOST, message="gone", now=script.now, last_word_at=script.now - 1
    )
    for name in places(script.session(one).attempt):
        script.decide(
            lambda draft, name=name: lost_nodes.lose(draft, one.id, name, proof, frozenset())
        )


def ends(cause: Cause) -> Callable[[Script, Session], None]:
    return lambda script, one: finish(script, one, cause.value)


WAYS: dict[Cause, Callable[[Script, Session], None]] = {
    **{cause: ends(cause) for cause in Cause},
    Cause.PREEMPTED: preempt,
    Cause.STOP_REQUESTED: stop,
    Cause.NODE_LOST: lose,
}


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.sampled_from(sorted(WAYS)), min_size=1, max_size=4),
    st.sampled_from(list(Priority)),
    st.integers(0, 3),
    st.data(),
)
def test_a_row_has_models_class_cause_and_what_was_durable(causes, priority, retries, data) -> None:
    one = session(gpu=500, replicas=2, spec={"retry_count": retries, "priority": priority})
    nodes = [node(f"{kind}{n}", model=kind) for n in range(1, 5) for kind in "ab"]
    script = Script(*nodes, one)
    ended: list[Cause] = []
    moments = st.lists(st.floats(-200, 200), max_size=3)
    for cause in causes:
        now = script.session(one)
        if now.state != "QUEUED":
            break
        attempt = now.attempt + 1
        assert script.place(one, *((name, f"{name}-0") for name in places(attempt)))
        placed_at = script.now
        for rank, name in enumerate(places(attempt)):
            script.say(one, "RUNNING", rank, node=name, attempt=attempt)
        script.now += 100.0
        during = data.draw(moments)
        for moment in during:
            commit(script, one, attempt, script.now + moment)
        WAYS[cause](script, one)
        ended.append(cause)
        script.now += 10.0
        # the row of a session that has ended stands
        after = [] if script.session(one).state.is_ended else data.draw(moments)
        for moment in after:
            commit(script, one, attempt, script.now + moment)
        row = charges_of(script.session(one))[-1]
        assert (row.durable_until > 0) == bool(during or after)
        assert not row.durable_until or placed_at <= row.durable_until <= row.ended_at
        for rank, name in enumerate(places(attempt)):
            script.say(one, "FINALIZED", rank, node=name, attempt=attempt)
        script.now += 1000.0
    last = script.session(one)
    assert decode_session(encode_session(last)) == last
    rows = charges_of(last)
    assert [row.cause for row in rows] == ended
    for row in rows:
        assert json.loads(row.gpu_models) == {"a": 500, "b": 500}
        assert row.gpu_thousandths == 1000
        assert row.priority == priority
        assert row.durable_until <= row.ended_at


def placed() -> tuple[Script, Session]:
    one = session(spec={"retry_count": 1})
    script = Script(node("a", model="A100"), one)
    assert script.place(one, ("a", "a-0"))
    script.say(one, "RUNNING")
    return script, one


def row(script: Script, one: Session, number: int = 1) -> float:
    return charges_of(script.session(one))[number - 1].durable_until


def test_what_arrives_after_an_attempt_counts_for_it_and_not_for_the_next() -> None:
    script, one = placed()
    script.now += 100
    change(script, one, lambda now: leaving(now, "gives way", script.now, notice_s=60.0))
    script.say(one, "EXITED", cause="PREEMPTED")
    assert row(script, one) == 0
    ended_at = script.now
    commit(script, one, 1, ended_at - 5)
    assert row(script, one) == ended_at - 5
    script.say(one, "FINALIZED")
    assert script.place(one, ("a", "a-0"))
    script.now += 1000
    commit(script, one, 1, ended_at - 2)
    script.say(one, "FINALIZED", cause="PROGRAM_FAILED", attempt=2)
    assert [row(script, one, number) for number in (1, 2)] == [ended_at - 2, 0]
    charged = charges_of(script.session(one))
    commit(script, one, 2, script.now - 1)
    assert charges_of(script.session(one)) == charged, "it is charged already"


def test_few_durable_checkpoints_of_what_runs_are_written() -> None:
    script, one = placed()
    begin, written = script.now, set()
    for second in range(0, 301, 5):
        commit(script, one, 1, begin + second)
        known = script.session(one).durable
        assert known is not None
        written.add(known.until)
        assert begin + second - known.until < DURABLE_EVERY_S
    assert len(written) == 11
    script.now += 400
    script.say(one, "EXITED", cause="PROGRAM_FAILED")
    assert row(script, one) == begin + 300


@pytest.mark.parametrize("thousandths", [0, 1000])
def test_a_record_of_the_version_before_says_no_models(thousandths: int) -> None:
    script, one = placed()
    script.say(one, "FINALIZED", cause="COMPLETED")
    ended = script.session(one)
    [attempt] = ended.attempts
    assert ended.replicas[0].phase is ReplicaPhase.FINALIZED
    before = replace(attempt, gpu_models={}, gpu_thousandths=thousandths)
    [charge] = charges_of(replace(ended, attempts=(before,)))
    assert charge.gpu_models == ("" if thousandths else "{}")
