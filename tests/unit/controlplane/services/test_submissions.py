"""Submissions through real gRPC: what their steps get, how they end, who sees what, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from controlplane.boards import watching
from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    BoardKind,
    PublicScore,
    SubmissionLimit,
)
from controlplane.domain.errors import StateConflict
from controlplane.domain.identity import Role
from controlplane.history.board_values import BoardRow
from controlplane.submissions import service as submission_service
from controlplane.submissions import submission_loop as submission_loop_module
from controlplane.submissions.feature import results, session_cleanup, submission_loop
from controlplane.submissions.feature import submissions as submissions_of
from controlplane.submissions.pipeline import Stage
from controlplane.submissions.session_cleanup import KEPT_PREDICT_S, KEPT_SCORED_S
from controlplane.submissions.session_maker import step_request
from controlplane.submissions.submission_advance import START_WITHIN_S
from nsml.common.clock import Clock
from nsml.spec import submission_exits as exits
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import datasets_pb2, nodes_pb2, projects_pb2, sessions_pb2
from tests.unit.controlplane.rig import Rig, Stubs, platform, until
from tests.unit.controlplane.services.submissions import (
    FAILED,
    FILES,
    NONE,
    OPENED,
    OWN,
    PARTS,
    SCORED,
    Board,
    files_of,
    pushed,
    trained,
)
from tests.unit.controlplane.services.test_content import read
from tests.unit.controlplane.services.test_media import chunk
from tests.unit.controlplane.services.test_rights import save
from tests.unit.controlplane.services.test_sessions import Ingest, log_chunk, refused

STOPPING = sessions_pb2.SESSION_STATE_STOPPING


@dataclass
class Ahead:
    """A clock on which so many seconds more have gone by."""

    clock: Clock
    ahead_s: float = 0.0

    def time(self) -> float:
        return self.clock.time() + self.ahead_s

    def monotonic(self) -> float:
        return self.clock.monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)


@pytest.fixture
def swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what nobody notifies the loop of: its sweeps find that."""
    monkeypatch.setattr(submission_loop_module, "SWEEP_EVERY_S", 0.2)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as rig:
        yield rig


async def test_it_predicts_evaluates_and_is_scored(rig: Rig) -> None:
    board = await Board.of(rig, environment={"LR": "0.1"}, replica_count=1)
    made = await board.submit(batch=32)
    assert made.state == pb.SUBMISSION_STATE_QUEUED
    assert (made.dataset, made.dataset_version, made.checkpoint) == ("kim/digits", 1, "best")
    step = await board.step(sessions_pb2.SESSION_STAGE_PREDICT)
    spec = step.spec
    assert list(spec.argv) == ["python", "main.py", "--mode", "test", "--pause", "1"]
    assert spec.network == NONE
    assert spec.initial_checkpoint.digest == board.checkpoint
    assert spec.environment["LR"] == "0.1"
    assert spec.environment["NSML_BATCH"] == "32"
    assert spec.environment["NSML_TEST_FOLDER"] == "test"
    # Its node gets the test inputs, and neither labels nor the other split.
    [dataset] = spec.datasets
    assert set(await files_of(board.node.stubs, dataset.digest)) == {*OPENED, "test/test_data"}
    for who in (board.lee, board.kim):
        assert (await refused(read(who, dataset.digest)))[0] == "NOT_FOUND"
    await board.predict()

    step = await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)
    spec = step.spec
    assert list(spec.argv) == ["python", "-u", "-m", "nsml.evaluation"]
    assert (spec.network, spec.resources.gpu_thousandths) == (NONE, 0)
    whole, prediction = spec.datasets
    assert await files_of(board.node.stubs, whole.digest) == FILES
    assert prediction.folder == "prediction"
    assert await files_of(board.node.stubs, prediction.digest) == {"prediction": b"7\n1\n"}
    code = await files_of(board.node.stubs, spec.bundle_digest)
    assert set(code) == {"data_loader.py", "evaluation.py"}
    await board.evaluate("0.985")

    over = await board.over(made.id)
    assert (over.state, over.score, over.rank, over.evaluation) == (SCORED, 0.985, 1, 1)
    predict, evaluate = over.steps
    assert predict.HasField("ended_at")
    assert (predict.kind, predict.session) == ("predict", "lee/digits/2")
    assert (evaluate.kind, evaluate.session) == ("evaluate", "")
    theirs = await board.get(made.id, board.kim)
    assert theirs.steps[1].session == "kim/digits/1"
    session = await board.kim.get("kim/digits/1")
    assert session.memo == f"submit of {board.session.name}"
    assert session.origin.kind == sessions_pb2.ORIGIN_KIND_SUBMISSION


