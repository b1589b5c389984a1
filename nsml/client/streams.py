"""Streams that resume by themselves: nothing lost, nothing duplicated, whatever connection breaks.

Each stream resumes after the data already yielded. A broken connection raises nothing: `on_link` is
called and the stream retries, for `patience_s` since the last response (None: forever). Every other
error is raised.
"""

from __future__ import annotations

import random
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from nsml.client.errors import NotFound, Unavailable
from nsml.common.backoff import backoff_s
from nsml.spec.attempt_points import FirstSteps, place_of
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from google.protobuf.message import Message

    from nsml.client.calls import Client

T = TypeVar("T")
R = TypeVar("R", bound="Message")

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0

ENDED_STATES = frozenset(
    {pb.SESSION_STATE_SUCCEEDED, pb.SESSION_STATE_FAILED, pb.SESSION_STATE_STOPPED}
)
"""A session in one of these never runs again. HELD may, after a user's action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The state of a stream's connection."""

    is_live: bool
    failures: int = 0
    """Consecutive failed tries."""
    retry_in_s: float = 0.0
    reason: str = ""


class OnLink(Protocol):
    """Called when the connection breaks, at each failed try, and when it is back."""

    def __call__(self, link: Link, /) -> None:
        """Handle the state; must not block."""
        ...


class _Retry:
    """Delays between tries, and their time limit."""

    def __init__(self, client: Client, patience_s: float | None, on_link: OnLink | None) -> None:
        self._clock = client.clock
        self._rng = client.rng or random.Random()  # noqa: S311 - the jitter of pauses
        self._others = len(client.rpc.ways.addresses) - 1
        self._patience_s = patience_s
        self._on_link = on_link
        self._failures = 0
        self._last_word = self._clock.monotonic()

    def heard(self) -> None:
        """Record a response."""
        self._last_word = self._clock.monotonic()
        if self._failures:
            self._failures = 0
            self._tell(Link(is_live=True))

    async def after(self, error: Unavailable) -> None:
        """Wait before the next try; raises `error` after the time limit."""
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
        """0 until each other control plane was tried; then exponential, with jitter."""
        failures = self._failures - self._others
        if failures < 0:
            return 0.0
        bound = backoff_s(_FIRST_DELAY_S, failures, _LONGEST_DELAY_S)
        return self._rng.uniform(bound / 2, bound)

    def _tell(self, link: Link) -> None:
        if self._on_link is not None:
            self._on_link(link)


async def watch_sessions(
    client: Client,
    chosen: pb.SessionFilter,
    *,
    from_revision: int = 0,
    with_reports: bool = False,
    summary_names: Sequence[str] = (),
    short: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.WatchSessionsResponse, None]:
    """Yield live sessions and all their changes, until closed.

    A response with `reset` replaces all earlier state; the next one has the sessions that ended before it.
    With reports, sessions are also `changed` by their reports: each has its newest state, merged.
    Summaries have the first values, and those of `summary_names`.
    `short`: long commands and environments are truncated (`nsml.view.complete_sessions`).
    """
    retry = _Retry(client, patience_s, on_link)
    revision = from_revision
    told, unended = _Told(), _Unended()
    while True:
        request = pb.WatchSessionsRequest(
            filter=chosen,
            from_revision=revision,
            with_reports=with_reports,
            summary_names=summary_names,
            short=short,
        )
        stream = client.rpc.stream(
            "SessionService/WatchSessions", request, pb.WatchSessionsResponse
        )
        broken = Unavailable("the control plane closed the stream")
        try:
            async with aclosing(stream):
                async for answer in stream:
                    retry.heard()
                    client.rpc.has_seen(answer.revision)
                    shown = _within(chosen, told.take(answer) if with_reports else answer)
                    unended.take(shown)
                    yield shown
                    revision = answer.revision
                    # Only the last part of a list has a revision.
                    if revision and unended.missing:
                        yield await _ends(client, chosen, unended.missing, revision)
                        unended.missing.clear()
        except Unavailable as error:
            broken = error
        await retry.after(broken)


