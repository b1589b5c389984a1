"""What goes into the history and comes out of it. All frozen; times in Unix seconds."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, overload

from controlplane.domain.identity import User
from controlplane.domain.values import PartAccess, Visibility


class Channel(enum.IntEnum):
    """The channels of a replica's streams; numbers are those of the contract."""

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
    logs; neither with `is_gap`, which says that these positions are lost for ever on the node.
    """

    stream: StreamKey
    first: int
    last: int
    records: tuple[bytes, ...] = ()
    data: bytes = b""
    is_gap: bool = False

    def __post_init__(self) -> None:
        """Refuse a chunk that does not hold what its positions say."""
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
    """Positions [first, last] that are lost."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Positions [first, last] of a metric stream that were stored and let go: see SqlSeries.thin."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Consecutive bytes of one log.

    `data` begins at `offset`; `missing_bytes` before it are lost. The next page begins at `next`;
    there is none yet when `next == end`. `attempt` is 0 when there is no log at all. `times` are
    the moments (Unix seconds) at which the bytes from an offset on were received.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPage:
    """Points in the order in which they were committed.

    `next` resumes behind them; `is_end` when nothing more is stored now. `missing` reports were
    lost among them, `unreadable` ones were written so that they are none. `let_go_at`: when the last of
    those that were let go among them were; 0 where none were.
    """

    points: tuple[Point, ...]
    next: int
    is_end: bool
    missing: int = 0
    unreadable: int = 0
    let_go_at: float = 0.0

    @property
    def lost(self) -> int:
        """The reports of which there will never be points."""
        return self.missing + self.unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The latest report with summary=True of a session: its values in the order reported."""

    time: float
    step: float | None
    attempt: int
    values: dict[str, Any]
    left_out: int = 0
    """Values that are not among these; see controlplane.history.summaries."""


class SeriesAxis(enum.Enum):
    """What a series is laid along."""

    STEP = "step"
    """The reported step; the point's number in its series where none was reported."""
    RELATIVE = "relative"
    """Seconds since the first point of that name and rank, of the attempts asked for."""
    WALL = "wall"
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuery:
    """Which series, and what of them.

    `names` are globs; empty `names`, `ranks` and `attempts` do not restrict. `low` and `high` bound
    the axis, both included. `width` is how many columns are worth having. Without `attempts` and `all_attempts`
    there are no points that a later attempt supersedes.
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
    """Points that lie beside each other on the axis, from `x_low` to `x_high`.

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
    """Columns of a series, each field of all of them as one list: many are read, and none is made."""

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
        """One of them, or some."""
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        return SeriesColumn(*(getattr(self, field)[at] for field in SeriesColumn._fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    """A range of one series, in the order of the axis.

    It has at most twice as many columns as were asked for, and at least half as many where there are points
    enough. `grain` is how many points each column has at least, but for the last ones; 1 where the points
    themselves were read. `start` is what relative times are counted from.
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

    `left_out` points belong to no series, because their session has too many names; `more` series fit
    the query, but are too many for one answer. `lost` reports of the session never came. `let_go_at`: when
    points of the session were let go last; 0: never.
    """

    series: tuple[SeriesView, ...]
    left_out: int = 0
    more: int = 0
    lost: int = 0
    let_go_at: float = 0.0


class Ages(NamedTuple):
    """Sessions that ended before these moments are thinned: see SqlSeries.thin."""

    points_before: float = -math.inf
    levels_before: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device; 0 where it does not tell."""

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
    """An ended session: what is searched, and `record`, the whole of it, opaque here.

    `searched` is what a query's text is looked for in. `request_id` "" means none.
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
    """What bytes are kept as. A blob that is several things to one owner counts as one of them."""

    DATASETS = 0
    CHECKPOINTS = 1
    CODE = 2
    MEDIA = 3
    LOGS = 4
    UNUSED = 5
    """Sent in the last day or two; nothing refers to it yet."""
    ARTIFACTS = 6


class Reference(NamedTuple):
    """What keeps the content of a manifest, or one blob, and for whom.

    Attributes:
        digest: of the manifest or blob.
        owner: "" where only `session_id` is known: of a session that is not in the catalogue.
        project: for which it counts; of content of no session its owner's own, "".
    """

    digest: str
    kind: KeptKind
    owner: str
    session_id: str = ""
    project: str = ""


class Referred(NamedTuple):
    """A page of what refers to objects.

    Attributes:
        records: of sessions, as they are stored.
        roots: manifests: versions of datasets, checkpoints, media.
        blobs: what lists nothing: blocks of logs.
        next: where the next page begins; None after the last.
    """

    records: Sequence[bytes] = ()
    roots: Sequence[Reference] = ()
    blobs: Sequence[Reference] = ()
    next: tuple[int | str, ...] | None = None


class PackEntry(NamedTuple):
    """A blob within a pack: `stored` bytes from `start` on, which are a frame of its `size` bytes."""

    digest: str
    start: int
    stored: int
    size: int


class BlobPlace(NamedTuple):
    """Where a blob of `size` bytes is read: the pack's name, and from where how many bytes of it."""

    digest: str
    pack: str
    start: int
    stored: int
    size: int


class ListedBlob(NamedTuple):
    """A blob of the index: bytes that it takes, when it was put or, of what is aside, put there (Unix s)."""

    digest: str
    stored: int
    at: float


class ListedPack(NamedTuple):
    """A pack of the index: its bytes, when it was put (Unix s), and how many of them are how many blobs still."""

    number: int
    name: str
    stored: int
    put_at: float
    used: int
    blobs: int


class Holder(NamedTuple):
    """For whom something is kept: a user or a project; the other one is ""."""

    user: str = ""
    project: str = ""


class KeptBytes(NamedTuple):
    """What the object store keeps for a user or a project.

    Attributes:
        counted: distinct bytes by kind (`KeptKind.name`), as of the last count.
        counted_at: when that began, Unix seconds; 0: never.
        sent: bytes that were sent since.
        asked: how often a new count was asked for.
    """

    counted: Mapping[str, int] = {}
    counted_at: float = 0.0
    sent: int = 0
    asked: int = 0

    @property
    def bytes(self) -> int:
        """At most so many are kept."""
        return sum(self.counted.values()) + self.sent


class Release(NamedTuple):
    """Content that something refers to no more.

    Attributes:
        owner: "" where only the session was known when it was released.
        session_id: "" of datasets.
        root: digest of the manifest.
        whose: the owner, also where the session tells; "": of a session that is not in the catalogue.
        project: of the session, as the catalogue has it.
    """

    owner: str
    session_id: str
    root: str
    whose: str = ""
    project: str = ""


class Item(NamedTuple):
    """A dataset or a session, and about how many bytes removing it gives back, at most."""

    name: str
    kind: KeptKind
    bytes: int
    is_live: bool = False


class PageKey(NamedTuple):
    """Where a page ended: the listing goes on with what is older."""

    created_at: float
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """Which sessions; an empty field does not restrict.

    `viewer` narrows as domain.policy.may does, `name_glob` as domain.names.fits_glob, on
    whatever database: a session must not leave a listing because it ended. `text` occurs in
    `searched`, character by character: folding letter case is for whoever writes and asks, because
    databases do not agree on it. A session without a `project` is of its owner's own.
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
    """Immutable content; `number` counts from 1 within its dataset, and is never given twice.

    Attributes:
        removed_at: Unix seconds; 0.0 unless it is removed. It can be restored as long as its row is there.
        removed_visibility: what its dataset had when it was removed.
        in_place: the folder of nodes that has its files, of which `digest` is the list; "": they are stored.
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
    """What a further root of a dataset version has of it; `DatasetVersion.digest` has the open parts."""

    PART = 1
    """The files of one part."""
    OWNER = 2
    """All but the hidden parts, where that is not `DatasetVersion.digest`: what sessions of its owner get."""
    WHOLE = 3
    """Everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRoot:
    """One of the manifests of a version that has parts; `path` is that of a PART, "" for what belongs to no other."""

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
        roots: of the parts that have files, and of those together.
    """

    access: Mapping[str, PartAccess]
    roots: tuple[DatasetRoot, ...]

    def digest(self, kind: RootKind) -> str:
        """Of the root of a kind, of which there is one; "" where there is none."""
        return next((one.digest for one in self.roots if one.kind is kind), "")

    def parts(self) -> Iterator[tuple[DatasetRoot, PartAccess]]:
        """The roots of parts with who reads them, in the order of their paths."""
        for one in self.roots:
            if one.kind is RootKind.PART:
                yield one, self.access.get(one.path, PartAccess.OPEN)


class OwnedBy(NamedTuple):
    """How much of the catalogue is of one owner."""

    sessions: int
    datasets: int
    removed_datasets: int
    """Datasets of which all versions are removed, and can be restored."""


class DatasetUse(NamedTuple):
    """That a session used a version of a dataset."""

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
        environment_lock: digest of the lock that its packages were installed from; "": none is kept of it.
        command: what its user's client gave as the command line.
        datasets: what it read.
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
    """What a caller sees of it: datasets that they may see, how many others; nothing of a session that they may not see."""

    lineage: DatasetLineage
    withheld: int


@dataclass(frozen=True, slots=True)
class DatasetListing:
    """A dataset with its newest version, or the one asked for.

    Attributes:
        tags: of this version, in order.
        version_count: of all that are not removed; 0 in lists of versions.
        used_at: when the last ended session that used any version ended, in Unix seconds; 0.0: none has.
        parts: None of a version that is all open.
        lineage: what made the version; None: it was pushed, or lists of several datasets do not tell.
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
        """Of what sessions of the owner and of administrators get."""
        found = self.parts.digest(RootKind.OWNER) if self.parts else ""
        return found or self.version.digest

    @property
    def whole_digest(self) -> str:
        """Of everything, which its owner and administrators may read."""
        found = self.parts.digest(RootKind.WHOLE) if self.parts else ""
        return found or self.version.digest


class CheckpointState(enum.StrEnum):
    """How safe a checkpoint is: on its node, in the object store, or nowhere."""

    SAVED = "SAVED"
    DURABLE = "DURABLE"
    LOST = "LOST"


class CheckpointCount(NamedTuple):
    """Of one session; `saved_at`: of the newest that is there, Unix seconds by its node's clock, 0: there is none."""

    there: int = 0
    lost: int = 0
    saved_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Files that a session saved under a name.

    `summary` is the last report before it, a JSON object in the order reported. `node` and `folder` say where
    it is on its node. `digest` is None until something can be read: it itself once DURABLE, before that the
    one of its name that it replaced. `content_attempt` and `content_saved_at` then say which save `digest`
    names; 0: this one.
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
        """Attempt and time of the save that `digest` names."""
        return (self.content_attempt or self.attempt, self.content_saved_at or self.saved_at)


class CheckpointUse(NamedTuple):
    """That a session loaded a checkpoint of another one, or of its own; `used_at`: the last time, Unix seconds."""

    name: str
    used_by: str
    used_at: float


@dataclass(frozen=True, slots=True)
class EnvironmentLock:
    """Packages with versions and hashes: see nsml.packages.locks. `content` is "" where only the rest was asked for."""

    digest: str
    package_count: int
    content: str = ""


class Retired(NamedTuple):
    """How many checkpoints of a session were removed by its retention, and their bytes."""

    number: int = 0
    size_bytes: int = 0


_SETTLED: Final = (CheckpointState.DURABLE, CheckpointState.LOST, CheckpointState.SAVED)
"""Of two accounts of one save the first of these is right: what is in the object store is there."""

SAME_SAVE_S = 0.001
"""Times of one save that came by different ways may differ by their rounding."""


def later_of(known: Checkpoint, other: Checkpoint) -> Checkpoint:
    """What stands of two checkpoints of one name.

    That of the later attempt, whose node's clock may be behind; of one attempt the later saved one. Until it
    is durable itself, what can be read is still the earlier one. Two accounts of the same save are put
    together: durable or lost if either says so, the summary from the one that has it.
    """
    if known.attempt != other.attempt:
        later, earlier = (other, known) if other.attempt > known.attempt else (known, other)
        return _until_durable(later, earlier)
    if abs(known.saved_at - other.saved_at) > SAME_SAVE_S:
        later, earlier = (other, known) if other.saved_at > known.saved_at else (known, other)
        return _until_durable(later, earlier)
    told = other if other.summary != "{}" or other.folder else known
    settled = min(known, other, key=lambda one: _SETTLED.index(one.state))
    sized = settled if settled.state is CheckpointState.DURABLE else told
    readable = settled if settled.digest else known if known.digest else other
    return replace(
        told,
        saved_at=known.saved_at,
        state=settled.state,
        why_lost=settled.why_lost,
        digest=readable.digest,
        content_attempt=readable.content_attempt,
        content_saved_at=readable.content_saved_at,
        size_bytes=sized.size_bytes,
        file_count=sized.file_count,
        node=told.node or known.node or other.node,
    )


def _until_durable(later: Checkpoint, earlier: Checkpoint) -> Checkpoint:
    """The later of two saves, with what can be read of the earlier one while it has nothing newer."""
    if later.state is CheckpointState.DURABLE or not earlier.digest:
        return later
    attempt, saved_at = earlier.content_of
    if later.digest and later.content_of >= (attempt, saved_at - SAME_SAVE_S):
        return later
    return replace(later, digest=earlier.digest, content_attempt=attempt, content_saved_at=saved_at)


class ArtifactState(enum.StrEnum):
    """Where the content of an artifact is; UNCHANGED: equal to the version before, REMOVED: by a user."""

    SAVED = "SAVED"
    DURABLE = "DURABLE"
    LOST = "LOST"
    UNCHANGED = "UNCHANGED"
    REMOVED = "REMOVED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Files that a session saved under a name, in versions.

    `folder` is where it was on its node, unique in its replica. `version` is 0 until it is DURABLE. `digest` is None
    unless it can be read. `why_lost` is of a LOST one; `note`, for people, of one that is not.
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
    """One file that a session showed, as its record told.

    `file` is its name on its node, unique in a replica; `facts` a JSON object. `root` is None until it
    is DURABLE, and `size_bytes` what the record said until then. `why_lost` is of a LOST one.
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
    """What became of a file: in the manifest `root`, or lost when that is None."""

    file: str
    size_bytes: int = 0
    root: str | None = None
    why_lost: str = ""


class ReplicaKey(NamedTuple):
    """Which replica of which attempt of a session showed something."""

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
    """Which media of a session: `globs` over names as domain.names.fits_glob has them, empty for all."""

    session_id: str
    globs: tuple[str, ...] = ()
    kind: str = ""
    first_step: float | None = None
    last_step: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPage:
    """Some of them in order; `next` is None after the last.

    `is_full`: the session has as many as are kept, and what it shows since is not. Known on the last page.
    """

    media: tuple[Media, ...]
    next: MediaKey | None
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """Who did what; never a secret. `token` is a fingerprint.

    With `calls` over 1 it stands for so many of the same actor, method and outcome within a minute, and has the rest
    of the last one.
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
    """Which rows are asked for; "" and 0: any. `without`: methods whose calls that ended with OK are left out."""

    actor: str = ""
    method: str = ""
    target: str = ""
    since: float = 0.0
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCharge:
    """What one ended attempt held: `seconds` of `gpu_thousandths`, and what else a price depends on.

    `gpu_models`: JSON, thousandths by model; "" of rows of versions before it, which lack what follows as well.
    `priority` is that of the contract. `durable_until`: when its newest durable checkpoint was saved, Unix seconds;
    0: none is, and all of its work was lost unless it came to its end.
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
