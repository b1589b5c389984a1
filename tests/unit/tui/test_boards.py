"""Boards in the dashboard: what is said of them, and their screens on a platform over real gRPC."""

import pytest

from nsml.client.boards import WatchedBoard
from nsml.v1 import boards_pb2 as pb
from tests.unit.tui.conftest import said, shows, until
from tests.unit.tui.story import AT
from tui.boards import (
    best_per_of,
    entry_columns,
    entry_lines,
    move_text,
    next_best_per,
    no_entries,
    preview_lines,
    state_text,
    thinned,
    unscored_title,
)
from tui.demo.boards import DATASET_BOARD, SESSIONS_BOARD
from tui.demo.story import Demo
from tui.model import MOVES_SHOWN_S, BoardQuery, BoardReceived, Model, Move, moved
from tui.screens.board import BoardScreen
from tui.screens.compare import CompareScreen
from tui.screens.session import SessionScreen
from tui.sources import Topic

SIZE = (120, 40)
SETTINGS = pb.BoardSettings(
    metric="val/acc", direction=pb.SCORE_DIRECTION_MAX, best_per=pb.BEST_PER_USER
)
BOARD = pb.Board(kind=pb.BOARD_KIND_METRIC, owner="kim", name="acc", settings=SETTINGS)
DATASET = pb.Board(kind=pb.BOARD_KIND_DATASET, owner="lee", name="digits")


def entry(rank, name="s1", **fields):
    return pb.BoardEntry(rank=rank, session=f"kim/mnist/{name}", session_id=name, **fields)


# What is said


def test_ranks_that_change_are_known_for_a_while():
    before = [entry(1, "a"), entry(2, "b"), entry(3, "c"), entry(0, "d")]
    after = [entry(1, "c"), entry(2, "a"), entry(3, "b"), entry(4, "d"), entry(0, "e")]
    moves = moved({}, before, after, 100.0)
    assert moves == {
        "c": Move(2, 100.0),
        "a": Move(-1, 100.0),
        "b": Move(-1, 100.0),
        "d": Move(0, 100.0),
    }
    again = moved(moves, after, after, 100.0 + MOVES_SHOWN_S - 1)
    assert again == moves
    assert moved(moves, after, after, 100.0 + MOVES_SHOWN_S) == {}


def test_what_is_received_first_has_not_moved():
    assert moved({}, (), [entry(1), entry(2, "b")], 0.0) == {}


def test_the_rank_of_a_user_or_team_moves_whatever_entry_is_its_best():
    before = [entry(1, "a", owner="lee", team="red"), entry(2, "b", owner="kim", team="blue")]
    after = [entry(1, "c", owner="kim", team="blue"), entry(2, "a", owner="lee", team="red")]
    of_users = moved({}, before, after, 7.0, best_per=pb.BEST_PER_USER)
    assert of_users == {"kim": Move(1, 7.0), "lee": Move(-1, 7.0)}
    of_teams = moved({}, before, after, 7.0, best_per=pb.BEST_PER_TEAM)
    assert set(of_teams) == {"team red", "team blue"}
    assert moved({}, before, after, 7.0)["c"] == Move(0, 7.0)


def test_entries_without_a_score_are_those_of_the_list_and_the_users_own():
    def at(name, second, rank=0):
        one = entry(rank, name)
        one.submitted_at.seconds = second
        return one

    answer = WatchedBoard(DATASET, [at("a", 9, rank=1), at("b", 1)])
    received = BoardReceived("lee/digits 0 0", answer, [at("a", 9, rank=1), at("b", 1), at("c", 2)])
    assert [one.session_id for one in received.unscored] == ["c", "b"]


@pytest.mark.parametrize(
    ("ranks", "after_s", "text"),
    [(2, 0, "↑2"), (-1, 5, "↓1"), (0, 5, "new"), (2, MOVES_SHOWN_S, ""), (2, -1, "")],
)
def test_a_move_is_said_until_it_is_old(ranks, after_s, text):
    assert move_text(Move(ranks, 50.0), 50.0 + after_s) == text


def test_a_move_is_in_the_rank_and_its_colour_is_not_the_only_sign():
    move = Move(-2, 50.0)
    rank = entry_columns(BOARD, lambda _: move, lambda: 51.0)[0]
    assert rank.cell(entry(3), 51.0) == "3 ↓2"
    assert rank.colour(entry(3)) == "red"
    calm = entry_columns(BOARD, lambda _: None, lambda: 51.0)[0]
    assert (calm.cell(entry(3), 51.0), calm.colour(entry(3))) == ("3", "")


