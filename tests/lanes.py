"""A pytest plugin: which tests a lane runs, and in which order.

Without `--lane` all collected tests run but those marked `slow`. `--turn 2/4` keeps, of the tests that take
longer than `TURN_S`, the second of four shares: `make test` has one by the commit, so that a few commits
have run all of them, and `.ci/run` half of them; all: `make test TURN=1/1`. Marks:

- `slow`: long runs under faults, for `make soak` alone.
- `variant`: a test that also runs in another form (another driver, engine or seed) which finds the same
  defects nearly always. `make test` leaves variants out; `.ci/run` runs a share of them that changes
  with the commit.
- `every_time`: a path that users walk each day, or the only test of much code: it does not take turns.
- `long(reason)`: a test recorded at more than 20 seconds, and why it cannot be shorter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.durations import RECORD
from tests.shares import Share
from tests.support import examples

TESTS = Path(__file__).parent
UNIT, SIMULATION = TESTS / "unit", TESTS / "simulation"
DASHBOARD = UNIT / "tui"
LONG_S = 20.0
"""A test that is recorded to take longer needs a reason."""
UNKNOWN_S = 30.0
"""What a file without a record counts as, so that it does not come last."""
TURN_S = 1.5
"""A test that is recorded to take longer takes turns: one in thirty does, and they take more than half of the time."""
FAST_CPU_S = 1.0
"""A test that is recorded to take more of a processor is not in the fast lane."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--lane` and `--turn`."""
    parser.addoption("--lane", choices=sorted(LANES), help="which tests to run (tests/lanes.py)")
    parser.addoption(
        "--turn",
        metavar="K/N",
        default="1/1",
        help="of tests that take long, run only the K-th of N shares",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marks."""
    for line in (__doc__ or "").split("Marks:")[1].split("\n- "):
        if line.strip():
            config.addinivalue_line("markers", " ".join(line.replace("`", "").split()))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other lanes, and sort the rest."""
    _require_reasons(items)
    is_wanted = LANES[config.getoption("--lane") or "all"]
    kept = _in_turn([item for item in items if is_wanted(item)], config.getoption("--turn"))
    is_kept = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in is_kept])
    places = _order(_seconds(items, kept))
    items[:] = sorted(kept, key=lambda item: places[item.path])


def _in_turn(items: list[pytest.Item], text: str) -> list[pytest.Item]:
    """Leave out those that take long and whose turn it is not."""
    try:
        share = Share.parse(text)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    recorded = {item.nodeid: _TESTS.get(item.nodeid, (0.0, 0.0))[0] for item in items}
    takes_turns = {
        item.nodeid
        for item in items
        if recorded[item.nodeid] > TURN_S and item.get_closest_marker("every_time") is None
    }
    left_out = takes_turns - share.of_tests(takes_turns, recorded)
    return [item for item in items if item.nodeid not in left_out]


def _require_reasons(items: list[pytest.Item]) -> None:
    """Refuse tests that are recorded as long and do not say why."""
    for item in items:
        wall_s, _ = _TESTS.get(item.nodeid, (0.0, 0.0))
        mark = item.get_closest_marker("long")
        if wall_s > LONG_S and not _is_slow(item) and not (mark and mark.args):
            raise pytest.UsageError(
                f"{item.nodeid} is recorded at {wall_s:g} s (tests/durations.json): make it shorter,"
                f" or mark it @pytest.mark.long(reason)"
            )


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _is_variant(item: pytest.Item) -> bool:
    return item.get_closest_marker("variant") is not None


def _is_for_a_change(item: pytest.Item) -> bool:
    return not _is_slow(item) and not _is_variant(item)


def _is_fast(item: pytest.Item) -> bool:
    _, cpu_s = _TESTS.get(item.nodeid, (0.0, 0.0))
    needs_no_server = item.path.is_relative_to(UNIT) or item.path.is_relative_to(SIMULATION)
    return _is_for_a_change(item) and needs_no_server and cpu_s <= FAST_CPU_S


def _is_property(item: pytest.Item) -> bool:
    """Whether it has more examples, or seeds, where there is time (`tests/support/examples.py`)."""
    function = cast("pytest.Function", item)
    is_given = getattr(function.obj, "is_hypothesis_test", False)
    has_own = getattr(function.module, "examples", None) is examples.examples
    is_seeded = has_own and "seed" in function.fixturenames
    return not _is_slow(item) and (is_given or is_seeded)


LANES: dict[str, Callable[[pytest.Item], Any]] = {
    "all": lambda item: not _is_slow(item),
    "change": _is_for_a_change,
    "fast": _is_fast,
    "long": _is_slow,
    "properties": _is_property,
    "variants": lambda item: _is_variant(item) and not _is_slow(item),
}


def _order(seconds: dict[Path, float]) -> dict[Path, float]:
    """Put files that wait for programs among those that compute, the longest first, small ones last.

    Files of one kind after another would leave processors idle first and want more than there are
    then; a long one at the end would keep one worker while the others idle.
    """
    longest = sorted(seconds, key=lambda file: -seconds[file])
    small = [file for file in longest if file.is_relative_to(UNIT) and file.parent != DASHBOARD]
    places: dict[Path, float] = {file: 1.0 + number for number, file in enumerate(small)}
    for kind in (
        [file for file in longest if file.parent == DASHBOARD],
        [file for file in longest if not file.is_relative_to(UNIT)],
    ):
        places |= {file: number / len(kind) for number, file in enumerate(kind)}
    return places


def _seconds(items: list[pytest.Item], kept: list[pytest.Item]) -> dict[Path, float]:
    """What the kept tests of each file are recorded to take. A file without a record may be long."""
    names = {item.path: item.path.relative_to(TESTS.parent).as_posix() for item in kept}
    seconds = {file: _FILES.get(name, (UNKNOWN_S, 0.0))[0] for file, name in names.items()}
    # In the order of collection: sums of floats depend on theirs, and each worker must come to the same files' order.
    is_kept = set(kept)
    for item in items:
        if item not in is_kept and item.path in seconds:
            seconds[item.path] -= _TESTS.get(item.nodeid, (0.0, 0.0))[0]
    return seconds


_RECORD: dict[str, dict[str, tuple[float, float]]] = json.loads(RECORD.read_text())
_FILES, _TESTS = _RECORD["files"], _RECORD["tests"]
