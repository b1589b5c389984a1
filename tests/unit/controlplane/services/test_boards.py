"""Boards through real gRPC: who makes, sees and changes them, and what they rank."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest

from controlplane.boards import boards as board_rules
from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    BoardKind,
    SubmissionCause,
    SubmissionState,
)
from controlplane.domain.errors import NameReserved
from controlplane.domain.identity import Role
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import Session, SessionStage, Visibility
from controlplane.history.board_values import BoardRow, ScoreRow, SubmissionRow
from controlplane.history.values import Channel, Chunk, StreamKey
from controlplane.sessions.export import row_of
from controlplane.submissions.submission_loop import SubmissionLoop
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import datasets_pb2, resources_pb2, sessions_pb2
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_content import push, send, tree
from tests.unit.controlplane.services.test_sessions import refused
from tests.unit.controlplane.views.test_views import site

PRIVATE = resources_pb2.VISIBILITY_PRIVATE
TEAM = resources_pb2.VISIBILITY_TEAM
PUBLIC = resources_pb2.VISIBILITY_PUBLIC
MIN = pb.SCORE_DIRECTION_MIN
ALL = pb.BEST_PER_NONE


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    # Submissions are written to the history here: the leader would go on with them, and find no sessions.
    monkeypatch.setattr(SubmissionLoop, "run", asyncio.Event().wait)
    async with platform() as rig:
        yield rig


async def create(who: Stubs, name: str = "acc", **settings: Any) -> pb.Board:
    settings.setdefault("metric", "val/acc")
    request = pb.CreateBoardRequest(name=name, settings=pb.BoardSettings(**settings))
    made: pb.Board = (await who.boards.CreateBoard(request)).board
    return made


async def entries(who: Stubs, board: str = "acc", **wanted: Any) -> list[pb.BoardEntry]:
    request = pb.ListEntriesRequest(board=board, **wanted)
    return list((await who.boards.ListEntries(request)).entries)


async def told(who: Stubs, board: str = "acc", **wanted: Any) -> list[tuple[int, str, Any]]:
    """Rank, owner and score of each entry."""
    return [
        (one.rank, one.owner, one.score if one.HasField("score") else None)
        for one in await entries(who, board, **wanted)
    ]


async def report(rig: Rig, one: str, *values: dict[str, Any], first: int = 1) -> None:
    records = tuple(
        json.dumps({"kind": "metric", "time": 1e9 + at, "step": at, "values": value}).encode()
        for at, value in enumerate(values, first)
    )
    key = StreamKey(one, 1, 0, Channel.METRIC, 1)
    chunk = Chunk(stream=key, first=first, last=first + len(records) - 1, records=records)
    await rig.on.history.streams.append([chunk])


async def ended(
    rig: Rig, owner: str, *values: Any, metric: str = "val/acc", **facts: Any
) -> Session:
    """An ended session that reported these values of a metric, in the history."""
    facts.setdefault("visibility", Visibility.PUBLIC)
    made = session(owner=owner, state=SessionState.SUCCEEDED, attempt=1, ended_at=1e9, **facts)
    await rig.on.history.catalogue.put_session(row_of(made), term=rig.plane.core.term())
    if values:
        await report(rig, made.id, *({metric: one} for one in values))
    return made


async def test_a_board_ranks_ended_sessions_by_the_best_of_each_user(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await ended(rig, "kim", 0.5, 0.9, 0.7)
    await ended(rig, "kim", 0.8)
    best = await ended(rig, "lee", 0.95, "NaN", "Infinity")
    await ended(rig, "lee", "NaN", visibility=Visibility.PUBLIC)
    await ended(rig, "lee", 1.0, metric="other")
    board = await create(kim, visibility=PUBLIC)
    assert board.entry_count == 4
    assert board.settings.best_per == pb.BEST_PER_USER
    assert await told(lee, "kim/acc") == [(1, "lee", 0.95), (2, "kim", 0.9)]
    assert await told(kim, best_per=ALL) == [
        (1, "lee", 0.95),
        (2, "kim", 0.9),
        (3, "kim", 0.8),
        (0, "lee", None),
    ]
    [first, _] = await entries(kim)
    assert (first.session_id, first.session, first.is_own) == (best.id, best.name, False)
    [own] = await entries(kim, own_only=True)
    assert (own.rank, own.is_own, list(own.trend)) == (2, True, [0.8, 0.9])


async def test_the_least_the_last_and_ties(rig: Rig) -> None:
    kim = await rig.user("kim")
    await ended(rig, "kim", 3.0, 1.0, 2.0, metric="loss")
    later = await ended(rig, "lee", 5.0, 5.0, 1.0, metric="loss")
    await ended(rig, "max", 4.0, 0.5, metric="loss")
    await create(kim, "least", metric="loss", direction=MIN)
    assert await told(kim, "least") == [(1, "max", 0.5), (2, "kim", 1.0), (3, "lee", 1.0)]
    await create(kim, "last", metric="loss", direction=MIN, value=pb.METRIC_VALUE_LAST)
    assert await told(kim, "last") == [(1, "max", 0.5), (2, "lee", 1.0), (3, "kim", 2.0)]
    await report(rig, later.id, {"loss": 0.25}, first=4)
    assert await told(kim, "least") == [(1, "lee", 0.25), (2, "max", 0.5), (3, "kim", 1.0)]


async def test_nobody_learns_of_sessions_that_they_may_not_see(rig: Rig) -> None:
    kim = await rig.user("kim", team="vision")
    lee, mate = await rig.user("lee"), await rig.user("mate", team="vision")
    root = await rig.user("root", role=Role.ADMIN)
    await ended(rig, "kim", 0.9, visibility=Visibility.PRIVATE)
    await ended(rig, "kim", 0.8, visibility=Visibility.TEAM, team="vision")
    await ended(rig, "lee", 0.7)
    await create(kim, visibility=PUBLIC)
    for who, expected in (
        (kim, [(1, "kim", 0.9), (2, "kim", 0.8), (3, "lee", 0.7)]),
        (root, [(1, "kim", 0.9), (2, "kim", 0.8), (3, "lee", 0.7)]),
        (mate, [(1, "kim", 0.8), (2, "lee", 0.7)]),
        (lee, [(1, "lee", 0.7)]),
    ):
        assert await told(who, "kim/acc", best_per=ALL) == expected
        board = (await who.boards.GetBoard(pb.GetBoardRequest(board="kim/acc"))).board
        assert board.entry_count == len(expected)


async def test_steps_of_submissions_never_count(rig: Rig) -> None:
    kim = await rig.user("kim")
    await ended(rig, "kim", 0.9, spec={"stage": SessionStage.PREDICT})
    await ended(rig, "kim", 0.5)
    await create(kim)
    assert await told(kim) == [(1, "kim", 0.5)]


async def test_the_filter_is_that_of_ps(rig: Rig) -> None:
    kim = await rig.user("kim")
    await ended(rig, "kim", 0.9, memo="baseline")
    await ended(rig, "kim", 0.8, memo="wide")
    await ended(rig, "lee", 0.7)
    await create(kim, "mine", filter="user:@me !baseline")
    assert await told(kim, "mine", best_per=ALL) == [(1, "kim", 0.8)]
    await create(kim, "others", filter="!user:kim | baseline")
    assert await told(kim, "others", best_per=ALL) == [(1, "kim", 0.9), (2, "lee", 0.7)]
    code, _, details = await refused(create(kim, "bad", filter="lr>=x"))
    assert code == "INVALID_ARGUMENT"
    assert "lr>=x" in details["why"]


async def test_ranks_of_a_day_ago_are_those_of_what_was_reported_by_then(rig: Rig) -> None:
    kim = await rig.user("kim")
    await ended(rig, "kim", 0.5)
    climbed = await ended(rig, "lee", 0.4)
    fresh = await ended(rig, "max", created_at=time.time())
    for one, first, at in ((climbed, 2, fresh.created_at), (fresh, 1, fresh.created_at + 1)):
        key = StreamKey(one.id, 1, 0, Channel.METRIC, 1)
        record = json.dumps({"kind": "metric", "time": at, "values": {"val/acc": 0.9}}).encode()
        chunk = Chunk(stream=key, first=first, last=first, records=(record,))
        await rig.on.history.streams.append([chunk])
    await create(kim)
    ranks = {one.owner: (one.rank, one.rank_before) for one in await entries(kim)}
    assert ranks == {"lee": (1, 2), "max": (2, 0), "kim": (3, 1)}


async def test_the_best_of_each_team(rig: Rig) -> None:
    kim = await rig.user("kim")
    await ended(rig, "kim", 0.5, team="vision")
    await ended(rig, "lee", 0.6, team="vision")
    await ended(rig, "vision", 0.4)
    await ended(rig, "max", 0.3)
    await create(kim)
    assert await told(kim, best_per=pb.BEST_PER_TEAM) == [
        (1, "lee", 0.6),
        (2, "vision", 0.4),
        (3, "max", 0.3),
    ]
    first, *_ = await entries(kim, best_per=pb.BEST_PER_TEAM)
    assert list(first.trend) == [0.5, 0.6]


async def test_a_running_session_climbs(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    made = await kim.submit(visibility=PUBLIC)
    await agent.assignments(1)
    await report(rig, made.id, {"val/acc": 0.5, "val/acc@std": 0.01})
    await ended(rig, "lee", 0.7)
    await create(kim)
    first, second = await entries(kim)
    assert (first.owner, second.owner, second.standard_error) == ("lee", "kim", 0.01)
    assert not first.HasField("standard_error")
    assert (first.rank_low, second.rank_low, second.rank_high) == (0, 2, 2)
    await report(rig, made.id, {"val/acc": 0.75, "val/acc@std": 0.1}, first=2)
    first, second = await entries(kim)
    assert (first.score, first.rank_low, first.rank_high) == (0.75, 1, 2)
    await report(rig, made.id, {"val/acc": 0.875}, first=3)
    first, second = await entries(kim)
    assert (first.owner, first.score, first.rank) == ("kim", 0.875, 1)
    assert not first.HasField("standard_error")


async def test_a_removed_session_leaves(rig: Rig) -> None:
    kim = await rig.user("kim")
    gone = await ended(rig, "kim", 0.9)
    await ended(rig, "kim", 0.5)
    await create(kim)
    assert len(await entries(kim, best_per=ALL)) == 2
    await kim.sessions.RemoveSession(sessions_pb2.RemoveSessionRequest(session=gone.id))
    assert await told(kim, best_per=ALL) == [(1, "kim", 0.5)]


# Names and rights


async def test_the_name_of_a_competition_is_sent_to_its_standings(rig: Rig) -> None:
    kim = await rig.user("kim")
    _, _, details = await refused(kim.boards.GetBoard(pb.GetBoardRequest(board="lee/cup")))
    assert "nsml competition standings lee/cup" in details["try"]


@pytest.mark.parametrize(
    "name", ["", "Acc", "a/b", "a..b", ".a", "a" * 65, "a b", "a\n", "\x1b[31m", "ä", "\u202ea"]
)
async def test_names_that_no_board_has(rig: Rig, name: str) -> None:
    kim = await rig.user("kim")
    assert (await refused(create(kim, name)))[0] == "INVALID_ARGUMENT"
    request = pb.GetBoardRequest(board=f"kim/{name}")
    assert (await refused(kim.boards.GetBoard(request)))[0] in {"INVALID_ARGUMENT", "NOT_FOUND"}


@pytest.mark.parametrize(
    "settings",
    [
        {"metric": ""},
        {"metric": "a\x1b[31m"},
        {"metric": "m" * 300},
        {"description": "two\nlines"},
        {"is_open": False},
        {"limit": pb.SubmissionLimit(count=1)},
        {"direction": 9},
        {"best_per": 9},
        {"value": 9},
        {"visibility": 9},
        {"visibility": TEAM},
        {"filter": "state:nonsense"},
        {"filter": "x" * 1_001},
    ],
)
async def test_settings_that_a_board_of_sessions_cannot_have(
    rig: Rig, settings: dict[str, Any]
) -> None:
    kim = await rig.user("kim")
    assert (await refused(create(kim, **settings)))[0] == "INVALID_ARGUMENT"
    await create(kim)
    request = pb.UpdateBoardRequest(board="acc", settings=pb.BoardSettings(**settings))
    assert (await refused(kim.boards.UpdateBoard(request)))[0] == "INVALID_ARGUMENT"


async def update(who: Stubs, board: str, **settings: Any) -> pb.Board:
    request = pb.UpdateBoardRequest(board=board, settings=pb.BoardSettings(**settings))
    changed: pb.Board = (await who.boards.UpdateBoard(request)).board
    return changed


async def listed(who: Stubs) -> list[str]:
    found = (await who.boards.ListBoards(pb.ListBoardsRequest())).boards
    return [f"{one.owner}/{one.name}" for one in found]


async def pages(who: Stubs, size: int) -> AsyncIterator[list[str]]:
    """The pages of the caller's list, as names."""
    request = pb.ListBoardsRequest(page_size=size)
    while True:
        page = await who.boards.ListBoards(request)
        yield [f"{one.owner}/{one.name}" for one in page.boards]
        request.cursor = page.next_cursor
        if not request.cursor:
            return


