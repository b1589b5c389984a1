"""How fast plots are read, and how much room what was reported takes.

Part of `bench.insight`; alone: python -m bench.insight_reads [--json]

Programs in sessions of a platform that was started for this report a million points of one metric, and 100
times 10,000. They are read from the control plane (SQLite) through gRPC by one client, in 200 columns as a terminal
asks for, at once after the last point is kept: the first read (`_first_ms`) folds what is not folded yet, and
what follows is `_p50_ms` and `_p95_ms`. The same once all is folded is `_folded_...`, and in the 1,000 columns of a
picture `_wide_...`. The room is that of the history's files after the platform's end: points,
their coarser levels, indexes, and whatever else it keeps of the sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from bench.insight_reporting import PATIENCE_S, POLL_S, start, until_kept
from bench.platform import Platform
from bench.report import percentile, report
from controlplane.history.sql.series import FOLD_BYTES, FOLD_SERIES_BYTES
from nsml.client import contexts
from nsml.client.connect import connect
from nsml.client.streams import read_series
from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client

LONG: Final = 1_000_000
"""Points of one series."""
MANY: Final = 100
SHORT: Final = 10_000
"""Points of each of many."""
AT_ONCE: Final = 10
"""Programs that run beside one another."""
WIDTH: Final = 200
WIDE: Final = 1_000
READS: Final = 40
REPORTING: Final = """
import random, sys, nsml
loss, draw = 3.0, random.Random(1)
for step in range(int(sys.argv[1])):
    loss = 0.99999 * loss + draw.gauss(0, 0.01)
    nsml.report(step=step, train__loss=loss)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.insight_reads", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.parse_args()
    report(measure())


def measure() -> dict[str, float]:
    """All of it: milliseconds and bytes."""
    with Platform(options=["--embedded"]) as platform:
        figures = asyncio.run(_reads(platform))
        platform.nsml("down", "-y", timeout_s=120)
        files = platform.folder.glob("data/**/history.db*")
        size = sum(file.stat().st_size for file in files)
    return {**figures, "bytes_per_point": size / (LONG + MANY * SHORT)}


async def _reads(platform: Platform) -> dict[str, float]:
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    async with connect(context) as client:
        figures: dict[str, float] = {}
        for name, counts in (("1m", [LONG]), ("100x10k", [SHORT] * MANY)):
            sessions = await _reported(client, counts)
            first, *taken = await _taken_ms(client, sessions, sum(counts), WIDTH)
            figures[f"read_{name}_first_ms"] = first
            figures |= _told(f"read_{name}", taken)
            await _until_folded(platform)
            for kind, width in (("folded", WIDTH), ("wide", WIDE)):
                taken = await _taken_ms(client, sessions, sum(counts), width)
                figures |= _told(f"read_{name}_{kind}", taken[1:])
        return figures


def _told(name: str, taken: list[float]) -> dict[str, float]:
    return {f"{name}_p50_ms": percentile(taken, 0.5), f"{name}_p95_ms": percentile(taken, 0.95)}


async def _until_folded(platform: Platform) -> None:
    """Return once as little is unfolded of every session as is not worth a turn."""
    [path] = platform.folder.glob("data/**/history.db")
    deadline = time.monotonic() + PATIENCE_S
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as history:
        while history.execute(
            "SELECT 1 FROM series_folds WHERE waiting >= ? + ? * series",
            (FOLD_BYTES, FOLD_SERIES_BYTES),
        ).fetchone():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not everything is folded after {PATIENCE_S:g} s")
            await asyncio.sleep(POLL_S)


async def _reported(client: Client, counts: Sequence[int]) -> list[str]:
    """The ids of sessions whose programs have reported so many points each."""
    sessions: list[str] = []
    for at in range(0, len(counts), AT_ONCE):
        some = counts[at : at + AT_ONCE]
        started = [await start(client, REPORTING, str(count)) for count in some]
        for session, count in zip(started, some, strict=True):
            await until_kept(client, session.id, count)
        sessions += [session.id for session in started]
    return sessions


async def _taken_ms(
    client: Client, sessions: Sequence[str], points: int, width: int
) -> list[float]:
    """How long each of some reads takes, one after another."""
    request = sessions_pb2.ReadSeriesRequest(sessions=sessions, width=width)
    taken = []
    for _ in range(READS + 1):
        began = time.perf_counter()
        answers = await read_series(client, request)
        taken.append(1000 * (time.perf_counter() - began))
        found = sum(sum(one.finite) for answer in answers for one in answer.series)
        if found != points:
            raise AssertionError(f"{found:,} points are there and {points:,} were reported")
    return taken


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