async def test_what_the_evaluation_printed_and_private_scores_are_the_owners(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    await board.predict()
    step = await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)
    printed = b"x" * 5_000 + b"\nlabel 7 is wrong\n0.5\n"
    await Ingest(board.node.stubs).send(log_chunk(step.replica.session_id, 0, printed))
    await board.evaluate("0.5", result={"private": "0.25", "standard_error": 0.1})
    own = await board.over(made.id)
    assert (own.score, own.evaluation_output, own.HasField("private_score")) == (0.5, "", False)
    theirs = await board.get(made.id, board.kim)
    assert theirs.private_score == 0.25
    assert theirs.evaluation_output == printed[-4096:].decode()
    stranger = await rig.user("sam")
    assert (await refused(board.get(made.id, stranger)))[0] == "NOT_FOUND"
    assert (await refused(board.get("u1234")))[0] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (exits.LOAD_FAILED, "LOAD_FAILED"),
        (exits.INFER_FAILED, "INFER_FAILED"),
        (exits.NO_PREDICTION, "NO_PREDICTION"),
        (exits.TOO_LARGE, "TOO_LARGE"),
        (exits.NOT_PAUSED, "NOT_PAUSED"),
        (exits.PREDICTION_TIMEOUT, "PREDICTION_TIMEOUT"),
        (exits.MALFORMED, "MALFORMED"),
        (1, "ENDED_EARLY"),
    ],
)
async def test_a_prediction_that_fails_says_why(rig: Rig, code: int, cause: str) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    await board.predict(cause="PROGRAM_FAILED", code=code)
    over = await board.over(made.id)
    assert over.state == FAILED
    assert pb.SubmissionCause.Name(over.cause) == f"SUBMISSION_CAUSE_{cause}"
    assert over.message
    assert not over.HasField("score")


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ({"cause": "PROGRAM_FAILED", "code": exits.EVALUATION_FAILED}, "EVALUATION_FAILED"),
        ({"cause": "PROGRAM_FAILED", "code": exits.NOT_FINITE}, "NOT_FINITE"),
        ({"cause": "PROGRAM_FAILED", "code": exits.MALFORMED_ROWS}, "MALFORMED"),
        ({"cause": "PROGRAM_FAILED", "code": exits.EVALUATION_TIMEOUT}, "EVALUATION_TIMEOUT"),
        ({"cause": "TIME_LIMIT"}, "EVALUATION_TIMEOUT"),
        ({"cause": "OUT_OF_MEMORY"}, "LIMIT_EXCEEDED"),
        ({"score": "nan"}, "NOT_FINITE"),
        ({"score": "1_0"}, "NOT_FINITE"),
        ({"files": {exits.RESULT: b"{}"}}, "EVALUATION_FAILED"),
        ({"files": {"other": b"{}"}}, "EVALUATION_FAILED"),
    ],
)
async def test_an_evaluation_that_fails_says_why(rig: Rig, end: dict[str, Any], cause: str) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    await board.predict()
    await board.evaluate(**end)
    over = await board.over(made.id)
    assert pb.SubmissionCause.Name(over.cause) == f"SUBMISSION_CAUSE_{cause}"


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"other": b"7"}, "MALFORMED"),
        ({"prediction": b"7", "labels": b"7"}, "MALFORMED"),
    ],
)
async def test_only_one_file_is_a_prediction(rig: Rig, files: dict[str, bytes], cause: str) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    await board.predict(files=files)
    over = await board.over(made.id)
    assert pb.SubmissionCause.Name(over.cause) == f"SUBMISSION_CAUSE_{cause}"


async def test_a_submission_starts_at_once_whichever_control_plane_took_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader's loop knows it by the commit of its row alone."""
    monkeypatch.setattr(submission_loop_module, "SWEEP_EVERY_S", 3_600.0)
    async with platform() as rig:
        board = await Board.of(rig)
        for number in (1, 2):
            await board.submit()
            assert await board.step(sessions_pb2.SESSION_STAGE_PREDICT, number=number)


async def test_a_lost_node_costs_a_try_and_not_the_submission(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    for _ in range(2):
        await board.predict(cause="NODE_LOST")
    await board.predict()
    await board.evaluate(cause="PROGRAM_FAILED", code=137)
    await board.evaluate("0.5")
    over = await board.over(made.id)
    assert (over.state, over.score) == (SCORED, 0.5)


async def test_the_last_session_is_never_a_step(rig: Rig) -> None:
    board = await Board.of(rig)
    own = await board.kim.submit()

    async def last(who: Any) -> tuple[str, str]:
        """Its last session by name, and what the second last one is."""
        newest = (await who.get("@last")).name
        return newest, (await refused(who.get("@2")))[0]

    expected = [(board.session.name, "NOT_FOUND"), (own.name, "NOT_FOUND")]
    made = await board.submit()
    await board.step(sessions_pb2.SESSION_STAGE_PREDICT)
    assert [await last(board.lee), await last(board.kim)] == expected
    await board.predict()
    await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)
    assert [await last(board.lee), await last(board.kim)] == expected
    await board.evaluate()
    await board.over(made.id)
    assert [await last(board.lee), await last(board.kim)] == expected


