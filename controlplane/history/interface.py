"""The history's contract: parts over one database.

Every method may raise HistoryUnavailable (nothing was changed, or it is not known: the same call may
be repeated, all writes here are idempotent) and HistoryCorrupt. What a write changed is on disk when
it returns, telemetry excepted. Cancelling a call leaves its write whole or absent.

What only the leader writes is *fenced*: the database keeps the highest term that has written, and
refuses a lower one in the same transaction. So a leader that was paused for longer than its lease
changes nothing when it wakes. Everything else is any control plane's to write: streams, checkpoints
and telemetry come to whichever an agent calls, and each position is stored once; datasets, changes
of ended sessions and their removal compare what they were decided from in their own transaction.

Implementations: `sqlite` (one process, file or ":memory:"), `postgresql` (any number of processes).
A suite in tests/contract holds for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from controlplane.history.blocks import NO_BLOCKS

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractContextManager

    from controlplane.domain.identity import User
    from controlplane.history.blocks import Blocks
    from controlplane.history.portable import Batch
    from controlplane.history.rollup import Cells, Used
    from controlplane.history.subscriptions import Change, Touched
    from controlplane.history.values import (
        Ages,
        AttemptCharge,
        AuditQuery,
        AuditRow,
        Checkpoint,
        CheckpointCount,
        Chunk,
        Dataset,
        DatasetListing,
        DatasetVersion,
        Gap,
        Item,
        KeptBytes,
        LetGo,
        LogPage,
        LogPlace,
        Media,
        MediaContent,
        MediaKey,
        MediaPage,
        MediaQuery,
        MetricPage,
        NodeSample,
        OwnedBy,
        PageKey,
        Recorded,
        Referred,
        Release,
        ReplicaKey,
        SeriesPage,
        SeriesQuery,
        SessionPage,
        SessionQuery,
        SessionRecord,
        StreamKey,
        Summary,
    )


class Streams(Protocol):
    """Records and log bytes of replicas, once and in order whatever is resent.

    A stream is a run of positions. `append` extends it; positions that are stored already are left
    out, positions that are skipped become a gap, which readers see, and which data that comes after
    all still fills.

    Of a log that was archived there are references to blocks, which are elsewhere. What reads a log
    needs those from `blocks` that it comes to, and raises LogElsewhere for one that is not there: it
    is asked again with that one as well. Blocks change nothing of what is read.
    """

    async def append(self, chunks: Sequence[Chunk]) -> dict[StreamKey, int]:
        """Store chunks, cursors, summaries and counts in one transaction; on disk when it returns.

        Concurrent calls share a transaction. Gives, for each stream named, the first position that
        is still wanted.
        """
        ...

    async def cursors(self, session_id: str, attempt: int) -> dict[StreamKey, int]:
        """The first wanted position of every stream of an attempt."""
        ...

    async def read(
        self,
        stream: StreamKey,
        start: int,
        *,
        limit_bytes: int = 1 << 20,
        blocks: Blocks = NO_BLOCKS,
    ) -> tuple[Recorded | Gap | LetGo, ...]:
        """What is stored from position `start` on, in order, first part trimmed to begin there.

        Ends after about `limit_bytes` of content (at least one part), empty at the stream's end.
        """
        ...

    async def read_log(
        self,
        session_id: str,
        *,
        attempt: int | None = None,
        rank: int = 0,
        offset: int = 0,
        tail_lines: int | None = None,
        stop: int | None = None,
        limit_bytes: int = 64 << 10,
        blocks: Blocks = NO_BLOCKS,
    ) -> LogPage:
        """Up to `limit_bytes` of a log from `offset`, or from `tail_lines` before its end if that is later.

        Without `attempt`, the last one that has a log. With `stop`, the log counts as ending there. A
        page never spans a gap, and is smaller where it would be of more than 1,024 chunks. `tail_lines`
        looks back over 8 MiB at most, from the end that the log has when it begins to look.
        """
        ...

    async def log_at(
        self,
        session_id: str,
        moment: float,
        *,
        attempt: int | None = None,
        rank: int = 0,
        blocks: Blocks = NO_BLOCKS,
    ) -> LogPlace:
        """The first byte of a log that was received at `moment` (Unix seconds) or later; its end if none was.

        When a byte was received is the wall clock of whoever stored it: where that was set back, or what
        was lost came late, a place near to it.
        """
        ...

    async def next_log(self, session_id: str, attempt: int, *, rank: int = 0) -> int | None:
        """The first attempt after `attempt` that has a log; None when there is none."""
        ...

    async def unarchived(self, *, ended_before: float, limit: int = 16) -> tuple[StreamKey, ...]:
        """Logs of sessions that ended before a moment and are not archived to their end, the oldest first."""
        ...

    async def archive(self, log: StreamKey, keep: Callable[[bytes], Awaitable[str]]) -> bool:
        """Put the next rows of a log into a block; False when there was nothing (left) to do.

        `keep` gives the digest of a block's content once that is kept for good. Then one transaction removes the
        rows and refers to it: whatever breaks off, all of it is read as before. Gaps stay where they
        are; what fills one later is for the next call.
        """
        ...

    async def read_metrics(
        self,
        session_id: str,
        *,
        names: Collection[str] = (),
        after: int = 0,
        limit_points: int = 5000,
    ) -> MetricPage:
        """Points of all attempts and ranks in commit order behind the mark `after` (0: all).

        `names` are globs; empty means all. Whole chunks: a page may hold somewhat more points, and
        fewer when they are long.
        """
        ...

    async def summaries(self, session_ids: Collection[str]) -> Mapping[str, Summary]:
        """The latest summary of each session that has one, whole."""
        ...

    async def listed_summaries(
        self, session_ids: Collection[str], names: Sequence[str] = ()
    ) -> Mapping[str, Summary]:
        """The same as lists carry them: the first values, and those of `names`; see controlplane.history.summaries."""
        ...

    async def metric_counts(self, session_id: str) -> Mapping[str, int]:
        """Metric name to number of points, by name; at most 10,000 names are counted.

        What was let go is counted as well.
        """
        ...

    async def let_go_at(self, session_id: str) -> float:
        """When points of a session were let go last (Unix seconds); 0: never."""
        ...

    def changed(self, session_id: str) -> AbstractContextManager[Change]:
        """Notice of commits to this session's streams or record, from now on.

        Enter it before the first read: then nothing is missed between a read and `Change.wait`.
        """
        ...

    def touched(self) -> AbstractContextManager[Touched]:
        """Notice of commits to any session's streams or record, from now on; `take` empties it.

        Whatever else is committed to may be named beside them.
        """
        ...


class Series(Protocol):
    """Numbers of metrics as series with coarser levels: read at once, however long they are.

    A series is what one replica of one attempt reported under one name. Its levels are *folded* from
    the chunks of the streams, behind their commit; what is not folded yet is read from the chunks.
    """

    async def read(self, session_id: str, query: SeriesQuery) -> SeriesPage:
        """A range of each series that the query asks for, complete as of this moment.

        What waits to be folded is folded first where it is worth a turn, so that only the first who reads waits for
        it. Where that cannot be stored, it is read unfolded, up to a bound beyond which HistoryUnavailable is raised.

        From the coarsest level that gives the width asked, the ends of the range from finer ones. A
        bucket is whole in one column: a range that cuts more buckets than a few (steps that
        go back and forth) has those points beside it that share one with points in it.
        """
        ...

    async def fold(self, session_id: str) -> bool:
        """Fold some more chunks; False when there was nothing (left) to do.

        Whoever folds at the same time: one of them does, the other has worked in vain.
        """
        ...

    async def unfolded(self, *, limit: int = 16) -> tuple[str, ...]:
        """Sessions of which much is to be folded, or something since long, the longest waiting first."""
        ...

    async def to_thin(self, ages: Ages, *, limit: int = 16) -> tuple[str, ...]:
        """Ended sessions of which something is to be let go, those that ended first before the others."""
        ...

    async def thin(self, session_id: str, ages: Ages) -> bool:
        """Let go of some more of what an ended session reported; False when there was nothing (left) to do.

        Of its points at the first age, once all are folded: levels, counts and the summary stay, and what is
        no number is gone. At the second, when no points are left, of the levels that are finer than a chart
        of the whole needs; short series keep all of theirs. One transaction, of so many rows; whoever does
        it at the same time, or again, does no harm. What comes late finds its place, is folded, and is
        let go the next time.
        """
        ...


class Telemetry(Protocol):
    """Readings of nodes: lossy, bounded, newest at once."""

    async def record(self, samples: Iterable[NodeSample]) -> int:
        """Take readings; gives how many were newer than what was known of their node's boot.

        Kept in memory and written in batches: the last seconds may be lost in a crash.
        """
        ...

    async def newest(self) -> Mapping[str, NodeSample]:
        """The last reading of each node, where one of the control planes got it in the last 30 seconds.

        Without a shared database, since this process started. Does not fail: what other control
        planes took may be missing for as long as the database does not answer.
        """
        ...

    def known(self) -> Mapping[str, NodeSample]:
        """As `newest`, from memory alone: what other control planes took is of the last `newest`."""
        ...

    async def note(self, figures: Sequence[float]) -> None:
        """Take a reading of the platform as a whole: cells.CLUSTER_FIGURES, as of now."""
        ...

    async def read(
        self,
        node: str,
        *,
        since: float,
        until: float,
        width: int,
        keys: Collection[str] | None = None,
    ) -> Cells:
        """What a node (or cells.CLUSTER) did in a span of time, in about `width` cells at most.

        Of these devices by uuid, and "" for the node itself; None: of all, replicas aside. Seconds for an hour, then
        10 s for a day, minutes for 30 days, 10 minutes for a year; fewer cells where nothing came.
        """
        ...

    async def read_replica(
        self,
        node: str,
        session_id: str,
        attempt: int,
        rank: int,
        *,
        since: float,
        until: float,
        width: int,
    ) -> Cells:
        """As `read`, what the processes of a replica took that ran on a node, under cells.replica_key."""
        ...

    async def used(
        self,
        node: str,
        devices: Collection[str],
        *,
        since: float,
        until: float,
        above: float = 0.0,
    ) -> Mapping[str, Used]:
        """What was measured of devices of a node in a span, as fine as it is kept; unknown ones are left out.

        A device is busy at more than `above` percent.
        """
        ...


class Catalogue(Protocol):
    """What has ended, and what outlives sessions."""

    async def put_session(
        self, session: SessionRecord, charges: Sequence[AttemptCharge] = (), *, term: int
    ) -> None:
        """Store or replace an ended session by id, with what its attempts are charged for.

        Only the leader does; HistoryFenced when one of a later term than `term` has written.
        HistoryConflict: its name or (owner, request id) is another's, or an attempt is charged with
        something else already.
        """
        ...

    async def replace_session(self, session: SessionRecord, *, known: bytes) -> bool:
        """Replace a session whose `record` still is `known`; False when it is another or gone."""
        ...

    async def session(self, session_id: str) -> SessionRecord | None:
        """By id."""
        ...

    async def session_by_name(self, name: str) -> SessionRecord | None:
        """By USER/DATASET/N."""
        ...

    async def session_by_request(self, owner: str, request_id: str) -> SessionRecord | None:
        """By the request that made it."""
        ...

    async def sessions(
        self, query: SessionQuery, *, after: PageKey | None = None, limit: int = 100
    ) -> SessionPage:
        """A page of what the viewer may see, newest first by (created_at, id)."""
        ...

    async def delete_session(self, session_id: str, *, roots: Collection[str] = ()) -> bool:
        """Remove a session with its streams, summary, checkpoints and media; False when it was not there.

        Charges and audit rows stay. Its manifests, and those of `roots`, are released, and a count is asked for.
        """
        ...

    async def put_dataset_version(
        self,
        dataset: Dataset,
        *,
        digest: str,
        size_bytes: int,
        file_count: int,
        message: str = "",
    ) -> tuple[DatasetVersion, bool]:
        """Make content the newest version; the same digest as the newest gives that one and False.

        Makes the dataset when it is new; of one that exists, team and visibility become `dataset`'s.
        The version is created at `dataset.created_at`.
        """
        ...

    async def dataset(self, owner: str, name: str, number: int = 0) -> DatasetListing | None:
        """One dataset with a version, 0 for the newest."""
        ...

    async def datasets(
        self,
        viewer: User,
        *,
        name_glob: str = "",
        name: str = "",
        after: tuple[str, str] = ("", ""),
        limit: int | None = None,
    ) -> tuple[DatasetListing, ...]:
        """What the viewer may see, with the newest versions, by name and then owner.

        `name_glob` as domain.names.fits_glob has it; "" does not restrict. `after` is the name and
        owner of the last one of the page before; at most `limit` follow.
        """
        ...

    async def delete_dataset(self, owner: str, name: str, number: int = 0) -> tuple[str, ...]:
        """Remove a version, or all with the dataset (0); the digests that are gone, () where there was none.

        The dataset goes with its last version. The content is released, and a count asked for.
        """
        ...

    async def owned_by(self, owner: str) -> OwnedBy:
        """How many ended sessions and datasets an owner has."""
        ...

    async def readers_of(self, digest: str) -> tuple[Dataset, ...]:
        """The datasets that have a version of this digest: who sees one may read the content."""
        ...

    async def versions_among(self, digests: Collection[str]) -> set[str]:
        """Those of the digests that name a version of any dataset."""
        ...

    async def referred(self, after: tuple[int | str, ...] = ()) -> Referred:
        """What refers to objects, a page at a time: all that is there from the first page to the last.

        Behind the place that the page before ended at; a page may be empty and have a next one.
        """
        ...

    async def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint; of two of one name the later saved one stands, see `values.later_of`.

        Making one durable keeps what was said of it when it was saved.
        """
        ...

    async def checkpoints(
        self, session_id: str, *, after: tuple[float, str] | None = None, limit: int | None = None
    ) -> tuple[Checkpoint, ...]:
        """Of one session, oldest first; behind the one with this time and name."""
        ...

    async def newest_durable(self, session_id: str) -> Checkpoint | None:
        """The last saved one with content, of the latest attempt that has one."""
        ...

    async def newest_names(self, session_id: str, limit: int) -> tuple[str, ...]:
        """Names of the checkpoints that were saved last, oldest first."""
        ...

    async def checkpoint(self, session_id: str, name: str) -> Checkpoint | None:
        """By name."""
        ...

    async def checkpoint_counts(
        self, session_ids: Collection[str]
    ) -> Mapping[str, CheckpointCount]:
        """Numbers of checkpoints of each session that has any, and when the newest was saved."""
        ...

    async def unsettled_checkpoints(self) -> tuple[ReplicaKey, ...]:
        """The replicas of which checkpoints are SAVED: no node has reported what became of them."""
        ...

    async def lose_checkpoints(self, replica: ReplicaKey, why: str) -> int:
        """What is SAVED of a replica is LOST, unless its node reports otherwise later; how many that are."""
        ...

    async def delete_checkpoint(self, session_id: str, name: str, *, owner: str = "") -> bool:
        """Remove its row; False when it was not there. With `owner` its content is released, and a count asked for."""
        ...


