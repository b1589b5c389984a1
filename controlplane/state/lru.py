"""A memory with a bound: what was used last is kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class LruDict(Generic[K, V]):
    """Values by key, those used last; reading one and asking for it count as use.

    Args:
        most: how much is kept, in what `weigh` gives; the newest is kept whatever it weighs.
        weigh: of a value, at least 0; without it each weighs 1.
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
        """The value, or None when it is not, or no longer, here."""
        return self._values[key] if key in self else None

    def keep(self, key: K, value: V) -> None:
        """Remember a value, in place of what the key had, and forget what is used least."""
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))
        self._values[key] = value
        self._weight += self._weigh(value)
        while self._weight > self._most and len(self._values) > 1:
            self._weight -= self._weigh(self._values.popitem(last=False)[1])

    def forget(self, key: K) -> None:
        """Forget a value, if it is here."""
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))

    def forget_where(self, is_meant: Callable[[K], bool]) -> None:
        """Forget all values whose keys are meant."""
        for key in [one for one in self._values if is_meant(one)]:
            self.forget(key)

    def values(self) -> tuple[V, ...]:
        """All that is here; none of it counts as used."""
        return tuple(self._values.values())