async def test_it_fails_by_the_platform_after_three_tries(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    for _ in range(3):
        await board.predict(cause="NODE_LOST")
    over = await board.over(made.id)
    assert over.cause == pb.SUBMISSION_CAUSE_PLATFORM
    core = rig.plane.core
    cleanup = session_cleanup(core)
    tries = [step_request(made.id, Stage.PREDICT, number) for number in (1, 2, 3)]

    async def there() -> list[bool]:
        await cleanup.clean()
        catalogue = core.history.catalogue
        return [await catalogue.session_by_request("lee", one) is not None for one in tries]

    async def are_recorded() -> bool:
        return await there() == [True] * 3

    await until(are_recorded, "all tries are in the history")
    cleanup._clock = Ahead(core.clock, KEPT_PREDICT_S + 60)
    assert await there() == [False] * 3


async def test_a_dry_run_gets_the_open_split_alone_and_is_not_on_the_board(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit(is_test=True)
    stage = sessions_pb2.SESSION_STAGE_PREDICT_TEST
    step = await board.step(stage)
    [dataset] = step.spec.datasets
    files = set(await files_of(board.node.stubs, dataset.digest))
    assert files == {*OPENED, "test_submit/test_data"}
    assert step.spec.environment["NSML_TEST_FOLDER"] == "test_submit"
    await board.predict(is_test=True)
    await board.evaluate("0.75")
    over = await board.over(made.id)
    assert (over.is_test, over.score, over.rank) == (True, 0.75, 0)


async def on_other_dataset(board: Board, parts: tuple[str, ...]) -> str:
    """A session of lee on a dataset of kim without a small test set, with these hidden parts."""
    files = {path: data for path, data in FILES.items() if not path.startswith("test_submit")}
    await pushed(board.kim, "other", parts=parts, files=files)
    other = [sessions_pb2.DatasetReference(name="kim/other")]
    session = await trained(board.lee, board.node, datasets=other)
    await save(board.node, session.id)
    return session.name


async def test_a_dry_run_without_inputs_is_refused_and_says_what_the_owner_adds(rig: Rig) -> None:
    board = await Board.of(rig)
    session = await on_other_dataset(board, ("test", "test/test_label"))
    code, _, facts = await refused(board.submit(session=session, is_test=True))
    assert code == "FAILED_PRECONDITION"
    assert "folder test_submit" in facts["why"]
    assert facts["try"].startswith("nsml dataset push")
    assert (await board.submit(session=session)).state == pb.SUBMISSION_STATE_QUEUED


async def test_a_dry_run_on_open_inputs_is_over_with_its_prediction(rig: Rig) -> None:
    board = await Board.of(rig)
    session = await on_other_dataset(board, ("test/test_label",))
    made = await board.submit(session=session, is_test=True)
    step = await board.predict(is_test=True)
    assert step.spec.environment["NSML_TEST_FOLDER"] == "test"
    assert "test/test_data" in await files_of(board.node.stubs, step.spec.datasets[0].digest)
    over = await board.over(made.id)
    assert (over.state, over.HasField("score")) == (SCORED, False)
    assert "no folder test_submit" in over.message


async def test_a_dry_run_that_the_evaluation_cannot_take_is_over_with_its_prediction(
    rig: Rig,
) -> None:
    board = await Board.of(rig)
    made = await board.submit(is_test=True)
    await board.predict(is_test=True)
    await board.evaluate(cause="PROGRAM_FAILED", code=exits.NOT_SCORED)
    over = await board.over(made.id)
    assert (over.state, over.HasField("score")) == (SCORED, False)
    assert "no --test_label_path" in over.message


@pytest.mark.usefixtures("swept_often")
async def test_it_waits_for_the_upload_of_its_checkpoint(rig: Rig) -> None:
    board = await Board.of(rig)
    record = b'{"kind": "checkpoint", "name": "late", "folder": "1-late", "time": 1700000000.0, "files": [["a", 1]], "size": 1}'
    await Ingest(board.node.stubs).send(chunk(board.session.id, 1, record))
    made = await board.submit(checkpoint="late")

    async def why() -> bool:
        return "upload" in (await board.get(made.id)).steps[0].waiting

    await until(why, "it says that it waits for the upload")
    await save(board.node, board.session.id, "late")
    await board.predict()
    await board.evaluate()
    assert (await board.over(made.id)).state == SCORED


async def test_a_request_that_comes_again_makes_no_other_one(rig: Rig) -> None:
    board = await Board.of(rig)
    one = await board.submit(request_id="once")
    again = await board.submit(request_id="once")
    assert again.id == one.id
    listed = await board.lee.submissions.ListSubmissions(pb.ListSubmissionsRequest())
    assert [sub.id for sub in listed.submissions] == [one.id]
    other = await board.submit()
    request = pb.ListSubmissionsRequest(board="kim/digits", page_size=1)
    page = await board.kim.submissions.ListSubmissions(request)
    assert [sub.id for sub in page.submissions] == [other.id]
    request.cursor = page.next_cursor
    page = await board.kim.submissions.ListSubmissions(request)
    assert ([sub.id for sub in page.submissions], page.next_cursor) == ([one.id], "")
    assert (await refused(board.lee.submissions.ListSubmissions(request)))[0] == "PERMISSION_DENIED"


async def test_others_sessions_and_steps_are_not_submitted(rig: Rig) -> None:
    board = await Board.of(rig)
    assert (await refused(board.submit(board.kim)))[0] == "NOT_FOUND"
    assert (await refused(board.submit(checkpoint="none")))[0] == "NOT_FOUND"
    plain = await trained(board.lee, board.node, datasets=[])
    await save(board.node, plain.id)
    code, _, facts = await refused(board.submit(session=plain.name))
    assert (code, "dataset" in facts["why"]) == ("FAILED_PRECONDITION", True)
    await board.submit()
    step = await board.step(sessions_pb2.SESSION_STAGE_PREDICT)
    assert (await refused(board.submit(session=step.replica.session_id)))[
        0
    ] == "FAILED_PRECONDITION"
    origin = sessions_pb2.Origin(
        kind=sessions_pb2.ORIGIN_KIND_FORK, session=step.replica.session_id
    )
    spec = sessions_pb2.SessionSpec(argv=["true"])
    request = sessions_pb2.CreateSessionRequest(request_id="f1", spec=spec, origin=origin)
    assert (await refused(board.lee.sessions.CreateSession(request)))[0] == "FAILED_PRECONDITION"
    spec.initial_checkpoint.session = step.replica.session_id
    request = sessions_pb2.CreateSessionRequest(request_id="f2", spec=spec)
    assert (await refused(board.lee.sessions.CreateSession(request)))[0] == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("parts", "left_out", "why"),
    [
        ((), (), "not hidden"),
        (("test", "test_submit"), (), "not hidden"),
        (("test", "evaluation.py", "test_submit/test_label"), (), "not hidden"),
        (PARTS, ("evaluation.py",), "evaluation.py"),
        (PARTS, ("data_loader.py",), "no open data_loader.py"),
        ((*PARTS, "data_loader.py"), (), "no open data_loader.py"),
        (("test", "test/test_label"), (), "test_submit/test_label"),
        (PARTS[1:], ("test/test_data",), "test inputs"),
    ],
)
async def test_a_dataset_that_would_give_its_labels_away_or_fail_every_prediction_takes_none(
    rig: Rig, parts: tuple[str, ...], left_out: tuple[str, ...], why: str
) -> None:
    board = await Board.of(rig)
    files = {path: data for path, data in FILES.items() if path not in left_out}
    await pushed(board.kim, "other", parts=parts, files=files)
    session = await trained(
        board.lee, board.node, datasets=[sessions_pb2.DatasetReference(name="kim/other")]
    )
    await save(board.node, session.id)
    code, _, facts = await refused(board.submit(session=session.name))
    assert code == "FAILED_PRECONDITION"
    assert why in facts["why"]
    assert "nsml dataset" in facts["try"]


async def test_it_fails_if_its_dataset_is_removed_meanwhile(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    await board.step(sessions_pb2.SESSION_STAGE_PREDICT)
    await rig.plane.core.history.catalogue.remove_dataset("kim", "digits", 1, at=1e9)
    await board.predict()
    over = await board.over(made.id)
    assert over.cause == pb.SUBMISSION_CAUSE_REMOVED


async def test_a_watch_ends_with_the_score(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    call = board.lee.submissions.WatchSubmission(pb.WatchSubmissionRequest(id=made.id))
    await board.predict()
    await board.evaluate("0.5")
    states = [one.submission.state async for one in call]
    assert states[-1] == SCORED
    assert states == sorted(states)


def contains(text: str, one: pb.Submission) -> bool:
    return text in one.evaluation_output


class Watcher:
    """The newest answer to a user who watches a submission."""

    def __init__(self, board: Board, who: Stubs, submission_id: str) -> None:
        self._ask = partial(board.get, submission_id, who)
        self._call = who.submissions.WatchSubmission(pb.WatchSubmissionRequest(id=submission_id))
        self._reading = asyncio.ensure_future(self._read())
        self.newest = pb.Submission()

    async def _read(self) -> None:
        async for answer in self._call:
            assert answer.submission != self.newest, "each answer has something new"
            self.newest = answer.submission

    async def has(self, what: str, of: Callable[[pb.Submission], Any]) -> None:
        """Wait until this is true of what GetSubmission shows, and the watcher has received just that."""

        async def is_there() -> bool:
            shown = await self._ask()
            return bool(of(shown)) and self.newest == shown

        await until(is_there, what)

    async def ended(self) -> pb.Submission:
        await self._reading
        return self.newest


async def test_a_watcher_receives_all_that_is_shown_of_a_submission(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_service, "LOOK_EVERY_S", 0.02)
    board = await Board.of(rig)
    made = await board.submit()
    lee, kim = (Watcher(board, who, made.id) for who in (board.lee, board.kim))
    await lee.has("the first answer", lambda one: not one.HasField("next_at"))
    await settle(rig, limit=SubmissionLimit(count=1, window_s=3600.0))
    for one in (lee, kim):
        await one.has("when the next one is permitted", lambda one: one.HasField("next_at"))
    await settle(rig, limit=SubmissionLimit(count=2, window_s=3600.0))
    await lee.has("that it is now", lambda one: not one.HasField("next_at"))
    await board.submit()
    await lee.has("that of another submission", lambda one: one.HasField("next_at"))
    await board.predict()
    session = (await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)).replica.session_id
    printing = Ingest(board.node.stubs)
    for start, text in ((0, b"reads "), (6, b"the labels")):
        await printing.send(log_chunk(session, start, text))
        await kim.has("what it printed", partial(contains, text.decode()))
    assert not lee.newest.evaluation_output
    await board.evaluate("0.5")
    for one in (lee, kim):
        over = await one.ended()
        assert (over.state, over.score) == (SCORED, 0.5)
    assert kim.newest.evaluation_output == "reads the labels"


async def settle(rig: Rig, **settings: Any) -> None:
    """Set what the owner of the dataset sets."""
    default = DEFAULT_SETTINGS[BoardKind.DATASET]
    row = BoardRow(
        owner="kim",
        name="digits",
        kind=BoardKind.DATASET,
        settings=replace(default, **settings),
        created_at=1.0,
    )
    boards = rig.plane.core.history.boards
    await boards.update(("kim", "digits", row.kind), lambda _: row, default=row)


async def test_limits_count_what_is_scored_or_on_its_way_and_say_when_the_next_may_come(
    rig: Rig,
) -> None:
    board = await Board.of(rig)
    await settle(rig, limit=SubmissionLimit(count=1, window_s=3600.0))
    one = await board.submit(request_id="first")
    code, reason, facts = await refused(board.submit())
    assert (code, reason) == ("RESOURCE_EXHAUSTED", "LIMIT_REACHED")
    assert "1 of 1 submissions" in facts["why"]
    assert facts["next_at"] in facts["try"]
    assert (await board.get(one.id)).next_at.ToDatetime() > one.submitted_at.ToDatetime()
    assert (await board.submit(request_id="first")).id == one.id
    assert (await board.submit(is_test=True)).is_test
    # What failed by its own code counts for another limit, and what the platform failed for none.
    await board.predict(cause="PROGRAM_FAILED", code=1)
    await board.over(one.id)
    await board.submit()
    await settle(rig, failed_limit=SubmissionLimit(count=1, window_s=3600.0))
    assert "failed" in (await refused(board.submit()))[2]["why"]


async def test_a_closed_board_takes_dry_runs_alone(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit(request_id="before")
    await settle(rig, is_open=False)
    assert (await board.submit(request_id="before")).id == made.id
    code, _, facts = await refused(board.submit())
    assert (code, "owner" in facts["why"]) == ("FAILED_PRECONDITION", True)
    assert (await board.submit(is_test=True)).is_test


async def test_participants_see_scores_as_the_board_shows_them(rig: Rig) -> None:
    board = await Board.of(rig)
    await settle(rig, public_score=PublicScore.OWN_BEST)
    made = []
    for score in ("0.9", "0.5"):
        made.append(await board.submit())
        await board.predict()
        await board.evaluate(score)
        await board.over(made[-1].id)
    own = [await board.get(one.id) for one in made]
    assert [(one.score, one.keeps_best) for one in own] == [(0.9, False), (0.9, True)]
    theirs = [await board.get(one.id, board.kim) for one in made]
    assert [(one.score, one.keeps_best) for one in theirs] == [(0.9, False), (0.5, False)]
    listed = await board.lee.submissions.ListSubmissions(pb.ListSubmissionsRequest())
    assert [one.keeps_best for one in listed.submissions] == [True, False]
    await settle(rig, public_score=PublicScore.EXACT)
    assert not (await board.get(made[1].id)).keeps_best


async def test_the_beginning_of_an_id_finds_what_the_caller_may_see_and_nothing_else(
    rig: Rig,
) -> None:
    board = await Board.of(rig)
    first, second = await board.submit(), await board.submit(is_test=True)
    assert first.id[0] == second.id[0] == "u"
    length = next(at for at in range(1, 40) if first.id[:at] != second.id[:at])
    for text in (first.id, first.id[:length], first.id[:-1]):
        for who in (board.lee, board.kim):
            assert (await board.get(text, who)).id == first.id
    code, reason, given = await refused(board.get("u"))
    assert (code, reason) == ("INVALID_ARGUMENT", "AMBIGUOUS_REFERENCE")
    assert set(given["candidates"].split(",")) == {first.id, second.id}
    # A stranger gets the same answer for one of others and for none, and no other one hides an own one.
    sam = await rig.user("sam")
    missing = await refused(board.get("uzzzzzzzz", sam))
    for text in ("u", first.id[:-1], first.id, "", "%", "_", "U", "u\0", "x" * 5_000):
        answer = await refused(board.get(text, sam))
        assert (answer[0], answer[2].get("try")) == (missing[0], missing[2].get("try")), text
    session = await trained(sam, board.node)
    await save(board.node, session.id)
    own = await board.submit(sam, session=session.name)
    assert (await board.get("u", sam)).id == own.id
    watching = board.lee.submissions.WatchSubmission(
        pb.WatchSubmissionRequest(id=first.id[:length])
    )
    async for answer in watching:
        assert answer.submission.id == first.id
        break
    watching.cancel()


async def test_the_board_shows_new_scores_once_all_predictions_are_evaluated_again(
    rig: Rig,
) -> None:
    board = await Board.of(rig)
    core = rig.plane.core
    again = core.shared(submissions_of).reevaluate
    with pytest.raises(StateConflict, match="cannot be evaluated again"):
        await again("kim", "digits")
    made = []
    for score in ("0.5", "0.25"):
        made.append(await board.submit())
        await board.predict()
        await board.evaluate(score)
        await board.over(made[-1].id)
    await pushed(board.kim, files={**FILES, "evaluation.py": b"print(1)"})
    assert (await again("kim", "digits")).of == 2
    with pytest.raises(StateConflict, match="cannot be evaluated again"):
        await again("kim", "digits")
    step = await board.evaluate("0.75")
    assert (await files_of(board.node.stubs, step.spec.bundle_digest))[
        "evaluation.py"
    ] == b"print(1)"
    assert [(await board.get(one.id)).score for one in made] == [0.5, 0.25]
    await board.evaluate(cause="PROGRAM_FAILED", code=exits.EVALUATION_FAILED)

    async def is_shown() -> bool:
        return (await core.history.submissions.evaluation("kim", "digits")).shown == 2

    await until(is_shown, "the new scores are shown")
    shown = [await board.get(one.id) for one in made]
    assert sorted(one.HasField("score") and one.score for one in shown) == [False, 0.75]
    assert {one.evaluation for one in shown} == {2}
    [failed] = [one for one in shown if not one.HasField("score")]
    assert (failed.state, failed.cause) == (FAILED, pb.SUBMISSION_CAUSE_EVALUATION_FAILED)
    assert failed.message == "the dataset's evaluation failed on the prediction"


async def test_all_scores_that_a_board_shows_are_of_one_version_of_the_dataset(rig: Rig) -> None:
    board = await Board.of(rig)
    core = rig.plane.core
    again = core.shared(submissions_of).reevaluate
    first = await board.submit()
    await board.predict()
    await board.evaluate("0.5")
    await board.over(first.id)
    late = await board.submit()
    await board.predict()
    old = await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)
    board.ended.add(old.replica.session_id)  # not yet: the re-evaluation is over before it
    await pushed(board.kim, files={**FILES, "evaluation.py": b"print(1)"})
    await again("kim", "digits")
    await board.evaluate("0.75")

    async def is_shown() -> bool:
        return (await core.history.submissions.evaluation("kim", "digits")).shown == 2

    await until(is_shown, "the new scores are shown")
    board.ended.discard(old.replica.session_id)
    assert (await board.evaluate("0.1")).replica == old.replica
    assert (await board.evaluate("0.9")).spec.datasets[0].version == 2
    found = await board.over(late.id)
    assert (found.score, found.evaluation) == (0.9, 2)

    await pushed(board.kim, files={**FILES, "evaluation.py": b"print(2)"})
    await again("kim", "digits")
    for _ in range(2):
        one = await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)
        assert one.spec.datasets[0].version == 3
        board.ended.add(one.replica.session_id)  # it goes on
    await board.submit()
    await board.predict()
    one = await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)
    assert one.spec.datasets[0].version == 2, "as the scores that are shown"


