"""Runs of W&B: folders `run-DATE-ID` and `offline-run-DATE-ID` of `wandb/`. Those of one resumed run are one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nsml._echo._wandb_axes import Axes
from nsml._path_text import name_text
from nsml.imports.folders import parts_of, shown
from nsml.imports.media_files import show_file
from nsml.imports.runs import Outcome, PastRun, is_step
from nsml.imports.wandb_files import Files
from nsml.imports.wandb_log import (
    ARTIFACT,
    CONFIG,
    ENVIRONMENT,
    EXIT,
    HISTORY,
    METRIC,
    OUTPUT,
    OUTPUT_RAW,
    RUN,
    SUMMARY,
    Log,
    messages_in,
    number_in,
    parsed,
    remove_items,
    set_items,
    text_in,
    time_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml.content.safe_paths import Parts
    from nsml.imports.folders import Folder
    from nsml.imports.runs import Recording

ORIGIN: Final = "wandb"
_FOLDER: Final = re.compile(r"(?:offline-)?run-(?P<date>[0-9]{8}_[0-9]{6})-(?P<id>.+)")
_OWN_NAMES: Final = frozenset({"_timestamp", "_runtime", "_step", "_wandb"})
_METADATA: Final = "wandb-metadata.json"
_OUTPUT: Final = "output.log"
_SEARCHED: Final = 200
"""So many records at the beginning of a log are searched for that of the run."""
_MOST_METADATA_BYTES: Final = 1 << 20
_MOST_OUTPUT_BYTES: Final = 64 << 20
_MOST_NAMES: Final = 10_000
_MOST_DEPTH: Final = 15
_MOST_BINS: Final = 4_096
_SEVERAL: Final = {
    "images/separated": ("filenames", "image-file"),
    "audio": ("audio", "audio-file"),
    "videos": ("videos", "video-file"),
}
"""Where a group has its entries, and of which type they are, by its type."""
_FILES: Final = {
    "image-file": "image",
    "audio-file": "audio",
    "video-file": "video",
    "html-file": "text",
}


@dataclass(slots=True)
class _Part:
    """One folder of a run: all of it, or since it was resumed."""

    place: Parts
    file: str
    date: str
    run: dict[int, list[Any]]
    metadata: dict[str, Any] = field(default_factory=dict)


def find(folder: Folder) -> list[PastRun]:
    """Return the runs in a folder: wandb, the one above it, one with many of them, or the folder of a run."""
    parts: dict[str, list[_Part]] = {}
    for place, files in folder.walk():
        for file in sorted(one for one in files if one.endswith(".wandb")):
            part = _begin(folder, place, file)
            run_id = text_in(part.run, 1) or _named(place, folder, "id") or file[:-6]
            parts.setdefault(f"{text_in(part.run, 3)}/{run_id}", []).append(part)
    return [_run_of(folder, key, sorted(some, key=_date)) for key, some in parts.items()]


def _date(part: _Part) -> str:
    return part.date


def _named(place: Parts, folder: Folder, group: str) -> str:
    match = _FOLDER.fullmatch(place[-1] if place else folder.path.name)
    return name_text(match[group]) if match else ""


def _begin(folder: Folder, place: Parts, file: str) -> _Part:
    part = _Part(place, file, _named(place, folder, "date"), {})
    try:
        with folder.opened((*place, file)) as opened:
            for _, (kind, data) in zip(range(_SEARCHED), Log(opened).records(), strict=False):
                if kind == RUN:
                    part.run = parsed(data)
                elif kind == ENVIRONMENT:
                    _add_environment(part.metadata, parsed(data))
    except (OSError, ValueError):
        pass  # reading it says why
    try:
        found = json.loads(folder.read((*place, "files", _METADATA), _MOST_METADATA_BYTES))
    except (OSError, ValueError, RecursionError):
        found = {}
    if isinstance(found, dict):
        part.metadata = {**part.metadata, **found}
    return part


def _add_environment(metadata: dict[str, Any], record: dict[int, list[Any]]) -> None:
    for number, name in ((2, "python"), (6, "program"), (12, "host"), (13, "username")):
        if text := text_in(record, number):
            metadata[name] = text
    if 5 in record:
        metadata["args"] = [one.decode("utf-8", "replace") for one in messages_in(record, 5)]


def _run_of(folder: Folder, key: str, parts: list[_Part]) -> PastRun:
    first, last = parts[0].run, parts[-1].run
    metadata = parts[-1].metadata
    run_id = key.partition("/")[2]
    tags = [one.decode("utf-8", "replace") for one in messages_in(last, 10)]
    git = parsed(messages_in(last, 21)[-1]) if messages_in(last, 21) else {}
    labels = {
        "project": text_in(last, 3),
        "group": text_in(last, 6),
        "job-type": text_in(last, 7),
        "sweep": text_in(last, 12),
        "tags": ", ".join(tags),
        "commit": text_in(git, 2),
    }
    program = metadata.get("program")
    arguments = metadata.get("args")
    words = (
        [one for one in arguments if isinstance(one, str)] if isinstance(arguments, list) else []
    )
    python = str(metadata.get("python") or "")
    run = PastRun(
        origin=ORIGIN,
        id=f"{ORIGIN}-{key}",
        name=name_text(text_in(last, 8) or run_id),
        place=shown(parts[0].place),
        project=text_in(last, 3),
        read=_read_nothing,
        began_at=_possible(time_in(first, 17)),
        outcome=Outcome.STOPPED,
        owner=text_in(last, 2) or str(metadata.get("username") or ""),
        notes=text_in(last, 9),
        host=text_in(last, 13) or str(metadata.get("host") or ""),
        python_version=python.rpartition(" ")[2],
        labels=labels,
        command=("python", program, *words) if isinstance(program, str) and program else (),
    )
    run.read = partial(_read, folder, parts, run)
    return run


def _read_nothing(_: Recording) -> None:
    """Replaced by a function that knows where the run is."""


def _possible(at: float) -> float:
    return at if 0 < at < 1 << 33 else 0.0


def _read(folder: Folder, parts: list[_Part], run: PastRun, into: Recording) -> None:
    reading = _Reading(folder, into)
    run.outcome, run.exit_code, run.ended_at = Outcome.STOPPED, 0, 0.0
    for part in parts:
        reading.read(part)
    run.outcome, run.exit_code = reading.outcome, reading.exit_code
    run.ended_at = max(reading.ended_at, into.last_at)
    reading.finish()


class _Reading:
    """Reads the folders of one run, in order."""

    def __init__(self, folder: Folder, into: Recording) -> None:
        self._folder = folder
        self._into = into
        self._axes = Axes()
        self._latest: dict[str, float] = {}
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._files: Parts = ()
        self._kept = Files(folder, into)
        self._began = 0.0
        self._has_output = False
        self.outcome = Outcome.STOPPED
        self.exit_code = 0
        self.ended_at = 0.0

    def read(self, part: _Part) -> None:
        """Read one folder. Raises OSError, ValueError if nothing of it can be read."""
        self._files = (*part.place, "files")
        self._has_output = False
        self._kept.enter(part.place)
        self.outcome, self.exit_code = Outcome.STOPPED, 0
        path = shown((*part.place, part.file))
        with self._folder.opened((*part.place, part.file)) as file:
            log = Log(file)
            for kind, data in log.records():
                self._take(kind, parsed(data))
        if log.damaged:
            self._into.leave_out(f"{path}: {log.damaged:,} damaged parts", is_damage=True)
        if not self._has_output and _OUTPUT in self._folder.listing(self._files)[1]:
            try:
                self._into.log(self._folder.read((*self._files, _OUTPUT), _MOST_OUTPUT_BYTES))
            except (OSError, ValueError) as error:
                self._into.leave_out(f"{_OUTPUT}: {error}")
        self._kept.look(self._files)

    def _take(self, kind: int, record: dict[int, list[Any]]) -> None:
        take = {
            HISTORY: self._take_history,
            RUN: self._take_run,
            CONFIG: self._configure,
            SUMMARY: self._take_summary,
            METRIC: self._take_metric,
            OUTPUT: self._take_output,
            OUTPUT_RAW: self._take_output,
            EXIT: self._end,
            ARTIFACT: self._kept.log_artifact,
        }.get(kind)
        if take is not None:
            take(record)

    def _take_run(self, record: dict[int, list[Any]]) -> None:
        self._began = _possible(time_in(record, 17)) or self._began
        for config in messages_in(record, 4):
            self._configure(parsed(config))
        for summary in messages_in(record, 5):
            self._take_summary(parsed(summary))

    def _take_summary(self, record: dict[int, list[Any]]) -> None:
        set_items(self._summary, messages_in(record, 1))
        remove_items(self._summary, messages_in(record, 2))

    def _take_metric(self, record: dict[int, list[Any]]) -> None:
        name = text_in(record, 1) or text_in(record, 2)
        if name and text_in(record, 4):
            self._axes.define(name, text_in(record, 4))

    def _take_output(self, record: dict[int, list[Any]]) -> None:
        line = record.get(3, [b""])[-1]
        if isinstance(line, bytes) and line:
            self._has_output = True
            self._into.log(line, time_in(record, 2) or None)

    def _configure(self, record: dict[int, list[Any]]) -> None:
        set_items(self._config, messages_in(record, 1))
        remove_items(self._config, messages_in(record, 2))

    def _end(self, record: dict[int, list[Any]]) -> None:
        code = number_in(record, 1)
        if not number_in(record, 3):  # else it is to be resumed
            self.outcome = Outcome.FAILED if code else Outcome.SUCCEEDED
        self.exit_code = code if 0 <= code < 1 << 31 else 1
        self.ended_at = _possible(self._began + number_in(record, 2))

    def _take_history(self, record: dict[int, list[Any]]) -> None:
        values: dict[str, Any] = {}
        set_items(values, messages_in(record, 1))
        steps = messages_in(record, 2)
        at = number_in(parsed(steps[-1]), 1) if steps else values.get("_step")
        at = at if isinstance(at, int) else None
        stamp = values.get("_timestamp")
        time = float(stamp) if isinstance(stamp, (int, float)) and abs(stamp) < 1e18 else None
        numbers = {
            name: value
            for name, value in _flat(values)
            if isinstance(value, (int, float)) and name not in _OWN_NAMES
        }
        for name, value in numbers.items():
            if name in self._latest or len(self._latest) < _MOST_NAMES:
                self._latest[name] = value
        groups: dict[float | None, dict[str, Any]] = {}
        for name, value in numbers.items():
            groups.setdefault(self._step_of(name, at), {})[name] = value
        for step, group in groups.items():
            self._into.metrics(group, step, time)
        for name, value in _flat(values):
            if isinstance(value, dict):
                self._show(name, value, self._step_of(name, at), time)

    def _step_of(self, name: str, at: int | None) -> float | None:
        axis = self._axes.axis(name)
        found = self._latest.get(axis) if axis else None
        return at if found is None or not is_step(found) else found

    def _show(
        self, name: str, value: dict[str, Any], step: float | None, time: float | None
    ) -> None:
        """Record a medium from the form in which W&B has it."""
        kind = str(value["_type"])[:100]
        caption = str(value.get("caption") or "")
        if kind in _SEVERAL:
            self._show_several(name, value, step, time)
        elif kind == "histogram":
            counts, edges = value.get("values"), _edges(value)
            self._into.show("histogram", name, counts, step, time, edges=edges)
        elif kind in _FILES or kind.endswith("table-file"):
            call = _FILES.get(kind, "table")
            try:
                parts = (*self._files, *parts_of(str(value.get("path") or "")))
            except ValueError as error:
                self._into.leave_out(f"media {name[:80]}: {error}")
                return
            show_file(
                self._into,
                self._folder,
                parts,
                name,
                call=call,
                step=step,
                time=time,
                caption=caption,
            )
        else:
            self._into.leave_out(f"media {name_text(name)[:80]}: it is of type {name_text(kind)}")

    def _show_several(
        self, name: str, group: dict[str, Any], step: float | None, time: float | None
    ) -> None:
        place, kind = _SEVERAL[str(group["_type"])]
        entries, captions = group.get(place), group.get("captions")
        entries = entries if isinstance(entries, list) else []
        captions = captions if isinstance(captions, list) else []
        for at, entry in enumerate(entries[:1_000]):
            one = entry if isinstance(entry, dict) else {"path": entry}
            caption = captions[at] if at < len(captions) else ""
            each = f"{name}/{at}" if len(entries) > 1 else name
            self._show(each, {"caption": caption, **one, "_type": kind}, step, time)

    def finish(self) -> None:
        """Record files, configuration, and what the summary has beside the last values of metrics."""
        self._kept.finish()
        self._config.pop("_wandb", None)
        if self._config:
            self._into.config(self._config)
        found = {}
        for name, value in _flat(self._summary):
            if name.partition(".")[0] in _OWN_NAMES or not isinstance(value, (int, float)):
                continue
            known = self._latest.get(name)
            if known is None:
                found[name] = value
            elif known != value and not (known != known and value != value):  # noqa: PLR0124 - NaN
                found[f"summary/{name}"] = value
        self._into.summarize(found)


def _flat(values: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield names and values: NAME.KEY of nested ones; media as dicts."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if not isinstance(value, dict) or isinstance(value.get("_type"), str):
            yield name, value
        elif depth < _MOST_DEPTH:
            yield from _flat(value, f"{name}.", depth + 1)


def _edges(histogram: dict[str, Any]) -> Any:
    packed = histogram.get("packedBins")
    if not isinstance(packed, dict):
        return histogram.get("bins")
    least, size, count = (packed.get(key) for key in ("min", "size", "count"))
    numbers = isinstance(least, (int, float)) and isinstance(size, (int, float))
    if not numbers or not isinstance(count, int) or not 0 < count <= _MOST_BINS:
        return None
    return [float(least or 0) + float(size or 0) * at for at in range(count + 1)]
