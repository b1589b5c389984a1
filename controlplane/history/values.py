"""Values stored in the history and read from it. All frozen; times in Unix seconds."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, overload

from controlplane.domain.identity import User
from controlplane.domain.values import PartAccess, Visibility
from nsml.spec.progress import Estimate, Reported


class Channel(enum.IntEnum):
    """The channels of a replica's streams; with the numbers of the contract."""

    METRIC = 1
    LOG = 2
    STATE = 3

    @property
    def first_position(self) -> int:
        """Records count from 1, bytes from 0."""
        return 0 if self is Channel.LOG else 1


class StreamKey(NamedTuple):
    """Names a stream. `writer` is the writing process within the replica, 0 for logs."""

    session_id: str
    attempt: int
    rank: int
    channel: Channel
    writer: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The positions [first, last] of one stream: records, or bytes of a log, or lost.

    `records` (one JSON object each, as the SDK wrote it) for metric and state streams, `data` for
    logs; neither with `is_gap`: these positions are permanently lost on the node.
    """

    stream: StreamKey
    first: int
    last: int
    records: tuple[bytes, ...] = ()
    data: bytes = b""
    is_gap: bool = False

    def __post_init__(self) -> None:
        """Refuse a chunk with contents that do not match its positions."""
        count = self.last - self.first + 1
        if self.first < self.stream.channel.first_position or count < 1:
            raise ValueError(f"positions {self.first}..{self.last} are none of a stream")
        if self.is_gap:
            expected, held = 0, len(self.records) + len(self.data)
        elif self.stream.channel is Channel.LOG:
            expected, held = count, len(self.data) + len(self.records) * count
        else:
            expected, held = count, len(self.records) + len(self.data) * count
        if held != expected:
            raise ValueError(f"positions {self.first}..{self.last} hold {held} instead of {count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A stored part of a stream; `records` or `data` as in Chunk."""

    first: int
    last: int
    received_at: float
    records: tuple[bytes, ...] = ()
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Gap:
    """Lost positions [first, last]."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Positions [first, last] of a metric stream deleted by retention: see SqlSeries.thin."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Consecutive bytes of one log.

    `data` begins at `offset`; `missing_bytes` before it are lost. The next page begins at `next`;
    there is none yet when `next == end`. `attempt` is 0 when there is no log at all. `times`: pairs
    of an offset and when the bytes from there on were received (Unix seconds).
    """

    attempt: int
    offset: int
    data: bytes
    missing_bytes: int
    next: int
    end: int
    times: tuple[tuple[int, float], ...] = ()


class LogPlace(NamedTuple):
    """A byte of one attempt's log; attempt 0 when there is no log at all."""

    attempt: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One reported value: any JSON value; NaN and infinities are floats."""

    time: float
    step: float | None
    name: str
    value: Any
    attempt: int
    rank: int
    origin: str = ""


class MetricCount(NamedTuple):
    """Points of a metric, and the origin of its first report."""

    points: int
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPage:
    """Points in commit order.

    `next` resumes after them; `is_end` when nothing more is stored now. Among them `missing` reports
    were lost, and `unreadable` ones are invalid. `let_go_at`: when retention last deleted points among
    them; 0: never.
    """

    points: tuple[Point, ...]
    next: int
    is_end: bool
    missing: int = 0
    unreadable: int = 0
    let_go_at: float = 0.0

    @property
    def lost(self) -> int:
        """Number of reports that will never have points."""
        return self.missing + self.unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The latest report with summary=True of a session: its values in the order reported."""

    time: float
    step: float | None
    attempt: int
    values: dict[str, Any]
    left_out: int = 0
    """Number of omitted values; see controlplane.history.summaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """The newest progress record of a session, and the estimate of its end in that attempt; see nsml.spec.progress."""

    attempt: int
    reported: Reported
    estimate: Estimate


class Extreme(NamedTuple):
    """A value of a series, first reported in an interval of Unix seconds."""

    value: float
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesExtent:
    """The finite values of a whole series."""

    low: Extreme
    high: Extreme
    last: Extreme


class SeriesAxis(enum.Enum):
    """The x axis of a series."""

    STEP = "step"
    """The reported step; without one, the point's number in its series."""
    RELATIVE = "relative"
    """Seconds since the first point of that name and rank, in the requested attempts."""
    WALL = "wall"
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuery:
    """Selects series and a range of them.

    `names` are globs; empty `names`, `ranks` and `attempts` do not restrict. `low` and `high` bound
    the axis, both included. `width`: number of useful columns. Without `attempts` and `all_attempts`
    superseded points of earlier attempts are left out.
    """

    width: int
    names: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()
    attempts: frozenset[int] = frozenset()
    axis: SeriesAxis = SeriesAxis.STEP
    low: float = -math.inf
    high: float = math.inf
    all_attempts: bool = False

    @property
    def supersedes(self) -> bool:
        """Whether later attempts supersede points of earlier ones (nsml/spec/attempt_points.py)."""
        return not (self.all_attempts or self.attempts)


