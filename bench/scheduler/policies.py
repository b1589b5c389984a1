"""The rules that others published, taken literally, and ours: where one pod goes.

Facts of the first four are those of FGD's artifact (hkust-adsl/kubernetes-scheduler-simulator, its plugins
`random_score`, `best_fit_score`, `fgd_score` and `open_gpu_share`): which node is possible, scores as whole
numbers from 0 to 100, and of equal scores the first name. Worst fit, which it lacks, is best fit turned round.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from bench.scheduler.ours import Ours
from bench.scheduler.traces import WHOLE, Machine, Pod

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

MOST_CPU: Final = 128_000
MOST_GPU: Final = 8_000
"""What the artifact divides cores and GPUs by, in thousandths: the largest node's."""

TYPICAL_SHARE: Final = 0.95
"""FGD's target: the most frequent requests, until they make up so much of the list."""


class Policy(Protocol):
    """Gives each pod that arrives a node, or drops it."""

    def place(self, pod: Pod) -> bool:
        """Whether it found a node."""


class Cluster:
    """What is free, in arrays with one place for each node, in the order of names."""

    def __init__(self, machines: list[Machine]) -> None:
        self.cpu = np.array([one.cpu_thousandths for one in machines])
        self.memory = np.array([one.memory_bytes for one in machines])
        self.left = [[WHOLE] * one.gpus for one in machines]
        """Thousandths of each device."""
        self.models = [one.model for one in machines]
        self.total = np.array([one.gpus * WHOLE for one in machines])
        self._wholes = np.array([one.gpus for one in machines])
        self._largest = np.array([WHOLE if one.gpus else 0 for one in machines])
        self._of_models: dict[frozenset[str], Mask] = {}

    def holders(self, pod: Pod) -> Mask:
        """Which nodes hold it."""
        mask: Mask = (self.cpu >= pod.cpu_thousandths) & (self.memory >= pod.memory_bytes)
        if not pod.gpus:
            return mask
        if pod.gpu_thousandths == WHOLE:
            mask &= self._wholes >= pod.gpus
        else:
            mask &= self._largest >= pod.gpu_thousandths
        if pod.models:
            if pod.models not in self._of_models:
                self._of_models[pod.models] = np.array([one in pod.models for one in self.models])
            mask &= self._of_models[pod.models]
        return mask

    def take(self, node: int, pod: Pod, device: int | None) -> None:
        """Give a share of this device, or the first free whole ones."""
        left = self.left[node]
        if pod.gpus and device is None:
            free = [index for index, one in enumerate(left) if one == WHOLE]
            for index in free[: pod.gpus]:
                left[index] = 0
        elif device is not None:
            left[device] -= pod.gpu_thousandths
        self.cpu[node] -= pod.cpu_thousandths
        self.memory[node] -= pod.memory_bytes
        self.total[node] -= pod.total_thousandths
        self._wholes[node] = left.count(WHOLE)
        self._largest[node] = max(left, default=0)


def is_share(pod: Pod) -> bool:
    """Whether it asks for a part of one device."""
    return 0 < pod.gpu_thousandths < WHOLE


def _fitting(left: list[int], pod: Pod) -> list[int]:
    return [index for index, one in enumerate(left) if one >= pod.gpu_thousandths]


class Random:
    """Any node that holds it, any device."""

    def __init__(self, machines: list[Machine], _pods: list[Pod], rng: random.Random) -> None:
        self._cluster = Cluster(machines)
        self._rng = rng

    def place(self, pod: Pod) -> bool:
        """Whether it found a node."""
        nodes = np.flatnonzero(self._cluster.holders(pod))
        if not len(nodes):
            return False
        node = int(self._rng.choice(nodes))
        left = self._cluster.left[node]
        device = self._rng.choice(_fitting(left, pod)) if is_share(pod) else None
        self._cluster.take(node, pod, device)
        return True


class BestFit:
    """The node with the least left, half cores and half GPUs; the device with the least left."""

    sign = -1

    def __init__(self, machines: list[Machine], _pods: list[Pod], _rng: random.Random) -> None:
        self._cluster = Cluster(machines)

    def place(self, pod: Pod) -> bool:
        """Whether it found a node."""
        cluster = self._cluster
        holders = cluster.holders(pod)
        left = 0.5 * (cluster.cpu - pod.cpu_thousandths) / MOST_CPU
        left += 0.5 * (cluster.total - pod.total_thousandths) / MOST_GPU
        scores = (100 * (left if self.sign > 0 else 1 - left)).astype(np.int64)
        node = int(np.where(holders, scores, -1).argmax())
        if not holders[node]:
            return False
        free = cluster.left[node]
        device = None
        if is_share(pod):
            device = min(_fitting(free, pod), key=lambda index: self.sign * -free[index])
        cluster.take(node, pod, device)
        return True


class WorstFit(BestFit):
    """The node and the device with the most left."""

    sign = 1


class _Kind(NamedTuple):
    """Requests that differ only in cores."""

    gpus: int
    gpu_thousandths: int
    models: frozenset[str]


