"""SQLite's dialect; see sql.interface.Dialect."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from controlplane.history.sql.interface import Connection


_NAMES_AT_ONCE: Final = 500


def null_query(table: str, column: str) -> str:
    """Return the query for a NULL in a column, also one that is declared NOT NULL: there `IS NULL` is not evaluated."""
    return f'SELECT 1 FROM "{table}" WHERE typeof("{column}") = \'null\' LIMIT 1'


class SqliteDialect:
    """See Dialect. `fits_glob` is our own function, registered on each connection."""

    now = ""
    for_update = ""  # one connection writes
    size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"

    def many(self, values: Collection[Any]) -> Any:
        """See Dialect. json_each cuts texts at a NUL, which would give another text."""
        return json.dumps([one for one in values if not (isinstance(one, str) and "\0" in one)])

    def among(self, column: str, name: str) -> str:
        """See Dialect."""
        return f"{column} IN (SELECT value FROM json_each(:{name}))"

    def each(self, name: str) -> str:
        """See Dialect."""
        return f"json_each(:{name})"

    def rows_named(
        self, connection: Connection, statement: str, session_id: str, names: Collection[str]
    ) -> Iterator[tuple[Any, ...]]:
        """See Dialect."""
        every = sorted(names)
        for at in range(0, len(every), _NAMES_AT_ONCE):
            some = {f"name_{n}": name for n, name in enumerate(every[at : at + _NAMES_AT_ONCE])}
            places = ", ".join(f":{key}" for key in some)
            yield from connection.execute(
                f"{statement} AND name IN ({places})", {"session_id": session_id, **some}
            )

    def glob(self, glob: str) -> Any:
        """See Dialect."""
        return glob

    def fits(self, column: str, name: str) -> str:
        """See Dialect."""
        return f"fits_glob({column}, :{name})"

    def holds(self, column: str, name: str) -> str:
        """See Dialect."""
        return f"instr({column}, :{name})"

    def number_in(self, column: str, key: str) -> str:
        """See Dialect."""
        return f"json_extract({column}, '$.{key}')"

    def any_text(self, text: str) -> Any:
        """See Dialect."""
        return text

    def text_of(self, kept: Any) -> str:
        """See Dialect."""
        return str(kept)

    def next_chunks(
        self, connection: Connection, streams: Collection[int], after: int, limit: int
    ) -> list[int]:
        """See Dialect. Stream by stream: one query over all would sort all remaining rows."""
        ids: list[int] = []
        for stream_id in streams:
            ids += [
                row[0]
                for row in connection.execute(
                    "SELECT id FROM chunks INDEXED BY idx_chunks_in_commit_order"
                    " WHERE stream_id = ? AND id > ? ORDER BY id LIMIT ?",
                    (stream_id, after, limit),
                )
            ]
        return sorted(ids)[:limit]
