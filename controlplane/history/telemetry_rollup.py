"""Telemetry over time, as columns: encoding, roll-up and queries. Pure.

A cell is a time interval: in the finest level one reading and the time it covers, in coarser ones a
step with the count, min, max and sum of each figure. So a peak of one second is still visible after
a year. Figures are stored as 32-bit floats, seven digits.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec
import zstandard

from controlplane.history.errors import HistoryCorrupt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

N = TypeVar("N", int, float)

DEVICE_FIGURES: Final = (
    "utilization_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "throttled",
)
"""Figures of a device, by uuid. `throttled` is 1 while its clocks are throttled."""
NODE_FIGURES: Final = ("cpu_percent", "memory_used_bytes")
"""Figures of a node, under the key "". """
REPLICA_FIGURES: Final = ("cpu_cores", "memory_used_bytes", "process_count")
"""Figures of a replica's processes, under `replica_key`."""
CLUSTER_FIGURES: Final = (
    "devices",
    "held",
    "running",
    "busy",
    "utilization_percent",
    "power_watts",
)
"""Figures of the platform: devices offered, devices held by sessions, and of these the ones above 0 % and
above 80 %; the mean utilization of all, and their total power."""
CLUSTER: Final = "*"
"""Used as a node's name: the whole platform."""
MOST_KEYS: Final = 128
_REPLICA: Final = "replica:"
"""No node's name has this prefix, and devices with it are ignored."""
_MOST_BODY: Final = 16 << 20
_ABSURD: Final = 1e18
_ROUNDED_S: Final = 1e-3
"""Closer times count as equal: sums of steps are not exact."""
_FORMAT: Final = 1
_ENCODER: Final = msgspec.msgpack.Encoder()


def replica_key(session_id: str, attempt: int, rank: int) -> str:
    """The key of the usage of a replica's processes."""
    return f"{_REPLICA}{session_id}.{attempt}.{rank}"


def is_replica_key(key: str) -> bool:
    """Whether a key is a replica's: its viewers are those of its session."""
    return key.startswith(_REPLICA)


def sound(value: N) -> N:
    """Return a figure reported by a node; 0 if invalid."""
    return value if 0 <= value < _ABSURD else type(value)(0)


@dataclass(slots=True)
class Figure:
    """One figure by cell; `least` is inf and `most` -inf in cells without readings."""

    least: array[float] = field(default_factory=lambda: array("f"))
    most: array[float] = field(default_factory=lambda: array("f"))
    total: array[float] = field(default_factory=lambda: array("f"))

    def put(self, least: float, most: float, total: float) -> None:
        """Add a cell."""
        self.least.append(least)
        self.most.append(most)
        self.total.append(total)


@dataclass(slots=True)
class Column:
    """The data of one key: number of readings per cell, and the figures."""

    counts: array[float]
    figures: list[Figure]


