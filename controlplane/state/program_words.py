"""What the processes of running programs said last of the changes that are made to them.

Soft: agents say all of it anew on every stream, so a new leader knows it once they are connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.program_changes import Said


class ProgramWords:
    """By session and attempt; a replica's agent says all of its processes each time."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, int], dict[int, tuple[Said, ...]]] = {}

    def say(self, session_id: str, attempt: int, rank: int, said: Iterable[Said]) -> None:
        """What the processes of a replica say now."""
        self._said.setdefault((session_id, attempt), {})[rank] = tuple(said)

    def of(self, session_id: str, attempt: int) -> list[Said]:
        """The last word of each process of an attempt."""
        known = self._said.get((session_id, attempt), {})
        return [one for rank in sorted(known) for one in known[rank]]

    def forget(self, session_id: str, before_attempt: int | None = None) -> None:
        """Nothing of a session is needed any more, or of its attempts before this one."""
        for key in [key for key in self._said if key[0] == session_id]:
            if before_attempt is None or key[1] < before_attempt:
                del self._said[key]
