"""The user's own keys: keymap.toml."""

import pytest
from click.testing import CliRunner

from tests.unit.tui.conftest import said, until
from tests.unit.tui.story import demo
from tui.keymap import PRESETS, KeymapError, clashing, normal, parts, read, table
from tui.main import main
from tui.widgets.keys import Keys


@pytest.fixture(scope="module")
def every_part():
    return parts()


@pytest.fixture
def keymap(tmp_path, every_part):
    """What a file with this text says."""

    def keymap(text):
        path = tmp_path / "keymap.toml"
        path.write_text(text, encoding="utf-8-sig", newline="\r\n")
        return read(path, every_part)

    return keymap


def test_a_file_says_keys_by_id_over_those_of_its_preset(keymap):
    said = keymap(
        'preset = "vim"\ntable.page-up = "pageup"\n[sessions]\nfilter = "f5, /"\nmark = [","]\n'
    )
    assert said["sessions.filter"] == "f5,slash"
    assert said["sessions.mark"] == "comma"
    assert said["table.page-up"] == "pageup"
    assert said["table.page-down"] == PRESETS["vim"]["table.page-down"]


def test_without_a_file_nothing_is_said(tmp_path, every_part):
    assert read(tmp_path / "keymap.toml", every_part) == {}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_of_bindings_that_there_are_and_clash_nowhere(preset, every_part):
    ids = {binding.id for bindings in every_part.values() for binding in bindings}
    assert set(PRESETS[preset]) <= ids
    assert clashing(every_part, PRESETS[preset]) == ""
    for keys in PRESETS[preset].values():
        assert all(normal(key) == key for key in keys.split(","))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[sessions", "is not sound TOML"),
        pytest.param("a = " + "[" * 100_000, "is not sound TOML", id="nested without end"),
        pytest.param("a = " + "9" * 5_000, "is not sound TOML", id="a number without end"),
        ('"\\u001b[2J" = "f"', "␛[2J: there is no such id"),
        ('preset = "nano"', "preset: one of default, vim, emacs"),
        ('sessions.filtr = "f"', "sessions.filtr: there is no such id"),
        ("sessions.filter = 3", "sessions.filter: a key"),
        ("sessions.filter = []", "sessions.filter: a key"),
        ('sessions.filter = "crtl+f"', "sessions.filter: there is no key 'crtl+f'"),
        ('sessions.filter = "ctrl+F"', "there is no key 'ctrl+F'"),
        ('sessions.filter = "x"', "x: both sessions.compare and sessions.filter where Sessions"),
        ('sessions.filter = "1"', "1: both go.sessions and sessions.filter"),
    ],
)
def test_what_says_nothing_is_told_in_a_line_with_its_place(
    keymap, tmp_path, monkeypatch, text, why
):
    with pytest.raises(KeymapError, match=r"keymap\.toml") as raised:
        keymap(text)
    assert why in raised.value.message
    monkeypatch.setenv("NSML_CONFIG_DIR", str(tmp_path))
    result = CliRunner().invoke(main, ["--keys"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_keys_that_are_exchanged_do_not_clash(keymap):
    assert keymap('sessions.filter = "x"\nsessions.compare = "slash"')


def test_the_table_has_every_id_with_its_keys(tmp_path, monkeypatch, every_part):
    ids = {one.id for bindings in every_part.values() for one in bindings if one.id}
    assert {row[0] for row in table({})} == ids
    rows = {name: keys for name, keys, _ in table({"app.help": "slash,comma,ctrl+h"})}
    assert (rows["app.mouse"], rows["app.help"]) == ("%", "/,comma,ctrl+h")
    every = {key for keys in rows.values() for key in keys.split(",")}
    assert all(normal(key) is not None for key in every)
    (tmp_path / "keymap.toml").write_text('sessions.filter = "f5"\n')
    monkeypatch.setenv("NSML_CONFIG_DIR", str(tmp_path))
    result = CliRunner().invoke(main, ["--keys"])
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines() if "sessions.filter" in line] == [
        ["sessions.filter", "f5", "Filter"]
    ]


async def test_the_foot_of_a_screen_is_made_anew_only_where_its_keys_are_others():
    app = demo()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "Mark" in said(app))
        await until(pilot, lambda: app.screen.table.items)
        await pilot.pause()
        foot = app.screen.query_one(Keys)
        before = list(foot.children)
        app.screen.refresh_bindings()
        await pilot.pause()
        assert list(foot.children) == before
        await pilot.press("slash")
        await until(pilot, lambda: foot.children and foot.children[0] not in before)


async def test_another_key_does_it_and_the_foot_of_the_screen_says_so():
    app = demo()
    app.set_keymap({"sessions.mark": "f6"})
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "f6 Mark" in said(app))
        await until(pilot, lambda: app.screen.table.items)
        await pilot.press("space")
        assert not app.screen._marks
        await pilot.press("f6")
        await until(pilot, lambda: app.screen._marks)
