"""In which order submissions are looked at: those with news first, each by one worker at a time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

URGENT_TOGETHER: Final = 8
"""As many with news go first until one of the others does: results that stay on their way hold up no new submission."""


class WorkQueue:
    """Submissions that wait for a worker, by id. One that is added while it is looked at is looked at again."""

    def __init__(self) -> None:
        self._passed_by = 0
        self._urgent: dict[str, None] = {}
        self._others: dict[str, None] = {}
        self._taken: set[str] = set()
        self._changed = asyncio.Event()

    def add_urgent(self, ids: Iterable[str]) -> None:
        """Add submissions with news."""
        for one in ids:
            self._others.pop(one, None)
            self._urgent.setdefault(one)
        self._changed.set()

    def add(self, ids: Iterable[str]) -> None:
        """Add submissions that come after those with news."""
        for one in ids:
            if one not in self._urgent:
                self._others.setdefault(one)
        self._changed.set()

    @asynccontextmanager
    async def next(self) -> AsyncGenerator[str, None]:
        """Wait for the next one, and keep others from it until the block ends."""
        while (one := self._chosen()) is None:
            self._changed.clear()
            await self._changed.wait()
        if one in self._urgent:
            del self._urgent[one]
            self._passed_by += 1
        else:
            del self._others[one]
            self._passed_by = 0
        self._taken.add(one)
        try:
            yield one
        finally:
            self._taken.discard(one)
            self._changed.set()

    def _chosen(self) -> str | None:
        lines = [self._urgent, self._others]
        if self._passed_by >= URGENT_TOGETHER:
            lines.reverse()
        for line in lines:
            for one in line:
                if one not in self._taken:
                    return one
        return None
