"""One suite for boards and submissions in every history: SQLite in memory and in a file; PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    OVER,
    UNFINISHED,
    BestPer,
    BoardKind,
    BoardSettings,
    Entry,
    MetricValue,
    PublicScore,
    ScoreDirection,
    SubmissionCause,
    SubmissionLimit,
    SubmissionState,
)
from controlplane.domain.errors import LimitReached
from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.domain.values import PartAccess, Visibility
from controlplane.history.board_values import (
    SUBMITTED,
    BoardMaking,
    BoardRow,
    EvaluationState,
    PastSubmissions,
    ScoreRow,
    SubmissionEntry,
    SubmissionRow,
    board_key,
    decode_settings,
    encode_settings,
    entry_of,
)
from controlplane.history.postgresql import open_postgresql
from controlplane.history.sql import object_references as referring
from controlplane.history.sql.board_lists import BoardKey
from controlplane.history.sql.submissions import BoardMark, BoardReading, KeptUntil
from controlplane.history.sqlite import open_history
from controlplane.history.values import (
    Artifact,
    ArtifactState,
    Dataset,
    DatasetParts,
    DatasetRoot,
    KeptKind,
    Reference,
    RootKind,
    SessionRecord,
)
from nsml.common.clock import SystemClock, in_thread, inline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from controlplane.history.sql.history import History

SETTINGS = BoardSettings(
    metric="val/acc",
    direction=ScoreDirection.MIN,
    filter="owner=kim",
    best_per=BestPer.TEAM,
    value=MetricValue.LAST,
    public_score=PublicScore.LADDER,
    ladder_step=0.01,
    limit=SubmissionLimit(count=5, window_s=3600.0),
    failed_limit=SubmissionLimit(count=9),
    predict_s=60.0,
    evaluate_s=30.0,
    prediction_bytes=1 << 40,
    visibility=Visibility.PUBLIC,
    description="점수",
    is_open=False,
    check_every=7,
)
DIGEST, OTHER = "5a" * 32, "5b" * 32


@pytest.fixture(params=["memory", "file in threads", "postgresql"])
async def history(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[History]:
    opened: History
    if request.param == "postgresql":
        url = request.getfixturevalue("emptied_database")
        opened = await open_postgresql(url, clock=SystemClock())
    else:
        in_memory = request.param == "memory"
        opened = await open_history(
            ":memory:" if in_memory else tmp_path / "h/history.sqlite",
            clock=SystemClock(),
            run=inline if in_memory else in_thread,
        )
    yield opened
    await opened.close()


def board(name: str = "best", **given: Any) -> BoardRow:
    values: dict[str, Any] = {
        "owner": "kim",
        "name": name,
        "kind": BoardKind.METRIC,
        "settings": SETTINGS,
        "created_at": 1.5,
        "team": "vision",
    }
    return BoardRow(**{**values, **given})


def submission(number: int, **given: Any) -> SubmissionRow:
    values: dict[str, Any] = {
        "id": f"u{number}",
        "owner": "kim",
        "dataset_owner": "lee",
        "dataset": "mnist",
        "dataset_version": 3,
        "session_id": f"s{number}",
        "session": f"kim/mnist/{number}",
        "checkpoint": "10 %",
        "submitted_at": float(number),
    }
    return SubmissionRow(**{**values, **given})


async def add(history: History, number: int, **given: Any) -> SubmissionRow:
    return (
        await history.submissions.add(submission(number, **given), since=0.0, check=lambda _: None)
    ).row


async def scored(history: History, number: int, score: float, **given: Any) -> None:
    await add(history, number, **given)
    changed = await history.submissions.change(
        f"u{number}",
        {SubmissionState.QUEUED},
        score=ScoreRow(submission_id=f"u{number}", score=score, ended_at=50.0),
        state=SubmissionState.SCORED,
        ended_at=50.0,
        prediction_digest=f"{number:064x}",
    )
    assert changed is not None


def value(score: ScoreRow | None) -> float | None:
    return None if score is None else score.score


def test_settings_survive_their_encoding() -> None:
    for settings in (SETTINGS, *DEFAULT_SETTINGS.values()):
        for kind in BoardKind:
            assert decode_settings(encode_settings(settings), kind) == settings


def test_settings_of_a_newer_version_are_read() -> None:
    newer = {**json.loads(encode_settings(SETTINGS)), "colour": "red", "best_per": 99, "limit": {}}
    assert decode_settings(json.dumps(newer), BoardKind.METRIC) == replace(
        SETTINGS, best_per=BestPer.USER, limit=SubmissionLimit()
    )
    assert decode_settings("{}", BoardKind.DATASET) == BoardSettings()


def test_a_submission_is_ranked_by_its_score_in_the_version() -> None:
    row = submission(1, ended_at=9.0, team="vision", prediction_digest=DIGEST)
    score = ScoreRow(submission_id="u1", score=0.5, private=0.4, row_count=100, ended_at=99.0)
    entry = entry_of(SubmissionEntry(row, score))
    assert entry == Entry(
        id="u1",
        owner="kim",
        team="vision",
        score=0.5,
        submitted_at=1.0,
        scored_at=9.0,
        standard_error=0.05,
        digest=DIGEST,
    )
    private = entry_of(SubmissionEntry(row, score), is_private=True)
    assert private == replace(entry, score=0.4, standard_error=None)
    failed = replace(score, state=SubmissionState.FAILED)
    for without in (None, failed):
        found = entry_of(SubmissionEntry(row, without))
        assert found == replace(entry, score=None, standard_error=None)


async def put(history: History, row: BoardRow) -> None:
    """Make a board, or give it these settings."""
    key = row.owner, row.name, row.kind
    settings = row.settings
    await history.boards.update(key, lambda known: replace(known, settings=settings), default=row)


async def test_boards_are_made_once_found_changed_and_removed(history: History) -> None:
    boards = history.boards
    assert await boards.get("kim", "best", BoardKind.METRIC) is None
    assert await boards.create(board(), most=2) == BoardMaking(is_made=True)
    assert await boards.create(board(created_at=9.0), most=2) == BoardMaking()
    made = await asyncio.gather(*[boards.create(board(f"b{n}"), most=2) for n in range(3)])
    assert sorted(made) == [BoardMaking(is_full=True)] * 2 + [BoardMaking(is_made=True)]
    assert await boards.create(board(owner="lee"), most=2) == BoardMaking(is_made=True)
    assert await boards.get("kim", "best", BoardKind.METRIC) == board()
    assert (await boards.count_of("kim"), await boards.count_of("lee")) == (2, 1)

    changed = board(settings=BoardSettings(metric="loss"), created_at=99.0, team="x")
    await put(history, changed)
    stands = replace(changed, created_at=1.5, team="vision")
    assert await boards.get("kim", "best", BoardKind.METRIC) == stands
    of_dataset = board(kind=BoardKind.DATASET)
    await put(history, of_dataset)
    assert await boards.named("best") == (stands, of_dataset, board(owner="lee"))

    assert [await boards.remove("kim", "best") for _ in range(2)] == [True, False]
    assert await boards.named("best") == (of_dataset, board(owner="lee"))


KIM, LEE, PARK = (
    User(name=name, team=team)
    for name, team in (("kim", "vision"), ("lee", "vision"), ("park", ""))
)
ROOT = User(name="root", role=Role.ADMIN)


async def pushed(
    history: History,
    name: str,
    *,
    owner: str = "kim",
    visibility: Visibility = Visibility.PUBLIC,
    hidden: bool = False,
) -> None:
    """A dataset, with labels that are hidden or without parts."""
    root = DatasetRoot(
        kind=RootKind.PART, path="test/label", digest=OTHER, size_bytes=1, file_count=1
    )
    parts = DatasetParts(access={"test/label": PartAccess.HIDDEN}, roots=(root,))
    await history.catalogue.put_dataset_version(
        Dataset(owner=owner, name=name, created_at=2.5, team="vision", visibility=visibility),
        digest=DIGEST,
        size_bytes=1,
        file_count=1,
        parts=parts if hidden else None,
    )


async def listed(history: History, viewer: User, limit: int) -> list[list[str]]:
    """The pages of a viewer's boards; marked are datasets that have one if they have an evaluation."""
    pages: list[list[str]] = []
    after = BoardKey()
    while True:
        found = await history.board_lists.page(viewer, after=after, limit=limit)
        pages.append(
            [f"{one.row.owner}/{one.row.name}{'?' if one.dataset else ''}" for one in found]
        )
        if len(found) < limit:
            return pages
        after = found[-1].key


