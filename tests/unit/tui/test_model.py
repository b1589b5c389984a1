"""The model: folding what is received, in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.sessions.convert import shorten
from nsml.client.series import ChartQuery
from nsml.client.streams import ENDED_STATES, Link
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.nodes_pb2 import GetClusterResponse
from nsml.view.filtering import Filter
from nsml.view.series import Axis, Series
from nsml.view.sessions import repeat_words
from tui.model import (
    MOST_LINES,
    ClusterReceived,
    CodeReceived,
    EndedReceived,
    Linked,
    LogReceived,
    Model,
    SeriesReceived,
    SessionsReceived,
    WholeReceived,
)
from tui.sources import State, Topic

RUNNING, ENDED = pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_SUCCEEDED
APPLIED, WITHDRAWN = pb.PROGRAM_CHANGE_PHASE_APPLIED, pb.PROGRAM_CHANGE_PHASE_WITHDRAWN


def session(number, state=RUNNING, memo=""):
    found = pb.Session(id=f"s{number}", name=f"kim/mnist/{number}", state=state, memo=memo)
    found.created_at.seconds = number
    return found


def names(model, text="", **more):
    return [row.session.name for row in model.rows(Filter(text), 100, **more)]


def test_sessions_are_listed_newest_first_also_once_they_have_ended():
    model = Model()
    model.fold(SessionsReceived([session(1), session(2), session(3)], [], reset=True), 10)
    model.fold(SessionsReceived([session(2, ENDED)], []), 11)
    model.fold(SessionsReceived([], ["s2"]), 12)
    assert names(model) == ["kim/mnist/3", "kim/mnist/2", "kim/mnist/1"]
    assert names(model, with_ended=False) == ["kim/mnist/3", "kim/mnist/1"]
    assert names(model, "state:end") == ["kim/mnist/2"]
    assert model.sources[Topic.SESSIONS].state(13) is State.LIVE


def test_steps_of_submissions_are_listed_on_request_and_counted():
    model = Model()
    steps = [session(2), session(4, ENDED)]
    for one in steps:
        one.spec.stage, one.spec.submission_id = pb.SESSION_STAGE_PREDICT_TEST, "sub1"
    model.fold(SessionsReceived([session(1), steps[0], session(3)], [], reset=True), 10)
    model.fold(EndedReceived([steps[1]]), 11)
    assert (model.count, model.step_count) == (4, 2)
    assert names(model, with_steps=False) == ["kim/mnist/3", "kim/mnist/1"]
    assert names(model, "mnist", with_steps=False) == ["kim/mnist/3", "kim/mnist/1"]
    assert len(names(model)) == 4
    assert names(model, "submission:*") == ["kim/mnist/4", "kim/mnist/2"]
    assert names(model, "submission:*", with_ended=False) == ["kim/mnist/2"]
    assert names(model, with_steps=False, with_ended=False) == ["kim/mnist/3", "kim/mnist/1"]


GONE = Linked(Topic.CLUSTER, Link(is_live=False, failures=1, retry_in_s=0.5, reason="gone"))


def led_by(leader):
    return ClusterReceived(GetClusterResponse(leader=leader), 0.01)


@pytest.mark.parametrize(
    ("before", "event", "now", "words"),
    [
        ([], led_by("cp-1"), 10, ""),
        # The first try failed: it was never away.
        ([(GONE, 5)], led_by("cp-1"), 50, ""),
        ([(led_by("cp-1"), 10)], led_by("cp-1"), 12, ""),
        ([(led_by("cp-1"), 10), (GONE, 11)], led_by("cp-1"), 12, ""),
        ([(led_by("cp-1"), 10), (GONE, 11)], led_by("cp-1"), 33, "back after 23s"),
        # A laptop slept, and no connection was seen to break.
        ([(led_by("cp-1"), 10)], led_by("cp-1"), 3_670, "back after 1h1m"),
        ([(led_by("cp-2"), 10)], led_by("cp-3"), 12, "leader cp-2 -> cp-3"),
        ([(led_by("cp-2"), 10), (led_by(""), 12)], led_by("cp-3"), 14, "leader cp-2 -> cp-3"),
        ([(led_by("cp-2"), 10), (led_by(""), 12)], led_by("cp-2"), 14, ""),
        (
            [(led_by("cp-2"), 10), (GONE, 12)],
            led_by("cp-3"),
            33,
            "back after 23s · leader cp-2 -> cp-3",
        ),
        ([(led_by("cp-1"), 10), (GONE, 11)], GONE, 33, ""),
        # A clock that is set back tells nothing.
        ([(led_by("cp-1"), 3_670)], led_by("cp-1"), 10, ""),
    ],
)
def test_that_the_platform_is_back_and_who_leads_it_is_said_once(before, event, now, words):
    model = Model()
    for one, at in before:
        assert model.comes_back(one, at) == ""
        model.fold(one, at)
    assert model.comes_back(event, now) == words
    model.fold(event, now)
    assert model.comes_back(event, now + 1) == ""


def test_the_platform_was_not_away_while_the_dashboard_was():
    model = Model()
    model.fold(led_by("cp-1"), 10)
    model.stood_still(60)
    assert model.comes_back(led_by("cp-1"), 61) == ""
    assert model.comes_back(led_by("cp-1"), 90) == "back after 30s"


def test_one_that_is_removed_is_gone():
    model = Model()
    model.fold(SessionsReceived([session(1)], [], reset=True), 10)
    model.fold(SessionsReceived([], ["s1"]), 11)
    assert names(model) == []
    assert model.row("s1") is None


def test_a_list_of_ended_ones_takes_no_live_one_away():
    model = Model()
    model.fold(SessionsReceived([session(1)], [], reset=True), 10)
    model.fold(EndedReceived([session(1, ENDED), session(2, ENDED)]), 11)
    assert model.row("s1").session.state == RUNNING
    model.fold(EndedReceived([]), 12)
    assert names(model) == ["kim/mnist/1"]


def test_the_same_list_of_ended_ones_again_changes_no_list():
    model = Model()
    model.fold(EndedReceived([session(2, ENDED)]), 11)
    before = model.listed
    model.fold(EndedReceived([session(2, ENDED)]), 12)
    assert model.listed == before
    renamed = session(2, ENDED)
    renamed.memo = "another"
    model.fold(EndedReceived([renamed]), 13)
    assert model.listed > before


def test_what_is_looked_at_has_not_gone_because_others_ended_since():
    model = Model()
    model.fold(EndedReceived([session(1, ENDED), session(2, ENDED)]), 11)
    model.show("s1")
    model.fold(EndedReceived([session(3, ENDED)], is_cut=True), 12)
    assert model.lacks_older
    assert model.row("s1") is not None
    assert model.row("s2") is None
    model.fold(EndedReceived([session(3, ENDED)]), 13)
    assert not model.lacks_older
    assert model.row("s1") is None


def test_only_what_is_received_of_the_one_that_is_shown_counts():
    model = Model()
    model.show("s1")
    model.fold(LogReceived("s2", ["of another"]), 10)
    model.fold(SeriesReceived(("s2",), ChartQuery(), {"loss": []}), 10)
    assert (list(model.shown.lines), model.shown.groups) == ([], None)
    assert model.sources[Topic.LOG].state(11) is State.LOADING
    model.fold(LogReceived("s1", ["of it"]), 12)
    assert list(model.shown.lines) == ["of it"]
    assert model.sources[Topic.LOG].state(13) is State.LIVE
    model.show("s3")
    assert list(model.shown.lines) == []
    assert model.sources[Topic.LOG].state(14) is State.LOADING


def test_columns_that_are_the_same_are_not_drawn_again_unless_they_were_not_received():
    model = Model()
    model.show("s1")
    received = SeriesReceived(("s1",), ChartQuery(), {"loss": []})
    model.fold(received, 10)
    before = model.version
    model.fold(received, 12)
    assert (model.version, model.sources[Topic.SERIES].received_at) == (before, 12)
    model.fold(Linked(Topic.SERIES, Link(is_live=False, failures=1)), 13)
    before = model.version
    model.fold(received, 14)
    assert model.version > before
    model.fold(SeriesReceived(("s1",), ChartQuery(), {"loss": []}), 15)
    assert model.version > before + 1


def test_the_answer_to_an_earlier_query_is_not_drawn():
    model = Model()
    model.show("s1")
    model.shown.chart_query = ChartQuery(axis=Axis.WALL)
    model.fold(SeriesReceived(("s1",), ChartQuery(), {"loss": []}), 10)
    assert model.shown.groups is None


def test_several_are_looked_at_together_and_each_pair_of_them_for_its_code():
    model = Model()
    model.show("s1", "s2")
    model.fold(SeriesReceived(("s1",), ChartQuery(), {"old": []}), 10)
    model.fold(LogReceived("s1", ["of one"]), 10)
    model.fold(CodeReceived(("s1", "s3"), [], 0), 10)
    assert (model.shown.groups, list(model.shown.lines), model.shown.code) == (None, [], None)
    model.fold(SeriesReceived(("s1", "s2"), ChartQuery(), {"loss": []}, {"loss": []}), 11)
    model.show_code(("s2", "s1"))
    model.fold(CodeReceived(("s2", "s1"), [], 4), 11)
    assert (model.shown.groups, model.shown.code.same) == ({"loss": []}, 4)


def test_of_a_long_log_the_last_lines_are_kept_with_their_numbers():
    model = Model()
    model.show("s1")
    model.fold(LogReceived("s1", [f"{n}" for n in range(MOST_LINES - 1)]), 10)
    model.fold(LogReceived("s1", ["a", "b", "c"]), 11)
    assert (model.shown.first, model.shown.lines[0], model.shown.lines[-1]) == (2, "2", "c")
    model.fold(LogReceived("s1", [], is_anew=True), 12)
    assert (model.shown.first, len(model.shown.lines)) == (0, 0)


STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 5), st.sampled_from([RUNNING, ENDED])), max_size=4),
        st.lists(st.integers(1, 5), max_size=2),
        st.booleans(),
    ),
    max_size=12,
)


@given(STEPS)
def test_live_sessions_are_those_of_the_stream_whatever_came(steps):
    model, live = Model(), {}
    for at, (changed, removed, reset) in enumerate(steps):
        news = [session(number, state) for number, state in dict(changed).items()]
        model.fold(SessionsReceived(news, [f"s{number}" for number in removed], reset), at)
        live = {} if reset else live
        live.update({one.id: one for one in news})
        for number in removed:
            live.pop(f"s{number}", None)
        live = {key: one for key, one in live.items() if one.state not in ENDED_STATES}
        assert {row.session.id for row in model.rows(Filter(""), at, with_ended=False)} == {*live}
        listed = [row.session.id for row in model.rows(Filter(""), at)]
        assert len(listed) == len(set(listed)) == model.count


def test_of_one_that_was_removed_it_is_told_that_it_was_and_nothing_else():
    model = Model()
    for at, state in enumerate((pb.SESSION_STATE_QUEUED, pb.SESSION_STATE_PREPARING, ENDED), 1):
        model.fold(SessionsReceived([session(1, state), session(2, state)], []), float(at))
    placed = [("placed", "kim/mnist/1"), ("placed", "kim/mnist/2")]
    assert [(one.what, one.subject) for one in model.seen] == placed
    model.forget("s1", 9.0)
    assert [(one.at, one.what, one.subject) for one in model.seen] == [
        (2.0, "placed", "kim/mnist/2"),
        (9.0, "removed", "kim/mnist/1"),
    ]


def test_one_that_was_removed_is_listed_no_more():
    model = Model()
    model.fold(EndedReceived([session(1, ENDED)]), 1.0)
    assert model.rows(Filter(""), 1.0)
    listed = model.listed
    model.forget(session(1).id, 100.0)
    assert not model.rows(Filter(""), 1.0)
    assert model.listed > listed
    model.forget("gone", 100.0)
    assert model.listed == listed + 1


def long(number, *, is_whole, state=RUNNING):
    found = session(number, state)
    found.spec.args.extend(["--lr", "1", "--seed", "2"] if is_whole else ["--lr"])
    found.left_out_bytes = 0 if is_whole else 8
    return found


def test_all_of_a_long_command_stays_known_once_it_was_asked_for():
    model = Model()
    model.fold(
        SessionsReceived([long(1, is_whole=False), long(2, is_whole=False)], [], reset=True), 10
    )
    assert [one.id for one in model.short()] == ["s2", "s1"]
    assert names(model, "seed=2") == []
    listed = model.listed
    model.fold(WholeReceived(long(1, is_whole=True, state=pb.SESSION_STATE_QUEUED)), 11)
    assert model.listed > listed
    assert model.row("s1").session == long(1, is_whole=True), "its state is as new as it was"
    assert names(model, "seed=2") == ["kim/mnist/1"]
    for event in (
        SessionsReceived([long(1, is_whole=False)], []),
        SessionsReceived([long(1, is_whole=False), long(2, is_whole=False)], [], reset=True),
        EndedReceived([]),
        SessionsReceived([long(1, is_whole=False, state=ENDED)], ["s1"]),
        EndedReceived([long(1, is_whole=False, state=ENDED)]),
    ):
        model.fold(event, 12)
        assert [one.id for one in model.short()] == ["s2"]
    assert names(model, "seed=2") == ["kim/mnist/1"]


def changed(last, *, is_whole=False):
    """A session whose knobs were set 30 times, after which all up to the last change were refused."""
    found = session(1)
    found.command.extend(["nsml", "run", "-e", "train.py"])
    for number in range(1, last + 1):
        found.changes.add(
            number=number,
            kind=pb.PROGRAM_CHANGE_KIND_SET,
            phase=APPLIED if number <= 30 else WITHDRAWN,
            values={"dropout" if number == 1 else "lr": str(number)},
            at=number,
            counter="step",
        )
    if not is_whole:
        shorten(found)
    return found


def test_early_changes_stay_known_once_they_were_asked_for():
    """A listing has the last ones alone, be they refused; what repeats the session has all that were made."""
    whole, listed = changed(50, is_whole=True), changed(50)
    words = repeat_words(whole)
    assert len(listed.changes) < 20
    assert words.count("--set") == 30
    with pytest.raises(ValueError, match="not here"):
        repeat_words(listed)
    model = Model()
    model.fold(SessionsReceived([listed], [], reset=True), 10)
    assert [one.id for one in model.short()] == ["s1"]
    model.fold(WholeReceived(whole), 11)
    assert model.row("s1").session.changes == whole.changes
    for last in range(51, 90):  # more than a listing has, one after the other
        model.fold(SessionsReceived([changed(last)], []), 12)
        assert not model.short()
        assert repeat_words(model.row("s1").session) == words
    model.fold(SessionsReceived([changed(200)], []), 13)
    assert model.short(), "changes in between were never seen"


def test_as_many_long_commands_are_kept_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr("tui.model.MOST_WHOLE", 1)
    model = Model()
    every = [long(number, is_whole=False) for number in (1, 2)]
    model.fold(SessionsReceived(every, [], reset=True), 10)
    assert len(model.short()) == 1
    for number in (1, 2):
        model.fold(WholeReceived(long(number, is_whole=True)), 11)
    model.fold(SessionsReceived(every, []), 12)
    assert [one.id for one in model.short()] == ["s1"]


def test_with_no_metric_chosen_all_but_counters_and_constants_are_drawn():
    line = [Series(label="s", x=[0, 1], y=[1, 2])]
    same = [Series(label="s", x=[0, 1], y=[3, 3])]
    groups = {"loss": line, "x": line, "epoch": line, "batch_size": same}
    assert [*ChartQuery().of(groups)] == ["loss", "x"]
    assert [*ChartQuery(names=("epoch", "batch_size")).of(groups)] == ["epoch", "batch_size"]
    assert [*ChartQuery().of({"epoch": line})] == ["epoch"]