async def test_boards_are_listed_in_pages(rig: Rig) -> None:
    """Boards of sessions and of datasets in one order; a page has as many as are asked for, whatever is hidden."""
    kim, lee, max_ = await rig.user("kim"), await rig.user("lee"), await rig.user("max")
    for who, name, visibility in (
        *((kim, f"k{number}", PUBLIC if number % 2 else PRIVATE) for number in range(4)),
        *((lee, name, PUBLIC) for name in ("acc", "z")),
        (max_, "m", PRIVATE),
    ):
        await create(who, name, visibility=visibility)
    for name in ("a", "k1.set", "z"):
        await dataset(kim, name)
    await dataset(kim, "k1")  # beside a board of sessions of this name
    every = ["kim/a", *["kim/k1"] * 2, "kim/k1.set", "kim/k3", "kim/z", "lee/acc", "lee/z"]
    assert await listed(lee) == every
    for size in range(1, len(every) + 2):
        found = [page async for page in pages(lee, size)]
        assert found == [every[at : at + size] for at in range(0, len(every), size)]
    request = pb.ListBoardsRequest(page_size=2)
    kinds = []
    for _ in range(2):
        page = await lee.boards.ListBoards(request)
        kinds += [one.kind for one in page.boards]
        request.cursor = page.next_cursor
    assert kinds[1:3] == [pb.BOARD_KIND_METRIC, pb.BOARD_KIND_DATASET]