async def test_boards_are_listed_by_key_and_only_datasets_that_may_have_one(
    history: History,
) -> None:
    private, team, public = (replace(SETTINGS, visibility=one) for one in Visibility)
    for owner, name, settings in (
        *(("kim", "acc", public), ("kim", "digits", private), ("kim", "z", team)),
        *(("lee", "acc", private), ("sam", "acc", public)),
    ):
        await put(history, board(name, owner=owner, settings=settings))
    for name, owner in (("digits", "kim"), ("bare", "kim"), ("gone", "kim"), ("mnist", "lee")):
        await pushed(history, name, owner=owner)
    await pushed(history, "labels", hidden=True)
    await pushed(history, "own", hidden=True, visibility=Visibility.PRIVATE)
    await pushed(history, "tried", owner="lee")
    for name in ("digits", "gone"):  # a setting was changed
        await put(history, board(name, kind=BoardKind.DATASET))
    await history.catalogue.remove_dataset("kim", "gone", at=3.0)
    await add(history, 1)
    await add(history, 2, dataset="tried", is_test=True)
    every = [
        *("kim/acc", "kim/digits", "kim/digits", "kim/labels?", "kim/own?", "kim/z"),
        *("lee/acc", "lee/mnist", "sam/acc"),
    ]
    hidden_from_lee = {"kim/own?"}
    hidden_from_park = {"kim/own?", "kim/z", "lee/acc"}
    for viewer, seen in (
        (ROOT, every),
        (KIM, [one for one in every if one != "lee/acc"]),
        (LEE, [one for one in (*every[:1], *every[2:]) if one not in hidden_from_lee]),
        (PARK, [one for one in (*every[:1], *every[2:]) if one not in hidden_from_park]),
    ):
        for limit in range(1, len(seen) + 2):
            pages = await listed(history, viewer, limit)
            assert [one for page in pages for one in page] == seen, (viewer, limit)
            assert {len(page) for page in pages[:-1]} <= {limit}

    found = {
        one.key: one for one in await history.board_lists.page(ROOT, after=BoardKey(), limit=99)
    }
    assert [key for key in found if key[:2] == ("kim", "digits")] == [
        ("kim", "digits", BoardKind.METRIC),
        ("kim", "digits", BoardKind.DATASET),
    ]
    of_sessions = found[BoardKey("lee", "acc", BoardKind.METRIC)]
    assert of_sessions.row == await history.boards.get("lee", "acc", BoardKind.METRIC)
    assert (of_sessions.visibility, of_sessions.dataset) == (Visibility.PRIVATE, None)
    own = found[BoardKey("kim", "own", BoardKind.DATASET)]
    assert own.dataset == await history.catalogue.dataset("kim", "own")
    assert (own.row.settings, own.row.created_at, own.row.team, own.visibility) == (
        *(DEFAULT_SETTINGS[BoardKind.DATASET], 2.5, "vision"),
        Visibility.PRIVATE,
    )
    changed = found[BoardKey("kim", "digits", BoardKind.DATASET)]
    assert (changed.row.settings, changed.row.created_at, changed.visibility) == (
        *(SETTINGS, 2.5),
        Visibility.PUBLIC,
    )


