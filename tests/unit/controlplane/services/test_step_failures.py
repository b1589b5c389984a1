"""Steps of submissions that meet an error of the platform again and again: seen by people, and over with its cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from controlplane.domain.boards.values import SubmissionState
from controlplane.domain.identity import Role
from controlplane.history.sql.interface import Connection
from controlplane.objects.errors import ObjectsUnavailable
from controlplane.submissions import step_failures
from controlplane.submissions import submission_loop as submission_loop_module
from controlplane.submissions.feature import submission_loop
from controlplane.submissions.step_failures import SHOWN_AFTER, StepKey
from controlplane.submissions.submission_loop import SubmissionLoop
from nsml.common.clock import SystemClock
from nsml.spec import submission_exits as exits
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import nodes_pb2, sessions_pb2
from tests.support.failing import Failing
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.submissions import SCORED, Board

PREDICT, EVALUATE = sessions_pb2.SESSION_STAGE_PREDICT, sessions_pb2.SESSION_STAGE_EVALUATE
FAILING = nodes_pb2.CONDITION_NAME_SUBMISSIONS_FAILING
FAULT = "the platform has a fault, and tries again"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission_loop_module, "SWEEP_EVERY_S", 0.05)
    monkeypatch.setattr(step_failures, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(step_failures, "LONGEST_PAUSE_S", 0.2)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as rig:
        yield rig


async def stored(rig: Rig, statement: str, *values: Any) -> None:
    """Write into the history behind its back."""

    def work(connection: Connection) -> None:
        connection.execute(statement, values)

    await rig.plane.core.history.submissions._database.write(work)


async def damage(rig: Rig, session_id: str) -> Callable[[], Awaitable[None]]:
    """Give the result of a step a state that the platform does not know; return what mends it."""
    change = "UPDATE artifacts SET state = ? WHERE session_id = ?"
    await stored(rig, change, "secret7", session_id)

    async def mend() -> None:
        await stored(rig, change, "DURABLE", session_id)

    return mend


async def end_damaged(board: Board, stage: int, name: str, files: dict[str, bytes]) -> Any:
    """Let the next step of a stage succeed with a result that the platform cannot read; return what mends it."""
    replica = (await board.step(stage)).replica
    board.ended.add(replica.session_id)
    await board.node.report(replica, "RUNNING")
    await board.save(replica.session_id, name, files)
    mend = await damage(board.rig, replica.session_id)
    await board.node.report(replica, "FINALIZED", cause="COMPLETED", code=0)
    return mend


async def fault_in(board: Board, step: str) -> tuple[str, Any]:
    """A submission that fails at a step, and what mends it."""
    made = await board.submit()
    if step == "predict":
        files = {exits.PREDICTION: b"7\n1\n"}
        return made.id, await end_damaged(board, PREDICT, exits.PREDICTION, files)
    await board.predict()
    if step == "reevaluate":
        await board.evaluate("0.25")
        await board.over(made.id)
        await board.kim.boards.ReevaluateBoard(pb.ReevaluateBoardRequest(board="digits"))
    files = {exits.RESULT: b'{"score": "0.5", "rows": 100}'}
    return made.id, await end_damaged(board, EVALUATE, exits.EVALUATION, files)


async def conditions(who: Stubs) -> list[nodes_pb2.Condition]:
    found = await who.nodes.GetCluster(nodes_pb2.GetClusterRequest())
    return [one for one in found.conditions if one.name == FAILING]


async def last_step(board: Board, submission_id: str, who: Stubs | None = None) -> Any:
    return (await board.get(submission_id, who)).steps[-1]


@pytest.mark.parametrize("step", ["predict", "evaluate", "reevaluate"])
async def test_a_fault_is_shown_to_all_and_ends_with_its_cause(rig: Rig, step: str) -> None:
    board = await Board.of(rig)
    root = await rig.user("root", role=Role.ADMIN)
    submission_id, mend = await fault_in(board, step)

    async def is_shown() -> bool:
        return (await last_step(board, submission_id)).HasField("failing_since")

    await until(is_shown, "the submission shows the fault")
    for who in (board.lee, board.kim, root):
        shown = await last_step(board, submission_id, who)
        assert (shown.kind, shown.waiting) == (step, FAULT)
        assert "secret7" not in str(await board.get(submission_id, who))
    [condition] = await conditions(root)
    assert condition.subject == step
    assert condition.evidence.startswith(
        f"1 submission; the first, {submission_id}: ValueError in "
    )
    assert "secret7" not in condition.evidence
    [for_users] = await conditions(board.lee)
    assert (for_users.subject, for_users.evidence) == (step, "")

    await mend()
    if step == "predict":

        async def goes_on() -> bool:
            one = await last_step(board, submission_id)
            return one.kind == "evaluate" and not one.HasField("failing_since")

        await until(goes_on, "its evaluation does not show the fault")
        await board.evaluate("0.5")

    async def is_over() -> bool:
        found = await board.get(submission_id)
        return (found.state, found.score) == (SCORED, 0.5)

    await until(is_over, "it goes on by itself")
    over = await board.get(submission_id)
    assert [one.kind for one in over.steps] == ["predict", "evaluate"]
    assert not any(one.HasField("failing_since") for one in over.steps)

    async def is_ended() -> bool:
        return not await conditions(root)

    await until(is_ended, "the condition ends")


@pytest.mark.parametrize("step", ["predict", "evaluate"])
async def test_others_go_on_meanwhile_and_the_board_marks_it(rig: Rig, step: str) -> None:
    board = await Board.of(rig)
    submission_id, _ = await fault_in(board, step)

    async def entry() -> pb.BoardEntry:
        request = pb.ListEntriesRequest(board="kim/digits")
        entries = (await board.lee.boards.ListEntries(request)).entries
        return next(one for one in entries if one.submission_id == submission_id)

    async def is_marked() -> bool:
        return (await entry()).HasField("failing_since")

    await until(is_marked, "the board marks it")
    since = (await entry()).failing_since
    other = await board.submit()
    await board.predict()
    await board.evaluate("0.75")
    assert (await board.over(other.id)).score == 0.75
    assert (await entry()).failing_since == since


async def test_a_failing_evaluation_holds_up_no_other_of_a_re_evaluation(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_loop_module, "MOST_REEVALUATED", 1)
    board = await Board.of(rig)
    made = []
    for _ in range(2):
        made.append(await board.submit())
        await board.predict()
        await board.evaluate("0.25")
        await board.over(made[-1].id)
    await board.kim.boards.ReevaluateBoard(pb.ReevaluateBoardRequest(board="digits"))
    files = {exits.RESULT: b'{"score": "0.5", "rows": 100}'}
    mend = await end_damaged(board, EVALUATE, exits.EVALUATION, files)
    await board.evaluate("0.75")

    async def one_is_done() -> bool:
        request = pb.GetBoardRequest(board="digits")
        found = (await board.kim.boards.GetBoard(request)).board
        return (found.reevaluated, found.to_reevaluate) == (1, 2) and (
            found.reevaluation_step.waiting == FAULT
        )

    await until(one_is_done, "the other one is evaluated, and the board says why it is not over")
    seen = (await board.lee.boards.GetBoard(pb.GetBoardRequest(board="kim/digits"))).board
    assert (seen.to_reevaluate, seen.HasField("reevaluation_step")) == (2, False)
    await mend()

    async def is_shown() -> bool:
        return [(await board.get(one.id)).score for one in made] == [0.5, 0.75]

    await until(is_shown, "the new scores are shown")


# Of a loop that the test runs


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform's own loop does nothing."""
    monkeypatch.setattr(SubmissionLoop, "run", asyncio.Event().wait)


