"""Whose turn it is: the lines of a pass, served account by account, so that one placement moves one account."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.scheduler.entitlement import Account, Entitlements
    from controlplane.scheduler.lines import Line, Rank

Turn = tuple[bool, int, float, "Rank"]
"""Whether nothing is owed, the class, the share of the account, and the rank of the line: the smallest comes first."""
_Level = tuple[bool, int]
"""The first two of these, which come before all else."""


class _Standing:
    """What the turns of an account's lines depend on; it changes when one of its sessions is placed."""

    __slots__ = ("account", "changes", "share")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.share = account.share
        self.changes = 0


class _Group:
    """The lines of one class and account, best first.

    Attributes:
        owner: who is owed a small session; "": nobody.
        standing: of the account.
        seen: how often that had changed when the turn of the group was worked out.
    """

    __slots__ = ("lines", "owner", "priority", "seen", "standing")

    def __init__(self, priority: int, standing: _Standing, owner: str) -> None:
        self.priority = priority
        self.standing = standing
        self.owner = owner
        self.seen = -1
        self.lines: list[_Ranked] = []


# Flat, as two of them are compared many times for each placement: what is in a tuple of its own costs twice as much.
_Ranked = tuple[int, float, str, "Line"]
"""The rank of a line, and the line."""
_Entry = tuple[float, int, float, str, _Group]
"""The share of the account, the rank of the first line, and the group."""


class Turns:
    """The lines of one pass in the order in which they are served, as placements change it.

    A placement changes the share of its account alone: the lines of an account are kept together, and only
    those accounts are looked at again that come to the front.

    Args:
        lines: those that may have room; one whose `fits` becomes None has none any more.
        entitlements: shares, and who holds nothing; changed by whoever places.
        now: Unix seconds.
        patience: who waited for so many seconds is due.
    """

    def __init__(
        self, lines: Iterable[Line], entitlements: Entitlements, now: float, patience: float
    ) -> None:
        self._entitlements = entitlements
        self._now = now
        self._patience = patience
        standings: dict[str, _Standing] = {}
        groups: dict[tuple[int, str, str], _Group] = {}
        for line in lines:
            name, owner = line.account, line.owner
            owed = owner if line.is_small and entitlements.has_nothing(owner) else ""
            key = (line.priority, name, owed)
            group = groups.get(key)
            if group is None:
                standing = standings.get(name)
                if standing is None:
                    standing = standings[name] = _Standing(entitlements.account(name))
                group = groups[key] = _Group(line.priority, standing, owed)
            group.lines.append((*line.rank(now, patience), line))
        # Nobody comes into an earlier level while a plan is made, and so these are gone through once.
        self._levels: dict[_Level, list[_Entry]] = {}
        for group in groups.values():
            heapify(group.lines)
            self._levels.setdefault(self._level(group), []).append(self._entry(group))
        for heap in self._levels.values():
            heapify(heap)
        self._heap: list[_Entry] = []
        self._begin_level()

    def _begin_level(self) -> bool:
        """Go on with the first level that is left; whether there is one."""
        if not self._levels:
            return False
        self._heap = self._levels.pop(min(self._levels))
        return True

    def _level(self, group: _Group) -> _Level:
        is_owed = group.owner != "" and self._entitlements.has_nothing(group.owner)
        return (not is_owed, -group.priority)

    @staticmethod
    def _entry(group: _Group) -> _Entry:
        """Where a group stands within its level: no two ranks are the same, and so groups are never compared."""
        standing = group.standing
        group.seen = standing.changes
        precedence, created_at, session_id, _ = group.lines[0]
        return (standing.share, precedence, created_at, session_id, group)

    def next(self) -> tuple[Line, Account] | None:
        """The line whose turn it is, and its account; None when nobody is left."""
        while self._heap or self._begin_level():
            group = self._heap[0][4]
            line = group.lines[0][3]
            if line.fits is None:
                self._drop_full(group)
            elif group.owner and not self._entitlements.has_nothing(group.owner):
                self._owe_nothing(group)
            elif group.seen == (standing := group.standing).changes:
                return line, standing.account
            else:
                heapreplace(self._heap, self._entry(group))
        return None

    def _owe_nothing(self, group: _Group) -> None:
        """Let the first group stand with those of its class to whom nothing is owed."""
        group.owner = ""
        heappop(self._heap)
        heappush(self._levels.setdefault(self._level(group), []), self._entry(group))

    def served(self) -> None:
        """The first of the line whose turn it was was placed, and its account holds more."""
        group = self._heap[0][4]
        standing, lines = group.standing, group.lines
        standing.share = standing.account.share
        standing.changes += 1
        line = lines[0][3]
        if line.fits is None:
            self.passed()
            return
        heapreplace(lines, (*line.rank(self._now, self._patience), line))
        heapreplace(self._heap, self._entry(group))

    def passed(self) -> None:
        """The line whose turn it was has none any more."""
        group = self._heap[0][4]
        heappop(group.lines)
        self._again(group)

    def _drop_full(self, group: _Group) -> None:
        """Pass over the lines at the front of the first group for which there is no room."""
        lines = group.lines
        while lines and lines[0][3].fits is None:
            heappop(lines)
        self._again(group)

    def _again(self, group: _Group) -> None:
        """The first group has other lines than before."""
        if group.lines:
            heapreplace(self._heap, self._entry(group))
        else:
            heappop(self._heap)
