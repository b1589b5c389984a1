"""State of the dashboard, folded from events of the feed. No I/O, no clock, no widget."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from nsml.client.series import ChartQuery
from nsml.client.streams import ENDED_STATES
from nsml.spec.submission_steps import is_step
from nsml.v1 import boards_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.sessions_pb2 import (
    SESSION_STATE_HELD,
    SESSION_STATE_PAUSED,
    SESSION_STATE_PREPARING,
    SESSION_STATE_RUNNING,
    SESSION_STATE_STOPPING,
    SESSION_STATE_UNKNOWN,
)
from nsml.view.complete_sessions import completed, is_short
from nsml.view.events import PlatformEvent
from nsml.view.filter_fields import Filtered, Sheet
from nsml.view.sessions import WAITING_STATES, placed_text
from nsml.view.sorting import value_of
from nsml.view.times import seconds_of
from tui.sources import OF_SESSIONS, Source, State, Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsml.client.boards import WatchedBoard
    from nsml.client.streams import Link
    from nsml.content.manifest import Entry
    from nsml.v1.artifacts_pb2 import Artifact
    from nsml.v1.boards_pb2 import BestPer, Board, BoardEntry
    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.competitions_pb2 import (
        Announcement,
        Competition,
        Standing,
        WatchStandingsResponse,
    )
    from nsml.v1.datasets_pb2 import Dataset
    from nsml.v1.media_pb2 import Media
    from nsml.v1.nodes_pb2 import GetClusterResponse, Node
    from nsml.v1.projects_pb2 import GetProjectResponse, Project
    from nsml.v1.sessions_pb2 import (
        ExplainSessionResponse,
        ListQueueResponse,
        ReplicaProcesses,
        ReportedConfig,
        Session,
    )
    from nsml.v1.telemetry_pb2 import ReadTelemetryResponse
    from nsml.view.code import Compared
    from nsml.view.filtering import Filter
    from nsml.view.series import Series
    from nsml.view.sorting import Value
    from nsml.view.stacks import SeenReplica


MOST_ENDED: Final = 10_000
"""Ended sessions kept here: the newest."""
TAIL_LINES: Final = 1_000
"""Of a log, before following it."""
MOST_TURNS: Final = 1_000
"""Observed changes kept here: the last."""
MOST_WHOLE: Final = 1_000
"""Sessions with long commands kept in full."""
MOST_LINES: Final = 50_000
"""Lines of a log kept here: the last."""
MOVES_SHOWN_S: Final = 30.0
"""How long a changed rank is marked as such."""
WITH_LOCALS: Final = "locals"
"""Of stacks: with the local variables of each call."""
_POLLED: Final = frozenset(
    {
        Topic.CLUSTER,
        Topic.QUEUE,
        Topic.NODES,
        Topic.EXPLANATION,
        Topic.PROJECTS,
        Topic.PROJECT,
    }
)

_HOLDING: Final = frozenset(
    {
        pb.SESSION_STATE_PREPARING,
        pb.SESSION_STATE_RUNNING,
        pb.SESSION_STATE_PAUSED,
        pb.SESSION_STATE_UNKNOWN,
        pb.SESSION_STATE_STOPPING,
    }
)
"""States in which a session holds its devices."""


_TURNS: Final = {
    SESSION_STATE_PREPARING: "placed",
    SESSION_STATE_PAUSED: "paused",
    SESSION_STATE_UNKNOWN: "unknown",
    SESSION_STATE_STOPPING: "stopping",
    SESSION_STATE_HELD: "held",
}
_BACK: Final = {SESSION_STATE_PAUSED: "goes on", SESSION_STATE_UNKNOWN: "reconnected"}


@dataclass(frozen=True, slots=True)
class SessionsReceived:
    """A step of the watch stream; with `reset` it replaces all live sessions."""

    changed: Sequence[Session]
    removed: Sequence[str]
    reset: bool = False


@dataclass(frozen=True, slots=True)
class EndedReceived:
    """The newest ended sessions; they replace the previous ones.

    `is_cut`: there are older ones as well.
    """

    sessions: Sequence[Session]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class WholeReceived:
    """A session with its whole command, which lists cut."""

    session: Session


@dataclass(frozen=True, slots=True)
class ClusterReceived:
    """State of the cluster, and the latency of the answer in seconds."""

    cluster: GetClusterResponse
    took_s: float


@dataclass(frozen=True, slots=True)
class QueueReceived:
    """The queue, in order."""

    queue: ListQueueResponse


@dataclass(frozen=True, slots=True)
class NodesReceived:
    """All nodes."""

    nodes: Sequence[Node]


@dataclass(frozen=True, slots=True)
class DatasetsReceived:
    """All datasets visible to the user."""

    datasets: Sequence[Dataset]


@dataclass(frozen=True, slots=True)
class TreeReceived:
    """The files of a dataset with their sizes; `digest` names its version."""

    digest: str
    files: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class ProjectsReceived:
    """The projects of the user; for an administrator, all."""

    projects: Sequence[Project]


@dataclass(frozen=True, slots=True)
class ProjectReceived:
    """One of them, with usage by user."""

    answer: GetProjectResponse


@dataclass(frozen=True, slots=True)
class BoardsReceived:
    """All boards visible to the user, by owner and name."""

    boards: Sequence[Board]


class BoardQuery(NamedTuple):
    """Which entries of a board are received: `name` is its full one, `limit` 0 means all."""

    name: str
    best_per: BestPer = boards_pb2.BEST_PER_UNSPECIFIED
    limit: int = 0

    @property
    def key(self) -> str:
        """The same as a text."""
        return f"{self.name} {self.best_per} {self.limit}"

    @classmethod
    def of(cls, key: str) -> BoardQuery:
        """Read a `key`."""
        name, best_per, limit = key.rsplit(" ", 2)
        return cls(name, cast("BestPer", int(best_per)), int(limit))


@dataclass(frozen=True, slots=True)
class BoardReceived:
    """A board and its entries, best first.

    Attributes:
        key: of which `BoardQuery`.
        own: all entries of the user, where only the best ones are among the others.
    """

    key: str
    answer: WatchedBoard
    own: Sequence[BoardEntry] = ()

    @property
    def best_per(self) -> BestPer:
        """Which entries are listed."""
        asked = BoardQuery.of(self.key).best_per
        return asked or self.answer.board.settings.best_per

    @property
    def unscored(self) -> Sequence[BoardEntry]:
        """Entries without a score, the newest first."""
        every = {entry_key(one): one for one in (*self.own, *self.answer.entries) if not one.rank}
        return sorted(every.values(), key=_by_submission, reverse=True)


@dataclass(frozen=True, slots=True)
class CompetitionsReceived:
    """All competitions visible to the user, the newest first."""

    competitions: Sequence[Competition]


class StandingsQuery(NamedTuple):
    """Which standings are received: `name` is the competition's full one, `phase` "" the one that runs, else the last."""

    name: str
    phase: str = ""

    @property
    def key(self) -> str:
        """The same as a text."""
        return f"{self.name} {self.phase}"

    @classmethod
    def of(cls, key: str) -> StandingsQuery:
        """Read a `key`."""
        name, _, phase = key.rpartition(" ")
        return cls(name, phase)


