"""What accounts held lately, kept up by what happens; see `scheduler/fair_share.py` for the rule.

As with budgets (`usage.py`) nothing is a counter: it follows from the attempts of live sessions and from one row of
the history's ledger for each that ended, and every attempt counts once. Sessions that are live here are counted by
what we see of them, and their rows passed over; one that leaves the store stays counted. When the ledger is read
again, its rows count in place of all sessions that had left before the reading began.

An account is known when it has had a session here, or has a record. Until the ledger was read it is ordered by what is live.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Final

from controlplane.scheduler.fair_share import HALF_LIFE_S, Past, counts_since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from controlplane.domain.values import EndedAttempt, Session
    from controlplane.operations.usage import Charge

AFRESH_EVERY_S: Final = 3600.0
"""How often the ledger is read again for an account, against an end that was not heard of."""


class _Followed:
    """A session that is counted by what we see of it: its ended attempts, and what runs since when."""

    __slots__ = ("attempt", "attempts", "gpu", "since")

    def __init__(self) -> None:
        self.attempts: tuple[EndedAttempt, ...] = ()
        self.attempt = 0
        self.gpu = 0
        self.since = 0.0


class _Account:
    __slots__ = ("followed", "past", "reading")

    def __init__(self, past: Past) -> None:
        self.past = past
        self.followed: dict[str, _Followed] = {}
        self.reading: Reading | None = None


class Reading:
    """The ledger is being read for an account.

    Args:
        past: empty.
    """

    def __init__(self, account: _Account, past: Past) -> None:
        self._account = account
        self._past = past
        self.left: set[str] = set()
        """Sessions that left since it began: whether rows of them are read depends on when."""

    def take(self, charges: Iterable[tuple[str, Charge]]) -> None:
        """Count rows, by session id."""
        for session_id, one in charges:
            if session_id not in self._account.followed:
                self._past.held(one.gpu_thousandths, one.ended_at - one.seconds, one.ended_at)

    def finish(self) -> None:
        """All rows were taken; without this what was known before stays."""
        account = self._account
        for one in account.followed.values():
            _count(self._past, one.attempts)
            if one.gpu:
                self._past.step(one.gpu, one.since)
        account.past = self._past


class Pasts:
    """Of every account; nothing here waits.

    Args:
        held_s: for how long, at an instant, a session that is placed has held its devices.
        half_life_s: 0: nothing is kept, and accounts are ordered by what they hold now.
    """

    def __init__(
        self, held_s: Callable[[Session, float], float], half_life_s: float = HALF_LIFE_S
    ) -> None:
        self.half_life_s = half_life_s
        self._held_s = held_s
        self._accounts: dict[str, _Account] = {}
        self._placed: dict[str, Session] = {}
        self._unread: dict[str, None] = {}
        self._read_at: dict[str, float] = {}
        """By account; whoever was read longest ago comes first."""

    def put_project(self, name: str) -> None:
        """A project has a record: its share is shown, whether it has sessions or not."""
        if self.half_life_s:
            self._account(name)

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account(Past(self.half_life_s))
            self._unread[name] = None
        return account

    def put_session(self, session: Session) -> None:
        """A session is new or changed."""
        if not self.half_life_s:
            return
        account = self._account(session.project or session.owner)
        attempt = session.attempt if session.state.holds_devices else 0
        followed = account.followed.get(session.id)
        if followed is None:
            if not attempt and not session.attempts:
                return
            followed = account.followed[session.id] = _Followed()
        if len(session.attempts) > len(followed.attempts):
            _count(account.past, session.attempts[len(followed.attempts) :])
            followed.attempts = session.attempts
        if attempt != followed.attempt:
            _stop(account.past, followed)
            followed.attempt = attempt
            if attempt:
                self._placed[session.id] = session
            else:
                self._placed.pop(session.id, None)

    def remove_session(self, session: Session) -> None:
        """A session left; what it is charged for stays."""
        account = self._accounts.get(session.project or session.owner)
        followed = account.followed.get(session.id) if account else None
        if account is None or followed is None:
            return
        self._placed.pop(session.id, None)
        _stop(account.past, followed)
        if account.reading is None:
            del account.followed[session.id]
        else:
            account.reading.left.add(session.id)

    @property
    def placed(self) -> int:
        """How many were placed of which it is not noted since when."""
        return len(self._placed)

    def settle(self, now: float, most: int) -> None:
        """Note since when those run that were placed, at most so many; their allocations are known by now."""
        for session_id in list(islice(self._placed, most)):
            session = self._placed.pop(session_id)
            account = self._accounts[session.project or session.owner]
            followed = account.followed[session_id]
            followed.gpu = sum(one.resources.gpu_thousandths for one in session.replicas)
            followed.since = now - self._held_s(session, now)
            account.past.step(followed.gpu, followed.since)

    def unread(self, at: float) -> str | None:
        """An account for which the ledger is to be read, the most urgent first; `at`: a steady clock."""
        for name in self._unread:
            return name
        for name, read_at in self._read_at.items():
            return name if at - read_at >= AFRESH_EVERY_S else None
        return None

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Reading]:
        """The ledger is read for an account, from `since` on; one reading at a time."""
        account = self._accounts[name]
        account.reading = Reading(account, Past(self.half_life_s))
        try:
            yield account.reading
        finally:
            left, account.reading = account.reading.left, None
            for session_id in left:
                account.followed.pop(session_id, None)

    def was_read(self, name: str, at: float) -> None:
        """What the ledger has of an account is counted."""
        self._unread.pop(name, None)
        self._read_at.pop(name, None)
        self._read_at[name] = at

    def is_known(self, name: str) -> bool:
        """Whether all that counts of what an account used is counted, not only what is live."""
        return name in self._read_at or not self.half_life_s

    def since(self, now: float) -> float:
        """The instant from which on rows count."""
        return counts_since(now, self.half_life_s)

    def accounts(self) -> list[str]:
        """The names of all that are known."""
        return list(self._accounts)

    def lately(self, name: str, now: float) -> float:
        """What one held lately; 0 for one that is not known."""
        account = self._accounts.get(name)
        return account.past.lately(now) if account else 0.0


def _count(past: Past, attempts: Iterable[EndedAttempt]) -> None:
    for one in attempts:
        past.held(one.gpu_thousandths, one.ended_at - one.held_s, one.ended_at)


def _stop(past: Past, followed: _Followed) -> None:
    """What runs does not any more: it is counted as an ended attempt, or from the ledger."""
    past.step(-followed.gpu, followed.since)
    followed.gpu = 0
