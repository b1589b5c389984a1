"""Stories in the dashboard: the demo, recordings, and how they are played."""

import pytest
from click.testing import CliRunner
from google.protobuf.message import Message

from nsml.client.series import ChartQuery
from nsml.client.streams import ENDED_STATES
from nsml.common.clock import SystemClock
from nsml.v1 import sessions_pb2 as pb
from nsml.view.filtering import Filter
from nsml.view.series import Axis
from tests.unit.tui.conftest import said, shows, until
from tui.app import Dashboard
from tui.demo.scenery import GPUS
from tui.demo.story import Demo
from tui.main import main
from tui.model import Model, Refused, SeriesReceived, medium_key
from tui.recording import Recorder, Recording
from tui.screens.session import SessionScreen
from tui.sources import State, Topic
from tui.story import Player

AT = 1_767_607_200.0
SIZE = (120, 40)


class Hands(SystemClock):
    """A clock that is put forward by hand; who sleeps does so on the loop."""

    now = 0.0

    def monotonic(self):
        return self.now


def played(story, clock=None):
    player = Player(story, clock or Hands())

    def connect():
        raise AssertionError("a story calls no platform")

    return Dashboard(connect, clock=player, platform=story.platform, player=player)


def told(messages):
    """Everything in events, as bytes."""

    def plain(value):
        if isinstance(value, Message):
            return value.SerializeToString(deterministic=True)
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return value

    return [
        [type(event).__name__, *(plain(getattr(event, name)) for name in event.__slots__)]
        for _, event in messages
    ]


def at_moment(story, at):
    model = Model()
    for when, event in story.received(None, at):
        model.fold(event, when)
    return model


def test_the_demo_is_the_same_at_the_same_moment():
    assert told(Demo(AT).received(None, AT + 99)) == told(Demo(AT).received(None, AT + 99))


def test_the_demo_begins_with_sessions_in_many_states_and_comes_to_the_others():
    story = Demo(AT)
    begin = [row.session for row in at_moment(story, AT).rows(Filter(""), AT)]
    assert 30 <= len(begin) <= 50
    later = at_moment(story, AT + 660).rows(Filter(""), AT + 660)
    states = {one.state for one in begin} | {row.session.state for row in later}
    assert states == set(pb.SessionState.values()) - {pb.SESSION_STATE_UNSPECIFIED}
    assert all(one.simulated for one in begin)
    assert any(one.episodes for one in begin)


@pytest.mark.parametrize("hours", range(-1, 24))
def test_no_device_of_the_demo_is_held_twice_and_its_figures_agree(hours):
    story, at = Demo(AT), AT + 3_600 * hours
    model = at_moment(story, at)
    held = [
        device.uuid
        for row in model.rows(Filter(""), at)
        if row.session.state
        not in {*ENDED_STATES, pb.SESSION_STATE_FINALIZING, pb.SESSION_STATE_HELD}
        for replica in row.session.replicas
        for device in replica.devices
    ]
    assert len(held) == len(set(held))
    used = [use for node in model.nodes for use in node.devices if use.allocated_thousandths]
    assert sorted(use.device.uuid for use in used) == sorted(held)
    assert all(len(node.devices) == GPUS for node in model.nodes)
    assert model.cluster.allocated.gpu_thousandths == 1000 * len(held)
    assert model.cluster.sessions_queued == len(model.queue.sessions)
    states = [row.session.state for row in model.rows(Filter(""), at)]
    assert model.cluster.sessions_held == states.count(pb.SESSION_STATE_HELD)
    assert any(use.sample.utilization_percent > 50 for use in used)


def test_every_session_of_the_demo_can_be_looked_at_closely():
    story = Demo(AT)
    for row in at_moment(story, AT).rows(Filter(""), AT):
        ids, state = (row.session.id,), row.session.state
        for axis in Axis:
            ((_, received),) = story.received_of(Topic.SERIES, ids, ChartQuery(axis=axis), None, AT)
            assert isinstance(received, SeriesReceived)
        ((_, log),) = story.received_of(Topic.LOG, ids, ChartQuery(), None, AT)
        if state == pb.SESSION_STATE_RUNNING:
            assert all(lines[0].points > 1 for lines in received.groups.values())
            assert log.lines
        if state == pb.SESSION_STATE_QUEUED:
            ((_, why),) = story.received_of(Topic.EXPLANATION, ids, ChartQuery(), None, AT)
            assert why.answer.waiting.reason == row.session.waiting != ""
            assert why.answer.waiting.holders
            assert not log.lines