@dataclass(frozen=True, slots=True)
class StandingsReceived:
    """The standings of a phase, best first.

    Attributes:
        key: of which `StandingsQuery`.
        announcements: of the competition, the oldest first.
    """

    key: str
    answer: WatchStandingsResponse
    announcements: Sequence[Announcement] = ()


@dataclass(frozen=True, slots=True)
class Linked:
    """The connection of a topic broke, could not be made, or is back."""

    topic: Topic
    link: Link


@dataclass(frozen=True, slots=True)
class Refused:
    """The platform refuses a topic, and why."""

    topic: Topic
    why: str


@dataclass(frozen=True, slots=True)
class SeriesReceived:
    """Series of sessions by metric: in the sessions' order, with the session id of each line."""

    session_ids: tuple[str, ...]
    query: ChartQuery
    groups: Mapping[str, Sequence[Series]]
    owners: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: int = 0
    """Series without room in the answer."""


@dataclass(frozen=True, slots=True)
class LogReceived:
    """Lines of a session's log, and unfinished ones at its end; `is_anew` drops earlier lines.

    `attempt`: that of the lines; 0: unknown.
    """

    session_id: str
    lines: Sequence[str]
    is_anew: bool = False
    missing_bytes: int = 0
    unended: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class ExplanationReceived:
    """Why a session waits."""

    session_id: str
    answer: ExplainSessionResponse


@dataclass(frozen=True, slots=True)
class CodeReceived:
    """Code differences of two sessions, file by file; `same` files are equal."""

    pair: tuple[str, str]
    files: Sequence[Compared]
    same: int


