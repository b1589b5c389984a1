"""Reads MLflow's SQLite database, which may be anybody's work: plain tables alone, and values of any type."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

Row = dict[str, str]
_COLUMNS: Final = {
    "experiments": ("experiment_id", "name", "lifecycle_stage"),
    "runs": (
        "run_uuid",
        "experiment_id",
        "status",
        "start_time",
        "end_time",
        "lifecycle_stage",
        "name",
        "user_id",
        "artifact_uri",
    ),
    "metrics": ("key", "value", "timestamp", "step", "is_nan", "run_uuid"),
    "params": ("key", "value", "run_uuid"),
    "tags": ("key", "value", "run_uuid"),
}
_MODELS: Final = ("model_id", "experiment_id", "name", "creation_timestamp_ms", "lifecycle_stage")
"""Columns of `logged_models`, which MLflow has since version 3."""
_IS_PLAIN: Final = (
    "SELECT type FROM sqlite_master WHERE name = ? AND sql NOT LIKE 'CREATE VIRTUAL%'"
)
_OPTIONAL: Final = ("name", "user_id", "artifact_uri")
_MOST_RUNS: Final = 100_000
_MOST_ENTRIES: Final = 10_000
_MOST_BYTES: Final = 1 << 20
"""Longest value."""
_PATIENCE_S: Final = 5.0


class Database:
    """A database that is only read; a context manager. All methods raise ValueError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(self._path))}?mode=ro", uri=True, timeout=_PATIENCE_S
            )
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
            self._connection.text_factory = lambda data: data.decode("utf-8", "replace")
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._columns = {table: self._present(table) for table in _COLUMNS}
        except sqlite3.Error as error:
            raise ValueError(f"mlflow.db cannot be read: {error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def _present(self, table: str) -> list[str]:
        """Return the columns of a table that are there. Raises ValueError if it is none of MLflow's."""
        kinds = self._connection.execute(_IS_PLAIN, (table,)).fetchall()
        columns = [row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")]
        missing = [one for one in _COLUMNS[table] if one not in columns and one not in _OPTIONAL]
        if kinds != [("table",)] or missing:
            raise ValueError(
                f"mlflow.db has no table {table} as MLflow 2 and later have it"
                + (f": without {', '.join(missing)}" if columns else "")
            )
        return [one for one in _COLUMNS[table] if one in columns]

    def _rows(self, table: str, run: str = "", *, order: str = "") -> Iterator[tuple[Any, ...]]:
        words = f"SELECT {', '.join(self._columns[table])} FROM {table}"  # noqa: S608 - names of ours
        if run:
            words += " WHERE run_uuid = ?"
        if order:
            words += f" ORDER BY {order}"
        try:
            with closing(self._connection.execute(words, (run,) if run else ())) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise ValueError(f"mlflow.db cannot be read: {error}") from error

    def experiments(self) -> dict[str, str]:
        """Return the names of the active experiments by id."""
        return {str(row[0]): str(row[1]) for row in self._rows("experiments") if row[2] == "active"}

    def runs(self) -> list[Row]:
        """Return the rows of runs."""
        found: list[Row] = []
        for row in self._rows("runs"):
            if len(found) >= _MOST_RUNS:
                raise ValueError(f"mlflow.db has more than {_MOST_RUNS:,} runs")
            names = zip(self._columns["runs"], row, strict=True)
            found.append({key: "" if one is None else str(one) for key, one in names})
        return found

    def pairs(self, table: str, run: str) -> Iterator[tuple[str, str]]:
        """Yield names and values of the parameters or tags of a run."""
        for number, (key, value, _) in enumerate(self._rows(table, run)):
            if number >= _MOST_ENTRIES:
                return
            yield str(key), "" if value is None else str(value)

    def models(self, run: str) -> list[tuple[str, str, str, float]]:
        """Return id, experiment, name and time in milliseconds of the models that a run logged; none before MLflow 3."""
        try:
            kinds = self._connection.execute(_IS_PLAIN, ("logged_models",)).fetchall()
            columns = {
                row[1] for row in self._connection.execute("PRAGMA table_info(logged_models)")
            }
            if kinds != [("table",)] or not {*_MODELS, "source_run_id"} <= columns:
                return []
            words = (
                f"SELECT {', '.join(_MODELS)} FROM logged_models WHERE source_run_id = ? LIMIT ?"  # noqa: S608 - names of ours
            )
            rows = self._connection.execute(words, (run, _MOST_ENTRIES)).fetchall()
        except sqlite3.Error as error:
            raise ValueError(f"mlflow.db cannot be read: {error}") from error
        return [
            (str(key), str(experiment), str(name or ""), at if isinstance(at, (int, float)) else 0)
            for key, experiment, name, at, stage in rows
            if stage in {None, "active"}
        ]

    def metrics(self, run: str) -> Iterator[tuple[str, float, float, float]]:
        """Yield name, value, time in milliseconds and step of the points of a run."""
        for key, value, time, step, is_nan, _ in self._rows(
            "metrics", run, order="timestamp, step"
        ):
            numbers = [one for one in (value, time, step) if isinstance(one, (int, float))]
            if len(numbers) < 3:
                continue
            yield str(key), _float(value, is_nan), time, step


def _float(value: float, is_nan: Any) -> float:
    """Return the number that was logged: MLflow stores infinities as the largest numbers."""
    if is_nan:
        return math.nan
    number = float(value)
    return math.copysign(math.inf, number) if abs(number) == _LARGEST else number


_LARGEST: Final = 1.7976931348623157e308
