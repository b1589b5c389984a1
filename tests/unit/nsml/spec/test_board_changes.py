"""Changes of a board's entries: applied to the list before they give the list after, and hostile ones are refused."""

from __future__ import annotations

import math
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.spec.board_changes import (
    EncodedEntries,
    EncodedEntry,
    InvalidChange,
    apply_change,
    encoded_change,
)
from nsml.v1 import boards_pb2 as pb

BOARD = pb.Board(owner="lee", name="digits", entry_count=7)
MOST = 1_000
LARGE = 2**32 - 1


def encoded(entries: list[pb.BoardEntry]) -> EncodedEntries:
    return EncodedEntries(map(EncodedEntry.of, entries))


def change_of(
    before: list[pb.BoardEntry], after: list[pb.BoardEntry]
) -> pb.WatchBoardResponse | None:
    found = encoded_change(encoded(before), encoded(after))
    if found is None:
        return None
    answer = pb.WatchBoardResponse.FromString(found)
    answer.board.CopyFrom(BOARD)
    return answer


def entry(number: int, **values: object) -> pb.BoardEntry:
    rng = random.Random(number)
    made = pb.BoardEntry(
        owner=f"user{number % 100}",
        team=f"team{number % 20}",
        score=rng.random(),
        session=f"user{number % 100}/digits/{number}",
        session_id=f"s{number:015d}",
        checkpoint="best",
        args="--lr 0.1 --batch 32",
        submission_id=f"u{number:015d}",
        state=pb.SUBMISSION_STATE_SCORED,
        standard_error=rng.random(),
        **values,  # type: ignore[arg-type]
    )
    made.submitted_at.FromSeconds(1_700_000_000 + number)
    return made


def ranked(numbers: list[int]) -> list[pb.BoardEntry]:
    """Entries in this order, with the ranks that follow, and intervals around them."""
    return [
        entry(number, rank=rank, rank_low=max(1, rank - 20), rank_high=min(len(numbers), rank + 20))
        for rank, number in enumerate(numbers, 1)
    ]


ENTRIES = st.lists(
    st.builds(
        pb.BoardEntry,
        session_id=st.sampled_from([f"session {number}" * 9 for number in range(9)]),
        owner=st.sampled_from(["", "kim", "lee"]),
        score=st.sampled_from([None, 0.0, -1.5, 1e300]),
        rank=st.sampled_from([0, 1, 2, 3, 4, LARGE]),
        rank_before=st.integers(0, 2),
        rank_low=st.integers(0, 3),
        rank_high=st.sampled_from([0, 7, 1 << 31]),
        gpu_seconds=st.sampled_from([0.0, 0.5, math.inf, 3e9]),
        is_own=st.booleans(),
        trend=st.sampled_from([(), (0.5,), (0.5, 0.75), (1.0,) * 32]),
    ),
    max_size=12,
)


@given(ENTRIES, ENTRIES)
def test_a_change_applied_gives_the_new_list(
    before: list[pb.BoardEntry], after: list[pb.BoardEntry]
) -> None:
    check(before, after)


@given(
    ENTRIES.filter(bool),
    st.lists(
        st.tuples(
            st.sampled_from(["remove", "move", "edit", "shift", "use", "trend", "insert"]),
            st.integers(0, 20),
            st.integers(0, 20),
        ),
        max_size=4,
    ),
)
def test_edits_of_a_list(before: list[pb.BoardEntry], edits: list[tuple[str, int, int]]) -> None:
    after = [pb.BoardEntry.FromString(one.SerializeToString()) for one in before]
    for what, at, other in edits:
        if not after or what == "insert":
            after.insert(at, pb.BoardEntry(session_id=f"new {at}", rank=at))
            continue
        place = at % len(after)
        if what == "remove":
            del after[place]
        elif what == "move":
            after.insert(other, after.pop(place))
        elif what == "edit":
            after[place].memo = f"edit {other}"
        elif what == "use":
            after[place].gpu_seconds += other
        elif what == "trend":
            for one in after[place::2]:
                one.trend[:] = [0.25] * other
        else:
            for one in after[place:]:
                one.rank_before = one.rank_before + other
    check(before, after)


