"""Limits of a session of `nsml submit`: a thread that ends the process when it takes too long or writes too much."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

from nsml._endings import end
from nsml.spec.submission_exits import NOT_PAUSED, PREDICTION_TIMEOUT, TOO_LARGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_PAUSED_WITHIN_S = 600.0
_PREDICT_S = 3600.0
_LOOK_S = 0.5
_MARK = "paused"
_NOT_PAUSED = (
    "The time between running a session and the part where a 'nsml.paused()' is called should be less than"
    " {:g} seconds."
)


def number(variable: str, default: float) -> float:
    """Return a positive number of the environment."""
    try:
        value = float(os.environ.get(variable) or default)
    except ValueError:
        return default
    return value if value > 0 else default


class Watch:
    """A thread that ends the process at a limit.

    Only the process of the program's start is watched, not its workers, which import nsml as well.
    """

    def __init__(self, run_dir: str) -> None:
        self._mark = os.path.join(run_dir, _MARK)
        self._changed = threading.Condition()
        self._ends_at = 0.0
        self._code = NOT_PAUSED
        self._why = ""
        self._file, self._most_bytes = "", 0
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Wait for `paused`, if this is the first process of the session that imports nsml."""
        first = os.environ.setdefault("NSML_STAGE_PROCESS", str(os.getpid()))
        if first == str(os.getpid()):
            within_s = number("NSML_PAUSED_WITHIN_S", _PAUSED_WITHIN_S)
            self._limit(within_s, NOT_PAUSED, _NOT_PAUSED.format(within_s))

    def paused(self) -> None:
        """Note that `nsml.paused` was called, maybe in a process that the watched one has started."""
        with suppress(OSError):
            open(self._mark, "wb").close()
        with self._changed:
            self._ends_at = 0.0
            self._changed.notify_all()

    def predicting(self, limit_s: float) -> None:
        """Limit the time from here on."""
        why = f"the prediction was not completed within {limit_s:g} seconds"
        self._limit(limit_s, PREDICTION_TIMEOUT, why)

    def writing(self, file: str, most_bytes: int) -> None:
        """Limit the size of a file while it is written."""
        with self._changed:
            self._file, self._most_bytes = file, most_bytes
            self._changed.notify_all()

    def lift(self) -> None:
        """Watch nothing any more."""
        with self._changed:
            self._ends_at, self._file = 0.0, ""
            self._changed.notify_all()

    def _limit(self, limit_s: float, code: int, why: str) -> None:
        with self._changed:
            self._ends_at = time.monotonic() + limit_s
            self._code, self._why = code, why
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="nsml limits", daemon=True)
            with suppress(RuntimeError):  # no more threads: the session's time limit remains
                self._thread.start()

    def _watch(self) -> None:
        while True:
            with self._changed:
                left = self._ends_at - time.monotonic() if self._ends_at else None
                if left is None or left > 0:
                    longest = _LOOK_S if self._file else 3600.0
                    self._changed.wait(longest if left is None else min(left, longest))
                    if self._is_too_large():
                        end(TOO_LARGE, too_large(self._most_bytes))
                    continue
                code, why = self._code, self._why
                if code == NOT_PAUSED and os.path.exists(self._mark):
                    self._ends_at = 0.0  # in another process of the session
                    continue
            end(code, why)

    def _is_too_large(self) -> bool:
        try:
            return bool(self._file) and os.lstat(self._file).st_size > self._most_bytes
        except OSError:
            return False


def too_large(most_bytes: int) -> str:
    """Return the text for a prediction over its limit."""
    return f"the prediction has more than {most_bytes:,} bytes, which this dataset does not accept"


def predict_s() -> float:
    """Return how long a prediction may take, in seconds."""
    return number("NSML_PREDICT_S", _PREDICT_S)
