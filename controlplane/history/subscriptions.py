"""Who waits for what of a session is committed; within one process and event loop."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


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


class Touched:
    """One follower's notice of all sessions: which of them were committed to."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._is_any = False

    def add(self, names: Iterable[str]) -> None:
        """These were committed to, or must be looked at for another reason."""
        self._names.update(names)

    def add_all(self) -> None:
        """Any of them may have been."""
        self._is_any = True

    def take(self) -> set[str] | None:
        """Those since the last call; None: any of them may be among them."""
        names, is_any = self._names, self._is_any
        self._names, self._is_any = set(), False
        return None if is_any else names


class Changes:
    """The followers by session, and those of all."""

    def __init__(self) -> None:
        # Dictionaries for sets: who is told first must not depend on where things lie in memory.
        self._followers: dict[str, dict[Change, None]] = {}
        self._touched: dict[Touched, None] = {}

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

    @contextmanager
    def follow_all(self) -> Iterator[Touched]:
        """Be told of commits to any session while inside."""
        touched = Touched()
        self._touched[touched] = None
        try:
            yield touched
        finally:
            del self._touched[touched]

    def tell(self, session_ids: Collection[str]) -> None:
        """These sessions were committed to; called in the event loop, after the commit."""
        for touched in self._touched:
            touched.add(session_ids)
        for session_id in session_ids:
            for change in self._followers.get(session_id, ()):
                change.set()

    def tell_all(self) -> None:
        """Any session may have been committed to; called in the event loop."""
        self.tell(tuple(self._followers))
        for touched in self._touched:
            touched.add_all()