class Target:
    """FGD's typical pods, and how much of a node's free GPUs they would leave unused.

    Expected fragmentation of a node (FGD, section 4.1): for each typical pod, weighted by how frequent it
    is, all that is free where the node does not hold it, and where it does the devices that are too small
    for it. A pod without GPUs leaves all unused. Memory is not looked at.
    """

    def __init__(self, pods: list[Pod]) -> None:
        counts = Counter(
            (pod.cpu_thousandths, pod.gpu_thousandths, pod.gpus, tuple(sorted(pod.models)))
            for pod in pods
        )
        ranked = sorted(((count, shape) for shape, count in counts.items()), reverse=True)
        covered, typical = 0, []
        for count, shape in ranked:
            if covered >= TYPICAL_SHARE * len(pods):
                break
            covered += count
            typical.append((count, shape))
        self._kinds: dict[_Kind, list[tuple[int, float]]] = {}
        for count, (cpu, thousandths, gpus, models) in typical:
            if gpus:
                kind = _Kind(gpus, thousandths, frozenset(models))
                self._kinds.setdefault(kind, []).append((cpu, count / covered))
        self._used: dict[tuple[int, ...], NDArray[np.float64]] = {}
        self._weights: dict[tuple[str, int], NDArray[np.float64]] = {}

    def fragmentation(self, model: str, left: tuple[int, ...], cpu: int) -> float:
        """Thousandths of GPUs expected to stay unused on a node with these devices, ascending."""
        if left not in self._used:
            self._used[left] = np.array([_usable(left, kind) for kind in self._kinds])
        if (model, cpu) not in self._weights:
            weights = (
                0.0 if kind.models and model not in kind.models else _weight_within(cpu, pairs)
                for kind, pairs in self._kinds.items()
            )
            self._weights[model, cpu] = np.array(list(weights))
        return sum(left) - float(self._used[left] @ self._weights[model, cpu])


def _usable(left: tuple[int, ...], kind: _Kind) -> int:
    fitting = [one for one in left if one >= kind.gpu_thousandths]
    return sum(fitting) if len(fitting) >= kind.gpus else 0


def _weight_within(cpu: int, pairs: list[tuple[int, float]]) -> float:
    return sum(weight for wanted, weight in pairs if wanted <= cpu)


class Fgd:
    """The node and the device where expected fragmentation grows least, for the whole list's mix."""

    def __init__(self, machines: list[Machine], pods: list[Pod], _rng: random.Random) -> None:
        self._cluster = Cluster(machines)
        self._target = Target(pods)
        self._ranks = Ranks(len(machines), self._score)

    def place(self, pod: Pod) -> bool:
        """Whether it found a node."""
        cluster = self._cluster
        holders = cluster.holders(pod)
        if not holders.any():
            return False
        shape = pod._replace(memory_bytes=0)
        node = int(np.where(holders, self._ranks.row(shape), -1).argmax())
        device = None
        if is_share(pod):
            free = cluster.left[node]
            fitting = _fitting(free, pod)
            device = max(fitting, key=lambda index: self._after(node, shape, free[index]))
        cluster.take(node, pod, device)
        self._ranks.changed(node)
        return True

    def _score(self, node: int, pod: Pod) -> int:
        left = self._cluster.left[node]
        if self._cluster.cpu[node] < pod.cpu_thousandths:
            return -1
        if is_share(pod):
            fitting = {one for one in left if one >= pod.gpu_thousandths}
            return max((self._after(node, pod, one) for one in fitting), default=-1)
        if left.count(WHOLE) < pod.gpus:
            return -1
        return self._after(node, pod, WHOLE)

    def _after(self, node: int, pod: Pod, from_device: int) -> int:
        """The score of taking from a device with so much left."""
        model, cpu = self._cluster.models[node], int(self._cluster.cpu[node])
        now = tuple(sorted(self._cluster.left[node]))
        then = list(now)
        for _ in range(pod.gpus):
            then[then.index(from_device)] -= pod.gpu_thousandths
        grown = self._target.fragmentation(
            model, tuple(sorted(then)), cpu - pod.cpu_thousandths
        ) - self._target.fragmentation(model, now, cpu)
        return int(100 / (1 + math.exp(grown / 1000)))


class Ranks:
    """The score of every node for each shape that was asked for, brought up to date when asked for."""

    def __init__(self, nodes: int, score: Callable[[int, Pod], int]) -> None:
        self._nodes = nodes
        self._score = score
        self._changes: list[int] = []
        self._rows: dict[Pod, tuple[int, Numbers]] = {}

    def changed(self, node: int) -> None:
        """Something was taken there."""
        self._changes.append(node)

    def row(self, shape: Pod) -> Numbers:
        """The scores of all nodes."""
        known, row = self._rows.get(shape, (0, None))
        if row is None:
            row, stale = np.zeros(self._nodes, np.int64), set(range(self._nodes))
        else:
            stale = set(self._changes[known:])
        for node in stale:
            row[node] = self._score(node, shape)
        self._rows[shape] = (len(self._changes), row)
        return row


POLICIES: Final[dict[str, Callable[[list[Machine], list[Pod], random.Random], Policy]]] = {
    "random": Random,
    "worstfit": WorstFit,
    "bestfit": BestFit,
    "fgd": Fgd,
    "ours": Ours,
}
