"""A run of another tool, and what was recorded of it: on disk, since a run may be larger than memory."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import IO, TYPE_CHECKING, Any, Final, Self, cast

from nsml._echo._config import plain_config
from nsml._echo._sink import is_shown
from nsml._media import MOST_BYTES, Media
from nsml._path_text import name_text
from nsml._report import MOST_NAME_CHARS, encoded, metric_record
from nsml._strict import Strictness, reason
from nsml._values import LARGEST_INTEGER
from nsml.content.media import MOST_OF_SESSION
from nsml.imports.artifact_files import Artifacts
from nsml.spec.reported_config import MOST_BYTES as MOST_CONFIG_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from nsml._spool import Spool

MOST_LEFT_OUT: Final = 1_000
"""Most lines on what is missing."""
FILES_OF_TREE: Final = 5_000
_LATEST_TIME: Final = float(1 << 33)
_TOGETHER_S: Final = 1.0
"""Values of one step reported within this time are one record."""
_MOST_TOGETHER: Final = 500
_MOST_NAMES: Final = 100_000
_LOG_PIECE_BYTES: Final = 1 << 20


class Outcome(Enum):
    """How a run ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"


@dataclass(slots=True)
class PastRun:
    """A run that was found. Times and outcome may be known only after `read`.

    Attributes:
        origin: the tool, as in records: `tensorboard`.
        id: identifies the run in that tool, also where the folder has moved.
        name: for people.
        place: where it is in the folder.
        project: what it belongs to there; "" if unknown.
        read: reads all of it. Raises OSError, ValueError if it is not readable.
        order: roughly when it began in Unix seconds: sessions get their numbers in this order.
        began_at: Unix seconds; 0: as its records say, as `ended_at`.
        command: the command line; empty if unknown.
    """

    origin: str
    id: str
    name: str
    place: str
    project: str
    read: Callable[[Recording], None]
    order: float = 0.0
    began_at: float = 0.0
    ended_at: float = 0.0
    outcome: Outcome = Outcome.SUCCEEDED
    exit_code: int = 0
    owner: str = ""
    notes: str = ""
    host: str = ""
    python_version: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()


