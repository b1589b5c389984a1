"""Who waits for what of a session is committed; within one process and event loop."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Change:
    """One follower's notice: `wait` returns once per run of commits since it last returned."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Return when something was committed since the last return, at once if it already was."""
        await self._event.wait()
        self._event.clear()

    def set(self) -> None:
        """Something was committed."""
        self._event.set()


class Changes:
    """The followers by session."""

    def __init__(self) -> None:
        # Dictionaries for sets: who is told first must not depend on where things lie in memory.
        self._followers: dict[str, dict[Change, None]] = {}

    @contextmanager
    def follow(self, session_id: str) -> Iterator[Change]:
        """Be told of commits to a session while inside."""
        change = Change()
        self._followers.setdefault(session_id, {})[change] = None
        try:
            yield change
        finally:
            followers = self._followers[session_id]
            followers.pop(change, None)
            if not followers:
                del self._followers[session_id]

    def tell(self, session_ids: Iterable[str]) -> None:
        """These sessions were committed to; called in the event loop, after the commit."""
        for session_id in session_ids:
            for change in self._followers.get(session_id, ()):
                change.set()

    def tell_all(self) -> None:
        """Any session may have been committed to; called in the event loop."""
        self.tell(tuple(self._followers))