def check(before: list[pb.BoardEntry], after: list[pb.BoardEntry]) -> None:
    last = pb.WatchBoardResponse(board=pb.Board(name="before"), entries=before)
    kept = last.SerializeToString(deterministic=True)
    answer = change_of(before, after)
    if answer is None:
        return
    assert apply_change(last.entries, answer) == after
    assert last.SerializeToString(deterministic=True) == kept
    # Of the same objects nothing else is made: what is sent is at most what all entries are.
    assert answer.ByteSize() <= pb.WatchBoardResponse(board=BOARD, entries=after).ByteSize() + 60


@pytest.mark.parametrize("place", [0, 1, 500, 998, 999])
def test_a_new_score_among_a_thousand_costs_little(place: int) -> None:
    before = ranked(list(range(MOST)))
    numbers = list(range(MOST))
    numbers.insert(place, MOST)
    after = ranked(numbers[:MOST])
    for one in before + after:
        one.trend[:] = [0.5] * 20
    owner = after[place].owner
    for one in after:
        if one.owner == owner:
            one.trend.append(0.75)
    answer = change_of(before, after)
    assert answer is not None
    assert answer.ByteSize() < 1_000
    assert [one.submission_id for one in answer.entries] == [after[place].submission_id]
    found = apply_change(before, answer)
    assert found == after
    assert all(one is other for one, other in zip(found, before, strict=True) if one == other), (
        "entries without a change are not copied"
    )
    assert pb.WatchBoardResponse(entries=after).ByteSize() > 250_000


def test_a_participant_that_moves_up_is_moved() -> None:
    numbers = list(range(MOST))
    before = ranked(numbers)
    numbers.insert(10, numbers.pop(700))
    after = ranked(numbers)
    answer = change_of(before, after)
    assert answer is not None
    assert not answer.entries
    assert answer.ByteSize() < 200
    assert apply_change(before, answer) == after


def test_a_trend_of_many_entries_is_sent_once() -> None:
    before, after = ranked(list(range(MOST))), ranked(list(range(MOST)))
    for place in range(MOST):
        before[place].trend[:] = [0.125 * (place % 10)] * 31
        after[place].trend[:] = before[place].trend
    for one in after[7::10]:
        one.trend.append(0.99)
    answer = change_of(before, after)
    assert answer is not None
    assert not answer.entries
    assert answer.ByteSize() < 600
    assert apply_change(before, answer) == after


def test_gpu_seconds_of_live_sessions_cost_no_entries() -> None:
    before, after = ranked(list(range(MOST))), ranked(list(range(MOST)))
    for one in after[100:200]:
        one.gpu_seconds = 2.5
    assert encoded(before).is_same(encoded(after))
    answer = change_of(before, after)
    assert answer is not None
    assert not answer.entries
    assert answer.ByteSize() < 900
    assert apply_change(before, answer) == after


def test_another_list_is_sent_whole() -> None:
    assert change_of(ranked([1, 2, 3]), ranked([4, 5, 6])) is None
    assert change_of([], ranked([4])) is None
    assert change_of([], []) is None
    assert change_of(ranked([4]), []) is None


