"""Presets: values of knobs set with the session, or before this process started.

A session has some from its start, and from its earlier attempts (`NSML_KNOBS`). After a change in an attempt the agent
writes its values to the file `knobs` of the run folder, for processes that a launcher restarts: each
applies it at the same step, as another attempt does.
"""

from __future__ import annotations

import json

from nsml._knob_values import KINDS, checked_name
from nsml._strict import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from nsml._knob_values import Value

_LONGEST_FILE = 16 << 20
"""More than two hundred changes of sixteen texts each."""


class Preset:
    """A value of a knob from a step on.

    Attributes:
        number: of the change in this attempt; 0 if it was set before the attempt.
        is_reached: its counter has reached `at`.
        is_set: the value was set, or cannot be.
    """

    __slots__ = ("at", "counter", "is_reached", "is_set", "name", "number", "value")

    def __init__(
        self, name: str, value: Value, counter: str, at: Optional[int], number: int = 0
    ) -> None:
        self.name = name
        self.value = value
        self.counter = counter
        self.at = at
        self.number = number
        self.is_reached = at is None
        self.is_set = False

    def reach(self, counter: str, position: int) -> bool:
        """Return whether its counter reaches its step now."""
        if self.is_reached or self.at is None or self.counter not in ("", counter):
            return False
        self.is_reached = position >= self.at
        return self.is_reached

    def step(self) -> int:
        """Return its step; one without a step is before all others."""
        return -1 if self.at is None else self.at

    def is_after(self, other: Preset) -> bool:
        """Return whether it sets the same knob at a later step of the same counter."""
        return (self.name, self.counter) == (other.name, other.counter) and (
            self.step() > other.step()
        )

    def is_made_by(self, change: Any) -> bool:
        """Return whether it is this change, recorded in a checkpoint."""
        if not isinstance(change, list) or len(change) != 3 or change[0] != self.value:
            return False
        return self.at is None or change[1:] == [self.counter, self.at]


def parse_presets(text: str) -> List[Preset]:
    """Parse `NSML_KNOBS` or the file. Raises ValueError."""
    try:
        entries = json.loads(text)
        return [_preset(entry) for entry in entries]
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"no list of knobs: {reason(error)}") from error


def _preset(entry: Dict[str, Any]) -> Preset:
    at, value, number = entry.get("at"), entry["value"], entry.get("number", 0)
    if type(number) is not int or (at is not None and type(at) is not int):
        raise ValueError("no list of knobs: a step is an integer")
    if type(value) not in KINDS:
        raise ValueError("no list of knobs: a value is a number, true or false, or text")
    return Preset(checked_name(entry["name"]), value, str(entry.get("counter") or ""), at, number)


def set_after(path: str, number: int) -> List[Preset]:
    """Return values set by later changes of this attempt, from the file. Raises ValueError if it is invalid."""
    try:
        with open(path, "rb") as file:
            text = file.read(_LONGEST_FILE)
    except OSError:  # nothing was set
        return []
    return [one for one in parse_presets(text.decode("utf-8", "replace")) if one.number > number]
