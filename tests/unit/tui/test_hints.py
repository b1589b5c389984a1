"""Hints name keys as their user has them."""

import re
from pathlib import Path

import pytest
from textual.app import App

import tui
from tui import keymap
from tui.hints import key_of
from tui.screens.frame import size_warning

IDS = {name for name, _, _ in keymap.table({})}
NAMED = re.compile(r"""key_of\((?:[\w.]+, )?["']([\w.-]+)["']\)""")


@pytest.mark.parametrize(
    ("keys", "called"),
    [
        ("", "n"),
        ("f5", "f5"),
        ("ctrl+f,x", "ctrl+f"),
        ("slash", "/"),
        ("escape,q", "esc"),
        ("space", "space"),
        ("up", "↑"),
    ],
)
def test_a_key_is_called_as_it_is_in_the_keymap_and_else_as_it_is_bound(keys, called):
    app = App()
    app.set_keymap({"sessions.submit": keys} if keys else {})
    assert key_of(app, "sessions.submit") == called


def test_every_key_that_is_named_in_a_hint_is_one():
    [folder] = tui.__path__
    named = {name for one in Path(folder).rglob("*.py") for name in NAMED.findall(one.read_text())}
    assert len(named) > 10
    assert named <= IDS
    with pytest.raises(KeyError):
        key_of(App(), "sessions.none-such")


def test_a_terminal_without_room_for_all_is_told_of():
    assert size_warning(80, 24) == size_warning(300, 100) == ""
    assert size_warning(79, 40) == "79x40 is below 80x24: compact view"
    assert "60x15" in size_warning(60, 15)
