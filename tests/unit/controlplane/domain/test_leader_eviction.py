"""Who is deposed: the dead, once, and not too soon after another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.leader_eviction import NOT_TWICE_WITHIN_S, REFUSALS, Judge


def a_judge(*met: str) -> Judge:
    return Judge(met=set(met))


def test_who_was_met_and_refuses_twice_is_dead() -> None:
    judge = a_judge("a")
    assert judge.may_depose("a", REFUSALS, 100.0)
    assert not judge.may_depose("a", REFUSALS - 1, 100.0)


def test_who_was_never_met_may_be_somewhere_else() -> None:
    # Its address may be that of our own loopback.
    assert not a_judge("a").may_depose("b", REFUSALS, 100.0)


def test_who_was_deposed_and_leads_again_was_alive() -> None:
    judge = a_judge("a")
    judge.accused.add("a")
    assert not judge.may_depose("a", REFUSALS, 1e9)
    judge.met.add("a, started again")
    assert judge.may_depose("a, started again", REFUSALS, 1e9)


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 4)), max_size=20),
    st.floats(0, 40),
)
def test_never_twice_within_five_seconds_whoever_it_was(
    seen: list[tuple[float, int]], asked: float
) -> None:
    judge = a_judge("a")
    newest, since = 0, float("-inf")
    for at, revision in sorted(seen):
        judge.learn(revision, at)
        if revision != newest:
            newest, since = revision, at
    assert judge.may_depose("a", REFUSALS, asked) == (asked - since >= NOT_TWICE_WITHIN_S)