class MediaCatalogue(Protocol):
    """What sessions showed, file by file; rows go with their session.

    A record tells of a file, and its node says what became of it, in either order: a file is listed
    once its record has come.
    """

    async def tell(self, told: Sequence[Media]) -> Mapping[str, int]:
        """Store what records tell, the first word on each file; by session for how many there was no room.

        At most 100,000 files of a session are kept.
        """
        ...

    async def settle(
        self, session_id: str, attempt: int, rank: int, contents: Sequence[MediaContent]
    ) -> None:
        """Store what became of a replica's files; one that is DURABLE stays as it is."""
        ...

    async def list(
        self, query: MediaQuery, *, after: MediaKey | None = None, limit: int = 100
    ) -> MediaPage:
        """A page by (time, attempt, rank, file)."""
        ...

    async def unsettled(self) -> tuple[ReplicaKey, ...]:
        """The replicas of which media are SAVED: nobody has said what became of them."""
        ...

    async def lose(self, replica: ReplicaKey, why: str) -> int:
        """What is SAVED of a replica is LOST, unless its node says otherwise later; how many that are."""
        ...


class Ledger(Protocol):
    """What is added to and never changed: charges and the audit trail."""

    async def charge(self, charges: Sequence[AttemptCharge], *, term: int) -> None:
        """Store one row an ended attempt; repeating it is harmless, another value a conflict.

        Only the leader does; HistoryFenced as in Catalogue.put_session.
        """
        ...

    async def charged(
        self, *, owner: str | None = None, project: str | None = None, since: float = 0.0
    ) -> float:
        """GPU-seconds of attempts that ended at `since` or later."""
        ...

    async def charges(
        self,
        project: str,
        *,
        since: float,
        behind: AttemptCharge | None = None,
        limit: int = 500,
    ) -> tuple[AttemptCharge, ...]:
        """A page of the rows of a project's attempts that ended after `since`, in the order of their ends.

        The first so many, or those behind the last row of the page before.
        """
        ...

    async def audit(self, rows: Sequence[AuditRow]) -> None:
        """Append rows; they cannot be changed, and only `trim_audit` removes some."""
        ...

    async def trim_audit(self, *, most_rows: int, most_bytes: int) -> int:
        """Remove the oldest rows of the actors with the most bytes until the trail is no larger; how many.

        0: no limit. A flood removes rows of its own actor first.
        """
        ...

    async def newest_audited(
        self, query: AuditQuery, *, before: int | None = None, limit: int = 100
    ) -> tuple[tuple[int, AuditRow], ...]:
        """Rows that a query asks for with their numbers, the newest first; those before `before`.

        Their texts are cut to some thousand characters.
        """
        ...


