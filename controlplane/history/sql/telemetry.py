"""Telemetry: the newest readings in memory, and a history in four levels of blocks.

A block has all readings of one node in a time span (see history.telemetry_rollup), so that there are few
rows. The finest level is written as readings arrive, some seconds late. Each coarser one is rolled up
from the one below once a span is over, which may be repeated; a table records the progress, and data
not rolled up yet is not dropped. Queries use the coarsest level that is fine enough; where that does
not reach the end, finer ones continue, and finally the blocks in memory.

The resource usage of replicas arrives with the readings of their node, and is in its blocks of the finest
level. In coarser levels each replica has its own blocks, under its key in place of a node's name: with many
short sessions a day a node's block would have too many keys, mostly empty.

If several control planes share the database, each node's agent reports to any of them: each one writes
the newest readings of its nodes every second, as one row, and reads the others' rows when it answers
a query.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog
import zstandard

from controlplane.history.errors import HistoryCorrupt, HistoryUnavailable
from controlplane.history.telemetry_rollup import (
    CLUSTER,
    Cells,
    apart,
    coarser,
    is_replica_key,
    joined,
    packed,
    replica_key,
    sound,
    unpacked,
    used,
    without_replicas,
)
from controlplane.history.values import NodeSample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from controlplane.history.sql.interface import Connection, Database
    from controlplane.history.telemetry_rollup import Used
    from nsml.common.clock import Clock


class Level(NamedTuple):
    """Resolution, length of a block, and retention; seconds."""

    step: float
    span: float
    kept: float


LEVELS: Final = (
    Level(1.0, 20.0, 3600.0),
    Level(10.0, 600.0, 86400.0),
    Level(60.0, 7200.0, 30 * 86400.0),
    Level(600.0, 86400.0, 366 * 86400.0),
)
"""The finest step is the agents' interval."""
LATEST_S: Final = 60.0
"""How long after its end a span is rolled up: by then all control planes have written their blocks of it."""
FOLDED_NODES: Final = 8
"""Nodes rolled up at once."""
FOLD_EVERY_S: Final = 2.0
FOLD_S: Final = 0.25
"""The interval of roll-ups, and the time limit of each."""
MOST_CELLS: Final = 4000
"""Most cells read for an answer, if a coarser level is available."""
MOST_BLOCKS: Final = 1000
"""Most blocks of one level read for an answer."""
MOST_READINGS: Final = 400
"""Most readings in a block of the finest level: further ones are left out."""
MOST_HELD: Final = 20_000
"""Most blocks buffered while the database is unavailable; then the oldest are lost."""
STRANGE_CLOCK_S: Final = 30.0
"""Times by a node's clock that is off by more are ignored."""
STANDS_S: Final = 10.0
"""A reading covers the time since the previous one, at most this long."""
LATELY_S: Final = 30.0
"""How long a node's last reading counts as current."""
FLUSH_BLOCKS: Final = 64
FLUSH_AFTER_S = 10.0
SHARED_AFTER_S: Final = 1.0
"""Interval of writes, and of reads of others' rows, with a shared database."""
LOOK_S: Final = 1.0
"""How long a query for the newest readings waits for others' rows."""
_SENT_FOR_S: Final = 6 * 3600.0
_MOST_SENT: Final = 256 << 20
"""Most bytes of a row, unpacked."""

_log = structlog.get_logger()
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[tuple[float, NodeSample]])


