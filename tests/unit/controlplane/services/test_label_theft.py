"""A participant asks every rpc about everything of a submission: labels, inputs and private scores are in no answer."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator

import grpc.aio
import numpy as np
import pytest

from nsml.v1 import boards_pb2, sessions_pb2
from nsml.view.scores import score_text
from tests.support.every_answer import Things, every_answer, reading
from tests.unit.controlplane.rig import Rig, Stubs, platform
from tests.unit.controlplane.services import submissions
from tests.unit.controlplane.services.submissions import Board
from tests.unit.controlplane.services.test_boards import dataset, submitted, update
from tests.unit.controlplane.services.test_content import tree
from tests.unit.controlplane.services.test_sessions import Ingest, log_chunk

INPUT, LABEL, PRINTED = b"hidden-input-51c2", b"hidden-label-8e07", b"label-of-row-7-d9a3"
PRIVATE = 0.7310585786300049
MARKS = {
    "inputs": INPUT,
    "labels": LABEL,
    "what the evaluation printed": PRINTED,
    "private score": struct.pack("<d", PRIVATE),
    "private score in words": str(PRIVATE).encode(),
    "private score, rounded": score_text(PRIVATE).encode(),
}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with platform() as rig:
        yield rig


async def things_of(board: Board) -> tuple[Things, str]:
    """Submit once; what a participant could know or guess of it, and the id."""
    made = await board.submit()
    predict = await board.step(sessions_pb2.SESSION_STAGE_PREDICT)
    await board.predict(files={"prediction": INPUT})
    evaluate = await board.step(sessions_pb2.SESSION_STAGE_EVALUATE)
    await Ingest(board.node.stubs).send(log_chunk(evaluate.replica.session_id, 0, PRINTED + b"\n"))
    await board.evaluate("0.5", result={"private": str(PRIVATE)})
    over = await board.over(made.id, board.kim)
    assert over.private_score == PRIVATE
    sessions = [board.session.name, *(one.session for one in over.steps)]
    sessions += [predict.replica.session_id, evaluate.replica.session_id]
    whole, predicted = evaluate.spec.datasets
    [test] = predict.spec.datasets
    roots = [whole.digest, predicted.digest, test.digest, evaluate.spec.bundle_digest]
    return {
        "session": sessions,
        "session_id": sessions[-2:],
        "sessions": sessions,
        "log": sessions,
        "id": [made.id],
        "board": ["kim/digits"],
        "root": roots,
        "digests": [*tree(file=INPUT)[1], *tree(file=LABEL)[1]],
        "name": ["kim/digits", "kim", "best"],
        "user": ["kim"],
        "pattern": ["."],
    }, made.id


async def test_no_answer_to_a_participant_has_anything_hidden(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {**submissions.FILES, "test/test_data": INPUT, "test/test_label": LABEL}
    monkeypatch.setattr(
        submissions.pushed, "__kwdefaults__", {"parts": submissions.PARTS, "files": files}
    )
    board = await Board.of(rig)
    things, _ = await things_of(board)
    channel = await rig.channel()
    sam = await rig.user("sam")
    for who in (board.lee, sam):
        answers = await every_answer(channel, who.metadata, things)
        assert len(answers) > len(reading()) * 0.9
        for method, found in answers.items():
            for what, mark in MARKS.items():
                assert not any(mark in one for one in found), (method, what)

    # Nor a digest of the tree with the hidden inputs, by which guesses of them could be tried.
    [own] = [one for one in things["session_id"] if (await seen_by(board.lee, one)) is not None]
    predict = await seen_by(board.lee, own)
    assert predict is not None
    assert [(one.name, one.digest) for one in predict.spec.datasets] == [("kim/digits", "")]

    # What is looked for is there: its owner is told.
    theirs = await every_answer(channel, board.kim.metadata, things)
    seen = {
        what: {method for method, found in theirs.items() if any(mark in one for one in found)}
        for what, mark in MARKS.items()
    }
    assert "ContentService/GetBlobs" in seen["labels"] & seen["inputs"]
    assert "SessionService/ReadLogs" in seen["what the evaluation printed"]
    assert "SubmissionService/GetSubmission" in seen["private score"]


async def seen_by(who: Stubs, session: str) -> sessions_pb2.Session | None:
    """A session as a user sees it; None: it does not exist for this user."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        return await who.get(session)
    return None


ROWS, SUBMISSIONS = 4_000, 600


@pytest.mark.parametrize(
    ("public_score", "least", "most"),
    [
        (boards_pb2.PUBLIC_SCORE_EXACT, 0.57, 0.62),
        (boards_pb2.PUBLIC_SCORE_LADDER, 0.0, 0.51),
    ],
)
async def test_labels_are_not_voted_from_a_ladder(
    rig: Rig, public_score: boards_pb2.PublicScore, least: float, most: float
) -> None:
    """Each random guess of the labels is weighted by whether the board says that it beats chance."""
    kim, lee = await rig.user("kim"), await rig.user("lee")
    await dataset(kim)
    await update(kim, "digits", public_score=public_score)
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, ROWS)
    guesses = rng.integers(0, 2, (SUBMISSIONS, ROWS))
    ids = [
        await submitted(rig, number, "lee", float(score), standard_error=(0.25 / ROWS) ** 0.5)
        for number, score in enumerate((guesses == labels).mean(axis=1))
    ]
    request = boards_pb2.ListEntriesRequest(
        board="kim/digits", own_only=True, best_per=boards_pb2.BEST_PER_NONE
    )
    listed = await lee.boards.ListEntries(request)
    told = {one.submission_id: one.score for one in listed.entries}
    assert told.keys() == set(ids)
    signs = np.sign(np.array([told[one] for one in ids]) - 0.5)
    votes = (signs[:, None] * (2 * guesses - 1)).sum(axis=0)
    assert least <= ((votes > 0) == labels).mean() <= most