async def test_a_page_of_boards_reads_no_more_of_a_larger_platform() -> None:
    """SQLite counts its steps; PostgreSQL has the same keys."""
    history = await open_history(":memory:", clock=SystemClock(), run=inline)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    async def read() -> int:
        nonlocal steps
        steps = 0
        for after in (BoardKey(), BoardKey("m", "b", BoardKind.METRIC)):
            found = await history.board_lists.page(PARK, after=after, limit=10)
            assert len(found) == 10
        return steps

    async def fill(name: str) -> None:
        for owner in ("a", "z"):
            await put(history, board(name, owner=owner))
            await pushed(history, name, owner=owner)
            await put(history, board(name, owner=owner, kind=BoardKind.DATASET))

    for number in range(10):
        await fill(f"b{number}")
    history._database._writer.set_progress_handler(count, 1)
    before = await read()
    history._database._writer.set_progress_handler(None, 1)
    for number in range(10, 200):
        await fill(f"b{number}")
    history._database._writer.set_progress_handler(count, 1)
    assert before > 100
    assert await read() < 1.5 * before
    await history.close()


async def test_settings_change_in_one_step(history: History) -> None:
    key = "kim", "acc", BoardKind.METRIC
    row = BoardRow(
        owner="kim", name="acc", kind=BoardKind.METRIC, settings=SETTINGS, created_at=1.0
    )

    def longer(known: BoardRow) -> BoardRow:
        description = known.settings.description + "x"
        return replace(known, settings=replace(known.settings, description=description), team="v")

    assert await history.boards.update(key, longer) is None
    assert await history.boards.get(*key) is None
    await put(history, row)
    await asyncio.gather(*(history.boards.update(key, longer) for _ in range(5)))
    found = await history.boards.get(*key)
    assert found is not None
    assert (found.settings.description, found.team) == (SETTINGS.description + "xxxxx", "v")

    def refuse(_: BoardRow) -> BoardRow:
        raise LimitReached("no")

    with pytest.raises(LimitReached):
        await history.boards.update(key, refuse)
    assert await history.boards.get(*key) == found
    of_dataset = "kim", "digits", BoardKind.DATASET
    default = replace(row, name="digits", kind=BoardKind.DATASET)
    made = await history.boards.update(of_dataset, longer, default=default)
    assert made == await history.boards.get(*of_dataset)


async def test_a_submission_is_kept_whole_and_once_per_request(history: History) -> None:
    whole = submission(
        1,
        owner_id="a1",
        team="vision",
        args="--lr 0.1",
        memo="메모",
        checkpoint_digest=OTHER,
        is_test=True,
        batch=32,
        state=SubmissionState.EVALUATING,
        cause=SubmissionCause.STOPPED,
        message="why",
        ended_at=2.0,
        predict_session_id="s2",
        predict_session="kim/mnist/2",
        predict_tries=1,
        predict_started_at=3.0,
        predict_ended_at=4.0,
        evaluate_session_id="s3",
        evaluate_session="lee/mnist/3",
        evaluate_tries=2,
        evaluate_started_at=5.0,
        evaluate_ended_at=6.0,
        prediction_digest=DIGEST,
        request_id="r1",
        gpu_seconds=1e6,
    )
    calls = [
        history.submissions.add(whole, since=0.0, check=lambda _: None),
        history.submissions.add(
            submission(2, request_id="r1", dataset="other"), since=0.0, check=lambda _: None
        ),
    ]
    first, second = await asyncio.gather(*calls)
    assert [first.is_new, second.is_new].count(True) == 1
    assert first.row == second.row
    assert await history.submissions.get(first.row.id) == first.row
    if first.row.id == "u1":
        assert first.row == replace(whole, number=1)
    other = await add(history, 3, request_id="r1", owner="park")
    assert other.owner == "park", "request ids are each owner's"
    assert {(await add(history, n)).request_id for n in (4, 5)} == {""}
    assert await history.submissions.get("u9") is None
    assert [row.id for row in await history.submissions.of_session("s4")] == ["u4"]


async def test_submissions_are_numbered_by_dataset(history: History) -> None:
    made = await asyncio.gather(
        *[add(history, n, dataset="ab"[n % 2], owner=f"p{n}") for n in range(8)]
    )
    for dataset in "ab":
        numbers = sorted(row.number for row in made if row.dataset == dataset)
        assert numbers == [1, 2, 3, 4]


