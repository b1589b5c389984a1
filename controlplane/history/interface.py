"""The history's contract: parts over one database.

Every method may raise HistoryUnavailable (nothing was changed, or it is not known: the same call may
be repeated, all writes here are idempotent) and HistoryCorrupt. What a write changed is on disk when
it returns, telemetry excepted. Cancelling a call leaves its write whole or absent.

What only the leader writes is *fenced*: the database keeps the highest term that has written, and
refuses a lower one in the same transaction. So a leader that was paused for longer than its lease
changes nothing when it wakes. Everything else is any control plane's to write: streams, checkpoints
and telemetry come to whichever an agent calls, and each position is stored once; datasets, changes
of ended sessions and their removal compare what they were decided from in their own transaction.

The parts are written once, in `sql`, on what `sql.interface` asks of a database: `sqlite` (one process, file or
":memory:"), `postgresql` (any number of processes). A suite in tests/contract holds for both.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from controlplane.history.sql.history import SqlHistory
from controlplane.history.sql.ledger import SqlLedger
from controlplane.history.sql.streams import SqlStreams
from controlplane.history.sql.telemetry import SqlTelemetry

History: TypeAlias = SqlHistory[Any]
Ledger: TypeAlias = SqlLedger
Streams: TypeAlias = SqlStreams
Telemetry: TypeAlias = SqlTelemetry
