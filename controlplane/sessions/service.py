"""SessionService."""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from controlplane.access.current import caller, note_target, require_user
from controlplane.domain.errors import Denied, InvalidRequest, NotFound, TooLarge
from controlplane.domain.identity import JumpHostCaller, UserCaller
from controlplane.sessions.convert import to_filter, to_submission, to_summary_names, to_wanted
from controlplane.sessions.convert_logs import (
    LAST_POSITION,
    found_messages,
    log_pieces,
    to_position,
    to_search,
)
from controlplane.sessions.readers import SessionWatch
from controlplane.sessions.session_listing import cursor_behind
from controlplane.tunnels.calls import client_end, direct_way
from controlplane.tunnels.frames import first_frame
from controlplane.tunnels.tunnels import ClientWays
from controlplane.wire.chunking import beside, parts_as_made, parts_of
from controlplane.wire.errors import Context, answering, streaming
from controlplane.wire.reported import point_message, series_message, to_series_query
from controlplane.wire.resources import to_visibility
from controlplane.wire.times import seconds_of, timestamp
from nsml.spec import agent_services
from nsml.v1 import sessions_pb2 as pb
from nsml.v1 import sessions_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from controlplane.content.content import Content
    from controlplane.core.core import Core
    from controlplane.domain.values import Session
    from controlplane.history.values import MetricCount, Point, SeriesView
    from controlplane.leadership.leader_forwarding import Relay
    from controlplane.records.session_summaries import LastReports
    from controlplane.sessions.log_search import Searches
    from controlplane.sessions.preempt import Requeuer
    from controlplane.sessions.program_changes import Changer
    from controlplane.sessions.queue import QueueView
    from controlplane.sessions.readers import LogPosition, Readers, Step
    from controlplane.sessions.remove import Remover
    from controlplane.sessions.session_listing import Listings
    from controlplane.sessions.session_views import Presenter
    from controlplane.sessions.stop import Stopper
    from controlplane.sessions.submit import Submitter
    from controlplane.sessions.update import Updater
    from controlplane.ssh_keys.entrances import SshEntrances
    from controlplane.tunnels.tunnels import Tunnels