async def test_who_was_accepted_later_is_the_later_one_if_clocks_differ_by_seconds(
    history: History,
) -> None:
    times = {1: 100.0, 2: 100.0, 3: 98.5, 4: 99.9, 5: 101.0, 6: 20.0, 7: 101.0}
    kept = {n: (await add(history, n, submitted_at=at)).submitted_at for n, at in times.items()}
    assert kept[1] < kept[2] < kept[3] < kept[4] < kept[5] < kept[7]
    assert kept[4] == pytest.approx(100.0)
    assert kept[6] == 20.0, "a clock that is wrong altogether holds up no other"
    assert (await add(history, 8, submitted_at=50.0, dataset="other")).submitted_at == 50.0


async def test_a_check_sees_what_counts_for_the_participant(history: History) -> None:
    kim = {"owner": "kim", "team": "vision"}
    await add(history, 1, **kim)
    await add(history, 2, owner="kim", team="before")  # what he submitted in another team stays his
    await add(history, 3, owner="lee", team="vision")
    await add(history, 4, owner="park", team="")
    await add(history, 5, owner="kim", team="vision", dataset="other")
    await add(history, 6, owner="kim", team="vision", is_test=True)
    failed = {
        7: SubmissionCause.LOAD_FAILED,
        8: SubmissionCause.PLATFORM,
        9: SubmissionCause.REMOVED,
        10: SubmissionCause.NOT_FINITE,
    }
    for number, cause in failed.items():
        await add(history, number, **kim, state=SubmissionState.FAILED, cause=cause)
    seen: list[PastSubmissions] = []
    await history.submissions.add(submission(11, **kim), since=0.0, check=seen.append)
    await history.submissions.add(submission(12, **kim), since=2.0, check=seen.append)
    await history.submissions.add(submission(13, owner="choi"), since=0.0, check=seen.append)
    assert seen == [
        PastSubmissions((1.0, 2.0, 3.0), (7.0, 10.0)),
        PastSubmissions((3.0, 11.0), (7.0, 10.0)),
        PastSubmissions(),
    ]
    of = {"dataset_owner": "lee", "dataset": "mnist", "owner": "choi", "team": ""}
    assert await history.submissions.past(**of, since=0.0) == PastSubmissions((13.0,))


async def test_of_racing_submissions_no_more_than_the_limit_is_taken(history: History) -> None:
    def check(past: PastSubmissions) -> None:
        if len(past.counted) >= 3:
            raise LimitReached("no more")

    calls = [
        history.submissions.add(submission(n, owner=f"p{n}", team="vision"), since=0.0, check=check)
        for n in range(1, 9)
    ]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, LimitReached) for one in done) == 5
    assert len((await history.submissions.of_dataset("lee", "mnist")).entries) == 3


async def test_new_submissions_and_re_evaluations_are_reported(history: History) -> None:
    with history.streams.changed(SUBMITTED) as submitted, history.streams.touched() as touched:
        await add(history, 1, state=SubmissionState.SCORED, prediction_digest=DIGEST)
        await asyncio.wait_for(submitted.wait(), 60)
        await history.submissions.change("u1", {SubmissionState.SCORED}, message="late")
        await history.submissions.begin_evaluation("lee", "mnist", at=9.0)
        await asyncio.wait_for(submitted.wait(), 60)
        await history.submissions.change("u1", {SubmissionState.SCORED}, message="later")
        touched.take()
        await history.submissions.change("u1", {SubmissionState.SCORED}, message="latest")
        assert SUBMITTED not in (touched.take() or {SUBMITTED})


async def test_submissions_to_different_boards_do_not_wait_for_each_other(
    emptied_database: Any,
) -> None:
    one, other = [await open_postgresql(emptied_database, clock=SystemClock()) for _ in range(2)]
    begun, go_on, checks = threading.Event(), threading.Event(), []

    def hold(past: PastSubmissions) -> None:
        checks.append(past)
        begun.set()
        go_on.wait(60)

    try:
        held = asyncio.create_task(one.submissions.add(submission(1), since=0.0, check=hold))
        await asyncio.to_thread(begun.wait, 60)
        await add(other, 2, owner="park", dataset="other")
        assert not held.done()
        go_on.set()
        assert (await held).is_new
        assert len(checks) == 1, (
            "a holder of a lock that others wait for is ended, and begins again"
        )
    finally:
        go_on.set()
        await one.close()
        await other.close()


async def test_a_submission_changes_only_from_expected_states(history: History) -> None:
    await add(history, 1)
    await add(history, 2, state=SubmissionState.FAILED)
    await add(history, 3)
    submissions = history.submissions
    assert [row.id for row in await submissions.unfinished()] == ["u1", "u3"]
    with history._database.changes.follow(board_key("lee", "mnist")) as change:
        changed = await submissions.change(
            "u1",
            {SubmissionState.QUEUED},
            state=SubmissionState.PREDICTING,
            predict_session_id="s7",
            predict_tries=1,
        )
        await asyncio.wait_for(change.wait(), 60)
    assert changed is not None
    assert changed == await submissions.get("u1")
    assert (changed.state, changed.predict_session_id) == (SubmissionState.PREDICTING, "s7")
    assert await submissions.change("u1", {SubmissionState.QUEUED}, message="late") is None
    assert await submissions.change("u9", UNFINISHED, message="none") is None
    lost = ScoreRow(submission_id="u2", score=1.0)
    assert await submissions.change("u2", UNFINISHED, score=lost) is None
    assert await submissions.scores_of("u2") == ()
    assert await submissions.change("u3", UNFINISHED) == await submissions.get("u3")
    for fixed in ({"owner": "x"}, {"nonsense": 1}):
        with pytest.raises(TypeError):
            await submissions.change("u1", UNFINISHED, **fixed)


