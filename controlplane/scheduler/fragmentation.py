"""Unusable free GPUs of a node, and placements that add the fewest of them.

A score beside best fit, after "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): among nodes that hold a
request, and for a share among devices, choose the one that least increases the GPUs unusable by recent
requests. A free GPU is unusable for two reasons, and each counts half:

- *Fragments* (section 4.1 there): for each recent shape, weighted by its frequency, all free GPUs of a node
  that does not hold it; on a node that holds it, the devices that are too small for it.
- *Stranded* GPUs: those left when requests of the recent average have used up the free cores or memory. The
  paper's measure looks one request ahead and so notices missing cores only when the last one is gone;
  this term keeps cores beside GPUs from the first request on.

Usage. Keep one `Arrivals`; pass it every request once, on submission (`saw`). While `arrivals.mix` stays the
same value, use one `Fragmentation(mix)`, which caches its results; when the mix changes, create a new one:
orders by the old scores are stale. `best_taking(free, shape)` depends only on its arguments and the mix, so
nodes in equal states need one call; group nodes by state and, for each requested shape, order the states by

    (-taking.score, tightness(free), name of the first node)

The first is the node, `taking.from_left` selects the device, and `taking.free` is the node's state after it.
If a room chooses the devices itself, `gain(before, after)` is the score. Before the first mix all scores
are 0, which is best fit.

All numbers are whole: equal input gives equal output on every machine. GPUs and cores are in
thousandths, memory is in bytes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from operator import mul
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.models import is_model
from controlplane.domain.values import WHOLE_DEVICE

if TYPE_CHECKING:
    from collections.abc import Mapping

QUANTUM: Final = 10
"""Step of scores, in thousandths of a GPU: among nodes within one step the tighter is better."""

WEIGHTS: Final = 1024
"""Approximate sum of a mix's weights, which are integers."""

MOST_SHAPES: Final = 256
"""Maximum number of shapes in a mix, the most frequent ones."""

FIRST_MIX: Final = 32
"""Requests before the first mix; each next one takes twice as many."""

WINDOW: Final = 8192
"""Requests after which all counts are halved, so that recent ones count more."""

REMEMBERED: Final = 1 << 18
"""Maximum number of states cached by one `Fragmentation`; then the cache is cleared."""


class Shape(NamedTuple):
    """Request of one replica."""

    gpu_thousandths: int
    """Up to a thousand of one device, or whole devices."""
    cpu_thousandths: int
    memory_bytes: int
    models: frozenset[str] = frozenset()
    """Acceptable GPU models, as of `domain.models`; empty: any."""

    def takes(self, model: str) -> bool:
        """Return whether it may have GPUs of this model."""
        return not self.models or any(is_model(model, one) for one in self.models)


class Free(NamedTuple):
    """Free capacity of one node."""

    model: str
    whole: int
    """Unused devices."""
    shares: tuple[int, ...]
    """Free thousandths of the opened devices that are not full, ascending."""
    cpu_thousandths: int
    memory_bytes: int

    @property
    def gpu_thousandths(self) -> int:
        """Of all devices."""
        return self.whole * WHOLE_DEVICE + sum(self.shares)


class Taking(NamedTuple):
    """A possible placement of one replica on a node."""

    score: int
    """Decrease of unusable GPUs, in quanta: higher is better."""
    from_left: int
    """Free thousandths of the device for a share; whole devices come from unused ones."""
    free: Free
    """Free capacity after it."""


def tightness(free: Free) -> tuple[int, int, int, int]:
    """Best fit takes the smallest: fewest free GPUs, then thousandths, cores and memory."""
    return (free.whole, free.gpu_thousandths, free.cpu_thousandths, free.memory_bytes)


def takings(free: Free, shape: Shape) -> list[tuple[int, Free]]:
    """Return all ways to place one replica there: the device's thousandths before, and the capacity after.

    A share never spans devices, and whole devices were never shared. The tightest device comes first.
    """
    model, whole, shares, cpu, memory = free
    gpu = shape.gpu_thousandths
    cpu -= shape.cpu_thousandths
    memory -= shape.memory_bytes
    if cpu < 0 or memory < 0 or (gpu and not shape.takes(model)):
        return []
    if gpu == 0:
        return [(0, Free(model, whole, shares, cpu, memory))]
    if gpu >= WHOLE_DEVICE:
        rest = whole - gpu // WHOLE_DEVICE
        return [(WHOLE_DEVICE, Free(model, rest, shares, cpu, memory))] if rest >= 0 else []
    ways = [
        (left, Free(model, whole, _with_less(shares, left, gpu), cpu, memory))
        for left in dict.fromkeys(shares)
        if left >= gpu
    ]
    if whole:
        opened = tuple(sorted((*shares, WHOLE_DEVICE - gpu)))
        ways.append((WHOLE_DEVICE, Free(model, whole - 1, opened, cpu, memory)))
    return ways


def _with_less(shares: tuple[int, ...], left: int, gpu: int) -> tuple[int, ...]:
    others = list(shares)
    others.remove(left)
    if left > gpu:
        insort(others, left - gpu)
    return tuple(others)


class Mix(NamedTuple):
    """Requested shapes with GPUs, each with its weight, heaviest first."""

    shapes: tuple[tuple[Shape, int], ...] = ()


