"""Which checkpoints go, whatever a session saved."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.checkpoints.retention import (
    LOADING_S,
    Candidate,
    candidates,
    protected,
    removable,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.program_changes import ChangeKind, ProgramChange
from controlplane.domain.values import Resume, Session, SessionSpec
from controlplane.history.sql.checkpoint_marks import Marks
from controlplane.history.values import Checkpoint, CheckpointState, CheckpointUse
from nsml.spec.checkpoint_retention import Best, CheckpointRetention, retention_of

METRICS = ("val/acc", "loss")
VALUES = st.integers(-3, 3).map(float)
RULES = st.builds(
    CheckpointRetention,
    st.integers(1, 4),
    st.lists(
        st.builds(Best, st.integers(1, 4), st.sampled_from(METRICS), st.booleans()),
        max_size=2,
        unique_by=lambda rule: rule.metric,
    ).map(tuple),
)


@st.composite
def saved(draw: st.DrawFn) -> list[Candidate]:
    """Checkpoints of a gang, in any order, with equal times and values among them."""
    names = draw(st.lists(st.integers(0, 40), max_size=12, unique=True))
    return [
        Candidate(
            str(name),
            draw(st.integers(0, 1)),
            (draw(st.integers(1, 2)), float(draw(st.integers(0, 5)))),
            draw(st.dictionaries(st.sampled_from(METRICS), VALUES)),
        )
        for name in names
    ]


def of(rank: int, there: list[Candidate]) -> list[Candidate]:
    return [one for one in there if one.rank == rank]


@given(RULES, saved(), st.data())
def test_what_is_asked_for_is_kept(
    rules: CheckpointRetention, there: list[Candidate], data: st.DataObject
) -> None:
    otherwise = removable(rules, there)
    needed = set(data.draw(st.lists(st.sampled_from(otherwise)))) if otherwise else set()
    gone = removable(rules, there, needed)
    assert gone == [name for name in otherwise if name not in needed]
    for rank in (0, 1):
        every = of(rank, there)
        kept = [one for one in every if one.name not in gone]
        numbers = [rules.last, *(rule.number for rule in rules.best)]
        assert len(kept) >= min(max(numbers), len(every))
        # None that goes is newer than one of the last ones.
        newest = sorted(every, key=lambda one: (one.saved, one.name))[-rules.last :]
        assert all(one in kept for one in newest)
        for rule in rules.best:
            values = [one.values[rule.metric] for one in every if rule.metric in one.values]
            best = sorted(values, reverse=rule.is_max)[: rule.number]
            left = [one.values[rule.metric] for one in kept if rule.metric in one.values]
            assert sorted(left, reverse=rule.is_max)[: rule.number] == best


@given(RULES, saved())
def test_once_it_is_done_there_is_nothing_to_do(
    rules: CheckpointRetention, there: list[Candidate]
) -> None:
    gone = removable(rules, there)
    assert len(set(gone)) == len(gone)
    left = [one for one in there if one.name not in gone]
    assert removable(rules, left) == []
    assert removable(rules, there[::-1]) == gone


@given(RULES, saved())
def test_no_more_is_kept_than_was_asked_for(
    rules: CheckpointRetention, there: list[Candidate]
) -> None:
    gone = removable(rules, there)
    for rank in (0, 1):
        every = of(rank, there)
        if all(any(rule.metric in one.values for one in every) for rule in rules.best):
            kept = [one for one in every if one.name not in gone]
            assert len(kept) <= rules.last + sum(rule.number for rule in rules.best)


def checkpoint(name: str, acc: object, **given: object) -> Checkpoint:
    made = Checkpoint(
        session_id="s1",
        name=name,
        saved_at=float(name),
        size_bytes=1,
        file_count=1,
        state=CheckpointState.DURABLE,
        digest="d",
        summary=json.dumps({"acc": acc}),
        attempt=1,
        folder=name,
    )
    return Checkpoint(**{**{field: getattr(made, field) for field in made.__slots__}, **given})


def gone(text: str, *found: Checkpoint) -> list[str]:
    rules = retention_of(text)
    assert rules is not None
    return removable(rules, candidates(rules, found))


def test_values_that_cannot_be_compared_are_never_the_best() -> None:
    odd = ["NaN", float("nan"), float("inf"), True, None, [9], {"x": 9}, "9", 10**400]
    found = [checkpoint(str(n), value) for n, value in enumerate(odd, 2)]
    every = (checkpoint("1", 0.5), *found)
    assert "1" not in gone("best:1:acc:max last:1", *every)
    assert len(gone("best:1:acc:max last:1", *every)) == len(odd) - 1


def test_of_a_metric_that_nothing_reports_all_stay() -> None:
    found = [checkpoint(str(n), n) for n in range(1, 6)]
    assert gone("best:1:val/acc:max last:1", *found) == []
    assert gone("last:2", *found) == ["1", "2", "3"]
    assert gone("best:1:acc:min last:1", *found) == ["2", "3", "4"]


def test_what_a_session_began_with_and_what_is_not_told_of_yet_stays() -> None:
    found = [
        checkpoint("1", 1, attempt=0, folder=""),
        checkpoint("2", 1, folder=""),
        checkpoint("3", 1),
        checkpoint("4", 1),
    ]
    assert gone("last:1", *found) == ["3"]


NOW = 1e6
MARKS = Marks(
    {"paper": "tagged"},
    (
        CheckpointUse("of another", "s2", 0.0),
        CheckpointUse("loading", "s1", NOW - LOADING_S / 2),
        CheckpointUse("loaded", "s1", NOW - LOADING_S * 2),
    ),
)
CHANGES = tuple(
    ProgramChange(
        number=number,
        kind=ChangeKind.LOAD,
        attempt=2,
        asked_by="kim",
        asked_at=0.0,
        checkpoint=name,
        ended_at=ended_at,
    )
    for number, (name, ended_at) in enumerate([("was to load", 1.0), ("is to load", 0.0)])
)


@pytest.mark.parametrize(
    ("state", "live"),
    [
        (SessionState.QUEUED, True),
        (SessionState.RUNNING, True),
        (SessionState.UNKNOWN, True),
        (SessionState.HELD, True),
        (SessionState.FINALIZING, False),
        (SessionState.SUCCEEDED, False),
    ],
)
def test_what_stays_whatever_the_rules_say(state: SessionState, live: bool) -> None:
    session = Session(
        id="s1",
        name="kim/None/1",
        owner="kim",
        spec=SessionSpec(),
        created_at=0.0,
        state=state,
        changes=CHANGES,
        resume=Resume(attempt=2, checkpoint="resumed from"),
    )
    needed = {"loading", "is to load", "resumed from"} if live else set()
    assert protected(session, MARKS, NOW) == {"tagged", "of another"} | needed


def test_what_is_needed_stays_beside_what_the_rules_keep() -> None:
    rules = CheckpointRetention(1)
    there = list(candidates(rules, [checkpoint(str(n), n) for n in range(1, 5)]))
    assert removable(rules, there, {"2", "9"}) == ["1", "3"]