async def predicted(board: Board) -> tuple[str, SubmissionLoop]:
    """A submission whose prediction is kept, and the loop that got it there."""
    loop = submission_loop(board.rig.plane.core)
    made = await board.submit()
    await loop.advance(made.id)
    await board.predict()

    async def is_evaluated() -> bool:
        await loop.advance(made.id)
        row = await board.rig.plane.core.history.submissions.get(made.id)
        return row is not None and bool(row.evaluate_session_id)

    await until(is_evaluated, "its evaluation has a session")
    return made.id, loop


async def has_ended(board: Board, submission_id: str) -> None:
    """Wait until the control plane knows that the session of its step has ended."""

    async def it_has() -> bool:
        return (await last_step(board, submission_id)).waiting == "its session has ended"

    await until(it_has, "the session of its step has ended")


@pytest.mark.usefixtures("resting")
async def test_the_next_leader_shows_it_since_the_same_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_failures, "FIRST_PAUSE_S", 0.0)
    board = await Board.of(rig)
    core = rig.plane.core
    submission_id, loop = await predicted(board)
    files = {exits.RESULT: b'{"score": "0.5", "rows": 100}'}
    mend = await end_damaged(board, EVALUATE, exits.EVALUATION, files)
    await has_ended(board, submission_id)

    async def since() -> float:
        row = await core.history.submissions.get(submission_id)
        assert row is not None
        return row.failing_since

    for _ in range(SHOWN_AFTER):
        assert await since() == 0.0
        await loop.advance(submission_id)
    first = await since()
    assert first > 0.0
    conditions = core.health.conditions
    assert [one.subject for one in conditions.standing()] == ["evaluate"]
    loop._failures.clear()
    assert conditions.standing() == ()

    following = submission_loop(core)
    assert submission_id in await following.due()
    await following.advance(submission_id)
    assert [one.subject for one in conditions.standing()] == ["evaluate"]
    assert await since() == first
    await mend()
    await following.advance(submission_id)
    row = await core.history.submissions.get(submission_id)
    assert row is not None
    assert (row.state.name, row.failing_since) == ("SCORED", 0.0)
    assert conditions.standing() == ()


