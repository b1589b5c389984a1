import pytest

from cli.app import App
from cli.progress import Progress
from nsml.common.text import width
from tests.unit.cli.conftest import Stream


class Clock:
    def __init__(self):
        self.now = 100.0

    def time(self):
        return self.now

    def monotonic(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def transfer(clock, *, terminal, seconds, **environ):
    app = App(environ=environ, stderr=Stream(is_terminal=terminal), given_clock=clock)
    progress = Progress(app, "sending")
    for part in range(101):
        progress.update(part * 10_000, 1_000_000)
        clock.now += seconds / 100
    progress.close()
    return app.stderr.raw_bytes.decode()


def test_a_line_for_every_tenth(clock):
    lines = transfer(clock, terminal=False, seconds=100).splitlines()
    assert lines == [f"sending {tenth * 10}% of 1.0 MB" for tenth in range(1, 11)]


def test_what_is_over_at_once_is_not_told(clock):
    assert transfer(clock, terminal=False, seconds=0.5) == ""


def test_one_line_redrawn_on_a_terminal_and_then_gone(clock):
    shown = transfer(clock, terminal=True, seconds=5)
    assert "\n" not in shown
    assert "100% of 1.0 MB" in shown
    assert shown.endswith("\r\x1b[K")
    assert shown.count("\r") <= 5 / 0.1 + 3


@pytest.mark.parametrize("environ", [{"NSML_ACCESSIBLE": "1"}, {"TERM": "dumb"}])
def test_nothing_is_redrawn_where_it_must_not_be(clock, environ):
    shown = transfer(clock, terminal=True, seconds=100, **environ)
    assert "\r" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("columns", [1, 10, 20, 30, 44, 45, 46, 80])
def test_the_line_is_one_line_of_any_terminal(clock, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = transfer(clock, terminal=True, seconds=5, COLUMNS=str(columns))
    lines = [line.removeprefix("\x1b[K") for line in shown.split("\r")]
    assert max(map(width, lines)) < columns
    assert ("█" in shown) == (columns >= 30)
    assert any("100% of 1.0 MB" in line for line in lines) == (columns >= 30)
