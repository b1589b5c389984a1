"""The request of the platform that a program saves, and leaves: read here, answered by `nsml._session`.

The platform writes `notice.json` into the run folder; docs/giving-way.md says what a program may do.
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
"""Of a program that has saved and left: EX_TEMPFAIL of sysexits.h, "try again later"."""

LOOK_S = 0.25
"""How often a notice is looked for at most; in between a look costs no system call."""

_NOTICE = "notice.json"
_RESUMABLE = "resumable.json"
_LEFT = "left.json"


class Notice:
    """What the platform said.

    Args:
        goes: whether the program is to exit once it has saved; else it has until its time limit.
        reason: for people.
    """

    def __init__(self, goes: bool, reason: str) -> None:
        self.goes = goes
        self.reason = reason


class Leaving:
    """Notices in `run_dir`, as one process sees them; none when that is ""."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._looked_at = 0.0
        self._mark: Optional[Tuple[int, int]] = None
        self._notice: Optional[Notice] = None
        self._answered: Optional[Tuple[int, int]] = None
        self._seen_at = 0.0
        self.claim()

    def claim(self) -> None:
        """The calling thread is the one that trains: it alone saves on a notice."""
        self._trainer = (os.getpid(), threading.get_ident())

    def is_trainer(self) -> bool:
        """Whether the calling thread is the one that trains."""
        return self._trainer == (os.getpid(), threading.get_ident())

    def is_time(self, now: float) -> bool:
        """Whether it is time for a look, by the clock that `now` was read from; it may be set back."""
        return not 0.0 <= now - self._looked_at < LOOK_S

    @property
    def is_waiting(self) -> bool:
        """Whether a notice was seen that is not answered."""
        return self._mark != self._answered

    def waited_s(self) -> float:
        """How long ago the last notice was seen first, in seconds."""
        return time.monotonic() - self._seen_at

    def notice(self) -> Optional[Notice]:
        """What was said last, as of a moment ago."""
        now = time.time()
        if self._run_dir and self.is_time(now):
            self._looked_at = now
            self._look()
        return self._notice

    def unanswered(self) -> Optional[Notice]:
        """What was said last, for the thread that trains, until it is `answered`."""
        notice = self.notice()
        if notice is None or self._mark == self._answered:
            return None
        return notice if self.is_trainer() else None

    def answered(self) -> None:
        """Whatever the notice asks for was done, or cannot be."""
        self._answered = self._mark

    def can_resume(self, save: bool, load: bool) -> None:
        """Tell the platform what the program has bound."""
        self._write(_RESUMABLE, {"save": save, "load": load})

    def leave(self, checkpoint: str) -> None:
        """Tell the platform that all is saved, and end the program."""
        self._write(_LEFT, {"checkpoint": checkpoint})
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(EXIT_CODE)
        # The exit of another thread would not end the program.
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
            return  # none, or none that this version can read

    def _write(self, name: str, content: Dict[str, Any]) -> None:
        if not self._run_dir:
            return
        path = os.path.join(self._run_dir, name)
        staged = f"{path}.{os.getpid()}"
        with suppress(OSError):  # a full disk ends no training
            with suppress(FileNotFoundError):
                os.unlink(staged)
            with open(create(staged), "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(staged, path)