@dataclass(frozen=True, slots=True)
class _Known:
    """A node's newest reading, and when a control plane received it, which orders boots."""

    sample: NodeSample
    received_at: float

    def is_before(self, other: _Known) -> bool:
        """Whether the other reading is newer."""
        if self.sample.boot_id == other.sample.boot_id:
            return self.sample.sequence < other.sample.sequence
        return self.received_at < other.received_at


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of one node to be written."""

    node: str
    start: float
    ends_at: float
    cells: Cells = field(default_factory=Cells)


class SqlTelemetry:
    """Readings of nodes: lossy and bounded; the newest are available immediately."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._newest: dict[str, _Known] = {}
        self._open: dict[str, _Block] = {}
        self._read_until: dict[str, float] = {}
        self._full: list[_Block] = []
        self._being_written: list[_Block] = []
        self._ours: set[str] = set()
        self._has_news = False
        self._teller: int | None = None
        self._others: dict[int, float] = {}
        self._writing = asyncio.Lock()
        self._flushed_at = clock.monotonic()
        self._folded_at = clock.monotonic()
        self._looked_at = float("-inf")
        self._flush_after_s = SHARED_AFTER_S if database.is_shared else FLUSH_AFTER_S

    async def record(self, samples: Iterable[NodeSample]) -> int:
        """Record readings; return how many were newer than the last one of their node's boot.

        Kept in memory and written in batches: the last seconds may be lost in a crash.
        """
        taken = 0
        for sample in samples:
            known = self._newest.get(sample.node)
            if (
                known is not None
                and known.sample.boot_id == sample.boot_id
                and known.sample.sequence >= sample.sequence
            ):
                continue
            self._newest[sample.node] = _Known(sample, self._clock.time())
            self._ours.add(sample.node)
            self._has_news = True
            self._take(sample.node, sample.at, _readings(sample))
            taken += 1
        await self._write_now_and_then()
        return taken

    async def note(self, figures: Sequence[float]) -> None:
        """Record a reading of the whole platform: telemetry_rollup.CLUSTER_FIGURES, as of now."""
        self._take(CLUSTER, self._clock.time(), {"": figures})
        await self._write_now_and_then()

    async def newest(self) -> Mapping[str, NodeSample]:
        """Return the last reading of each node received by any control plane in the last 30 seconds.

        Without a shared database, only since this process started. Does not fail: readings of other
        control planes may be missing while the database is unavailable.
        """
        if self._database.is_shared:
            await self._look()
        return self.known()

    def known(self) -> Mapping[str, NodeSample]:
        """As `newest`, from memory alone: readings of other control planes are as of the last `newest`."""
        # By our own clock: a node's may be off by hours.
        since = self._clock.time() - LATELY_S
        return MappingProxyType(
            {
                node: known.sample
                for node, known in self._newest.items()
                if known.received_at >= since
            }
        )

    async def read(
        self,
        node: str,
        *,
        since: float,
        until: float,
        width: int,
        keys: Collection[str] | None = None,
    ) -> Cells:
        """Read the readings of a node (or telemetry_rollup.CLUSTER) in a time span, in about `width` cells at most.

        `keys`: uuids of devices, and "" for the node itself; None: all except replicas. Resolution: 1 s for an hour,
        10 s for a day, 1 min for 30 days, 10 min for a year; fewer cells where readings are missing.
        """
        if not (math.isfinite(since) and math.isfinite(until)) or until <= since:
            return Cells()
        step = (until - since) / max(width, 1)
        cells = await self._cells(node, since, until, step, keys)
        return coarser(cells, since, until, step)

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
        """As `read`, the usage of a replica's processes on a node, under telemetry_rollup.replica_key."""
        if not (math.isfinite(since) and math.isfinite(until)) or until <= since:
            return Cells()
        step = (until - since) / max(width, 1)
        key = replica_key(session_id, attempt, rank)
        cells = await self._cells(node, since, until, step, (key,), coarse=key)
        return coarser(cells, since, until, step)

    async def used(
        self,
        node: str,
        devices: Collection[str],
        *,
        since: float,
        until: float,
        above: float = 0.0,
    ) -> Mapping[str, Used]:
        """Measure the usage of a node's devices in a time span, at the finest resolution kept; without unknown ones.

        A device is busy above `above` percent.
        """
        if until <= since:
            return {}
        before = since - LEVELS[-1].step
        cells = await self._cells(node, before, until, (until - since) / MOST_CELLS, devices)
        found = {device: used(cells, device, since, until, above) for device in devices}
        return {device: one for device, one in found.items() if one is not None}

    async def flush(self) -> None:
        """Write all buffered readings."""
        self._full += self._open.values()
        self._open.clear()
        await self._write()

    async def close(self) -> None:
        """Write buffered readings if the database is available: they may be lost, but stopping must not fail."""
        try:
            await self.flush()
        except HistoryUnavailable as error:
            _log.warning("history.readings.lost", reason=str(error), why=error.why)

    def _take(self, node: str, said_at: float, readings: Mapping[str, Sequence[float]]) -> None:
        now, span = self._clock.time(), LEVELS[0].span
        at = said_at if abs(said_at - now) <= STRANGE_CLOCK_S else now
        known = self._read_until.get(node)
        start = at - LEVELS[0].step if known is None else max(known, at - STANDS_S)
        if start >= at:
            return
        block = self._open.get(node)
        if block is None or block.ends_at <= start:
            # The first block of each node is shorter by its own amount, to spread the writes.
            short = span if known is None else 0.0
            ends_at = start + span - zlib.crc32(node.encode()) % 997 / 997 * short
            self._close(node)
            block = self._open[node] = _Block(node, start, ends_at)
        if len(block.cells) < MOST_READINGS:
            block.cells.add(start, at - start, readings)
            self._read_until[node] = at

    def _close(self, node: str) -> None:
        block = self._open.pop(node, None)
        if block is not None:
            self._full.append(block)

    async def _write_now_and_then(self) -> None:
        now = self._clock.monotonic()
        waited = now - self._flushed_at
        is_due = waited >= self._flush_after_s
        if not self._writing.locked() and (len(self._full) >= FLUSH_BLOCKS or is_due):
            late = self._clock.time() - LEVELS[0].span
            for node in [one.node for one in self._open.values() if one.ends_at < late]:
                self._close(node)  # it stopped reporting
            await self._write()
        if not self._writing.locked() and now - self._folded_at >= FOLD_EVERY_S:
            self._folded_at = now
            async with self._writing:
                while await self._fold() and self._clock.monotonic() < now + FOLD_S:
                    pass

    async def _write(self) -> None:
        async with self._writing:
            self._flushed_at = self._clock.monotonic()
            full, self._full = self._full[-MOST_HELD:], []
            is_sent = self._has_news and self._database.is_shared
            self._has_news = False
            if not full and not is_sent:
                return
            self._being_written = full
            now = self._clock.time()
            newest = self._to_send(now) if is_sent else []

            def work(connection: Connection) -> int | None:
                if full:
                    _put(connection, 0, [(b.node, b.start, packed(b.cells, b.start)) for b in full])
                    _forget(connection, now)
                return _send(connection, self._teller, newest, now) if is_sent else self._teller

            try:
                self._teller = await self._database.write(work, touches=("telemetry",))
            except BaseException:
                self._full = full + self._full
                raise
            finally:
                self._being_written = []

    def _to_send(self, now: float) -> list[_Known]:
        """The newest readings received here, without old ones."""
        horizon = now - _SENT_FOR_S
        known = {node: self._newest[node] for node in sorted(self._ours)}
        self._ours = {node for node, one in known.items() if one.received_at >= horizon}
        return [one for node, one in known.items() if node in self._ours]

    async def _fold(self) -> bool:
        """Roll up a few nodes' blocks of an ended span; False: there are none."""
        now = self._clock.time()
        for level in range(1, len(LEVELS)):

            def look(connection: Connection, level: int = level) -> _Folded | None:
                return _folded(connection, level, now)

            folded = await self._database.read(look)
            if folded is None:
                continue

            def work(connection: Connection, level: int = level, folded: _Folded = folded) -> None:
                if _go_on(connection, level, folded):
                    _put(connection, level, folded.blocks)

            await self._database.write(work, touches=("telemetry",))
            return True
        return False

    async def _cells(
        self,
        node: str,
        since: float,
        until: float,
        step: float,
        keys: Collection[str] | None,
        *,
        coarse: str = "",
    ) -> Cells:
        """Read cells of at most this step if available, at the end those of the finest level.

        `coarse`: the name of the blocks in coarser levels, if not the node's.
        """
        chosen = _level(since, until, step, self._clock.time())

        def work(connection: Connection) -> list[Cells]:
            parts: list[Cells] = []
            reached = since
            for level in range(chosen, -1, -1):
                rows = connection.execute(
                    "SELECT start, body FROM telemetry_blocks"
                    " WHERE level = ? AND node = ? AND start > ? AND start < ?"
                    " ORDER BY start DESC LIMIT ?",
                    (
                        level,
                        (level and coarse) or node,
                        reached - 2 * LEVELS[level].span,
                        until,
                        MOST_BLOCKS,
                    ),
                ).fetchall()
                parts += (_of(one, keys) for one in _readable(node, reversed(rows), keys))
                if level and rows:
                    reached = max(reached, rows[0][0] + LEVELS[level].span)
            return parts

        # Blocks written meanwhile may be neither in the result nor in memory after it.
        held = self._held(node)
        parts = await self._database.read(work)
        parts += [_of(block.cells, keys) for block in (*held, *self._held(node))]
        return joined(parts, since, until)

    def _held(self, node: str) -> list[_Block]:
        """The blocks of a node in memory, oldest first."""
        every = (*self._being_written, *self._full, *filter(None, [self._open.get(node)]))
        return [block for block in every if block.node == node]

    async def _look(self) -> None:
        """Load the readings of other control planes; skipped on a timeout or a failure."""
        now = self._clock.monotonic()
        if now < self._looked_at + SHARED_AFTER_S:
            return
        self._looked_at = now
        try:
            async with asyncio.timeout(LOOK_S):
                rows = await self._database.read(partial(_received, self._teller, self._others))
        except (HistoryUnavailable, TimeoutError):
            return
        for teller, sent_at, body in rows:
            self._others[teller] = sent_at
            for known in _readable_newest(body):
                before = self._newest.get(known.sample.node)
                if before is None or before.is_before(known):
                    self._newest[known.sample.node] = known
                    self._ours.discard(known.sample.node)