async def test_submissions_are_listed_in_pages_with_their_scores(history: History) -> None:
    for number in range(1, 6):
        await scored(history, number, number / 10)
    await add(history, 6, submitted_at=5.0, is_test=True)
    await add(history, 7, owner="park")
    submissions = history.submissions
    found: list[tuple[str, float | None]] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        page = await submissions.of_owner("kim", after=after, limit=2)
        found += [(row.id, value(score)) for row, score in page.entries]
        after, pages = page.next, pages + 1
    assert found == [("u6", None), ("u5", 0.5), ("u4", 0.4), ("u3", 0.3), ("u2", 0.2), ("u1", 0.1)]
    assert pages == 3
    assert [row.id for row, _ in (await submissions.of_dataset("lee", "mnist")).entries][:2] == [
        "u7",
        "u6",
    ]
    entries = await submissions.entries("lee", "mnist")
    assert [row.id for row, _ in entries] == ["u1", "u2", "u3", "u4", "u5", "u7"]
    assert [one.state for one in entries[-2:]] == [SubmissionState.SCORED, SubmissionState.QUEUED]
    assert await submissions.entry("u3") == entries[2]
    assert await submissions.entry("u9") is None
    assert await submissions.known({"u3", "u9"}) == {"u3"}


async def test_ids_are_found_by_their_beginning_among_what_a_user_may_see(
    history: History,
) -> None:
    await add(history, 10)
    await add(history, 11, owner_id="kim-2")
    await add(history, 12, owner="park", dataset_owner="sam")
    await add(history, 2, owner="park", dataset_owner="kim")

    async def found(prefix: str, viewer: User, limit: int = 10) -> tuple[tuple[str, ...], int]:
        return await history.submissions.ids_with_prefix(prefix, viewer=viewer, limit=limit)

    kim, lee, root = User(name="kim", id="kim-1"), User(name="lee"), User(name="root")
    assert await found("u", kim) == (("u10", "u2"), 2)
    assert await found("u1", kim) == (("u10",), 1), "not that of an earlier user with the name"
    assert await found("u1", User(name="kim", id="kim-2")) == (("u11", "u10"), 2)
    assert await found("u1", lee) == (("u11", "u10"), 2), "to lee's dataset"
    assert await found("u12", lee) == await found("u1", root) == ((), 0)
    every = replace(root, role=Role.ADMIN)
    assert await found("u", every, limit=2) == (("u12", "u11"), 4)
    for nothing in ("%", "_1", "U1", "u100"):
        assert await found(nothing, every) == ((), 0)


async def changed_since(
    history: History, mark: BoardMark | None, evaluation: int = 0
) -> tuple[BoardReading, list[str]]:
    read = await history.submissions.read_board("lee", "mnist", evaluation, since=mark)
    return read, [one.row.id for one in read.entries]


async def test_a_board_is_read_again_from_where_it_was_read(history: History) -> None:
    await scored(history, 1, 0.5)
    await add(history, 2)
    await scored(history, 3, 0.6)
    await add(history, 4, dataset="other")
    read, ids = await changed_since(history, None)
    assert (read.is_whole, ids) == (True, ["u1", "u2", "u3"])
    again, ids = await changed_since(history, read.mark)
    assert (again.is_whole, ids, again.mark) == (False, [], read.mark)
    better = ScoreRow(submission_id="u3", score=0.7)
    await asyncio.gather(
        history.submissions.change("u2", UNFINISHED, message="waits"),
        history.submissions.change("u3", {SubmissionState.SCORED}, score=better),
        history.submissions.change("u4", UNFINISHED, message="elsewhere"),
        add(history, 5),
        add(history, 6, is_test=True),
    )
    again, ids = await changed_since(history, read.mark)
    assert (again.is_whole, ids) == (False, ["u2", "u3", "u5"])
    assert [one.row.message for one in again.entries] == ["waits", "", ""]
    assert value(again.entries[1].score) == 0.7
    assert (await changed_since(history, again.mark))[1] == []


async def test_a_board_is_read_whole_in_another_version_of_its_scores(history: History) -> None:
    of = ("lee", "mnist")
    states = {SubmissionState.EVALUATING}
    await scored(history, 1, 0.1)
    await scored(history, 2, 0.2)
    read, _ = await changed_since(history, None)
    await history.submissions.begin_evaluation(*of, at=1.0)
    newest, _ = await changed_since(history, None, 2)
    assert newest.state == EvaluationState(shown=1, newest=2, of=2)
    changes = {"state": SubmissionState.SCORED, "score": 0.9}
    await history.submissions.change_score("u1", 2, states, **changes)
    again, ids = await changed_since(history, newest.mark, 2)
    assert (again.is_whole, ids, value(again.entries[0].score)) == (False, ["u1"], 0.9)
    await history.submissions.change_score("u2", 2, states, **changes)
    await scored(history, 3, 0.3)
    shown, _ = await changed_since(history, read.mark)
    assert (shown.is_whole, shown.mark.evaluation) == (False, 1)
    assert not await history.submissions.show_evaluation(*of, at=2.0)
    again, ids = await changed_since(history, newest.mark, 2)
    assert "u3" in ids
    assert again.entries[-1].state is SubmissionState.EVALUATING
    await history.submissions.change_score("u3", 2, states, **changes)
    assert await history.submissions.show_evaluation(*of, at=3.0)
    again, ids = await changed_since(history, shown.mark)
    assert (again.is_whole, ids) == (True, ["u1", "u2", "u3"])
    assert {value(one.score) for one in again.entries} == {0.9}


