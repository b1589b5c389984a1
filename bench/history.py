"""History on SQLite and on PostgreSQL in one run: what each stores and reads a second, and the ratios.

python -m bench.history [--json] [--url postgresql://...]

Agents report at once: each call is a chunk of 100 points of one of 32 streams, acknowledged when it is
on disk. Without --url a private PostgreSQL is started as for tests; with one, use a database that is
for nothing else: what is written stays there. Both engines write to the disk of the temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.report import report
from controlplane.domain.identity import Role, User
from controlplane.history.postgresql import open_postgresql
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, SessionQuery, SessionRecord, StreamKey
from nsml.common.clock import SystemClock, in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from controlplane.history.sql.history import History

STREAMS: Final = 32
POINTS: Final = 100
"""Of one chunk."""
CALLS: Final = 24
"""Of each stream."""
LOG_BYTES: Final = 64 << 10
LOG_CALLS: Final = 8
SESSIONS: Final = 1_000
LISTINGS: Final = 50
ADMIN: Final = User(name="root", role=Role.ADMIN)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--url", help="a PostgreSQL database for this alone")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = options.url or _private(stack)
        figures = asyncio.run(measure(Path(folder) / "history.db", url))
    report(figures)


async def measure(path: Path, url: str) -> dict[str, float]:
    """The figures of both, and PostgreSQL's by SQLite's."""
    sqlite = await _measured(_on_sqlite(path))
    postgresql = await _measured(_on_postgresql(url))
    return (
        {f"sqlite_{name}": value for name, value in sqlite.items()}
        | {f"postgresql_{name}": value for name, value in postgresql.items()}
        | {f"ratio_{name}": postgresql[name] / sqlite[name] for name in sqlite}
    )


def _private(stack: ExitStack) -> str:
    from tests.support.postgres import PostgresServer, find_postgres  # noqa: PLC0415

    if find_postgres() is None:
        sys.exit("bench.history: no PostgreSQL here (Debian: postgresql); or give --url")
    return stack.enter_context(stack.enter_context(PostgresServer()).database())


@asynccontextmanager
async def _on_sqlite(path: Path) -> AsyncIterator[History]:
    history = await open_history(path, clock=SystemClock(), run=in_thread)
    yield history
    await history.close()


@asynccontextmanager
async def _on_postgresql(url: str) -> AsyncIterator[History]:
    history = await open_postgresql(url, clock=SystemClock())
    yield history
    await history.close()


async def _measured(opening: AbstractAsyncContextManager[History]) -> dict[str, float]:
    async with opening as history:
        return {
            "append_points_per_s": await _rate(
                STREAMS * CALLS * POINTS, lambda: _append_points(history)
            ),
            "append_log_mb_per_s": await _rate(
                STREAMS * LOG_CALLS * LOG_BYTES / 1e6, lambda: _append_logs(history)
            ),
            "read_points_per_s": await _rate(
                STREAMS * CALLS * POINTS, lambda: _read_points(history)
            ),
            "read_log_mb_per_s": await _rate(
                STREAMS * LOG_CALLS * LOG_BYTES / 1e6, lambda: _read_logs(history)
            ),
            "exports_per_s": await _rate(SESSIONS, lambda: _export(history)),
            "listings_per_s": await _rate(LISTINGS, lambda: _list(history)),
        }


async def _rate(amount: float, work: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await work()
    return amount / (time.perf_counter() - begin)


async def _append_points(history: History) -> None:
    async def feed(number: int) -> None:
        stream = _stream(number, Channel.METRIC)
        for call in range(CALLS):
            first = call * POINTS + 1
            await history.streams.append([_reports(stream, first)])

    await asyncio.gather(*[feed(number) for number in range(STREAMS)])


def _reports(stream: StreamKey, first: int) -> Chunk:
    records = [
        json.dumps(
            {"kind": "metric", "time": 1e9 + step, "step": step, "values": {"loss": 1.0 / step}}
        ).encode()
        for step in range(first, first + POINTS)
    ]
    return Chunk(stream=stream, first=first, last=first + POINTS - 1, records=tuple(records))


async def _append_logs(history: History) -> None:
    async def feed(number: int) -> None:
        line = b"epoch %06d loss 0.123456 accuracy 0.987654 elapsed 12.345 s\n"
        for call in range(LOG_CALLS):
            data = b"".join(line % n for n in range(call * 2000, call * 2000 + 2000))[:LOG_BYTES]
            first = call * LOG_BYTES
            chunk = Chunk(
                stream=_stream(number, Channel.LOG),
                first=first,
                last=first + LOG_BYTES - 1,
                data=data,
            )
            await history.streams.append([chunk])

    await asyncio.gather(*[feed(number) for number in range(STREAMS)])


async def _read_points(history: History) -> None:
    async def read(number: int) -> None:
        mark = 0
        while True:
            page = await history.streams.read_metrics(f"s{number}", after=mark)
            mark = page.next
            if page.is_end:
                return

    await asyncio.gather(*[read(number) for number in range(STREAMS)])


async def _read_logs(history: History) -> None:
    async def read(number: int) -> None:
        at = 0
        while True:
            page = await history.streams.read_log(f"s{number}", offset=at, limit_bytes=1 << 18)
            at = page.next
            if page.next == page.end:
                return

    await asyncio.gather(*[read(number) for number in range(STREAMS)])


async def _export(history: History) -> None:
    for batch in _batches(range(SESSIONS), 64):
        await asyncio.gather(
            *[history.catalogue.put_session(_session(number), term=1) for number in batch]
        )


def _batches(numbers: range, size: int) -> Sequence[range]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


def _session(number: int) -> SessionRecord:
    return SessionRecord(
        id=f"ended{number}",
        name=f"kim/mnist/{number}",
        owner="kim",
        state="SUCCEEDED",
        created_at=1e9 + number,
        ended_at=2e9,
        record=b"x" * 800,
        searched=f"kim/mnist/{number}\nmain.py --lr 0.1",
    )


async def _list(history: History) -> None:
    for _ in range(LISTINGS):
        await history.catalogue.sessions(SessionQuery(viewer=ADMIN, name_glob="kim/*"), limit=100)


def _stream(number: int, channel: Channel) -> StreamKey:
    return StreamKey(f"s{number}", 1, 0, channel)


if __name__ == "__main__":
    main()