def _send(
    connection: Connection, teller: int | None, newest: Iterable[_Known], now: float
) -> int | None:
    """Write our row, inserting it if missing; return its number."""
    connection.execute("DELETE FROM newest_readings WHERE told_at < ?", (now - _SENT_FOR_S,))
    plain = _ENCODER.encode([(one.received_at, one.sample) for one in newest])
    body = zstandard.ZstdCompressor(level=1).compress(plain)
    if teller is not None:
        done = connection.execute(
            "UPDATE newest_readings SET told_at = ?, body = ? WHERE teller = ?", (now, body, teller)
        )
        if done.rowcount:
            return teller
    made = connection.execute(
        "INSERT INTO newest_readings (told_at, body) VALUES (?, ?) RETURNING teller", (now, body)
    )
    return int(made.fetchone()[0])


def _received(
    teller: int | None, known: Mapping[int, float], connection: Connection
) -> list[tuple[int, float, bytes]]:
    """Return new rows of others."""
    every = connection.execute("SELECT teller, told_at FROM newest_readings").fetchall()
    return [
        (number, sent_at, body)
        for number, at in every
        if number != teller and known.get(number) != at
        for sent_at, body in connection.execute(
            "SELECT told_at, body FROM newest_readings WHERE teller = ?", (number,)
        )
    ]