async def test_a_board_is_read_whole_after_its_dataset_was_made_again(history: History) -> None:
    mark = None
    for number in (1, 2, 3):
        dataset = Dataset(owner="lee", name="mnist", created_at=1.0)
        await history.catalogue.put_dataset_version(
            dataset, digest=DIGEST, size_bytes=1, file_count=1
        )
        await add(history, number)
        read, ids = await changed_since(history, mark)
        mark = read.mark
        assert (read.is_whole, ids) == (True, [f"u{number}"])
        await history.catalogue.remove_dataset("lee", "mnist", at=10.0)
        assert await history.catalogue.purge_datasets(11.0) == 1


async def test_a_score_is_kept_whole_and_replaced(history: History) -> None:
    await add(history, 1)
    whole = ScoreRow(
        submission_id="u1",
        evaluation=1,
        state=SubmissionState.FAILED,
        cause=SubmissionCause.NOT_FINITE,
        message="nan",
        score=0.5,
        private=0.25,
        standard_error=0.125,
        checked=0.75,
        row_count=10_000,
        session_id="s9",
        session="lee/mnist/9",
        tries=2,
        started_at=7.0,
        ended_at=8.0,
    )
    assert await history.submissions.change("u1", UNFINISHED, score=whole)
    assert await history.submissions.scores_of("u1") == (whole,)
    again = ScoreRow(submission_id="u1", score=0.0)
    assert await history.submissions.change("u1", UNFINISHED, score=again)
    assert await history.submissions.scores_of("u1") == (replace(again, evaluation=1),)
    assert await history.submissions.change("u2", UNFINISHED, score=again) is None
    assert await history.submissions.change("u1", UNFINISHED, score=whole, if_shown=2) is None
    assert await history.submissions.scores_of("u1") == (replace(again, evaluation=1),)
    assert await history.submissions.change("u1", UNFINISHED, score=whole, if_shown=1)


async def test_re_runs_are_evaluated_again_with_what_they_repeat(history: History) -> None:
    submissions = history.submissions
    of = ("lee", "mnist")
    await scored(history, 1, 0.1)
    await add(history, 2, rerun_of="u1", prediction_digest=DIGEST)
    score = ScoreRow(submission_id="u2", score=0.1)
    await submissions.change("u2", UNFINISHED, state=SubmissionState.SCORED, score=score)
    begun = await submissions.begin_evaluation(*of, dataset_version=4, at=60.0)
    assert begun is not None
    assert begun.of == 2
    for name in ("u1", "u2"):
        await submissions.change_score(name, 2, UNFINISHED, state=SubmissionState.SCORED, score=0.9)
    assert await submissions.show_evaluation(*of, at=70.0)
    [again] = await submissions.reruns(*of)
    [board] = await submissions.entries(*of)
    assert (value(again.score), value(board.score)) == (0.9, 0.9)


async def test_of_a_re_evaluation_the_board_has_the_evaluation_that_says_why_it_is_not_over(
    history: History,
) -> None:
    of, states = ("lee", "mnist"), {SubmissionState.EVALUATING}
    submissions = history.submissions
    for number in range(1, 5):
        await scored(history, number, 0.5)
    assert (await submissions.read_board(*of)).pending is None
    await submissions.begin_evaluation(*of, at=1.0)

    async def pending() -> str:
        found = (await submissions.read_board(*of)).pending
        assert found is None or found.evaluation == 2
        return found.submission_id if found is not None else ""

    assert await pending() == "u1"
    await submissions.change_score("u2", 2, states, session_id="s1")
    assert await pending() == "u2", "one with a session"
    await submissions.change_score("u3", 2, states, message="no node fits")
    assert await pending() == "u3", "one that cannot start"
    failing = await submissions.change_score("u4", 2, states, failing_since=7.5)
    assert await pending() == "u4", "one that fails"
    assert (await submissions.read_board(*of)).pending == failing
    for name in ("u1", "u2", "u3", "u4"):
        await submissions.change_score(name, 2, states, state=SubmissionState.SCORED, score=0.9)
    assert await pending() == ""


