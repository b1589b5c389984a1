"""The last reports of running programs' processes on changes made to them.

Soft state: agents resend all reports on every stream, so a new leader has them once they are connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.program_changes import Said


class ProgramWords:
    """Reports by session and attempt; each report of a replica's agent covers all its processes."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, int], dict[int, tuple[Said, ...]]] = {}

    def say(self, session_id: str, attempt: int, rank: int, said: Iterable[Said]) -> None:
        """Replace the reports of a replica's processes."""
        self._said.setdefault((session_id, attempt), {})[rank] = tuple(said)

    def of(self, session_id: str, attempt: int) -> list[Said]:
        """Return the last report of each process of an attempt."""
        known = self._said.get((session_id, attempt), {})
        return [one for rank in sorted(known) for one in known[rank]]

    def forget(self, session_id: str, before_attempt: int | None = None) -> None:
        """Drop the reports of a session, or only of its attempts before this one."""
        for key in [key for key in self._said if key[0] == session_id]:
            if before_attempt is None or key[1] < before_attempt:
                del self._said[key]
