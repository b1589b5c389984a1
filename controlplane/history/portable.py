"""A history as rows for any database: the format of backups.

Tables and columns have the same names in every implementation. Data of one implementation alone
(its schema version, its owner) is left out.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from controlplane.history.errors import HistoryCorrupt
from controlplane.history.sql.tables import BACKED_UP

Value: TypeAlias = int | float | str | bytes | None

_KINDS: Final = (int, float, str, bytes, type(None))


class Batch(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Rows of one table."""

    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Of `Value`; msgspec has no union of text and bytes."""


def size_of(row: tuple[Value, ...]) -> int:
    """Approximate size of a row in bytes."""
    return 16 + sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)


def check(batch: Batch) -> Batch:
    """Return the batch; HistoryCorrupt unless its table, columns and values are valid here."""
    known = BACKED_UP.get(batch.table)
    strange = set(batch.columns) - set(known.column_names if known else ())
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