def test_scores_that_look_equal_have_more_digits_in_the_list_and_in_the_details():
    first, second, third = (entry(n, score=one) for n, one in enumerate([0.75, 5 / 6, 0.83333334]))
    found = [first, second, third]
    columns = {each.key: each for each in entry_columns(BOARD, lambda _: None, lambda: AT, found)}
    texts = [columns["score"].cell(one, AT) for one in found]
    assert texts == ["0.75", "0.83333333", "0.83333334"]
    for one, text in zip(found, texts, strict=True):
        assert f" {text}\n" in "\n".join([*entry_lines(one, BOARD, 3, AT, found), ""])
    alone = {each.key: each for each in entry_columns(BOARD, lambda _: None, lambda: AT, [second])}
    assert alone["score"].cell(second, AT) == "0.833333"


@pytest.mark.parametrize("most", [1, 2, 5, 12, 40])
def test_a_thinned_trend_keeps_its_ends(most):
    values = [float(one) for one in range(32)]
    found = thinned(values, most)
    assert len(found) <= most
    assert found == sorted(found)
    if most > 1:
        assert (found[0], found[-1]) == (0.0, 31.0)


def test_the_choice_of_entries_goes_round_from_what_the_owner_set():
    assert best_per_of(BOARD) == pb.BEST_PER_USER
    assert best_per_of(DATASET) == pb.BEST_PER_NONE
    found = [pb.BEST_PER_NONE]
    for _ in range(3):
        found.append(next_best_per(found[-1]))
    assert found == [pb.BEST_PER_NONE, pb.BEST_PER_USER, pb.BEST_PER_TEAM, pb.BEST_PER_NONE]


def test_the_state_has_the_best_own_rank_and_none_without():
    entries = [entry(1, "a"), entry(2, "b", is_own=True), entry(3, "c", is_own=True)]
    assert state_text(BOARD, pb.BEST_PER_USER, entries).endswith("best per user · your rank 2")
    assert "your rank" not in state_text(BOARD, pb.BEST_PER_NONE, entries[:1])


def test_an_entry_says_how_sure_its_rank_is_and_a_failed_one_what_to_do():
    sure = entry(3, score=0.5, standard_error=0.01, rank_low=2, rank_high=5, rank_before=4)
    lines = "\n".join(entry_lines(sure, DATASET, 9, AT))
    assert "3 of 9, likely 2-5 (95 %), 4 a day ago" in lines
    assert "0.5 ± 0.01 (standard error)" in lines
    failed = entry(0, checkpoint="7", state=pb.SUBMISSION_STATE_FAILED)
    failed.cause = pb.SUBMISSION_CAUSE_TOO_LARGE
    lines = "\n".join(entry_lines(failed, DATASET, 9, AT))
    assert "larger than the board allows" in lines
    assert "rank  " not in lines


def test_an_entry_of_a_session_that_one_may_not_see_says_so():
    assert entry_lines(pb.BoardEntry(rank=1, owner="lee"), BOARD, 1, AT)[0] == (
        "a session that you may not see by lee"
    )


@pytest.mark.parametrize(
    ("board", "words"), [(BOARD, "nsml.report"), (DATASET, "nsml submit SESSION")]
)
def test_a_board_without_entries_says_what_makes_one(board, words):
    assert words in " ".join(no_entries(board))
    received = WatchedBoard(board, ())
    assert words in " ".join(preview_lines(received, AT, 60, opens="⏎"))


def test_a_preview_says_that_there_may_be_more():
    entries = [entry(rank, str(rank), score=1 / rank) for rank in range(1, 11)]
    lines = preview_lines(WatchedBoard(BOARD, entries), AT, 60, opens="enter")
    assert "the first 10: enter shows all" in lines
    received = WatchedBoard(BOARD, entries[:9])
    assert not any("shows all" in line for line in preview_lines(received, AT, 60, opens="enter"))


def test_the_title_of_entries_without_a_score_counts_failures():
    queued = entry(0, "a", state=pb.SUBMISSION_STATE_QUEUED)
    failed = entry(0, "b", state=pb.SUBMISSION_STATE_FAILED)
    assert unscored_title([queued]) == "no score: 1 entry"
    assert unscored_title([queued, failed]) == "no score: 2 entries · 1 failed"


# The model


def test_a_key_is_read_as_it_was_written():
    query = BoardQuery("kim/val.acc", pb.BEST_PER_TEAM, 10)
    assert BoardQuery.of(query.key) == query


