"""Changes to a running program at one common step of all its processes: setting knobs, pauses, loading checkpoints.

A change is prepared in all processes before any of them applies it: each reports that it has not reached step `at`, and
waits there for the decision. `Follower` decides what one process does and reports. It has no clock, no files and no
threads; `nsml._live` executes its decisions.
"""

from __future__ import annotations

from math import isfinite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

COUNTERS = ("step", "steps", "report", "optimizer")
"""Step counters of a program, in order of preference."""

APPLY, WAIT, READ_BACK = "apply", "wait", "read back"
"""Next action of a process: apply the change, wait for the decision, read the values in force."""

_KINDS = frozenset(("set", "pause", "continue", "load"))
_PHASES = frozenset(("ask", "prepare", "commit", "withdrawn"))
_FINAL = frozenset(("applied", "done", "failed"))
_MEASURING = ""
"""State: requested, but not yet answered: the duration of a step is being measured."""
_MEASURES_S = 1.0
_BEGINS_S = 60.0
"""A younger program may not have started to count its steps."""
_READ_WITHIN_S = 10.0
"""In a program without step counters a knob may stay unread this long before that is reported."""
_LARGEST = 1 << 62  # limit of valid step numbers
_DEFAULT_LIMIT_S = 3600.0


class Change:
    """A change from the platform. Raises ValueError for an unsupported one."""

    __slots__ = (
        "at",
        "by",
        "checkpoint",
        "counter",
        "kind",
        "limit_s",
        "number",
        "phase",
        "session",
        "values",
    )

    def __init__(self, raw: Any) -> None:
        if not isinstance(raw, dict):
            raise ValueError("a change is no object")  # noqa: TRY004 - as of all else that is wrong
        number: Any = raw.get("number")
        self.number: int = number
        self.phase = raw.get("phase")
        self.kind = raw.get("kind")
        self.counter = str(raw.get("counter") or "")
        at: Any = raw.get("at")
        self.at: Optional[int] = at
        self.values = raw.get("values") or {}
        self.checkpoint = str(raw.get("checkpoint") or "")
        self.session = str(raw.get("session") or "")
        self.by = str(raw.get("by") or "")
        limit_s = raw.get("limit_s")
        is_limit = type(limit_s) in (int, float) and 0 < limit_s < 1e9  # type: ignore[operator]
        self.limit_s = float(limit_s) if is_limit else _DEFAULT_LIMIT_S  # type: ignore[arg-type]
        if type(self.number) is not int or self.phase not in _PHASES or self.kind not in _KINDS:
            raise ValueError("a change of a kind that this version of nsml does not know")
        if self.at is not None and type(self.at) is not int:
            raise ValueError("the step of a change is no integer")
        if self.at is None:
            self.counter = ""
        if not isinstance(self.values, dict) or not all(type(one) is str for one in self.values):
            raise ValueError("the values of a change have no names")

    @property
    def place(self) -> Tuple[str, Optional[int]]:
        """The counter and step of the change."""
        return (self.counter, self.at)


class Unread:
    """Values that were set, not yet known to be in force."""

    __slots__ = ("counter", "is_due", "number", "set_at_s", "values")

    def __init__(self, number: int, counter: str, values: Dict[str, List[Any]], now: float) -> None:
        self.number = number
        self.counter = counter
        self.values = values
        self.set_at_s = now
        self.is_due = False

    def tick(self, counter: str, now: float, are_read: Optional[bool]) -> None:
        """Decide at a safe point whether to read the values in force now."""
        if self.counter:
            is_due = are_read is True or counter == self.counter
        else:
            is_due = are_read is not False or not 0 <= now - self.set_at_s < _READ_WITHIN_S
        self.is_due = self.is_due or is_due