class _Told:
    """The newest state of sessions, to merge later reports into."""

    def __init__(self) -> None:
        self._known: dict[str, pb.Session] = {}

    def take(self, answer: pb.WatchSessionsResponse) -> pb.WatchSessionsResponse:
        """Add sessions with reports to the changed sessions of the response."""
        if answer.reset:
            self._known.clear()
        self._known.update({session.id: session for session in answer.changed})
        for session_id in answer.removed:
            self._known.pop(session_id, None)
        for report in answer.reports:
            session = self._known.get(report.session_id)
            if session is not None:
                self._known[session.id] = session = _with_report(session, report)
                answer.changed.append(session)
        return answer


class _Unended:
    """Sessions without a received end.

    Attributes:
        missing: sessions not in a new list, which has only live ones.
    """

    def __init__(self) -> None:
        self._live: set[str] = set()
        self.missing: set[str] = set()

    def take(self, answer: pb.WatchSessionsResponse) -> None:
        """Update the live sessions."""
        if answer.reset:
            self.missing |= self._live
            self._live.clear()
        for session in answer.changed:
            self.missing.discard(session.id)
            if session.state in ENDED_STATES:
                self._live.discard(session.id)
            else:
                self._live.add(session.id)
        self._live.difference_update(answer.removed)
        self.missing.difference_update(answer.removed)


async def _ends(
    client: Client, chosen: pb.SessionFilter, missing: Iterable[str], revision: int
) -> pb.WatchSessionsResponse:
    """Return the response that the watch would have sent for sessions that ended during the break."""
    answer = pb.WatchSessionsResponse(revision=revision, removed=sorted(missing))
    for session_id in answer.removed:
        with suppress(NotFound):  # removed or hidden meanwhile
            session = await client.sessions.get(session_id)
            is_chosen = not chosen.states or session.state in chosen.states
            if session.state in ENDED_STATES and is_chosen:
                answer.changed.append(session)
    return answer


def _with_report(session: pb.Session, report: pb.SessionReport) -> pb.Session:
    """Return an updated copy: others may hold the session."""
    news = pb.Session()
    news.CopyFrom(session)
    news.ClearField("summary")
    if report.HasField("summary"):
        news.summary.CopyFrom(report.summary)
    news.summary_names[:] = report.summary_names
    news.summary_left_out = report.summary_left_out
    news.checkpoint_count = report.checkpoint_count
    news.lost_checkpoint_count = report.lost_checkpoint_count
    if news.HasField("progress"):
        known = news.progress.saved_at
        if report.saved_at.ToNanoseconds() > known.ToNanoseconds():
            known.CopyFrom(report.saved_at)
    news.ClearField("training")
    if report.HasField("training"):
        news.training.CopyFrom(report.training)
    if report.HasField("usage"):
        news.usage.CopyFrom(report.usage)
    for replica in news.replicas:
        replica.ClearField("use")
        if replica.rank in report.uses:
            replica.use.CopyFrom(report.uses[replica.rank])
    return news


