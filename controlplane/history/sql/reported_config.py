"""The configuration that programs reported: a row for each key of an origin and run.

A row without an origin marks a session of which something did not fit.
"""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from controlplane.history.sql.queries import select
from controlplane.history.values import ConfigValue, ReportedConfig
from nsml.spec.reported_config import MOST_BYTES, MOST_LEAVES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from controlplane.history.sql.interface import Connection, Database

_KEY: Final = ("origin", "run", "name")
_COLUMNS: Final = (*_KEY, "value", "leaves", "is_cut", "attempt", "time", "position")
_PUT: Final = (
    f"INSERT INTO reported_config (session_id, size_bytes, {', '.join(_COLUMNS)})"
    f" VALUES (:session_id, :size_bytes, {', '.join(f':{name}' for name in _COLUMNS)})"
    f" ON CONFLICT (session_id, {', '.join(_KEY)}) DO UPDATE SET"
    " value = excluded.value, leaves = excluded.leaves, size_bytes = excluded.size_bytes,"
    " is_cut = excluded.is_cut, attempt = excluded.attempt, time = excluded.time,"
    " position = excluded.position"
)


class _Known(NamedTuple):
    """A stored row: its extent, and its place in the order."""

    leaves: int
    size_bytes: int
    order: tuple[int, float, int]


class SqlReportedConfig:
    """Rows are deleted with their session. Telling again what is known changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tell(self, values: Sequence[ConfigValue], *, cut: Collection[str] = ()) -> None:
        """Store reported values; of a key the latest by attempt, time and position counts.

        What is beyond MOST_LEAVES and MOST_BYTES of a session is left out. `cut`: sessions of which something was left
        out before.
        """

        def work(connection: Connection) -> None:
            for session_id, some in groupby(
                sorted(values, key=attrgetter("session_id")), attrgetter("session_id")
            ):
                if not _store(connection, session_id, some):
                    _mark(connection, session_id)
            for session_id in cut:
                _mark(connection, session_id)

        sessions = {one.session_id for one in values} | set(cut)
        await self._database.write(work, touches=sessions)

    async def of(self, session_ids: Collection[str]) -> Mapping[str, ReportedConfig]:
        """Return the configuration of each session with any, by origin, run and key."""
        dialect = self._database.dialect
        rows = await select(
            self._database,
            f"SELECT session_id, {', '.join(_COLUMNS)} FROM reported_config"
            f" WHERE {dialect.among('session_id', 'ids')}"
            f" ORDER BY session_id, {', '.join(_KEY)}",
            {"ids": dialect.many(sorted(session_ids))},
            _read,
        )
        found = {}
        for session_id, some in groupby(rows, attrgetter("session_id")):
            every = tuple(some)
            found[session_id] = ReportedConfig(
                values=tuple(one for one in every if one.origin),
                is_cut=any(one.is_cut for one in every),
            )
        return found


def delete_config(connection: Connection, session_id: str) -> None:
    """Remove the rows of a session; part of a larger transaction."""
    connection.execute("DELETE FROM reported_config WHERE session_id = ?", (session_id,))


def _store(connection: Connection, session_id: str, values: Iterable[ConfigValue]) -> bool:
    """Store the values of one session; return whether all of them fit."""
    rows = connection.execute(
        f"SELECT {', '.join(_KEY)}, leaves, size_bytes, attempt, time, position FROM reported_config"
        " WHERE session_id = ?",
        (session_id,),
    ).fetchall()
    known = {tuple(row[:3]): _Known(row[3], row[4], tuple(row[5:])) for row in rows}
    leaves = sum(one.leaves for one in known.values())
    size = sum(one.size_bytes for one in known.values())
    is_whole = True
    changed: dict[tuple[str, str, str], ConfigValue] = {}
    for one in values:
        key, order = (one.origin, one.run, one.name), (one.attempt, one.time, one.position)
        before = known.get(key)
        if before is not None and before.order >= order:
            continue
        after = _Known(one.leaves, one.size_bytes, order)
        more_leaves = leaves + after.leaves - (before.leaves if before else 0)
        more_bytes = size + after.size_bytes - (before.size_bytes if before else 0)
        if more_leaves > MOST_LEAVES or more_bytes > MOST_BYTES:
            is_whole = False
            continue
        leaves, size, known[key], changed[key] = more_leaves, more_bytes, after, one
    connection.executemany(_PUT, [_row(one) for one in changed.values()])
    return is_whole


def _mark(connection: Connection, session_id: str) -> None:
    mark = ConfigValue(
        session_id=session_id, origin="", run="", name="", value="", leaves=0, is_cut=True
    )
    connection.execute(_PUT, _row(mark))


def _row(one: ConfigValue) -> dict[str, Any]:
    columns = {name: getattr(one, name) for name in _COLUMNS}
    return {
        **columns,
        "session_id": one.session_id,
        "size_bytes": one.size_bytes,
        "is_cut": int(one.is_cut),
    }


def _read(row: Sequence[Any]) -> ConfigValue:
    session_id, *columns = row
    found = dict(zip(_COLUMNS, columns, strict=True))
    return ConfigValue(session_id=session_id, **{**found, "is_cut": bool(found["is_cut"])})
