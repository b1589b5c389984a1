"""A pytest plugin: what each test takes, in seconds of the clock and of the processor.

`--record-durations FILE` writes them by file, and by test for all but the shortest. The record in `tests/durations.json` decides
which files start first, which tests are in the fast lane or need a reason for what they take
(`tests/lanes.py`), and how tests are dealt to shares (`tests/shares.py`).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

RECORD = Path(__file__).with_name("durations.json")
SHORT_S = 0.5
"""Tests that take less, of the clock and of the processor, are not in the record."""
_CPU = "cpu_s"
_NOTHING: dict[str, dict[str, list[float]]] = {"files": {}, "tests": {}}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record-durations`."""
    parser.addoption(
        "--record-durations", metavar="FILE", help="write what each test takes, as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect in pytest's main process what its workers report."""
    to = config.getoption("--record-durations")
    if to and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(Path(to)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the processor time at the start of each test."""
    item.stash[_AT_START] = _processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send with the last report of a test what it took."""
    report = yield
    if report.when == "teardown":
        report.user_properties.append((_CPU, _processor_s() - item.stash[_AT_START]))
    return report


_AT_START = pytest.StashKey[float]()


def _processor_s() -> float:
    """Of this process and of its children that have ended; daemons that a test starts are not seen."""
    times = os.times()
    return sum(times[:4])


class _Recorder:
    """Sums up the reports of all workers."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._wall_s: dict[str, float] = defaultdict(float)
        self._cpu_s: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a test."""
        self._wall_s[report.nodeid] += report.duration
        self._cpu_s[report.nodeid] += dict(report.user_properties).get(_CPU, 0.0)

    def pytest_sessionfinish(self) -> None:
        """Write the record: what ran, and of other tests that there still are what was known."""
        measured = {
            nodeid: [wall_s, self._cpu_s[nodeid]] for nodeid, wall_s in self._wall_s.items()
        }
        record = json.loads(self._to.read_text()) if self._to.exists() else _NOTHING
        measured |= {
            nodeid: taken
            for nodeid, taken in record["tests"].items()
            if nodeid not in measured and _is_there(nodeid)
        }
        files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for nodeid, (wall_s, cpu_s) in measured.items():
            file = files[nodeid.partition("::")[0]]
            file[0] += wall_s
            file[1] += cpu_s
        tests = {nodeid: taken for nodeid, taken in measured.items() if max(taken) >= SHORT_S}
        ran = {nodeid.partition("::")[0] for nodeid in self._wall_s}
        files |= {  # their short tests, too
            path: taken
            for path, taken in record["files"].items()
            if path not in ran and (RECORD.parent.parent / path).exists()
        }
        record = {"files": _rounded(files), "tests": _rounded(tests)}
        self._to.write_text(json.dumps(record, indent=0) + "\n")


def _is_there(nodeid: str) -> bool:
    """Whether a test may still be there: a lane runs only some."""
    file, _, test = nodeid.partition("::")
    name = test.partition("[")[0].rpartition("::")[2]
    path = RECORD.parent.parent / file
    return path.exists() and f"def {name}(" in path.read_text(encoding="utf-8")


def _rounded(record: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [round(value, 1) for value in values] for name, values in sorted(record.items())}