async def test_a_re_evaluation_is_shown_once_it_has_every_prediction(history: History) -> None:
    submissions = history.submissions
    of = ("lee", "mnist")
    assert await submissions.evaluation(*of) == EvaluationState()
    assert await submissions.begin_evaluation(*of, at=1.0) is None, "nothing to evaluate"
    await scored(history, 1, 0.1)
    await scored(history, 2, 0.2)
    await add(history, 3, state=SubmissionState.FAILED, prediction_digest=DIGEST)
    await add(history, 4, state=SubmissionState.FAILED)
    await add(history, 5, state=SubmissionState.SCORED, prediction_digest=DIGEST, is_test=True)
    assert not await submissions.show_evaluation(*of, at=1.0)

    begun = await submissions.begin_evaluation(*of, dataset_version=4, at=60.0)
    assert begun == EvaluationState(shown=1, newest=2, done=0, of=3, dataset_version=4)
    assert begun.is_running
    assert await submissions.begin_evaluation(*of, at=61.0) is None, "one at a time"
    assert await submissions.running_evaluations() == (of,)
    assert await submissions.unfinished_scores("lee", "other", limit=9) == ()
    pending = await submissions.unfinished_scores(*of, limit=9)
    assert [row.id for row, _ in pending] == ["u1", "u2", "u3"]
    assert {score and score.evaluation for _, score in pending} == {2}

    states = {SubmissionState.EVALUATING}
    started = await submissions.change_score("u1", 2, states, session_id="s50", tries=1)
    assert started is not None
    assert (started.session_id, started.state) == ("s50", SubmissionState.EVALUATING)
    await submissions.change_score("u3", 2, states, session_id="s51")
    pending = await submissions.unfinished_scores(*of, limit=2)
    assert [row.id for row, _ in pending] == ["u1", "u3"], "what has a session, first"
    for name in ("u1", "u3"):
        assert await submissions.change_score(
            name, 2, states, state=SubmissionState.SCORED, score=0.9, ended_at=70.0
        )
    assert await submissions.change_score("u1", 2, states, score=0.0) is None
    assert await submissions.change_score("u1", 3, states, score=0.0) is None
    with pytest.raises(TypeError):
        await submissions.change_score("u1", 2, OVER, nonsense=1)
    await scored(history, 6, 0.6)  # meanwhile
    assert not await submissions.show_evaluation(*of, at=80.0)
    failed = {"state": SubmissionState.FAILED, "cause": SubmissionCause.EVALUATION_FAILED}
    assert await submissions.change_score("u2", 2, states, **failed)
    assert not await submissions.show_evaluation(*of, at=80.0)
    assert [row.id for row, _ in await submissions.unfinished_scores(*of, limit=9)] == ["u6"]
    assert (await submissions.evaluation(*of))[2:] == (3, 4, 4, 0)
    shown = [value(score) for _, score in await submissions.entries(*of)]
    assert shown == [0.1, 0.2, None, None, 0.6], "the version before, until all are done"

    assert await submissions.change_score(
        "u6", 2, states, state=SubmissionState.SCORED, score=0.7, ended_at=85.0
    )
    assert await submissions.show_evaluation(*of, at=90.0)
    assert not await submissions.show_evaluation(*of, at=91.0)
    assert await submissions.evaluation(*of) == EvaluationState(
        2, 2, dataset_version=4, shown_dataset_version=4
    )
    entries = await submissions.entries(*of)
    assert [value(one.score) for one in entries] == [0.9, None, 0.9, None, 0.7]
    assert [one.state.name for one in entries] == ["SCORED", "FAILED", "SCORED", "FAILED", "SCORED"]
    assert entries[1].cause is SubmissionCause.EVALUATION_FAILED
    before = [value(score) for _, score in await submissions.entries(*of, evaluation=1)]
    assert before == [0.1, 0.2, None, None, 0.6], "earlier versions stay readable"
    await scored(history, 7, 0.5)
    [*_, newest] = await submissions.scores_of("u7")
    assert newest.evaluation == 2
    assert await submissions.running_evaluations() == ()


async def references(history: History) -> list[Reference]:
    found: list[Reference] = []
    after: tuple[int | str, ...] | None = ()
    while after is not None:
        page = await history.catalogue.referred(after)
        found += page.roots
        after = page.next
    return found