async def test_a_page_goes_on_behind_a_board_that_was_removed(rig: Rig) -> None:
    kim = await rig.user("kim")
    for name in ("a", "b", "c"):
        await create(kim, name)
    reading = pages(kim, 2)
    assert await anext(reading) == ["kim/a", "kim/b"]
    await kim.boards.DeleteBoard(pb.DeleteBoardRequest(board="b"))
    assert await anext(reading) == ["kim/c"]


async def test_a_page_of_boards_has_a_hundred_and_at_most_a_thousand(rig: Rig) -> None:
    kim = await rig.user("kim")
    settings = DEFAULT_SETTINGS[BoardKind.METRIC]
    for number in range(1_001):
        row = BoardRow(
            owner="kim",
            name=f"b{number:04}",
            kind=BoardKind.METRIC,
            settings=replace(settings, metric="acc"),
            created_at=1.0,
        )
        await rig.on.history.boards.create(row, most=2_000)
    assert [len(page) async for page in pages(kim, 5_000)] == [1_000, 1]
    assert len(await anext(pages(kim, 0))) == 100


@pytest.mark.parametrize(
    "cursor", ["x", "kim/acc", "kim/acc 9", "kim/acc one", "KIM!/acc 1", "a\0/b 1", "/ 1", " 1"]
)
async def test_a_cursor_of_boards_that_no_page_had_is_refused(rig: Rig, cursor: str) -> None:
    kim = await rig.user("kim")
    await create(kim)
    asked = kim.boards.ListBoards(pb.ListBoardsRequest(cursor=cursor))
    assert (await refused(asked))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("visibility", [PRIVATE, TEAM, PUBLIC])
