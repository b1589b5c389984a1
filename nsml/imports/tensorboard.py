"""Runs of TensorBoard: each folder with event files is one, but for those that belong to the run beside or above them."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, BinaryIO, Final

from nsml._echo._event_files import EventReader
from nsml.imports.folders import shown
from nsml.imports.runs import PastRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml._echo._event_files import EventValue
    from nsml.content.safe_paths import Parts
    from nsml.imports.folders import Folder
    from nsml.imports.runs import Recording

ORIGIN: Final = "tensorboard"
_MARK: Final = "tfevents"
_BEGINNING_BYTES: Final = 256 << 10
_MOST_OPEN: Final = 64
"""Most files that are read at the same time, to merge them by time."""
_PARTS: Final = ("train", "validation", "valid", "val", "eval", "evaluation", "test", "dev")
"""Names of folders that have curves of one run, the first of them without a prefix."""


@dataclass(slots=True)
class _Logdir:
    """A folder with event files, sorted by name, which begins with their time.

    Attributes:
        tag: the first tag of a scalar in it; "" if it begins with hyperparameters alone, or with other values.
        identity: of its first records.
    """

    parts: Parts
    files: list[str]
    kinds: set[str] = field(default_factory=set)
    tag: str = ""
    identity: str = ""
    began_at: float = 0.0


@dataclass(slots=True)
class _Member:
    """A folder of a run. `is_tuning`: it has hyperparameters, and the last values of some metrics, which are no curves."""

    logdir: _Logdir
    prefix: str = ""
    is_tuning: bool = False


def find(folder: Folder) -> list[PastRun]:
    """Return the runs in a folder, by their paths."""
    found = {}
    for parts, files in folder.walk():
        if names := sorted(one for one in files if _MARK in one):
            found[parts] = _begin(folder, _Logdir(parts, names))
    members: dict[Parts, list[_Member]] = {}
    for logdir in found.values():
        place, member = _placed(logdir, found)
        members.setdefault(place, []).append(member)
    runs = []
    for place, some in members.items():
        ordered = sorted(some, key=_rank)
        _set_prefixes(ordered, place)
        first = ordered[0].logdir
        runs.append(
            PastRun(
                origin=ORIGIN,
                id=f"{ORIGIN}-{first.identity}",
                name=shown(place) if place else folder.name,
                place=shown(place),
                project=folder.name,
                read=partial(_read, folder, ordered),
                order=first.began_at,
            )
        )
    return sorted(runs, key=attrgetter("place"))


def _begin(folder: Folder, logdir: _Logdir) -> _Logdir:
    """Look at the beginnings of its files."""
    digest = hashlib.sha256()
    for at, name in enumerate(logdir.files):
        try:
            with folder.opened((*logdir.parts, name)) as file:
                data = file.read(_BEGINNING_BYTES)
        except OSError:
            digest.update(shown((*logdir.parts, name)).encode())
            continue
        values = EventReader().parse(data)[0]
        if not at:
            # What a live run appends later does not change it: its name, and the time of its first record.
            digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + data[12:21])
            logdir.began_at = min((one.time for one in values if one.time > 0), default=0.0)
        logdir.kinds |= {one.kind for one in values}
        scalars = [one.tag for one in values if one.kind == "scalar"]
        if scalars and not logdir.tag and "hparams" not in {one.kind for one in values[:1]}:
            logdir.tag = scalars[0]
        if logdir.kinds:
            break
    logdir.identity = digest.hexdigest()[:32]
    return logdir


def _placed(logdir: _Logdir, found: dict[Parts, _Logdir]) -> tuple[Parts, _Member]:
    """Return the folder of the run that it belongs to."""
    parts, tag = logdir.parts, logdir.tag
    ancestors = [parts[:depth] for depth in range(len(parts) - 1, -1, -1)]
    for above in ancestors if tag else []:
        rest = "/".join(parts[len(above) :])
        # Where add_scalars of torch, and of tensorboardX, writes one of its values.
        if above in found and rest.startswith((f"{tag.replace('/', '_')}_", f"{tag}/")):
            return _run_of(above, found), _Member(logdir, prefix=f"{rest}/")
    if "hparams" in logdir.kinds and not tag:
        for above in ancestors:
            if _is_group(above, found):
                return _run_of(above, found), _Member(logdir, is_tuning=True)
    return _run_of(parts, found), _Member(logdir)


def _run_of(parts: Parts, found: dict[Parts, _Logdir]) -> Parts:
    if parts and parts[-1] in _PARTS and _is_group(parts[:-1], found):
        return parts[:-1]
    return parts


def _is_group(above: Parts, found: dict[Parts, _Logdir]) -> bool:
    """Return whether the folders `train`, `validation` and so on below this one are one run."""
    has_curves = above in found and bool(found[above].tag)
    return has_curves or (*above, _PARTS[0]) in found


def _rank(member: _Member) -> tuple[bool, bool, int, Parts]:
    """Sort the first one of a run to the front."""
    parts = member.logdir.parts
    place = _PARTS.index(parts[-1]) if parts and parts[-1] in _PARTS else -1
    return member.is_tuning, bool(member.prefix), place, parts


def _set_prefixes(members: list[_Member], place: Parts) -> None:
    """The first folder with curves has no prefix, and others have their name."""
    curves = [one for one in members if not one.is_tuning and not one.prefix]
    with_scalars = [one for one in curves if one.logdir.tag]
    first = (with_scalars or curves or members)[0]
    for one in curves:
        if one is not first:
            one.prefix = "".join(f"{part}/" for part in one.logdir.parts[len(place) :])


def _read(folder: Folder, members: list[_Member], into: Recording) -> None:
    readings = []
    for member in members:
        logdir = member.logdir
        reading = _Reading(folder, logdir, into)
        reading.look()
        readings.append((member, reading))
    if not any(reading.readable for _, reading in readings):
        raise ValueError("no event file of it can be read")
    streams = [
        _keyed(member, reading, at)
        for at, (member, reading) in enumerate(readings)
        if not member.is_tuning
    ]
    for start in range(0, len(streams), _MOST_OPEN):
        some = streams[start : start + _MOST_OPEN]
        for _, _, member, one in heapq.merge(*some, key=itemgetter(0, 1)):
            _record(into, member, one)
    tunings = [each for each in readings if each[0].is_tuning]
    for member, reading in tunings:
        run = member.logdir.parts[-1] if len(tunings) > 1 else ""
        _read_tuning(into, member, reading, run=run)


def _read_tuning(into: Recording, member: _Member, reading: _Reading, *, run: str) -> None:
    """Record hyperparameters as configuration, and last values of metrics unless their curves are there."""
    curves = {*into.names}
    for one in reading.values():
        if one.kind == "hparams":
            into.config(one.value, run=run)
        elif one.kind != "scalar":
            _record(into, member, one)
        elif one.tag not in curves:
            into.summarize({one.tag: one.value})


def _keyed(
    member: _Member, reading: _Reading, at: int
) -> Iterator[tuple[float, int, _Member, EventValue]]:
    latest = 0.0
    for one in reading.values():
        latest = max(latest, one.time)  # which is not NaN
        yield latest, at, member, one


def _record(into: Recording, member: _Member, one: EventValue) -> None:
    name = f"{member.prefix}{one.tag}"
    if one.kind == "scalar":
        into.metrics({name: one.value}, one.step, one.time)
    elif one.kind == "hparams":
        into.config(one.value, run=member.prefix[:-1])
    elif one.kind == "histogram":
        edges, counts = one.value
        into.show("histogram", name, counts, one.step, one.time, edges=edges)
    elif one.kind == "pr_curve":
        columns = ("precision", "recall")
        into.show("table", name, one.value, one.step, one.time, columns=columns)
    elif one.kind in {"image", "audio", "text"}:
        into.show(one.kind, name, one.value, one.step, one.time)


class _Reading:
    """Reads the event files of one folder, twice: a restarted program voids earlier points, of which the file says so later.

    Attributes:
        readable: the number of files that were readable.
    """

    def __init__(self, folder: Folder, logdir: _Logdir, into: Recording) -> None:
        self._folder = folder
        self._logdir = logdir
        self._into = into
        self._purges: list[tuple[int, int, int]] = []
        self.readable = 0

    def look(self) -> None:
        """Read all files, and note which points are void and what is damaged."""
        for number, name in enumerate(self._logdir.files):
            path = shown((*self._logdir.parts, name))
            reader = EventReader()
            try:
                with self._folder.opened((*self._logdir.parts, name)) as file:
                    self._look_at(number, reader, file)
            except OSError as error:
                self._into.leave_out(
                    f"{path}: {error.strerror or 'it is no regular file'}", is_damage=True
                )
                continue
            if reader.damage:
                why = f"{path}: {reader.damage}; nothing after byte {reader.offset:,} is read"
                self._into.leave_out(why, is_damage=True)
            if reader.skipped:
                self._into.leave_out(
                    f"{path}: {reader.skipped:,} records or values cannot be read", is_damage=True
                )
            self.readable += not reader.damage or reader.offset > 0

    def _look_at(self, number: int, reader: EventReader, file: BinaryIO) -> None:
        place = 0
        for values in reader.read(file):
            for one in values:
                place += 1
                if one.kind == "purge":
                    while self._purges and self._purges[-1][2] >= one.step:
                        self._purges.pop()
                    self._purges.append((number, place, one.step))

    def values(self) -> Iterator[EventValue]:
        """Yield the values that are not void, in order."""
        for number, name in enumerate(self._logdir.files):
            try:
                with self._folder.opened((*self._logdir.parts, name)) as file:
                    yield from self._valid(number, file)
            except OSError:
                continue  # told by `look`

    def _valid(self, number: int, file: BinaryIO) -> Iterator[EventValue]:
        place = 0
        for values in EventReader().read(file):
            for one in values:
                place += 1
                while self._purges and self._purges[0][:2] <= (number, place):
                    del self._purges[0]
                # Steps of the remaining ones ascend: the first voids most.
                if one.kind != "purge" and not (self._purges and one.step >= self._purges[0][2]):
                    yield one
