"""Who wants to be told of which changes."""

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
"""Subscribes to what is announced: no key is named so."""


class Subscription:
    """Changes since the last `take`, the newest of each key: a slow reader costs little memory.

    Args:
        wants: of a change; what its reader does not want does not wait for him.
    """

    def __init__(self, wants: Wanted | None = None) -> None:
        self._wants = wants
        self._pending: dict[str, Change] = {}
        self._wake = asyncio.Event()

    def add(self, key: str, change: Change) -> None:
        """Note a change."""
        # Removed first, so that changes come in the order of their last occurrence.
        self._pending.pop(key, None)
        if self._wants is None or self._wants(change):
            self._pending[key] = change
            self._wake.set()

    def poke(self) -> None:
        """Let a waiting `take` return, with or without changes."""
        self._wake.set()

    def drain(self) -> list[Change]:
        """Everything noted since the last call; never waits."""
        changes = list(self._pending.values())
        self._pending.clear()
        self._wake.clear()
        return changes

    async def take(self) -> list[Change]:
        """Wait for something to do and give the changes."""
        await self._wake.wait()
        return self.drain()


class Subscriptions:
    """The subscriptions by key."""

    def __init__(self) -> None:
        # Dictionaries for sets: who is told first must not depend on where things lie in memory.
        self._by_key: dict[str, dict[Subscription, None]] = {}

    @contextlib.contextmanager
    def subscribed(self, *keys: str, wants: Wanted | None = None) -> Iterator[Subscription]:
        """Changes of these keys from now on."""
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
        """Whether anybody subscribed to exactly this."""
        return key in self._by_key

    def poke(self, group: str) -> None:
        """Wake those who subscribed to `group`, though nothing that they know changed."""
        for subscription in self._by_key.get(group, ()):
            subscription.poke()

    def tell(self, key: str, change: Change) -> None:
        """A key changed."""
        self.tell_only(EVERYTHING, key, change)
        self.tell_only(key, key, change)

    def tell_only(self, group: str, key: str, change: Change) -> None:
        """Tell of a change of `key` those who subscribed to `group`."""
        for subscription in self._by_key.get(group, ()):
            subscription.add(key, change)
