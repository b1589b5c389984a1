"""Preferences: what is saved from one time to the next."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import builds, from_type, lists, sampled_from, text

from nsml.view.series import Axis
from tests.unit.tui.conftest import said, shows, until
from tui.listing import By, Listing
from tui.main import _preferences_file
from tui.preferences import (
    MOST_BYTES,
    ChartPreferences,
    ComparePreferences,
    LogPreferences,
    Preferences,
    PreferencesError,
    PreferencesFile,
)
from tui.screens.session import SessionScreen
from tui.widgets.charts import Charts

SIZE = (120, 40)
WORDS = lists(text(max_size=9), max_size=3).map(tuple)
KEPT = builds(
    Preferences,
    sessions=builds(
        Listing,
        filter=text(max_size=20),
        sort=text(max_size=9),
        is_down=from_type(bool),
        columns=WORDS,
        by=sampled_from(By),
        folded=WORDS,
    ),
    charts=builds(ChartPreferences, axis=sampled_from(Axis), smoothing=st.floats(0, 1)),
    compare=builds(ComparePreferences, ignored=WORDS),
    log=from_type(LogPreferences),
    typed=WORDS,
)


@given(kept=KEPT)
def test_what_was_written_is_read_again(tmp_path_factory, kept):
    file = tmp_path_factory.mktemp("kept") / "tui" / "garden.json"
    PreferencesFile(file).save(kept)
    assert PreferencesFile(file).load() == kept
    if file.exists():
        assert file.stat().st_mode & 0o777 == 0o600
        assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_what_people_leave_out_or_add_is_no_matter(tmp_path):
    file = tmp_path / "garden.json"
    assert PreferencesFile(file).load() == Preferences()
    file.write_text('{"sessions": {"sort": "name", "colour": 3}, "more": []}')
    assert PreferencesFile(file).load() == Preferences(sessions=Listing(sort="name"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"charts": {"axis": "sideways"}}',
        b'{"sessions": {"columns": "name"}}',
        b" " * (MOST_BYTES + 1),
    ],
)
def test_what_is_damaged_is_refused_in_one_line(tmp_path, data):
    file = tmp_path / "garden.json"
    file.write_bytes(data)
    with pytest.raises(PreferencesError, match=r"\A.*garden\.json is ignored: .*\Z"):
        PreferencesFile(file).load()


def test_a_place_that_cannot_be_written_is_told_once(tmp_path):
    (tmp_path / "tui").write_text("a file")
    keeper = PreferencesFile(tmp_path / "tui" / "garden.json")
    kept = Preferences(typed=("q",))
    with pytest.raises(PreferencesError, match="cannot write"):
        keeper.save(kept)
    keeper.save(kept)


def test_each_platform_has_a_file_in_the_folder_for_states(tmp_path):
    file = _preferences_file("gpu.lab:18553/../x", {"XDG_STATE_HOME": str(tmp_path)})
    assert file.parent == tmp_path / "nsml" / "tui"
    assert _preferences_file("a", {"HOME": str(tmp_path)}).parent.is_relative_to(tmp_path)


async def test_screens_show_things_as_the_last_time(make_dashboard, server, tmp_path):
    for number in range(1, 4):
        session = server.state.add(f"kim/mnist/{number}", memo="odd" if number % 2 else "even")
    for step in range(5):
        server.state.report(session, "loss", 1.0, step=step)
    file = tmp_path / "state" / "garden.json"
    first = make_dashboard(preferences_file=file)
    async with first.run_test(size=SIZE) as pilot:
        await shows(pilot, "3 of 3 sessions")
        await pilot.press("slash", *"odd", "enter", "O", "v", "G", "enter")
        await until(pilot, lambda: isinstance(first.screen, SessionScreen))
        await pilot.press("p")
        await shows(pilot, "metric 1/1: ")
        await pilot.press("full_stop", "X")
        await shows(pilot, "x: relative", "smooth 0.3")
    again = make_dashboard(preferences_file=file)
    async with again.run_test(size=SIZE) as pilot:
        await shows(pilot, "2 of 3 sessions · filter: odd", "Created▴")
        assert [one.name[-1] for one in again.screen.table.items] == ["1", "3"]
        assert not again.screen.query_one("Preview").display
        await pilot.press("G", "enter")
        await until(pilot, lambda: isinstance(again.screen, SessionScreen))
        await pilot.press("p")
        await shows(pilot, "x: relative", "smooth 0.3")
        await pilot.press("escape", "escape")
        await shows(pilot, "3 of 3 sessions")
        await pilot.press("slash", *"even")
        await shows(pilot, "filter: even")
        assert not again.preferences.sessions.filter, "what is being typed is kept"


async def test_what_is_kept_is_used_as_far_as_it_can_be(make_dashboard, server, tmp_path):
    server.state.add("kim/mnist/1")
    file = tmp_path / "garden.json"
    kept = Preferences(
        sessions=Listing(filter="colour:red", sort="summary.gone", columns=("gone", "state")),
        charts=ChartPreferences(smoothing=0.5),
    )
    file.write_bytes(msgspec.json.encode(kept))
    dashboard = make_dashboard(preferences_file=file)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session", "Name         gone▾")
        assert "filter:" not in said(dashboard)
        assert dashboard.screen.query_one(Charts).smoothing == 0.0, "the preview is plain"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(dashboard.screen, SessionScreen))
        await pilot.press("p")
        await shows(pilot, "smooth 0.6", "0: as it was reported")
        await pilot.press("0")
        await shows(pilot, "x: step · smooth 0")
        assert dashboard.preferences.charts == ChartPreferences()


async def test_a_damaged_file_is_said_and_the_dashboard_is_as_new(make_dashboard, server, tmp_path):
    server.state.add("kim/mnist/1")
    file = tmp_path / "garden.json"
    file.write_text("{")
    dashboard = make_dashboard(preferences_file=file)
    async with dashboard.run_test(size=SIZE) as pilot:
        await shows(pilot, "1 of 1 session")
        assert any("is ignored" in one.message for one in dashboard._notifications)
    assert file.read_text() == "{"