class SeriesColumn(NamedTuple):
    """Neighbouring points on the axis, from `x_low` to `x_high`.

    `low`, `high`, `mean` and `last` are of the `finite` values (0 when there are none); `odd` others are
    NaN or infinite. `time` is that of the latest point.
    """

    x_low: float
    x_high: float
    time: float
    low: float
    high: float
    mean: float
    last: float
    finite: int
    odd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesColumns(Sequence[SeriesColumn]):
    """Columns of a series, with a list per field: many are read, and no SeriesColumn is created."""

    x_low: Sequence[float]
    x_high: Sequence[float]
    time: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    mean: Sequence[float]
    last: Sequence[float]
    finite: Sequence[int]
    odd: Sequence[int]

    def __len__(self) -> int:
        return len(self.x_low)

    @overload
    def __getitem__(self, at: int) -> SeriesColumn: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[SeriesColumn]: ...
    def __getitem__(self, at: int | slice) -> SeriesColumn | Sequence[SeriesColumn]:
        """Return one column, or a slice."""
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        return SeriesColumn(*(getattr(self, field)[at] for field in SeriesColumn._fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    """A range of one series, in the order of the axis.

    It has at most twice the requested columns, and at least half of them if there are enough points.
    `grain`: minimum points per column, except the last ones; 1 if the points themselves were read. `start` is
    the origin of relative times.
    """

    name: str
    attempt: int
    rank: int
    start: float
    grain: int
    columns: SeriesColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPage:
    """Series by name, rank and attempt.

    `left_out` points belong to no series, because their session has too many names; `more` series match
    the query, but are too many for one answer. `lost` reports of the session never arrived. `let_go_at`:
    when retention last deleted points of the session; 0: never.
    """

    series: tuple[SeriesView, ...]
    left_out: int = 0
    more: int = 0
    lost: int = 0
    let_go_at: float = 0.0


class Ages(NamedTuple):
    """Sessions that ended before these times are thinned: see SqlSeries.thin."""

    points_before: float = -math.inf
    levels_before: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device; 0 if not reported."""

    uuid: str
    utilization_percent: float = 0.0
    memory_used_bytes: int = 0
    power_watts: float = 0.0
    temperature_celsius: float = 0.0
    clock_mhz: int = 0
    memory_clock_mhz: int = 0
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    last_xid: int = 0
    process_count: int = 0
    throttled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """One reading of the processes of one replica; `cpu_cores` 1 is one core all the time."""

    session_id: str
    attempt: int
    rank: int
    cpu_cores: float = 0.0
    memory_used_bytes: int = 0
    process_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """One reading of a node; `sequence` grows within one boot."""

    node: str
    boot_id: str
    sequence: int
    at: float
    devices: tuple[DeviceSample, ...] = ()
    cpu_percent: float = 0.0
    memory_used_bytes: int = 0
    disk_note: str = ""
    replicas: tuple[ReplicaSample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """An ended session: searchable fields, and `record`, the whole session, opaque here.

    `searched`: the text to search in. `request_id` "" means none.
    """

    id: str
    name: str
    owner: str
    state: str
    created_at: float
    ended_at: float
    record: bytes = field(repr=False)
    project: str = ""
    team: str = ""
    visibility: Visibility = Visibility.PRIVATE
    dataset: str = ""
    searched: str = ""
    request_id: str = ""


class KeptKind(enum.IntEnum):
    """Kinds of stored bytes. A blob of several kinds counts as one of them per owner."""

    DATASETS = 0
    CHECKPOINTS = 1
    CODE = 2
    MEDIA = 3
    LOGS = 4
    UNUSED = 5
    """Sent in the last day or two; not referred to yet."""
    ARTIFACTS = 6


class Reference(NamedTuple):
    """A reference to a manifest with its content, or to one blob.

    Attributes:
        digest: of the manifest or blob.
        owner: "" if only `session_id` is known: of a session outside the catalogue.
        project: the project it counts for; "", its owner's own, for content of no session.
    """

    digest: str
    kind: KeptKind
    owner: str
    session_id: str = ""
    project: str = ""


class Referred(NamedTuple):
    """A page of references to objects.

    Attributes:
        records: of sessions, as stored.
        roots: manifests: versions of datasets, checkpoints, media, artifacts.
        blobs: objects without a manifest: blocks of logs.
        next: where the next page begins; None after the last.
    """

    records: Sequence[bytes] = ()
    roots: Sequence[Reference] = ()
    blobs: Sequence[Reference] = ()
    next: tuple[int | str, ...] | None = None


class PackEntry(NamedTuple):
    """A blob within a pack: `stored` bytes from `start` on, a frame of its `size` bytes."""

    digest: str
    start: int
    stored: int
    size: int


class BlobPlace(NamedTuple):
    """The place of a blob of `size` bytes: the pack's name, and offset and length within it."""

    digest: str
    pack: str
    start: int
    stored: int
    size: int


class ListedBlob(NamedTuple):
    """A blob of the index: its stored bytes, and when it was put, or put aside if it is aside (Unix s)."""

    digest: str
    stored: int
    at: float


class ListedPack(NamedTuple):
    """A pack of the index: its bytes, when it was put (Unix s), the bytes still used, and by how many blobs."""

    number: int
    name: str
    stored: int
    put_at: float
    used: int
    blobs: int


class Holder(NamedTuple):
    """The user or project that stored bytes count for; the other one is ""."""

    user: str = ""
    project: str = ""


class KeptBytes(NamedTuple):
    """Object store usage of a user or a project.

    Attributes:
        counted: distinct bytes by kind (`KeptKind.name`), as of the last count.
        counted_at: when that began, Unix seconds; 0: never.
        sent: bytes sent since.
        asked: number of requests for a recount.
    """

    counted: Mapping[str, int] = {}
    counted_at: float = 0.0
    sent: int = 0
    asked: int = 0

    @property
    def bytes(self) -> int:
        """Upper bound of the usage."""
        return sum(self.counted.values()) + self.sent


class Release(NamedTuple):
    """A manifest released by a user or session.

    Attributes:
        owner: "" if only the session was known when it was released.
        session_id: "" for datasets.
        root: digest of the manifest.
        whose: the owner, also by session; "": the session is not in the catalogue.
        project: of the session, from the catalogue.
    """

    owner: str
    session_id: str
    root: str
    whose: str = ""
    project: str = ""


class Item(NamedTuple):
    """A dataset or a session, and about how many bytes its removal frees, at most."""

    name: str
    kind: KeptKind
    bytes: int
    is_live: bool = False


class PageKey(NamedTuple):
    """Where a page ended: the listing continues with older ones."""

    created_at: float
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """Selects sessions; an empty field does not restrict.

    `viewer` restricts as domain.policy.may, `name_glob` as domain.names.fits_glob, on every
    database: a session must not leave a listing because it ended. `text` must occur in `searched`,
    character by character: the caller folds case in both, because databases differ in it. A session
    without a `project` is in its owner's own.
    """

    viewer: User
    owners: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    dataset: str = ""
    project: str = ""
    name_glob: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """Newest first; `next` is None on the last page."""

    sessions: tuple[SessionRecord, ...]
    next: PageKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A name with an owner; unique with its owner."""

    owner: str
    name: str
    created_at: float
    team: str = ""
    visibility: Visibility = Visibility.PRIVATE
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVersion:
    """Immutable content; `number` counts from 1 within its dataset, and is never reused.

    Attributes:
        removed_at: Unix seconds; 0.0 unless removed. It can be restored until its row is purged.
        removed_visibility: its dataset's visibility at its removal.
        in_place: the folder with its files on nodes, listed by `digest`; "": its files are stored.
    """

    owner: str
    name: str
    number: int
    digest: str
    size_bytes: int
    file_count: int
    created_at: float
    message: str = ""
    removed_at: float = 0.0
    removed_visibility: Visibility = Visibility.PRIVATE
    in_place: str = ""


class RootKind(enum.IntEnum):
    """The contents of a further root of a dataset version; `DatasetVersion.digest` has the open parts."""

    PART = 1
    """The files of one part."""
    OWNER = 2
    """All but the hidden parts, unless equal to `DatasetVersion.digest`: for sessions of the owner."""
    WHOLE = 3
    """Everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRoot:
    """A manifest of a version with parts; `path` is that of a PART, "" for files in no other part."""

    kind: RootKind
    path: str = ""
    digest: str
    size_bytes: int
    file_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetParts:
    """The parts of a version.

    Attributes:
        access: of each part by its path; without the part "", which is open.
        roots: of the parts with files, and of combined parts.
    """

    access: Mapping[str, PartAccess]
    roots: tuple[DatasetRoot, ...]

    def digest(self, kind: RootKind) -> str:
        """The digest of the only root of a kind; "" if there is none."""
        return next((one.digest for one in self.roots if one.kind is kind), "")

    def parts(self) -> Iterator[tuple[DatasetRoot, PartAccess]]:
        """Yield the roots of parts with their access, by path."""
        for one in self.roots:
            if one.kind is RootKind.PART:
                yield one, self.access.get(one.path, PartAccess.OPEN)


class OwnedBy(NamedTuple):
    """Numbers of an owner's items in the catalogue."""

    sessions: int
    datasets: int
    removed_datasets: int
    """Datasets with only removed versions, which can be restored."""


class DatasetUse(NamedTuple):
    """A session's use of a version of a dataset."""

    owner: str
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class DatasetLineage:
    """The session that made a version of a dataset, as it was then: it may be removed since.

    Attributes:
        session: its name.
        attempt: the one that made it.
        code: digest of its bundle; "": it had none.
        environment_lock: digest of the lock of its packages; "": none is stored.
        command: the command line, as sent by its user's client.
        datasets: its input datasets.
    """

    session_id: str
    session: str
    attempt: int
    code: str
    environment_lock: str
    command: tuple[str, ...] = ()
    datasets: tuple[DatasetUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLineage:
    """The lineage visible to a caller: datasets they may see, the number of others; no details of a hidden session."""

    lineage: DatasetLineage
    withheld: int


@dataclass(frozen=True, slots=True)
class DatasetListing:
    """A dataset with its newest version, or the requested one.

    Attributes:
        tags: of this version, in order.
        version_count: without removed ones; 0 in lists of versions.
        used_at: latest end of an ended session that used any version, in Unix seconds; 0.0: none.
        parts: None for a version without restricted parts.
        lineage: what made the version; None: it was pushed, or this is from a list of several datasets.
    """

    dataset: Dataset
    version: DatasetVersion
    tags: tuple[str, ...] = ()
    version_count: int = 0
    used_at: float = 0.0
    parts: DatasetParts | None = None
    lineage: DatasetLineage | None = None

    @property
    def owner_digest(self) -> str:
        """The root for sessions of the owner and of administrators."""
        found = self.parts.digest(RootKind.OWNER) if self.parts else ""
        return found or self.version.digest

    @property
    def whole_digest(self) -> str:
        """The root of all files, readable by the owner and administrators."""
        found = self.parts.digest(RootKind.WHOLE) if self.parts else ""
        return found or self.version.digest


class CheckpointState(enum.StrEnum):
    """Where a checkpoint is: on its node, in the object store, or nowhere."""

    SAVED = "SAVED"
    DURABLE = "DURABLE"
    LOST = "LOST"


class CheckpointCount(NamedTuple):
    """Counts of one session; `saved_at`: of the newest not lost, Unix seconds by its node's clock, 0: none."""

    there: int = 0
    lost: int = 0
    saved_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Files that a session saved under a name.

    `summary` is the last report before it, a JSON object in the order reported. `node` and `folder`: its place
    on its node. `digest` is None until there is content to read: its own once DURABLE, before that the
    content of the checkpoint it replaced. `content_attempt` and `content_saved_at` then identify the save of
    `digest`; 0: this one.
    """

    session_id: str
    name: str
    saved_at: float
    size_bytes: int
    file_count: int
    state: CheckpointState = CheckpointState.SAVED
    digest: str | None = None
    elapsed_s: float = 0.0
    summary: str = "{}"
    step: float | None = None
    attempt: int = 0
    rank: int = 0
    node: str = ""
    folder: str = ""
    why_lost: str = ""
    content_attempt: int = 0
    content_saved_at: float = 0.0

    @property
    def content_of(self) -> tuple[int, float]:
        """Attempt and time of the save of `digest`."""
        return (self.content_attempt or self.attempt, self.content_saved_at or self.saved_at)


class CheckpointUse(NamedTuple):
    """A load of a checkpoint by its own or another session; `used_at`: the last time, Unix seconds."""

    name: str
    used_by: str
    used_at: float


@dataclass(frozen=True, slots=True)
class EnvironmentLock:
    """Packages with versions and hashes: see nsml.packages.locks. `content` is "" if only the rest was requested."""

    digest: str
    package_count: int
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One key of the configuration that a program reported; later ones of the same key replace it.

    Attributes:
        origin: whose it is, such as "wandb"; run: a further run in the same program, "" for the first one.
        value: JSON, cleaned: see controlplane.records.reported_config. leaves: its flattened names.
        is_cut: parts of it were left out.
        attempt, time, position: of its record, for the order.
    """

    session_id: str
    origin: str
    run: str
    name: str
    value: str
    leaves: int = 1
    is_cut: bool = False
    attempt: int = 0
    time: float = 0.0
    position: int = 0

    @property
    def size_bytes(self) -> int:
        """What it counts for the limit of a session."""
        return len(self.run.encode()) + len(self.name.encode()) + len(self.value.encode())


@dataclass(frozen=True, slots=True)
class ReportedConfig:
    """The configuration that a session's programs reported, by origin, run and key.

    `is_cut`: parts of it were left out, or did not fit.
    """

    values: tuple[ConfigValue, ...] = ()
    is_cut: bool = False


class Retired(NamedTuple):
    """Number and bytes of a session's checkpoints removed by its retention."""

    number: int = 0
    size_bytes: int = 0


_SETTLED: Final = (CheckpointState.DURABLE, CheckpointState.LOST, CheckpointState.SAVED)
"""Of two reports of one save the state listed first wins: content in the object store exists."""

SAME_SAVE_S = 0.001
"""Times of one save may differ by rounding between reports."""


def later_of(known: Checkpoint, other: Checkpoint) -> Checkpoint:
    """Return the later of two checkpoints with one name.

    The later attempt wins, as its node's clock may be behind; within one attempt the later save. Until it
    is durable, the earlier one's content stays readable. Two reports of one save are merged: durable or
    lost if either is, the summary from the one that has it.
    """
    if known.attempt != other.attempt:
        later, earlier = (other, known) if other.attempt > known.attempt else (known, other)
        return _until_durable(later, earlier)
    if abs(known.saved_at - other.saved_at) > SAME_SAVE_S:
        later, earlier = (other, known) if other.saved_at > known.saved_at else (known, other)
        return _until_durable(later, earlier)
    described = other if other.summary != "{}" or other.folder else known
    settled = min(known, other, key=lambda one: _SETTLED.index(one.state))
    sized = settled if settled.state is CheckpointState.DURABLE else described
    readable = settled if settled.digest else known if known.digest else other
    return replace(
        described,
        saved_at=known.saved_at,
        state=settled.state,
        why_lost=settled.why_lost,
        digest=readable.digest,
        content_attempt=readable.content_attempt,
        content_saved_at=readable.content_saved_at,
        size_bytes=sized.size_bytes,
        file_count=sized.file_count,
        node=described.node or known.node or other.node,
    )


def _until_durable(later: Checkpoint, earlier: Checkpoint) -> Checkpoint:
    """Return the later of two saves, with the earlier one's content until it has newer content."""
    if later.state is CheckpointState.DURABLE or not earlier.digest:
        return later
    attempt, saved_at = earlier.content_of
    if later.digest and later.content_of >= (attempt, saved_at - SAME_SAVE_S):
        return later
    return replace(later, digest=earlier.digest, content_attempt=attempt, content_saved_at=saved_at)


class ArtifactState(enum.StrEnum):
    """Where an artifact's content is; UNCHANGED: equal to the previous version, REMOVED: by a user or retention."""

    SAVED = "SAVED"
    DURABLE = "DURABLE"
    LOST = "LOST"
    UNCHANGED = "UNCHANGED"
    REMOVED = "REMOVED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Files that a session saved under a name, in versions.

    `folder`: its place on its node, unique in its replica. `version` is 0 until it is DURABLE. `digest` is None
    unless it can be read. `why_lost`: only for LOST ones; `note`, for people, for others.
    """

    session_id: str
    attempt: int
    rank: int
    folder: str
    name: str
    saved_at: float
    version: int = 0
    size_bytes: int = 0
    file_count: int = 0
    step: float | None = None
    node: str = ""
    state: ArtifactState = ArtifactState.SAVED
    digest: str | None = None
    why_lost: str = ""
    note: str = ""


class ArtifactKey(NamedTuple):
    """Where a page of artifacts ends."""

    saved_at: float
    attempt: int
    rank: int
    folder: str


class MediaState(enum.StrEnum):
    """Where the content of a medium is: on its node, in the object store, or nowhere."""

    SAVED = "SAVED"
    DURABLE = "DURABLE"
    LOST = "LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """One media file of a session, as recorded.

    `file` is its name on its node, unique in a replica; `facts` a JSON object. `root` is None until it
    is DURABLE, and until then `size_bytes` is from the record. `why_lost`: only for LOST ones.
    """

    session_id: str
    attempt: int
    rank: int
    file: str
    name: str
    kind: str
    time: float
    step: float | None = None
    content_type: str = ""
    caption: str = ""
    facts: str = "{}"
    size_bytes: int = 0
    state: MediaState = MediaState.SAVED
    root: str | None = None
    why_lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaContent:
    """The outcome of a file: stored in the manifest `root`, or lost if that is None."""

    file: str
    size_bytes: int = 0
    root: str | None = None
    why_lost: str = ""


class ReplicaKey(NamedTuple):
    """A replica of an attempt of a session."""

    session_id: str
    attempt: int
    rank: int


class MediaKey(NamedTuple):
    """Where a page of media ends."""

    time: float
    attempt: int
    rank: int
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaQuery:
    """Selects media of a session: `globs` over names as in domain.names.fits_glob, empty for all."""

    session_id: str
    globs: tuple[str, ...] = ()
    kind: str = ""
    first_step: float | None = None
    last_step: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPage:
    """Media in order; `next` is None on the last page.

    `is_full`: the session is at its limit, and new media are not stored. Set only on the last page.
    """

    media: tuple[Media, ...]
    next: MediaKey | None
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """An audited action, without secrets. `token` is a fingerprint.

    With `calls` over 1 it stands for that many of the same actor, method and outcome within a minute; the other fields
    are of the last one.
    """

    at: float
    actor: str
    method: str
    target: str = ""
    outcome: str = "OK"
    request_id: str = ""
    token: str = ""
    calls: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Selects rows; "" and 0: any. `without`: methods whose successful (OK) calls are left out."""

    actor: str = ""
    method: str = ""
    target: str = ""
    since: float = 0.0
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCharge:
    """GPUs held by one ended attempt: `seconds` of `gpu_thousandths`, and other facts for its price.

    `gpu_models`: JSON, thousandths by model; "" in rows of older versions, which lack the fields after it as well.
    `priority` is that of the contract. `durable_until`: when its newest durable checkpoint was saved, Unix seconds;
    0: none, and all of its work was lost unless it completed.
    """

    session_id: str
    attempt: int
    owner: str
    project: str
    gpu_thousandths: int
    seconds: float
    ended_at: float
    gpu_models: str = ""
    priority: int = 0
    cause: str = ""
    durable_until: float = 0.0
