"""The platform's request to save and exit: read here, handled by `nsml._session`.

The platform writes `notice.json` into the run folder; docs/giving-way.md specifies a program's options.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` has, without loading that
import json
import os
import threading
import time
from contextlib import suppress

from nsml._rights import create

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

EXIT_CODE = 75
"""Exit code after saving on a notice: EX_TEMPFAIL of sysexits.h, "try again later"."""

LOOK_S = 0.25
"""Shortest interval between checks for a notice; checks in between cost no system call."""

_NOTICE = "notice.json"
_RESUMABLE = "resumable.json"
_LEFT = "left.json"


class Notice:
    """A notice from the platform.

    Args:
        goes: whether the program must exit after saving; else it has until its time limit.
        reason: for people.
    """

    def __init__(self, goes: bool, reason: str) -> None:
        self.goes = goes
        self.reason = reason


class Leaving:
    """Notices in `run_dir`, as seen by one process; none if that is ""."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._looked_at = 0.0
        self._mark: Optional[Tuple[int, int]] = None
        self._notice: Optional[Notice] = None
        self._answered: Optional[Tuple[int, int]] = None
        self._seen_at = 0.0
        self.claim()

    def claim(self) -> None:
        """Make the calling thread the training thread: it alone saves on a notice."""
        self._trainer = (os.getpid(), threading.get_ident())

    def is_trainer(self) -> bool:
        """Return whether the calling thread is the training thread."""
        return self._trainer == (os.getpid(), threading.get_ident())

    def is_time(self, now: float) -> bool:
        """Return whether a check is due, by the clock of `now`, which may be set back."""
        return not 0.0 <= now - self._looked_at < LOOK_S

    @property
    def is_waiting(self) -> bool:
        """Whether there is an unanswered notice."""
        return self._mark != self._answered

    def waited_s(self) -> float:
        """Return the age of the last notice, in seconds."""
        return time.monotonic() - self._seen_at

    def notice(self) -> Optional[Notice]:
        """Return the last notice, at most `LOOK_S` old."""
        now = time.time()
        if self._run_dir and self.is_time(now):
            self._looked_at = now
            self._look()
        return self._notice

    def unanswered(self) -> Optional[Notice]:
        """Return the last notice to the training thread, until it is `answered`."""
        notice = self.notice()
        if notice is None or self._mark == self._answered:
            return None
        return notice if self.is_trainer() else None

    def answered(self) -> None:
        """Record that the notice was handled, or cannot be."""
        self._answered = self._mark

    def can_resume(self, save: bool, load: bool) -> None:
        """Report to the platform which functions the program has bound."""
        self._write(_RESUMABLE, {"save": save, "load": load})

    def leave(self, checkpoint: str) -> None:
        """Report to the platform that all is saved, and end the program."""
        self._write(_LEFT, {"checkpoint": checkpoint})
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(EXIT_CODE)
        # SystemExit in another thread would not end the program.
        os.kill(os.getpid(), _signal.SIGTERM)

    def _look(self) -> None:
        path = os.path.join(self._run_dir, _NOTICE)
        try:
            facts = os.stat(path)
            mark = (facts.st_ino, facts.st_mtime_ns)
            if mark == self._mark:
                return
            with open(path, "rb") as file:
                said = json.load(file)
            self._notice = Notice(bool(said.get("goes")), str(said.get("reason", "")))
            self._mark = mark
            self._seen_at = time.monotonic()
        except (OSError, ValueError, AttributeError):
            return  # missing, or unreadable for this version

    def _write(self, name: str, content: Dict[str, Any]) -> None:
        if not self._run_dir:
            return
        path = os.path.join(self._run_dir, name)
        staged = f"{path}.{os.getpid()}"
        with suppress(OSError):  # a full disk must not stop training
            with suppress(FileNotFoundError):
                os.unlink(staged)
            with open(create(staged), "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(staged, path)
