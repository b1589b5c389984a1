"""One suite for competitions in every history: SQLite in memory and in a file; PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    UNFINISHED,
    BoardKind,
    PublicScore,
    SubmissionLimit,
    SubmissionState,
)
from controlplane.domain.competitions.standings import PhaseSubmission
from controlplane.domain.competitions.teams import invite, join
from controlplane.domain.competitions.values import (
    Announcement,
    Baseline,
    Competition,
    CompetitionSettings,
    CompetitionState,
    Facts,
    MergeRequest,
    Phase,
    Pick,
    Team,
    participant_key,
)
from controlplane.domain.errors import AlreadyExists, StateConflict
from controlplane.domain.identity import Role, User
from controlplane.domain.values import Visibility
from controlplane.history.board_values import BoardRow, PastSubmissions, ScoreRow, SubmissionRow
from controlplane.history.competition_values import decode_settings, encode_settings
from controlplane.history.postgresql import open_postgresql
from controlplane.history.sql.competitions import Merging
from controlplane.history.sqlite import open_history
from controlplane.history.values import PageKey
from nsml.common.clock import SystemClock, in_thread, inline
from tests.contract.store_engines import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from controlplane.history.sql.history import History

PHASE = Phase(
    name="one",
    starts_at=10.0,
    ends_at=20.5,
    dataset_owner="kim",
    dataset="digits",
    limit=SubmissionLimit(count=5, window_s=3600.0),
    public_score=PublicScore.LADDER,
    advance=3,
    picks=4,
    closed_at=15.25,
)
SETTINGS = CompetitionSettings(
    title="손글씨",
    description="# Rules\n\n- none",
    phases=(PHASE, replace(PHASE, name="two", limit=None, starts_at=30.0, ends_at=40.0)),
    by_invitation=True,
    team_size=7,
    mergers_until=12.5,
    gpu_thousandths=2500,
    visibility=Visibility.PUBLIC,
)


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


def competition(number: int = 1, **given: Any) -> Competition:
    values: dict[str, Any] = {
        "id": f"c{number}",
        "owner": "kim",
        "owner_id": "k1",
        "team": "vision",
        "name": f"cup-{number}",
        "settings": SETTINGS,
        "created_at": float(number),
        "state": CompetitionState.OPEN,
    }
    return Competition(**{**values, **given})


def filled(facts: Facts) -> Facts:
    """All kinds of rows."""
    for name in ("lee", "park"):
        facts = join(invite(facts, [name], ""), User(name=name, id=f"{name}-1"), "", 11.0)
    facts = invite(facts, ["sam"], "")
    return replace(
        invite(facts, ["sam"], "lee"),
        merges=(MergeRequest(team="lee", other="park", name="both"),),
        announcements=(Announcement(number=1, text="a\nb", at=12.0),),
        picks=(Pick(phase="one", team="lee", submission_id="u1"),),
        baselines=(Baseline(submission_id="u9", label="mean"),),
    )


def submission(number: int, owner: str, **given: Any) -> SubmissionRow:
    values: dict[str, Any] = {
        "id": f"u{number}",
        "owner": owner,
        "team": participant_key("c1", owner),
        "dataset_owner": "kim",
        "dataset": "digits",
        "dataset_version": 1,
        "session_id": f"s{number}",
        "session": f"{owner}/digits/1",
        "checkpoint": "best",
        "submitted_at": 10.0 + number,
    }
    return SubmissionRow(**{**values, **given})


async def add(history: History, row: SubmissionRow) -> None:
    await history.submissions.add(row, since=0.0, check=lambda _: None)


def test_settings_survive_json_and_unknown_ones_are_left_out() -> None:
    assert decode_settings(encode_settings(SETTINGS)) == SETTINGS
    newer = json.loads(encode_settings(SETTINGS))
    newer["colour"] = "red"
    newer["visibility"] = 99
    newer["phases"][0]["public_score"] = 99
    read = decode_settings(json.dumps(newer))
    assert (read.visibility, read.phases[0].public_score) == (
        CompetitionSettings().visibility,
        PublicScore.OWN_BEST,
    )


async def test_one_of_a_name_per_owner(history: History) -> None:
    competitions = history.competitions
    assert await competitions.create(competition())
    assert not await competitions.create(competition(id="c9"))
    assert await competitions.create(competition(2, state=CompetitionState.DRAFT))
    other = competition(3, owner="lee", name="cup-1")
    assert await competitions.create(other)
    assert [one.id for one in await competitions.every(CompetitionState.OPEN)] == ["c3", "c1"]
    assert [one.id for one in await competitions.every(CompetitionState.DRAFT)] == ["c2"]
    assert await competitions.named("cup-1") == (competition(), other)
    assert await competitions.named("cup-1", "lee") == (other,)
    assert await competitions.get("c1") == competition()
    assert (await competitions.get("c9"), await competitions.facts("c9")) == (None, None)


async def test_those_that_a_user_sees_are_listed_newest_first(history: History) -> None:
    """As many as are asked for, whatever the user does not see."""
    competitions = history.competitions
    draft = CompetitionState.DRAFT
    private, team, public = (replace(SETTINGS, visibility=one) for one in Visibility)
    for made in (
        competition(1, settings=public),
        competition(2, settings=team, created_at=1.0),  # at the same instant
        competition(3, settings=private, created_at=1.0),
        competition(4, settings=public, state=draft),
        competition(5, settings=private, state=draft),
        competition(6, settings=public, state=CompetitionState.CLOSED, owner="sam", team="audio"),
        competition(7, settings=private, owner="sam", owner_id="s1"),
        competition(8, settings=public, state=draft, owner_id="k0"),  # an earlier user of this name
        competition(9, settings=public, state=draft, owner_id=""),
    ):
        assert await competitions.create(made)
    await competitions.change("c7", filled)  # lee and park take part
    await competitions.change("c5", lambda facts: invite(facts, ["eve"], ""))
    for viewer, seen in (
        (User(name="root", role=Role.ADMIN), [9, 8, 7, 6, 5, 4, 3, 2, 1]),
        (User(name="kim", id="k1"), [9, 6, 5, 4, 3, 2, 1]),
        (User(name="lee", id="other", team="vision"), [7, 6, 2, 1]),
        (User(name="eve", team="audio"), [6, 5, 1]),
        (User(name="max"), [6, 1]),
        (User(name=""), [6, 1]),
    ):
        assert await competitions.count_seen(viewer) == len(seen)
        for limit in range(1, len(seen) + 2):
            found: list[str] = []
            after: PageKey | None = None
            while True:
                page = await competitions.seen(viewer, after=after, limit=limit)
                found += [one.id for one in page]
                if len(page) < limit:
                    break
                after = PageKey(page[-1].created_at, page[-1].id)
            assert found == [f"c{number}" for number in seen], (viewer, limit)
    [first, *_] = await competitions.seen(User(name="kim", id="k1"), limit=2)
    assert first == await competitions.get("c9")


async def test_what_a_rule_returns_is_stored(history: History) -> None:
    competitions = history.competitions
    await competitions.create(competition())
    await competitions.create(competition(2))
    changed = await competitions.change("c1", filled)
    assert changed is not None
    stored = await competitions.facts("c1")
    assert stored is not None
    assert stored == replace(
        changed,
        invitations=tuple(sorted(changed.invitations, key=lambda one: (one.user_name, one.team))),
    )
    assert await competitions.facts("c2") == Facts(competition=competition(2))
    assert await competitions.of_user("lee") == await competitions.of_user("sam") == {"c1"}

    def rule(facts: Facts) -> Facts:
        closed = replace(
            facts.competition,
            state=CompetitionState.CLOSED,
            closed_at=13.5,
            settings=replace(SETTINGS, title="x"),
        )
        [lee, park] = facts.teams
        return Facts(competition=closed, teams=(replace(lee, disqualified="why"), park))

    assert await competitions.change("c1", rule) == await competitions.facts("c1")
    stored = await competitions.facts("c1")
    assert stored is not None
    assert (stored.competition.closed_at, stored.teams[0].disqualified, stored.members) == (
        *(13.5, "why"),
        (),
    )
    assert await competitions.change("c9", rule) is None


async def test_the_teams_of_a_user_in_some_competitions(history: History) -> None:
    competitions = history.competitions
    for number in (1, 2, 3):
        await competitions.create(competition(number))
        await competitions.change(f"c{number}", filled)
    assert await competitions.teams_of("lee", "lee-1", ["c1", "c3", "c9"]) == ("c1/lee", "c3/lee")
    assert await competitions.teams_of("lee", "an earlier lee's", ["c1"]) == ()
    assert await competitions.teams_of("sam", "sam-1", ["c1"]) == ()


async def test_which_teams_merged(history: History) -> None:
    competitions = history.competitions
    await competitions.create(competition())
    await competitions.change("c1", filled)
    assert await competitions.merged("c1") == {}

    def merge(facts: Facts) -> Facts:
        [lee, park] = facts.teams
        both = Team(name="both", founder="lee", created_at=12.0)
        return replace(facts, teams=(replace(lee, merged_into="both"), park, both))

    await competitions.change("c1", merge)
    assert await competitions.merged("c1") == {"lee": "both"}
    assert await competitions.merged("c2") == {}


async def test_a_rule_that_refuses_changes_nothing(history: History) -> None:
    competitions = history.competitions
    await competitions.create(competition())
    before = await competitions.change("c1", filled)

    def refuse(_: Facts) -> Facts:
        raise AlreadyExists("x")

    with pytest.raises(AlreadyExists):
        await competitions.change("c1", refuse)
    stored = await competitions.facts("c1")
    assert before is not None
    assert stored is not None
    assert stored.teams == before.teams


BOARD = "kim", "digits", BoardKind.DATASET
DEFAULT_BOARD = BoardRow(
    owner="kim",
    name="digits",
    kind=BoardKind.DATASET,
    settings=DEFAULT_SETTINGS[BoardKind.DATASET],
    created_at=1.0,
)


def opened(facts: Facts) -> Facts:
    return replace(facts, competition=replace(facts.competition, state=CompetitionState.OPEN))


def showing(mode: PublicScore) -> Callable[[BoardRow], BoardRow]:
    return lambda row: replace(row, settings=replace(row.settings, public_score=mode))


def refuse_more(_: BoardRow, after: BoardRow, shown: PublicScore, competition: str) -> None:
    if after.settings.public_score < shown:
        raise StateConflict(competition)


async def shown_by(history: History, *, name: str = "digits") -> PublicScore:
    row = await history.boards.get("kim", name, BoardKind.DATASET)
    assert row is not None
    return row.settings.public_score


async def test_boards_show_no_more_than_the_open_competitions_with_their_datasets(
    history: History,
) -> None:
    boards, competitions = history.boards, history.competitions
    await competitions.create(competition(state=CompetitionState.DRAFT))
    asked: list[tuple[PublicScore, str]] = []

    def check(before: BoardRow, after: BoardRow, *shown: Any) -> None:
        assert after == showing(PublicScore.EXACT)(before)
        asked.append(shown)

    exact = showing(PublicScore.EXACT)
    await boards.update(BOARD, exact, default=DEFAULT_BOARD, check=check)
    assert asked == [(PublicScore.EXACT, "")]  # it is a draft
    await competitions.change("c1", opened)
    assert await shown_by(history) is PublicScore.LADDER
    with pytest.raises(StateConflict, match="kim/cup-1"):
        await boards.update(BOARD, exact, check=refuse_more)
    assert await shown_by(history) is PublicScore.LADDER
    # A board of sessions of that name has nothing to do with it.
    of_sessions = *BOARD[:2], BoardKind.METRIC
    sessions = replace(DEFAULT_BOARD, kind=BoardKind.METRIC)
    assert await boards.update(of_sessions, exact, default=sessions, check=refuse_more)

    def with_another_dataset(facts: Facts) -> Facts:
        phase = replace(PHASE, name="three", dataset="letters", starts_at=50.0, ends_at=60.0)
        settings = replace(SETTINGS, phases=(*SETTINGS.phases, phase))
        return replace(facts, competition=replace(facts.competition, settings=settings))

    await competitions.change("c1", with_another_dataset, datasets=[("kim", "letters")])
    assert await shown_by(history, name="letters") is PublicScore.LADDER
    await competitions.change(
        "c1",
        lambda facts: replace(
            facts, competition=replace(facts.competition, state=CompetitionState.CLOSED)
        ),
    )
    assert await boards.update(BOARD, exact, check=refuse_more)
    assert await shown_by(history) is PublicScore.EXACT


async def test_what_opens_is_checked_against_what_is_open(history: History) -> None:
    competitions = history.competitions
    elsewhere = replace(SETTINGS, phases=(replace(PHASE, dataset="letters"),))
    for made in (
        competition(1, state=CompetitionState.DRAFT),
        competition(2),
        competition(3, settings=elsewhere),
        competition(4, state=CompetitionState.CLOSED),
    ):
        await competitions.create(made)
    asked: list[tuple[str, list[str]]] = []

    def check(changed: Competition, others: tuple[Competition, ...]) -> None:
        assert changed.state is CompetitionState.OPEN
        asked.append((changed.id, [one.id for one in others]))
        raise StateConflict("no")

    with pytest.raises(StateConflict):
        await competitions.change("c1", opened, check=check)
    assert asked == [("c1", ["c2"])]
    assert await competitions.get("c1") == competition(1, state=CompetitionState.DRAFT)
    assert await history.boards.get(*BOARD) is None
    # Not of a change of its teams, nor of one that is not open.
    await competitions.change("c2", filled, check=check)
    note = (Announcement(number=1, text="over", at=12.0),)
    await competitions.change("c4", lambda facts: replace(facts, announcements=note), check=check)
    assert len(asked) == 1


@pytest.mark.parametrize("first", ["board", "competition"])
async def test_a_board_is_changed_at_one_control_plane_while_a_competition_opens_at_another(
    emptied_database: Any, first: str
) -> None:
    """Whichever begins first, the other one waits for it and sees what it stored."""
    one, other = [await open_postgresql(emptied_database, clock=SystemClock()) for _ in range(2)]
    begun, go_on = threading.Event(), threading.Event()

    def held(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def work(before: Any) -> Any:
            begun.set()
            go_on.wait(60)
            return change(before)

        return work

    async def show_all(by: History, wrapped: Callable[[Any], Any] = lambda one: one) -> None:
        change = wrapped(showing(PublicScore.EXACT))
        await by.boards.update(BOARD, change, default=DEFAULT_BOARD, check=refuse_more)

    async def open_it(by: History, wrapped: Callable[[Any], Any] = lambda one: one) -> None:
        await by.competitions.change("c1", wrapped(opened))

    async def waits_or_is_over() -> bool:
        if following.done():
            return True
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
        return bool(await one._database.read(lambda line: line.execute(query).fetchone()[0]))

    try:
        await one.competitions.create(competition(state=CompetitionState.DRAFT))
        begin, follow = (show_all, open_it) if first == "board" else (open_it, show_all)
        holding = asyncio.create_task(begin(one, held))
        await asyncio.to_thread(begun.wait, 60)
        following = asyncio.create_task(follow(other))
        await until(waits_or_is_over)
        go_on.set()
        await holding
        if first == "board":
            await following
        else:
            with pytest.raises(StateConflict, match="kim/cup-1"):
                await following
        assert await shown_by(one) is PublicScore.LADDER
        found = await one.competitions.get("c1")
        assert found is not None
        assert found.state is CompetitionState.OPEN
    finally:
        go_on.set()
        await one.close()
        await other.close()


async def test_of_two_who_take_a_name_one_gets_it(history: History) -> None:
    await history.competitions.create(
        competition(settings=replace(SETTINGS, by_invitation=False, phases=()))
    )

    async def found(name: str) -> bool:
        try:
            await history.competitions.change(
                "c1", lambda facts: join(facts, User(name=name), "best", 11.0)
            )
        except AlreadyExists:
            return False
        return True

    assert sorted(await asyncio.gather(*map(found, ("lee", "park", "sam", "eve")))) == [
        *(False, False, False),
        True,
    ]


async def test_submissions_go_to_the_merged_team_from_an_instant_on(history: History) -> None:
    await history.competitions.create(competition())
    for number, owner in enumerate(("lee", "lee", "park", "sam")):
        await add(history, submission(number, owner))
    merging = Merging("kim", "digits", frozenset({"lee", "park"}), "both", 11.0)
    await history.competitions.change("c1", lambda facts: facts, merging=lambda *_: merging)
    rows = [await history.submissions.get(f"u{number}") for number in range(4)]
    assert [row.team for row in rows if row is not None] == [
        "c1/lee",
        "c1/both",
        "c1/both",
        "c1/sam",
    ]


async def test_all_members_submissions_count(history: History) -> None:
    for number, owner in enumerate(("lee", "park", "sam")):
        await add(history, submission(number, owner))

    async def past(others: tuple[str, ...]) -> PastSubmissions:
        return await history.submissions.past(
            dataset_owner="kim",
            dataset="digits",
            owner="lee",
            team=participant_key("c1", "lee"),
            since=0.0,
            others=others,
        )

    assert (await past(())).counted == (10.0,)
    assert (await past(("lee", "sam"))).counted == (10.0, 12.0)


async def test_reruns_are_on_no_board_and_count_for_nobody(history: History) -> None:
    submissions = history.submissions
    await add(history, submission(1, "lee"))
    await add(history, submission(2, "lee", rerun_of="u1"))
    assert [one.row.id for one in await submissions.entries("kim", "digits")] == ["u1"]
    past = await submissions.past(
        dataset_owner="kim", dataset="digits", owner="lee", team="", since=0.0
    )
    assert past.counted == (11.0,)
    score = ScoreRow(submission_id="u2", score=0.5)
    await submissions.change("u2", UNFINISHED, state=SubmissionState.SCORED, score=score)
    [again] = await submissions.reruns("kim", "digits")
    assert (again.row.rerun_of, again.score is not None and again.score.score) == ("u1", 0.5)
    assert await submissions.begin_evaluation("kim", "digits", at=99.0) is None


async def test_an_open_one_is_not_removed(history: History) -> None:
    competitions = history.competitions
    await competitions.create(competition())
    await competitions.change("c1", filled)
    assert not await competitions.remove("c1")

    def close(facts: Facts) -> Facts:
        return replace(facts, competition=replace(facts.competition, state=CompetitionState.CLOSED))

    await competitions.change("c1", close)
    assert await competitions.remove("c1")
    assert not await competitions.remove("c1")
    assert (await competitions.facts("c1"), await competitions.of_user("lee")) == (
        None,
        frozenset(),
    )
    await competitions.create(competition())
    assert await competitions.facts("c1") == Facts(competition=competition())


async def test_backups_have_them(history: History) -> None:
    await history.competitions.create(competition())
    await history.competitions.change("c1", filled)
    stored = await history.competitions.facts("c1")
    batches = [batch async for batch in history.dump()]
    other = await open_history(":memory:", clock=SystemClock(), run=inline)
    await other.load(batches)
    assert await other.competitions.facts("c1") == stored
    assert stored is not None
    assert Team(name="lee", founder="lee", created_at=11.0) in stored.teams
    await other.close()


async def test_submissions_as_standings_need_them(history: History) -> None:
    await history.competitions.create(competition())
    await add(history, submission(1, "lee", gpu_seconds=2.5))
    await add(history, submission(2, "park"))
    await add(history, submission(3, "kim", team="vision"))
    await add(history, submission(4, "sam", team="c11/sam"))
    await add(history, submission(5, "lee", is_test=True))
    await add(history, submission(6, "lee", rerun_of="u1"))
    await add(history, submission(7, "lee"))
    score = ScoreRow(submission_id="u1", score=0.5, private=0.25, row_count=100)
    await history.submissions.change(
        "u1",
        UNFINISHED,
        state=SubmissionState.SCORED,
        ended_at=30.0,
        prediction_digest="5a" * 32,
        score=score,
    )
    await history.submissions.change("u2", UNFINISHED, state=SubmissionState.FAILED)
    await history.submissions.change("u3", UNFINISHED, state=SubmissionState.SCORED)
    read = history.competitions.submissions
    assert [one.id for one in await read("c1", "kim", "digits")] == ["u1", "u2", "u7"]
    first, second, baseline, waiting = await read("c1", "kim", "digits", ["u3"])
    assert first == PhaseSubmission(
        id="u1",
        owner="lee",
        key="c1/lee",
        submitted_at=11.0,
        scored_at=30.0,
        score=0.5,
        private=0.25,
        standard_error=0.05,
        session_id="s1",
        gpu_seconds=2.5,
        digest="5a" * 32,
    )
    assert (second.score, second.is_over, second.is_counted) == (None, True, False)
    assert (baseline.key, baseline.score) == ("", None)
    assert (waiting.is_over, waiting.is_counted) == (False, True)
    counts = history.competitions.counts
    assert await counts("c1", PHASE, 100.0) == (3, 1)
    assert await counts("c1", PHASE, 17.0) == (2, 0)
    assert await counts("c1", PHASE, 100.0, ["u7"]) == (2, 0)
    # A new version of scores counts once it is shown.
    await history.submissions.begin_evaluation("kim", "digits", at=40.0)
    await history.submissions.change_score(
        "u1", 2, UNFINISHED, state=SubmissionState.SCORED, score=0.75
    )
    assert (await read("c1", "kim", "digits"))[0].score == 0.5
    assert await history.submissions.show_evaluation("kim", "digits", at=50.0)
    assert (await read("c1", "kim", "digits"))[0].score == 0.75


async def test_models_are_checkpoints_of_each_users_sessions(history: History) -> None:
    assert await history.competitions.models(
        "kim", "digits", live=[("s1", "lee"), ("s2", "lee"), ("s3", "park")], since=0.0, until=9.0
    ) == {"lee": 0, "park": 0}
