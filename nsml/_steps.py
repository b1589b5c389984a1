"""`nsml.steps`: a range that skips the steps already done in the loaded checkpoint.

A checkpoint has the number of done steps of each loop in a small file beside the program's own.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from nsml._notice import notice
from nsml._progress import EVERY_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

FILE = ".nsml-steps"
_MOST_LOOPS = 1000
_LONGEST_FILE = 64 << 10


class Progress:
    """Counts the done steps of each loop of this process, in the order in which the loops began.

    Args:
        begins: called before the first step of a loop.
        step_ended: called between two steps: the program may save there, and exit.
    """

    def __init__(self, begins: Callable[[], None], step_ended: Callable[[], None]) -> None:
        self._begins = begins
        self._step_ended = step_ended
        self.step_begins: Optional[Callable[[int], None]] = None
        """Called with each value of a loop before the program gets it."""
        self.progressed: Optional[Callable[[int, int], None]] = None
        """Called about once per second with the done steps of a loop, and all its steps."""
        self.loop_ended: Optional[Callable[[int, int], None]] = None
        """Called with them when a loop ends, maybe early."""
        self._resumed: List[int] = []
        self._done: List[int] = []
        self._is_looping = self._has_hinted = False
        self.is_in_step = False
        """Whether a step has begun and not ended."""

    def steps(self, *bounds: Any) -> Steps:
        """Return `range(...)` without the steps already done.

        `for epoch in nsml.steps(20):` continues after the step of the checkpoint loaded by `nsml.bind` or
        `nsml.paused`; without one it is `range(20)`. A checkpoint counts the step in
        which it is saved as done, so save at the end of a step. On a notice the program saves between
        two steps. Several consecutive loops are allowed; a nested loop is a plain range.

        Raises:
            TypeError, ValueError: as for `range`.
        """
        return Steps(self, range(*bounds))

    def resume(self, done: List[int]) -> None:
        """Skip the done steps of a loaded checkpoint."""
        if not self._done:
            self._resumed = done
        elif any(done):
            notice(
                "nsml.steps began before the checkpoint was loaded, and counts from its first step; "
                "call nsml.bind before it"
            )

    def done(self, *, is_midway: bool = False) -> List[int]:
        """Return the done steps of each loop, for a checkpoint saved now.

        `is_midway`: the current step is not done.
        """
        done = self._done + self._resumed[len(self._done) :]
        if is_midway and self.is_in_step:
            done[len(self._done) - 1] -= 1
        return done

    def left(self, steps: range) -> range:
        """Return the remaining steps of a loop that begins now."""
        number = len(self._done)
        if self._is_looping or number >= len(self._resumed):
            return steps
        return steps[self._resumed[number] :]

    def run(self, steps: range) -> Iterator[int]:
        """Yield the remaining steps of one loop."""
        if self._is_looping or len(self._done) >= _MOST_LOOPS:
            if not self._has_hinted:
                self._has_hinted = True
                notice("nsml.steps within another nsml.steps counts from its first step each time")
            yield from steps
            return
        self._begins()
        left = self.left(steps)
        number, before = len(self._done), len(steps) - len(left)
        self._done.append(before)
        self._is_looping = True
        of, progressed, clock = len(steps), self.progressed, time.monotonic
        if progressed is not None:
            progressed(before, of)
        due = clock() + EVERY_S
        try:
            for count, step in enumerate(left, start=before + 1):
                if self.step_begins is not None:
                    self.step_begins(step)
                self._done[number] = count
                self.is_in_step = True
                yield step
                self.is_in_step = False
                self._step_ended()
                if progressed is not None and clock() >= due:
                    progressed(count, of)
                    due = clock() + EVERY_S
        finally:
            done = self._done[number] - self.is_in_step
            self._is_looping = self.is_in_step = False
            if self.loop_ended is not None:
                self.loop_ended(done, of)


class Steps:
    """The result of `nsml.steps`: it has a length, for progress bars."""

    def __init__(self, progress: Progress, steps: range) -> None:
        self._progress = progress
        self._steps = steps

    def __iter__(self) -> Iterator[int]:
        return self._progress.run(self._steps)

    def __len__(self) -> int:
        return len(self._progress.left(self._steps))

    def __repr__(self) -> str:
        return f"nsml.steps({self._steps!r})"


def write_done(folder: str, done: List[int], made: Optional[Dict[str, Any]] = None) -> None:
    """Write the done steps, and the changes made, beside the files of a checkpoint. Raises OSError."""
    with open(os.path.join(folder, FILE), "w", encoding="ascii") as file:
        json.dump({"done": done, **({"made": made} if made else {})}, file)


def read_done(folder: str, *, remove: bool = False) -> Tuple[List[int], Dict[str, Any]]:
    """Read the done steps of a checkpoint, and the changes made until then; empty if not recorded.

    `remove`: delete the file: the folder is the program's own copy.
    """
    path = os.path.join(folder, FILE)
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_LONGEST_FILE))
            done, made = found.get("done"), found.get("made")
    except (OSError, ValueError, AttributeError, RecursionError):
        done = made = None
    if remove:
        with suppress(OSError):
            os.unlink(path)
    if not isinstance(done, list) or len(done) > _MOST_LOOPS:
        done = []
    is_counted = all(type(count) is int and 0 <= count < 1 << 62 for count in done)
    return done if is_counted else [], made if isinstance(made, dict) else {}