def mix_of(counts: Mapping[Shape, int]) -> Mix:
    """Build the mix from counts of requests."""
    with_gpus = [(shape, count) for shape, count in counts.items() if shape.gpu_thousandths]
    with_gpus.sort(key=lambda one: (-one[1], one[0][:3], sorted(one[0].models)))
    kept = with_gpus[:MOST_SHAPES]
    total = sum(count for _, count in kept)
    weighed = ((shape, WEIGHTS * count // total) for shape, count in kept)
    return Mix(tuple((shape, weight) for shape, weight in weighed if weight))


class Arrivals:
    """The mix of the requests seen so far.

    Counted, not timed: a quiet week forgets nothing. The mix is rebuilt when twice as many requests were
    seen as for the last one; after `WINDOW` of them all counts are halved, so that recent ones count more.

    Attributes:
        mix: as last made.
    """

    def __init__(self) -> None:
        self.mix = Mix()
        self._counts = Counter[Shape]()
        self._seen = 0
        self._next = FIRST_MIX

    def copy(self) -> Arrivals:
        """Return an independent copy."""
        other = Arrivals()
        other.mix, other._counts = self.mix, self._counts.copy()
        other._seen, other._next = self._seen, self._next
        return other

    def saw(self, shape: Shape, replicas: int = 1) -> None:
        """Count a submitted session."""
        if not shape.gpu_thousandths:
            return
        self._counts[shape] += replicas
        self._seen += replicas
        if self._seen < self._next:
            return
        self.mix = mix_of(self._counts)
        while self._seen >= WINDOW:
            self._counts = Counter({one: n // 2 for one, n in self._counts.items() if n > 1})
            self._seen = self._counts.total()
        self._next = max(2 * self._seen, FIRST_MIX)


class Fragmentation:
    """Scores by one mix.

    Attributes:
        mix: the mix.
    """

    def __init__(self, mix: Mix) -> None:
        self.mix = mix
        kinds: dict[tuple[int, frozenset[str]], list[tuple[Shape, int]]] = {}
        for shape, weight in mix.shapes:
            kinds.setdefault((shape.gpu_thousandths, shape.models), []).append((shape, weight))
        self._kinds = list(kinds.values())
        self._cpus = sorted({shape.cpu_thousandths for shape, _ in mix.shapes})
        self._memories = sorted({shape.memory_bytes for shape, _ in mix.shapes})
        self._weight = sum(weight for _, weight in mix.shapes)
        self._gpu_wanted = sum(shape.gpu_thousandths * weight for shape, weight in mix.shapes)
        self._cpu_wanted = sum(shape.cpu_thousandths * weight for shape, weight in mix.shapes)
        self._memory_wanted = sum(shape.memory_bytes * weight for shape, weight in mix.shapes)
        self._usable: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        self._fitting: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self._unused: dict[Free, int] = {}

    def best_taking(self, free: Free, shape: Shape) -> Taking | None:
        """Return the best way to place one replica there, then the tightest; None if it does not fit."""
        best = None
        for from_left, after in takings(free, shape):
            score = self.gain(free, after)
            if best is None or score > best.score:
                best = Taking(score, from_left, after)
        return best

    def gain(self, before: Free, after: Free) -> int:
        """Return the decrease of unusable GPUs from `before` to `after`, in quanta; usually negative."""
        return (self.unused(before) - self.unused(after)) // QUANTUM

    def unused(self, free: Free) -> int:
        """Return the thousandths of free GPUs that requests of this mix cannot use, at most all."""
        known = self._unused.get(free)
        if known is None:
            if len(self._unused) >= REMEMBERED:
                self._unused.clear()
                self._usable.clear()
            known = self._unused[free] = (self._fragments(free) + self._stranded(free)) // 2
        return known

    def _fragments(self, free: Free) -> int:
        """Return the thousandths that the next request is expected to be unable to use."""
        if not self._weight:
            return 0
        devices = (free.whole, free.shares)
        usable = self._usable.get(devices)
        if usable is None:
            usable = self._usable[devices] = tuple(
                _usable(*devices, kind[0][0].gpu_thousandths) for kind in self._kinds
            )
        fits = (
            free.model,
            bisect_right(self._cpus, free.cpu_thousandths),
            bisect_right(self._memories, free.memory_bytes),
        )
        weights = self._fitting.get(fits)
        if weights is None:
            weights = self._fitting[fits] = tuple(_fitting(kind, free) for kind in self._kinds)
        used: int = sum(map(mul, usable, weights)) // self._weight
        return free.gpu_thousandths - used

    def _stranded(self, free: Free) -> int:
        """Return the thousandths left when requests of the average shape have used up cores or memory."""
        usable = gpu = free.gpu_thousandths
        if self._cpu_wanted:
            usable = min(usable, free.cpu_thousandths * self._gpu_wanted // self._cpu_wanted)
        if self._memory_wanted:
            usable = min(usable, free.memory_bytes * self._gpu_wanted // self._memory_wanted)
        return gpu - usable


def _usable(whole: int, shares: tuple[int, ...], gpu: int) -> int:
    """Return free thousandths on devices that can serve such a request, if there are enough for it."""
    if gpu >= WHOLE_DEVICE:
        return whole * WHOLE_DEVICE if whole >= gpu // WHOLE_DEVICE else 0
    return whole * WHOLE_DEVICE + sum(left for left in shares if left >= gpu)


def _fitting(kind: list[tuple[Shape, int]], free: Free) -> int:
    """Return the weight of shapes whose cores, memory and model fit."""
    return sum(
        weight
        for shape, weight in kind
        if shape.cpu_thousandths <= free.cpu_thousandths
        and shape.memory_bytes <= free.memory_bytes
        and shape.takes(free.model)
    )
