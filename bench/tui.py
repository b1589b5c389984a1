"""What the dashboard feels like: `nsml-tui` in a terminal of 120 x 40, on a platform with 10,000 sessions.

It is the installed program in a pty, and talks over gRPC to `bench.many_sessions`, a process of its own. What it writes
is taken in by a small terminal (pyte), which says when a screen has what is waited for; the moment counts at which
the bytes for it came.

- `first_paint_ms`, `live_ms`: from the start of the process until anything is on the screen, and until all sessions
  are, and the platform is `live`: medians of ROUNDS. `start_over_python`: first paint over `python -c pass`.
- `key_p50_ms`, `key_p95_ms`: from an arrow key until the cursor is on another session; `busy_key_p95_ms`: the same
  while 200 sessions a second change. `key_bytes`: what is written for one, in the middle.
- `filter_p95_ms`: from a character of a filter until the number of sessions that fit is another; `sort_p95_ms`: from
  `O` until the list, which is sorted by a number of the summary, is the other way round.
- `zoom_1m_p95_ms`: from `+` in the charts of a session with a million points until other columns are drawn. The
  generator keeps the points in memory: what a control plane takes to read them is `bench.insight --parts reads`.
- `cpu_pct`, `bytes_per_s`: of one processor, and to the terminal, over WINDOW_S seconds with 200 changes a second;
  `idle_cpu_pct`, `idle_bytes_per_s`: with none. `rss_bytes`: at the end.

    python -m bench.tui [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.many_sessions import METRIC, POINTS, SESSIONS
from bench.platform import PROGRAMS, ROOT
from bench.report import percentile, report
from bench.startup import wall_ms
from bench.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

ROUNDS: Final = 5
KEYS: Final = 100
CHANGES_A_SECOND: Final = 200
WINDOW_S: Final = 10.0
SETTLE_S: Final = 3.0
"""After something else was done, before what goes on by itself is measured."""
FILTERS: Final = ("mnist", "kim 99", "second", "state:run", "state:fai", "lr>=1e-3")
FILTER_ROUNDS: Final = 3
SORTS: Final = 20
ZOOMS: Final = 8
"""Each into a half: the last draws 4,000 points."""
DOWN, UP, ESCAPE, ENTER = "\x1b[B", "\x1b[A", "\x1b", "\r"
_CURSOR_COLUMN: Final = 3
_FIRST, _LAST = 4, 23
"""Lines of sessions."""
_COUNTS: Final = re.compile(r" ([\d,]+) of [\d,]+ sessions")
_ALL: Final = f"{SESSIONS:,} of {SESSIONS:,} sessions"


class Platform:
    """The generator, in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.many_sessions"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise AssertionError("bench.many_sessions ended before it served")

    def rate(self, changes: float) -> None:
        """So many sessions change each second from here on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"rate {changes:g}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


@contextmanager
def platform() -> Generator[tuple[Platform, Mapping[str, str]], None, None]:
    """A platform, and the variables of programs that talk to it."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="nsml-"))
        stack.callback(shutil.rmtree, folder)
        (folder / "token").write_text("token\n")
        (folder / "token").chmod(0o600)
        running = Platform()
        stack.callback(running.close)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("NSML_")},
            "NSML_CONFIG_DIR": str(folder),
            "XDG_STATE_HOME": str(folder),
            "NSML_SERVER": running.address,
            "NSML_TOKEN_FILE": str(folder / "token"),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }
        environment.pop("NO_COLOR", None)
        yield running, environment