async def test_one_evaluation_in_so_many_runs_twice(rig: Rig) -> None:
    board = await Board.of(rig)
    await settle(rig, check_every=2)
    twice = []
    for _ in range(2):
        made = await board.submit()
        await board.predict()
        step = await board.evaluate("0.5", result={"check": "0.25"})
        twice.append(step.spec.environment.get("NSML_EVALUATE_TWICE", ""))
        await board.over(made.id)
    assert twice == ["", "1"]
    entries = await rig.plane.core.history.submissions.entries("kim", "digits")
    assert [(one.score.score, one.score.checked) for one in entries if one.score] == [
        (0.5, 0.25)
    ] * 2


@pytest.mark.parametrize("tries", [1, 2])
async def test_sessions_of_steps_go_a_while_after_the_end(rig: Rig, tries: int) -> None:
    """Those of tries that were lost, too."""
    board = await Board.of(rig)
    made = await board.submit()
    for number in range(1, tries + 1):
        await board.predict(cause="COMPLETED" if number == tries else "NODE_LOST")
    for number in range(1, tries + 1):
        await board.evaluate(cause="COMPLETED" if number == tries else "NODE_LOST")
    await board.over(made.id)
    core = rig.plane.core
    cleanup = session_cleanup(core)
    cleanup._clock = clock = Ahead(core.clock)

    async def are_there() -> list[bool]:
        await cleanup.clean()
        requests = [
            (owner, step_request(made.id, stage, number))
            for owner, stage in (("lee", Stage.PREDICT), ("kim", Stage.EVALUATE))
            for number in range(1, tries + 1)
        ]
        found = [await core.history.catalogue.session_by_request(*one) for one in requests]
        return [one is not None for one in found]

    async def exported() -> bool:
        return all(await are_there())

    await until(exported, "the sessions are in the history")
    for clock.ahead_s, there in (
        (KEPT_PREDICT_S / 2, [True, True]),
        (KEPT_PREDICT_S + 60, [False, True]),
        (KEPT_SCORED_S + 60, [False, False]),
    ):
        assert await are_there() == [one for one in there for _ in range(tries)]
    over = await board.get(made.id, board.kim)
    assert (over.state, [one.session for one in over.steps]) == (SCORED, ["", ""])
    # The prediction is kept, and can be evaluated again.
    row = await core.history.submissions.get(made.id)
    assert row is not None
    assert await core.shared(results).size(row.prediction_digest) == 4