HOSTILE = {
    "no whole runs": pb.BoardChange(runs=[0, 0]),
    "a start behind the end": pb.BoardChange(runs=[0, 3, 1]),
    "more than there is": pb.BoardChange(runs=[0, 0, 4]),
    "a huge count": pb.BoardChange(runs=[0, 0, LARGE]),
    "a huge start": pb.BoardChange(runs=[0, LARGE, LARGE]),
    "many huge counts": pb.BoardChange(runs=[0, 0, LARGE] * 10_000),
    "the same again and again": pb.BoardChange(runs=[0, 0, 3] * 10_000),
    "an entry twice": pb.BoardChange(runs=[0, 0, 2, 0, 1, 1]),
    "added entries that are missing": pb.BoardChange(runs=[1, 0, 3]),
    "a huge number of added entries": pb.BoardChange(runs=[LARGE, 0, 3]),
    "shifts without runs": pb.BoardChange(ranks=[1, 1]),
    "half a shift": pb.BoardChange(runs=[0, 0, 3], ranks=[3]),
    "shifts of too many": pb.BoardChange(runs=[0, 0, 2], ranks=[3, 1]),
    "shifts of huge counts": pb.BoardChange(runs=[0, 0, 3], rank_lows=[2**31 - 1, 1] * 1_000),
    "a shift of another size": pb.BoardChange(runs=[0, 0, 3], ranks=[3, 2**63 - 1]),
    "a negative count": pb.BoardChange(runs=[0, 0, 3], rank_highs=[-1, 1, 3, 1]),
    "a rank below 0": pb.BoardChange(runs=[0, 0, 3], ranks=[1, -2]),
    "a rank above the greatest": pb.BoardChange(runs=[0, 0, 3], ranks_before=[3, LARGE]),
    "a trend of an entry that is not there": pb.BoardChange(
        runs=[0, 0, 3], trends=[pb.BoardTrend(values=[1.0], entries=[3])]
    ),
    "a long trend of many": pb.BoardChange(
        runs=[0, 0, 3], trends=[pb.BoardTrend(values=[1.0] * 100_000, entries=[0, 1, 2])]
    ),
    "GPU seconds without runs": pb.BoardChange(runs=[0, 0, 3], gpu_seconds=[1.0]),
    "runs without GPU seconds": pb.BoardChange(
        runs=[0, 0, 3], gpu_seconds_runs=[0, 2], gpu_seconds=[1.0]
    ),
    "GPU seconds of too many": pb.BoardChange(
        runs=[0, 0, 3], gpu_seconds_runs=[LARGE, 1], gpu_seconds=[1.0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_change_that_does_not_fit_is_refused(change: pb.BoardChange) -> None:
    entries = ranked([1, 2, 3])
    for one in entries:
        one.rank_before = LARGE - 5
    before = pb.WatchBoardResponse(entries=entries)
    kept = before.SerializeToString(deterministic=True)
    with pytest.raises(InvalidChange):
        apply_change(before.entries, pb.WatchBoardResponse(change=change))
    assert before.SerializeToString(deterministic=True) == kept


def test_a_change_that_repeats_a_list_takes_no_memory() -> None:
    before = pb.WatchBoardResponse(entries=[pb.BoardEntry()] * MOST)
    answer = pb.WatchBoardResponse(change=pb.BoardChange(runs=[0, 0, MOST] * 20_000))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidChange):
            apply_change(before.entries, answer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20


def test_entries_that_the_change_does_not_place_are_refused() -> None:
    before = ranked([1, 2, 3])
    answer = pb.WatchBoardResponse(entries=ranked([4]), change=pb.BoardChange(runs=[0, 0, 3]))
    with pytest.raises(InvalidChange):
        apply_change(before, answer)


def flat(pairs: list[tuple[int, ...]]) -> list[int]:
    return [number for pair in pairs for number in pair]


SMALL, HUGE = st.integers(0, 3), st.sampled_from([2**31 - 1, LARGE])
RUNS = st.lists(st.tuples(st.integers(0, 1), SMALL, st.integers(0, 2) | HUGE), max_size=3).map(flat)
SHIFTS = st.lists(st.tuples(st.integers(1, 3), st.integers(-2, 9) | HUGE), max_size=2).map(flat)


@given(RUNS, SHIFTS, SHIFTS, st.integers(0, 2))
def test_any_change_is_refused_or_gives_no_more_than_was_there_and_came(
    runs: list[int], ranks: list[int], rank_lows: list[int], added: int
) -> None:
    before = ranked([1, 2, 3, 4])
    answer = pb.WatchBoardResponse(
        entries=ranked([5, 6])[:added],
        change=pb.BoardChange(runs=runs, ranks=ranks, rank_lows=rank_lows),
    )
    try:
        entries = apply_change(before, answer)
    except InvalidChange:
        return
    assert added <= len(entries) <= len(before) + added
    ids = [one.submission_id for one in entries]
    assert len(set(ids)) == len(ids)
