"""A run as files: what everybody did, one JSON object a line, in the order of the monotonic clock.

run.json            seed, faults that were asked for, the parts, when it began and ended
operations.jsonl    what clients asked and were answered
faults.jsonl        what was done to the platform, with the proof that it took hold
programs.jsonl      what the submitted programs did, from their own ledgers
store.jsonl         every change of the store (python -m controlplane.eventlog)
outcome.jsonl       each session as the platform tells it at the end
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Record = dict[str, Any]

RUN, OPERATIONS, FAULTS = "run.json", "operations.jsonl", "faults.jsonl"
PROGRAMS, STORE, OUTCOME = "programs.jsonl", "store.jsonl", "outcome.jsonl"


class Recorder:
    """Appends to one of the files; threads may share it."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """A number that no other operation of this run has."""
        return next(self._numbers)

    def note(self, **record: Any) -> None:
        """Write one line, with the time in nanoseconds of the monotonic clock as `at`."""
        record["at"] = time.monotonic_ns()
        line = json.dumps(record, separators=(",", ":"))
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        """Write what is left."""
        with self._lock:
            self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A whole run, read again."""

    run: Record = field(default_factory=dict)
    operations: tuple[Record, ...] = ()
    faults: tuple[Record, ...] = ()
    programs: tuple[Record, ...] = ()
    store: tuple[Record, ...] = ()
    outcome: tuple[Record, ...] = ()


def write_lines(path: Path, records: Iterable[Record]) -> None:
    """One of the files at once."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def read_recorded(folder: Path) -> Recorded:
    """The run in a folder.

    Raises:
        OSError, ValueError: it is not there as a whole, or damaged.
    """
    return Recorded(
        run=json.loads((folder / RUN).read_text(encoding="utf-8")),
        operations=_lines(folder / OPERATIONS),
        faults=_lines(folder / FAULTS),
        programs=_lines(folder / PROGRAMS),
        store=_lines(folder / STORE),
        outcome=_lines(folder / OUTCOME),
    )


def _lines(path: Path) -> tuple[Record, ...]:
    with path.open(encoding="utf-8") as file:
        return tuple(json.loads(line) for line in file)