class Sent(Protocol):
    """Which blobs callers of the content service have sent, for a while: what they may refer to.

    A period is a number that grows with time; the caller says how long one is. No backup has these
    rows: after a restore blobs are sent again.
    """

    async def remember(
        self, caller: str, digests: Collection[str], *, period: int, owner: str = "", size: int = 0
    ) -> int:
        """Note that a caller has sent blobs; how many were not noted for this period. On disk when this returns.

        `size` bytes count as sent by `owner` (`Kept.all`), in the same transaction. Repeating it is harmless, but
        that they count again until the next count.
        """
        ...

    async def among(
        self, caller: str, digests: Collection[str], *, since: int
    ) -> Mapping[str, int]:
        """Those of the digests noted for the caller in the period `since` or the next one, with the later of both."""
        ...

    async def count(self, caller: str, *, period: int) -> int:
        """How many digests are noted for a caller in a period."""
        ...

    async def notes(
        self, after: tuple[int, str, str] | None = None
    ) -> tuple[tuple[int, str, str], ...]:
        """A page of all notes: period, caller and the first 32 digits of the digest; () after the last."""
        ...

    async def drop(self, notes: Collection[tuple[int, str, str]]) -> None:
        """Remove notes, as `notes` gives them: the caller would have to send these blobs again."""
        ...

    async def forget(self, *, before: int) -> int:
        """Remove what was noted in periods before this one; the number of rows."""
        ...


