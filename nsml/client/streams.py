"""Streams that resume by themselves: nothing lost, nothing doubled, whatever connection breaks.

Each stream knows from what it already yielded where to go on. A break raises nothing: the caller
is told through `on_link` and the stream tries again, for `patience_s` since the last word from the
other end (None: for ever). Every other error is raised.
"""

from __future__ import annotations

import random
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nsml.client.calls import in_project
from nsml.client.errors import Unavailable
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from nsml.client.calls import Client

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0

ENDED_STATES = frozenset(
    {pb.SESSION_STATE_SUCCEEDED, pb.SESSION_STATE_FAILED, pb.SESSION_STATE_STOPPED}
)
"""A session in one of these never runs again. HELD waits for a person and may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The state of a stream's connection."""

    is_live: bool
    failures: int = 0
    """How often in a row it could not be opened."""
    retry_in_s: float = 0.0
    reason: str = ""


class OnLink(Protocol):
    """Is told when the connection breaks, at each failed try, and when it is back."""

    def __call__(self, link: Link, /) -> None:
        """Take note; must not block."""
        ...


class _Retry:
    """Delays between tries, and the end of patience."""

    def __init__(self, client: Client, patience_s: float | None, on_link: OnLink | None) -> None:
        self._clock = client.clock
        self._rng = client.rng or random.Random()  # noqa: S311 - the jitter of pauses
        self._others = len(client.rpc.ways.addresses) - 1
        self._patience_s = patience_s
        self._on_link = on_link
        self._failures = 0
        self._last_word = self._clock.monotonic()

    def heard(self) -> None:
        """The other end said something."""
        self._last_word = self._clock.monotonic()
        if self._failures:
            self._failures = 0
            self._tell(Link(is_live=True))

    async def after(self, error: Unavailable) -> None:
        """Wait before the next try; raises `error` when patience is at its end."""
        silent_s = self._clock.monotonic() - self._last_word
        if self._patience_s is not None and silent_s >= self._patience_s:
            raise error
        delay_s = self._delay_s()
        self._failures += 1
        self._tell(
            Link(is_live=False, failures=self._failures, retry_in_s=delay_s, reason=error.message)
        )
        await self._clock.sleep(delay_s)

    def _delay_s(self) -> float:
        """None before each of the other control planes was asked; then growing, cut by chance."""
        failures = self._failures - self._others
        if failures < 0:
            return 0.0
        bound: float = min(_FIRST_DELAY_S * 2**failures, _LONGEST_DELAY_S)
        return self._rng.uniform(bound / 2, bound)

    def _tell(self, link: Link) -> None:
        if self._on_link is not None:
            self._on_link(link)


async def watch_sessions(
    client: Client,
    chosen: pb.SessionFilter,
    *,
    from_revision: int = 0,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.WatchSessionsResponse, None]:
    """Live sessions and every change of them; goes on until closed.

    A response with `reset` replaces all that was known.
    """
    retry = _Retry(client, patience_s, on_link)
    revision = from_revision
    while True:
        request = pb.WatchSessionsRequest(filter=chosen, from_revision=revision)
        stream = client.rpc.stream(
            "SessionService/WatchSessions", request, pb.WatchSessionsResponse
        )
        broken = Unavailable("the control plane closed the stream")
        try:
            async with aclosing(stream):
                async for answer in stream:
                    retry.heard()
                    client.rpc.has_seen(answer.revision)
                    yield _within(chosen.project, answer)
                    revision = answer.revision
        except Unavailable as error:
            broken = error
        await retry.after(broken)


def _within(project: str, answer: pb.WatchSessionsResponse) -> pb.WatchSessionsResponse:
    """An answer without the sessions of other projects."""
    changed = in_project(answer.changed, project)
    if len(changed) == len(answer.changed):
        return answer
    narrowed = pb.WatchSessionsResponse()
    narrowed.CopyFrom(answer)
    del narrowed.changed[:]
    narrowed.changed.extend(changed)
    return narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A piece of one attempt's output: bytes from `offset` on, after `missing_bytes` lost ones."""

    attempt: int
    offset: int
    data: bytes
    missing_bytes: int


