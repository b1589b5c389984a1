"""Which arguments tell sessions apart. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class Shared(NamedTuple, Generic[T]):
    """Arguments of several sessions: those with one value in all of them, and the others."""

    same: Mapping[str, T]
    differing: tuple[str, ...]
    """Names, those that tell most sessions apart first."""

    def rank(self, name: str) -> int:
        """A sort key: arguments that differ in their order, then those that are the same."""
        return self.differing.index(name) if name in self.differing else len(self.differing)


NOTHING_SHARED: Shared[str | bool] = Shared({}, ())


class Differing(Generic[T]):
    """Counts how many sessions have each value of each argument."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[T]] = {}
        self._sessions = 0

    def add(self, given: Mapping[str, T]) -> None:
        """Count the arguments of one session more."""
        self._sessions += 1
        for name, value in given.items():
            self._counts.setdefault(name, Counter())[value] += 1

    @property
    def shared(self) -> Shared[T]:
        """What was counted so far; names are in the order in which they were met where they tell equally many apart."""
        same = {
            name: next(iter(values))
            for name, values in self._counts.items()
            if len(values) == 1 and values.total() == self._sessions
        }
        others = [name for name in self._counts if name not in same]
        return Shared(same, tuple(sorted(others, key=self._alike)))

    def _alike(self, name: str) -> float:
        """How alike sessions are in an argument: the lower, the higher the entropy of its values; none is a value, too."""
        values = self._counts[name]
        counts = [*values.values(), self._sessions - values.total()]
        # Rounded, so that equal ones stay in their order whatever the sum is taken in.
        return round(math.fsum(count * math.log(count) for count in counts if count), 9)