async def test_who_sees_and_who_changes(rig: Rig, visibility: int) -> None:
    kim = await rig.user("kim", team="vision")
    mate, lee = await rig.user("mate", team="vision"), await rig.user("lee")
    root = await rig.user("root", role=Role.ADMIN)
    await create(kim, visibility=visibility)
    sees = {
        "kim": True,
        "root": True,
        "mate": visibility in {TEAM, PUBLIC},
        "lee": visibility == PUBLIC,
    }
    for name, who in (("kim", kim), ("root", root), ("mate", mate), ("lee", lee)):
        get = who.boards.GetBoard(pb.GetBoardRequest(board="kim/acc"))
        watch = who.boards.WatchBoard(pb.WatchBoardRequest(board="kim/acc"))
        assert await listed(who) == (["kim/acc"] if sees[name] else [])
        if sees[name]:
            board = (await get).board
            assert board.may_change == (name in {"kim", "root"})
            assert (await watch.read()).board.name == "acc"
            watch.cancel()
        else:
            assert (await refused(get))[0] == "NOT_FOUND"
            assert (await refused(watch.read()))[0] == "NOT_FOUND"
            assert (await refused(entries(who, "kim/acc")))[0] == "NOT_FOUND"
        remove = pb.DeleteBoardRequest(board="kim/acc")
        change = update(who, "kim/acc", description=f"by {name}")
        if name in {"mate", "lee"}:
            expected = "PERMISSION_DENIED" if sees[name] else "NOT_FOUND"
            assert (await refused(change))[0] == expected
            assert (await refused(who.boards.DeleteBoard(remove)))[0] == expected
        else:
            assert (await change).settings.description == f"by {name}"
            await who.boards.DeleteBoard(remove)
            await create(kim, visibility=visibility)