class Dashboard:
    """`nsml-tui`, and what is seen of it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.terminal = Terminal([str(PROGRAMS / "nsml-tui")], environment)

    def is_live(self) -> bool:
        """All sessions are there."""
        text = self.terminal.text()
        return "● live" in text and _ALL in text and "/mnist/" in text

    def cursor(self) -> tuple[int, str]:
        """The line that is marked as the one under the cursor, and its session; -1: none is."""
        terminal = self.terminal
        behind = [terminal.background(number, _CURSOR_COLUMN) for number in range(_FIRST, _LAST)]
        for number, colour in enumerate(behind, _FIRST):
            if behind.count(colour) == 1 and "/mnist/" in (line := terminal.line(number)):
                return number, line.split()[0]
        return -1, ""

    def fitting(self) -> str:
        """How many sessions the list says that it has."""
        found = _COUNTS.match(self.terminal.line(_FIRST - 2))
        return found[1] if found else ""

    def title(self) -> str:
        """What the chart of the metric says of itself."""
        lines = map(self.terminal.line, range(_LAST))
        return next((line for line in lines if METRIC in line and "points" in line), "")

    def key_ms(self, keys: str, seen: Callable[[], object]) -> float:
        """From a key until what is seen is something else."""
        self.terminal.settle()
        before = seen()
        return self.terminal.answer_ms(keys, lambda: bool(seen()) and seen() != before)


def starts(environment: Mapping[str, str], rounds: int) -> dict[str, float]:
    """How soon there is something, and everything; after one that is not counted."""
    painted, live, python = [], [], []
    for number in range(rounds + 1):
        bare = wall_ms([sys.executable, "-c", "pass"], environment)
        dashboard = Dashboard(environment)
        with dashboard.terminal as terminal:
            painted_at = terminal.until(lambda: bool(terminal.text().strip()))
            live_at = terminal.until(dashboard.is_live)
        if number:
            python.append(bare)
            painted.append(1000 * (painted_at - terminal.began))
            live.append(1000 * (live_at - terminal.began))
    first = statistics.median(painted)
    return {
        "first_paint_ms": first,
        "live_ms": statistics.median(live),
        "start_over_python": first / statistics.median(python),
    }


def moves(dashboard: Dashboard) -> tuple[list[float], float]:
    """Milliseconds of each arrow key, and the bytes of one in the middle."""
    terminal, taken, written = dashboard.terminal, [], []
    terminal.type("g")
    terminal.until(lambda: dashboard.cursor()[0] >= 0)
    terminal.receive_for(1.0)
    for number in range(KEYS):
        terminal.settle()
        before = terminal.received
        key = DOWN if number % 10 < 7 else UP
        taken.append(dashboard.key_ms(key, dashboard.cursor))
        written.append(terminal.received - before)
    return taken, statistics.median(written)


def filters(dashboard: Dashboard) -> list[float]:
    """Milliseconds of each character that changes what fits."""
    terminal, taken = dashboard.terminal, []
    for text in FILTERS * FILTER_ROUNDS:
        terminal.type("/")
        terminal.receive_for(0.3)
        for character in text:
            terminal.settle()
            before, pressed = dashboard.fitting(), terminal.type(character)
            ends_at = pressed + 0.5
            while time.perf_counter() < ends_at:
                terminal.receive(ends_at - time.perf_counter())
                if dashboard.fitting() != before:
                    taken.append(1000 * (terminal.received_at - pressed))
                    break
        terminal.type(ESCAPE)
        terminal.until(lambda: _ALL in terminal.text())
    return taken


def sorts(dashboard: Dashboard) -> list[float]:
    """Milliseconds of each `O` in a list that is sorted by loss, until another session is the first."""
    terminal = dashboard.terminal

    def choose(text: str) -> None:
        terminal.type("o")
        terminal.until(lambda: "Sort by" in terminal.text())
        terminal.type(text)
        terminal.receive_for(0.5)
        terminal.type(ENTER)
        terminal.until(lambda: "Sort by" not in terminal.text())
        terminal.receive_for(1.0)

    def first() -> str:
        return terminal.line(_FIRST).split()[0]

    choose("loss")
    taken = [dashboard.key_ms("O", first) for _ in range(SORTS)]
    choose("created")
    return taken


def zooms(dashboard: Dashboard) -> list[float]:
    """Milliseconds of each `+` in the charts of the newest session, which has a million points."""
    terminal, taken = dashboard.terminal, []
    terminal.type("g")
    terminal.type(ENTER)
    terminal.until(lambda: "Overview" in terminal.text())
    terminal.type("p")
    whole = f"{POINTS:,} points"
    for _ in range(3):
        terminal.until(lambda: whole in dashboard.title())
        taken += [dashboard.key_ms("+", dashboard.title) for _ in range(ZOOMS)]
        terminal.type("0")
    terminal.until(lambda: whole in dashboard.title())
    terminal.type(ESCAPE)
    terminal.until(lambda: _ALL in terminal.text())
    return taken


def window(dashboard: Dashboard) -> tuple[float, float]:
    """Per cent of a processor, and bytes a second, while nobody presses anything."""
    terminal = dashboard.terminal
    terminal.receive_for(SETTLE_S)
    before, spent, began = terminal.received, _cpu_s(terminal), time.perf_counter()
    terminal.receive_for(WINDOW_S)
    took = time.perf_counter() - began
    return 100 * (_cpu_s(terminal) - spent) / took, (terminal.received - before) / took


def _cpu_s(terminal: Terminal) -> float:
    times = terminal.process.cpu_times()
    return float(times.user + times.system)


def measure(rounds: int = ROUNDS) -> dict[str, float]:
    """The figures."""
    with platform() as (running, environment):
        figures = starts(environment, rounds)
        dashboard = Dashboard(environment)
        with dashboard.terminal as terminal:
            terminal.until(dashboard.is_live)
            figures["idle_cpu_pct"], figures["idle_bytes_per_s"] = window(dashboard)
            keys, figures["key_bytes"] = moves(dashboard)
            figures["key_p50_ms"] = statistics.median(keys)
            figures["key_p95_ms"] = percentile(keys, 0.95)
            figures["filter_p95_ms"] = percentile(filters(dashboard), 0.95)
            figures["sort_p95_ms"] = percentile(sorts(dashboard), 0.95)
            figures["zoom_1m_p95_ms"] = percentile(zooms(dashboard), 0.95)
            running.rate(CHANGES_A_SECOND)
            figures["cpu_pct"], figures["bytes_per_s"] = window(dashboard)
            figures["busy_key_p95_ms"] = percentile(moves(dashboard)[0], 0.95)
            figures["rss_bytes"] = float(terminal.process.memory_info().rss)
    return figures


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="bench.tui", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="starts that are measured")
    report(measure(max(parser.parse_args().rounds, 1)))


if __name__ == "__main__":
    main()
