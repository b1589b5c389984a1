"""Submissions with their shown scores and ranks: read and ranked once per change, and as if from all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.public_scores import shown_scores
from controlplane.domain.boards.values import (
    UNFINISHED,
    BestPer,
    BoardSettings,
    PublicScore,
    ScoreDirection,
    SubmissionState,
)
from controlplane.domain.identity import User
from controlplane.history.board_values import (
    EvaluationState,
    ScoreRow,
    SubmissionEntry,
    SubmissionRow,
    entry_of,
)
from controlplane.history.sql.history import History
from controlplane.history.sql.submissions import BoardMark, BoardReading
from controlplane.history.sqlite import open_history
from controlplane.submissions.scoreboards import Scoreboard, Scoreboards, is_of
from nsml.common.clock import SystemClock, inline

HOUR = 24
"""A day ago is within the times of entries."""
OWNERS, TEAMS = ["kim", "lee", "park"], ["", "vision", "kim"]


def submission(number: int, **facts: Any) -> SubmissionRow:
    values: dict[str, Any] = {"owner": "kim", "submitted_at": float(number), **facts}
    return SubmissionRow(
        id=f"u{number}",
        dataset_owner="lee",
        dataset="mnist",
        dataset_version=1,
        session_id=f"s{number}",
        session=f"kim/mnist/{number}",
        checkpoint="best",
        **values,
    )


def submitted(drawn: tuple[Any, ...]) -> SubmissionEntry:
    """Build an entry of number, owner, team, state, score and standard error."""
    number, owner, team, state, score, error = drawn
    row = submission(number, owner=owner, team=team, state=state, ended_at=number * 900.0)
    scored = None
    if state is SubmissionState.SCORED:
        scored = ScoreRow(submission_id=row.id, score=score, standard_error=error, row_count=9)
    return SubmissionEntry(row, scored)


ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from(OWNERS),
        st.sampled_from(TEAMS),
        st.sampled_from(SubmissionState),
        st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        st.sampled_from([None, 0.25]),
    ).map(submitted),
    max_size=8,
    unique_by=lambda one: one.row.id,
)
SETTINGS = st.builds(
    BoardSettings,
    direction=st.sampled_from(ScoreDirection),
    best_per=st.sampled_from(BestPer),
    public_score=st.sampled_from(PublicScore),
    ladder_step=st.sampled_from([0.0, 0.1]),
)


def whole(settings: BoardSettings, entries: list[SubmissionEntry]) -> Scoreboard:
    read = BoardReading(EvaluationState(), BoardMark(1, "u0", 1), tuple(entries), is_whole=True)
    return Scoreboard(settings, read, hour=HOUR)


def seen_of(board: Scoreboard, ids: list[str]) -> object:
    """What viewers get of a scoreboard."""
    users = [User(name=name, id=name, team=team) for name, team in product(OWNERS, TEAMS)]
    return [
        [(board.score(one), board.rank(one)) for one in ids],
        [
            (
                *(public, listing.rank(at), listing.interval(public)),
                board.trend(public, best_per),
            )
            for best_per, with_failed in product(BestPer, (False, True))
            for listing in [board.listing(best_per, with_failed=with_failed)]
            for at, (_, public) in enumerate(listing.keyed)
        ],
        [board.ranks_before(best_per) for best_per in BestPer],
        [sorted(board.ids_of(user)) for user in users],
        [board.has_entries_of(("user", name)) for name in OWNERS],
        [board.has_entries_of(("team", name)) for name in TEAMS],
        (board.visible_count, board.has_private),
    ]


@given(SETTINGS, st.lists(ENTRIES, min_size=1, max_size=4))
def test_a_scoreboard_after_changes_is_that_of_all(
    settings: BoardSettings, changes: list[list[SubmissionEntry]]
) -> None:
    entries: dict[str, SubmissionEntry] = {}
    board = whole(settings, [])
    for number, changed in enumerate(changes):
        before, ids = board, sorted(entries)
        seen = seen_of(before, ids)
        entries |= {one.row.id: one for one in changed}
        mark = BoardMark(1, "u0", number)
        read = BoardReading(EvaluationState(), mark, tuple(changed), is_whole=False)
        board = Scoreboard(settings, read, hour=HOUR, before=before)
        again = whole(settings, sorted(entries.values(), key=lambda one: one.row.submitted_at))
        assert seen_of(board, sorted(entries)) == seen_of(again, sorted(entries))
        assert seen_of(before, ids) == seen, "its viewers may still read it"
    exact = list(map(entry_of, entries.values()))
    scores = shown_scores(exact, settings.public_score, settings.ladder_step, settings.direction)
    assert {one.id: board.score(one.id) for one in exact} == scores
    for user in (User(name=name, id=name, team="vision") for name in OWNERS):
        assert set(board.ids_of(user)) == {
            name for name, one in entries.items() if is_of(one, user)
        }


@pytest.fixture
async def history() -> AsyncIterator[History]:
    opened = await open_history(":memory:", clock=SystemClock(), run=inline)
    yield opened
    await opened.close()


async def test_a_scoreboard_stays_while_nothing_of_it_changes(history: History) -> None:
    scoreboards = Scoreboards(history, SystemClock())
    settings, submissions = BoardSettings(), history.submissions
    for number in range(3):
        await submissions.add(submission(number), since=0.0, check=lambda _: None)
    first, second = await asyncio.gather(
        *(scoreboards.read("lee", "mnist", settings) for _ in range(2))
    )
    assert first is second
    for changes in ({}, {"predict_session_id": "s9", "predict_tries": 1}, {"message": "waits"}):
        await submissions.change("u1", UNFINISHED, **changes)
        assert await scoreboards.read("lee", "mnist", settings) is first
    score = ScoreRow(submission_id="u1", score=0.5)
    await submissions.change("u1", UNFINISHED, state=SubmissionState.SCORED, score=score)
    other = await scoreboards.read("lee", "mnist", settings)
    assert other is not first
    assert (other.score("u1"), other.rank("u1"), first.score("u1")) == (0.5, 1, None)
    assert all(other.entries[one] is first.entries[one] for one in ("u0", "u2"))
    least = BoardSettings(public_score=PublicScore.OWN_BEST)
    assert (await scoreboards.read("lee", "mnist", least)).settings == least
