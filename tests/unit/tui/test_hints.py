"""Hints name keys as their user has them."""

import re
from pathlib import Path

import pytest
from textual.app import App

import tui
from nsml.view.shell import shell_line
from tui import keymap
from tui.hints import copy_notes, key_of
from tui.screens.frame import small_words

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
    assert small_words(80, 24) == small_words(300, 100) == ""
    assert small_words(79, 40) == "79x40 is below 80x24: compact view"
    assert "60x15" in small_words(60, 15)


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [(["nsml", "run", "--", "a b"], False), (["nsml", "run", "--", "a\n"], True)],
)
def test_a_copied_command_says_which_shells_do_not_read_it(words, is_noted):
    assert bool(copy_notes(shell_line(words))) is is_noted


def test_a_copied_name_with_a_quote_needs_no_note():
    assert copy_notes("kim's") == []
