"""`nsml-tui` as a program, in a terminal of its own."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import pytest
from click.testing import CliRunner

from nsml.client import contexts
from nsml.client.contexts import Config, Context
from tests.unit.nsml.client.contract_server import TOKEN
from tests.unit.tui.conftest import WITHIN_S
from tui import main

LEFT = b"\x1b[?1049l"
"""The screen of before is back."""


@pytest.mark.parametrize(
    ("how", "code"), [("ctrl-q", 0), ("SIGTERM", 128 + signal.SIGTERM)], ids=["ctrl-q", "SIGTERM"]
)
def test_however_it_ends_the_terminal_is_as_it_was(server, tmp_path, how, code):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    context = Context(name="test", server=server.address, token_file=str(token))
    contexts.save(Config(str(tmp_path), current="test", contexts={"test": context}))
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (40, 120))
    environment = {**os.environ, "NSML_CONFIG_DIR": str(tmp_path), "TERM": "xterm-256color"}
    program = [sys.executable, "-c", "from tui.main import main; main()"]
    with subprocess.Popen(
        program, stdin=there, stdout=there, stderr=there, env=environment, start_new_session=True
    ) as run:
        os.close(there)
        try:
            seen = read_until(here, b"live")
            if how == "ctrl-q":
                os.write(here, b"\x11")
            else:
                run.send_signal(signal.SIGTERM)
            assert LEFT not in seen
            read_until(here, LEFT)
            assert run.wait(WITHIN_S) == code
        finally:
            run.kill()
            os.close(here)


def read_until(terminal, what):
    ends_at, seen = time.monotonic() + WITHIN_S, b""
    while what not in seen:
        is_more, _, _ = select.select([terminal], [], [], max(ends_at - time.monotonic(), 0))
        assert is_more, seen
        seen += os.read(terminal, 65_536)
    return seen


@pytest.fixture
def appearance(tmp_path, monkeypatch):
    """How it looks with these options, in an environment of nothing else."""

    def appearance(theme=None, in_ascii=None, **environ):
        for name in (*terminal_names(), *environ):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return main._appearance(theme, in_ascii=in_ascii)

    monkeypatch.setenv("NSML_CONFIG_DIR", str(tmp_path))
    return appearance


def terminal_names():
    locale = ("LANG", "LC_ALL", "LC_CTYPE")
    return (*locale, "TERM", "COLORTERM", "NO_COLOR", "SSH_CONNECTION", "TEXTUAL_ANIMATIONS")


def test_an_option_comes_before_what_is_kept_and_that_before_what_the_terminal_can(appearance):
    assert appearance(TERM="xterm-256color").theme == "dark"
    assert appearance(TERM="xterm").theme == "terminal"
    main._save_theme("light")
    assert appearance(TERM="xterm").theme == "light"
    assert appearance("colour-blind", TERM="xterm").theme == "colour-blind"
    bare = appearance("light", NO_COLOR="1", TERM="xterm-256color")
    assert (bare.theme, bare.is_colourless) == ("terminal", True)


def test_ascii_is_chosen_or_follows_from_the_terminal(appearance):
    assert not appearance(TERM="xterm-256color").is_ascii
    assert appearance(in_ascii=True, TERM="xterm-256color").is_ascii
    assert appearance(TERM="linux").is_ascii
    assert not appearance(in_ascii=False, TERM="linux").is_ascii
    foreign = appearance(LANG="C", TERM="xterm-256color")
    assert (foreign.is_ascii, foreign.has_letters) == (True, False)
    assert not appearance(SSH_CONNECTION="a 1 b 22").is_animated


def test_a_theme_is_kept_beside_what_else_is_set(appearance, tmp_path):
    context = Context(name="test", server="gpu.lab:18553")
    contexts.save(Config(str(tmp_path), current="test", contexts={"test": context}))
    main._save_theme("light")
    kept = contexts.load(os.environ)
    assert (kept.current, dict(kept.settings)) == ("test", {"theme": "light"})


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        ('[settings]\ntheme = "pink"\n', 2, "error: no theme 'pink' (settings.theme)\n  try: nsml"),
        ("[settings\n", 4, "is not sound TOML"),
    ],
)
def test_settings_that_say_nothing_are_told_in_a_line(appearance, tmp_path, config, code, said):
    (tmp_path / "config.toml").write_text(config)
    result = CliRunner().invoke(main.main, ["--demo", "--web"])
    assert (result.exit_code, said in result.output) == (code, True), result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["toy"], "error: unexpected argument: toy\n"),
        (["--hlep"], "error: no such option: --hlep\n  try: nsml-tui --help\n"),
        (["--theme", "pink"], "error: --theme: 'pink' is not one of 'dark', 'light', "),
        (["--port", "x"], "error: --port: 'x' is not a valid integer"),
        (["--theme"], "error: Option '--theme' requires an argument\n"),
    ],
)
def test_what_is_wrong_with_its_command_line_is_told_as_nsml_tells_it(words, said):
    result = CliRunner().invoke(main.main, words)
    assert result.exit_code == 2
    assert result.output.startswith(said)
    assert result.output.endswith("  try: nsml-tui --help\n")


@pytest.mark.parametrize(("given", "period"), [({}, 1 / 240), ({"TEXTUAL_FPS": "30"}, 1 / 30)])
def test_what_a_key_changes_waits_for_no_slow_frame(given, period):
    program = (
        "from tui.main import main; main(['--keys'], standalone_mode=False);"
        "from textual.screen import UPDATE_PERIOD; print(UPDATE_PERIOD)"
    )
    environ = {key: value for key, value in os.environ.items() if key != "TEXTUAL_FPS"} | given
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert float(done.stdout.split()[-1]) == period
