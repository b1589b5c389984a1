"""Fair order of relaying: users take turns, and so do the tunnels of each."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class FairQueue:
    """Pieces of work of users, each to be done once.

    Args:
        call_soon: schedules a function for the loop's next round, after other pending callbacks.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._work: dict[str, deque[Callable[[], None]]] = {}

    def add(self, user: str, work: Callable[[], None]) -> None:
        """Run it at the user's turn."""
        if not self._work:
            self._call_soon(self._round)
        self._work.setdefault(user, deque()).append(work)

    def _round(self) -> None:
        """Run one piece of each user."""
        due = [work.popleft() for work in self._work.values()]
        self._work = {user: work for user, work in self._work.items() if work}
        if self._work:
            self._call_soon(self._round)
        for work in due:
            work()
