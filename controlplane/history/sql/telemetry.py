"""Telemetry: the newest in memory, a bounded past in a table."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from controlplane.history.values import NodeSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from controlplane.history.sql.interface import Connection, Database
    from nsml.clock import Clock

RETENTION_S = 6 * 3600.0
MAX_ROWS = 1_000_000
FLUSH_SAMPLES = 256
FLUSH_AFTER_S = 10.0

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(NodeSample)


class SqlTelemetry:
    """See interface.Telemetry."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._newest: dict[str, NodeSample] = {}
        self._held: list[NodeSample] = []
        self._flushed_at = clock.monotonic()

    async def record(self, samples: Iterable[NodeSample]) -> int:
        """See Telemetry."""
        taken = 0
        for sample in samples:
            known = self._newest.get(sample.node)
            if (
                known is not None
                and known.boot_id == sample.boot_id
                and known.sequence >= sample.sequence
            ):
                continue
            self._newest[sample.node] = sample
            self._held.append(sample)
            taken += 1
        waited = self._clock.monotonic() - self._flushed_at
        if len(self._held) >= FLUSH_SAMPLES or (self._held and waited >= FLUSH_AFTER_S):
            await self.flush()
        return taken

    def newest(self) -> Mapping[str, NodeSample]:
        """See Telemetry."""
        return MappingProxyType(self._newest)

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

        await self._database.write(work)
