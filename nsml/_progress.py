"""Progress records: how far a training is, for `nsml ps`."""

from __future__ import annotations

import json
import os
import time

from nsml._strict import comes_from_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

    from nsml._spool import Spool

EVERY_S = 1.0
"""Least time between two records of a training."""
_MOST = 1 << 53
_MOST_UNIT_CHARS, _MOST_ORIGIN_CHARS = 16, 32


class ProgressWriter:
    """Writes the progress of this process's training; raises nothing.

    A process has one writer, shared by all that report, so that nested trainings stay apart: the first to report is
    the outer one, and counts until all is done, or until `finish`.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._owner: Optional[str] = None
        self._pid = 0
        self._kind: Tuple[str, Any] = ("", None)  # unit and total of the last record
        self._due = 0.0
        self._written: Any = None

    def write(
        self,
        done: float,
        of: float,
        unit: str,
        origin: str = "",
        ends_at: Optional[float] = None,
    ) -> None:
        """Record that `done` of `of` units (0: unknown) are done.

        At most once per second, but always when all is done, and when the unit or `of` changes. Only the first process
        of a session writes.

        Args:
            done: may be a fraction.
            of: the total; 0 if it is unknown.
            unit: 1 to 16 of a-z, plural: "epochs", "steps".
            origin: who reports, up to 32 of a-z and _.
            ends_at: the program's own estimate, in Unix seconds.
        """
        try:
            self._write(done, of, unit, origin, ends_at)
        except Exception as error:
            if comes_from_signal(error):
                raise

    def _write(
        self, done: float, of: float, unit: str, origin: str, ends_at: Optional[float]
    ) -> None:
        now = time.monotonic()
        is_over = done >= of > 0
        kind = (unit, of)
        if kind == self._kind and now < self._due and not is_over:
            return
        pid = os.getpid()
        if self._owner is not None and (origin != self._owner or pid != self._pid):
            return
        if not is_first():
            self._kind, self._due = kind, now + EVERY_S
            return
        if not _is_text(unit, _MOST_UNIT_CHARS):
            return
        done, of = float(done), float(of)
        if not (0 <= done <= _MOST and 0 <= of <= _MOST):
            return
        if is_over and (kind, done) == (self._kind, self._written):
            return  # once is enough
        record: Dict[str, Any] = {"kind": "progress", "time": time.time()}
        record.update(done=done, of=of, unit=unit)
        if origin and _is_text(origin.replace("_", "a"), _MOST_ORIGIN_CHARS):
            record["origin"] = origin
        if ends_at is not None and 0 <= float(ends_at) <= _MOST:
            record["ends_at"] = float(ends_at)
        self._kind, self._due, self._written = kind, now + EVERY_S, done
        self._owner, self._pid = (None if is_over else origin), pid
        self._spool.append(json.dumps(record).encode())

    def finish(self, done: float, of: float, unit: str, origin: str = "") -> None:
        """Record where a training ended, maybe early; from now on another one may report."""
        if origin != self._owner or os.getpid() != self._pid:
            return
        if done != self._written:
            self._due = 0.0
            self.write(done, of, unit, origin)
        self._owner = None


def _is_text(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isascii() and text.isalpha() and text.islower()


def is_first() -> bool:
    """Return whether this process is the one of its gang that saves and reports progress.

    Launchers of a process per device number them in RANK (torchrun, accelerate) or, within
    a node, in LOCAL_RANK alone (Lightning).
    """
    rank = os.environ.get("RANK")
    ranks = [rank] if rank else [os.environ.get("NSML_RANK"), os.environ.get("LOCAL_RANK")]
    return all(rank in (None, "", "0") for rank in ranks)