def test_every_tab_of_a_session_of_the_demo_has_something_to_show():
    story = Demo(AT)
    for row in at_moment(story, AT).rows(Filter("state:run"), AT):
        session = row.session

        def told(topic, what="", ids=(session.id,)):
            [(_, event)] = story.received_of(topic, ids, ChartQuery(), None, AT, what=what)
            return event

        assert len(told(Topic.CHECKPOINTS).checkpoints) == session.checkpoint_count
        for span in ("", "10m"):
            series = told(Topic.TELEMETRY, span).answer.series
            devices = sum(len(one.devices) for one in session.replicas)
            assert len(series) == devices + len(session.replicas)
            assert all(list(one.at) == sorted(one.at) for one in series)
            assert all(len(figure.mean) == len(one.at) for one in series for figure in one.figures)
        for entry in told(Topic.FILES).files:
            assert len("\n".join(told(Topic.FILE, entry.path).lines)) + 1 == entry.size
        listed = told(Topic.MEDIA).media
        assert listed
        assert len({medium_key(one) for one in listed}) == len(listed)
        for one in listed[-3:]:
            found = told(Topic.CONTENT, medium_key(one))
            if one.kind in {"audio", "video"}:
                assert isinstance(found, Refused)
            else:
                assert len(found.data) == one.size_bytes
        assert list(story.received_of(Topic.FILES, (session.id,), ChartQuery(), AT, AT + 9)) == []


def test_a_log_of_the_demo_that_is_followed_is_the_one_that_is_read_at_once():
    story, query = Demo(AT), ChartQuery()
    for row in at_moment(story, AT).rows(Filter("state:run"), AT):
        ids = (row.session.id,)
        lines = []
        for after, at in [(None, AT), (AT, AT + 7), (AT + 7, AT + 600), (AT + 600, AT + 601)]:
            for _, event in story.received_of(Topic.LOG, ids, query, after, at):
                lines += event.lines
        ((_, whole),) = story.received_of(Topic.LOG, ids, query, None, AT + 601)
        assert lines[-200:] == whole.lines[-200:]


def test_what_is_left_and_looked_at_again_at_one_moment_is_told_again():
    player, model = Player(Demo(AT), Hands()), Model()
    model = player.step(model)
    name = model.projects[0].name
    for _ in range(2):
        model.inspect(Topic.PROJECT, name)
        model = player.step(model)
        assert model.project is not None
        assert model.project.answer.project.name == name
        model.inspected.clear()


def test_a_story_says_when_it_stands_still_and_where_it_begins_and_ends():
    player = Player(Demo(AT), Hands())
    assert player.words() == "▶ demo, made up · 1x"
    player.pause()
    assert player.words() == "‖ demo, made up · 10:00:00Z · paused"
    assert player.jump(-60)
    assert player.words() == "‖ demo, made up · 09:59:00Z · paused"
    assert not player.jump(-(10**9))
    assert player.words() == "‖ demo, made up · 09:00:00Z · paused at its beginning"
    assert not player.jump(10**9)
    assert player.words() == "■ demo, made up · 10:00:00Z · over"


async def test_the_demo_is_shown_as_what_it_is_and_goes_on():
    clock = Hands()
    app = played(Demo(AT), clock)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "▶ demo, made up · 1x", "GPUs 38/40 simulated", "39 of 39 sessions")
        assert "live" not in said(app)
        await pilot.press("2")
        await shows(pilot, "needs 8 GPUs on one node", "held:")
        await pilot.press("3")
        await shows(pilot, "alder", "Acorn A1 (simulated)")
        await pilot.press("1")
        clock.now += 90
        await shows(pilot, "✔ Succeeded", "■ Stopped")
        assert app.player.time() == AT + 90


async def test_a_story_is_paused_made_faster_and_wound_back_and_forward():
    clock = Hands()
    app = played(Demo(AT), clock)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "demo")
        await pilot.press("greater_than_sign", "greater_than_sign")
        await shows(pilot, "· 4x")
        clock.now += 30
        await until(pilot, lambda: app.player.time() == AT + 120)
        await pilot.press("P")
        await shows(pilot, "‖ demo, made up · ", "Z · paused")
        clock.now += 1_000
        await pilot.press("right_square_bracket", "right_curly_bracket")
        await until(pilot, lambda: app.player.time() == AT + 190)
        ended = {row.session.id for row in app.model.rows(Filter("state:end"), AT)}
        await pilot.press(*["left_curly_bracket"] * 4, "left_square_bracket")
        await until(pilot, lambda: app.player.time() == AT - 60)
        assert {row.session.id for row in app.model.rows(Filter("state:end"), AT)} != ended
        await pilot.press("P", *["less_than_sign"] * 9)
        await shows(pilot, "· 1x")
        app.player.jump(10**9)
        await shows(pilot, "■ demo, made up · ", "Z · over")
        await pilot.press("P")
        await until(pilot, lambda: app.player.time() == app.player.story.begins)