@dataclass(slots=True)
class Cells:
    """Cells in order of time, without overlaps.

    Attributes:
        starts: Unix seconds.
        lengths: seconds from the start to the end of each.
        seconds: the measured part of that.
    """

    starts: array[float] = field(default_factory=lambda: array("d"))
    lengths: array[float] = field(default_factory=lambda: array("f"))
    seconds: array[float] = field(default_factory=lambda: array("f"))
    columns: dict[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def end(self) -> float:
        """End of the last cell; -inf if there is none."""
        return self.starts[-1] + self.lengths[-1] if self.starts else -math.inf

    def add(self, start: float, length: float, readings: Mapping[str, Sequence[float]]) -> None:
        """Add one reading of all keys, which covers `length` seconds from `start` on."""
        before = len(self)
        self.starts.append(start)
        self.lengths.append(length)
        self.seconds.append(length)
        for key, values in readings.items():
            column = self._known(key, len(values), before)
            if column is not None and len(column.figures) == len(values):
                column.counts.append(1.0)
                for figure, value in zip(column.figures, values, strict=True):
                    figure.put(value, value, value)
        for column in self.columns.values():
            if len(column.counts) == before:
                _fill(column, before + 1)

    def extend(self, other: Cells, since: float = -math.inf, until: float = math.inf) -> None:
        """Append other cells that begin at `since` or later, before `until`, and after our end."""
        first = bisect_left(other.starts, max(since, self.end - _ROUNDED_S))
        last = bisect_left(other.starts, until)
        if first >= last:
            return
        before, count = len(self), last - first
        self.starts += other.starts[first:last]
        self.lengths += other.lengths[first:last]
        self.seconds += other.seconds[first:last]
        for key, theirs in other.columns.items():
            ours = self._known(key, len(theirs.figures), before)
            if ours is None or len(ours.figures) != len(theirs.figures):
                continue
            ours.counts += theirs.counts[first:last]
            for figure, more in zip(ours.figures, theirs.figures, strict=True):
                figure.least += more.least[first:last]
                figure.most += more.most[first:last]
                figure.total += more.total[first:last]
        for column in self.columns.values():
            _fill(column, before + count)

    def _known(self, key: str, figures: int, cells: int) -> Column | None:
        column = self.columns.get(key)
        if column is None and len(self.columns) < MOST_KEYS:
            column = Column(array("f"), [Figure() for _ in range(figures)])
            _fill(column, cells)
            self.columns[key] = column
        return column


def _fill(column: Column, cells: int) -> None:
    lacks = cells - len(column.counts)
    if lacks > 0:
        column.counts.extend([0.0] * lacks)
        for figure in column.figures:
            figure.least.extend([math.inf] * lacks)
            figure.most.extend([-math.inf] * lacks)
            figure.total.extend([0.0] * lacks)


def without_replicas(cells: Cells) -> Cells:
    """Return the cells without replicas' columns; shares the arrays."""
    return replace(
        cells, columns={key: one for key, one in cells.columns.items() if not is_replica_key(key)}
    )


def apart(parts: Sequence[Cells]) -> Iterator[tuple[str, list[Cells]]]:
    """Yield the cells of each replica in these parts, by key, only those with readings of it; all else under ""."""
    yield "", [without_replicas(one) for one in parts]
    for key in sorted({key for part in parts for key in part.columns if is_replica_key(key)}):
        yield key, [_alone(one, key) for one in parts if key in one.columns]


def _alone(cells: Cells, key: str) -> Cells:
    """Return the cells with readings of a key, with only its column."""
    column = cells.columns[key]
    there = [at for at, count in enumerate(column.counts) if count > 0]
    if len(there) == len(cells):
        return replace(cells, columns={key: column})

    def of(numbers: array[float]) -> array[float]:
        return array(numbers.typecode, [numbers[at] for at in there])

    figures = [Figure(of(one.least), of(one.most), of(one.total)) for one in column.figures]
    return Cells(
        of(cells.starts),
        of(cells.lengths),
        of(cells.seconds),
        {key: Column(of(column.counts), figures)},
    )


def coarser(cells: Cells, since: float, until: float, step: float) -> Cells:
    """Merge the cells that begin in a time span into steps; longer cells stay unchanged.

    Steps without cells are left out.
    """
    found = Cells()
    first, last = bisect_left(cells.starts, since), bisect_left(cells.starts, until)
    runs: list[tuple[int, int]] = []
    while first < last:
        number = math.floor((cells.starts[first] - since + _ROUNDED_S) / step)
        behind = since + (number + 1) * step - _ROUNDED_S
        end = max(bisect_left(cells.starts, behind, first, last), first + 1)
        runs.append((first, end))
        longest = cells.lengths[first]
        found.starts.append(since + number * step if longest <= step else cells.starts[first])
        found.lengths.append(max(step, longest))
        found.seconds.append(math.fsum(cells.seconds[first:end]))
        first = end
    for key, column in cells.columns.items():
        found.columns[key] = Column(
            array("f", [sum(column.counts[a:b]) for a, b in runs]),
            [
                Figure(
                    array("f", [min(one.least[a:b]) for a, b in runs]),
                    array("f", [max(one.most[a:b]) for a, b in runs]),
                    array("f", [math.fsum(one.total[a:b]) for a, b in runs]),
                )
                for one in column.figures
            ],
        )
    return found


class Used(NamedTuple):
    """Measured usage of one device in a time span.

    Attributes:
        seconds: measured time.
        utilization: mean, percent.
        utilization_peak: max, percent.
        memory_peak: max, bytes.
        joules: of the whole device.
        busy_until: end of the last cell above the threshold; -inf: none.
    """

    seconds: float
    utilization: float
    utilization_peak: float
    memory_peak: float
    joules: float
    busy_until: float


def used(cells: Cells, key: str, since: float, until: float, above: float = 0.0) -> Used | None:
    """Sum up a device's usage in a time span; a cell at its edge counts by its share inside.

    `above`: threshold of `busy_until`, percent. None if nothing was measured.
    """
    column = cells.columns.get(key)
    if column is None or len(column.figures) < len(DEVICE_FIGURES):
        return None
    load, memory, power = column.figures[:3]
    seconds = weighted = joules = 0.0
    load_peak = memory_peak = 0.0
    busy_until = -math.inf
    for at in range(max(bisect_right(cells.starts, since) - 1, 0), len(cells)):
        start, length, count = cells.starts[at], cells.lengths[at], column.counts[at]
        if start >= until:
            break
        inside = min(start + length, until) - max(start, since)
        if count <= 0 or inside <= 0 or length <= 0:
            continue
        lasts = cells.seconds[at] * min(inside / length, 1.0)
        seconds += lasts
        weighted += lasts * load.total[at] / count
        joules += lasts * power.total[at] / count
        load_peak = max(load_peak, load.most[at])
        memory_peak = max(memory_peak, memory.most[at])
        if load.most[at] > above:
            busy_until = min(start + length, until)
    if not seconds:
        return None
    return Used(seconds, weighted / seconds, load_peak, memory_peak, joules, busy_until)


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A block as stored; numbers are little-endian 32-bit floats, offsets are from its start."""

    format: int
    is_single: bool
    """Every cell is one reading: one number per figure, not three."""
    offsets: bytes
    lengths: bytes
    seconds: bytes
    columns: dict[str, tuple[int, bytes]]
    """The number of figures; the counts, then each figure's total, least and most."""


_DECODER: Final = msgspec.msgpack.Decoder(_Kept)


def packed(cells: Cells, start: float) -> bytes:
    """Encode cells, which begin at `start` or later."""
    is_single = all(
        count in {0.0, 1.0} for column in cells.columns.values() for count in column.counts
    )
    columns = {}
    for key, column in cells.columns.items():
        parts = [_bytes(column.counts)]
        for one in column.figures:
            parts += [_bytes(one.total)]
            if not is_single:
                parts += [_bytes(one.least), _bytes(one.most)]
        columns[key] = (len(column.figures), b"".join(parts))
    kept = _Kept(
        _FORMAT,
        is_single,
        _bytes(array("f", [one - start for one in cells.starts])),
        _bytes(cells.lengths),
        _bytes(cells.seconds),
        columns,
    )
    return zstandard.ZstdCompressor(level=1).compress(_ENCODER.encode(kept))


def unpacked(body: bytes, start: float, keys: Collection[str] | None = None) -> Cells:
    """Decode packed cells, only these keys; raises HistoryCorrupt."""
    try:
        plain = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MOST_BODY)
        kept = _DECODER.decode(plain)
        _check_format(kept.format)
        offsets = _floats(kept.offsets)
        count = len(offsets)
        cells = Cells(
            array("d", [start + one for one in offsets]),
            _floats(kept.lengths),
            _floats(kept.seconds),
        )
        for key, (figures, packed) in kept.columns.items():
            if keys is None or key in keys:
                cells.columns[key] = _column(
                    _floats(packed), figures, count, is_single=kept.is_single
                )
    except (msgspec.DecodeError, zstandard.ZstdError, ValueError) as error:
        raise HistoryCorrupt("a block of telemetry cannot be read", why=str(error)) from error
    return cells