async def test_whose_board_a_name_is(rig: Rig) -> None:
    kim, lee, max_ = await rig.user("kim"), await rig.user("lee"), await rig.user("max")
    await create(kim, visibility=PUBLIC)

    async def owner(who: Stubs, name: str = "acc") -> str:
        found: str = (await who.boards.GetBoard(pb.GetBoardRequest(board=name))).board.owner
        return found

    assert [await owner(who) for who in (kim, lee, max_)] == ["kim", "kim", "kim"]
    await create(lee, visibility=PUBLIC)
    assert [await owner(who) for who in (kim, lee)] == ["kim", "lee"]
    code, _, details = await refused(owner(max_))
    assert (code, details["why"]) == ("INVALID_ARGUMENT", "kim/acc, lee/acc")
    assert await owner(max_, "lee/acc") == "lee"
    assert (await refused(create(kim)))[0] == "ALREADY_EXISTS"


async def test_nobody_has_more_boards_than_the_most(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_rules, "MOST_BOARDS", 2)
    kim = await rig.user("kim")
    await create(kim, "one")
    await create(kim, "two")
    assert (await refused(create(kim, "three")))[0] == "RESOURCE_EXHAUSTED"
    await kim.boards.DeleteBoard(pb.DeleteBoardRequest(board="one"))
    await create(kim, "three")


async def test_settings_change_what_is_ranked(rig: Rig) -> None:
    kim = await rig.user("kim")
    await ended(rig, "kim", 1.0, 3.0)
    await ended(rig, "lee", 2.0)
    await create(kim)
    assert await told(kim) == [(1, "kim", 3.0), (2, "lee", 2.0)]
    changed = await update(kim, "acc", direction=MIN, value=pb.METRIC_VALUE_LAST)
    assert (changed.settings.metric, changed.settings.direction) == ("val/acc", MIN)
    assert await told(kim) == [(1, "lee", 2.0), (2, "kim", 3.0)]
    code, _, _ = await refused(entries(kim, by_private=True))
    assert code == "INVALID_ARGUMENT"


async def test_a_name_with_boards_goes_to_nobody_else(rig: Rig) -> None:
    kim = await rig.user("kim")
    root = await rig.user("root", role=Role.ADMIN)
    await create(kim)
    await rig.plane.core.accounts.delete_user("kim")
    with pytest.raises(NameReserved) as caught:
        await rig.user("kim")
    assert "1 board" in caught.value.why
    await root.boards.DeleteBoard(pb.DeleteBoardRequest(board="kim/acc"))
    with pytest.raises(NameReserved) as caught:  # as any name of a moment ago
        await rig.user("kim")
    assert "board" not in caught.value.why


# Boards of datasets

