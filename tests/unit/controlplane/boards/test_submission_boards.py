"""Entries of boards of datasets are encoded once, and taken over by later rankings while they stay as they are."""

from __future__ import annotations

from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.boards.board_responses import ShownEntries
from controlplane.boards.submission_boards import SubmissionRanking
from controlplane.domain.boards.values import BestPer, BoardSettings, SubmissionState
from controlplane.domain.identity import User
from controlplane.history.board_values import EvaluationState, SubmissionEntry
from controlplane.history.sql.submissions import BoardMark, BoardReading
from controlplane.submissions.scoreboards import Scoreboard
from nsml.spec.board_changes import apply_change
from nsml.v1 import boards_pb2 as pb
from tests.unit.controlplane.submissions.test_scoreboards import (
    ENTRIES,
    HOUR,
    OWNERS,
    SETTINGS,
    submitted,
    whole,
)

USERS = [*(User(name=name, id=name, team="vision") for name in OWNERS), User(name="other", id="o")]


QUEUED = [submitted((number, "kim", "", SubmissionState.QUEUED, 0.0, None)) for number in range(3)]


def shown(
    ranking: SubmissionRanking, user: User, best_per: BestPer, *, is_manager: bool, own_only: bool
) -> tuple[int, list[pb.BoardEntry]]:
    """How many entries a user sees, and the first six of these."""
    seen = ranking.seen_by(
        user,
        best_per=best_per,
        by_private=False,
        is_manager=is_manager,
        own_only=own_only,
        most=6,
    )
    return ranking.count(user, is_manager=is_manager), decoded(seen)


def decoded(seen: ShownEntries) -> list[pb.BoardEntry]:
    encoded = b"".join(one.encoded for one in seen.entries)
    return list(pb.WatchBoardResponse.FromString(encoded).entries)


@given(SETTINGS, st.lists(ENTRIES, min_size=1, max_size=3))
def test_entries_are_those_of_a_ranking_made_anew(
    settings: BoardSettings, changes: list[list[SubmissionEntry]]
) -> None:
    entries: dict[str, SubmissionEntry] = {}
    ranking = SubmissionRanking(whole(settings, []))
    for number, changed in enumerate(changes):
        entries |= {one.row.id: one for one in changed}
        read = BoardReading(
            EvaluationState(), BoardMark(1, "u0", number), tuple(changed), is_whole=False
        )
        board = Scoreboard(settings, read, hour=HOUR, before=ranking.board)
        ranking = ranking.after(board)
        anew = SubmissionRanking(whole(settings, list(entries.values())))
        for user, best_per, is_manager, own_only in product(
            USERS, BestPer, (False, True), (False, True)
        ):
            kind = {"is_manager": is_manager, "own_only": own_only}
            count, found = shown(ranking, user, best_per, **kind)
            assert (count, found) == shown(anew, user, best_per, **kind)
            own = {one.submission_id for one in found if one.is_own}
            assert own <= set(board.ids_of(user))
            assert len(found) <= min(count, 6)
            scored = [one.rank for one in found if one.rank]
            assert scored == sorted(scored)
            if own_only:
                assert own == {one.submission_id for one in found}
            if not is_manager:
                failed = {
                    one.submission_id for one in found if one.state == pb.SUBMISSION_STATE_FAILED
                }
                assert failed <= own


@example(BoardSettings(), QUEUED, [submitted((2, "kim", "", SubmissionState.FAILED, 0.0, None))])
@given(SETTINGS, ENTRIES, ENTRIES)
def test_what_watchers_have_after_a_change_is_what_is_seen(
    settings: BoardSettings, first: list[SubmissionEntry], changed: list[SubmissionEntry]
) -> None:
    before = SubmissionRanking(whole(settings, first))
    read = BoardReading(EvaluationState(), BoardMark(1, "u0", 1), tuple(changed), is_whole=False)
    after = before.after(Scoreboard(settings, read, hour=HOUR, before=before.board))
    for user, best_per, is_manager, own_only, most in product(
        USERS, BestPer, (False, True), (False, True), (2, 6)
    ):
        was, now = (
            one.seen_by(
                user,
                best_per=best_per,
                by_private=False,
                is_manager=is_manager,
                own_only=own_only,
                most=most,
            )
            for one in (before, after)
        )
        change = now.change_from(was)
        assert now.is_same(was) == (decoded(was) == decoded(now))
        if change is not None:
            received = pb.WatchBoardResponse.FromString(change)
            assert apply_change(decoded(was), received) == decoded(now)