def test_entries_of_another_board_are_not_taken_and_known_ones_stay_when_it_is_shown_again():
    model, query = Model(), BoardQuery("kim/acc")
    model.inspect(Topic.BOARD, query.key)
    model.fold(BoardReceived("kim/other 0 0", WatchedBoard(BOARD, ())), AT)
    assert model.board is None
    assert not model.sources[Topic.BOARD].received_at
    received = BoardReceived(query.key, WatchedBoard(BOARD, [entry(1)]))
    model.fold(received, AT)
    assert model.board == received
    model.inspected.clear()
    model.inspect(Topic.BOARD, query.key)
    assert model.board == received
    assert model.sources[Topic.BOARD].words(AT) == "loading..."
    model.inspect(Topic.BOARD, BoardQuery("kim/acc", pb.BEST_PER_TEAM).key)
    assert model.board is None


# The demo


@pytest.mark.parametrize("name", [SESSIONS_BOARD, DATASET_BOARD])
@pytest.mark.parametrize("best_per", [0, pb.BEST_PER_NONE, pb.BEST_PER_USER, pb.BEST_PER_TEAM])
def test_boards_of_the_demo_are_ranked_and_change(name, best_per):
    story, query = Demo(AT), BoardQuery(name, best_per)
    seen = []
    for after in (0.0, 40.0, 300.0, 3_600.0):
        [(_, received)] = story.received_of(Topic.BOARD, (query.key,), None, None, AT + after)
        entries = received.answer.entries
        ranked = [one for one in entries if one.rank]
        assert [one.rank for one in ranked] == list(range(1, len(ranked) + 1))
        scores = [one.score for one in ranked]
        assert scores == sorted(scores, reverse=True)
        assert all(one.rank_low <= one.rank <= one.rank_high for one in ranked if one.rank_low)
        assert all(one.is_own and not one.HasField("score") for one in entries if not one.rank)
        seen.append([one.SerializeToString() for one in entries])
    if best_per == pb.BEST_PER_NONE:
        assert len({tuple(one) for one in seen}) == len(seen)


def test_own_submissions_of_the_demo_fail_too():
    story = Demo(AT)
    [(_, received)] = story.received_of(
        Topic.BOARD, (BoardQuery(DATASET_BOARD).key,), None, None, AT
    )
    failed = [one for one in received.answer.entries if one.cause]
    assert failed
    assert all(one.state == pb.SUBMISSION_STATE_FAILED for one in failed)


# The screens


@pytest.fixture
def boards(server):
    state = server.state
    settings = pb.BoardSettings(metric="val/acc", best_per=pb.BEST_PER_NONE)
    state.add_board("kim/acc", settings=settings)
    state.add_board("lee/digits", kind=pb.BOARD_KIND_DATASET, may_change=False)
    for place, owner in enumerate(("kim", "lee", "kim"), 1):
        session = state.add(f"{owner}/mnist/{place}")
        state.add_entry(
            "kim/acc",
            owner,
            1 - place / 10,
            session=session.name,
            session_id=session.id,
            args=f"--lr {place}",
        )
    return server


async def opened(pilot, name="kim/acc"):
    await shows(pilot, "sessions")
    await pilot.press("7")
    await shows(pilot, name)
    screen = pilot.app.screen
    screen.table.move_to(next(screen.key(one) for one in screen.items() if name.endswith(one.name)))
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, BoardScreen))


def told(app):
    return " ".join(one.message for one in app._notifications)


async def test_boards_are_listed_with_the_first_entries_of_one(dashboard, boards):
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "3 of 3 sessions")
        await pilot.press("7")
        await shows(pilot, "2 of 2 boards", "val/acc max", "kim/mnist/1", "0.9")
        await pilot.press("j")
        await shows(pilot, "no submissions yet · nsml submit SESSION")
        await pilot.press(*"/digits", "enter")
        await shows(pilot, "1 of 2 boards", "filter: digits")


async def test_without_boards_it_says_what_one_is_and_how_to_make_one(dashboard, server):
    async with dashboard.run_test(size=SIZE) as pilot:
        await pilot.press("7")
        await shows(pilot, "no boards yet: a board ranks", "--metric val/acc --max makes one")


async def test_entries_change_while_one_looks_and_new_ranks_are_marked(dashboard, boards):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "kim/acc: val/acc, max first", "kim (you)", "your rank 1", "--lr 1")
        assert "↑" not in said(dashboard)
        entries = boards.state.entries["kim/acc"]
        with boards.state.changed:
            entries[0].rank, entries[1].rank = 2, 1
            entries[:2] = [entries[1], entries[0]]
        boards.state.add_entry("kim/acc", "lee", 0.1, session="lee/mnist/9", session_id="x")
        await shows(pilot, "1 ↑1", "2 ↓1", "4 new", "your rank 2")