class Follower:
    """A process's state of changes, and its step counters.

    Args:
        positions: the last number of each counter.
        began_s: start of the process. All times are from one clock, in seconds.
    """

    def __init__(self, positions: Dict[str, int], began_s: float = float("-inf")) -> None:
        self.positions = positions
        self._began_s = began_s
        self.is_paused = False
        self.change: Optional[Change] = None
        self.unread: Optional[Unread] = None
        self.step_s: Dict[str, float] = {}
        self._is = _MEASURING
        self._is_committed = False
        self._is_over = True  # nothing more is reported about `change`
        self.begins_with_it = False
        """Whether `change` was decided before this process started."""
        self.last_over = 0
        """The number of the last change that this process applied, or continued without."""
        self._position: Optional[int] = None
        self._values: Dict[str, List[Any]] = {}
        self._reason = ""
        self._asked_at_s = 0.0
        self._marks: Dict[str, Tuple[float, int, float, int]] = {}

    # Input from the platform.

    def hear(self, change: Optional[Change], now: float, refusal: Callable[[Change], str]) -> None:
        """Process the platform's current change; None: there is none.

        `refusal` returns why this process cannot apply a change, "" if it can.
        """
        mine = self.change
        if change is not None and mine is not None and change.number < mine.number:
            return  # from an agent with outdated data
        if change is None or change.phase == "withdrawn":
            self._is_over = True
            return
        is_same = mine is not None and mine.number == change.number
        if is_same and self._is in _FINAL:
            self._is_over = False
            return
        self._take(change, mine if is_same and not self._is_over else None, now, refusal)

    def _take(
        self,
        change: Change,
        known: Optional[Change],
        now: float,
        refusal: Callable[[Change], str],
    ) -> None:
        """Adopt a change that is not yet applied; `known` is its earlier state."""
        is_place_known = known is not None and known.place == change.place
        if change.phase == "commit":
            self._committed(change, is_place_known=is_place_known)
        elif change.phase == "prepare":
            if not is_place_known or (known is not None and known.phase == "ask"):
                self._prepared(change, refusal)
        elif known is None or known.phase != "ask":
            self._asked(change, now, refusal)

    def _adopt(self, change: Change, state: str, why: str = "") -> None:
        self.change = change
        self._is, self._reason = state, why
        self._is_committed = self._is_over = self.begins_with_it = False
        self._values = {}
        self._position = None

    def _asked(self, change: Change, now: float, refusal: Callable[[Change], str]) -> None:
        why = refusal(change)
        self._adopt(change, "refused" if why else _MEASURING, why)
        if not why:
            self._asked_at_s = now
            self._marks = {}
            if self.is_paused:  # else at the end of this safe point, at which a counter may start
                self._measure(now)

    def _prepared(self, change: Change, refusal: Callable[[Change], str]) -> None:
        why = refusal(change)
        if why:
            self._adopt(change, "refused", why)
            return
        self._adopt(change, "late" if self._is_beyond(change) else "prepared")

    def _committed(self, change: Change, *, is_place_known: bool) -> None:
        if is_place_known and self._is == "missed":
            return
        has_waited = is_place_known and self._is in ("prepared", "waiting")
        state = self._is if has_waited else "prepared"
        # A process that started later begins with the values in force, as with those of earlier changes.
        is_new = self.change is None or self.change.number != change.number
        begins_with_it = is_new and change.kind == "set"
        is_missed = not (has_waited or begins_with_it) and self._is_beyond(change)
        self._adopt(change, "missed" if is_missed else state)
        self.begins_with_it = begins_with_it
        if is_missed:
            self.last_over = change.number
            where = f"{change.counter} {self.positions.get(change.counter)}"
            self._reason = f"it was decided when this process was at {where} already"
        self._is_committed = not is_missed

    def _is_beyond(self, change: Change) -> bool:
        """Whether the step of the change has passed."""
        position = self.positions.get(change.counter)
        if position is None or change.at is None:
            return False
        return position > change.at if self.is_paused else position >= change.at

    # Progress of the process.

    def tick(
        self,
        counter: str,
        number: Optional[int],
        now: float,
        *,
        are_read: Optional[bool] = None,
    ) -> None:
        """Process a safe point, at which a counter may have reached a number.

        `counter` is "" at a safe point without a counter; `are_read`: whether the program has read all values last set,
        None if unknown.
        """
        is_tick = bool(counter) and is_position(number)
        if is_tick and number is not None:
            self.positions[counter] = number
        if self.change is not None and self._is == _MEASURING and not self._is_over:
            if is_tick and number is not None:
                first = self._marks.get(counter, (now, number, now, number))
                self._marks[counter] = (first[0], first[1], now, number)
            self._measure(now)
        if self.unread is not None:
            self.unread.tick(counter if is_tick else "", now, are_read)

    def _measure(self, now: float) -> None:
        """Answer when the duration of a step is known, or cannot be measured soon."""
        preferred = next((name for name in COUNTERS if name in self.positions), "")
        mark = self._marks.get(preferred)
        is_measured = mark is not None and mark[3] > mark[1]
        is_long_ago = not 0 <= now - self._asked_at_s < _MEASURES_S
        has_none = not preferred and not self.is_beginning(now)
        if has_none or self.is_paused or is_measured or is_long_ago:
            self._is = "asked"
            for name, (began, first, ended, last) in self._marks.items():
                if last > first and ended >= began:
                    self.step_s[name] = (ended - began) / (last - first)

    def is_beginning(self, now: float) -> bool:
        """Return whether the process is so young that its loop may not have started."""
        return 0 <= now - self._began_s < _BEGINS_S

    # Actions.

    @property
    def todo(self) -> str:
        """APPLY, WAIT or READ_BACK; "" if the program continues."""
        if self.unread is not None and self.unread.is_due:
            return READ_BACK
        if self.change is None or self._is_over:
            return ""
        if self._is_committed:
            return APPLY if self._is not in _FINAL and self._is_reached() else ""
        is_undecided = self._is in ("prepared", "waiting") and not self.is_paused
        return WAIT if is_undecided and self.change.counter and self._is_reached() else ""

    def _is_reached(self) -> bool:
        at = self.change.at if self.change is not None else None
        if self.change is None or at is None:
            return True
        position = self.positions.get(self.change.counter)
        if not self.change.counter:
            position = max(self.positions.values(), default=None)
        return position is not None and position >= at

    @property
    def is_watching(self) -> bool:
        """Whether safe points without news matter."""
        if self.unread is not None:
            return True
        if self.change is None or self._is_over:
            return False
        return self._is in (_MEASURING, "prepared", "waiting")

    def waits(self) -> None:
        """Record that the process waits for the decision."""
        self._is = "waiting"

    def gave_up(self, why: str) -> None:
        """Record that it gave up waiting, and continues unchanged."""
        self._is, self._reason = "missed", why
        if self.change is not None:
            self.last_over = self.change.number

    def failed(self, why: str) -> None:
        """Record that the change failed."""
        self._finish("failed")
        self._reason = why

    def applied(self, values: Dict[str, List[Any]], now: float) -> None:
        """Record applied values: old and new by name."""
        change = self._finish("applied")
        self._values = values
        self.unread = Unread(change.number, change.counter, values, now)

    def read_back(self, values: Dict[str, List[Any]], why: str) -> None:
        """Record values read back: old, new and in force by name."""
        unread, self.unread = self.unread, None
        if unread is None or self.change is None or self.change.number != unread.number:
            return
        self._is, self._values, self._reason = "done", values, why

    def done(self) -> None:
        """Record that the change is complete, with nothing to read back."""
        self._finish("done")

    def pauses(self) -> None:
        """Record that the process is paused."""
        self._finish("applied")
        self.is_paused = True

    def goes_on(self) -> None:
        """Record the end of the pause."""
        self.is_paused = False
        if self.change is not None and self.change.kind == "pause" and self._is == "applied":
            self._is = "done"

    def _finish(self, state: str) -> Change:
        change = self.change
        if change is None:
            raise RuntimeError("there is no change")
        self._is, self._reason, self._values = state, "", {}
        self.last_over = change.number
        self._position = self.positions.get(change.counter)
        return change

    # Reports.

    def known(self) -> Optional[Dict[str, Any]]:
        """Return the report on the change; None if there is none."""
        change = self.change
        if change is None or self._is_over or self._is == _MEASURING:
            return None
        return {
            "number": change.number,
            "is": self._is,
            "counter": change.counter,
            "at": change.at,
            "position": self._position,
            "values": self._values,
            "reason": self._reason,
        }

    def report(self) -> Dict[str, Any]:
        """Return the whole report on this process."""
        step_s = {name: took for name, took in self.step_s.items() if isfinite(took)}
        return {
            "counters": dict(self.positions),
            "step_s": step_s,
            "is_paused": self.is_paused,
            "known": self.known(),
        }


def is_position(number: Any) -> bool:
    """Return whether a step number is valid."""
    return type(number) is int and -_LARGEST < number < _LARGEST
