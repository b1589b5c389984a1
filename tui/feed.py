"""The only part of the dashboard that talks to the platform.

Each method receives one topic until cancelled, and posts events to the model. Errors of the platform are not
raised: they are events as well, and the request is retried after a while.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from nsml.client import media
from nsml.client.board_calls import Selection
from nsml.client.boards import watch_board
from nsml.client.code import read_both, read_files, read_tree, read_trees
from nsml.client.competitions import watch_standings
from nsml.client.content import read_manifest
from nsml.client.errors import (
    AlreadyEnded,
    ClientError,
    Denied,
    NotFound,
    NotSignedIn,
    PlatformFault,
    StateConflict,
    Unavailable,
)
from nsml.client.program_changes import read_knobs
from nsml.client.series import grouped, read_columns
from nsml.client.stacks import read_stacks
from nsml.client.streams import ENDED_STATES, Link, read_logs, watch_sessions
from nsml.common.backoff import backoff_s
from nsml.common.clock import in_thread
from nsml.common.concurrency import TaskGroup, each_at_once
from nsml.common.text import visible
from nsml.common.units import parse_duration
from nsml.content.errors import ContentError
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.boards_pb2 import BEST_PER_NONE
from nsml.view import code
from nsml.view.complete_sessions import is_short
from nsml.view.queue import joined
from nsml.view.series import gather
from nsml.view.terminal_output import ShownLog
from nsml.view.times import seconds_of
from tui.model import (
    TAIL_LINES,
    WITH_LOCALS,
    ArtifactsReceived,
    BoardReceived,
    BoardsReceived,
    CheckpointsReceived,
    ClusterReceived,
    CodeReceived,
    CompetitionsReceived,
    ConfigReceived,
    ContentReceived,
    DatasetsReceived,
    EndedReceived,
    ExplanationReceived,
    FileReceived,
    FilesReceived,
    KnobsReceived,
    Linked,
    LogReceived,
    MediaReceived,
    NodesReceived,
    ProcessesReceived,
    ProjectReceived,
    ProjectsReceived,
    QueueReceived,
    Refused,
    SeriesReceived,
    SessionsReceived,
    StacksReceived,
    StandingsReceived,
    TelemetryReceived,
    TreeReceived,
    WholeReceived,
    medium_key,
)
from tui.sources import ASK_AGAIN_S, Topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

    from nsml.client.boards import WatchedBoard
    from nsml.client.calls import Client
    from nsml.client.series import ChartQuery, Columns
    from nsml.v1.competitions_pb2 import Announcement, WatchStandingsResponse
    from nsml.v1.datasets_pb2 import Dataset
    from nsml.v1.media_pb2 import Media
    from nsml.v1.sessions_pb2 import ListQueueResponse, Session
    from nsml.view.terminal_output import Printed
    from tui.model import BoardQuery, Detail, Event, StandingsQuery

T = TypeVar("T")
Post: TypeAlias = "Callable[[Event], None]"

LOOK_EVERY_S: Final = 2.0
"""Poll interval of topics without a stream."""
CALM_EVERY_S: Final = 4.0
CALM_AFTER: Final = 5
"""Equal answers before polling slows down."""
ENDED_EVERY_S: Final = 20.0
"""The stream of live sessions reports newly ended ones."""
ENDED_SERIES_EVERY_S: Final = 60.0
"""An agent may still send buffered data."""
MOST_ENDED: Final = 1_000
"""Limit of requested ended sessions."""
MOST_WAITING: Final = 1_000
DETAILS_EVERY_S: Final = 5.0
ENDED_DETAILS_EVERY_S: Final = 60.0
MOST_MEDIA: Final = 2_000
"""Listed per session: the last ones."""
TELEMETRY_CELLS: Final = 240
DATASETS_EVERY_S: Final = 10.0
BOARDS_EVERY_S: Final = 10.0
MOST_FILES: Final = 10_000
"""Of a dataset with a file list: its manifest names every chunk, too."""
MOST_FILES_BYTES: Final = 64 * 1024**3
_AT_ONCE: Final = 8
"""Sessions read concurrently."""
EACH_S: Final = 0.1
"""Extra poll interval of series, for each of several sessions."""
MOST_COLUMNS: Final = 8_000
"""Requested of all sessions together, unless LEAST_COLUMNS each is more."""
LEAST_COLUMNS: Final = 20
MOST_IN_LINE: Final = 1_000
"""Characters of a log line: a longer one is split, so that nothing waits for its end."""
FIRST_RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 2.0


class _Heard:
    """The standings of a competition and its announcements, which are received apart."""

    def __init__(self, query: StandingsQuery, post: Post) -> None:
        self._key = query.key
        self._post = post
        self._said: list[Announcement] = []
        self.answer: WatchStandingsResponse | None = None

    def standings(self, answer: WatchStandingsResponse) -> None:
        self.answer = answer
        self._post(StandingsReceived(self._key, answer, self._said))

    def announcements(self, said: Iterable[Announcement]) -> None:
        before, self._said = self._said, list(said)
        if self.answer is not None and before != self._said:
            self._post(StandingsReceived(self._key, self.answer, self._said))


class Feed:
    """Updates of the platform, topic by topic.

    Args:
        client: connected or not: calls connect as needed.
        post: receives each event.
        signed_out: called when the platform rejects the client's token; the rejected request is not retried.
    """

    def __init__(
        self,
        client: Client,
        post: Post,
        *,
        signed_out: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._post = post
        self._signed_out = signed_out
        self._platform: Final[Mapping[Topic, Callable[[], Coroutine[None, None, None]]]] = {
            Topic.CLUSTER: self.cluster,
            Topic.SESSIONS: self.sessions,
            Topic.ENDED: self.ended,
            Topic.QUEUE: self.queue,
            Topic.NODES: self.nodes,
            Topic.DATASETS: self.datasets,
            Topic.PROJECTS: self.projects,
            Topic.BOARDS: self.boards,
            Topic.COMPETITIONS: self.competitions,
        }

    async def receive(self, topics: Iterable[Topic]) -> None:
        """Receive the platform's topics among these, not those of one session."""
        async with TaskGroup() as group:
            for topic in topics:
                if topic in self._platform:
                    group.create_task(self._platform[topic]())

    async def sessions(self) -> None:
        """Receive live sessions, their changes, and their reports."""

        async def watch() -> None:
            stream = watch_sessions(
                self._client,
                pb.SessionFilter(),
                with_reports=True,
                short=True,
                on_link=self._on_link(Topic.SESSIONS),
            )
            # The full list comes in parts, and only the last has a revision: until then the old list stays.
            parts: list[Session] | None = None
            async with aclosing(stream):
                async for answer in stream:
                    if answer.reset:
                        parts = []
                    if parts is None:
                        self._post(SessionsReceived(answer.changed, answer.removed))
                        continue
                    parts += answer.changed
                    if answer.revision:
                        self._post(SessionsReceived(parts, (), reset=True))
                        parts = None

        await self._for_ever(Topic.SESSIONS, watch)

    async def ended(self) -> None:
        """Receive the newest ended sessions."""

        async def look() -> EndedReceived:
            chosen = pb.SessionFilter(states=sorted(ENDED_STATES), include_ended=True)
            request = pb.ListSessionsRequest(filter=chosen, page_size=MOST_ENDED, short=True)
            page = await self._client.sessions.page(request)
            if page.ended_missing:
                raise Unavailable("the history does not answer")
            return EndedReceived(page.sessions, is_cut=bool(page.next_cursor))

        await self._again(Topic.ENDED, look, lambda event: event, every_s=ENDED_EVERY_S)

    async def whole(self, sessions: Iterable[Session]) -> None:
        """Receive the sessions whose long commands are cut in lists, one by one."""
        for session in filter(is_short, sessions):
            while True:
                try:
                    self._post(WholeReceived(await self._client.sessions.get(session.id)))
                except NotFound:
                    pass  # removed meanwhile
                except NotSignedIn:
                    return
                except ClientError:
                    await self._client.clock.sleep(ASK_AGAIN_S)
                    continue
                break

    async def cluster(self) -> None:
        """Poll the cluster, which also reveals a dead connection."""
        clock = self._client.clock

        async def look() -> ClusterReceived:
            begun = clock.monotonic()
            cluster = await self._client.nodes.cluster()
            return ClusterReceived(cluster, clock.monotonic() - begun)

        await self._again(Topic.CLUSTER, look, lambda event: event, every_s=LOOK_EVERY_S)

    async def queue(self) -> None:
        """The queue, with reasons."""

        async def look() -> ListQueueResponse:
            return joined(await self._client.sessions.queue(limit=MOST_WAITING))

        await self._again(Topic.QUEUE, look, QueueReceived, every_s=LOOK_EVERY_S)

    async def nodes(self) -> None:
        """Receive nodes and their devices."""
        await self._again(
            Topic.NODES, self._client.nodes.every, NodesReceived, every_s=LOOK_EVERY_S
        )

    async def datasets(self) -> None:
        """Receive datasets the user may see."""
        await self._again(
            Topic.DATASETS, self._client.datasets.every, DatasetsReceived, every_s=DATASETS_EVERY_S
        )

    async def tree(self, dataset: Dataset) -> None:
        """Receive the files of a dataset version, which never change."""
        if dataset.file_count > MOST_FILES or dataset.size_bytes > MOST_FILES_BYTES:
            self._post(Refused(Topic.TREE, "too large for its files to be listed here"))
            return
        again = partial(
            self._client.datasets.get, f"{dataset.owner}/{dataset.name}", dataset.version
        )

        async def look() -> None:
            try:
                tree = await read_manifest(self._client, dataset.digest, shown_by=again)
            except ContentError as error:
                raise PlatformFault(str(error)) from error
            files = [(one.path, one.size) for one in tree.entries]
            self._post(TreeReceived(dataset.digest, files))

        await self._for_ever(Topic.TREE, look)

    async def projects(self) -> None:
        """Receive the user's projects and their usage."""
        await self._again(
            Topic.PROJECTS, self._client.projects.every, ProjectsReceived, every_s=LOOK_EVERY_S
        )

    async def project(self, name: str) -> None:
        """Receive one, with usage by user."""

        async def look() -> ProjectReceived:
            return ProjectReceived(await self._client.projects.get(name))

        await self._again(Topic.PROJECT, look, lambda event: event, every_s=LOOK_EVERY_S)

    async def boards(self) -> None:
        """Receive boards the user may see."""
        await self._again(
            Topic.BOARDS, self._client.boards.every, BoardsReceived, every_s=BOARDS_EVERY_S
        )

    async def board(self, query: BoardQuery, *, with_own: bool = False) -> None:
        """Receive the entries of a board, and their changes.

        `with_own`: also all of the user's: a list of the best ones lacks failed submissions.
        """
        answers: dict[bool, WatchedBoard] = {}

        async def watch(*, is_own: bool) -> None:
            selection = Selection(query.best_per, limit=query.limit)
            if is_own:
                selection = Selection(BEST_PER_NONE, own_only=True)
            stream = watch_board(
                self._client, query.name, selection, on_link=self._on_link(Topic.BOARD)
            )
            try:
                async with aclosing(stream):
                    async for answer in stream:
                        answers[is_own] = answer
                        if False in answers:
                            own = answers[True].entries if True in answers else ()
                            self._post(BoardReceived(query.key, answers[False], own))
            except NotFound as error:
                if is_own not in answers:
                    raise
                gone = "it was removed, or you may see it no more"
                raise NotFound(gone, reason=error.reason) from error

        async with TaskGroup() as group:
            for is_own in (False, True) if with_own else (False,):
                group.create_task(self._for_ever(Topic.BOARD, partial(watch, is_own=is_own)))

    async def competitions(self) -> None:
        """Receive competitions the user may see."""
        await self._again(
            Topic.COMPETITIONS,
            self._client.competitions.every,
            CompetitionsReceived,
            every_s=BOARDS_EVERY_S,
        )

    async def standings(self, query: StandingsQuery) -> None:
        """Receive the standings of a phase and their changes, with the competition's announcements."""
        heard = _Heard(query, self._post)

        async def watch() -> None:
            stream = watch_standings(
                self._client, query.name, query.phase, on_link=self._on_link(Topic.STANDINGS)
            )
            try:
                async with aclosing(stream):
                    async for answer in stream:
                        heard.standings(answer)
            except NotFound as error:
                if heard.answer is None:
                    raise
                gone = "it was removed, or you may see it no more"
                raise NotFound(gone, reason=error.reason) from error

        async with TaskGroup() as group:
            group.create_task(self._for_ever(Topic.STANDINGS, watch))
            group.create_task(self._announcements(query.name, heard))

    async def _announcements(self, competition: str, heard: _Heard) -> None:
        while True:
            try:
                found = await self._client.competitions.get(competition)
            except NotSignedIn:
                return
            except ClientError:
                pass  # told by the standings, which are of the same competition
            else:
                heard.announcements(found.announcements)
            await self._client.clock.sleep(BOARDS_EVERY_S)

    async def explanation(self, session: Session) -> None:
        """Receive why a live session is queued; if it is not, usage of its processes, which changes all the time."""
        calls = self._client.sessions

        async def look() -> ExplanationReceived:
            if session.state == pb.SESSION_STATE_QUEUED:
                answer = await calls.explain(session.id)
            else:
                answer = pb.ExplainSessionResponse(session=await calls.get(session.id))
            return ExplanationReceived(session.id, answer)

        await self._again(Topic.EXPLANATION, look, lambda event: event, every_s=LOOK_EVERY_S)

    async def series(self, sessions: Sequence[Session], query: ChartQuery) -> None:
        """Receive series of sessions at the drawn width, again and again.

        More sessions get fewer columns each, and are read less often.
        """
        ids = tuple(session.id for session in sessions)
        width = max(min(query.width, MOST_COLUMNS // len(ids)), LEAST_COLUMNS)
        asked = replace(query, width=width)
        received: tuple[Columns, SeriesReceived] | None = None

        async def look() -> SeriesReceived:
            nonlocal received
            columns = await read_columns(self._client, sessions, asked, patience_s=0.0)
            if received is None or columns != received[0]:
                received = columns, _gathered(columns, sessions, query)
            return received[1]  # an identical answer is not drawn again

        have_ended = all(session.state in ENDED_STATES for session in sessions)
        every_s = ENDED_SERIES_EVERY_S if have_ended else LOOK_EVERY_S + EACH_S * len(ids)
        await self._again(Topic.SERIES, look, lambda event: event, every_s=every_s)

    async def code(self, sessions: tuple[Session, Session]) -> None:
        """Receive the code diff of two sessions, which never changes."""

        async def look() -> None:
            try:
                old, new = await read_trees(self._client, sessions)
                files = code.differing(old, new)
                data = await read_both(self._client, sessions, code.entries(files))
            except ContentError as error:
                raise PlatformFault(str(error)) from error
            ids = sessions[0].id, sessions[1].id
            names = sessions[0].name, sessions[1].name
            # Long files take a while, in which other tasks run.
            found = await in_thread(lambda: code.all_compared(files, data, names))
            self._post(CodeReceived(ids, found, code.same(old, new)))

        await self._for_ever(Topic.CODE, look)

    async def log(self, session: Session, rank: int = 0) -> None:
        """Receive the end of a replica's output, and new output."""

        async def follow() -> None:
            self._post(LogReceived(session.id, (), is_anew=True))
            text, lead, missing, attempt = _shown_log(), "", 0, 0
            stream = read_logs(
                self._client,
                session.id,
                rank=rank,
                tail_lines=TAIL_LINES,
                follow=True,
                on_link=self._on_link(Topic.LOG),
            )
            async with aclosing(stream):
                async for piece in stream:
                    is_next = 0 < attempt < piece.attempt
                    attempt = piece.attempt
                    if is_next:
                        # The previous attempt may have ended within a line.
                        text, lead, missing = _shown_log(), "", 0
                    missing += piece.missing_bytes
                    *lines, lead = _lines_of(lead, text.feed(piece.data))
                    rest = text.open and lead + text.open
                    self._post(LogReceived(session.id, lines, is_next, missing, rest, attempt))
            *lines, _ = _lines_of(lead, text.close())
            if lines:
                self._post(LogReceived(session.id, lines, missing_bytes=missing, attempt=attempt))

        await self._for_ever(Topic.LOG, follow)

    # Tabs of one session

    async def detail(  # noqa: C901 - a topic a line
        self, session: Session, detail: Detail, medium: Media | None
    ) -> None:
        """Receive a tab's topic; `medium`: the media file to read."""
        match detail.topic:
            case Topic.CHECKPOINTS | Topic.ARTIFACTS:
                await self.saved(session, detail.topic)
            case Topic.TELEMETRY:
                await self.telemetry(session, detail.what)
            case Topic.FILES:
                await self.files(session)
            case Topic.FILE:
                await self.file(session, detail.what)
            case Topic.MEDIA:
                await self.media(session)
            case Topic.CONTENT if medium is not None:
                await self.content(session, medium)
            case Topic.KNOBS:
                await self.knobs(session)
            case Topic.CONFIG:
                await self.configs([session])
            case Topic.PROCESSES:
                await self.processes(session, int(detail.what))
            case Topic.STACKS:
                await self.stacks(session, detail.what)

    async def saved(self, session: Session, topic: Topic) -> None:
        """Receive its checkpoints or artifacts."""

        async def look() -> CheckpointsReceived | ArtifactsReceived:
            if topic is Topic.ARTIFACTS:
                artifacts = await self._client.artifacts.every(session.id)
                return ArtifactsReceived(session.id, artifacts)
            found = await self._client.checkpoints.every(session.id)
            return CheckpointsReceived(session.id, found)

        await self._detail(topic, session, look)

    async def telemetry(self, session: Session, span: str) -> None:
        """Receive usage of its devices and processes in the last `span` (`10m`); "": since placement."""

        async def look() -> TelemetryReceived:
            ended = seconds_of(session.ended_at) if session.HasField("ended_at") else None
            answer = await self._client.telemetry.read(
                session=session.id,
                window_s=parse_duration(span) if span else None,
                until=ended,
                width=TELEMETRY_CELLS,
            )
            return TelemetryReceived(session.id, span, answer)

        await self._detail(Topic.TELEMETRY, session, look, every_s=LOOK_EVERY_S)

    async def files(self, session: Session) -> None:
        """Receive the files of its code, which never change."""

        async def look() -> FilesReceived:
            tree = await read_tree(self._client, session)
            return FilesReceived(session.id, () if tree is None else tree.entries)

        await self._once(Topic.FILES, look)

    async def file(self, session: Session, path: str) -> None:
        """Receive a code file."""

        async def look() -> FileReceived:
            tree = await read_tree(self._client, session)
            found = [one for one in tree.entries if one.path == path] if tree is not None else []
            if not found:
                raise NotFound(f"there is no {path} in its code")
            [entry] = found
            if note := code.unreadable(entry):
                return FileReceived(session.id, path, (), note)
            [data] = await read_files(self._client, session, found)
            lines, note = code.shown(data)
            return FileReceived(session.id, path, lines, note)

        await self._once(Topic.FILE, look)

    async def media(self, session: Session) -> None:
        """Receive its logged media."""
        followed = media.Followed(self._client, session.id, most=MOST_MEDIA)

        async def look() -> MediaReceived:
            return MediaReceived(session.id, *await followed.again())

        await self._detail(Topic.MEDIA, session, look)

    async def content(self, session: Session, medium: Media) -> None:
        """Receive its content."""

        async def look() -> ContentReceived:
            data = await media.content(self._client, session.id, medium)
            return ContentReceived(session.id, medium_key(medium), data)

        await self._once(Topic.CONTENT, look)

    async def knobs(self, session: Session) -> None:
        """Read its program's knobs, once: it waits meanwhile, and the caller is inside the session."""

        async def look() -> KnobsReceived:
            found = await read_knobs(self._client, session.id)
            return KnobsReceived(session.id, found, self._client.clock.time())

        await self._inside(Topic.KNOBS, look)

    async def configs(self, sessions: Sequence[Session]) -> None:
        """Receive the configurations that their programs reported; of more sessions less often."""
        ids = tuple(session.id for session in sessions)
        before: ConfigReceived | None = None

        async def config(session_id: str) -> pb.ReportedConfig:
            try:
                return (await self._client.sessions.get(session_id)).reported_config
            except NotFound:
                return pb.ReportedConfig()  # removed meanwhile

        async def look() -> ConfigReceived:
            nonlocal before
            found = await each_at_once(ids, config, most=_AT_ONCE)
            received = ConfigReceived(ids, dict(zip(ids, found, strict=True)))
            if before is None or received != before:
                before = received
            return before  # an identical answer is not drawn again

        have_ended = all(session.state in ENDED_STATES for session in sessions)
        every_s = ENDED_DETAILS_EVERY_S if have_ended else DETAILS_EVERY_S + EACH_S * len(ids)
        await self._again(Topic.CONFIG, look, lambda event: event, every_s=every_s)

    async def processes(self, session: Session, rank: int) -> None:
        """Receive a replica's processes and connections."""

        async def look() -> ProcessesReceived:
            found = await self._client.sessions.processes(session.id, rank=rank)
            if found.unseen:
                raise StateConflict(found.unseen)
            return ProcessesReceived(session.id, str(rank), found)

        await self._inside(Topic.PROCESSES, look, every_s=DETAILS_EVERY_S)

    async def stacks(self, session: Session, what: str) -> None:
        """Receive stacks of its Python threads, once: reading stops a computing process for a moment."""

        async def look() -> StacksReceived:
            found = await read_stacks(self._client, session, with_locals=what == WITH_LOCALS)
            return StacksReceived(session.id, what, found)

        await self._inside(Topic.STACKS, look)

    async def _inside(
        self, topic: Topic, look: Callable[[], Awaitable[Event]], *, every_s: float = math.inf
    ) -> None:
        """Look into a running session. Refusals are not retried: each is in the audit trail."""

        async def allowed() -> Event:
            try:
                return await look()
            except (Denied, AlreadyEnded) as error:
                self._post(Refused(topic, error.message))
                await asyncio.Event().wait()  # until cancelled
                raise
            except (Unavailable, NotSignedIn):
                raise
            except ClientError as error:
                raise ClientError(": ".join(filter(None, (error.message, error.why)))) from error

        await self._again(topic, allowed, lambda event: event, every_s=every_s)

    async def _detail(
        self,
        topic: Topic,
        session: Session,
        look: Callable[[], Awaitable[Event]],
        *,
        every_s: float = DETAILS_EVERY_S,
    ) -> None:
        has_ended = session.state in ENDED_STATES
        every_s = ENDED_DETAILS_EVERY_S if has_ended else every_s
        await self._again(topic, look, lambda event: event, every_s=every_s)

    async def _once(self, topic: Topic, look: Callable[[], Awaitable[Event]]) -> None:
        """Receive immutable content."""

        async def sound() -> Event:
            try:
                return await look()
            except ContentError as error:
                raise PlatformFault(str(error)) from error

        await self._again(topic, sound, lambda event: event, every_s=math.inf)

    async def _again(
        self,
        topic: Topic,
        look: Callable[[], Awaitable[T]],
        event: Callable[[T], Event],
        *,
        every_s: float,
    ) -> None:
        """Poll, less often while `look` returns the same object; only once if `every_s` is infinite."""

        async def asking() -> None:
            link = self._on_link(topic)
            before, same, retries = None, 0, 0
            while True:
                try:
                    seen = await look()
                except Unavailable as error:
                    # On the first look, too: users starting during an outage see its end.
                    delay_s = backoff_s(FIRST_RETRY_S, retries, LONGEST_RETRY_S)
                    retries += 1
                    link(
                        Link(
                            is_live=False,
                            failures=retries,
                            retry_in_s=delay_s,
                            reason=error.message,
                        )
                    )
                    await self._client.clock.sleep(delay_s)
                    continue
                retries = 0
                self._post(event(seen))
                if every_s == math.inf:
                    return
                before, same = seen, same + 1 if seen is before else 0
                is_calm = same >= CALM_AFTER
                await self._client.clock.sleep(max(every_s, CALM_EVERY_S) if is_calm else every_s)

        await self._for_ever(topic, asking)

    async def _for_ever(self, topic: Topic, receive: Callable[[], Awaitable[None]]) -> None:
        """Receive a topic, again after errors; return when it is complete."""
        while True:
            try:
                await receive()
            except NotSignedIn:
                self._signed_out()
                await (
                    asyncio.Event().wait()
                )  # until cancelled: the same token would be refused again
            except ClientError as error:
                self._post(Refused(topic, error.message))
                await self._client.clock.sleep(ASK_AGAIN_S)
            else:
                return

    def _on_link(self, topic: Topic) -> Callable[[Link], None]:
        return lambda link: self._post(Linked(topic, link))


def _gathered(columns: Columns, sessions: Sequence[Session], query: ChartQuery) -> SeriesReceived:
    parts = columns.parts()
    lines = grouped(
        (session.id, gather(parts.get(session.id, ()), session=visible(session.name)))
        for session in sessions
    )
    ids = tuple(session.id for session in sessions)
    left_out = sum(answer.left_out_series for answer in columns.answers)
    return SeriesReceived(ids, query, lines.groups, lines.owners, left_out)


def _shown_log() -> ShownLog:
    return ShownLog(is_safe=True, longest=MOST_IN_LINE - 2)


def _lines_of(lead: str, done: Sequence[Printed]) -> list[str]:
    """Return finished lines, then the start of the next; marks show where long lines break."""
    text = lead + "".join(
        one.text if one.text.endswith("\n") else f"{one.text}…\n…" for one in done
    )
    *lines, lead = text.split("\n")
    return [*(part for line in lines for part in _parts(line)), lead]


def _parts(line: str) -> list[str]:
    """Split a long line, with a mark where each part breaks off and the next continues."""
    parts = [line[at : at + MOST_IN_LINE] for at in range(0, max(len(line), 1), MOST_IN_LINE)]
    parts[1:] = [f"…{part}" for part in parts[1:]]
    parts[:-1] = [f"{part}…" for part in parts[:-1]]
    return parts