async def test_a_step_is_stopped_whose_submission_is_gone_with_its_dataset(rig: Rig) -> None:
    board = await Board.of(rig)
    made = await board.submit()
    step = await board.step(sessions_pb2.SESSION_STAGE_PREDICT)
    core = rig.plane.core
    cleanup = session_cleanup(core)
    await cleanup.clean()
    assert (await board.lee.get(step.replica.session_id)).state != STOPPING
    await core.history.catalogue.remove_dataset("kim", "digits", 0, at=1.0)
    await core.history.catalogue.purge_datasets(before=core.clock.time())
    assert await core.history.submissions.get(made.id) is None
    await cleanup.clean()
    assert (await board.lee.get(step.replica.session_id)).state == STOPPING


@pytest.mark.usefixtures("swept_often")
@pytest.mark.parametrize("tries", [0, 1])
async def test_a_step_over_the_quota_of_its_owners_project_waits_and_says_so(
    rig: Rig, tries: int
) -> None:
    board = await Board.of(rig)
    root = await rig.user("root", role=Role.ADMIN)
    quota = projects_pb2.Quota(cpu_thousandths=500)
    settings = projects_pb2.ProjectSettings(owner="kim", quota=quota)
    make = projects_pb2.CreateProjectRequest(name="kim", settings=settings)
    if not tries:
        await root.projects.CreateProject(make)
    made = await board.submit()
    await board.predict()
    if tries:
        await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)
        await root.projects.CreateProject(make)
        await board.evaluate(cause="NODE_LOST")

    async def why() -> str:
        [*_, step] = (await board.get(made.id, board.kim)).steps
        return step.waiting if step.kind == "evaluate" and "never" in step.waiting else ""

    assert "project" in await until(why, "its evaluation waits")
    # The quota is no business of the participant.
    [*_, step] = (await board.get(made.id)).steps
    assert step.waiting == (
        "its session has ended" if tries else "its session is made when it is its turn"
    )
    wider = projects_pb2.ProjectSettings(quota=projects_pb2.Quota(cpu_thousandths=4000))
    await root.projects.UpdateProject(projects_pb2.UpdateProjectRequest(name="kim", settings=wider))
    await board.evaluate("0.5")
    assert (await board.over(made.id)).score == 0.5


