"""How fast plots are read, and how much room what was reported takes.

Part of `bench.insight`; alone: python -m bench.insight_reads [--json]

Programs in sessions of a platform that was started for this report a million points of one metric, and 100
times 10,000. They are read from the control plane (SQLite) as soon as they are there, so that the first reads
come while the last points are folded, through gRPC by one client, at the widths of a terminal and of a
picture. The room is that of the history's files after the platform's end: points,
their coarser levels, indexes, and whatever else it keeps of the sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bench.insight_reporting import start, until_kept
from bench.platform import Platform
from bench.report import percentile, report
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
WIDTHS: Final = {"": 200, "_wide": 1_000}
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
        long = await _reported(client, [LONG])
        many = await _reported(client, [SHORT] * MANY)
        figures = {}
        for name, sessions, points in (("1m", long, LONG), ("100x10k", many, MANY * SHORT)):
            for suffix, width in WIDTHS.items():
                taken = await _taken_ms(client, sessions, points, width)
                figures[f"read_{name}{suffix}_p50_ms"] = percentile(taken, 0.5)
                figures[f"read_{name}{suffix}_p95_ms"] = percentile(taken, 0.95)
        return figures


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
    """How long reads take one after another, without the first."""
    request = sessions_pb2.ReadSeriesRequest(sessions=sessions, width=width)
    taken = []
    for _ in range(READS + 1):
        began = time.perf_counter()
        answers = await read_series(client, request)
        taken.append(1000 * (time.perf_counter() - began))
        found = sum(sum(one.finite) for answer in answers for one in answer.series)
        if found != points:
            raise AssertionError(f"{found:,} points are there and {points:,} were reported")
    return taken[1:]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
