"""Readers of traces in time: who came when, with how many GPUs and for how long."""

from __future__ import annotations

import csv
import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

from bench.scheduler.simulator import Arrival
from bench.scheduler.traces import NO_TRACES, BadTrace, Row, Unfit, read_rows

if TYPE_CHECKING:
    from pathlib import Path

HOUR_S: Final = 3_600.0
LIMITS_S: Final = tuple(hours * HOUR_S for hours in (1, 4, 24, 72, 168))
"""Time limits that users of a Philly trace state: the least that is enough."""

MURI_COLUMNS: Final = {"num_gpu", "submit_time", "iterations", "iteration_time"}
PHILLY_COLUMNS: Final = {"num_gpus", "timestamp", "duration"}

MURI_STRETCH: Final = 1.015
"""Muri's simulator has every iteration take so much longer than measured; its published figures include that."""

MOST_GPUS: Final = 1_000_000
"""A cluster that is larger is a slip of the pen."""


def limit_for(run_time_s: float) -> float:
    """The limit that the user states: the run time rounded up; beyond a week, to whole weeks."""
    for limit_s in LIMITS_S:
        if run_time_s <= limit_s:
            return limit_s
    return math.ceil(run_time_s / LIMITS_S[-1]) * LIMITS_S[-1]


def is_muri(path: Path) -> bool:
    """Whether the header is Muri's, else Philly's.

    Raises:
        BadTrace: the file is absent, or its header is neither's
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header = set(next(csv.reader(file), ()))
    except FileNotFoundError:
        raise BadTrace(f"{path} {NO_TRACES}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as unreadable:
        raise BadTrace(f"{path} cannot be read: {unreadable}") from None
    if header >= MURI_COLUMNS:
        return True
    if header >= PHILLY_COLUMNS:
        return False
    raise BadTrace(
        f"{path} has neither the columns {', '.join(sorted(MURI_COLUMNS))} (Muri) "
        f"nor {', '.join(sorted(PHILLY_COLUMNS))} (Philly)"
    )


def read_muri(path: Path) -> list[Arrival]:
    """Sessions that can be resumed and state no limit; times in the file are milliseconds.

    Raises:
        BadTrace: the file is absent, or a row is not what a session is
    """

    def of_row(row: Row) -> Arrival:
        iteration_s = _number(row, "iteration_time") / 1000 * MURI_STRETCH
        run_time_s = _number(row, "iterations") * iteration_s
        submitted_at = _number(row, "submit_time") / 1000
        return Arrival(submitted_at, _gpus(row, "num_gpu"), run_time_s, is_resumable=True)

    return _in_order(path, read_rows(path, MURI_COLUMNS, of_row))


def read_philly(path: Path) -> list[Arrival]:
    """Sessions that cannot be resumed and state a limit; durations in the file are seconds.

    Raises:
        BadTrace: the file is absent, or a row is not what a session is
    """

    def of_row(row: Row) -> Arrival:
        run_time_s = _number(row, "duration")
        return Arrival(_instant(row), _gpus(row, "num_gpus"), run_time_s, limit_for(run_time_s))

    return _in_order(path, read_rows(path, PHILLY_COLUMNS, of_row))


def read_cluster(text: str) -> tuple[int, int]:
    """Nodes and GPUs of each, of text like 20x8.

    Raises:
        BadTrace: it is not of this form
    """
    match = re.fullmatch(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,3})", text, re.ASCII)
    if match is None or int(match[1]) * int(match[2]) > MOST_GPUS:
        raise BadTrace(f"--cluster {text!r} is not NODESxGPUS, as in 20x8")
    return int(match[1]), int(match[2])


def check_fits(path: Path, arrivals: list[Arrival], nodes: int, width: int) -> None:
    """Refuse a trace of which something never fits.

    Raises:
        BadTrace: a gang is wider than the cluster
    """
    widest = max(one.gpus for one in arrivals)
    if widest > nodes * width:
        raise BadTrace(f"{path} asks for {widest} GPUs at once, of a cluster of {nodes}x{width}")


def _in_order(path: Path, arrivals: list[Arrival]) -> list[Arrival]:
    if not arrivals:
        raise BadTrace(f"{path} holds no session")
    return sorted(arrivals, key=lambda one: one.submitted_at)


def _number(row: Row, column: str) -> float:
    try:
        number = float(row[column])
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise Unfit(f"{column} is {row[column]!r}")
    return number


def _gpus(row: Row, column: str) -> int:
    number = _number(row, column)
    if number != int(number) or not 1 <= number <= MOST_GPUS:
        raise Unfit(f"{column} is {row[column]!r}")
    return int(number)


def _instant(row: Row) -> float:
    try:
        # The trace names no zone: any one does, as only differences count.
        return datetime.fromisoformat(row["timestamp"] + "+00:00").timestamp()
    except ValueError:
        raise Unfit(f"timestamp is {row['timestamp']!r}") from None
