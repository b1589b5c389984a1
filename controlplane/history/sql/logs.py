"""Reads one log, in steps of bounded work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.history.sql.appending import find_stream
from controlplane.history.sql.bodies import Row, content, opened, opened_back
from controlplane.history.values import Channel, LogPage, StreamKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.history.blocks import Blocks
    from controlplane.history.sql.appending import Stream
    from controlplane.history.sql.interface import Connection

TAIL_LOOKS_BACK_BYTES: Final = 8 << 20
TAIL_ROWS_A_LOOK: Final = 65_536
"""Most chunks scanned in one read: other reads and writes get a turn in between."""
_ROWS_A_PAGE: Final = 1024
_BODIES_A_STEP: Final = (1, 4, 16, 32)
"""Bodies fetched at a time: most chunks are a line or two, but many 256 KiB."""
_BODIES_A_STEP_BACK: Final = (1, 4, 16, 64, 256, 1024)
"""The same for a tail: TAIL_LOOKS_BACK_BYTES bounds their total."""


class Log(NamedTuple):
    """A stored log, which ends at `stream.wanted`; without one, `stream` is None."""

    attempt: int
    stream: Stream | None

    @property
    def end(self) -> int:
        """The position after its last byte."""
        return 0 if self.stream is None else self.stream.wanted


class Tail(NamedTuple):
    """Progress of the search for the beginning of the last lines.

    `start` is the beginning, None until found: `lines` more line ends are needed in the rows that
    begin before `before`.
    """

    log: Log
    lines: int
    before: int
    start: int | None = None


def find_log(
    connection: Connection, session_id: str, attempt: int | None, rank: int, stop: int | None = None
) -> Log:
    """Find the log of an attempt, None: the last attempt with a log; cut at `stop`."""
    number = _last_attempt(connection, session_id, rank) if attempt is None else attempt
    found = find_stream(connection, StreamKey(session_id, number, rank, Channel.LOG))
    if found is not None and stop is not None:
        found = found._replace(wanted=min(found.wanted, stop))
    return Log(number, found)


def _last_attempt(connection: Connection, session_id: str, rank: int) -> int:
    row = connection.execute(
        "SELECT max(attempt) FROM streams WHERE session_id = ? AND rank = ? AND channel = ?",
        (session_id, rank, int(Channel.LOG)),
    ).fetchone()
    return int(row[0] or 0)


def log_page(connection: Connection, log: Log, start: int, limit: int, blocks: Blocks) -> LogPage:
    """Read at most `limit` bytes from `start` on, and at most 1,024 chunks."""
    attempt, stream = log
    pieces: list[bytes] = []
    times: list[tuple[int, float]] = []
    missing = held = 0
    rows = iter(()) if stream is None else rows_from(connection, stream, start, blocks)
    for count, row in enumerate(rows, start=1):
        at, end = start + missing + held, min(row.last + 1, log.end)
        if row.body is None:
            if held:
                break
            missing += end - at
        else:
            piece = content(row.body)[at - row.first : end - row.first][: limit - held]
            if not times or times[-1][1] != row.received_at:
                times.append((at, row.received_at))
            pieces.append(piece)
            held += len(piece)
        if held >= limit or count >= _ROWS_A_PAGE:
            break
    offset = start + missing
    return LogPage(
        attempt=attempt,
        offset=offset,
        data=b"".join(pieces),
        missing_bytes=missing,
        next=offset + held,
        end=log.end,
        times=tuple(times),
    )


def first_received(connection: Connection, log: Stream, moment: float, blocks: Blocks) -> int:
    """Bisect for the first position received at `moment` or later: times grow, except in late data.

    A block's row has the time of its beginning: so the position may be inside the previous block.
    """
    low, high = 0, log.wanted
    while low < high:
        row = connection.execute(
            "SELECT first, last, received_at FROM chunks"
            " WHERE stream_id = ? AND last >= ? ORDER BY last LIMIT 1",
            (log.id, (low + high) // 2),
        ).fetchone()
        first, last, received_at = row
        if received_at >= moment:
            high = max(low, first)
        else:
            low = last + 1
    before = connection.execute(
        "SELECT first, last, received_at, body FROM chunks WHERE stream_id = ? AND last = ?",
        (log.id, low - 1),
    ).fetchone()
    pieces = opened(Row._make(before), 0, low, blocks) if before else ()
    return next((one.first for one in pieces if one.received_at >= moment), low)


def begin_tail(log: Log, lines: int) -> Tail:
    """Begin the search for the last `lines` lines."""
    return Tail(log, lines, before=log.end, start=log.end if lines <= 0 else None)


def look_back(connection: Connection, tail: Tail, blocks: Blocks) -> Tail:
    """Search the next TAIL_ROWS_A_LOOK chunks; a line end at the very end begins no line."""
    log, lines, before, start = tail
    if start is not None:
        return tail
    if log.stream is None:
        return tail._replace(start=0)
    floor = max(0, log.end - TAIL_LOOKS_BACK_BYTES)
    rows = _rows_back(connection, log.stream, floor, before, blocks)
    for count, row in enumerate(rows, start=1):
        if row.body is not None:
            data = content(row.body)[: log.end - row.first]
            is_last = row.first + len(data) == log.end
            end = len(data) - 1 if is_last else len(data)
            while (at := data.rfind(b"\n", 0, end)) >= 0:
                lines -= 1
                if lines == 0:
                    return tail._replace(start=max(floor, row.first + at + 1))
                end = at
        if count >= TAIL_ROWS_A_LOOK:
            return Tail(log, lines, before=row.first)
    return tail._replace(start=floor)


def rows_from(connection: Connection, stream: Stream, start: int, blocks: Blocks) -> Iterator[Row]:
    """Yield the rows from `start` to the end; fetched a few at a time, as callers stop early."""
    for step in _steps(_BODIES_A_STEP):
        rows = connection.execute(
            "SELECT first, last, received_at, body FROM chunks"
            " WHERE stream_id = ? AND last >= ? ORDER BY last LIMIT ?",
            (stream.id, start, step),
        ).fetchall()
        for row in map(Row._make, rows):
            if row.first >= stream.wanted:
                return
            yield from opened(row, start, stream.wanted, blocks)
        if len(rows) < step:
            return
        start = rows[-1][1] + 1


def _rows_back(
    connection: Connection, log: Stream, floor: int, before: int, blocks: Blocks
) -> Iterator[Row]:
    """Yield the rows that overlap [floor, before), in reverse order."""
    if before <= floor:
        return
    row = connection.execute(
        "SELECT last FROM chunks WHERE stream_id = ? AND last >= ? ORDER BY last LIMIT 1",
        (log.id, before - 1),
    ).fetchone()
    end = row[0] + 1 if row else 0
    for step in _steps(_BODIES_A_STEP_BACK):
        rows = connection.execute(
            "SELECT first, last, received_at, body FROM chunks"
            " WHERE stream_id = ? AND last >= ? AND last < ? ORDER BY last DESC LIMIT ?",
            (log.id, floor, end, step),
        ).fetchall()
        for row in map(Row._make, rows):
            yield from opened_back(row, floor, before, blocks)
        if len(rows) < step:
            return
        end = rows[-1][1]


def _steps(sizes: tuple[int, ...]) -> Iterator[int]:
    yield from sizes
    while True:
        yield sizes[-1]
