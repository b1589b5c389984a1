"""Metrics out of a replica's log, as records in a file of the agent.

The file has the format of the SDK's record files (docs/sdk-protocol.md) and is read like them. Each record says
which bytes of the log it is from: the next agent continues behind the last one, so that no point is lost
or repeated. A program writes its log, and never this file.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from nsml._echo._sink import is_shown
from nsml._frames import HEADER, MAGIC, MAX_FILES, DamagedError, frame, parse
from nsml.log_metrics.recognisers import State
from nsml.log_metrics.scanner import Scanner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nodeagent.folders import ReplicaFolder
    from nsml.common.clock import Clock
    from nsml.log_metrics.scanner import LineValues

LOG_WRITER: Final = MAX_FILES + 2
"""The number of the stream: no record file of a program has it, nor the stream of those that are not read."""
LINES_PER_S: Final = 1_000.0
"""Most lines with metrics of a replica, on average, that are read:"""
BURST_LINES: Final = 50_000
"""so many more at once. Further ones are counted, and reported as missing."""
MOST_BYTES: Final = 128 << 20
"""Largest file of a replica. Lines after that count as missing."""
_TOLD_EVERY_S: Final = 60.0
"""Interval of reports of missing lines."""
_PIECE: Final = 1 << 20

log = structlog.get_logger()


class LogRequest(NamedTuple):
    """Requests for metrics out of a replica's log, and its first process: all of a launcher print the same."""

    patterns: Sequence[str] = ()
    process: int = 0


@dataclass(slots=True)
class _Passed:
    """Lines that were not read since the last report of them."""

    count: int = 0
    since: float = 0.0