@pytest.mark.usefixtures("resting")
async def test_one_that_waits_for_its_session_shows_no_fault_that_is_over(rig: Rig) -> None:
    board = await Board.of(rig)
    submission_id, loop = await predicted(board)
    submissions = rig.plane.core.history.submissions
    assert await loop.due() == []
    await submissions.change(submission_id, {SubmissionState.EVALUATING}, failing_since=7.0)
    assert await loop.due() == [submission_id]
    await loop.advance(submission_id)
    assert not (await last_step(board, submission_id)).HasField("failing_since")
    assert await loop.due() == []


@pytest.mark.usefixtures("resting")
async def test_it_is_left_alone_until_its_next_try_and_forgotten_when_it_is_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_failures, "FIRST_PAUSE_S", 3_600.0)
    monkeypatch.setattr(step_failures, "LONGEST_PAUSE_S", 3_600.0)
    board = await Board.of(rig)
    core = rig.plane.core
    submission_id, loop = await predicted(board)
    files = {exits.RESULT: b'{"score": "0.5", "rows": 100}'}
    mend = await end_damaged(board, EVALUATE, exits.EVALUATION, files)
    await has_ended(board, submission_id)
    for _ in range(SHOWN_AFTER):
        assert submission_id in await loop.due()
        await loop.advance(submission_id)
    await mend()
    assert submission_id not in await loop.due()
    await loop.advance(submission_id)
    row = await core.history.submissions.get(submission_id)
    assert row is not None
    assert not row.state.is_over
    assert core.health.conditions.standing() != ()
    await core.history.catalogue.remove_dataset("kim", "digits", 0, at=1.0)
    await core.history.catalogue.purge_datasets(before=core.clock.time())
    assert await loop.due() == []
    assert core.health.conditions.standing() == ()


@pytest.mark.usefixtures("resting")
async def test_an_outage_is_no_fault_of_a_submission() -> None:
    objects = Failing(MemoryObjects(SystemClock()))
    async with platform(objects=objects) as rig:
        board = await Board.of(rig)
        submission_id, loop = await predicted(board)
        await board.evaluate("0.5")
        await has_ended(board, submission_id)
        objects.error = lambda _: ObjectsUnavailable("away")
        for _ in range(3 * SHOWN_AFTER):
            await loop.advance(submission_id)
        row = await rig.plane.core.history.submissions.get(submission_id)
        assert row is not None
        assert (row.state.is_over, row.failing_since) == (False, 0.0)
        assert loop._failures.may_try(StepKey(submission_id))
        objects.error = None
        await loop.advance(submission_id)
        assert (await board.get(submission_id)).state == SCORED
