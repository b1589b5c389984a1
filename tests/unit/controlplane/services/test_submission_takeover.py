"""A leader that ends between any two of its writes loses no submission and repeats no step; neither do two at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from controlplane.domain.boards.values import SubmissionState
from controlplane.history.board_values import SubmissionRow
from controlplane.history.errors import HistoryUnavailable
from controlplane.submissions.feature import session_maker, submission_loop
from controlplane.submissions.submission_loop import SubmissionLoop
from tests.unit.controlplane.rig import Rig, platform, until
from tests.unit.controlplane.services.submissions import Board

WRITES = ("change", "submit_prepared", "change_score", "show_evaluation")
MOST_WRITES = 12
"""More than a submission takes."""


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A platform whose own loop does nothing: tests run theirs."""

    async def forever(_: SubmissionLoop) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SubmissionLoop, "run", forever)
    async with platform() as rig:
        yield rig


class Killed(BaseException):
    """The process is gone."""


class Dying:
    """A store that ends its process after so many writes, all processes of one test counted together."""

    def __init__(self, of: Any, left: list[int]) -> None:
        self._of = of
        self._left = left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name not in WRITES:
            return found

        async def write(*args: Any, **given: Any) -> Any:
            answer = await found(*args, **given)
            self._left[0] -= 1
            if self._left[0] == 0:
                raise Killed
            return answer

        return write


def loop_of(rig: Rig, left: list[int]) -> SubmissionLoop:
    """A leader's loop that just started."""
    core = rig.plane.core
    loop, maker = submission_loop(core), session_maker(core)
    maker._submitter = Dying(maker._submitter, left)  # type: ignore[assignment]
    for part in (loop._advance, loop._reevaluations):
        part._maker = maker
        part._submissions = Dying(part._submissions, left)  # type: ignore[assignment]
    loop._submissions = Dying(loop._submissions, left)  # type: ignore[assignment]
    return loop


async def sweep(loop: SubmissionLoop) -> None:
    """Advance all that is due."""
    for one in await loop.due():
        await loop.advance(one)


async def swept(rig: Rig, loop: SubmissionLoop, submission_id: str) -> SubmissionRow:
    """Sweep until it is over, as the loop does."""

    async def is_over() -> SubmissionRow | None:
        await sweep(loop)
        row = await rig.plane.core.history.submissions.get(submission_id)
        return row if row is not None and row.state.is_over else None

    row: SubmissionRow = await until(is_over, f"{submission_id} is over")
    return row


async def steps_of(board: Board) -> None:
    await board.predict()
    await board.evaluate("0.5")


async def made_by(rig: Rig, submission_id: str) -> list[str]:
    """The names of the sessions of its steps, live and ended."""
    core = rig.plane.core
    live = [one.value for one in core.state.sessions.values()]
    names = {one.name for one in live if one.spec.submission_id == submission_id}
    row = await core.history.submissions.get(submission_id)
    assert row is not None
    for name in (row.predict_session, row.evaluate_session):
        owner, dataset, number = name.split("/")
        after = f"{owner}/{dataset}/{int(number) + 1}"
        assert await core.history.catalogue.session_by_name(after) is None
        names.add(name)
    return sorted(names)


async def test_a_leader_may_end_after_any_write(rig: Rig) -> None:
    board = await Board.of(rig)
    killed = 0
    for after in range(1, MOST_WRITES + 1):
        made = await board.submit()
        running = asyncio.create_task(steps_of(board))
        left = [after]
        with suppress(BaseExceptionGroup, Killed):
            await swept(rig, loop_of(rig, left), made.id)
        killed += left[0] == 0
        row = await swept(rig, loop_of(rig, [0]), made.id)
        await running
        assert row.state is SubmissionState.SCORED
        assert (row.predict_tries, row.evaluate_tries) == (1, 1)
        assert len(await made_by(rig, made.id)) == 2
        entry = await rig.plane.core.history.submissions.entry(made.id)
        assert entry is not None
        assert entry.score is not None
        assert entry.score.score == 0.5
    assert killed >= 6


async def test_two_leaders_at_once_make_each_step_once(rig: Rig) -> None:
    board = await Board.of(rig)
    for _ in range(3):
        made = await board.submit()
        running = asyncio.create_task(steps_of(board))
        loops = [loop_of(rig, [0]) for _ in range(2)]
        rows = await asyncio.gather(*[swept(rig, one, made.id) for one in loops])
        await running
        assert {one.state for one in rows} == {SubmissionState.SCORED}
        assert (rows[0].predict_tries, rows[0].evaluate_tries) == (1, 1)
        assert len(await made_by(rig, made.id)) == 2


async def test_one_that_does_not_lead_writes_nothing(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    loop = loop_of(rig, [0])
    loop._leads = loop._advance._leads = lambda: False
    await sweep(loop)
    row = await rig.plane.core.history.submissions.get(made.id)
    assert row is not None
    assert (row.predict_session_id, row.predict_tries) == ("", 0)


async def test_a_change_advances_its_submission_alone(rig: Rig) -> None:
    board = await Board.of(rig)
    made, other = await board.submit(), await board.submit()
    loop, submissions = loop_of(rig, [0]), rig.plane.core.history.submissions
    running = asyncio.create_task(steps_of(board))

    async def is_over() -> SubmissionRow | None:
        await loop.advance(made.id)
        row = await submissions.get(made.id)
        return row if row is not None and row.state.is_over else None

    row: SubmissionRow = await until(is_over, "it is over")
    await running
    assert row.state is SubmissionState.SCORED
    row_of_other = await submissions.get(other.id)
    assert row_of_other is not None
    assert row_of_other.predict_session_id == ""
    assert not loop._soon


@pytest.mark.parametrize("error", [HistoryUnavailable("it is away"), KeyError("a bad record")])
async def test_one_that_cannot_be_looked_at_waits_for_the_next_sweep(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    loop = loop_of(rig, [0])
    loop._leads = loop._advance._leads = lambda: False
    await loop.advance(made.id)
    assert list(loop._soon) == [made.id], "it may lead again in a moment"

    async def fails(_: str) -> SubmissionRow:
        raise error

    monkeypatch.setattr(loop._submissions, "get", fails)
    await loop.advance(made.id)
    assert not loop._soon
    assert await loop.due() == [made.id]
