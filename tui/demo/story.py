"""A made-up cluster, for `nsml-tui --demo` and pictures: users, sessions and figures are invented.

It is a story like a recording. Its events are played through once from a seed, session by session, and all
else depends on the time: at the same time the same is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tui.demo import inside, tabs
from tui.demo.accounts import Accounts, files_of
from tui.demo.boards import Boards
from tui.demo.competitions import Competitions
from tui.demo.machines import Machines
from tui.demo.plan import AFTER_S, played
from tui.demo.reports import Reports
from tui.demo.scenery import NODES, PROJECTS
from tui.demo.sessions import Sessions
from tui.model import (
    ArtifactsReceived,
    BoardQuery,
    BoardReceived,
    BoardsReceived,
    CheckpointsReceived,
    ClusterReceived,
    CompetitionsReceived,
    ConfigReceived,
    ContentReceived,
    DatasetsReceived,
    EndedReceived,
    ExplanationReceived,
    FileReceived,
    FilesReceived,
    KnobsReceived,
    MediaReceived,
    NodesReceived,
    ProcessesReceived,
    ProjectReceived,
    ProjectsReceived,
    QueueReceived,
    Refused,
    SessionsReceived,
    StacksReceived,
    StandingsQuery,
    StandingsReceived,
    TelemetryReceived,
    TreeReceived,
)
from tui.sources import OF_ONE, OF_TABS, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml.client.series import ChartQuery
    from tui.demo.scripted_session import ScriptedSession
    from tui.model import DetailReceived, Event

RECEIVED_EVERY_S: Final = 2.0
MOST_ENDED: Final = 16
_FOR_GOOD: Final = frozenset({Topic.FILES, Topic.FILE, Topic.CONTENT, Topic.KNOBS, Topic.STACKS})


class Demo:
    """A made-up cluster.

    Args:
        origin: the start of the show, Unix seconds; its events begin `BEFORE_S` earlier.
    """

    platform = "garden"
    user = "ada"
    is_made_up = True

    def __init__(self, origin: float) -> None:
        self.origin = self.opens = origin
        self.begins = origin - 3_600.0
        self.ends = origin + AFTER_S
        self.parts = played()
        self._sessions = Sessions(self.parts, origin)
        self._machines = Machines(origin)
        self._accounts = Accounts(self.parts, origin)
        self._reports = Reports(origin)
        self._boards = Boards(self.parts, origin)
        self._competitions = Competitions(self._boards.submissions, origin)
        self._by_id = {part.id: part for part in self.parts}

    def received(self, after: float | None, at: float) -> Iterator[tuple[float, Event]]:
        """All data at a time, again every two seconds."""
        if not _is_due(after, at):
            return
        now = at - self.origin
        live = [part for part in self.parts if part.created <= now < part.gone]
        ended = sorted((part for part in self.parts if part.gone <= now), key=_gone)
        waiting = [part for part in live if part.placed > now]
        nodes = [self._machines.node(place, live, now) for place in range(len(NODES))]
        yield (
            at,
            SessionsReceived([self._sessions.session(part, now) for part in live], (), reset=True),
        )
        yield (
            at,
            EndedReceived(
                [self._sessions.session(one, now) for one in reversed(ended[-MOST_ENDED:])]
            ),
        )
        yield at, QueueReceived(self._sessions.queue(waiting, nodes, now))
        yield at, NodesReceived(nodes)
        yield at, DatasetsReceived(self._accounts.datasets())
        yield at, ProjectsReceived([self._accounts.project(name, now) for name in PROJECTS])
        yield at, BoardsReceived(self._boards.every(now))
        yield at, CompetitionsReceived(self._competitions.every(now))
        yield at, ClusterReceived(self._machines.cluster(live, nodes, now), 0.0)

    def _of_one(self, topic: Topic, name: str, now: float) -> Event:
        if topic is Topic.PROJECT:
            return ProjectReceived(self._accounts.project_shown(name, now))
        if topic is Topic.BOARD:
            return BoardReceived(name, self._boards.shown(BoardQuery.of(name), now))
        rows = self._competitions.shown(StandingsQuery.of(name), now)
        return StandingsReceived(name, rows, self._competitions.announcements(now))

    def received_of(
        self,
        topic: Topic,
        names: tuple[str, ...],
        query: ChartQuery,
        after: float | None,
        at: float,
        *,
        what: str = "",
    ) -> Iterator[tuple[float, Event]]:
        """Yield series, log, explanation and tab data of sessions, or the contents of a dataset, project, board or standings."""
        parts = [self._by_id[one] for one in names if one in self._by_id]
        now = at - self.origin
        if topic is Topic.CODE:
            if after is None:
                yield at, Refused(topic, "the demo has no code")
        elif topic is Topic.TREE and after is None:
            yield at, TreeReceived(names[0], files_of(names[0]))
        elif topic in OF_ONE and topic is not Topic.TREE and _is_due(after, at):
            yield at, self._of_one(topic, names[0], now)
        elif topic is Topic.LOG:
            yield (
                at,
                self._reports.log(parts[0], None if after is None else after - self.origin, now),
            )
        elif topic is Topic.SERIES and _is_due(after, at):
            yield at, self._reports.series(parts, query, now)
        elif topic is Topic.EXPLANATION and _is_due(after, at):
            yield at, ExplanationReceived(parts[0].id, self._sessions.explanation(parts[0], now))
        elif topic in OF_TABS and _is_due(after, at) and (after is None or topic not in _FOR_GOOD):
            yield at, self._detail(parts[0], topic, what, now)

    def _detail(  # noqa: C901, PLR0911 - a topic a line
        self, part: ScriptedSession, topic: Topic, what: str, now: float
    ) -> DetailReceived | Refused:
        """Data of a session's tab."""
        match topic:
            case Topic.CHECKPOINTS:
                return CheckpointsReceived(part.id, tabs.saved(part, self.origin, now))
            case Topic.ARTIFACTS:
                return ArtifactsReceived(part.id, ())
            case Topic.TELEMETRY:
                told = tabs.telemetry(part, self.origin, now, what)
                return TelemetryReceived(part.id, what, told)
            case Topic.FILES:
                return FilesReceived(part.id, tabs.files(part))
            case Topic.FILE:
                return FileReceived(part.id, what, tabs.code(part).get(what, []))
            case Topic.MEDIA:
                return MediaReceived(part.id, tabs.shown(part, self.origin, now))
            case Topic.KNOBS:
                return KnobsReceived(
                    part.id, inside.knobs(part, self.origin, now), self.origin + now
                )
            case Topic.CONFIG:
                return ConfigReceived((part.id,), {part.id: tabs.config(part)})
            case Topic.PROCESSES:
                return ProcessesReceived(part.id, what, inside.processes(part, int(what), now))
            case Topic.STACKS:
                return StacksReceived(part.id, what, inside.stacks(part, with_locals=bool(what)))
        data = tabs.content(part, what)
        return (
            ContentReceived(part.id, what, data) if data else Refused(topic, "nobody made that up")
        )


def _is_due(after: float | None, at: float) -> bool:
    """Whether two seconds began since."""
    return after is None or at // RECEIVED_EVERY_S > after // RECEIVED_EVERY_S


def _gone(part: ScriptedSession) -> float:
    return part.gone
