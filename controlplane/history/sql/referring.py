"""What refers to objects, a page at a time."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.history.sql.bodies import REFERENCE_BYTES, REFERENCE_FLAG, referred_by
from controlplane.history.values import Channel, Referred

if TYPE_CHECKING:
    from controlplane.history.sql.interface import Connection

_PAGE_ROWS: Final = 1_000
_PAGE_RECORDS: Final = 200
_PAGE_LOGS: Final = 100

_RECORDS: Final = ("sessions", ("id",), "record")
_ROOTS: Final = (
    ("dataset_versions", ("owner", "name", "number"), "digest"),
    ("checkpoints", ("session_id", "name"), "digest"),
    ("media", ("session_id", "attempt", "rank", "file"), "root"),
)
_TABLES: Final = (_RECORDS, *_ROOTS)


def referred(after: tuple[int | str, ...], connection: Connection) -> Referred:
    """See Catalogue. A place is the number of a table, and the key of the row before it."""
    number, key = (int(after[0]), after[1:]) if after else (0, ())
    if number == len(_TABLES):
        return _blocks(key, connection)
    table, keys, column = _TABLES[number]
    order, places = ", ".join(keys), ", ".join("?" * len(keys))
    limit = _PAGE_RECORDS if table == "sessions" else _PAGE_ROWS
    rows = connection.execute(
        f"SELECT {column}, {order} FROM {table}"
        f" {f'WHERE ({order}) > ({places})' if key else ''} ORDER BY {order} LIMIT {limit}",
        key,
    ).fetchall()
    going_on = (number, *rows[-1][1:]) if len(rows) == limit else (number + 1,)
    found = [row[0] for row in rows if row[0]]
    if table == "sessions":
        return Referred(records=found, next=going_on)
    return Referred(roots=list(dict.fromkeys(found)), next=going_on)


def _blocks(key: tuple[int | str, ...], connection: Connection) -> Referred:
    """Of which there is one in a MiB: all other rows of a log are passed by without their bytes."""
    begin, behind = (int(key[0]), int(key[1])) if key else (0, -1)
    streams = connection.execute(
        f"SELECT id FROM streams WHERE channel = {int(Channel.LOG)} AND id >= ? ORDER BY id"
        f" LIMIT {_PAGE_LOGS}",
        (begin,),
    ).fetchall()
    found: list[str] = []
    for (stream,) in streams:
        rows = connection.execute(
            "SELECT last, body FROM chunks WHERE stream_id = ? AND last > ?"
            f" AND length(body) = {REFERENCE_BYTES} AND substr(body, 1, 1) = ?"
            f" ORDER BY last LIMIT {_PAGE_ROWS}",
            (stream, behind if stream == begin else -1, REFERENCE_FLAG),
        ).fetchall()
        found += [referred_by(body) for _, body in rows]
        if len(rows) == _PAGE_ROWS:
            return Referred(blobs=found, next=(len(_TABLES), stream, rows[-1][0]))
    is_more = len(streams) == _PAGE_LOGS
    return Referred(blobs=found, next=(len(_TABLES), streams[-1][0] + 1, -1) if is_more else None)
