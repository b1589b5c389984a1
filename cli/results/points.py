"""Reported points as rows of files: CSV, JSON lines, Parquet. Streamed, not kept in memory."""

from __future__ import annotations

import csv
import io
import math
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, Protocol

from cli.exits import CommandError
from cli.output import to_json
from nsml.common.text import escaped, visible
from nsml.common.units import whole
from nsml.view.elements import reported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.v1.sessions_pb2 import MetricPoint

FIELDS = ("session", "attempt", "rank", "metric", "step", "time", "value", "json", "origin")
"""Fields of every row. `value` is a number, NaN and infinities included; else `json` is the reported value."""
_ROWS_TOGETHER = 1 << 16
"""Rows of a Parquet row group: the most in memory."""
_MOST_NAMES = 4096


class FileFormat(StrEnum):
    """File formats of points."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


class PointsFile(Protocol):
    """Accepts points in order; they are written at the latest by `close`."""

    def add(self, session: str, points: Sequence[MetricPoint]) -> None:
        """Add points of the named session."""
        ...

    def close(self) -> None:
        """Write the rest; the underlying file stays open."""
        ...


def points_file(file: IO[bytes], chosen: FileFormat) -> PointsFile:
    """Return a writer of this format to `file`. Raises CommandError if its library is missing."""
    match chosen:
        case FileFormat.CSV:
            return _Csv(file)
        case FileFormat.JSONL:
            return _JsonLines(file)
        case FileFormat.PARQUET:
            return _Parquet(file)


def check_library(chosen: FileFormat) -> None:
    """Raise CommandError if this format's library is not installed."""
    if chosen is FileFormat.PARQUET:
        _pyarrow()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise CommandError(
            "Parquet needs pyarrow, which is not installed here",
            why="it is large, and an extra of nsml for that",
            advice="pip install 'nsml[parquet]'\nnsml export ... --format csv",
        ) from error
    return pa, parquet


def _moment(point: MetricPoint) -> str:
    """Format the time in RFC 3339, UTC, to the microsecond."""
    at = datetime.fromtimestamp(point.time.seconds, tz=UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{point.time.nanos // 1000:06}Z"


class _Csv:
    """A header, then a row per point; quoted by RFC 4180, without control characters."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._add_rows([FIELDS])

    def add(self, session: str, points: Sequence[MetricPoint]) -> None:
        self._add_rows([_csv_row(session, point) for point in points])

    def _add_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.write(text.getvalue().encode("utf-8", "replace"))

    def close(self) -> None:
        pass


def _csv_row(session: str, point: MetricPoint) -> tuple[Any, ...]:
    return (
        session,
        point.attempt,
        point.rank,
        visible(point.name),
        whole(point.step) if point.HasField("step") else None,
        _moment(point),
        point.number if point.HasField("number") else None,
        "" if point.HasField("number") else visible(escaped(point.json)),
        visible(point.origin),
    )


class _JsonLines:
    """An object per line. Numbers not valid in JSON are strings: "NaN", "Infinity", "-Infinity"."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, session: str, points: Sequence[MetricPoint]) -> None:
        text = "".join([_json_line(session, point) for point in points])
        self._file.write(text.encode("utf-8", "replace"))

    def close(self) -> None:
        pass


@lru_cache(_MOST_NAMES)
def _quoted(text: str) -> str:
    return to_json(text)


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else to_json(value)


def _json_line(session: str, point: MetricPoint) -> str:
    step = _number(whole(point.step)) if point.HasField("step") else "null"
    is_number = point.HasField("number")
    value = _number(point.number) if is_number else "null"
    return (
        f'{{"session":{_quoted(session)},"attempt":{point.attempt},"rank":{point.rank},'
        f'"metric":{_quoted(point.name)},"step":{step},"time":"{_moment(point)}",'
        f'"value":{value},"json":{"null" if is_number else to_json(reported(point))},'
        f'"origin":{_quoted(point.origin) if point.origin else "null"}}}\n'
    )


class _Parquet:
    """Row groups of bounded size, compressed; times in microseconds, UTC."""

    def __init__(self, file: IO[bytes]) -> None:
        self._pa, parquet = _pyarrow()
        types = {
            "session": self._pa.string(),
            "attempt": self._pa.int32(),
            "rank": self._pa.int32(),
            "metric": self._pa.string(),
            "step": self._pa.float64(),
            "time": self._pa.timestamp("us", tz="UTC"),
            "value": self._pa.float64(),
            "json": self._pa.string(),
            "origin": self._pa.string(),
        }
        self._schema = self._pa.schema([(name, types[name]) for name in FIELDS])
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._columns: list[list[Any]] = [[] for _ in FIELDS]

    def add(self, session: str, points: Sequence[MetricPoint]) -> None:
        for point in points:
            is_number = point.HasField("number")
            row = (
                session,
                point.attempt,
                point.rank,
                point.name,
                point.step if point.HasField("step") else None,
                point.time.seconds * 1_000_000 + point.time.nanos // 1000,
                point.number if is_number else None,
                None if is_number else point.json,
                point.origin or None,
            )
            for column, cell in zip(self._columns, row, strict=True):
                column.append(cell)
            if len(self._columns[0]) >= _ROWS_TOGETHER:
                self._write_group()

    def _write_group(self) -> None:
        arrays = [
            self._pa.array(cells, type=field.type)
            for cells, field in zip(self._columns, self._schema, strict=True)
        ]
        self._writer.write_table(self._pa.Table.from_arrays(arrays, schema=self._schema))
        for column in self._columns:
            column.clear()

    def close(self) -> None:
        if self._columns[0]:
            self._write_group()
        self._writer.close()
