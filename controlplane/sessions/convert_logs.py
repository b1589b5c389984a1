"""Convert log requests and pages: positions, searches, and the pieces of a page."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from controlplane.domain.errors import InvalidRequest
from controlplane.history.records import LATEST_TIME
from controlplane.records.log_matching import Search
from controlplane.sessions.readers import LogPosition
from controlplane.wire.chunking import parts_of
from controlplane.wire.times import seconds_of, timestamp
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.history.values import LogPage
    from controlplane.records.log_matching import Line
    from controlplane.sessions.log_search import Findings

PIECE_BYTES: Final = 64 << 10
LAST_POSITION: Final = 1 << 62
"""Beyond the end of any stream, and within the history's integer range."""


def to_position(request: pb.ReadLogsRequest, now: float) -> LogPosition:
    """Convert the range to read; ages count back from `now` (Unix seconds).

    Raises:
        InvalidRequest: the offset is beyond any log, or a time is invalid.
    """
    if request.offset > LAST_POSITION:
        raise InvalidRequest(f"no log has {request.offset} bytes")
    return LogPosition(
        attempt=request.attempt,
        then_later=request.later_attempts or not request.attempt,
        rank=request.rank,
        offset=request.offset,
        tail_lines=request.tail_lines if request.HasField("tail_lines") else None,
        since=_moment(request, "begin", now),
        until=_moment(request, "finish", now),
    )


def _moment(
    request: pb.ReadLogsRequest, which: Literal["begin", "finish"], now: float
) -> float | None:
    given = request.WhichOneof(which)
    if given is None:
        return None
    seconds = seconds_of(getattr(request, given))
    if given in {"since_age", "until_age"}:
        if seconds < 0:
            raise InvalidRequest("an age below 0 is in the future")
        return max(now - seconds, 0.0)
    if not 0 <= seconds < LATEST_TIME:
        raise InvalidRequest("a time out of range")
    return seconds


def to_search(request: pb.SearchLogsRequest) -> Search:
    """Convert a search."""
    return Search(
        pattern=request.pattern,
        is_literal=request.literal,
        ignores_case=request.ignore_case,
        is_inverted=request.invert,
        context_lines=request.context_lines,
    )


def found_messages(found: Findings) -> Iterator[pb.SearchLogsResponse]:
    """Split findings into messages; each has the position to continue from."""
    *parts, last = parts_of(map(_line_message, found.lines))
    for lines, following in pairwise([*parts, last]):
        yield pb.SearchLogsResponse(
            lines=lines,
            attempt=found.attempt,
            next=following[0].offset,
            next_line=following[0].number,
        )
    yield pb.SearchLogsResponse(
        lines=last,
        attempt=found.attempt,
        next=found.next,
        next_line=found.next_line,
        missing_bytes=found.missing_bytes,
    )


def _line_message(line: Line) -> pb.LogLine:
    return pb.LogLine(
        offset=line.offset,
        text=line.data,
        number=line.number,
        is_context=line.is_context,
        time=timestamp(line.received_at),
        match_begin=line.match[0],
        match_end=line.match[1],
    )


def log_pieces(page: LogPage, *, with_times: bool) -> Iterator[pb.ReadLogsResponse]:
    """Split a page into messages of at most `PIECE_BYTES`."""
    missing, last = page.missing_bytes, page.offset + len(page.data)
    for start in range(page.offset, last, PIECE_BYTES) if page.data else (page.offset,):
        end = min(start + PIECE_BYTES, last)
        yield pb.ReadLogsResponse(
            offset=start,
            data=page.data[start - page.offset : end - page.offset],
            missing_bytes=missing,
            attempt=page.attempt,
            times=_times(page, start, end) if with_times else (),
        )
        missing = 0


def _times(page: LogPage, start: int, end: int) -> Iterator[pb.LogTime]:
    behind = [offset for offset, _ in page.times[1:]] + [page.next]
    for (offset, moment), until in zip(page.times, behind, strict=True):
        if offset < end and until > start:
            yield pb.LogTime(offset=max(offset, start), time=timestamp(moment))
