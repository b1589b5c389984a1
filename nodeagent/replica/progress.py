"""What a session would lose by being moved, as the run folder of its replica shows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nodeagent.safe_paths import open_folder
from nodeagent.shim import save_notice

if TYPE_CHECKING:
    from pathlib import Path

TOLD_EVERY_S = 30.0
"""A newer checkpoint is told of so often at most: each is a write in the platform's store."""

LOOKS_S = (0.5, 2.0)
"""Between two looks: the first, doubled up to the last. Until then a program that has bound is refused a requeue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`saved_at`: Unix seconds, by this machine's clock, of the newest checkpoint; 0: there is none.

    `saved_since` is the same by its steady clock, which nobody sets: `Looks` knows it.
    """

    is_resumable: bool = False
    saved_at: float = 0.0
    saved_since: float = field(default=0.0, compare=False)


class Looks:
    """What was found of one replica, look by look: how old a checkpoint is stays true when the wall clock is set."""

    def __init__(self) -> None:
        self._looked_at = -math.inf
        self._saved_at = self._since = 0.0

    def found(self, found: Progress, *, wall: float, steady: float) -> Progress:
        """The same with `saved_since`, by this machine's clocks: what was not there at the last look came after it."""
        if found.saved_at != self._saved_at:
            age_s = max(wall - found.saved_at, 0.0)
            self._saved_at, self._since = found.saved_at, max(steady - age_s, self._looked_at)
        self._looked_at = steady
        return replace(found, saved_since=self._since)


def read_progress(run: Path) -> Progress:
    """What the program of a run folder bound, and when it saved last. Raises OSError.

    Another attempt can go on from what is saved on notice, or was saved, and what it loads.
    """
    with open_folder(run, []) as folder:
        saves, loads = save_notice.bound(folder)
        saved_at = save_notice.saved_at(folder)
    return Progress(is_resumable=loads and (saves or saved_at > 0), saved_at=saved_at)