async def scored(board: Board) -> pb.Submission:
    made = await board.submit()
    await board.predict()
    await board.evaluate("0.5")
    return await board.over(made.id)


class BoardWatcher:
    """The newest state of a board that a user watches."""

    def __init__(self, who: Stubs) -> None:
        self._call = who.boards.WatchBoard(pb.WatchBoardRequest(board="kim/digits"))
        self._reading = asyncio.ensure_future(self._read())
        self.newest = pb.Board()

    async def _read(self) -> None:
        async for answer in self._call:
            self.newest = answer.board

    async def waits(self, text: str) -> None:
        """Wait until it says that the re-evaluation waits for this."""

        async def it_does() -> bool:
            assert not self._reading.done()
            return text in self.newest.reevaluation_step.waiting

        await until(it_does, f"the board says: {text}")

    async def has_nothing(self) -> bool:
        """Whether no re-evaluation is on its way."""
        return not self.newest.HasField("reevaluation_step")


@pytest.mark.usefixtures("swept_often")
async def test_why_a_re_evaluation_waits_is_shown_to_who_ordered_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ANYWAY_S", 0.2)
    monkeypatch.setattr(submission_service, "LOOK_EVERY_S", 0.02)
    board = await Board.of(rig)
    root = await rig.user("root", role=Role.ADMIN)
    made = await scored(board)
    quota = projects_pb2.Quota(cpu_thousandths=500)
    settings = projects_pb2.ProjectSettings(owner="kim", quota=quota)
    await root.projects.CreateProject(
        projects_pb2.CreateProjectRequest(name="kim", settings=settings)
    )
    kims, lees = BoardWatcher(board.kim), BoardWatcher(board.lee)
    await board.kim.boards.ReevaluateBoard(pb.ReevaluateBoardRequest(board="digits"))
    await kims.waits("project")
    again = (await board.get(made.id, board.kim)).steps[-1]
    assert (again.kind, again.waiting) == ("reevaluate", kims.newest.reevaluation_step.waiting)
    watch = board.kim.submissions.WatchSubmission(pb.WatchSubmissionRequest(id=made.id))
    [watched] = [one.submission async for one in watch]
    assert watched.steps[-1] == again
    # The quota is no business of the participant.
    own = await board.get(made.id)
    assert (own.score, own.steps[-1].kind) == (0.5, "reevaluate")
    assert own.steps[-1].waiting == "its session is made when it is its turn"
    assert not lees.newest.HasField("reevaluation_step")

    # It fits now, and waits in the queue: the node takes nothing.
    drain = nodes_pb2.DrainNodeRequest(name=board.node.node, reason="new disks")
    await root.nodes.DrainNode(drain)
    wider = projects_pb2.ProjectSettings(quota=projects_pb2.Quota(cpu_thousandths=4000))
    await root.projects.UpdateProject(projects_pb2.UpdateProjectRequest(name="kim", settings=wider))
    await kims.waits("drain")
    again = (await board.get(made.id, board.kim)).steps[-1]
    assert "drain" in again.waiting
    # Only the queue changes now, and no submission.
    await (await rig.agent("b", networks=[OWN])).connect()

    async def says_more() -> bool:
        seen = kims.newest.reevaluation_step.waiting
        return again.waiting != seen == (await board.get(made.id, board.kim)).steps[-1].waiting

    await until(says_more, "the board says what the queue says of both nodes")
    assert (await board.get(made.id)).steps[-1].waiting == "it is queued"
    await root.nodes.ResumeNode(nodes_pb2.ResumeNodeRequest(name=board.node.node))
    await board.evaluate("0.75")

    async def is_over() -> bool:
        found = await board.get(made.id)
        return found.score == 0.75 and found.steps[-1].kind == "evaluate"

    await until(is_over, "the new score is shown")
    await until(kims.has_nothing, "the board has no re-evaluation any more")
    assert not (await board.get(made.id)).steps[-1].waiting