class Kept(Protocol):
    """How much the object store keeps for each user: counted now and then, and corrected by what was sent since.

    So it is at least what is kept, but for what is referred to without being sent. No backup has these rows: after a
    restore they are counted anew.
    """

    async def all(self) -> Mapping[str, KeptBytes]:
        """By user."""
        ...

    async def add(self, owner: str, *, sent: int = 0, asked: int = 0) -> None:
        """Count bytes as sent by a user, or note that a count was asked for."""
        ...

    async def released(self) -> tuple[Release, ...]:
        """A page of what was released since the last count: the first so many."""
        ...

    async def count(
        self,
        counted: Mapping[str, Mapping[str, int]],
        before: Mapping[str, KeptBytes],
        released: Collection[Release],
        *,
        at: float,
        term: int,
    ) -> None:
        """Store a count of everybody, in one transaction.

        Only the leader does; HistoryFenced as in Catalogue.put_session. What was sent, asked and released until
        the count began (`before`, `released`) is in it.
        """
        ...

    async def largest(
        self, owner: str, live: Mapping[str, str], *, limit: int = 10
    ) -> tuple[Item, ...]:
        """The largest datasets and sessions of a user, by the sizes of their files; `live`: names of live sessions by id."""
        ...


class History(Protocol):
    """The parts together; `close` ends them, after which nothing may be called."""

    @property
    def streams(self) -> Streams:
        """Records of replicas."""
        ...

    @property
    def series(self) -> Series:
        """Numbers of metrics, with coarser levels."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """Readings of nodes."""
        ...

    @property
    def catalogue(self) -> Catalogue:
        """Ended sessions, datasets, checkpoints."""
        ...

    @property
    def media(self) -> MediaCatalogue:
        """Files that sessions showed."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Charges and audit."""
        ...

    @property
    def sent(self) -> Sent:
        """Which blobs callers have sent."""
        ...

    @property
    def kept(self) -> Kept:
        """How much is kept for whom."""
        ...

    async def mark(self, fresh: str = "") -> str:
        """The mark that says whose this database is; "" while it has none.

        A database without one gets `fresh`, for good: of several that come at once one is taken, and
        all are told which.
        """
        ...

    async def probe(self) -> None:
        """Write something of no meaning; returns once it is on disk: whether writing works again."""
        ...

    async def size(self) -> int:
        """Bytes that the database takes, free room within its files included."""
        ...

    def dump(self) -> AsyncGenerator[Batch, None]:
        """Everything in portable rows, as it is at one moment, while others go on writing."""
        ...

    async def load(self, batches: Iterable[Batch]) -> None:
        """Take what `dump` gave, of this or another implementation, all or nothing.

        HistoryConflict: something is here already. HistoryCorrupt: rows of a newer version.
        """
        ...

    async def close(self) -> None:
        """Write the readings that are held back, if it can be done now, and let go of the database."""
        ...
