"""PostgreSQL's dialect; see sql.interface.Dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from controlplane.history.sql.interface import Connection


class PostgresDialect:
    """See Dialect. Texts are compared by code point: every column has the collation "C"."""

    now = "SELECT extract(epoch FROM clock_timestamp())"
    for_update = " FOR UPDATE"
    size = "SELECT pg_database_size(current_database())"

    def many(self, values: Collection[Any]) -> Any:
        """See Dialect."""
        return list(values)

    def among(self, column: str, name: str) -> str:
        """See Dialect."""
        return f"{column} = ANY(:{name})"

    def each(self, name: str) -> str:
        """See Dialect."""
        return f"unnest(CAST(:{name} AS text[])) AS each (value)"

    def rows_named(
        self, connection: Connection, statement: str, session_id: str, names: Collection[str]
    ) -> Iterator[tuple[Any, ...]]:
        """See Dialect."""
        kept = [self.any_text(name) for name in sorted(names)]
        yield from connection.execute(
            f"{statement} AND name = ANY(:names)", {"session_id": session_id, "names": kept}
        )

    def glob(self, glob: str) -> Any:
        """See Dialect."""
        return pattern_of(glob)

    def fits(self, column: str, name: str) -> str:
        """See Dialect."""
        return f"{column} ~ :{name}"

    def holds(self, column: str, name: str) -> str:
        """See Dialect."""
        return f"strpos({column}, :{name}) > 0"

    def number_in(self, column: str, key: str) -> str:
        """See Dialect."""
        return f"CAST(CAST({column} AS json) ->> '{key}' AS integer)"

    def any_text(self, text: str) -> Any:
        """See Dialect. As bytes: PostgreSQL's texts cannot have the character NUL."""
        return text.encode()

    def text_of(self, kept: Any) -> str:
        """See Dialect."""
        return bytes(kept).decode()

    def next_chunks(
        self, connection: Connection, streams: Collection[int], after: int, limit: int
    ) -> list[int]:
        """See Dialect. For each stream along its index, in one query."""
        rows = connection.execute(
            "SELECT next.id FROM unnest(CAST(:streams AS bigint[])) AS stream (id), LATERAL ("
            " SELECT chunks.id FROM chunks WHERE chunks.stream_id = stream.id"
            " AND chunks.id > :after ORDER BY chunks.id LIMIT :limit"
            ") AS next ORDER BY next.id LIMIT :limit",
            {"streams": list(streams), "after": after, "limit": limit},
        )
        return [row[0] for row in rows]


def pattern_of(glob: str) -> str:
    """Convert a glob of domain.names.fits_glob to a PostgreSQL advanced regular expression."""
    return f"^{''.join(_pieces(glob))}$"


def _pieces(glob: str) -> Iterator[str]:
    at = 0
    while at < len(glob):
        sign = glob[at]
        at += 1
        end = _end_of_set(glob, at) if sign == "[" else -1
        if sign == "*":
            yield ".*"
        elif sign == "?":
            yield "."
        elif end >= 0:
            yield _set(glob[at:end])
            at = end + 1
        else:
            yield _one(sign)


def _end_of_set(glob: str, at: int) -> int:
    """The position of the `]` of the set that begins at `at`; -1 if it is not closed."""
    if glob.startswith("!", at):
        at += 1
    # A leading bracket is a member of the set.
    return glob.find("]", at + 1)


def _set(inside: str) -> str:
    is_outside = inside.startswith("!")
    members = "".join(_members(_runs(inside.removeprefix("!"))))
    if not members:
        return "." if is_outside else "(?!)"
    return f"[{'^' if is_outside else ''}{members}]"


def _runs(text: str) -> list[str]:
    """Split the text at each `-` of a range, without empty ranges."""
    runs: list[str] = []
    begin, at = 0, 1
    while (at := text.find("-", at)) >= 0:
        runs.append(text[begin:at])
        begin, at = at + 1, at + 3
    if text[begin:]:
        runs.append(text[begin:])
    else:
        runs[-1] += "-"
    for number in range(len(runs) - 1, 0, -1):
        before, after = runs[number - 1 : number + 1]
        if before[-1] > after[0]:
            runs[number - 1 : number + 1] = [before[:-1] + after[1:]]
    return runs


def _members(runs: list[str]) -> Iterator[str]:
    for number, run in enumerate(runs):
        yield "-" if number else ""
        yield from map(_one, run)


def _one(sign: str) -> str:
    """A literal character, in a set or outside; NUL becomes one that is in no text either."""
    if sign.isascii() and sign.isalnum():
        return sign
    return f"\\U{ord(sign) or 0xFFFD:08X}"
