"""Readings over time, as columns: how they are packed, made coarser, and answered from. Pure.

A cell is a piece of time: in the finest level one reading and what it stands for, in coarser ones a
step with the count, least, most and sum of each figure. So a peak of one second is still there after
a year. Figures are kept as 32-bit floats, seven digits.
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
"""Of a device, by uuid. `throttled` is 1 while something keeps its clocks down."""
NODE_FIGURES: Final = ("cpu_percent", "memory_used_bytes")
"""Of a node itself, under the key "". """
REPLICA_FIGURES: Final = ("cpu_cores", "memory_used_bytes", "process_count")
"""Of the processes of a replica, under `replica_key`."""
CLUSTER_FIGURES: Final = (
    "devices",
    "held",
    "running",
    "busy",
    "utilization_percent",
    "power_watts",
)
"""Of the whole platform: devices offered, those that sessions hold, those of them above 0 % and
above 80 %; the mean utilisation of all, and the sum of their power."""
CLUSTER: Final = "*"
"""In place of a node's name: the platform as a whole."""
MOST_KEYS: Final = 128
_REPLICA: Final = "replica:"
"""No node's name begins so, and what a node calls a device so is not taken."""
_MOST_BODY: Final = 16 << 20
_ABSURD: Final = 1e18
_ROUNDED_S: Final = 1e-3
"""Moments that are closer are one: sums of steps are not exact."""
_FORMAT: Final = 1
_ENCODER: Final = msgspec.msgpack.Encoder()


def replica_key(session_id: str, attempt: int, rank: int) -> str:
    """The key of what the processes of a replica take."""
    return f"{_REPLICA}{session_id}.{attempt}.{rank}"


def is_replica_key(key: str) -> bool:
    """Whether a key is of a replica: who may see it, may see its session."""
    return key.startswith(_REPLICA)


def sound(value: N) -> N:
    """A figure as a node tells it; 0 in place of nonsense."""
    return value if 0 <= value < _ABSURD else type(value)(0)


@dataclass(slots=True)
class Figure:
    """One figure of something, cell by cell; `least` is inf and `most` -inf where none was read."""

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
    """What is known of one key: readings in each cell, and the figures."""

    counts: array[float]
    figures: list[Figure]


@dataclass(slots=True)
class Cells:
    """Cells in order of time, which do not overlap.

    Attributes:
        starts: Unix seconds.
        lengths: seconds from the start to the end of each.
        seconds: how much of that was measured.
    """

    starts: array[float] = field(default_factory=lambda: array("d"))
    lengths: array[float] = field(default_factory=lambda: array("f"))
    seconds: array[float] = field(default_factory=lambda: array("f"))
    columns: dict[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def end(self) -> float:
        """Where the last one ends; -inf of none."""
        return self.starts[-1] + self.lengths[-1] if self.starts else -math.inf

    def add(self, start: float, length: float, readings: Mapping[str, Sequence[float]]) -> None:
        """One reading of everything, which stands for `length` seconds from `start` on."""
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
        """Those of other cells that begin from `since` on, before `until`, and behind our own."""
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
    """The cells without what is of replicas; the same arrays."""
    return replace(
        cells, columns={key: one for key, one in cells.columns.items() if not is_replica_key(key)}
    )


def apart(parts: Sequence[Cells]) -> Iterator[tuple[str, list[Cells]]]:
    """The cells of each replica in these parts, by its key, without those in which it was not read; all else under ""."""
    yield "", [without_replicas(one) for one in parts]
    for key in sorted({key for part in parts for key in part.columns if is_replica_key(key)}):
        yield key, [_alone(one, key) for one in parts if key in one.columns]


def _alone(cells: Cells, key: str) -> Cells:
    """The cells in which something was read of a key, and that alone."""
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
    """The cells that begin in a span of time put together by steps; a longer one stays as it is.

    Steps without any are left out.
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
    """What was measured of one device in a span of time.

    Attributes:
        seconds: how long anything was measured.
        utilization: mean of it, percent.
        utilization_peak: highest, percent.
        memory_peak: highest, bytes.
        joules: of the whole device.
        busy_until: end of the last cell in which it did more than was asked about; -inf: in none.
    """

    seconds: float
    utilization: float
    utilization_peak: float
    memory_peak: float
    joules: float
    busy_until: float


def used(cells: Cells, key: str, since: float, until: float, above: float = 0.0) -> Used | None:
    """What a device did within a span; a cell at its edge counts by the share that lies inside.

    Until when it was busy goes by more than `above` percent. None where nothing is known.
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
    """A block as it is stored; numbers are little-endian 32-bit floats, offsets are from its start."""

    format: int
    is_single: bool
    """Every cell is one reading: one number a figure, in place of three."""
    offsets: bytes
    lengths: bytes
    seconds: bytes
    columns: dict[str, tuple[int, bytes]]
    """The number of figures; the counts, then each figure's least, most and total."""


_DECODER: Final = msgspec.msgpack.Decoder(_Kept)


def packed(cells: Cells, start: float) -> bytes:
    """Cells as bytes; they begin at `start` or later."""
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
    """What was packed, of these keys alone; raises HistoryCorrupt."""
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
        for key, (figures, told) in kept.columns.items():
            if keys is None or key in keys:
                cells.columns[key] = _column(
                    _floats(told), figures, count, is_single=kept.is_single
                )
    except (msgspec.DecodeError, zstandard.ZstdError, ValueError) as error:
        raise HistoryCorrupt("a block of telemetry cannot be read", why=str(error)) from error
    return cells


def _check_format(number: int) -> None:
    if number != _FORMAT:
        raise ValueError(f"format {number}")


def _column(told: array[float], figures: int, count: int, *, is_single: bool) -> Column:
    parts = [told[at : at + count] for at in range(0, len(told), count)] if count else []
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


def _floats(told: bytes) -> array[float]:
    numbers = array("f")
    numbers.frombytes(told)
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers


def joined(parts: Iterable[Cells], since: float, until: float) -> Cells:
    """Cells of several sources, the better ones first: each adds what lies behind those before."""
    found = Cells()
    for part in parts:
        found.extend(part, since, until)
    return found