@pytest.mark.usefixtures("swept_often")
async def test_a_re_evaluation_whose_dataset_version_is_gone_says_so(rig: Rig) -> None:
    board = await Board.of(rig)
    root = await rig.user("root", role=Role.ADMIN)
    made = await scored(board)
    settings = projects_pb2.ProjectSettings(
        owner="kim", quota=projects_pb2.Quota(cpu_thousandths=500)
    )
    await root.projects.CreateProject(
        projects_pb2.CreateProjectRequest(name="kim", settings=settings)
    )
    await pushed(board.kim, files={**FILES, "evaluation.py": b"print(1)"})
    await board.kim.boards.ReevaluateBoard(pb.ReevaluateBoardRequest(board="digits"))

    async def waits() -> bool:
        return "project" in (await board.get(made.id, board.kim)).steps[-1].waiting

    await until(waits, "it waits")
    await rig.plane.core.history.catalogue.remove_dataset("kim", "digits", 2, at=1e9)

    async def is_gone() -> pb.Submission | None:
        found = await board.get(made.id, board.kim)
        return found if found.evaluation == 2 else None

    found = await until(is_gone, "the new version of scores is shown")
    assert (found.state, found.cause) == (FAILED, pb.SUBMISSION_CAUSE_REMOVED)
    assert found.message == "version 2 of kim/digits was removed"