@pytest.mark.parametrize("rows", [1, 1000])
async def test_predictions_are_kept_without_their_sessions_until_the_dataset_is_purged(
    history: History, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(referring, "_PAGE_ROWS", rows)
    dataset = Dataset(owner="lee", name="mnist", created_at=1.0)
    for digest in ("1a" * 32, "1b" * 32):
        await history.catalogue.put_dataset_version(
            dataset, digest=digest, size_bytes=1, file_count=1
        )
    await put(history, board("mnist", owner="lee", kind=BoardKind.DATASET))
    await put(history, board("mnist", owner="lee"))
    await scored(history, 1, 0.1)
    await scored(history, 2, 0.2)
    await add(history, 3)
    await add(history, 4, dataset="other", prediction_digest=OTHER)
    await history.submissions.begin_evaluation("lee", "mnist", at=1.0)
    ended = SessionRecord(
        id="s1",
        name="kim/mnist/1",
        owner="kim",
        state="COMPLETED",
        created_at=1.0,
        ended_at=2.0,
        record=b"",
        team="",
        visibility=Visibility.PRIVATE,
    )
    await history.catalogue.put_session(ended, term=1)
    assert await history.catalogue.delete_session("s1")
    left = [value(score) for _, score in await history.submissions.entries("lee", "mnist")]
    assert left == [0.1, 0.2, None]
    kept = {Reference(f"{n:064x}", KeptKind.ARTIFACTS, "lee") for n in (1, 2)}
    other = Reference(OTHER, KeptKind.ARTIFACTS, "")
    found = await references(history)
    assert {one for one in found if one.kind is KeptKind.ARTIFACTS} == {*kept, other}

    await history.catalogue.remove_dataset("lee", "mnist", 1, at=10.0)
    assert await history.catalogue.purge_datasets(11.0) == 1
    assert len(await history.submissions.entries("lee", "mnist")) == 3, "a version is left"
    await history.catalogue.remove_dataset("lee", "mnist", at=20.0)
    assert len(await history.submissions.entries("lee", "mnist")) == 3, "it may be restored"
    found = await references(history)
    of_nobody = {one._replace(owner="") for one in kept}
    assert {one for one in found if one.kind is KeptKind.ARTIFACTS} == {*of_nobody, other}
    assert await history.catalogue.purge_datasets(21.0) == 1
    assert await references(history) == [other]
    assert await history.submissions.entries("lee", "mnist") == ()
    assert await history.submissions.scores_of("u1") == ()
    assert await history.submissions.evaluation("lee", "mnist") == EvaluationState()
    assert await history.submissions.get("u4") is not None
    assert [one.kind for one in await history.boards.named("mnist")] == [BoardKind.METRIC]


async def test_a_prediction_is_found_however_its_session_goes_during_a_look(
    history: History,
) -> None:
    pages = 1
    for at in range(20):
        session_id = f"s{at}"
        digest = f"{at:064x}"
        settled = await history.artifacts.settle(
            Artifact(
                session_id=session_id,
                attempt=1,
                rank=0,
                folder="1/prediction",
                name="prediction",
                saved_at=1.0,
                size_bytes=1,
                state=ArtifactState.DURABLE,
                digest=digest,
            )
        )
        assert settled is not None
        await add(history, at, predict_session_id=session_id)
        found: set[str] = set()
        after: tuple[int | str, ...] | None = ()
        pages = 0
        while after is not None:
            if pages == at:
                await history.submissions.change(f"u{at}", UNFINISHED, prediction_digest=digest)
                await history.catalogue.delete_session(session_id)
            page = await history.catalogue.referred(after)
            found |= {one.digest for one in page.roots}
            after, pages = page.next, pages + 1
        assert digest in found
        if at > pages:
            return
    pytest.fail("a look has more pages than that")


async def test_a_board_is_seen_by_whom_its_visibility_names(history: History) -> None:
    kim, lee, park = (
        UserCaller(user=User(name=name, team=team))
        for name, team in (("kim", "vision"), ("lee", "vision"), ("park", ""))
    )
    for visibility, seen in (
        (Visibility.PRIVATE, [True, False, False]),
        (Visibility.TEAM, [True, True, False]),
        (Visibility.PUBLIC, [True, True, True]),
    ):
        await put(history, board(settings=replace(SETTINGS, visibility=visibility)))
        [row] = await history.boards.named("best")
        assert [may(one, SEE, row) is ALLOW for one in (kim, lee, park)] == seen


async def test_boards_and_submissions_are_in_backups(history: History) -> None:
    await put(history, board())
    await scored(history, 1, 0.1, request_id="r1")
    await history.submissions.begin_evaluation("lee", "mnist", at=1.0)
    batches = [batch async for batch in history.dump()]
    other = await open_history(":memory:", clock=SystemClock(), run=inline)
    await other.load(batches)
    assert await other.boards.named("best") == (board(),)
    assert await other.submissions.scores_of("u1") == await history.submissions.scores_of("u1")
    assert await other.submissions.entry("u1") == await history.submissions.entry("u1")
    assert await other.submissions.evaluation("lee", "mnist") == EvaluationState(1, 2, 0, 1)
    assert (await add(other, 2, request_id="r1")).id == "u1"
    await other.close()


async def test_what_is_over_and_names_sessions_is_found_until_they_are_removed(
    history: History,
) -> None:
    submissions = history.submissions
    await scored(history, 1, 0.1)
    await scored(history, 2, 0.2)
    await add(history, 3, predict_session_id="p3")
    for number in (1, 2):
        assert await submissions.change(
            f"u{number}", OVER, predict_session_id=f"p{number}", ended_at=50.0 + number
        )
    until = KeptUntil(predicted=60.0, scored=0.0, failed=0.0)

    async def found(until: KeptUntil, limit: int = 9) -> list[str]:
        return [row.id for row in await submissions.with_sessions(until, limit=limit)]

    assert await found(until) == ["u1", "u2"]
    assert await found(until._replace(predicted=51.0)) == ["u1"]
    assert await found(until, limit=1) == ["u1"]
    assert await submissions.change("u1", OVER, predict_session_id="", evaluate_session_id="e1")
    # An evaluation that is kept for longer holds up no prediction behind it.
    assert await found(until, limit=1) == ["u2"]
    assert await submissions.change("u2", OVER, predict_session_id="")
    assert await found(until) == []
    assert await found(until._replace(scored=60.0)) == ["u1"]
    assert await submissions.change("u1", OVER, state=SubmissionState.FAILED)
    assert await found(until._replace(scored=60.0)) == []
    assert await found(until._replace(failed=60.0)) == ["u1"]

    assert await submissions.begin_evaluation("lee", "mnist", at=60.0)
    states = {SubmissionState.EVALUATING}
    assert await submissions.change_score("u1", 2, states, session_id="e9")
    assert await submissions.scores_with_sessions(before=99.0, limit=9) == ()
    assert await submissions.change_score(
        "u1", 2, states, state=SubmissionState.SCORED, ended_at=70.0
    )
    [score] = await submissions.scores_with_sessions(before=99.0, limit=9)
    assert (score.submission_id, score.session_id) == ("u1", "e9")
    assert await submissions.scores_with_sessions(before=70.0, limit=9) == ()
