"""Subscriptions to changes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from controlplane.domain.changes import Change

    Wanted = Callable[[Change], bool]

EVERYTHING: Final = ""
"""Subscribes to all keys."""

VIEWED: Final = "viewed"
"""Subscribes to announcements: no key has this name."""


class Subscription:
    """Changes since the last `take`, the newest of each key: a slow reader costs little memory.

    Args:
        wants: whether to keep a change for the reader; others are dropped.
    """

    def __init__(self, wants: Wanted | None = None) -> None:
        self._wants = wants
        self._pending: dict[str, Change] = {}
        self._wake = asyncio.Event()

    def add(self, key: str, change: Change) -> None:
        """Add a change."""
        # Removed first, so that changes are in the order of their last occurrence.
        self._pending.pop(key, None)
        if self._wants is None or self._wants(change):
            self._pending[key] = change
            self._wake.set()

    def poke(self) -> None:
        """Let a waiting `take` return, with or without changes."""
        self._wake.set()

    def drain(self) -> list[Change]:
        """Return all changes since the last call; never waits."""
        changes = list(self._pending.values())
        self._pending.clear()
        self._wake.clear()
        return changes

    async def take(self) -> list[Change]:
        """Wait for changes or a poke, and return the changes."""
        await self._wake.wait()
        return self.drain()


class Subscriptions:
    """The subscriptions by key."""

    def __init__(self) -> None:
        # Dictionaries as sets: the order of notification must not depend on memory addresses.
        self._by_key: dict[str, dict[Subscription, None]] = {}

    @contextlib.contextmanager
    def subscribed(self, *keys: str, wants: Wanted | None = None) -> Iterator[Subscription]:
        """Subscribe to changes of these keys from now on."""
        subscription = Subscription(wants)
        for key in keys:
            self._by_key.setdefault(key, {})[subscription] = None
        try:
            yield subscription
        finally:
            for key in keys:
                group = self._by_key[key]
                group.pop(subscription, None)
                if not group:
                    del self._by_key[key]

    def has(self, key: str) -> bool:
        """Whether this exact key has subscribers."""
        return key in self._by_key

    def poke(self, group: str) -> None:
        """Wake the subscribers of `group` without a change."""
        for subscription in self._by_key.get(group, ()):
            subscription.poke()

    def tell(self, key: str, change: Change) -> None:
        """Publish a change of a key."""
        self.tell_only(EVERYTHING, key, change)
        self.tell_only(key, key, change)

    def tell_only(self, group: str, key: str, change: Change) -> None:
        """Publish a change of `key` to the subscribers of `group`."""
        for subscription in self._by_key.get(group, ()):
            subscription.add(key, change)
