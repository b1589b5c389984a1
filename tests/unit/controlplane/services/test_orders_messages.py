"""What agents are told to run: the same as if it were made anew each time, and not made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.values import (
    AllocatedReplica,
    Cause,
    DatasetVersion,
    DeviceShare,
    Session,
    Stop,
)
from controlplane.nodes import convert_agents as convert
from controlplane.nodes.convert_agents import OrdersMessages
from controlplane.secrets.user_secrets import OpenedSecret
from controlplane.state.agent_connections import Ability
from controlplane.state.desired_replicas import Assignment, Orders
from nsml.v1 import sessions_pb2
from tests.unit.controlplane.builders import session

NOW = 1_000.5
TERM = 3


def assignment(one: Session, hosts: tuple[str, ...] = ("a",)) -> Assignment:
    share = DeviceShare(uuid=f"gpu-{one.id}", thousandths=1000)
    held = AllocatedReplica(
        session_id=one.id, attempt=max(one.attempt, 1), rank=0, devices=(share,), placed_at=1.0
    )
    return Assignment(held=held, session=one, hosts=hosts)


def orders(*assignments: Assignment, revision: int = 1) -> Orders:
    return Orders(node="a", revision=revision, assignments=assignments)


def key(one: Assignment) -> tuple[str, int, int]:
    return (one.held.session_id, one.held.attempt, one.held.rank)


STEPS = ["stop", "attempt", "hosts", "leave", "come", "memo", "nothing"]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7), st.booleans()), max_size=12))
def test_they_are_what_would_be_made_anew(history: list[tuple[str, int, bool]]) -> None:
    stream = OrdersMessages(frozenset(Ability))
    runs = [assignment(session()) for _ in range(3)]
    for step, number, has_secret in history:
        if runs:
            place = number % len(runs)
            one = runs[place]
            stop = Stop(grace_s=float(number), cause=Cause.PREEMPTED)
            runs[place] = {
                "stop": replace(one, session=replace(one.session, stop=stop)),
                "attempt": assignment(replace(one.session, attempt=one.session.attempt + 1)),
                "hosts": replace(one, hosts=(f"host-{number}",)),
                "memo": replace(one, session=replace(one.session, memo=f"m{number}")),
            }.get(step, one)
            if step == "leave":
                del runs[place]
        if step == "come":
            runs.append(assignment(session()))
        told = orders(*runs, revision=number)
        value = OpenedSecret(variable="KEY", value=f"v{number}")
        secrets = {key(one): (value,) for one in runs[:1] if has_secret}
        assert list(stream.of(told, TERM, secrets, now=NOW)) == list(
            OrdersMessages(frozenset(Ability)).of(told, TERM, secrets, now=NOW)
        )


def test_what_is_as_it_was_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    original = convert.spec_message
    monkeypatch.setattr(convert, "spec_message", lambda *of: made.append(of) or original(*of))
    stream, first, second = (
        OrdersMessages(frozenset(Ability)),
        assignment(session()),
        assignment(session()),
    )
    list(stream.of(orders(first), TERM, {}, now=NOW))
    list(stream.of(orders(first, second), TERM, {}, now=NOW))
    assert [of[0] for of in made] == [first.session.spec, second.session.spec]


def test_no_secret_is_kept() -> None:
    stream, one = OrdersMessages(frozenset(Ability)), assignment(session())
    secrets = {key(one): (OpenedSecret(variable="KEY", value="hidden"),)}
    (told,) = stream.of(orders(one), TERM, secrets, now=NOW)
    assert told.orders.assignments[0].secrets[0].value == "hidden"
    (told,) = stream.of(orders(one), TERM, {}, now=NOW)
    assert not told.orders.assignments[0].secrets


def test_an_agent_that_would_mount_a_dataset_elsewhere_is_told_not_to_start() -> None:
    made = session()
    old = DatasetVersion(owner="kim", name="mnist", version=1, digest="1" * 64, folder="old")
    one = assignment(replace(made, spec=replace(made.spec, datasets=(old,))))
    for abilities in (frozenset(Ability), frozenset(Ability) - {Ability.DATASET_FOLDERS}):
        (told,) = OrdersMessages(abilities).of(orders(one), TERM, {}, now=NOW)
        [ordered] = told.orders.assignments
        assert ordered.spec.datasets[0].folder == "old"
        is_refused = ordered.stop.cause == sessions_pb2.CAUSE_NODE_REFUSED
        assert is_refused == (Ability.DATASET_FOLDERS not in abilities)
