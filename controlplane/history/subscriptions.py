"""Subscriptions to commits of sessions; within one process and event loop."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


class Change:
    """One follower's subscription: `wait` returns once per run of commits since it last returned."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Wait for a commit since the last return; immediate if there was one."""
        await self._event.wait()
        self._event.clear()

    async def wait_for(self, most_s: float) -> bool:
        """Like `wait`, but at most so long; False if nothing was committed."""
        try:
            async with asyncio.timeout(most_s):
                await self.wait()
        except TimeoutError:
            return False
        return True

    def set(self) -> None:
        """Report a commit."""
        self._event.set()


class Touched:
    """One follower's subscription to all sessions: the ids of changed ones."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._is_any = False

    def add(self, names: Iterable[str]) -> None:
        """Add sessions with commits, or to be checked for another reason."""
        self._names.update(names)

    def add_all(self) -> None:
        """Report that any session may have commits."""
        self._is_any = True

    def take(self) -> set[str] | None:
        """Return the sessions since the last call; None: possibly any."""
        names, is_any = self._names, self._is_any
        self._names, self._is_any = set(), False
        return None if is_any else names


class Changes:
    """The followers by session, and the followers of all."""

    def __init__(self) -> None:
        # Dictionaries as ordered sets: the order of notifications must be deterministic.
        self._followers: dict[str, dict[Change, None]] = {}
        self._touched: dict[Touched, None] = {}

    @contextmanager
    def follow(self, *names: str) -> Iterator[Change]:
        """Subscribe to commits to sessions, or to other things by their keys, while inside."""
        change = Change()
        for name in names:
            self._followers.setdefault(name, {})[change] = None
        try:
            yield change
        finally:
            for name in dict.fromkeys(names):
                followers = self._followers[name]
                followers.pop(change, None)
                if not followers:
                    del self._followers[name]

    @contextmanager
    def follow_all(self) -> Iterator[Touched]:
        """Subscribe to commits to any session while inside."""
        touched = Touched()
        self._touched[touched] = None
        try:
            yield touched
        finally:
            del self._touched[touched]

    def tell(self, session_ids: Collection[str]) -> None:
        """Notify followers of these sessions; called in the event loop, after the commit."""
        for touched in self._touched:
            touched.add(session_ids)
        for session_id in session_ids:
            for change in self._followers.get(session_id, ()):
                change.set()

    def tell_all(self) -> None:
        """Notify all followers: any session may have commits; called in the event loop."""
        self.tell(tuple(self._followers))
        for touched in self._touched:
            touched.add_all()