async def test_sessions_of_the_demo_are_compared_as_all_are():
    app = played(Demo(AT))
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "39 of 39")
        await pilot.press("slash", *"state:run ds:leaves", "enter", "space", "space", "x")
        await shows(pilot, "2 sessions", "loss  (step)", "$ nsml diff bo/leaves/54")
        await pilot.press("j", "c")
        await shows(pilot, "the demo has no code")


async def test_nothing_can_be_done_to_a_story():
    app = played(Demo(AT))
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "39 of 39")
        await pilot.press("ctrl+k", "m", "ctrl+d")
        said_of_it = [one.message for one in app._notifications]
        assert said_of_it == [
            f"this is a demo, and no platform: nothing can be {done}"
            for done in ("stopped", "given a memo", "removed")
        ]


async def test_keys_of_stories_are_letters_in_a_field_and_nothing_on_a_platform(dashboard, server):
    server.state.add("kim/mnist/1")
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1", "● live")
        assert "Pause" not in said(dashboard)
        await pilot.press("P", "less_than_sign")
        await pilot.press("slash", *"P<3]")
        await shows(pilot, "P<3]")


async def test_what_one_dashboard_saw_another_shows_without_the_platform(
    dashboard, server, tmp_path
):
    session = server.state.add("kim/mnist/1", memo="baseline")
    for step in range(50):
        server.state.report(session, "loss", 3.0 - step / 25, step=step)
    server.state.log(session, b"epoch 1\nepoch 2\n")
    dashboard.recorder = Recorder(tmp_path / "it", platform="test", at=dashboard.clock.time())
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "● live", "● recording", "loss  (step)  50 points", "epoch 2")
        server.state.add("lee/kin/77", pb.SESSION_STATE_QUEUED, waiting="needs 8 GPUs")
        await shows(pilot, "lee/kin/77")
        # Killed: nothing is closed.
    clock = Hands()
    app = played(Recording(tmp_path / "it"), clock)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "▶ replay of", "· 1x")
        clock.now += 100
        await shows(pilot, "■ replay of", "over", "kim/mnist/1", "lee/kin/77")
        assert "live" not in said(app)
        assert app.user == "kim"
        await pilot.press("g", "G")
        await until(pilot, lambda: app.model.shown.groups)
        await shows(pilot, "loss  (step)  50 points", "epoch 2")
        await pilot.press("g", "enter")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        await pilot.press("l")
        await shows(pilot, "not in the recording")
        await pilot.press("ctrl+k")
        assert [one.message for one in app._notifications] == [
            "this is a replay, and no platform: nothing can be stopped"
        ]
        app.player.jump(-100)
        await until(pilot, lambda: app.model.row_named("lee/kin/77") is None)
        assert app.model.sources[Topic.LOG].state(AT) is not State.LIVE


async def test_a_recording_that_ends_is_told_and_the_dashboard_stays(dashboard, server, tmp_path):
    server.state.add("kim/mnist/1")
    recorder = Recorder(tmp_path / "it", platform="test", at=AT, most_bytes=150)
    dashboard.recorder = recorder
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1", "● live")
        await until(pilot, lambda: dashboard.recorder is None)
        await until(pilot, lambda: "● recording" not in said(dashboard))
        (one,) = dashboard._notifications
        assert one.message.startswith("the recording ended: it holds 150 ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--replay", "{dir}/none"], "cannot read"),
        (["--replay", "{dir}"], "cannot read"),
        (["--replay", "{dir}/text"], "is no recording of nsml-tui --record"),
        (["--replay", "{dir}/text", "--demo"], "--replay goes without --demo"),
        (["--demo", "--context", "x"], "--demo goes without --context"),
        (["--demo", "--record", "{dir}/new"], "--demo goes without --record"),
        (["--demo"], "needs a terminal"),
    ],
)
def test_what_cannot_be_shown_is_told_in_a_line(tmp_path, words, why):
    (tmp_path / "text").write_text("no recording\n")
    given = [word.format(dir=tmp_path) for word in words]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0].startswith("error: ")
    assert why in result.stderr
    assert not (tmp_path / "new").exists()