def _check_format(number: int) -> None:
    if number != _FORMAT:
        raise ValueError(f"format {number}")


def _column(values: array[float], figures: int, count: int, *, is_single: bool) -> Column:
    parts = [values[at : at + count] for at in range(0, len(values), count)] if count else []
    each = 1 if is_single else 3
    if count and len(parts) != 1 + figures * each:
        raise ValueError(f"{len(parts)} parts of {figures} figures")
    counts, found = (parts[0], []) if parts else (array("f"), [])
    for number in range(figures if count else 0):
        total, *ends = parts[1 + number * each : 1 + (number + 1) * each]
        if is_single:
            least = array("f", [v if n else math.inf for v, n in zip(total, counts, strict=True)])
            most = array("f", [v if n else -math.inf for v, n in zip(total, counts, strict=True)])
            ends = [least, most]
        found.append(Figure(ends[0], ends[1], total))
    return Column(counts, found)


def _bytes(numbers: array[float]) -> bytes:
    if sys.byteorder != "little":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _floats(packed: bytes) -> array[float]:
    numbers = array("f")
    numbers.frombytes(packed)
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers


def joined(parts: Iterable[Cells], since: float, until: float) -> Cells:
    """Join cells of several sources, better ones first: each adds cells after the previous ones."""
    found = Cells()
    for part in parts:
        found.extend(part, since, until)
    return found
