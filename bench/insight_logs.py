"""Logs: a log of 1 GB opened at either end and searched, and how long a printed line takes to a follower.

python -m bench.insight_logs [--json] [--url postgresql://...] [--megabytes 1000]

Part of `bench.insight`. The 1 GB log is written to histories on the disk of the temporary folder: SQLite, and PostgreSQL where it is
installed or given by --url (use a database that is for nothing else). The line goes the whole way: from `print` in a
program of `nsml run` to the pipe that `nsml logs -f` writes to, of a platform of its own on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import tempfile
import textwrap
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.platform import PROGRAMS, Platform
from bench.report import percentile, report
from controlplane.history.postgresql import open_postgresql
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, StreamKey
from controlplane.records.log_matching import Matcher, Scanner, Search
from nsml.common.clock import SystemClock, in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controlplane.history.sql.history import History

MEGABYTES: Final = 1_000
CHUNK_BYTES: Final = 256 << 10
LAST_LINES: Final = 100
OPENINGS: Final = 30
PRINTED: Final = 120
"""Lines that are followed."""
LOG: Final = StreamKey("s-of-logs", 1, 0, Channel.LOG)
_PROGRAM: Final = f"""
    import random, time
    draw = random.Random(1)
    for number in range({PRINTED}):
        time.sleep(draw.uniform(0.02, 1.0))
        print("at", time.time_ns(), flush=True)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--url", help="a PostgreSQL database for this alone")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="how long the log is")
    options = parser.parse_args()
    report(measure(options.megabytes, options.url))


def measure(megabytes: int = MEGABYTES, url: str | None = None) -> dict[str, float]:
    """All of them; PostgreSQL's, where there is one, under names that begin with it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsml-bench-")))
        found = asyncio.run(_on_sqlite(folder / "history.db", megabytes))
        url = url or _private(stack)
        if url is not None:
            there = asyncio.run(_on_postgresql(url, megabytes))
            found |= {f"postgresql_{name}": value for name, value in there.items()}
    return found | follow_figures()


def _private(stack: ExitStack) -> str | None:
    from tests.support.postgres import PostgresServer, find_postgres  # noqa: PLC0415

    if find_postgres() is None:
        return None
    return stack.enter_context(stack.enter_context(PostgresServer()).database())


async def _on_sqlite(path: Path, megabytes: int) -> dict[str, float]:
    history = await open_history(path, clock=SystemClock(), run=in_thread)
    try:
        return await open_figures(history, megabytes)
    finally:
        await history.close()


async def _on_postgresql(url: str, megabytes: int) -> dict[str, float]:
    history = await open_postgresql(url, clock=SystemClock())
    try:
        return await open_figures(history, megabytes)
    finally:
        await history.close()


async def open_figures(history: History, megabytes: int = MEGABYTES) -> dict[str, float]:
    """How long the first page of a log and its last lines take, milliseconds (95th percentiles)."""
    await _write(history, megabytes * 1_000_000)
    read = history.streams.read_log
    whole_s = await _whole(history)
    found, search_s = await _searched(history)
    if found != 1:
        raise RuntimeError(f"{found} lines found, and not 1")
    return {
        "log_open_start_ms": await _openings_ms(lambda: read(LOG.session_id)),
        "log_open_end_ms": await _openings_ms(lambda: read(LOG.session_id, tail_lines=LAST_LINES)),
        "log_open_time_ms": await _openings_ms(
            lambda: history.streams.log_at(LOG.session_id, time.time() - 1)
        ),
        "log_read_mb_per_s": megabytes / whole_s,
        "search_mb_per_s": megabytes / search_s,
    }


async def _openings_ms(opening: Callable[[], Awaitable[object]]) -> float:
    taken = []
    for _ in range(OPENINGS):
        begin = time.perf_counter()
        await opening()
        taken.append(1e3 * (time.perf_counter() - begin))
    return percentile(taken, 0.95)


async def _whole(history: History) -> float:
    """Seconds to read it from end to end, as followers do."""
    begin, at = time.perf_counter(), 0
    while True:
        page = await history.streams.read_log(LOG.session_id, offset=at, limit_bytes=CHUNK_BYTES)
        at = page.next
        if page.next >= page.end:
            return time.perf_counter() - begin


async def _searched(history: History) -> tuple[int, float]:
    """How many lines a search of all of it finds, and in how many seconds: one in the middle."""
    begin, at, found = time.perf_counter(), 0, 0
    scanner = Scanner(Matcher(Search(pattern=r"loss: (nan|inf) at \d+$")), line=1)
    while True:
        page = await history.streams.read_log(LOG.session_id, offset=at, limit_bytes=CHUNK_BYTES)
        found += len(await in_thread(partial(scanner.feed, page)))
        at = page.next
        if page.next >= page.end:
            return found, time.perf_counter() - begin


async def _write(history: History, size: int) -> None:
    draw, number, first = random.Random(1), 0, 0
    while first < size:
        lines = []
        held = 0
        while held < CHUNK_BYTES:
            lines.append(
                b"epoch %d step %d loss %.6f accuracy %.6f lr 0.001 elapsed %.3f s\n"
                % (number // 1000, number, draw.random(), draw.random(), draw.uniform(0, 100))
            )
            held += len(lines[-1])
            number += 1
        if first <= size // 2 < first + held:
            lines.append(b"loss: nan at 123\n")
            held += len(lines[-1])
        data = b"".join(lines)
        chunks = [Chunk(stream=LOG, first=first, last=first + held - 1, data=data)]
        await history.streams.append(chunks)
        first += held


def follow_figures(options: tuple[str, ...] = ()) -> dict[str, float]:
    """From `print` to what `nsml logs -f` writes, milliseconds; lines 20 ms to 1 s apart."""
    with Platform(options=options) as platform:
        folder = platform.folder / "prints"
        folder.mkdir()
        (folder / "main.py").write_text(textwrap.dedent(_PROGRAM))
        platform.nsml("run", "-g", "0", cwd=folder)
        follower = subprocess.Popen(
            [str(PROGRAMS / "nsml"), "logs", "-f", "@last"],
            env=platform.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        taken = []
        with follower:
            assert follower.stdout is not None
            try:
                for line in follower.stdout:
                    came = time.time_ns()
                    if line.startswith(b"at "):
                        taken.append((came - int(line.split()[1])) / 1e6)
            finally:
                follower.kill()
    if len(taken) != PRINTED:
        raise RuntimeError(f"{len(taken)} of {PRINTED} lines came")
    settled = taken[PRINTED // 10 :]  # the first lines may be printed before the follower is there
    return {
        "follow_p50_ms": percentile(settled, 0.5),
        "follow_p95_ms": percentile(settled, 0.95),
    }


if __name__ == "__main__":
    main()
