"""Progress that a session would lose by being moved, read from the run folder of its replica."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nodeagent.safe_paths import open_folder
from nodeagent.shim import save_notice

if TYPE_CHECKING:
    from pathlib import Path

TOLD_EVERY_S = 30.0
"""Minimum interval of reports of newer checkpoints: each is a write in the platform's store."""

LOOKS_S = (0.5, 2.0)
"""Interval of looks: the first, doubled up to the last. Until then a newly bound program cannot be requeued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`saved_at`: Unix seconds, by this machine's clock, of the newest checkpoint; 0: none.

    `saved_since` is the same on the monotonic clock; set by `Looks`.
    """

    is_resumable: bool = False
    saved_at: float = 0.0
    saved_since: float = field(default=0.0, compare=False)


class Looks:
    """Observations of one replica: the age of a checkpoint stays right when the wall clock is set."""

    def __init__(self) -> None:
        self._looked_at = -math.inf
        self._saved_at = self._since = 0.0

    def found(self, found: Progress, *, wall: float, steady: float) -> Progress:
        """Set `saved_since`, by this machine's clocks: a new checkpoint came after the last look."""
        if found.saved_at != self._saved_at:
            age_s = max(wall - found.saved_at, 0.0)
            self._saved_at, self._since = found.saved_at, max(steady - age_s, self._looked_at)
        self._looked_at = steady
        return replace(found, saved_since=self._since)


def read_progress(run: Path) -> Progress:
    """Return whether the program of a run folder is resumable, and its last save. Raises OSError.

    Another attempt can resume from a save, made on notice or before, that the program loads.
    """
    with open_folder(run, []) as folder:
        saves, loads = save_notice.bound(folder)
        saved_at = save_notice.saved_at(folder)
    return Progress(is_resumable=loads and (saves or saved_at > 0), saved_at=saved_at)
