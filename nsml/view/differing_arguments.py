"""Finds the arguments that distinguish sessions. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class Shared(NamedTuple, Generic[T]):
    """Arguments of several sessions: those with the same value in all, and the others."""

    same: Mapping[str, T]
    differing: tuple[str, ...]
    """Names, the most distinguishing first."""

    def rank(self, name: str) -> int:
        """Return a sort key: differing arguments in their order, then the same ones."""
        return self.differing.index(name) if name in self.differing else len(self.differing)


NOTHING_SHARED: Shared[str | bool] = Shared({}, ())


class Differing(Generic[T]):
    """Counts how many sessions have each value of each argument."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[T]] = {}
        self._sessions = 0

    def add(self, given: Mapping[str, T]) -> None:
        """Add the arguments of one session."""
        self._sessions += 1
        for name, value in given.items():
            self._counts.setdefault(name, Counter())[value] += 1

    @property
    def shared(self) -> Shared[T]:
        """The result so far; equally distinguishing names are in the order of their first occurrence."""
        same = {
            name: next(iter(values))
            for name, values in self._counts.items()
            if len(values) == 1 and values.total() == self._sessions
        }
        others = [name for name in self._counts if name not in same]
        return Shared(same, tuple(sorted(others, key=self._alike)))

    def _alike(self, name: str) -> float:
        """Return how alike sessions are in an argument: the higher the entropy of its values, the lower; a missing one is a value, too."""
        values = self._counts[name]
        counts = [*values.values(), self._sessions - values.total()]
        # Rounded, so that the order of equal ones does not depend on the order of summation.
        return round(math.fsum(count * math.log(count) for count in counts if count), 9)
