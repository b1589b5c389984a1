"""The order of the queue: the lines of a pass, grouped by account, so that one placement moves one account.

First a small session of each user who holds nothing, by their right, then by class, fair share of the account, and
rank. Within an account class goes before this right, and classes below NORMAL have none: a user's session of a higher
class goes first, and fairness is no reason to start a session that is for spare room only.

`queue_listing.py` lists the queue in this order.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.scheduler.entitlement import Account, Entitlements
    from controlplane.scheduler.queue_classes import Queue, QueueClass, Rank

Turn = tuple[bool, int, float, "Rank"]
"""Whether it has no right to go first, the negated class, the share of the account, and the rank of the line:
smallest first."""
_Level = tuple[bool, int]
"""The first two fields of a turn."""


def is_owed(line: QueueClass, entitlements: Entitlements, queue: Queue) -> bool:
    """Return whether the owner of a line holds nothing, and so has a right to one of its sessions first."""
    return (
        line.has_right
        and entitlements.has_nothing(line.owner)
        and line.priority == queue.highest_of(line.account)
    )


class _Standing:
    """The share of an account; it changes when one of its sessions is placed."""

    __slots__ = ("account", "changes", "share")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.share = account.share
        self.changes = 0


class _Group:
    """The lines of one class and account, best first.

    Attributes:
        owner: the user with a right to one of them; "": none.
        is_owed: whether that right counts now: not while a higher class of the account waits.
        standing: of the account.
        seen: the standing's `changes` when the turn of the group was computed.
    """

    __slots__ = ("is_owed", "lines", "owner", "priority", "seen", "standing")

    def __init__(self, priority: int, standing: _Standing, owner: str) -> None:
        self.priority = priority
        self.standing = standing
        self.owner = owner
        self.is_owed = False
        self.seen = -1
        self.lines: list[_Ranked] = []


# Flat, since they are compared many times for each placement: a nested tuple costs twice as much.
_Ranked = tuple[int, float, str, "QueueClass"]
"""The rank of a line, and the line."""
_Entry = tuple[float, int, float, str, _Group]
"""The share of the account, the rank of the first line, and the group."""


class Turns:
    """The lines of one pass in the order of service, as placements change it.

    A placement changes only the share of its account: the lines of an account are grouped, and only
    accounts that reach the front are updated.

    Args:
        lines: lines that may have room; `fits` None: no more room.
        queue: for waiting classes; the caller updates it during the pass.
        entitlements: for shares, and users who hold nothing; likewise.
        now: Unix seconds.
        patience: sessions that waited for so many seconds are due.
    """

    def __init__(
        self,
        lines: Iterable[QueueClass],
        queue: Queue,
        entitlements: Entitlements,
        now: float,
        patience: float,
    ) -> None:
        self._queue = queue
        self._entitlements = entitlements
        self._now = now
        self._patience = patience
        standings: dict[str, _Standing] = {}
        groups: dict[tuple[int, str, str], _Group] = {}
        for line in lines:
            name, owner = line.account, line.owner
            owed = owner if line.has_right and entitlements.has_nothing(owner) else ""
            key = (line.priority, name, owed)
            group = groups.get(key)
            if group is None:
                standing = standings.get(name)
                if standing is None:
                    standing = standings[name] = _Standing(entitlements.account(name))
                group = groups[key] = _Group(line.priority, standing, owed)
            group.lines.append((*line.rank(now, patience), line))
        self._levels: dict[_Level, list[_Entry]] = {}
        # Groups whose right is suspended by a higher class of their account.
        self._without_right: dict[str, list[_Group]] = {}
        for group in groups.values():
            heapify(group.lines)
            if group.owner:
                name = group.standing.account.name
                group.is_owed = group.priority == queue.highest_of(name)
                if not group.is_owed:
                    self._without_right.setdefault(name, []).append(group)
            self._levels.setdefault(_level(group), []).append(self._entry(group))
        for heap in self._levels.values():
            heapify(heap)
        self._level: _Level = (False, 0)
        self._heap: list[_Entry] = []
        self._begin_level()

    def _begin_level(self) -> bool:
        """Start the next level; return whether there is one."""
        if not self._levels:
            return False
        self._level = min(self._levels)
        self._heap = self._levels.pop(self._level)
        return True

    @staticmethod
    def _entry(group: _Group) -> _Entry:
        """Return a group's heap entry in its level: ranks are unique, so groups are never compared."""
        standing = group.standing
        group.seen = standing.changes
        precedence, created_at, session_id, _ = group.lines[0]
        return (standing.share, precedence, created_at, session_id, group)

    def next(self) -> tuple[QueueClass, Account] | None:
        """Return the next line, and its account; None if none is left."""
        while self._heap or self._begin_level():
            group = self._heap[0][4]
            if not group.lines:
                heappop(self._heap)
                continue
            line = group.lines[0][3]
            if line.fits is None:
                self._drop_full(group)
            elif group.is_owed and not self._entitlements.has_nothing(group.owner):
                self._owe_nothing(group)
            elif group.seen == (standing := group.standing).changes:
                return line, standing.account
            else:
                heapreplace(self._heap, self._entry(group))
        return None

    def _owe_nothing(self, group: _Group) -> None:
        """Move the first group to the level of its class without a right."""
        group.owner, group.is_owed = "", False
        heappop(self._heap)
        heappush(self._levels.setdefault(_level(group), []), self._entry(group))

    def _give_back_rights(self, name: str) -> None:
        """Activate the right of a lower class, if no session of a higher one of this account is left."""
        without = self._without_right.pop(name, [])
        highest = self._queue.highest_of(name)
        for group in without:
            if group.priority != highest:
                self._without_right.setdefault(name, []).append(group)
            elif group.lines and self._entitlements.has_nothing(group.owner):
                # Its old entry becomes a group without lines, which is skipped.
                again = _Group(group.priority, group.standing, group.owner)
                again.is_owed = True
                again.lines, group.lines = group.lines, []
                if self._heap:
                    self._levels[self._level] = self._heap
                heappush(self._levels.setdefault(_level(again), []), self._entry(again))
                self._begin_level()

    def served(self) -> None:
        """Note that the head of the current line was placed, and its account holds more."""
        group = self._heap[0][4]
        standing, lines = group.standing, group.lines
        standing.share = standing.account.share
        standing.changes += 1
        line = lines[0][3]
        if line.fits is None:
            self.passed()
            self._give_back_rights(standing.account.name)
            return
        heapreplace(lines, (*line.rank(self._now, self._patience), line))
        heapreplace(self._heap, self._entry(group))

    def passed(self) -> None:
        """Remove the current line from the pass."""
        group = self._heap[0][4]
        heappop(group.lines)
        self._again(group)

    def _drop_full(self, group: _Group) -> None:
        """Remove lines without room from the front of the first group."""
        lines = group.lines
        while lines and lines[0][3].fits is None:
            heappop(lines)
        self._again(group)

    def _again(self, group: _Group) -> None:
        """Update the heap after a change of the first group's lines."""
        if group.lines:
            heapreplace(self._heap, self._entry(group))
        else:
            heappop(self._heap)


def _level(group: _Group) -> _Level:
    return (not group.is_owed, -group.priority)