async def read_logs(
    client: Client,
    reference: str,
    *,
    attempt: int = 0,
    rank: int = 0,
    offset: int = 0,
    tail_lines: int | None = None,
    follow: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[LogPiece, None]:
    """The output of a session, each byte once and in order; with `follow` until it has ended.

    With attempt 0 it begins with the current or last one, and later ones come after it.
    """
    retry = _Retry(client, patience_s, on_link)
    place = _LogPlace(attempt=attempt, offset=offset, tail_lines=tail_lines)
    while True:
        request = place.request(reference, rank=rank, follow=follow)
        stream = client.rpc.stream("SessionService/ReadLogs", request, pb.ReadLogsResponse)
        try:
            async with aclosing(stream):
                async for answer in stream:
                    retry.heard()
                    piece = place.take(answer)
                    if piece is not None:
                        yield piece
        except Unavailable as error:
            await retry.after(error)
        else:
            return


class _LogPlace:
    """Where a log reader stands: the next byte of which attempt."""

    def __init__(self, *, attempt: int, offset: int, tail_lines: int | None) -> None:
        self._attempt = attempt
        self._then_later = attempt == 0
        self._offset = offset
        self._tail_lines = tail_lines

    def request(self, reference: str, *, rank: int, follow: bool) -> pb.ReadLogsRequest:
        """What to ask for next."""
        request = pb.ReadLogsRequest(
            session=reference,
            attempt=self._attempt,
            rank=rank,
            follow=follow,
            later_attempts=self._then_later,
        )
        if self._tail_lines is not None:
            request.tail_lines = self._tail_lines
        else:
            request.offset = self._offset
        return request

    def take(self, answer: pb.ReadLogsResponse) -> LogPiece | None:
        """The part of an answer that is new."""
        data, offset = answer.data, answer.offset
        if answer.attempt < self._attempt:
            return None
        if answer.attempt == self._attempt and self._tail_lines is None and offset < self._offset:
            data = data[self._offset - offset :]
            offset = self._offset
            if not data:
                return None
        self._attempt = answer.attempt
        self._offset = offset + len(data)
        self._tail_lines = None
        return LogPiece(
            attempt=answer.attempt, offset=offset, data=data, missing_bytes=answer.missing_bytes
        )


async def read_metrics(
    client: Client,
    reference: str,
    *,
    names: Sequence[str] = (),
    start: str = "",
    follow: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
    """The reported points in order, each once; with `follow` until the session has ended."""
    retry = _Retry(client, patience_s, on_link)
    token = start
    while True:
        request = pb.ReadMetricsRequest(session=reference, names=names, follow=follow)
        setattr(request, "from", token)  # a keyword in Python
        # Without a mark behind them they come again when the call breaks.
        held: list[pb.ReadMetricsResponse] = []
        stream = client.rpc.stream("SessionService/ReadMetrics", request, pb.ReadMetricsResponse)
        try:
            async with aclosing(stream):
                async for answer in stream:
                    retry.heard()
                    held.append(answer)
                    if answer.next:
                        token = answer.next
                        for each in held:
                            yield each
                        held.clear()
        except Unavailable as error:
            await retry.after(error)
        else:
            return


async def wait_until(
    client: Client,
    session_id: str,
    reached: Callable[[pb.Session], bool],
    *,
    on_link: OnLink | None = None,
) -> pb.Session:
    """The session as soon as `reached` holds or it has ended.

    `session_id` is the opaque id. Raises NotFound when it is removed meanwhile.
    """
    session = await client.sessions.get(session_id)
    if reached(session) or session.state in ENDED_STATES:
        return session
    chosen = pb.SessionFilter(name_glob=session.name)
    watching = watch_sessions(client, chosen, on_link=on_link)
    async with aclosing(watching):
        async for answer in watching:
            for changed in answer.changed:
                if changed.id == session_id and (reached(changed) or changed.state in ENDED_STATES):
                    return changed
            listed = any(changed.id == session_id for changed in answer.changed)
            if session_id in answer.removed or (answer.reset and not listed):
                # It left the live ones: its record in the catalogue has the end.
                return await client.sessions.get(session_id)
    raise Unavailable("the watch ended")