class Recording:
    """What a run reported, in files of a folder; a context manager.

    Attributes:
        points: the number of values.
        artifacts: files that become artifacts.
        left_out: what is missing, a line each.
        is_damaged: something could not be read.
        first_at, last_at: times of the first and last report in Unix seconds; 0 without any.
    """

    def __init__(
        self, origin: str, scratch: Path, began_at: float = 0.0, *, with_artifacts: bool = True
    ) -> None:
        self.origin = origin
        self.scratch = scratch
        self.points = 0
        self.media_files = 0
        self.left_out: list[str] = []
        self.artifacts = Artifacts(self.leave_out, is_on=with_artifacts)
        self.is_damaged = False
        self.first_at, self.last_at = 0.0, began_at
        self._names: dict[str, str] = {}
        self._shown: set[str] = set()
        """Metrics that `nsml ps` shows."""
        self.configs: dict[str, dict[str, Any]] = {}
        self.media_rows: IO[bytes] = (scratch / "media.jsonl").open("w+b")
        self.log_bytes: IO[bytes] = (scratch / "log").open("w+b")
        self.log_index: IO[bytes] = (scratch / "log.jsonl").open("w+b")
        self._records: IO[bytes] = (scratch / "records").open("w+b")
        self._summary: tuple[int, int, _Group] | None = None
        self._group = _Group(None, 0.0)
        self._results: dict[str, float] = {}
        self._media = _Shown(self)
        self._media_at = 0.0
        self._said: set[str] = set()
        self._unsaid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self.media_rows, self.log_bytes, self.log_index, self._records):
            file.close()

    @property
    def names(self) -> set[str]:
        """Names of the metrics, the first _MOST_NAMES."""
        return {*self._names.values()}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reported, not even a configuration or output."""
        has_config = any(self.configs.values())
        has_files = self.media_files or self.artifacts.found or self.log_bytes.tell()
        return not (self.points or has_config or has_files)

    def leave_out(self, text: str, *, is_damage: bool = False) -> None:
        """Record that something is missing, once."""
        self.is_damaged |= is_damage
        if text in self._said:
            return
        if len(self.left_out) < MOST_LEFT_OUT:
            self._said.add(text)
            self.left_out.append(text)
        else:
            self._unsaid += 1
            self.left_out[MOST_LEFT_OUT:] = [f"{self._unsaid:,} more"]

    def metrics(
        self, values: Mapping[str, Any], step: float | None = None, time: float | None = None
    ) -> None:
        """Record numbers by name; others are left out.

        Args:
            values: numbers, also NaN and infinities.
            step: the x axis.
            time: Unix seconds; impossible ones become that of the report before.
        """
        at = self._time(time)
        if step is not None and not is_step(step):
            step = None
        for given, value in values.items():
            name = self._names.get(given) or self._name(given)
            if name and _is_number(value):
                self._add(name, value, step, at)
            elif name:
                self.leave_out(f"{name}: a value that is no number")

    def _name(self, given: str) -> str:
        """Return the recorded name of a metric; "" if it is too long."""
        name = name_text(given)
        if not 0 < len(name) <= MOST_NAME_CHARS:
            self.leave_out(f"metrics with names of more than {MOST_NAME_CHARS} characters, or none")
            return ""
        if len(self._names) < _MOST_NAMES:
            self._names[given] = name
            if is_shown(name):
                self._shown.add(name)
        return name

    def summarize(self, values: Mapping[str, float]) -> None:
        """Record results that have no curve: `nsml ps` shows them beside the last values of metrics."""
        for given, value in values.items():
            name = name_text(given)
            if 0 < len(name) <= MOST_NAME_CHARS and _is_number(value):
                if name not in self._results and len(self._results) < _MOST_TOGETHER:
                    self.points += 1
                    self._results[name] = value
                elif name not in self._results:
                    self.leave_out(f"results beyond {_MOST_TOGETHER}")

    def _add(self, name: str, value: float, step: float | None, at: float) -> None:
        group = self._group
        if not group.takes(name, step, at):
            self._write_group()
            group = self._group = _Group(step, at)
        group.values[name] = value
        self.points += 1

    def _write_group(self) -> None:
        group = self._group
        if not group.values:
            return
        record = self._encode(group, group.values, is_summary=False)
        if not self._shown.isdisjoint(group.values):
            self._summary = self._records.tell(), len(record), group
        self._records.write(record)

    def _encode(self, group: _Group, values: dict[str, float], *, is_summary: bool) -> bytes:
        text = encoded(values)
        return metric_record(group.at, group.step, text, is_summary, self.origin) + b"\n"

    def records(self) -> tuple[int, Iterable[bytes]]:
        """Return the size of all records as lines, and the lines in pieces. `nsml ps` shows what was reported last."""
        self._write_group()
        self._group = _Group(None, 0.0)
        end = self._records.seek(0, 2)
        at, length, group = self._summary or (end, 0, _Group(None, self.last_at))
        values = {**group.values, **self._results}
        lines = b"".join(
            self._encode(group, some, is_summary=is_summary)
            for is_summary in (False, True)
            if (some := {k: v for k, v in values.items() if self._is_result(k) is is_summary})
        )

        def pieces() -> Iterable[bytes]:
            yield from self._pieces(0, at)
            yield lines
            yield from self._pieces(at + length, end)

        return end - length + len(lines), pieces()

    def _is_result(self, name: str) -> bool:
        return name in self._results or name in self._shown

    def _pieces(self, start: int, end: int) -> Iterable[bytes]:
        self._records.seek(start)
        while start < end:
            data = self._records.read(min(end - start, 1 << 20))
            start += len(data)
            yield data

    def config(self, values: Mapping[str, Any], run: str = "") -> None:
        """Record arguments: later values replace earlier ones, key by key."""
        known = self.configs.setdefault(name_text(run)[:100], {})
        for key, value in plain_config(values).items():
            known[key] = value
        while known and len(encoded(known)) > MOST_CONFIG_BYTES:
            largest = max(known, key=lambda key: len(encoded({"": known[key]})))
            del known[largest]
            self.leave_out(f"configuration {name_text(largest)[:80]}: it is too large")

    def show(
        self, call: str, name: str, value: Any, step: float | None, time: float | None, **more: Any
    ) -> None:
        """Record media as `nsml.image` and the others do: `call` is the name of one.

        Files are given as bytes, and never as paths.
        """
        if why := self.try_to_show(call, name, value, step, time, **more):
            self.leave_out(why)

    def try_to_show(
        self, call: str, name: str, value: Any, step: float | None, time: float | None, **more: Any
    ) -> str:
        """Record media as `show` does; return why not, "" if they are recorded."""
        self._media_at = self._time(time)
        step = step if step is not None and is_step(step) else None
        try:
            getattr(self._media, call)(name[:MOST_NAME_CHARS], value, step, **more)
        except TypeError as error:
            return reason(error).removeprefix(f"nsml.{call}: ")
        return ""

    def add_media(self, record: dict[str, Any], data: bytes, digest: str) -> None:
        """Keep a file and its record."""
        name = str(record["name"])
        if len(data) > MOST_BYTES:
            self.leave_out(f"media {name[:80]}: more than {MOST_BYTES:,} bytes")
            return
        if self.media_files >= MOST_OF_SESSION:
            self.leave_out(f"media beyond {MOST_OF_SESSION:,} files")
            return
        tree = self.media_files // FILES_OF_TREE
        self.media_files += 1
        file = f"{digest}-{self.media_files}"
        folder = self.scratch / f"media-{tree}"
        folder.mkdir(exist_ok=True)
        (folder / file).write_bytes(data)
        row = {**record, "time": self._media_at, "file": file, "tree": tree}
        self.media_rows.write(json.dumps(row).encode() + b"\n")

    def log(self, data: bytes, time: float | None = None) -> None:
        """Append to the output."""
        at = self._time(time)
        for start in range(0, len(data), _LOG_PIECE_BYTES):
            piece = data[start : start + _LOG_PIECE_BYTES]
            first = self.log_bytes.tell()
            self.log_bytes.write(piece)
            line = {"first": first, "last": first + len(piece) - 1, "received_at": at}
            self.log_index.write(json.dumps(line).encode() + b"\n")

    def _time(self, time: float | None) -> float:
        """Return a possible time; without one, that of the last report."""
        if time is None or not 0 < time < _LATEST_TIME:  # NaN, too
            return self.last_at
        self.first_at = min(self.first_at or time, time)
        self.last_at = max(self.last_at, time)
        return time


class _Group:
    """Values reported together."""

    def __init__(self, step: float | None, at: float) -> None:
        self.step = step
        self.at = at
        self.values: dict[str, float] = {}

    def takes(self, name: str, step: float | None, at: float) -> bool:
        return (
            step == self.step
            and abs(at - self.at) < _TOGETHER_S
            and name not in self.values
            and 0 < len(self.values) < _MOST_TOGETHER
        )


class _Shown(Media):
    """Checks and describes media as the SDK does, and keeps them in a recording."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(cast("Spool", None), "", Strictness(is_on=True))
        self._folder = "kept by the recording"
        self._recording = recording

    def _keep(self, record: dict[str, Any], data: bytes) -> None:
        from hashlib import sha256  # noqa: PLC0415 - with the first file

        self._recording.add_media(record, data, sha256(data).hexdigest())


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < LARGEST_INTEGER
    return type(value) in {float, bool}


def is_step(step: float) -> bool:
    """Return whether a number can be a step: it is finite, and as a float, too."""
    return abs(step) < LARGEST_INTEGER if type(step) is int else math.isfinite(step)