LABELS = [datasets_pb2.DatasetPart(path="test/test_label", access=datasets_pb2.PART_ACCESS_HIDDEN)]
FILES = {
    "train/data": b"to learn from",
    "test/test_data": b"to predict",
    "test/test_label": b"hidden",
    "data_loader.py": b"def test_data_loader(root_path): ...",
    "evaluation.py": b"print(1)",
}


async def dataset(who: Stubs, name: str = "digits", **files: bytes) -> None:
    manifest, blobs = tree(**(files or FILES))
    await send(who, blobs)
    await push(who, name, manifest, parts=LABELS, visibility=PUBLIC)


async def submitted(
    rig: Rig, number: int, owner: str, score: float | None = None, **facts: Any
) -> str:
    """A submission to kim's digits; without a score it failed, or is in a state."""
    given = {
        one: facts.pop(one) for one in ("private", "checked", "standard_error") if one in facts
    }
    facts.setdefault("state", SubmissionState.FAILED if score is None else SubmissionState.SCORED)
    if facts["state"] is SubmissionState.FAILED:
        facts.setdefault("cause", SubmissionCause.INFER_FAILED)
    row = SubmissionRow(
        id=f"u{number}",
        owner=owner,
        dataset_owner="kim",
        dataset="digits",
        dataset_version=1,
        session_id=f"s{number}",
        session=f"{owner}/digits/{number}",
        checkpoint="best",
        submitted_at=1_000.0 + number,
        ended_at=0.0 if not facts["state"].is_over else 2_000.0 + number,
        args="--lr 1e-3",
        memo="wide net",
        **facts,
    )
    submissions = rig.on.history.submissions
    await submissions.add(row, since=0.0, check=lambda _: None)
    if score is not None:
        put = ScoreRow(submission_id=row.id, score=score, **given)
        assert await submissions.change(row.id, {row.state}, score=put)
    return row.id