MOST_SESSIONS: Final = 1_000
"""Sessions per call of ReadSeries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOperations:
    """The use cases of sessions."""

    submitter: Submitter
    listings: Listings
    stopper: Stopper
    requeuer: Requeuer
    changer: Changer
    remover: Remover
    updater: Updater
    followers: Readers
    reports: LastReports
    searches: Searches
    tunnels: Tunnels
    relay: Relay
    entrances: SshEntrances
    queue: QueueView
    content: Content


class SessionServicer(sessions_pb2_grpc.SessionServiceServicer):
    """Users' calls on sessions."""

    def __init__(self, core: Core, operations: SessionOperations, presenter: Presenter) -> None:
        self._core = core
        self._do = operations
        self._presenter = presenter

    @answering
    async def CreateSession(  # noqa: N802 - named by the contract, as all below
        self, request: pb.CreateSessionRequest, _: Context
    ) -> pb.CreateSessionResponse:
        """Submit a session."""
        who = require_user()
        submission = to_submission(request, who.user)
        if request.validate_only:
            await self._do.submitter.check(submission)
            return pb.CreateSessionResponse()
        session = await self._do.submitter.submit(submission)
        return pb.CreateSessionResponse(session=await self._presenter.session(session, who))

    @answering
    async def GetSession(  # noqa: N802
        self, request: pb.GetSessionRequest, _: Context
    ) -> pb.GetSessionResponse:
        """Return one session; if it has ended, its code becomes readable, as for a live one."""
        who = require_user()
        session = await self._core.references.find(who, request.session)
        if session.spec.bundle_digest and self._core.state.session(session.id) is None:
            self._do.content.show(who, session.spec.bundle_digest)
        return pb.GetSessionResponse(session=await self._presenter.session(session, who))

    @answering
    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, _: Context
    ) -> pb.ListSessionsResponse:
        """Return a page."""
        who, wanted = require_user(), to_filter(request.filter)
        names = to_summary_names(request.summary_names)
        # Live sessions are in memory, and short.
        is_heavy = wanted.wants_ended or names
        async with self._core.reading.turn(who.user.name) if is_heavy else nullcontext():
            page = await self._do.listings.page(
                who, wanted, size=request.page_size, cursor=request.cursor
            )
            presented = self._presenter.sessions(page.sessions, who, names, is_short=request.short)
            async with aclosing(presented) as made:
                sessions = await anext(parts_as_made(made))
        cursor = page.next_cursor
        if len(sessions) < len(page.sessions):
            cursor = cursor_behind(page.sessions[len(sessions) - 1])
        return pb.ListSessionsResponse(
            sessions=sessions,
            next_cursor=cursor,
            revision=page.revision,
            ended_missing=page.lacks_ended,
        )

    @streaming
    async def WatchSessions(  # noqa: N802
        self, request: pb.WatchSessionsRequest, _: Context
    ) -> AsyncGenerator[pb.WatchSessionsResponse, None]:
        """Stream changes."""
        who, names = require_user(), to_summary_names(request.summary_names)
        watch = SessionWatch(
            state=self._core.state,
            clock=self._core.clock,
            caller=who,
            wanted=to_filter(request.filter),
            reports=self._do.reports if request.with_reports else None,
        )
        sent = request.from_revision
        async for step in watch.steps(request.from_revision):
            if step.is_reset:
                sent = 0
            if step.has_changes:
                made = self._presenter.sessions(step.changed, who, names, is_short=request.short)
                async with aclosing(_changes(step, sent, made)) as answers:
                    async for answer in answers:
                        yield answer
            sent = step.revision
            if step.reported:
                # After the messages of the same sessions: reports are as new, or newer.
                async with self._core.reading.turn(who.user.name) if names else nullcontext():
                    last = await self._presenter.reports(step.reported, names)
                for reports in parts_of(last):
                    yield pb.WatchSessionsResponse(revision=sent, reports=reports)

    @answering
    async def StopSession(  # noqa: N802
        self, request: pb.StopSessionRequest, _: Context
    ) -> pb.StopSessionResponse:
        """Ask it to stop."""
        who = require_user()
        session = await self._core.references.find_own(who, request.session)
        grace = seconds_of(request.grace) if request.HasField("grace") else None
        note_target(session.name)
        session = await self._do.stopper.stop(
            session, asked_by=who.user.name, grace_s=grace, reason=request.reason
        )
        return pb.StopSessionResponse(session=await self._presenter.session(session, who))

    @answering
    async def RequeueSession(  # noqa: N802
        self, request: pb.RequeueSessionRequest, _: Context
    ) -> pb.RequeueSessionResponse:
        """Stop it and queue it again."""
        who = require_user()
        session = await self._core.references.find_own(who, request.session)
        note_target(session.name)
        session = await self._do.requeuer.requeue(
            session, asked_by=who.user.name, reason=request.reason, force=request.force
        )
        return pb.RequeueSessionResponse(session=await self._presenter.session(session, who))

    @answering
    async def RemoveSession(  # noqa: N802
        self, request: pb.RemoveSessionRequest, _: Context
    ) -> pb.RemoveSessionResponse:
        """Remove an ended session."""
        who = require_user()
        session = await self._core.references.find_own(who, request.session)
        note_target(session.name)
        await self._do.remover.remove(session)
        return pb.RemoveSessionResponse(name=session.name)

    @answering
    async def UpdateSession(  # noqa: N802
        self, request: pb.UpdateSessionRequest, _: Context
    ) -> pb.UpdateSessionResponse:
        """Change memo or visibility."""
        who = require_user()
        session = await self._core.references.find_own(who, request.session)
        note_target(session.name)
        session = await self._do.updater.update(
            session,
            memo=request.memo if request.HasField("memo") else None,
            visibility=to_visibility(request.visibility),
        )
        return pb.UpdateSessionResponse(session=await self._presenter.session(session, who))

    @answering
    async def ChangeProgram(  # noqa: N802
        self, request: pb.ChangeProgramRequest, _: Context
    ) -> pb.ChangeProgramResponse:
        """Set knobs, pause, or load a checkpoint."""
        who, changer = require_user(), self._do.changer
        session = await self._core.references.find_own(who, request.session)
        note_target(session.name)
        if request.withdraw:
            session = await changer.withdraw(session, asked_by=who.user.name)
        else:
            wanted = to_wanted(request)
            if wanted.checkpoint_session:
                source = await self._core.references.find_output(who, wanted.checkpoint_session)
                wanted = replace(wanted, checkpoint_session=source.name)
            session = await changer.change(session, wanted, asked_by=who.user.name)
        return pb.ChangeProgramResponse(session=await self._presenter.session(session, who))

    @streaming
    async def ReadLogs(  # noqa: N802
        self, request: pb.ReadLogsRequest, _: Context
    ) -> AsyncGenerator[pb.ReadLogsResponse, None]:
        """Stream output."""
        who = require_user()
        session, start = await self._log(request, who)
        pages = self._do.followers.log(who.user.name, session.id, start, follow=request.follow)
        async for page in pages:
            for piece in log_pieces(page, with_times=request.times):
                yield piece

    @streaming
    async def SearchLogs(  # noqa: N802
        self, request: pb.SearchLogsRequest, _: Context
    ) -> AsyncGenerator[pb.SearchLogsResponse, None]:
        """Stream matching lines."""
        who = require_user()
        session, start = await self._log(request.log, who)
        found = self._do.searches.log(
            who.user.name,
            session.id,
            start,
            to_search(request),
            line=min(request.line, LAST_POSITION),
            follow=request.log.follow,
        )
        async for findings in found:
            for answer in found_messages(findings):
                yield answer

    async def _log(
        self, request: pb.ReadLogsRequest, who: UserCaller
    ) -> tuple[Session, LogPosition]:
        """Return the session and the range of its log."""
        session = await self._core.references.find_output(who, request.session)
        if request.attempt > session.attempt:
            raise NotFound(f"{session.name} has no attempt {request.attempt}")
        if request.rank >= session.spec.replica_count:
            raise NotFound(f"{session.name} has no replica {request.rank}")
        return session, to_position(request, self._core.clock.time())

    @streaming
    async def ReadMetrics(  # noqa: N802
        self, request: pb.ReadMetricsRequest, _: Context
    ) -> AsyncGenerator[pb.ReadMetricsResponse, None]:
        """Stream points."""
        who = require_user()
        session_id = await self._core.references.find_output_id(who, request.session)
        after, name = _mark(getattr(request, "from")), who.user.name
        pages = self._do.followers.metrics(
            name, session_id, names=tuple(request.names), after=after, follow=request.follow
        )
        async for page in pages:
            async with self._core.reading.turn(name):
                made = partial(_point_parts, page.points)
                *parts, last = await beside(made, of=len(page.points))
            for points in parts:
                yield pb.ReadMetricsResponse(points=points)
            yield pb.ReadMetricsResponse(
                points=last,
                next=str(page.next),
                missing_reports=page.lost,
                let_go=timestamp(page.let_go_at),
            )

    @streaming
    async def ReadSeries(  # noqa: N802
        self, request: pb.ReadSeriesRequest, _: Context
    ) -> AsyncGenerator[pb.ReadSeriesResponse, None]:
        """Stream ranges of series, session by session."""
        query = to_series_query(request)
        if not request.sessions:
            raise InvalidRequest("no session is named", attempt="at least one")
        if len(request.sessions) > MOST_SESSIONS:
            raise TooLarge(f"at most {MOST_SESSIONS:,} sessions at a time")
        who = require_user()
        named = dict.fromkeys(request.sessions)
        found = [await self._core.references.find_output_id(who, text) for text in named]
        for session_id in found:
            async with self._core.reading.turn(who.user.name):
                page = await self._core.history.series.read(session_id, query)
                made = partial(_series_parts, page.series, session_id)
                parts = await beside(made, of=len(page.series) * query.width)
            said = pb.ReadSeriesResponse(
                session_id=session_id,
                left_out_points=page.left_out,
                left_out_series=page.more,
                missing_reports=page.lost,
                let_go=timestamp(page.let_go_at),
            )
            for part in parts:
                said.series.extend(part)
                yield said
                said = pb.ReadSeriesResponse(session_id=session_id)

    @answering
    async def ListMetrics(  # noqa: N802
        self, request: pb.ListMetricsRequest, _: Context
    ) -> pb.ListMetricsResponse:
        """Return a page of metrics by name, with counts."""
        who = require_user()
        session_id = await self._core.references.find_output_id(who, request.session)
        async with self._core.reading.turn(who.user.name):
            counts = await self._core.history.streams.counted_metrics(session_id)
            made = partial(_metrics, counts, request.cursor)
            metrics, cursor = await beside(made, of=len(counts))
        let_go_at = await self._core.history.streams.let_go_at(session_id)
        return pb.ListMetricsResponse(
            metrics=metrics, next_cursor=cursor, let_go=timestamp(let_go_at)
        )

    @answering
    async def ExplainSession(  # noqa: N802
        self, request: pb.ExplainSessionRequest, _: Context
    ) -> pb.ExplainSessionResponse:
        """Explain why it waits, and answer a what-if."""
        who, queue = require_user(), self._do.queue
        queue.check_leads()
        session = await self._core.references.find(who, request.session)
        answer = pb.ExplainSessionResponse(
            session=await self._presenter.session(session, who),
            waiting=queue.waiting(session.id, who),
        )
        if request.HasField("what_if"):
            answer.what_if.CopyFrom(queue.what_if(session, request.what_if, who))
        return answer

    @answering
    async def ListQueue(  # noqa: N802
        self, request: pb.ListQueueRequest, _: Context
    ) -> pb.ListQueueResponse:
        """Return a page of the queue."""
        return await self._do.queue.page(request, require_user())

    @streaming
    async def OpenTunnel(  # noqa: N802
        self, requests: AsyncIterator[pb.OpenTunnelRequest], context: Context
    ) -> AsyncGenerator[pb.OpenTunnelResponse, None]:
        """Serve the client's end of a tunnel."""
        frames = aiter(requests)
        kinds = (pb.OpenTunnelRequest, pb.OpenTunnelResponse)
        # only the leader can request agents to dial
        relayed = await self._do.relay.where_needed(
            "SessionService/OpenTunnel", kinds, frames, context
        )
        async with aclosing(relayed or self._tunnel(frames)) as responses:
            async for response in responses:
                yield response

    async def _tunnel(
        self, frames: AsyncIterator[pb.OpenTunnelRequest]
    ) -> AsyncGenerator[pb.OpenTunnelResponse, None]:
        target = (await first_frame(frames)).target
        entrance, by_key = None, ""
        match caller():
            case JumpHostCaller() as jump_host:
                if target.service != agent_services.SSH or target.only_checks:
                    raise Denied("jump hosts lead to ssh servers alone")
                who = UserCaller(user=jump_host.user)
                entrance = await self._do.entrances.open(
                    jump_host, target.ssh_host, (target.session, target.rank)
                )
                by_key = f" by ssh key {jump_host.key_name}"
            case _:
                who = require_user()
        session = await self._core.references.find(who, target.session)
        note_target(f"{session.name} {target.service} in rank {target.rank}{by_key}")
        opening = self._do.tunnels.opened(
            who,
            session,
            rank=target.rank,
            service=target.service,
            only_checks=target.only_checks,
            ways=ClientWays(boot_id=target.boot_id, uses_relay=target.uses_relay),
            ssh_entrance=entrance,
        )
        async with opening as tunnel:
            yield pb.OpenTunnelResponse(direct=direct_way(tunnel))
            if target.only_checks:
                return
            async with aclosing(client_end(tunnel, frames, self._do.tunnels.pacing)) as passed:
                async for one in passed:
                    yield pb.OpenTunnelResponse(data=one.data, end=one.end, gone=one.gone)


