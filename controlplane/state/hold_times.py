"""How long attempts have held their devices, by this process's own steady clock.

Charges are for elapsed time. The wall clock says when an attempt was placed, also to control planes
started later; but it can be set, and those of two machines differ. A steady clock that saw the
placement is more reliable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_LATE_S: Final = 60.0
"""Largest delay of seeing others' writes: by then everything has been listed again."""


@dataclass(frozen=True, slots=True)
class _Seen:
    attempt: int
    at: float
    late_s: float


class HoldTimes:
    """When attempts were first seen.

    Args:
        monotonic: seconds of a clock that is never set.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, _Seen] = {}

    def placed(self, session_id: str, attempt: int, *, by_us: bool = False) -> None:
        """Record that an attempt was just placed, by us or by another control plane."""
        known = self._seen.get(session_id)
        if known is None or known.attempt < attempt:
            self._seen[session_id] = _Seen(attempt, self._monotonic(), MOST_LATE_S)
        if by_us:
            at = self._seen[session_id].at
            self._seen[session_id] = _Seen(attempt, at, 0.0)

    def forget(self, session_id: str) -> None:
        """Forget a removed session."""
        self._seen.pop(session_id, None)

    def held_s(self, session_id: str, attempt: int, *, by_wall_s: float) -> float:
        """Return seconds since an attempt was placed; `by_wall_s` is the wall clock's value.

        The latter counts if it is possible: always for an attempt placed before our start.
        """
        seen = self._seen.get(session_id)
        if seen is None or seen.attempt != attempt:
            return max(by_wall_s, 0.0)
        at_least_s = self._monotonic() - seen.at
        is_possible = at_least_s <= by_wall_s <= at_least_s + seen.late_s
        return by_wall_s if is_possible else at_least_s