async def test_mine_are_those_of_the_user_with_their_ranks_among_all(dashboard, boards):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "lee/mnist/2")
        await pilot.press("a")
        await until(pilot, lambda: "lee/mnist/2" not in said(dashboard))
        await shows(pilot, "· mine", "kim/mnist/3")
        assert [one.rank for one in dashboard.screen.table.items] == [1, 3]
        await pilot.press("escape")
        await shows(pilot, "lee/mnist/2")
        await pilot.press("escape")
        await shows(pilot, "2 of 2 boards")


async def test_an_entry_opens_its_session_and_is_compared_with_the_one_above(dashboard, boards):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "lee/mnist/2")
        await pilot.press("d")
        await until(pilot, lambda: "nothing is above it" in told(dashboard))
        await pilot.press("j", "d")
        await until(pilot, lambda: isinstance(dashboard.screen, CompareScreen))
        await shows(pilot, "✓ baseline kim/mnist/1", "$ nsml diff kim/mnist/1 lee/mnist/2")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(dashboard.screen, BoardScreen))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await shows(pilot, "lee/mnist/2")


async def test_failed_submissions_are_apart_with_their_reason(dashboard, boards):
    state = boards.state
    state.add_entry("lee/digits", "lee", 0.9, submission_id="a", session="lee/mnist/2")
    failed = {"state": pb.SUBMISSION_STATE_FAILED, "cause": pb.SUBMISSION_CAUSE_TOO_LARGE}
    state.add_entry("lee/digits", "kim", submission_id="b", session="kim/mnist/1", **failed)
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "lee/digits")
        await shows(pilot, "no score: 1 entry · 1 failed", "Failed (too large)")
        dashboard.screen.unscored.focus()
        await shows(pilot, "predict less for each input")
        await pilot.press("d")
        await until(pilot, lambda: "an entry with a rank" in told(dashboard))


async def test_a_board_without_entries_says_how_to_submit(dashboard, boards):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot, "lee/digits")
        await shows(
            pilot, "no submissions yet · nsml submit SESSION submits a checkpoint to lee/digits"
        )


async def test_a_board_that_is_removed_stays_with_its_last_data_and_says_so(dashboard, boards):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "lee/mnist/2")
        with boards.state.changed:
            del boards.state.boards["kim/acc"]
            boards.state.changed.notify_all()
        await shows(pilot, "✗ board: it was removed, or you may see it no more", "data from")
        assert "lee/mnist/2" in said(dashboard)


async def test_a_lost_connection_is_said_and_what_was_known_stays(dashboard, boards):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "lee/mnist/2")
        boards.cut()
        await shows(pilot, "unreachable for")
        assert "lee/mnist/2" in said(dashboard)


async def test_what_others_wrote_is_shown_and_not_obeyed(dashboard, boards):
    boards.state.entries["kim/acc"][0].memo = "\x1b]0;owned\x07"
    boards.state.entries["kim/acc"][1].session = "lee/\x1b[2Jmnist"
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "␛]0;owned␇", "lee/␛[2Jmnist")
        assert "\x1b" not in said(dashboard)


async def test_only_entries_in_sight_are_made(dashboard, boards, monkeypatch):
    state = boards.state
    with state.changed:
        state.entries["kim/acc"] = [
            entry(rank, f"s{rank}", owner="lee", score=1 / rank) for rank in range(1, 1001)
        ]
        state.changed.notify_all()
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "kim/mnist/s1 ")
        table = dashboard.screen.table
        assert len(table.items) == 1_000
        drawn = set()
        line = type(table)._line
        monkeypatch.setattr(
            type(table),
            "_line",
            lambda one, place, width: drawn.add(place) or line(one, place, width),
        )
        await pilot.press("G")
        await shows(pilot, "kim/mnist/s1000")
        assert len(drawn) < 200


async def test_the_command_says_which_entries(dashboard, boards):
    async with dashboard.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await shows(pilot, "· all ·")
        await pilot.press("b", "a")
        await shows(pilot, "best per user")
        command, lacks = dashboard.screen.command()
        assert (command, lacks) == ("nsml board show kim/acc --per user --mine", "")
        await pilot.press("slash", "x")
        assert dashboard.screen.command()[1] == "the words of the filter"
