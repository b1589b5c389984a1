"""Answers of watched boards: a change is made once for all who go from one answer to the next, and let go with it."""

from __future__ import annotations

import gc
import weakref

from controlplane.boards.board_responses import Answer
from controlplane.domain.boards import ranking
from controlplane.wire.chunking import PART_BYTES
from nsml.spec.board_changes import MOST_TREND, EncodedEntry, Ranks, apply_change
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
    return Answer(BOARD, entries, made_at=0.0)


def whole(one: Answer) -> pb.WatchBoardResponse:
    return pb.WatchBoardResponse.FromString(one.encoded)


def test_a_change_is_made_once_and_gives_the_answer() -> None:
    before, after = answer(1, 2, 3), answer(4, 1, 2, 3)
    change = after.after(before)
    assert after.after(before) is change
    assert len(change) < len(after.encoded) / 2
    received = pb.WatchBoardResponse.FromString(change)
    assert received.board == BOARD
    assert apply_change(whole(before), received) == whole(after)
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