def _within(chosen: pb.SessionFilter, answer: pb.WatchSessionsResponse) -> pb.WatchSessionsResponse:
    """Return the response without sessions that an older control plane sends although they do not fit."""
    from nsml.client.calls import fitting

    changed = fitting(answer.changed, chosen)
    if len(changed) == len(answer.changed):
        return answer
    narrowed = pb.WatchSessionsResponse()
    narrowed.CopyFrom(answer)
    del narrowed.changed[:]
    narrowed.changed.extend(changed)
    return narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A piece of one attempt's output: bytes from `offset` on, after `missing_bytes` lost ones.

    `times`, if requested: the receive times (Unix seconds) of the bytes from an offset on, in order.
    """

    attempt: int
    offset: int
    data: bytes
    missing_bytes: int
    times: tuple[tuple[int, float], ...] = ()


async def read_logs(
    client: Client,
    reference: str,
    *,
    attempt: int = 0,
    rank: int = 0,
    offset: int = 0,
    tail_lines: int | None = None,
    since: datetime | timedelta | None = None,
    until: datetime | timedelta | None = None,
    times: bool = False,
    follow: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[LogPiece, None]:
    """Yield the output of a session, each byte once and in order; with `follow` until it has ended.

    Attempt 0: the current or last attempt, then later ones. `since` and `until` limit the time of
    receipt, as a time or an age by the platform's clock; `until` is not allowed with `follow`. With
    `times` pieces have their receive times.
    """
    retry = _Retry(client, patience_s, on_link)
    place = _LogPlace(attempt=attempt, offset=offset, tail_lines=tail_lines, since=since)
    while True:
        request = place.request(reference, rank=rank, follow=follow)
        request.times = times
        _set_moment(request, "until", until)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSearch:
    """A search in logs: a regular expression in RE2 syntax, or with `is_literal` a text."""

    pattern: str
    is_literal: bool = False
    ignores_case: bool = False
    is_inverted: bool = False
    """Select lines that do not match."""
    context_lines: int = 0
    """Lines of context around each match."""


async def search_logs(
    client: Client,
    reference: str,
    search: LogSearch,
    *,
    attempt: int = 0,
    rank: int = 0,
    offset: int = 0,
    line: int = 0,
    tail_lines: int | None = None,
    since: datetime | timedelta | None = None,
    until: datetime | timedelta | None = None,
    follow: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.SearchLogsResponse, None]:
    """Yield the matching lines of a session's output, found by the control plane, each once and in order.

    For the range see `read_logs`; `line` is the number of the line at `offset`, 0 if unknown.
    Responses without lines report the progress.
    """
    retry = _Retry(client, patience_s, on_link)
    place = _LogPlace(attempt=attempt, offset=offset, tail_lines=tail_lines, since=since)
    while True:
        log = place.request(reference, rank=rank, follow=follow)
        _set_moment(log, "until", until)
        request = pb.SearchLogsRequest(
            log=log,
            pattern=search.pattern,
            literal=search.is_literal,
            ignore_case=search.ignores_case,
            invert=search.is_inverted,
            context_lines=search.context_lines,
            line=line,
        )
        stream = client.rpc.stream("SessionService/SearchLogs", request, pb.SearchLogsResponse)
        try:
            async with aclosing(stream):
                async for answer in stream:
                    retry.heard()
                    place.reach(answer.attempt, answer.next)
                    line = answer.next_line
                    yield answer
        except Unavailable as error:
            await retry.after(error)
        else:
            return


class _LogPlace:
    """Position of a log reader: an attempt and its next byte."""

    def __init__(
        self,
        *,
        attempt: int,
        offset: int,
        tail_lines: int | None,
        since: datetime | timedelta | None,
    ) -> None:
        self._attempt = attempt
        self._then_later = attempt == 0
        self._offset = offset
        self._tail_lines = tail_lines
        self._since = since

    def request(self, reference: str, *, rank: int, follow: bool) -> pb.ReadLogsRequest:
        """Build the next request."""
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
        _set_moment(request, "since", self._since)
        return request

    def reach(self, attempt: int, offset: int) -> None:
        """Move to this position."""
        self._attempt, self._offset = attempt, offset
        self._tail_lines = self._since = None

    def take(self, answer: pb.ReadLogsResponse) -> LogPiece | None:
        """Return the new part of a response."""
        data, offset = answer.data, answer.offset
        if answer.attempt < self._attempt:
            return None
        is_resumed = self._tail_lines is None and self._since is None
        if answer.attempt == self._attempt and is_resumed and offset < self._offset:
            data = data[self._offset - offset :]
            offset = self._offset
            if not data:
                return None
        self.reach(answer.attempt, offset + len(data))
        return LogPiece(
            attempt=answer.attempt,
            offset=offset,
            data=data,
            missing_bytes=answer.missing_bytes,
            times=tuple(
                (one.offset, one.time.seconds + one.time.nanos / 1e9) for one in answer.times
            ),
        )


def _set_moment(
    request: pb.ReadLogsRequest, which: str, moment: datetime | timedelta | None
) -> None:
    if isinstance(moment, timedelta):
        getattr(request, f"{which}_age").FromTimedelta(moment)
    elif moment is not None:
        getattr(request, which).FromDatetime(moment)


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
    """Yield the reported points in order, each once; with `follow` until the session has ended."""
    retry = _Retry(client, patience_s, on_link)
    token = start
    while True:
        request = pb.ReadMetricsRequest(session=reference, names=names, follow=follow)
        setattr(request, "from", token)  # a keyword in Python
        # Responses after the last token come again if the call breaks.
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


async def read_curves(
    client: Client,
    session: pb.Session,
    *,
    names: Sequence[str] = (),
    follow: bool = False,
    all_attempts: bool = False,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
    """As `read_metrics`, without points superseded by a later attempt (nsml/spec/attempt_points.py), unless `all_attempts`.

    With several attempts all points are read twice. An attempt that begins during `follow` supersedes points already
    yielded.
    """

    def reading(*, follow: bool) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
        return read_metrics(
            client,
            session.id,
            names=names,
            follow=follow,
            patience_s=patience_s,
            on_link=on_link,
        )

    curves = curves_of(session, reading, follow=follow, all_attempts=all_attempts)
    async with aclosing(curves):
        async for answer in curves:
            yield answer


class Reading(Protocol):
    """Reads all points of a session."""

    def __call__(self, *, follow: bool) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
        """Begin; with `follow` until the session ends."""
        ...


async def curves_of(
    session: pb.Session, reading: Reading, *, follow: bool, all_attempts: bool
) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
    """What is read, without points superseded by a later attempt, unless `all_attempts`; see `read_curves`."""
    steps = FirstSteps()
    if session.attempt > 1 and not all_attempts:
        async with aclosing(reading(follow=False)) as stream:
            async for answer in stream:
                for point in answer.points:
                    steps.note(place_of(point))
    async with aclosing(reading(follow=follow)) as stream:
        async for answer in stream:
            if not all_attempts:
                _leave_out_superseded(answer, steps)
            yield answer


def _leave_out_superseded(answer: pb.ReadMetricsResponse, steps: FirstSteps) -> None:
    kept = []
    for point in answer.points:
        steps.note(place_of(point))
        if steps.keeps(place_of(point)):
            kept.append(point)
    if len(kept) < len(answer.points):
        del answer.points[:]
        answer.points.extend(kept)


async def read_series(
    client: Client,
    request: pb.ReadSeriesRequest,
    *,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> list[pb.ReadSeriesResponse]:
    """Read ranges of series as columns, session by session."""
    retry = _Retry(client, patience_s, on_link)
    while True:
        answers: list[pb.ReadSeriesResponse] = []
        stream = client.rpc.stream("SessionService/ReadSeries", request, pb.ReadSeriesResponse)
        try:
            async with aclosing(stream):
                async for answer in stream:
                    retry.heard()
                    answers.append(answer)
        except Unavailable as error:
            await retry.after(error)
        else:
            return answers


def watch_again(
    client: Client,
    method: str,
    request: Message,
    response: type[R],
    *,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[R, None]:
    """Yield the responses of a watch, each of which has everything, until closed; a broken watch is started again.

    Its first response is not yielded if nothing has changed.
    """
    return watch_changes(
        client,
        method,
        request,
        response,
        whole=lambda _, received: received,
        patience_s=patience_s,
        on_link=on_link,
    )


async def watch_changes(
    client: Client,
    method: str,
    request: Message,
    response: type[R],
    *,
    whole: Callable[[T | None, R], T],
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[T, None]:
    """Do the same for a watch of which only the first response surely has everything.

    `whole` returns what a response and what it returned for the one before in the same stream (None for the first) stand
    for. It raises Unavailable if they do not fit together.
    """
    retry = _Retry(client, patience_s, on_link)
    last: T | None = None
    while True:
        stream = client.rpc.stream(method, request, response)
        broken = Unavailable("the control plane closed the stream")
        before: T | None = None
        try:
            async with aclosing(stream):
                async for received in stream:
                    before = answer = whole(before, received)
                    retry.heard()
                    if answer != last:
                        last = answer
                        yield answer
        except Unavailable as error:
            broken = error
        await retry.after(broken)


async def look_again(
    client: Client,
    look: Callable[[], Awaitable[T]],
    *,
    every_s: float,
    on_link: OnLink | None = None,
) -> AsyncGenerator[T, None]:
    """Yield the results of `look` forever, with a pause of `every_s` seconds after each.

    A broken connection is retried, except at the first look, which raises Unavailable.
    """
    yield await look()
    retry = _Retry(client, None, on_link)
    while True:
        await client.clock.sleep(every_s)
        try:
            seen = await look()
        except Unavailable as error:
            await retry.after(error)
        else:
            retry.heard()
            yield seen


async def wait_until(
    client: Client,
    session_id: str,
    reached: Callable[[pb.Session], bool],
    *,
    on_link: OnLink | None = None,
) -> pb.Session:
    """Wait until `reached` is true or the session has ended; return it.

    `session_id` is the opaque id. Raises NotFound if it is removed meanwhile.
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
                # It is not live any more: its record in the catalogue has the end.
                return await client.sessions.get(session_id)
    raise Unavailable("the watch ended")
