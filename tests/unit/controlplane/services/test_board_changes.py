"""Watched boards of which only changes are sent, through real gRPC: every watcher has what a reader reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controlplane.domain.boards.values import SubmissionState
from controlplane.submissions.submission_loop import SubmissionLoop
from nsml.client.boards import WatchedBoard
from nsml.spec.board_changes import apply_change
from nsml.v1 import boards_pb2 as pb
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.test_boards import (
    ALL,
    MIN,
    PUBLIC,
    create,
    dataset,
    ended,
    report,
    submitted,
    update,
)

SELECTIONS: list[dict[str, Any]] = [
    {},
    {"limit": 3},
    {"own_only": True},
    {"best_per": pb.BEST_PER_USER},
    {"best_per": pb.BEST_PER_TEAM, "limit": 4},
]


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    # Submissions are written to the history here: the leader would go on with them, and find no sessions.
    monkeypatch.setattr(SubmissionLoop, "run", asyncio.Event().wait)
    async with platform() as rig:
        yield rig


class Watch:
    """A watcher of changes: `whole` is the list that follows from them, `received` all answers as they came."""

    def __init__(self, who: Stubs, board: str, wanted: dict[str, Any], *, changes: bool) -> None:
        self._who = who
        self._read = pb.ListEntriesRequest(board=board, **wanted)
        request = pb.WatchBoardRequest(board=board, changes=changes, **wanted)
        self.call = who.boards.WatchBoard(request)
        self.whole: WatchedBoard | None = None
        self.received: list[pb.WatchBoardResponse] = []
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for answer in self.call:
            self.received.append(answer)
            if not answer.HasField("change"):
                self.whole = WatchedBoard(answer.board, list(answer.entries))
                continue
            assert self.whole is not None
            self.whole = WatchedBoard(answer.board, apply_change(self.whole.entries, answer))

    async def sees_all(self) -> None:
        """Wait until the watcher has what a reader reads."""

        async def same() -> bool:
            assert not self.task.done()
            read = await self._who.boards.ListEntries(self._read)
            shown = self.whole
            return (
                shown is not None
                and shown.board == read.board
                and in_order(shown) == in_order(read)
            )

        await until(same, f"what is read with {self._read} is shown")


def in_order(answer: WatchedBoard | pb.ListEntriesResponse) -> list[pb.BoardEntry]:
    """The entries, without what changes all the time."""
    found = []
    for one in answer.entries:
        entry = pb.BoardEntry()
        entry.CopyFrom(one)
        entry.gpu_seconds = 0.0
        found.append(entry)
    return found


@asynccontextmanager
async def watching(board: str, *users: Stubs, changes: bool = True) -> AsyncIterator[list[Watch]]:
    watches = [Watch(who, board, wanted, changes=changes) for who in users for wanted in SELECTIONS]
    try:
        yield watches
    finally:
        for one in watches:
            one.call.cancel()
        await asyncio.wait([one.task for one in watches])


async def all_see(watches: list[Watch]) -> None:
    for one in watches:
        await one.sees_all()


async def test_changes_of_a_datasets_board_give_what_is_read(rig: Rig) -> None:
    kim, lee, max_ = await rig.user("kim"), await rig.user("lee"), await rig.user("max")
    await dataset(kim)
    for number in range(1, 25):
        facts = {"standard_error": 0.01} if number % 2 else {}
        await submitted(rig, number, ["lee", "max", "zoe"][number % 3], 0.5 + number / 1e3, **facts)
    submissions = rig.on.history.submissions
    async with watching("kim/digits", kim, lee, max_) as watches:
        await all_see(watches)
        await submitted(rig, 30, "lee", 0.512, standard_error=0.01)
        await all_see(watches)
        await submitted(rig, 31, "max", 0.9)
        await all_see(watches)
        await submitted(rig, 32, "max")  # failed: others than max and kim do not see it
        await all_see(watches)
        await submitted(rig, 33, "lee", state=SubmissionState.QUEUED)
        await all_see(watches)
        await submissions.change("u33", [SubmissionState.QUEUED], state=SubmissionState.PREDICTING)
        await all_see(watches)
        await update(kim, "digits", direction=MIN)
        await all_see(watches)
        await submitted(rig, 34, "zoe", 0.001)
        await all_see(watches)
    for watch in watches:
        first, *later = watch.received
        assert not first.HasField("change")
        assert any(one.HasField("change") for one in later) or len(first.entries) < 3
    everything = watches[0]
    changes = [one for one in everything.received if one.HasField("change")]
    assert len(changes) >= 5
    assert min(len(one.entries) for one in changes) <= 1
    # Which entries are somebody's own differs between watchers of the same list.
    for name, watch in (("kim", watches[0]), ("lee", watches[len(SELECTIONS)])):
        assert watch.whole is not None
        assert {one.owner for one in watch.whole.entries if one.is_own} == {name} - {"kim"}


async def test_without_changes_each_answer_has_all_entries(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await dataset(kim)
    for number in range(1, 9):
        await submitted(rig, number, "lee", number / 10)
    async with watching("kim/digits", kim, lee, changes=False) as watches:
        await all_see(watches)
        await submitted(rig, 9, "lee", 0.05)
        await all_see(watches)
    assert len(watches[0].received) >= 2
    assert not any(one.HasField("change") for watch in watches for one in watch.received)


async def test_a_score_among_hundreds_is_a_small_change(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await dataset(kim)
    for number in range(1, 301):
        await submitted(rig, number, f"user{number}", number / 1_000, standard_error=0.01)
    async with watching("kim/digits", kim, lee) as watches:
        await all_see(watches)
        await submitted(rig, 301, "lee", 0.1505, standard_error=0.01)
        await all_see(watches)
    for watch in (watches[0], watches[len(SELECTIONS)]):
        whole, change = watch.received
        assert [one.submission_id for one in change.entries] == ["u301"]
        assert len(whole.entries) == 300
        assert change.ByteSize() < 1_500 < whole.ByteSize() / 20


async def test_changes_of_a_board_of_sessions_give_what_is_read(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    agent = await (await rig.agent()).connect()
    made = await kim.submit()
    await agent.assignments(1)
    for number in range(12):
        await ended(rig, ["kim", "lee", "max"][number % 3], 0.1 + number / 100)
    await create(kim, visibility=PUBLIC, best_per=ALL)
    async with watching("kim/acc", kim, lee) as watches:
        await all_see(watches)
        await report(rig, made.id, {"val/acc": 0.15})
        await all_see(watches)
        await report(rig, made.id, {"val/acc": 0.5}, first=2)
        await all_see(watches)
        await ended(rig, "lee", 0.75)
        await all_see(watches)
    changes = [one for one in watches[0].received if one.HasField("change")]
    assert len(changes) >= 2
    # Others of a participant have another trend, and are not sent again.
    assert all(len(one.entries) == 1 for one in changes)
