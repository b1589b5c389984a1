"""Calls of boards and submissions, over connections that break."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc
import pytest

from nsml.client import errors
from nsml.client.boards import Selection, watch_board, watch_submission
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import checkpoints_pb2


def with_checkpoint(state):
    session = state.add("kim/digits/1")
    state.checkpoints[session.id] = [checkpoint("1"), checkpoint("best")]
    return session


def checkpoint(name):
    return checkpoints_pb2.Checkpoint(name=name)


async def test_a_board_is_made_changed_and_removed(client, server):
    made = await client.boards.create("best", pb.BoardSettings(metric="acc"))
    assert (made.owner, made.name, made.settings.metric) == ("kim", "best", "acc")
    changed = await client.boards.update("best", pb.BoardSettings(filter="state=succeeded"))
    assert (changed.settings.metric, changed.settings.filter) == ("acc", "state=succeeded")
    assert [one.name for one in await client.boards.every()] == ["best"]
    assert (await client.boards.get("kim/best")).name == "best"
    await client.boards.remove("best")
    with pytest.raises(errors.NotFound):
        await client.boards.get("best")


async def test_all_boards_are_read_page_by_page(client, server):
    names = [f"kim/b{number}" for number in range(5)]
    for name in names:
        server.state.add_board(name)
    assert [f"{one.owner}/{one.name}" for one in await client.boards.every()] == names
    assert server.state.calls.count("ListBoards") == 3


async def test_a_selection_is_sent_whole(client, server):
    server.state.add_board("kim/best")
    server.state.add_entry("kim/best", "lee", 0.9)
    server.state.add_entry("kim/best", "kim", 0.8)
    chosen = Selection(
        best_per=pb.BEST_PER_TEAM, own_only=True, limit=5, evaluation=2, by_private=True
    )
    answer = await client.boards.entries("best", chosen)
    assert [one.owner for one in answer.entries] == ["kim"]
    (request,) = server.state.entry_requests
    assert request.evaluation == 2
    assert request.by_private
    assert request.best_per == pb.BEST_PER_TEAM


async def test_a_lost_answer_submits_once(client, server):
    session = with_checkpoint(server.state)
    server.state.fail_next["CreateSubmission"] = grpc.StatusCode.UNAVAILABLE
    made = await client.submissions.create(session.name, request_id="r1")
    assert made.checkpoint == "best"
    assert list(server.state.submissions) == [made.id]


async def test_a_limit_has_the_next_permitted_instant(client, server):
    session = with_checkpoint(server.state)
    server.state.submission_limit_at = "2023-11-15T00:00:00Z"
    with pytest.raises(errors.LimitReached) as caught:
        await client.submissions.create(session.name, request_id="r1")
    assert caught.value.next_at == 1_700_006_400
    assert await client.submissions.create(session.name, request_id="r2", is_test=True)


@pytest.mark.parametrize("said", ["", "soon", "0000"])
def test_an_unreadable_instant_is_none(said):
    assert errors.LimitReached("x", metadata={"next_at": said}).next_at is None


async def test_pages_of_submissions(client, server):
    session = with_checkpoint(server.state)
    for _ in range(5):
        server.state.add_submission(session)
    every = [one.id async for one in client.submissions.every()]
    assert every == ["sub5", "sub4", "sub3", "sub2", "sub1"]
    assert [one.id async for one in client.submissions.every(limit=3)] == every[:3]


async def test_a_submission_is_watched_to_its_end_over_a_broken_connection(client, server):
    made = server.state.add_submission(with_checkpoint(server.state))
    server.state.breaks_watch = 1
    server.state.submission_course = [
        pb.Submission(state=pb.SUBMISSION_STATE_PREDICTING),
        pb.Submission(state=pb.SUBMISSION_STATE_SCORED, score=0.5),
    ]
    links = []
    async with (
        asyncio.timeout(60),
        aclosing(watch_submission(client, made.id, on_link=links.append)) as watching,
    ):
        states = [one.state async for one in watching]
    assert states == [
        pb.SUBMISSION_STATE_QUEUED, pb.SUBMISSION_STATE_PREDICTING, pb.SUBMISSION_STATE_SCORED
    ]  # fmt: skip
    assert [link.is_live for link in links] == [False, True]


async def test_a_board_is_watched_over_a_restart(client, server):
    server.state.add_board("kim/best")
    server.state.add_entry("kim/best", "lee", 0.9)
    seen = []
    async with asyncio.timeout(60), aclosing(watch_board(client, "best")) as watching:
        async for answer in watching:
            seen.append(len(answer.entries))
            if len(seen) == 1:
                await asyncio.to_thread(server.cut)
                await asyncio.to_thread(server.restore)
                server.state.add_entry("kim/best", "kim", 0.8)
            else:
                break
    assert seen == [1, 2]


async def test_a_watched_board_is_whole_though_changes_are_sent(client, server):
    state = server.state
    state.add_board("kim/best")
    for number in range(100):
        state.add_entry("kim/best", "lee", 1.0, session=f"lee/digits/{number}", args="--lr 1" * 9)
    answers = []
    async with asyncio.timeout(60), aclosing(watch_board(client, "best")) as watching:
        async for answer in watching:
            answers.append((answer, list(state.entries["kim/best"])))
            if len(answers) == 4:
                break
            with state.changed:
                entries = state.entries["kim/best"]
                new = pb.BoardEntry(owner="kim", session=f"kim/digits/{len(answers)}")
                ranked = [*entries[: len(answers)], new, *entries[len(answers) :][:-1]]
                for rank, one in enumerate(ranked, 1):
                    copy = pb.BoardEntry()
                    copy.CopyFrom(one)
                    copy.rank = rank
                    ranked[rank - 1] = copy
                entries[:] = ranked
                state.changed.notify_all()
    for answer, entries in answers:
        assert list(answer.entries) == entries
        assert answer.board.name == "best"
    first, *later = state.watched
    assert len(first.entries) == 100
    for sent in later:
        assert [one.owner for one in sent.entries] == ["kim"]
        assert sent.ByteSize() * 50 < first.ByteSize()


async def test_a_change_that_does_not_fit_is_refused_and_all_is_read_again(client, server):
    state = server.state
    state.add_board("kim/best")
    state.add_entry("kim/best", "lee", 0.9)
    change = pb.BoardChange(runs=[0, 0, 2**32 - 1])
    state.bad_changes.append(pb.WatchBoardResponse(change=change))
    seen, links = [], []
    async with (
        asyncio.timeout(60),
        aclosing(watch_board(client, "best", on_link=links.append)) as watching,
    ):
        async for answer in watching:
            seen.append([one.owner for one in answer.entries])
            if len(seen) == 3:
                break
            state.add_entry("kim/best", f"user{len(seen)}", 0.8)
    assert seen == [["lee"], ["lee", "user1"], ["lee", "user1", "user2"]]
    assert [link.is_live for link in links] == [False, True]
    assert "invalid change of best: its runs do not fit" in links[0].reason
    assert [request.changes for request in state.watch_requests] == [True, False]


async def test_watching_what_is_not_there_fails_at_once(client, server):
    with pytest.raises(errors.NotFound):
        async for _ in watch_board(client, "nothing"):
            pass
