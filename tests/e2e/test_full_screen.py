"""Programs that draw on the whole terminal, in `nsml sh` within tmux: each screen as in a bare tmux of that size."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.platform import PROGRAMS
from tests.e2e.platforms import LEVELS, end_all, platform_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIZES = [(120, 40), (41, 9), (200, 50), (80, 24)]
STORM = [(60 + 7 * number % 40, 12 + 5 * number % 23) for number in range(20)]
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(3600)\n"
TEXT = "".join(f"{number} 漢字 é {'x' * number}\n" for number in range(1, 80))
DRAWS = r"""
import curses
import os

def draw(screen):
    screen.timeout(500)  # a signal between curses' look for one and its read is seen at the next
    drawn = None
    while True:
        if drawn != screen.getmaxyx():
            rows, columns = drawn = screen.getmaxyx()
            screen.erase()
            screen.border()
            words = f"{columns}x{rows}"
            screen.addstr(rows // 2, (columns - len(words)) // 2, words, curses.A_REVERSE)
            screen.refresh()
        # Past curses: while it draws, it ignores C-z and may drop a key. What shows this waits for keys.
        os.write(1, f"\x1b7\x1b[m\x1b[2;3H{columns} x {rows} is drawn\x1b8".encode())
        if screen.getch() == ord("q"):
            return

curses.wrapper(draw)
"""
of_processes = pytest.mark.parametrize("platform", ["processes"], indirect=True)


def program(*names: str) -> str:
    """The first of these that is there; a skip, or with NSML_REQUIRE_TMUX=1 a failure, where none is."""
    for name in names:
        if shutil.which(name):
            return name
    if os.environ.get("NSML_REQUIRE_TMUX"):
        pytest.fail(f"no program {names[0]}, and NSML_REQUIRE_TMUX is set")
    pytest.skip(f"there is no program {names[0]}")


@pytest.fixture(scope="module", params=LEVELS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    program("tmux")
    with platform_of(request.param) as running:
        yield running
        end_all(running, request.param)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_program(tmp_path_factory.mktemp("full") / "code", WAITS)
    (folder / "text").write_text(TEXT)
    (folder / "draws.py").write_text(DRAWS)
    return folder


@pytest.fixture(scope="module")
def session(platform: Platform, code: Path) -> str:
    small = ("-g", "0", "-c", "0.5", "--memory", "1G", "--grace", "1s")
    name = platform.nsml("run", *small, "-o", "name", cwd=code).stdout.strip()
    wait_for(lambda: "ready" in platform.nsml("logs", name).stdout, what=f"{name} runs")
    return name


class Screen:
    """A tmux of its own, with one window in which a command runs."""

    def __init__(self, socket: Path, command: str, *, environment: dict[str, str], cwd: Path):
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        self._environment = environment
        start = ["new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", command]
        subprocess.run([*self._tmux, *start], check=True, env=environment, cwd=cwd)

    def _told(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], check=True, env=self._environment, capture_output=True, text=True
        )
        return done.stdout

    def resize(self, columns: int, rows: int) -> None:
        self._told("resize-window", "-x", str(columns), "-y", str(rows))

    def type(self, text: str, *keys: str) -> None:
        """Type a text, then keys by their names."""
        if text:
            self._told("send-keys", "-l", text)
        if keys:
            self._told("send-keys", *keys)

    def lines(self) -> list[str]:
        return self._told("capture-pane", "-p").split("\n")[:-1]

    def shows(self, *patterns: str) -> None:
        """Wait until each of these is in some line."""
        looked(
            lambda: all(any(re.search(one, line) for line in self.lines()) for one in patterns),
            f"{patterns} on the screen",
            self,
        )

    def waits(self) -> None:
        """Wait for a shell that waits for a line: what is typed sooner is for the program that ends."""
        looked(
            lambda: re.search(r"[$#] *\Z", "\n".join(self.lines()).rstrip("\n")) is not None,
            "a prompt",
            self,
        )

    def modes(self) -> str:
        """Whether a program has the other screen, hides the cursor, or gets the mouse."""
        return self._told(
            "display", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag}"
        ).strip()

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


_SIZE = ("COLUMNS", "LINES")
USUAL = "0 1 0"
"""The modes of a terminal in which a shell waits for a line."""


@pytest.fixture
def screens(
    platform: Platform, session: str, tmp_path: Path, code: Path
) -> Iterator[tuple[Screen, Screen]]:
    """A shell in the session, and one without nsml in a copy of its folder."""
    home = tmp_path / "home"
    home.mkdir()
    # Workers of xdist have the size of the terminal that the tests began in, which curses would believe.
    own = {name: value for name, value in platform.environment.items() if name not in _SIZE}
    environment = {
        **own,
        "LC_ALL": "C.UTF-8",
        "HOME": str(home),
        "ENV": "",
        "PS1": "bare$ ",
    }
    inside = Screen(
        tmp_path / "inside.tmux",
        f"{PROGRAMS / 'nsml'} sh {session}; echo code $?; exec cat",
        environment=environment,
        cwd=tmp_path,
    )
    folder = shutil.copytree(code, tmp_path / "bare")
    bare = Screen(tmp_path / "bare.tmux", "exec sh", environment=environment, cwd=folder)
    try:
        inside.waits()
        bare.waits()
        yield inside, bare
    finally:
        inside.close()
        bare.close()


def looked(condition: Callable[[], bool], what: str, *screens: Screen) -> None:
    """Wait until it holds; what the screens show is told where it does not."""
    try:
        wait_for(condition, what=what)
    except AssertionError as error:
        raise AssertionError(
            "\n".join([str(error), *(f"{one.lines()}" for one in screens)])
        ) from error


def alike(both: tuple[Screen, Screen], what: str) -> None:
    """Wait until both screens show the same."""
    inside, bare = both
    looked(lambda: inside.lines() == bare.lines(), what, *both)


def typed(both: tuple[Screen, Screen], text: str, *keys: str) -> None:
    for one in both:
        one.type(text, *keys)


def resized(both: tuple[Screen, Screen], columns: int, rows: int) -> None:
    for one in both:
        one.resize(columns, rows)


@pytest.mark.every_time
@of_processes
def test_vim_draws_writes_and_is_suspended_as_without_nsml(
    platform: Platform, session: str, screens: tuple[Screen, Screen], tmp_path: Path
) -> None:
    inside, _ = screens
    vim = program("vim", "vim.tiny")

    def asks(question: str, answer: str) -> bool:
        """Whether it was answered so: vim may draw a size anew behind an answer, or hear of it behind a question."""
        is_answered = all(one.lines()[-1].strip() == answer for one in screens)
        if not is_answered:
            typed(screens, f":set {question}?", "Enter")
        return is_answered

    def has_size(columns: int, rows: int) -> None:
        for name, value in (("columns", columns), ("lines", rows)):
            looked(
                lambda name=name, value=value: asks(name, f"{name}={value}"),
                f"vim has {name}={value}",
                *screens,
            )
        typed(screens, "zt")  # what was in sight before decides what is without
        # In the last line is the answer, unless vim has drawn the size once more since.
        looked(
            lambda: screens[0].lines()[:-1] == screens[1].lines()[:-1],
            f"vim at {columns} x {rows}",
            *screens,
        )

    typed(screens, f"{vim} -u NONE -i NONE -N text", "Enter")
    inside.shows("^1 漢字")
    alike(screens, "vim has opened")
    typed(screens, "40G$")
    for columns, rows in SIZES:
        resized(screens, columns, rows)
        has_size(columns, rows)
    for columns, rows in STORM:
        inside.resize(columns, rows)
    resized(screens, 90, 30)
    has_size(90, 30)

    typed(screens, "", "C-z")
    for one in screens:
        one.shows("Stopped|suspended")
        one.waits()
    assert inside.modes() == USUAL
    typed(screens, "fg", "Enter")
    alike(screens, "vim goes on")
    typed(screens, "GoLast é line", "Escape")
    alike(screens, "a line is typed")
    typed(screens, ":w! written", "Enter")
    alike(screens, "it is written")
    typed(screens, ":q!", "Enter")
    inside.waits()
    inside.type("echo le''ft", "Enter")
    inside.shows("^left$")
    assert inside.modes() == USUAL
    written = platform.nsml("sh", session, "--", "cat", "written").stdout
    assert written == TEXT + "Last é line\n"
    assert (tmp_path / "bare" / "written").read_text() == written


@of_processes
def test_htop_follows_the_size_and_leaves_the_terminal_as_it_was(
    screens: tuple[Screen, Screen],
) -> None:
    inside, bare = screens
    program("htop")

    def drawn(one: Screen) -> tuple[list[int], set[int], str]:
        """What depends on the size alone: the line above the table, where the meters on the left end, the last line."""
        lines = one.lines()
        table = [row for row, line in enumerate(lines) if re.match(r" +PID USER", line)]
        ends = {len(found[0]) for line in lines if (found := re.match(r" +\w+\[[^]]*\]", line))}
        return table, ends, lines[-1]

    typed(screens, "htop", "Enter")
    for columns, rows in [*SIZES, (100, 30)]:
        resized(screens, columns, rows)

        def is_drawn(columns: int = columns) -> bool:
            _, ends, last = shown = drawn(inside)
            of_size = len(ends) == 1 and abs(min(ends) - columns / 2) <= 2  # two columns of meters
            return of_size and last.startswith("F1Help") and shown == drawn(bare)

        looked(is_drawn, f"htop at {columns} x {rows}", *screens)
    assert inside.modes() != USUAL
    typed(screens, "q")
    wait_for(lambda: inside.modes() == USUAL, what="htop has left the terminal")
    inside.waits()
    inside.type("echo le''ft", "Enter")
    inside.shows("^left$")


def test_a_screen_of_curses_and_the_keys_of_a_terminal(
    screens: tuple[Screen, Screen], request: pytest.FixtureRequest
) -> None:
    inside, bare = screens
    inside.type("python3 draws.py", "Enter")
    bare.type(f"{sys.executable} draws.py", "Enter")
    for one in screens:
        # curses misses a size that changes between its look at it and its handler of the signal
        one.shows(" 80 x 24 is drawn")
    for columns, rows in SIZES:
        resized(screens, columns, rows)
        for one in screens:
            one.shows(f" {columns} x {rows} is drawn")
        alike(screens, f"a frame of {columns} x {rows}")
    for columns, rows in STORM:
        inside.resize(columns, rows)
    resized(screens, 90, 30)
    inside.shows(" 90 x 30 is drawn")
    bare.shows(" 90 x 30 is drawn")
    alike(screens, "a frame after many sizes")

    inside.type("", "C-z")
    inside.shows("Stopped")
    inside.waits()
    inside.type("stty size; fg", "Enter")
    inside.shows(" 90 x 30 is drawn")
    inside.type("q")
    inside.shows("^30 90$")
    inside.waits()
    inside.type("sh -c 'echo sle''eps; exec sleep 4321'", "Enter")
    inside.shows("^sleeps$")
    inside.type("", "C-c")
    inside.waits()
    inside.type("echo co''de $?", "Enter")
    inside.shows("^code 130$")
    inside.waits()
    inside.type("python3 draws.py", "Enter")
    inside.shows(" 90 x 30 is drawn")
    inside.type("", "Enter")
    inside.type("~.")
    inside.shows("^code 255$", "disconnected")
    assert inside.modes() == USUAL
