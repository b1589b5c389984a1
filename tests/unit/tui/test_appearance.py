"""What a terminal can show, themes, and colours by role."""

import itertools

import pytest
from textual.color import Color

from nsml.view.code import colour_of
from nsml.view.sessions import STATE_WORDS
from nsml.view.themes import THEMES
from tests.unit.tui.conftest import shows
from tests.unit.tui.contrast import contrast
from tui import terminal
from tui.appearance import ALL_THEMES, LINES, Appearance, style

SIZE = (100, 30)


def told(app):
    """What users were told."""
    return [one.message for one in app._notifications]


UTF_8 = {"LANG": "ko_KR.UTF-8", "TERM": "xterm-256color"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (UTF_8, False),
        ({"TERM": "xterm"}, False),
        ({**UTF_8, "LANG": "C"}, True),
        ({**UTF_8, "LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # as Python sets it
        ({"LC_CTYPE": "UTF-8"}, False),
        ({**UTF_8, "LC_ALL": "POSIX"}, True),
        ({**UTF_8, "LANG": "ko_KR.eucKR"}, True),
        ({**UTF_8, "LANG": "C", "LC_ALL": "C.utf8"}, False),
        ({**UTF_8, "TERM": "dumb"}, True),
        ({**UTF_8, "TERM": "linux"}, True),
    ],
)
def test_a_terminal_without_drawn_letters_gets_ascii(environ, expected):
    assert terminal.is_ascii(environ) is expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "tmux-256color"}, True),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, True),
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "xterm"}, False),
        ({"TERM": "linux"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_more_than_16_colours_are_known_by_their_names(environ, expected):
    assert terminal.has_colours(environ) is expected


def test_nothing_glides_over_ssh_unless_that_is_asked_for():
    assert terminal.may_animate({})
    assert not terminal.may_animate({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"})
    assert terminal.may_animate({"SSH_CONNECTION": "x", "TEXTUAL_ANIMATIONS": "full"})
    assert terminal.has_no_colours({"NO_COLOR": "1"})
    assert not terminal.has_no_colours({"NO_COLOR": ""})


def test_there_is_a_theme_for_each_name_and_in_each_a_colour_for_every_role():
    assert tuple(theme.name for theme in ALL_THEMES) == THEMES
    named = {word.colour for word in STATE_WORDS.values()} | {colour_of(line) for line in "+-@"}
    for theme in ALL_THEMES:
        for role in (*named, *LINES):
            assert theme.variables.get(f"role-{role}"), (theme.name, role)


@pytest.mark.parametrize(
    ("name", "least"),
    [("high-contrast", 7.0), ("dark", 4.5), ("light", 4.5), ("colour-blind", 3.5)],
)
def test_every_role_can_be_read_on_what_is_behind_it(name, least):
    (theme,) = (one for one in ALL_THEMES if one.name == name)
    backgrounds = [theme.background, theme.surface, theme.panel]
    roles = [value for key, value in theme.variables.items() if key.startswith("role-")]
    pairs = list(itertools.product([theme.foreground, *roles], backgrounds))
    pairs += [
        (theme.variables[f"{cursor}-foreground"], theme.variables[f"{cursor}-background"])
        for cursor in ("block-cursor", "block-cursor-blurred")
    ]
    for front, behind in pairs:
        found = contrast(Color.parse(front), Color.parse(behind))
        assert found >= least, (front, behind, found)


@pytest.mark.parametrize("name", THEMES)
async def test_colours_follow_the_theme_and_it_is_remembered_once(make_dashboard, server, name):
    server.state.add("kim/mnist/1")
    kept = []
    app = make_dashboard(appearance=Appearance(theme="light"), remember=kept.append)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1", "● Running")
        assert set(app.available_themes) == set(THEMES)
        app.theme = name
        await pilot.pause()
        assert kept == ([] if name == "light" else [name])
        expected = dict(app.current_theme.variables)["role-green"]
        assert style(app, "green").color == Color.parse(expected).rich_color
        if kept:
            assert told(app) == [f"$ nsml config set theme {name}"]


async def test_a_theme_that_cannot_be_kept_is_still_shown(make_dashboard):
    def fail(_name):
        raise OSError("no space left on device")

    app = make_dashboard(remember=fail)
    async with app.run_test(size=SIZE) as pilot:
        app.theme = "light"
        await pilot.pause()
        assert told(app) == ["the theme is not saved: no space left on device"]
        assert app.theme == "light"


async def test_without_colours_there_is_none(make_dashboard, server, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    server.state.add("kim/mnist/1")
    app = make_dashboard(appearance=Appearance(theme="terminal", is_colourless=True))
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "kim/mnist/1")
        segments = [one for strip in app.screen._compositor.render_strips() for one in strip]
        styles = [one.style for one in segments if one.style is not None]
        assert all(one.color is None or one.color.is_default for one in styles)
        assert all(one.bgcolor is None or one.bgcolor.is_default for one in styles)
        assert any(one.reverse for one in styles)  # the cursor is seen
