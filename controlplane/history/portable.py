"""A history as rows that any database can take: what a backup keeps of it.

Tables and columns have the names that every implementation gives them. What an implementation keeps
for itself (versions of its schema, whose it is) is left out.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from controlplane.history.errors import HistoryCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

Value: TypeAlias = int | float | str | bytes | None

_KINDS: Final = (int, float, str, bytes, type(None))


class Batch(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Rows of one table."""

    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Of `Value`; msgspec has no union of text and bytes."""


TABLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "streams": (
            *("id", "session_id", "attempt", "rank", "channel", "writer", "wanted"),
            "archived",
        ),
        "chunks": ("id", "stream_id", "first", "last", "received_at", "body"),
        "summaries": ("session_id", "attempt", "time", "step", "report", "listed"),
        "metric_counts": ("session_id", "name", "points"),
        "series_folds": (
            *("session_id", "folded", "waiting", "since", "series", "left_out", "dropped"),
            *("thinned", "coarsened", "let_go_at"),
        ),
        "series": ("id", "session_id", "attempt", "rank", "name", "finest"),
        "series_rows": ("series_id", "level", "number", "body"),
        "telemetry": ("id", "node", "at", "body"),
        "telemetry_blocks": ("level", "node", "start", "body"),
        "telemetry_folds": ("level", "until", "node"),
        "sessions": (
            *("id", "name", "owner", "state", "created_at", "ended_at", "record", "project"),
            *("team", "visibility", "dataset", "request_id", "searched"),
        ),
        "checkpoints": (
            *("session_id", "name", "saved_at", "size_bytes", "file_count", "state", "digest"),
            *("elapsed_s", "summary", "step", "attempt", "rank", "node", "folder"),
            *("why_lost", "content_attempt", "content_saved_at"),
        ),
        "media": (
            *("session_id", "attempt", "rank", "file", "name", "kind", "time", "step"),
            *("content_type", "caption", "facts", "size_bytes", "state", "root", "why_lost"),
        ),
        "datasets": ("owner", "name", "created_at", "team", "visibility", "numbered"),
        "dataset_versions": (
            *("owner", "name", "number", "digest", "size_bytes", "file_count", "created_at"),
            "message",
        ),
        "charges": (
            *("session_id", "attempt", "owner", "project", "gpu_thousandths", "seconds"),
            "ended_at",
        ),
        "audit": (
            *("id", "at", "actor", "method", "target", "outcome", "request_id", "token"),
            "calls",
        ),
    }
)
"""In an order in which they can be taken; the columns say which rows are the same."""

KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("streams", "chunks", "series", "telemetry", "sessions", "audit"), ("id",)),
        "series_folds": ("session_id",),
        "series_rows": ("series_id", "level", "number"),
        "telemetry_blocks": ("level", "node", "start"),
        "telemetry_folds": ("level",),
        "summaries": ("session_id",),
        "metric_counts": ("session_id", "name"),
        "checkpoints": ("session_id", "name"),
        "media": ("session_id", "attempt", "rank", "file"),
        "datasets": ("owner", "name"),
        "dataset_versions": ("owner", "name", "number"),
        "charges": ("session_id", "attempt"),
    }
)
"""The key of each table, by which its rows are told in order."""


def size_of(row: tuple[Value, ...]) -> int:
    """About how many bytes a row has."""
    return 16 + sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)


def check(batch: Batch) -> Batch:
    """The batch, if this version knows its table and columns; HistoryCorrupt otherwise."""
    known = TABLES.get(batch.table)
    strange = set(batch.columns) - set(known or ())
    if known is None or strange:
        what = f"the table {batch.table}" if known is None else f"{sorted(strange)}"
        raise HistoryCorrupt(
            f"this version knows nothing of {what}",
            why="a newer version wrote it",
            attempt="use that version",
        )
    if any(
        len(row) != len(batch.columns) or not all(isinstance(one, _KINDS) for one in row)
        for row in batch.rows
    ):
        raise HistoryCorrupt(f"rows of {batch.table} are not what their columns say")
    return batch