def _readable_newest(body: bytes) -> list[_Known]:
    """Decode a row; an unreadable one counts as empty."""
    try:
        plain = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MOST_SENT)
        return [_Known(sample, received_at) for received_at, sample in _DECODER.decode(plain)]
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        _log.warning("history.readings.unreadable", why=str(error))
        return []


def _readings(sample: NodeSample) -> dict[str, tuple[float, ...]]:
    """The figures of history.telemetry_rollup; invalid values count as 0."""
    found: dict[str, tuple[float, ...]] = {
        "": (sound(sample.cpu_percent), sound(sample.memory_used_bytes))
    }
    for one in sample.devices:
        if is_replica_key(one.uuid):
            continue
        found[one.uuid] = (
            sound(one.utilization_percent),
            sound(one.memory_used_bytes),
            sound(one.power_watts),
            sound(one.temperature_celsius),
            1.0 if one.throttled else 0.0,
        )
    for replica in sample.replicas:
        found[replica_key(replica.session_id, replica.attempt, replica.rank)] = (
            sound(replica.cpu_cores),
            sound(replica.memory_used_bytes),
            sound(replica.process_count),
        )
    return found


def _of(cells: Cells, keys: Collection[str] | None) -> Cells:
    """Select the columns of these keys; None: of the node and its devices."""
    if keys is None:
        return without_replicas(cells)
    return Cells(
        cells.starts,
        cells.lengths,
        cells.seconds,
        {key: column for key, column in cells.columns.items() if key in keys},
    )


def _level(since: float, until: float, step: float, now: float) -> int:
    """The coarsest level at least as fine as `step`, or else the finest that goes back to `since` in MOST_CELLS."""
    fits = [
        number
        for number, level in enumerate(LEVELS)
        if now - level.kept <= since and (until - since) / level.step <= MOST_CELLS
    ] or [len(LEVELS) - 1]
    fine = [number for number in fits if LEVELS[number].step <= step]
    return max(fine) if fine else min(fits)


