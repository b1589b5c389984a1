"""Points out of the logs of sessions, as if they had been reported; nothing is stored."""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from nsml.client.streams import curves_of, read_curves, read_logs
from nsml.log_metrics.patterns import AUTO
from nsml.log_metrics.scanner import Scanner
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from nsml.client.calls import Client
    from nsml.client.streams import LogPiece, OnLink
    from nsml.log_metrics.scanner import LineValues

_LAST_LINES = 200
"""Lines in which printed metrics are looked for."""


def read_points(
    client: Client,
    session: pb.Session,
    *,
    from_log: Sequence[str] = (),
    names: Sequence[str] = (),
    follow: bool = False,
    all_attempts: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
    """As `read_curves`; with `from_log`, requests by the rules of `nsml.log_metrics.patterns`, from the log."""
    if not from_log:
        return read_curves(
            client,
            session,
            names=names,
            follow=follow,
            all_attempts=all_attempts,
            patience_s=patience_s,
            on_link=on_link,
        )
    return _read_log_curves(
        client,
        session,
        from_log,
        names=names,
        follow=follow,
        all_attempts=all_attempts,
        patience_s=patience_s,
        on_link=on_link,
    )


async def _read_log_curves(
    client: Client,
    session: pb.Session,
    requests: Sequence[str],
    *,
    names: Sequence[str],
    follow: bool,
    all_attempts: bool,
    patience_s: float | None,
    on_link: OnLink | None,
) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
    """As `read_curves`: with several attempts, the logs are read twice."""

    async def read(*, follow: bool) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
        attempts = [*range(1, session.attempt), 0]
        ranks = range(1 if follow else max(session.spec.replica_count, 1))
        for attempt in attempts:
            for rank in ranks:
                stream = read_log_points(
                    client,
                    session,
                    requests,
                    names=names,
                    attempt=attempt,
                    rank=rank,
                    follow=follow and not attempt,
                    patience_s=patience_s,
                    on_link=on_link,
                )
                async with aclosing(stream):
                    async for answer in stream:
                        yield answer

    curves = curves_of(session, read, follow=follow, all_attempts=all_attempts)
    async with aclosing(curves):
        async for answer in curves:
            yield answer


async def printed_metrics(
    client: Client, session: pb.Session, *, patience_s: float | None = None
) -> list[str]:
    """Return the metrics that are recognised in the last lines of a log."""
    stream = read_logs(client, session.id, tail_lines=_LAST_LINES, patience_s=patience_s)
    names: dict[str, None] = {}
    scanner = Scanner([AUTO])
    async with aclosing(stream):
        async for piece in stream:
            for found in scanner.feed(piece.data):
                names |= dict.fromkeys(found.values)
    for found in scanner.end():
        names |= dict.fromkeys(found.values)
    return list(names)


async def read_log_points(
    client: Client,
    session: pb.Session,
    requests: Sequence[str],
    *,
    names: Sequence[str] = (),
    attempt: int = 0,
    rank: int = 0,
    follow: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
    """Yield the points of one replica's log; attempt 0: of the current or last one, and of later ones."""
    reading = _Reading(requests, names, rank)
    stream = read_logs(
        client,
        session.id,
        attempt=attempt,
        rank=rank,
        times=True,
        follow=follow,
        patience_s=patience_s,
        on_link=on_link,
    )
    async with aclosing(stream):
        async for piece in stream:
            yield reading.take(piece)
    yield reading.end()


class _Reading:
    """Searches the pieces of a log."""

    def __init__(self, requests: Sequence[str], names: Sequence[str], rank: int) -> None:
        self._requests = requests
        self._names = names
        self._rank = rank
        self._attempt = 0
        self._scanner = Scanner(requests)
        self._times: deque[tuple[int, float]] = deque()
        self._at = 0.0

    def take(self, piece: LogPiece) -> pb.ReadMetricsResponse:
        """Return the points of the lines that end in the next piece."""
        answer = pb.ReadMetricsResponse()
        if piece.attempt != self._attempt or piece.missing_bytes:
            answer = self.end()
            self._attempt = piece.attempt
            self._scanner = Scanner(self._requests, offset=piece.offset)
            self._times.clear()
        self._times.extend(piece.times)
        self._add(answer, self._scanner.feed(piece.data))
        return answer

    def end(self) -> pb.ReadMetricsResponse:
        """Return the points of a last line without a line end."""
        answer = pb.ReadMetricsResponse()
        self._add(answer, self._scanner.end())
        return answer

    def _add(self, answer: pb.ReadMetricsResponse, found: Iterable[LineValues]) -> None:
        for one in found:
            while self._times and self._times[0][0] < one.end:
                self._at = self._times.popleft()[1]
            for name, value in one.values.items():
                if self._names and not any(fnmatchcase(name, glob) for glob in self._names):
                    continue
                point = answer.points.add(
                    name=name,
                    number=value,
                    step=one.step,
                    attempt=self._attempt,
                    rank=self._rank,
                )
                point.time.FromNanoseconds(round(self._at * 1e9))
