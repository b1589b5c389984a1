"""A bounded cache: the least recently used values are dropped."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class LruDict(Generic[K, V]):
    """The most recently used values by key; `get` and `in` count as use.

    Args:
        most: the total weight kept; the newest value is kept whatever its weight.
        weigh: returns the weight of a value, at least 0; by default each weighs 1.
    """

    def __init__(self, most: int, *, weigh: Callable[[V], int] = lambda _: 1) -> None:
        self._most = most
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        if key not in self._values:
            return False
        self._values.move_to_end(key)
        return True

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Return the value, or None if it is not cached, or not any more."""
        return self._values[key] if key in self else None

    def keep(self, key: K, value: V) -> None:
        """Cache a value, replacing the key's old one, and drop the least recently used ones."""
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))
        self._values[key] = value
        self._weight += self._weigh(value)
        while self._weight > self._most and len(self._values) > 1:
            self._weight -= self._weigh(self._values.popitem(last=False)[1])

    def forget(self, key: K) -> None:
        """Drop a value, if it is cached."""
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))

    def forget_where(self, is_meant: Callable[[K], bool]) -> None:
        """Drop all values with matching keys."""
        for key in [one for one in self._values if is_meant(one)]:
            self.forget(key)

    def values(self) -> tuple[V, ...]:
        """Return all values; this does not count as use."""
        return tuple(self._values.values())