def _readable(
    node: str, rows: Iterable[tuple[float, bytes]], keys: Collection[str] | None = None
) -> Iterator[Cells]:
    """Decode the blocks of these rows, without unreadable ones."""
    for start, body in rows:
        try:
            yield unpacked(body, start, keys)
        except HistoryCorrupt as error:
            _log.warning("history.telemetry.unreadable", node=node, start=start, why=error.why)


class _Folded(NamedTuple):
    """Rolled up blocks, the progress before them, and the progress after them."""

    known: tuple[float, str] | None
    next: tuple[float, str]
    blocks: list[tuple[str, float, bytes]]


def _folded(connection: Connection, level: int, now: float) -> _Folded | None:
    """Roll up the next few nodes of the oldest ended span not done yet; None: there is none."""
    below, here = LEVELS[level - 1], LEVELS[level]
    row = connection.execute(
        "SELECT until, node FROM telemetry_folds WHERE level = ?", (level,)
    ).fetchone()
    begin, done = (row[0], row[1]) if row is not None else (-math.inf, "")
    if not done:
        first = connection.execute(
            "SELECT min(start) FROM telemetry_blocks WHERE level = ? AND start >= ?",
            (level - 1, max(begin - below.span, 0.0)),
        ).fetchone()[0]
        if first is None:
            return None
        begin = max(begin, math.floor(first / here.span) * here.span)
    end = begin + here.span
    # A block of the level below may reach into the span from before it.
    since = begin - 2 * below.span
    if end + LATEST_S + below.span > now:
        return None
    names = [
        str(one[0])
        for one in connection.execute(
            "SELECT DISTINCT node FROM telemetry_blocks"
            " WHERE level = ? AND start >= ? AND start < ? AND node > ? ORDER BY node LIMIT ?",
            (level - 1, since, end, done, FOLDED_NODES),
        )
    ]
    blocks = []
    for node in names:
        rows = connection.execute(
            "SELECT start, body FROM telemetry_blocks"
            " WHERE level = ? AND node = ? AND start >= ? AND start < ? ORDER BY start",
            (level - 1, node, since, end),
        ).fetchall()
        parts = list(_readable(node, rows))
        for key, own in apart(parts) if level == 1 else [("", parts)]:
            fine = joined(own, begin, end)
            if len(fine):
                body = packed(coarser(fine, begin, end, here.step), begin)
                blocks.append((key or node, begin, body))
    goes_on = (begin, names[-1]) if len(names) == FOLDED_NODES else (end, "")
    return _Folded(None if row is None else (row[0], row[1]), goes_on, blocks)


def _go_on(connection: Connection, level: int, folded: _Folded) -> bool:
    """Record the progress; False if another control plane recorded some meanwhile."""
    until, node = folded.next
    if folded.known is None:
        done = connection.execute(
            "INSERT INTO telemetry_folds (level, until, node) VALUES (?, ?, ?)"
            " ON CONFLICT (level) DO NOTHING",
            (level, until, node),
        )
    else:
        done = connection.execute(
            "UPDATE telemetry_folds SET until = ?, node = ?"
            " WHERE level = ? AND until = ? AND node = ?",
            (until, node, level, *folded.known),
        )
    return done.rowcount == 1


def _put(connection: Connection, level: int, blocks: Iterable[tuple[str, float, bytes]]) -> None:
    connection.executemany(
        "INSERT INTO telemetry_blocks (level, node, start, body) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (level, node, start) DO UPDATE SET body = excluded.body",
        [(level, node, start, body) for node, start, body in blocks],
    )


def _forget(connection: Connection, now: float) -> None:
    """Delete expired blocks, once they are rolled up."""
    folds = connection.execute("SELECT level, until FROM telemetry_folds").fetchall()
    reached = {int(level): until for level, until in folds}
    for number, level in enumerate(LEVELS):
        horizon = now - level.kept
        if number + 1 < len(LEVELS):
            horizon = min(horizon, reached.get(number + 1, -math.inf) - 2 * level.span)
        connection.execute(
            "DELETE FROM telemetry_blocks WHERE level = ? AND start < ?", (number, horizon)
        )
    # Rows of versions that stored each reading separately.
    connection.execute("DELETE FROM telemetry WHERE at < ?", (now - _SENT_FOR_S,))