def _point_parts(points: Sequence[Point]) -> list[list[pb.MetricPoint]]:
    return list(parts_of(map(point_message, points)))


def _series_parts(views: Sequence[SeriesView], session_id: str) -> list[list[pb.Series]]:
    return list(parts_of(series_message(view, session_id) for view in views))


def _metrics(counts: Mapping[str, MetricCount], cursor: str) -> tuple[list[pb.Metric], str]:
    """Return the page after the cursor, and the next cursor."""
    names = sorted(name for name in counts if not cursor or name > cursor)
    metrics = next(
        parts_of(
            pb.Metric(name=name, count=counts[name].points, origin=counts[name].origin)
            for name in names
        )
    )
    return metrics, metrics[-1].name if len(metrics) < len(names) else ""


def _mark(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequest("the resume token is not one of this platform's")
    return int(text)


async def _changes(
    step: Step, sent: int, made: AsyncGenerator[pb.Session, None]
) -> AsyncGenerator[pb.WatchSessionsResponse, None]:
    left, is_first = len(step.changed), True
    async for changed in parts_as_made(made):
        left -= len(changed)
        yield pb.WatchSessionsResponse(
            # Only the last part completes the step.
            revision=sent if left else step.revision,
            changed=changed,
            removed=() if left else step.removed,
            reset=step.is_reset and is_first,
        )
        is_first = False