class LogMetrics:
    """Writes the metrics of one replica's log to its file. Blocking; for one thread at a time.

    Args:
        folder: of the replica.
        requests: checked by `nsml.log_metrics.patterns.check_all`.
        clock: stamps the points, and measures the rate.
        process: the first one of the replica, by its number in the session: those of a launcher print the same.
    """

    def __init__(
        self, folder: ReplicaFolder, requests: Sequence[str], clock: Clock, *, process: int = 0
    ) -> None:
        self._process = process
        self._path = folder.log_records
        self._requests = tuple(requests)
        self._clock = clock
        self._descriptor = -1
        self._scanner = Scanner(self._requests, process=process)
        self._size = self._count = 0
        self._waiting: list[bytes] = []
        """Records that the disk has not taken yet."""
        self._passed = _Passed()
        self._told_at = -math.inf
        self._room = float(BURST_LINES)
        self._room_at = clock.monotonic()
        self._is_over = False

    @property
    def offset(self) -> int:
        """Where to read the log on, once its file was `opened`."""
        return self._scanner.seen

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open its file for one look, in which the other methods may be called; returns the descriptor. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        try:
            if not self._size:
                self._resume()
            yield self._descriptor
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def skip(self, offset: int) -> None:
        """Continue at another offset: the program shortened its log, or left a hole."""
        self._scanner = Scanner(
            self._requests, offset=offset, state=self._scanner.state, process=self._process
        )

    def take(self, text: bytes) -> bool:
        """Read the next piece of the log; returns whether its points are on file."""
        if not self.flush():
            return False
        scanner, before = self._scanner, self._scanner.passed
        scanner.room = self._lines()
        given = scanner.room
        self._add((one, scanner.state.saved()) for one in scanner.feed(text))
        self._room -= given - scanner.room
        self._count_passed(scanner.passed - before)
        return self.flush()

    def finish(self) -> None:
        """The log has ended: read its last line, and report what is missing."""
        if self._is_over or not self.flush():
            return
        self._is_over = True
        self._add((one, self._scanner.state.saved()) for one in self._scanner.end())
        self._report_passed()
        if not self.flush():
            log.warning("log_metrics.not_written", path=str(self._path), count=len(self._waiting))

    def _lines(self) -> int:
        """Return how many lines may be read now."""
        now = self._clock.monotonic()
        gained = max(now - self._room_at, 0.0) * LINES_PER_S
        self._room, self._room_at = min(self._room + gained, float(BURST_LINES)), now
        return 0 if self._size >= MOST_BYTES else int(self._room)

    def _count_passed(self, count: int) -> None:
        now = self._clock.monotonic()
        if count and not self._passed.count:
            self._passed.since = self._clock.time()
        self._passed.count += count
        if self._passed.count and now >= self._told_at + _TOLD_EVERY_S:
            self._told_at = now
            self._report_passed()

    def _report_passed(self) -> None:
        """Record the number of lines that were not read."""
        passed, self._passed = self._passed, _Passed()
        if not passed.count:
            return
        why = (
            f"its points fill {MOST_BYTES >> 20} MiB"
            if self._size >= MOST_BYTES
            else f"it has more than {LINES_PER_S:g} lines with metrics a second"
        )
        record = {
            "kind": "dropped",
            "time": self._clock.time(),
            "count": passed.count,
            "since": passed.since,
            "reason": f"lines of the log were not read for metrics: {why}",
        }
        unread = self._scanner.unread
        self._append(record, [unread, unread, *self._scanner.state.saved()])

    def _add(self, found: Iterable[tuple[LineValues, list[Any]]]) -> None:
        """Record points, each with the state behind its line."""
        time = self._clock.time()
        for one, state in found:
            parts: dict[bool, dict[str, float | int | str]] = {False: {}, True: {}}
            for name, value in one.values.items():
                parts[is_shown(name)][name] = _json_number(value)
            filled = [summary for summary, values in parts.items() if values]
            for summary in filled:
                record = {
                    "kind": "metric",
                    "time": time,
                    "step": one.step,
                    "values": parts[summary],
                }
                if summary:
                    record["summary"] = True
                # The line's last record says where to go on: without it the others do not count.
                is_last = one.is_last and summary is filled[-1]
                self._append(record, [one.offset, one.end if is_last else None, *state])

    def _append(self, record: dict[str, Any], place: list[Any]) -> None:
        record["log"] = place
        record["origin"] = "log"
        payload = json.dumps(record, separators=(",", ":")).encode()
        self._count += 1
        self._waiting.append(frame(self._count, payload))

    def flush(self) -> bool:
        """Write what waits; returns whether nothing waits any more."""
        if not self._waiting:
            return True
        data = b"".join(self._waiting)
        try:
            done = os.pwrite(self._descriptor, data, self._size)
            if done < len(data):
                os.ftruncate(self._descriptor, self._size)
                return False
        except OSError as error:
            log.warning("log_metrics.disk", path=str(self._path), error=str(error))
            return False
        self._size += len(data)
        self._waiting.clear()
        return True

    def _resume(self) -> None:
        """Find where to go on; cut off what an agent was writing when it died."""
        size, last = 0, None
        try:
            last = self._read_last(self._descriptor)
            size, self._size = self._size, 0
            os.ftruncate(self._descriptor, size)
            if not size:
                size = os.pwrite(self._descriptor, MAGIC, 0)
        finally:
            self._size = size if size >= len(MAGIC) else 0
        if last is not None:
            _, end, *state = last
            self._scanner = Scanner(
                self._requests, offset=end, state=State.of(state), process=self._process
            )

    def _read_last(self, descriptor: int) -> list[Any] | None:
        """Return the place of the last record that ends a line; notes its number, and the end of the file up to it."""
        last: list[Any] | None = None
        held, at = b"", 0
        self._size = self._count = 0
        while piece := os.pread(descriptor, _PIECE, at + len(held)):
            held += piece
            # `parse` reads files: a later part is given the beginning of one.
            front = MAGIC if at else b""
            try:
                records, parsed = parse(front + held)
            except DamagedError as error:
                if not at and error.position == 0:
                    return None
                records, parsed = parse((front + held)[: error.position])
                piece = b""
            position = len(MAGIC) if not at else 0
            for number, payload in records:
                position += HEADER.size + len(payload)
                place = _place_of(payload)
                if place is not None:
                    last, self._size, self._count = place, at + position, number
            used = parsed - len(front)
            held, at = held[used:], at + used
            if not piece:
                break
        if not self._size and at:
            self._size = len(MAGIC)
        return last


def _place_of(payload: bytes) -> list[Any] | None:
    """Return where a record is from and the state behind it; None for one that does not end a line."""
    try:
        place = json.loads(payload)["log"]
        return place if isinstance(place[1], int) and len(place) == 5 else None
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _json_number(value: float) -> float | int | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
