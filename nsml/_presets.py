"""Values of knobs that a process knows of by itself: given with the session, or set before it was there.

A session has some from its beginning, and from its earlier attempts (`NSML_KNOBS`). What is set in an attempt the agent
writes into the file `knobs` of the run folder once that is over, for processes that a launcher starts anew: each
makes it at the same step, as another attempt does.
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
"""Two hundred changes of sixteen texts each are less."""


class Preset:
    """A value of a knob from a step on.

    Attributes:
        number: of the change that set it in this attempt; 0 if it was known when the attempt began.
        is_reached: its counter has come to `at`.
        is_set: the value has been set, or cannot be.
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
        """Whether its counter has come to its step only now."""
        if self.is_reached or self.at is None or self.counter not in ("", counter):
            return False
        self.is_reached = position >= self.at
        return self.is_reached

    def step(self) -> int:
        """Its step; that of one from the beginning is before all others."""
        return -1 if self.at is None else self.at

    def is_after(self, other: Preset) -> bool:
        """Whether it sets the same knob at a later step of the same counter."""
        return (self.name, self.counter) == (other.name, other.counter) and (
            self.step() > other.step()
        )

    def is_made_by(self, change: Any) -> bool:
        """Whether it is a change that a checkpoint says was made."""
        if not isinstance(change, list) or len(change) != 3 or change[0] != self.value:
            return False
        return self.at is None or change[1:] == [self.counter, self.at]


def parse_presets(text: str) -> List[Preset]:
    """What `NSML_KNOBS` and the file hold. Raises ValueError: it is something else."""
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
    """What later changes of this attempt have set, as in the file. Raises ValueError: it holds something else."""
    try:
        with open(path, "rb") as file:
            text = file.read(_LONGEST_FILE)
    except OSError:  # nothing was set
        return []
    return [one for one in parse_presets(text.decode("utf-8", "replace")) if one.number > number]
