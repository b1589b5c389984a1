"""Telemetry: the newest in memory, a bounded past in a table.

Where several control planes share the database, each node's agent reports to any of them: what is
newest is then in a table, too, which all of them write every second and read when they are asked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from controlplane.history.errors import HistoryUnavailable
from controlplane.history.values import NodeSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.history.sql.interface import Connection, Database
    from nsml.clock import Clock

RETENTION_S = 6 * 3600.0
MAX_ROWS = 1_000_000
FLUSH_SAMPLES = 256
FLUSH_AFTER_S = 10.0
SHARED_AFTER_S: Final = 1.0
"""Between two writes, or two looks at what others wrote, of a database that is shared."""
LOOK_S: Final = 1.0
"""How long whoever asks for the newest waits for what others know."""

_log = structlog.get_logger("history.telemetry")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(NodeSample)


@dataclass(frozen=True, slots=True)
class _Known:
    """A node's newest reading, and when it came to a control plane: boots are told apart by that."""

    sample: NodeSample
    received_at: float

    def is_before(self, other: _Known) -> bool:
        """Whether the other one is the newer reading."""
        if self.sample.boot_id == other.sample.boot_id:
            return self.sample.sequence < other.sample.sequence
        return self.received_at < other.received_at


class SqlTelemetry:
    """See interface.Telemetry."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._newest: dict[str, _Known] = {}
        self._held: list[NodeSample] = []
        self._flushed_at = clock.monotonic()
        self._looked_at = float("-inf")
        self._flush_after_s = SHARED_AFTER_S if database.is_shared else FLUSH_AFTER_S

    async def record(self, samples: Iterable[NodeSample]) -> int:
        """See Telemetry."""
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
            self._held.append(sample)
            taken += 1
        waited = self._clock.monotonic() - self._flushed_at
        if len(self._held) >= FLUSH_SAMPLES or (self._held and waited >= self._flush_after_s):
            await self.flush()
        return taken

    async def newest(self) -> Mapping[str, NodeSample]:
        """See Telemetry."""
        if self._database.is_shared:
            await self._look()
        return MappingProxyType({node: known.sample for node, known in self._newest.items()})

    async def read(
        self, node: str, *, since: float, until: float, limit: int = 10_000
    ) -> tuple[NodeSample, ...]:
        """See Telemetry."""
        await self.flush()

        def work(connection: Connection) -> tuple[NodeSample, ...]:
            rows = connection.execute(
                "SELECT body FROM telemetry WHERE node = ? AND at >= ? AND at <= ?"
                " ORDER BY at DESC, id DESC LIMIT ?",
                (node, since, until, limit),
            ).fetchall()
            return tuple(_DECODER.decode(row[0]) for row in reversed(rows))

        return await self._database.read(work)

    async def flush(self) -> None:
        """Write what is held back, and drop what is too old or too much."""
        held, self._held = self._held, []
        self._flushed_at = self._clock.monotonic()
        if not held:
            return
        newest = [self._newest[node] for node in sorted({sample.node for sample in held})]
        horizon = self._clock.time() - RETENTION_S

        def work(connection: Connection) -> None:
            connection.executemany(
                "INSERT INTO telemetry (node, at, body) VALUES (?, ?, ?)",
                [(sample.node, sample.at, _ENCODER.encode(sample)) for sample in held],
            )
            connection.execute("DELETE FROM telemetry WHERE at < ?", (horizon,))
            connection.execute(
                "DELETE FROM telemetry WHERE id <= (SELECT max(id) FROM telemetry) - ?",
                (MAX_ROWS,),
            )
            if self._database.is_shared:
                _tell(connection, newest, horizon)

        await self._database.write(work, touches=("telemetry",))

    async def close(self) -> None:
        """Write what is held back if the database takes it: readings may be lost, stopping may not fail."""
        try:
            await self.flush()
        except HistoryUnavailable as error:
            _log.warning("history.readings.lost", reason=str(error), why=error.why)

    async def _look(self) -> None:
        """Take over what others know; after a moment, or a failure, do without."""
        now = self._clock.monotonic()
        if now < self._looked_at + SHARED_AFTER_S:
            return
        self._looked_at = now
        try:
            async with asyncio.timeout(LOOK_S):
                rows = await self._database.read(_told)
        except (HistoryUnavailable, TimeoutError):
            return
        for known in rows:
            ours = self._newest.get(known.sample.node)
            if ours is None or ours.is_before(known):
                self._newest[known.sample.node] = known


def _tell(connection: Connection, newest: Iterable[_Known], horizon: float) -> None:
    connection.execute("DELETE FROM readings WHERE received_at < ?", (horizon,))
    connection.executemany(
        "INSERT INTO readings (node, boot_id, sequence, received_at, body) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (node) DO UPDATE SET boot_id = excluded.boot_id,"
        " sequence = excluded.sequence, received_at = excluded.received_at, body = excluded.body"
        " WHERE CASE WHEN readings.boot_id = excluded.boot_id"
        " THEN readings.sequence < excluded.sequence"
        " ELSE readings.received_at < excluded.received_at END",
        [
            (one.sample.node, one.sample.boot_id, one.sample.sequence, one.received_at, body)
            for one in newest
            for body in [_ENCODER.encode(one.sample)]
        ],
    )


def _told(connection: Connection) -> list[_Known]:
    rows = connection.execute("SELECT body, received_at FROM readings")
    return [_Known(_DECODER.decode(body), received_at) for body, received_at in rows]