@dataclass(frozen=True, slots=True)
class Detail:
    """A subject of a tab of a session; `what` selects one of several.

    It is the time span of telemetry, the path of a file, the `medium_key` of media content, the rank of
    processes, or `WITH_LOCALS` for stacks. For knobs it is their last change, after which they are read again.
    """

    topic: Topic
    what: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointsReceived:
    """Checkpoints of a session, oldest first."""

    session_id: str
    checkpoints: Sequence[Checkpoint]


@dataclass(frozen=True, slots=True)
class ArtifactsReceived:
    """Artifact versions of a session, oldest first."""

    session_id: str
    artifacts: Sequence[Artifact]


@dataclass(frozen=True, slots=True)
class TelemetryReceived:
    """Usage of a session's devices and processes in a time span."""

    session_id: str
    what: str
    answer: ReadTelemetryResponse


@dataclass(frozen=True, slots=True)
class FilesReceived:
    """The files of a session's code, by path."""

    session_id: str
    files: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class FileReceived:
    """The lines of a code file, or in `note` why there are none."""

    session_id: str
    what: str
    lines: Sequence[str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class MediaReceived:
    """Media of a session, oldest first: the last ones, without the first `left_out`."""

    session_id: str
    media: Sequence[Media]
    left_out: int = 0


def medium_key(medium: Media) -> str:
    """Return its key among the session's media."""
    return f"{medium.attempt}.{medium.rank}.{medium.file}"


@dataclass(frozen=True, slots=True)
class ContentReceived:
    """Content of a media file; not validated yet."""

    session_id: str
    what: str
    data: bytes


@dataclass(frozen=True, slots=True)
class KnobsReceived:
    """Knobs of a session's program, by name."""

    session_id: str
    knobs: Mapping[str, Mapping[str, Any]]
    at: float


@dataclass(frozen=True, slots=True)
class ConfigReceived:
    """The configurations that the programs of the shown sessions reported, by the session's id; empty ones included."""

    session_ids: tuple[str, ...]
    configs: Mapping[str, ReportedConfig]


@dataclass(frozen=True, slots=True)
class ProcessesReceived:
    """The processes of the replica of a rank, and its connections."""

    session_id: str
    what: str
    found: ReplicaProcesses


@dataclass(frozen=True, slots=True)
class StacksReceived:
    """Stacks of the Python threads of all replicas."""

    session_id: str
    what: str
    replicas: Sequence[SeenReplica]


DetailReceived: TypeAlias = (
    CheckpointsReceived
    | ArtifactsReceived
    | TelemetryReceived
    | FilesReceived
    | FileReceived
    | MediaReceived
    | ContentReceived
    | KnobsReceived
    | ConfigReceived
    | ProcessesReceived
    | StacksReceived
)
"""Events of tabs."""

D = TypeVar("D", bound=DetailReceived)

Event: TypeAlias = (
    SessionsReceived
    | EndedReceived
    | WholeReceived
    | ClusterReceived
    | QueueReceived
    | NodesReceived
    | SeriesReceived
    | LogReceived
    | ExplanationReceived
    | CodeReceived
    | DetailReceived
    | DatasetsReceived
    | TreeReceived
    | ProjectsReceived
    | ProjectReceived
    | BoardsReceived
    | BoardReceived
    | CompetitionsReceived
    | StandingsReceived
    | Linked
    | Refused
)


class Tally(NamedTuple):
    """Counts of a session for the line of its group."""

    project: str
    owner: str
    waits: bool
    has_ended: bool
    gpu_thousandths: int
    """Of held devices."""


def tally_of(row: Row) -> Tally:
    """Return its counts, computed once."""
    if row.tally is None:
        one = row.session
        state, asked = one.state, one.spec.resources.gpu_thousandths
        row.tally = Tally(
            one.project or one.owner,
            one.owner,
            state in WAITING_STATES,
            state in ENDED_STATES,
            asked * max(one.spec.replica_count, 1) if state in _HOLDING else 0,
        )
    return row.tally


class Row:
    """A session of the list, with cached values for sorting and filtering.

    Attributes:
        is_step: whether it is a step of a submission, which never changes.
        place: index in the sorted list; invalid while that is not sorted.
    """

    __slots__ = ("created", "filtered", "is_step", "place", "session", "tally", "values")

    def __init__(self, session: Session) -> None:
        self.created = seconds_of(session.created_at)
        self.is_step = is_step(session.spec)
        self.place = -1
        self.take(session)

    def take(self, session: Session) -> None:
        """Update the session."""
        self.session = session
        self.filtered = Filtered(session)
        self.values: dict[str, Value] = {}
        self.tally: Tally | None = None

    def value(self, key: str, now: float) -> Value:
        """Compute and cache its sort value in a column that does not depend on `now`."""
        found = self.values[key] = value_of(self.filtered, key, now)
        return found


class Move(NamedTuple):
    """How many ranks an entry of the shown board went up (down: less than 0), and when; 0: it got its first rank."""

    ranks: int
    at: float


def entry_key(entry: BoardEntry) -> str:
    """Return the permanent key of an entry: of its submission, else of its session."""
    return entry.submission_id or entry.session_id or entry.session


def place_key(entry: BoardEntry, best_per: int) -> str:
    """Return whose rank it is: the user's or the team's where the best of each is listed, else the entry's."""
    match best_per:
        case boards_pb2.BEST_PER_USER:
            return entry.owner
        case boards_pb2.BEST_PER_TEAM:
            return f"team {entry.team}" if entry.team else entry.owner
    return entry_key(entry)


def moved(
    known: Mapping[str, Move],
    before: Sequence[BoardEntry],
    entries: Sequence[BoardEntry],
    now: float,
    *,
    best_per: int = boards_pb2.BEST_PER_NONE,
) -> dict[str, Move]:
    """Return the moves that are shown, by `place_key`: those since the entries of `before`, and others for a while."""
    ranks = {place_key(one, best_per): one.rank for one in before if one.rank}
    found = {place_key(one, best_per): one.rank for one in entries if one.rank}
    return _moved(known, ranks if before else None, found, now)


def moved_teams(
    known: Mapping[str, Move], before: Sequence[Standing], rows: Sequence[Standing], now: float
) -> dict[str, Move]:
    """As `moved`, of the teams of a competition by name."""
    ranks = {one.team: one.rank for one in before if one.rank}
    found = {one.team: one.rank for one in rows if one.rank}
    return _moved(known, ranks if before else None, found, now)


def _moved(
    known: Mapping[str, Move],
    before: Mapping[str, int] | None,
    ranks: Mapping[str, int],
    now: float,
) -> dict[str, Move]:
    kept = {key: move for key, move in known.items() if now - move.at < MOVES_SHOWN_S}
    for key, rank in ranks.items() if before is not None else ():
        was = before.get(key, 0) if before is not None else 0
        if was != rank:
            kept[key] = Move(was - rank if was else 0, now)
    return kept


ShownReceived: TypeAlias = (
    SeriesReceived | LogReceived | ExplanationReceived | CodeReceived | DetailReceived
)
"""Events of the shown sessions."""


@dataclass(slots=True)
class Shown:
    """Data of the shown sessions: one, or several that are compared.

    Attributes:
        owners: the session of each line of `groups`.
        lines: the log, of one session alone.
        unended: the unfinished lines at its end.
        rank: the replica of that log.
        first: the number of its first kept line, from 0 on.
        pair: the two sessions with compared code.
        details: subjects of the tab in front.
        received: the last events of tabs, by kind.
    """

    session_ids: tuple[str, ...] = ()
    chart_query: ChartQuery = field(default_factory=ChartQuery)
    groups: Mapping[str, Sequence[Series]] | None = None
    owners: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    first: int = 0
    missing_bytes: int = 0
    unended: str = ""
    attempt: int = 0
    rank: int = 0
    explanation: ExplainSessionResponse | None = None
    pair: tuple[str, str] | None = None
    code: CodeReceived | None = None
    details: tuple[Detail, ...] = ()
    received: dict[type, DetailReceived] = field(default_factory=dict)

    def set_chart_query(self, query: ChartQuery) -> None:
        """Show this part; series on another axis are dropped."""
        if query.axis is not self.chart_query.axis:
            self.groups = None
        self.chart_query = query

    def is_of(self, event: ShownReceived) -> bool:
        """Whether the event is of the shown sessions."""
        match event:
            case SeriesReceived(session_ids=ids) | ConfigReceived(session_ids=ids):
                return ids == self.session_ids
            case CodeReceived(pair=pair):
                return pair == self.pair
            case (
                TelemetryReceived()
                | FileReceived()
                | ContentReceived()
                | ProcessesReceived()
                | StacksReceived()
            ):
                if Detail(TOPICS[type(event)], event.what) not in self.details:
                    return False  # of an earlier detail
        return (event.session_id,) == self.session_ids

    def detail(self, kind: type[D]) -> D | None:
        """Return the last event of this kind for tabs; None: nothing yet."""
        return cast("D | None", self.received.get(kind))

    def medium(self, key: str) -> Media | None:
        """Return its media with a `medium_key`."""
        listed = self.detail(MediaReceived)
        found = (one for one in (listed.media if listed else ()) if medium_key(one) == key)
        return next(found, None)

    def keeps(self, detail: Detail) -> bool:
        """Whether it is cached; drops data of another `what`."""
        kind = next(kind for kind, topic in TOPICS.items() if topic is detail.topic)
        known = self.received.get(kind)
        if known is not None and getattr(known, "what", detail.what) == detail.what:
            return True
        self.received.pop(kind, None)
        return False

    def take(self, event: ShownReceived) -> None:
        """Store a received event."""
        match event:
            case SeriesReceived():
                # The answer to an earlier query may be on another axis.
                if event.query == self.chart_query:
                    self.groups, self.owners = event.groups, event.owners
                    self.left_out = event.left_out
            case LogReceived():
                if event.is_anew:
                    self.lines.clear()
                    self.first = 0
                self.first += max(len(self.lines) + len(event.lines) - MOST_LINES, 0)
                self.lines.extend(event.lines)
                self.missing_bytes = event.missing_bytes
                self.unended = event.unended
                self.attempt = event.attempt
            case ExplanationReceived():
                self.explanation = event.answer
            case CodeReceived():
                self.code = event
            case _:
                self.received[type(event)] = event


class Model:
    """All data that screens show.

    Attributes:
        version: increases with each change of the shown frames.
        listed: increases with each change of the list of sessions.
    """

    def __init__(self) -> None:
        self.version = 0
        self.listed = 0
        self.cluster: GetClusterResponse | None = None
        self.led_by = ""
        """The last leader, if there is none now."""
        self.took_s = 0.0
        self.queue: ListQueueResponse | None = None
        self.nodes: Sequence[Node] = ()
        self.datasets: Sequence[Dataset] = ()
        self.projects: Sequence[Project] = ()
        self.inspected: dict[Topic, str] = {}
        """Inspected objects beside sessions: their names by topic."""
        self.turns: deque[PlatformEvent] = deque(maxlen=MOST_TURNS)
        """Observed changes without a time in any record."""
        self.tree: TreeReceived | None = None
        self.project: ProjectReceived | None = None
        self.boards: Sequence[Board] = ()
        self.board: BoardReceived | None = None
        self.moves: Mapping[str, Move] = {}
        """Newly changed ranks of the shown board, by `place_key`, or of teams, by name."""
        self.competitions: Sequence[Competition] = ()
        self.standings: StandingsReceived | None = None
        self.sources: dict[Topic, Source] = {
            topic: Source(is_polled=topic in _POLLED) for topic in Topic
        }
        self.shown = Shown()
        self._live: dict[str, Row] = {}
        self._ended: dict[str, Row] = {}
        self.lacks_older = False
        """Whether older ended sessions are missing, since newer ones are so many."""
        self._whole: dict[str, Session] = {}
        """Sessions with commands that lists cut, the last requested ones."""
        self._sorted: list[Row] | None = None
        self._not_steps: Sequence[int] = ()
        """Places in the sorted list of sessions that are no steps of submissions."""
        self._sheet: Sheet | None = None

    def show(self, *session_ids: str) -> None:
        """Show other sessions; drops data of the previous ones."""
        if session_ids != self.shown.session_ids:
            self.version += 1
            self.shown = Shown(session_ids)
            for topic in OF_SESSIONS:
                self.sources[topic] = Source(is_polled=topic in _POLLED)

    def show_rank(self, rank: int) -> None:
        """Show the log of another replica; drops that of the previous one."""
        self.version += 1
        shown = self.shown
        shown.rank, shown.attempt = rank, 0
        shown.first, shown.missing_bytes, shown.unended = 0, 0, ""
        shown.lines.clear()
        self.sources[Topic.LOG] = Source()

    def show_code(self, pair: tuple[str, str] | None) -> None:
        """Show the code differences of two shown sessions; None: of none."""
        self.version += 1
        self.shown.pair, self.shown.code = pair, None
        self.sources[Topic.CODE] = Source()

    def show_details(self, details: tuple[Detail, ...], now: float) -> None:
        """Show these of the session; cached data does not count as new until it is received again."""
        self.version += 1
        before, self.shown.details = self.shown.details, details
        for one in details:
            if one not in before and self.shown.keeps(one):
                self.ask(one.topic, now)
            elif one not in before:
                self.sources[one.topic] = Source()

    def inspect(self, topic: Topic, name: str) -> None:
        """Inspect another dataset or project; "": none. Drops data of the previous one."""
        self.version += 1
        self.inspected[topic] = name
        self.sources[topic] = Source(is_polled=topic in _POLLED)
        match topic:
            case Topic.TREE:
                self.tree = None
            case Topic.PROJECT:
                self.project = None
            case Topic.STANDINGS:
                if self.standings is None or self.standings.key != name:
                    self.standings = None
                    self.moves = {}
            case _ if self.board is None or self.board.key != name:
                self.board = None
                self.moves = {}

    def anew(self) -> Model:
        """Return an empty model with the same selection."""
        fresh = Model()
        fresh.version, fresh.listed = self.version + 1, self.listed + 1
        shown = self.shown
        fresh.shown = Shown(
            shown.session_ids, shown.chart_query, pair=shown.pair, details=shown.details
        )
        fresh.inspected = dict(self.inspected)
        return fresh

    def fold(self, event: Event, now: float) -> None:  # noqa: C901, PLR0912 - a kind of event a line
        """Apply an event received at `now` (Unix seconds)."""
        self.version += not self._knows(event, now)
        match event:
            case SessionsReceived() | EndedReceived():
                if isinstance(event, SessionsReceived):
                    self._see_turns(event.changed, now)
                self._take(event)
            case WholeReceived(session):
                self._complete(session)
            case ClusterReceived(cluster, took_s):
                self._see_leader(cluster, now)
                self.cluster, self.took_s = cluster, took_s
                # A reopened stream is silent until something happens.
                answered = {topic: source.answered(now) for topic, source in self.sources.items()}
                self.version += answered != self.sources
                self.sources = answered
            case QueueReceived(queue):
                self.queue = queue
            case NodesReceived(nodes):
                self.nodes = nodes
            case DatasetsReceived(datasets):
                self.datasets = datasets
            case ProjectsReceived(projects):
                self.projects = projects
            case BoardsReceived(boards):
                self.boards = boards
            case CompetitionsReceived(competitions):
                self.competitions = competitions
            case TreeReceived() | ProjectReceived() | BoardReceived() | StandingsReceived():
                if not self._take_closely(event, now):
                    return
            case Linked(topic, link):
                self.sources[topic] = self.sources[topic].linked(link, now)
            case Refused(topic, why):
                self.sources[topic] = self.sources[topic].refused(why, now)
            case _:
                if not self.shown.is_of(event):
                    return
                self.shown.take(event)
        if (received := TOPICS.get(type(event))) is not None:
            self.sources[received] = self.sources[received].received(now)

    def _knows(self, event: Event, now: float) -> bool:
        """Whether it changes nothing that must be drawn at once."""
        match event:
            case ClusterReceived():
                return True
            case SeriesReceived():
                is_live = self.sources[Topic.SERIES].state(now) is State.LIVE
                return is_live and event.groups is self.shown.groups
            case _:
                return False

    def ask(self, topic: Topic, now: float) -> None:
        """Mark a topic as requested again after a pause."""
        self.sources[topic] = self.sources[topic].asked(now)

    def stood_still(self, now: float) -> None:
        """Ignore a pause without requests: its silence says nothing of the platform."""
        for topic, source in self.sources.items():
            if source.is_polled and source.state(now) in {State.LIVE, State.STALE}:
                self.ask(topic, now)

    def comes_back(self, event: Event, now: float) -> str:
        """Return a note on an event before it is folded: that the platform is back, or has a new leader; else ""."""
        if not isinstance(event, ClusterReceived):
            return ""
        leader = event.cluster.leader
        words = [self.sources[Topic.CLUSTER].back(now)]
        if leader and self.led_by and leader != self.led_by:
            words.append(f"leader {self.led_by} -> {leader}")
        return " · ".join(filter(None, words))

    def _see_turns(self, changed: Iterable[Session], now: float) -> None:
        """Note which sessions entered or left a state without a time in their record."""
        for session in changed:
            row = self.row(session.id)
            if row is None or row.session.state == session.state:
                continue
            if session.state in _TURNS:
                what = _TURNS[session.state]
            elif row.session.state in _BACK and session.state == SESSION_STATE_RUNNING:
                what = _BACK[row.session.state]
            else:
                continue
            words = placed_text(session)
            self.turns.append(
                PlatformEvent(now, what, session.name, words, session.id, session.owner)
            )

    def _see_leader(self, cluster: GetClusterResponse, now: float) -> None:
        self.led_by = cluster.leader or self.led_by
        before = self.cluster
        if before is None or (before.leader, before.term) == (cluster.leader, cluster.term):
            return
        if cluster.leader:
            was = f", before it {before.leader}" if before.leader != cluster.leader else ""
            words = f"leads term {cluster.term}{was}"
            self.turns.append(PlatformEvent(now, "leader", cluster.leader, words))
        else:
            self.turns.append(PlatformEvent(now, "no leader", before.leader, "leads no more"))

    def _take_closely(
        self,
        event: TreeReceived | ProjectReceived | BoardReceived | StandingsReceived,
        now: float,
    ) -> bool:
        """Store an event of the inspected object; False if that is no longer inspected."""
        match event:
            case TreeReceived(digest):
                is_meant = self.inspected.get(Topic.TREE) == digest
                self.tree = event if is_meant else self.tree
            case ProjectReceived(answer):
                is_meant = self.inspected.get(Topic.PROJECT) == answer.project.name
                self.project = event if is_meant else self.project
            case BoardReceived(key):
                is_meant = self.inspected.get(Topic.BOARD) == key
                if is_meant:
                    before = self.board.answer.entries if self.board is not None else ()
                    self.moves = moved(
                        self.moves, before, event.answer.entries, now, best_per=event.best_per
                    )
                    self.board = event
            case StandingsReceived(key, answer):
                is_meant = self.inspected.get(Topic.STANDINGS) == key
                if is_meant:
                    rows = self.standings.answer.standings if self.standings is not None else ()
                    self.moves = moved_teams(self.moves, rows, answer.standings, now)
                    self.standings = event
        return is_meant

    def _take(self, event: SessionsReceived | EndedReceived) -> None:
        match event:
            case SessionsReceived():
                self._follow(event)
            case EndedReceived(sessions, is_cut):
                self.lacks_older = is_cut or len(sessions) > MOST_ENDED
                newest = [one for one in sessions[:MOST_ENDED] if one.id not in self._live]
                found = list(map(self._completed, newest))
                if self.lacks_older:
                    # Shown sessions stay, even if others have ended since.
                    ids = {one.id for one in newest}
                    shown = (self._ended.get(one) for one in self.shown.session_ids)
                    found += [row.session for row in shown if row and row.session.id not in ids]
                if found == [row.session for row in self._ended.values()]:
                    return
                self._ended = {one.id: Row(one) for one in found}
                self._sorted = None
        self.listed += 1

    def _follow(self, event: SessionsReceived) -> None:
        if event.reset:
            self._live.clear()
            self._sorted = None
        for session in map(self._completed, event.changed):
            row = self.row(session.id)
            if row is None:
                row = Row(session)
                self._sorted = None
            else:
                self._change(row, session)
            if session.state in ENDED_STATES:
                self._live.pop(session.id, None)
                self._ended[session.id] = row
            else:
                self._ended.pop(session.id, None)
                self._live[session.id] = row
        for session_id in event.removed:
            # An ended session leaves the live ones, and stays among the others.
            if self._live.pop(session_id, None) is not None:
                self._sorted = None

    def _change(self, row: Row, session: Session) -> None:
        row.take(session)
        if self._sorted is not None and self._sheet is not None:
            self._sheet.put(row.place, row.filtered)

    def _complete(self, whole: Session) -> None:
        """Keep a session's whole command and changes, for later updates too."""
        self._whole.pop(whole.id, None)
        self._whole[whole.id] = whole
        while len(self._whole) > MOST_WHOLE:
            del self._whole[next(iter(self._whole))]
        row = self.row(whole.id)
        if row is not None and is_short(row.session):
            self._change(row, completed(row.session, whole))
            self.listed += 1

    def _completed(self, session: Session) -> Session:
        whole = self._whole.get(session.id) if is_short(session) else None
        if whole is None:
            return session
        found = completed(session, whole)
        if not is_short(found):  # with its newest changes, for later updates
            self._whole[session.id] = found
        return found

    def short(self) -> Sequence[Session]:
        """Return sessions with a cut command or missing early changes, newest first, as many as are kept whole."""
        found = (row.session for row in self._every_sorted() if is_short(row.session))
        return list(islice(found, MOST_WHOLE))

    @property
    def seen(self) -> Iterable[PlatformEvent]:
        """Observed changes beside the records; those of sessions no longer listed are left out."""
        return (one for one in self.turns if not one.session_id or self.row(one.session_id))

    def forget(self, session_id: str, now: float) -> None:
        """Drop a removed ended session: no stream reports that."""
        row = self._ended.pop(session_id, None)
        if row is not None:
            session = row.session
            words = "with all that happened to it"
            self.turns.append(
                PlatformEvent(now, "removed", session.name, words, owner=session.owner)
            )
            self.version += 1
            self.listed += 1
            self._sorted = None

    def every_row(self) -> Iterable[Row]:
        """Return all sessions, in no order."""
        return chain(self._live.values(), self._ended.values())

    @property
    def count(self) -> int:
        """Number of sessions."""
        return len(self._live) + len(self._ended)

    @property
    def step_count(self) -> int:
        """Number of sessions that are steps of submissions."""
        return len(self._every_sorted()) - len(self._not_steps)

    def rows(
        self, chosen: Filter, now: float, *, with_ended: bool = True, with_steps: bool = True
    ) -> Sequence[Row]:
        """Filter the sessions, newest first; `with_steps`: also steps of submissions."""
        every = self._every_sorted()
        places: Sequence[int] | None = None
        if not with_steps and len(self._not_steps) < len(every):
            places = self._not_steps
        if not with_ended:
            some = range(len(every)) if places is None else places
            places = [place for place in some if every[place].session.id in self._live]
        if chosen.text:
            places = chosen.among(self.sheet, now, places)
        return every if places is None else [every[place] for place in places]

    def _every_sorted(self) -> Sequence[Row]:
        if self._sorted is None:
            # Sorted again only when sessions are added or removed: creation times never change.
            everyone = {**self._ended, **self._live}.values()
            self._sorted = sorted(everyone, key=_by_creation, reverse=True)
            self._not_steps = [n for n, row in enumerate(self._sorted) if not row.is_step]
            self._sheet = None
        return self._sorted

    @property
    def sheet(self) -> Sheet:
        """All sessions for filters, newest first."""
        every = self._every_sorted()
        if self._sheet is None:
            for place, row in enumerate(every):
                row.place = place
            self._sheet = Sheet(row.filtered for row in every)
        return self._sheet

    def row(self, session_id: str) -> Row | None:
        """Find a session; None: it is gone, or never existed."""
        return self._live.get(session_id) or self._ended.get(session_id)

    def row_named(self, name: str) -> Row | None:
        """Find a live session by name."""
        return next((row for row in self._live.values() if row.session.name == name), None)


TOPICS: Final[Mapping[type, Topic]] = {
    SessionsReceived: Topic.SESSIONS,
    EndedReceived: Topic.ENDED,
    ClusterReceived: Topic.CLUSTER,
    QueueReceived: Topic.QUEUE,
    NodesReceived: Topic.NODES,
    SeriesReceived: Topic.SERIES,
    LogReceived: Topic.LOG,
    ExplanationReceived: Topic.EXPLANATION,
    CodeReceived: Topic.CODE,
    CheckpointsReceived: Topic.CHECKPOINTS,
    ArtifactsReceived: Topic.ARTIFACTS,
    TelemetryReceived: Topic.TELEMETRY,
    FilesReceived: Topic.FILES,
    FileReceived: Topic.FILE,
    MediaReceived: Topic.MEDIA,
    ContentReceived: Topic.CONTENT,
    KnobsReceived: Topic.KNOBS,
    ConfigReceived: Topic.CONFIG,
    ProcessesReceived: Topic.PROCESSES,
    StacksReceived: Topic.STACKS,
    DatasetsReceived: Topic.DATASETS,
    TreeReceived: Topic.TREE,
    ProjectsReceived: Topic.PROJECTS,
    ProjectReceived: Topic.PROJECT,
    BoardsReceived: Topic.BOARDS,
    BoardReceived: Topic.BOARD,
    CompetitionsReceived: Topic.COMPETITIONS,
    StandingsReceived: Topic.STANDINGS,
}
"""The topic of each event."""


def _by_submission(entry: BoardEntry) -> float:
    return seconds_of(entry.submitted_at)


def _by_creation(row: Row) -> float:
    return row.created
