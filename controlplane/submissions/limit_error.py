"""The error of a submission that a board's limit does not allow yet."""

from __future__ import annotations

from controlplane.domain.errors import LimitReached
from nsml.common.units import moment


class SubmissionLimitReached(LimitReached):
    """Too many submissions of a participant in the window.

    Args:
        full: OWNER/NAME of the dataset.
        next_at: when the next one is permitted, Unix seconds.
    """

    def __init__(self, full: str, next_at: float, *, why: str) -> None:
        self._next_at = moment(next_at)
        super().__init__(
            f"{full} takes no more submissions of yours now",
            why=why,
            attempt=f"again at {self._next_at}\nnsml submit -t ...    dry runs have no limit",
        )

    @property
    def details(self) -> dict[str, str]:
        """As of the base class, with the next permitted instant in RFC 3339."""
        return {**super().details, "next_at": self._next_at}
