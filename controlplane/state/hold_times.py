"""How long attempts have held their devices, by this process's own steady clock.

Charges are for time that passed. The wall clock says when an attempt was placed, also to a control plane
that was not there; but it can be set, and those of two machines differ. Who saw an attempt being
placed knows better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_LATE_S: Final = 60.0
"""What others write is heard of so late at most: by then everything has been listed again."""


@dataclass(frozen=True, slots=True)
class _Seen:
    attempt: int
    at: float
    late_s: float


class HoldTimes:
    """Since when attempts are known.

    Args:
        monotonic: seconds of a clock that nobody sets.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, _Seen] = {}

    def placed(self, session_id: str, attempt: int, *, by_us: bool = False) -> None:
        """An attempt has been placed just now, by us or by another control plane."""
        known = self._seen.get(session_id)
        if known is None or known.attempt < attempt:
            self._seen[session_id] = _Seen(attempt, self._monotonic(), MOST_LATE_S)
        if by_us:
            at = self._seen[session_id].at
            self._seen[session_id] = _Seen(attempt, at, 0.0)

    def forget(self, session_id: str) -> None:
        """The session is no more."""
        self._seen.pop(session_id, None)

    def held_s(self, session_id: str, attempt: int, *, by_wall_s: float) -> float:
        """Seconds since an attempt was placed; `by_wall_s` is what the wall clock says of it.

        That stands as far as it can be true: for one that was placed before we were here, always.
        """
        seen = self._seen.get(session_id)
        if seen is None or seen.attempt != attempt:
            return max(by_wall_s, 0.0)
        at_least_s = self._monotonic() - seen.at
        is_possible = at_least_s <= by_wall_s <= at_least_s + seen.late_s
        return by_wall_s if is_possible else at_least_s
