"""Answers of watched boards: a change is made once for all who go from one answer to the next, and let go with it."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from controlplane.boards.board_responses import Answer, ShownEntries, encoded_board, fitting
from controlplane.domain.boards import ranking
from controlplane.wire.chunking import PART_BYTES
from nsml.spec.board_changes import (
    MOST_TREND,
    EncodedEntries,
    EncodedEntry,
    Ranks,
    apply_change,
)
from nsml.v1 import boards_pb2 as pb

BOARD = pb.Board(owner="kim", name="digits")


def answer(*numbers: int, gpu_seconds: float = 0.0, memo: str = "") -> Answer:
    entries = [
        EncodedEntry(
            pb.BoardEntry(session_id=f"session {number}" * 9, memo=memo).SerializeToString(),
            Ranks(rank),
            gpu_seconds=gpu_seconds,
        )
        for rank, number in enumerate(numbers, 1)
    ]
    return Answer(encoded_board(BOARD), ShownEntries(fitting(entries)), made_at=0.0)


def whole(one: Answer) -> pb.WatchBoardResponse:
    return pb.WatchBoardResponse.FromString(one.encoded)


def test_a_change_is_made_once_and_gives_the_answer() -> None:
    before, after = answer(1, 2, 3), answer(4, 1, 2, 3)
    change = after.after(before)
    assert after.after(before) is change
    assert len(change) < len(after.encoded) / 2
    received = pb.WatchBoardResponse.FromString(change)
    assert received.board == BOARD
    assert apply_change(whole(before).entries, received) == whole(after).entries
    assert after.read().entries[0].rank == 1


def test_what_shares_nothing_is_sent_whole() -> None:
    before, after = answer(1, 2), answer(4, 5)
    assert after.after(before) == after.encoded


def test_an_answer_that_nobody_has_any_more_is_let_go() -> None:
    before, after = answer(1, 2, 3), answer(4, 1, 2, 3)
    after.after(before)
    gone = weakref.ref(before)
    del before
    gc.collect()
    assert gone() is None
    assert not after._changes


def test_gpu_seconds_of_live_sessions_are_no_difference() -> None:
    assert answer(1, 2).is_same(answer(1, 2, gpu_seconds=3.0))
    assert not answer(1, 2).is_same(answer(2, 1))
    assert not answer(1, 2).is_same(answer(1, 2, memo="x"))


def test_an_answer_is_at_most_one_message() -> None:
    memo = "x" * (PART_BYTES // 10)
    found = answer(*range(20), memo=memo)
    assert len(found.encoded) < PART_BYTES + 1_000
    assert len(found.read().entries) == 9


def test_both_ends_hold_trends_to_the_same_length() -> None:
    assert ranking.MOST_TREND == MOST_TREND


def entry(number: int, version: int, rank: int, *, is_own: bool = False) -> EncodedEntry:
    name = f"session {number} " * 9
    body = pb.BoardEntry(session_id=name, memo=f"version {version}", is_own=is_own)
    return EncodedEntry(body.SerializeToString(), Ranks(rank), trend=(0.5,) * (rank % 3))


NUMBERED = st.lists(st.integers(0, 7), unique=True, max_size=8)
VERSIONS = st.lists(st.integers(0, 1), min_size=8, max_size=8)
OWN = st.sets(st.integers(0, 7), max_size=4)


@given(NUMBERED, NUMBERED, VERSIONS, VERSIONS, st.lists(st.tuples(OWN, OWN), max_size=4))
def test_what_viewers_see_in_their_own_way_follows_from_the_change_for_all(
    before: list[int],
    after: list[int],
    versions: list[int],
    later: list[int],
    viewers: list[tuple[set[int], set[int]]],
) -> None:
    """Lists of numbered entries, each in a version, and which of them each viewer sees as own ones, before and after."""
    old = EncodedEntries(entry(one, versions[one], rank) for rank, one in enumerate(before, 1))
    new = EncodedEntries(entry(one, later[one], rank) for rank, one in enumerate(after, 1))
    for was, now in viewers:
        first = ShownEntries(
            old,
            {
                at: entry(one, versions[one], at + 1, is_own=True)
                for at, one in enumerate(before)
                if one in was
            },
        )
        last = ShownEntries(
            new,
            {
                at: entry(one, later[one], at + 1, is_own=True)
                for at, one in enumerate(after)
                if one in now
            },
        )
        expected = [one.encoded for one in last.entries]
        assert last.is_same(first) == (expected == [one.encoded for one in first.entries])
        change = last.change_from(first)
        if change is None:
            continue
        given = pb.WatchBoardResponse.FromString(b"".join(one.encoded for one in first.entries))
        entries = apply_change(given.entries, pb.WatchBoardResponse.FromString(change))
        assert entries == pb.WatchBoardResponse.FromString(b"".join(expected)).entries


def test_another_own_entry_is_a_difference() -> None:
    shared = EncodedEntries(entry(number, 0, number) for number in range(1, 9))
    before = ShownEntries(shared, {3: entry(4, 0, 4, is_own=True)})
    after = ShownEntries(shared, {4: entry(5, 0, 5, is_own=True)})
    assert not after.is_same(before)
    assert after.is_same(ShownEntries(shared, {4: entry(5, 0, 5, is_own=True)}))
    change = after.change_from(before)
    assert change is not None
    received = pb.WatchBoardResponse.FromString(change)
    assert [one.is_own for one in received.entries] == [False, True]


def test_a_viewer_is_sent_own_entries_alone_that_are_new() -> None:
    old = EncodedEntries(entry(number, 0, number) for number in range(1, 9))
    new = EncodedEntries(entry(number, 0, number + 1) for number in range(9))
    before = ShownEntries(old, {3: entry(4, 0, 4, is_own=True)})
    after = ShownEntries(new, {0: entry(0, 0, 1, is_own=True), 4: entry(4, 0, 5, is_own=True)})
    change = after.change_from(before)
    assert change is not None
    received = pb.WatchBoardResponse.FromString(change)
    assert [(one.session_id[:9], one.is_own) for one in received.entries] == [("session 0", True)]
