"""Whose turn it is: the lines of a pass, served account by account, so that one placement moves one account."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.scheduler.entitlement import Entitlements
    from controlplane.scheduler.lines import Line, Rank

Turn = tuple[bool, int, float, "Rank"]
"""Whether nothing is owed, the class, the share of the account, and the rank of the line: the smallest comes first."""
_Level = tuple[bool, int]
"""The first two of these, which come before all else."""


class _Standing:
    """What the turns of an account's lines depend on; it changes when one of its sessions is placed."""

    __slots__ = ("changes", "name", "share")

    def __init__(self, name: str, share: float) -> None:
        self.name = name
        self.share = share
        self.changes = 0


class _Group:
    """The lines of one class and account, best first.

    Attributes:
        owner: who is owed a small session; "": nobody.
        seen: how often the account had changed when the turn of the group was worked out.
    """

    __slots__ = ("account", "lines", "owner", "priority", "seen")

    def __init__(self, priority: int, account: _Standing, owner: str) -> None:
        self.priority = priority
        self.account = account
        self.owner = owner
        self.seen = -1
        self.lines: list[tuple[Rank, Line]] = []


_Entry = tuple[float, "Rank", _Group]
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
        accounts: dict[str, _Standing] = {}
        groups: dict[tuple[int, str, str], _Group] = {}
        for line in lines:
            name, owner = line.account, line.owner
            owed = owner if line.is_small and entitlements.has_nothing(owner) else ""
            key = (line.priority, name, owed)
            group = groups.get(key)
            if group is None:
                account = accounts.get(name)
                if account is None:
                    account = accounts[name] = _Standing(name, entitlements.share(name))
                group = groups[key] = _Group(line.priority, account, owed)
            group.lines.append((line.rank(now, patience), line))
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
        account = group.account
        group.seen = account.changes
        return (account.share, group.lines[0][0], group)

    def next(self) -> Line | None:
        """The line whose turn it is; None when nobody is left."""
        while self._heap or self._begin_level():
            group = self._heap[0][2]
            line = group.lines[0][1]
            if line.fits is None:
                self._drop_full(group)
            elif group.owner and not self._entitlements.has_nothing(group.owner):
                self._owe_nothing(group)
            elif group.seen == group.account.changes:
                return line
            else:
                heapreplace(self._heap, self._entry(group))
        return None

    def _owe_nothing(self, group: _Group) -> None:
        """Let the first group stand with those of its class to whom nothing is owed."""
        group.owner = ""
        heappop(self._heap)
        heappush(self._levels.setdefault(self._level(group), []), self._entry(group))

    def served(self) -> None:
        """The first of the line whose turn it was was placed."""
        group = self._heap[0][2]
        account, line = group.account, group.lines[0][1]
        account.share = self._entitlements.share(account.name)
        account.changes += 1
        if line.fits is None:
            self.passed()
            return
        heapreplace(group.lines, (line.rank(self._now, self._patience), line))
        heapreplace(self._heap, self._entry(group))

    def passed(self) -> None:
        """The line whose turn it was has none any more."""
        group = self._heap[0][2]
        heappop(group.lines)
        self._again(group)

    def _drop_full(self, group: _Group) -> None:
        """Pass over the lines at the front of the first group for which there is no room."""
        lines = group.lines
        while lines and lines[0][1].fits is None:
            heappop(lines)
        self._again(group)

    def _again(self, group: _Group) -> None:
        """The first group has other lines than before."""
        if group.lines:
            heapreplace(self._heap, self._entry(group))
        else:
            heappop(self._heap)