async def test_an_evaluation_waits_for_a_week_of_its_own(rig: Rig) -> None:
    """Its prediction was in the queue for longer than that."""
    board = await Board.of(rig)
    core = rig.plane.core
    core.shared(submissions_of)._clock = Ahead(core.clock, -START_WITHIN_S - 60)
    root = await rig.user("root", role=Role.ADMIN)
    settings = projects_pb2.ProjectSettings(
        owner="kim", quota=projects_pb2.Quota(cpu_thousandths=500)
    )
    await root.projects.CreateProject(
        projects_pb2.CreateProjectRequest(name="kim", settings=settings)
    )
    made = await board.submit()
    await board.predict()

    async def waits() -> bool:
        found = await board.get(made.id, board.kim)
        assert found.state != FAILED, found.message
        return found.steps[-1].kind == "evaluate" and "project" in found.steps[-1].waiting

    await until(waits, "its evaluation waits")
    loop = submission_loop(core)
    loop._advance._clock = Ahead(core.clock, START_WITHIN_S + 60)
    await loop.advance(made.id)
    over = await board.over(made.id)
    assert over.cause == pb.SUBMISSION_CAUSE_PLATFORM
    assert over.message.startswith("it could not start within 7 days: ")


@pytest.mark.usefixtures("swept_often")
async def test_it_waits_for_a_node_that_keeps_its_steps_apart(rig: Rig) -> None:
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await pushed(kim)
    open_node = await (await rig.agent("a", networks=[OWN])).connect()
    session = await trained(lee, open_node)
    board = Board(rig, kim, lee, open_node, session, await save(open_node, session.id))
    made = await board.submit()

    async def why() -> str:
        return (await board.get(made.id)).steps[0].waiting

    async def says_no_network() -> bool:
        return "network" in await why()

    await until(says_no_network, "it says what no node has")
    board.node = await (await rig.agent("b", networks=[OWN, NONE])).connect()
    await board.predict()
    await board.evaluate()
    assert (await board.over(made.id)).state == SCORED


async def test_open_test_inputs_may_be_a_part_of_their_own(rig: Rig) -> None:
    board = await Board.of(rig)
    part = datasets_pb2.DatasetPart(path="test/test_data", access=datasets_pb2.PART_ACCESS_OPEN)
    request = datasets_pb2.UpdateDatasetRequest(name="kim/digits", parts=[part])
    await board.kim.datasets.UpdateDataset(request)
    await board.submit()
    step = await board.step(sessions_pb2.SESSION_STAGE_PREDICT)
    files = set(await files_of(board.node.stubs, step.spec.datasets[0].digest))
    assert files == {*OPENED, "test/test_data"}
