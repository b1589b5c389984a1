"""Readers of the traces: what is not as it should be is said, never guessed or left out."""

from __future__ import annotations

import csv
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, str]
T = TypeVar("T")

TRACES: Final = Path("../shared/traces")
NO_TRACES: Final = "is not there: name the directory of the traces with --traces DIR"
MEBIBYTE: Final = 1 << 20
WHOLE: Final = 1000
"""Thousandths of one GPU."""


class BadTrace(Exception):
    """A trace is absent or is not what it should be; the text says where and why."""


class Machine(NamedTuple):
    """One node of a cluster while nothing runs on it."""

    name: str
    cpu_thousandths: int
    memory_bytes: int
    gpus: int
    model: str


class Pod(NamedTuple):
    """What one pod asks for: all of it, on one node."""

    cpu_thousandths: int
    memory_bytes: int
    gpus: int
    gpu_thousandths: int
    """Of each of its GPUs; fewer than a thousand for a share of one."""
    models: frozenset[str]
    """GPU models of which it takes any; empty: every one."""

    @property
    def total_thousandths(self) -> int:
        """Of all its GPUs."""
        return self.gpus * self.gpu_thousandths


def read_machines(path: Path) -> list[Machine]:
    """The nodes, ordered by name.

    Raises:
        BadTrace: the file is absent, or a row is not what a node is
    """
    machines = sorted(
        read_rows(path, {"sn", "cpu_milli", "memory_mib", "gpu", "model"}, _machine_of)
    )
    if not sum(one.gpus for one in machines):
        raise BadTrace(f"{path} holds no node with a GPU")
    if len({one.name for one in machines}) < len(machines):
        raise BadTrace(f"{path} names a node twice")
    return machines


def read_pods(path: Path) -> list[Pod]:
    """The pods, ordered by name; a column `gpu_spec` may be missing.

    Raises:
        BadTrace: the file is absent, or a row is not what a pod is
    """
    columns = {"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}
    named = read_rows(path, columns, lambda row: (row["name"], _pod_of(row)))
    pods = [pod for _, pod in sorted(named, key=itemgetter(0))]
    if not any(pod.gpus for pod in pods):
        raise BadTrace(f"{path} holds no pod that asks for a GPU")
    return pods


class Unfit(Exception):
    """What is wrong with a row."""


def read_rows(path: Path, columns: set[str], of_row: Callable[[Row], T]) -> list[T]:
    """Read a CSV file with a header that has these columns, row by row.

    Raises:
        BadTrace: the file is absent, lacks a column, or `of_row` raised Unfit
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = columns.difference(reader.fieldnames or ())
            if missing:
                raise BadTrace(f"{path} lacks columns: {', '.join(sorted(missing))}")
            found = []
            for row in reader:
                try:
                    found.append(of_row(_whole_row(row)))
                except Unfit as unfit:
                    raise BadTrace(f"{path}, line {reader.line_num}: {unfit}") from None
            return found
    except FileNotFoundError:
        raise BadTrace(f"{path} {NO_TRACES}") from None
    except (OSError, UnicodeDecodeError) as unreadable:
        raise BadTrace(f"{path} cannot be read: {unreadable}") from None


def count_of(row: Row, column: str) -> int:
    """The number in this column.

    Raises:
        Unfit: it is none, or it is negative
    """
    try:
        number = int(row[column])
    except ValueError:
        number = -1
    if number < 0:
        raise Unfit(f"{column} is {row[column]!r}")
    return number


def _whole_row(row: Row) -> Row:
    if None in row or None in row.values():
        raise Unfit("not as many values as columns")
    return row


def _machine_of(row: Row) -> Machine:
    return Machine(
        row["sn"],
        count_of(row, "cpu_milli"),
        count_of(row, "memory_mib") * MEBIBYTE,
        count_of(row, "gpu"),
        row["model"],
    )


def _pod_of(row: Row) -> Pod:
    gpus, thousandths = count_of(row, "num_gpu"), count_of(row, "gpu_milli")
    is_share = gpus == 1 and 0 < thousandths <= WHOLE
    if gpus and not (is_share or thousandths == WHOLE):
        raise Unfit(f"num_gpu {gpus} with gpu_milli {thousandths}")
    return Pod(
        count_of(row, "cpu_milli"),
        count_of(row, "memory_mib") * MEBIBYTE,
        gpus,
        thousandths if gpus else 0,
        frozenset(filter(None, row.get("gpu_spec", "").split("|"))) if gpus else frozenset(),
    )