async def test_a_dataset_has_a_board_if_it_is_evaluated(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await dataset(kim)
    await dataset(kim, "plain", **{"train/data": b"x", "test/test_label": b"hidden"})
    assert await listed(lee) == ["kim/digits"]
    board = (await lee.boards.GetBoard(pb.GetBoardRequest(board="digits"))).board
    assert (board.kind, board.evaluation, board.entry_count) == (pb.BOARD_KIND_DATASET, 1, 0)
    assert (board.may_change, board.settings.is_open) == (False, True)
    assert (await refused(entries(lee, "kim/plain")))[0] == "NOT_FOUND"
    assert (await refused(create(kim, "digits")))[0] == "ALREADY_EXISTS"
    assert (await refused(update(kim, "digits", visibility=PUBLIC)))[0] == "INVALID_ARGUMENT"
    changed = await update(kim, "digits", direction=MIN, is_open=False)
    assert (changed.settings.direction, changed.settings.is_open) == (MIN, False)
    request = pb.DeleteBoardRequest(board="digits")
    assert (await refused(kim.boards.DeleteBoard(request)))[0] == "FAILED_PRECONDITION"


async def test_submissions_are_ranked_and_failures_are_their_own(rig: Rig) -> None:
    kim, lee, max_ = await rig.user("kim"), await rig.user("lee"), await rig.user("max")
    mate = await rig.user("mate", team="vision")
    root = await rig.user("root", role=Role.ADMIN)
    await dataset(kim)
    await submitted(rig, 1, "lee", 0.5, private=0.9)
    await submitted(rig, 2, "max", 0.75, private=0.6, checked=0.7)
    await submitted(rig, 3, "lee")
    await submitted(rig, 4, "eva", team="vision")
    await submitted(rig, 5, "max", state=SubmissionState.EVALUATING)
    seen = [(1, "max", 0.75), (2, "lee", 0.5), (0, "max", None)]
    failed = [(0, "lee", None)]
    of_team = [(0, "eva", None)]
    board = "kim/digits"
    assert await told(max_, board) == seen
    assert await told(lee, board) == [*seen[:2], *failed, *seen[2:]]
    assert await told(mate, board) == [*seen[:2], *of_team, *seen[2:]]
    for who in (kim, root):
        assert await told(who, board) == [*seen[:2], *failed, *of_team, *seen[2:]]
        assert await told(who, board, by_private=True) == [
            (1, "lee", 0.5),
            (2, "max", 0.75),
            *failed,
            *of_team,
            *seen[2:],
        ]
        first, second, *_ = await entries(who, board)
        assert (first.private_score, first.is_unstable, second.private_score) == (0.6, True, 0.9)
    assert (await refused(entries(lee, board, by_private=True)))[0] == "PERMISSION_DENIED"
    first, second, third, _ = await entries(lee, board)
    assert not any(one.HasField("private_score") or one.is_unstable for one in (first, second))
    assert (first.is_own, second.is_own, first.args, first.memo) == (
        False,
        True,
        "--lr 1e-3",
        "wide net",
    )
    assert third.cause == pb.SUBMISSION_CAUSE_INFER_FAILED
    assert await told(lee, board, own_only=True) == [(2, "lee", 0.5), (0, "lee", None)]
    assert await told(lee, board, best_per=pb.BEST_PER_USER) == seen[:2]
    for who, count in ((kim, 5), (lee, 4), (max_, 3), (mate, 4)):
        found = (await who.boards.GetBoard(pb.GetBoardRequest(board=board))).board
        assert (found.entry_count, found.has_private_scores) == (count, True)
        assert list((await who.boards.ListBoards(pb.ListBoardsRequest())).boards) == [found]


async def test_participants_see_scores_as_the_board_shows_them(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await dataset(kim)
    await submitted(rig, 1, "lee", 0.5)
    await submitted(rig, 2, "lee", 0.25)
    await update(kim, "digits", public_score=pb.PUBLIC_SCORE_OWN_BEST)
    assert await told(lee, "kim/digits") == [(1, "lee", 0.5), (2, "lee", 0.5)]


async def test_a_version_of_scores_is_shown_once_it_is_whole(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await dataset(kim)
    submissions = rig.on.history.submissions
    one = await submitted(rig, 1, "lee", 0.5, prediction_digest="a" * 64)
    await submissions.begin_evaluation("kim", "digits", at=1.0)
    board = (await lee.boards.GetBoard(pb.GetBoardRequest(board="digits"))).board
    assert (board.evaluation, board.reevaluated, board.to_reevaluate) == (1, 0, 1)
    assert list((await lee.boards.ListBoards(pb.ListBoardsRequest())).boards) == [board]
    assert (await refused(entries(lee, "digits", evaluation=2)))[0] == "INVALID_ARGUMENT"
    assert await told(kim, "digits", evaluation=2) == [(0, "lee", None)]
    scored = {"state": SubmissionState.SCORED, "score": 0.25}
    assert await submissions.change_score(one, 2, {SubmissionState.EVALUATING}, **scored)
    assert await told(lee, "digits") == [(1, "lee", 0.5)]
    assert await submissions.show_evaluation("kim", "digits", at=2.0)
    assert await told(lee, "digits") == [(1, "lee", 0.25)]
    assert await told(lee, "digits", evaluation=1) == [(1, "lee", 0.5)]
    assert (await refused(entries(lee, "digits", evaluation=3)))[0] == "INVALID_ARGUMENT"


async def test_only_owners_evaluate_again(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await dataset(kim)
    await create(kim, "acc", visibility=PUBLIC)

    async def again(who: Stubs, board: str) -> pb.Board:
        request = pb.ReevaluateBoardRequest(board=board)
        found: pb.Board = (await who.boards.ReevaluateBoard(request)).board
        return found

    assert (await refused(again(lee, "kim/digits")))[0] == "PERMISSION_DENIED"
    assert (await refused(again(lee, "kim/none")))[0] == "NOT_FOUND"
    assert (await refused(again(kim, "acc")))[0] == "FAILED_PRECONDITION"
    assert (await refused(again(kim, "digits")))[0] == "FAILED_PRECONDITION"  # no predictions
    await submitted(rig, 1, "lee", 0.5, prediction_digest="a" * 64)
    board = await again(kim, "digits")
    assert (board.evaluation, board.to_reevaluate) == (1, 1)


# Watches


class Watch:
    """The scores in each answer that a watcher received."""

    def __init__(self, who: Stubs, board: str, **wanted: Any) -> None:
        self.call = who.boards.WatchBoard(pb.WatchBoardRequest(board=board, **wanted))
        self.received: list[list[float]] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for answer in self.call:
            self.received.append([one.score for one in answer.entries if one.rank])

    async def sees(self, *scores: float) -> None:
        async def seen() -> bool:
            assert not self.task.done()
            return bool(self.received) and self.received[-1] == list(scores)

        await until(seen, f"{scores} are shown")

    async def close(self) -> None:
        self.call.cancel()
        await asyncio.wait([self.task])


async def test_a_watcher_sees_each_change_of_a_datasets_board_once(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await dataset(kim)
    watches = [Watch(who, "kim/digits") for who in (kim, lee) for _ in range(10)]
    for watch in watches:
        await watch.sees()
    await submitted(rig, 1, "lee", 0.5)
    for watch in watches:
        await watch.sees(0.5)
    # Nothing that this board shows: not sent again.
    await rig.on.history.submissions.change("u1", [SubmissionState.SCORED], gpu_seconds=0.0)
    await asyncio.gather(
        *(submitted(rig, number, "max", 0.6 + number / 1e3) for number in range(2, 42))
    )
    for watch in watches:
        await watch.sees(*(0.6 + number / 1e3 for number in range(41, 1, -1)), 0.5)
        assert all(before != after for before, after in pairwise(watch.received[1:]))
        await watch.close()


async def test_a_watcher_of_a_board_of_sessions_sees_reports(rig: Rig) -> None:
    kim = await rig.user("kim")
    agent = await (await rig.agent()).connect()
    made = await kim.submit()
    await agent.assignments(1)
    await create(kim)
    watch = Watch(kim, "acc")
    await watch.sees()
    await report(rig, made.id, {"val/acc": 0.5})
    await watch.sees(0.5)
    await ended(rig, "lee", 0.75)
    await watch.sees(0.75, 0.5)
    await watch.close()


async def test_a_watch_ends_with_the_board_and_with_the_right_to_see_it(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    for name, change in (
        ("removed", lambda: kim.boards.DeleteBoard(pb.DeleteBoardRequest(board="removed"))),
        ("hidden", lambda: update(kim, "hidden", visibility=PRIVATE)),
    ):
        await create(kim, name, visibility=PUBLIC)
        call = lee.boards.WatchBoard(pb.WatchBoardRequest(board=f"kim/{name}"))
        await call.read()
        await change()
        assert (await refused(call.read()))[0] == "NOT_FOUND"


# Pictures


async def test_a_public_board_is_a_picture_for_anybody() -> None:
    async with site() as here, httpx.AsyncClient(base_url=here.url, timeout=60) as browser:
        kim, lee = await here.rig.user("kim", team="vision"), await here.rig.user("lee")
        await ended(here.rig, "kim", 0.9, visibility=Visibility.PRIVATE)
        await ended(here.rig, "lee", 0.7)
        hostile = "<script>alert(1)</script>\u200b&\u202eabc"
        await create(kim, visibility=PUBLIC)
        await create(kim, "own")
        await here.rig.on.history.boards.update(
            ("kim", "acc", BoardKind.METRIC),
            lambda row: replace(row, settings=replace(row.settings, description=hostile)),
        )

        found = await browser.get("/boards/kim/acc.svg")
        assert (found.status_code, found.headers["content-type"]) == (200, "image/svg+xml")
        assert found.headers["cache-control"] == "public, max-age=60"
        picture = ET.fromstring(found.text)
        texts = [one.text for one in picture.iter() if one.tag.endswith("text")]
        assert "lee" in texts
        assert "0.7" in texts
        assert not any("0.9" in (text or "") for text in texts)
        assert "<script" not in found.text
        assert "\u202e" not in found.text
        assert "\u200b" not in found.text
        again = await browser.get(
            "/boards/kim/acc.svg", headers={"if-none-match": found.headers["etag"]}
        )
        assert (again.status_code, again.content) == (304, b"")
        missing = [
            await browser.get(f"/boards/{name}.svg") for name in ("kim/own", "kim/none", "no/ne")
        ]
        assert {(one.status_code, one.text) for one in missing} == {
            (404, "there is no such board, or it is not public\n")
        }
        for who, status in ((kim, 200), (lee, 404)):
            headers = {"authorization": who.metadata[0][1]}
            own = await browser.get("/boards/kim/own.svg", headers=headers)
            assert own.status_code == status
            assert own.headers["cache-control"] in {"private, no-cache", "no-store"}
