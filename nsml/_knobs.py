"""Knobs: values that a program reads at each step, and that users change while it runs (`nsml set`).

A knob is declared by the program (`nsml.knob`), or it is a number in the groups of a bound optimizer.
"""

from __future__ import annotations

from contextlib import suppress
from math import isfinite

from nsml._knob_values import KINDS, checked_name, kind_of, plain, shown, shown_name
from nsml._optimizers import Optimizers
from nsml._presets import Preset
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from nsml._knob_values import Value

_MOST_KNOBS = 1000
_MOST_CHOICES = 100
_MOST_MADE = 100
_SHOWN_NAMES = 20


class Knob:
    """A declared knob.

    Args:
        given: default, min, max and choices of the first declaration; later ones are compared with it.

    Raises:
        TypeError, ValueError: they are invalid, or contradict each other.
    """

    __slots__ = (
        *("choices", "default", "given", "is_read", "is_told", "kind"),
        "name",
        "set_at",
        "span",
        "value",
    )

    def __init__(self, name: Any, given: Tuple[Any, Any, Any, Any]) -> None:
        default, low, high, choices = given
        self.name = checked_name(name)
        self.given = given
        self.kind = kind_of(name, default)
        self.span = (self._bound("min", low), self._bound("max", high))
        self.choices: Optional[Tuple[Value, ...]] = None
        if choices is not None:
            if not isinstance(choices, (list, tuple, set, frozenset, range)):
                raise TypeError(f"nsml.knob: the choices of {name} are a list")
            listed = tuple(choices)
            if not 0 < len(listed) <= _MOST_CHOICES:
                raise ValueError(f"nsml.knob: {name} has 1 to {_MOST_CHOICES} choices")
            self.choices = tuple(self._own(choice, TypeError, "choice") for choice in listed)
        self.default = self.value = self._own(default, ValueError, "default")
        why = self.refusal(self.default)
        if why:
            raise ValueError(f"nsml.knob: the default of {why}")
        self.set_at: Optional[int] = None
        """Position of its counter when it was last set."""
        self.is_read = self.is_told = False

    def _bound(self, which: str, given: Any) -> Optional[float]:
        if given is None:
            return None
        if self.kind not in (float, int):
            raise TypeError(f"nsml.knob: {self.name} is {KINDS[self.kind]}, and has no {which}")
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if not is_number or given != given:  # noqa: PLR0124 - NaN
            raise TypeError(f"nsml.knob: the {which} of {self.name} is a number")
        return int(given) if isinstance(given, int) else float(given)

    def _own(self, given: Any, raised: type, what: str) -> Value:
        value, why = plain(self.kind, given)
        if value is None:
            raise raised(f"nsml.knob: the {what} of {self.name}: {why}")
        return value

    def is_given(self, again: Tuple[Any, Any, Any, Any]) -> bool:
        """Return whether another call has the same declaration."""
        try:
            return bool(again == self.given)
        except Exception as error:
            if comes_from_signal(error):
                raise
            return False

    def refusal(self, given: Any) -> str:
        """Return why a value is refused, "" if it is valid."""
        value, why = plain(self.kind, given)
        if value is None:
            return f"{self.name}: {why}"
        low, high = self.span
        if low is not None and value < low:  # type: ignore[operator] # only numbers have bounds
            return f"{self.name}: {shown(given)} is less than its min {shown(low)}"
        if high is not None and value > high:  # type: ignore[operator]
            return f"{self.name}: {shown(given)} is more than its max {shown(high)}"
        if self.choices is not None and value not in self.choices:
            return f"{self.name}: {shown(given)} is none of its choices {', '.join(map(shown, self.choices))}"
        return ""

    def table(self) -> Dict[str, Any]:
        """Return its state for JSON."""
        low, high = self.span
        return {
            "value": self.value,
            "default": self.default,
            "min": low if low is not None and isfinite(low) else None,
            "max": high if high is not None and isfinite(high) else None,
            "choices": list(self.choices) if self.choices is not None else None,
            "step": self.set_at,
        }


class Knobs:
    """All knobs of one process.

    Args:
        presets: in the order in which to set them.
        say: called with warnings for people.
    """

    def __init__(self, presets: List[Preset], say: Callable[[str], None]) -> None:
        self.declared: Dict[str, Knob] = {}
        self.optimizers = Optimizers()
        self._presets = presets
        self._say = say
        self._set_at: Dict[str, Optional[int]] = {}  # of optimizers' knobs
        self._made: Dict[
            str, List[List[Any]]
        ] = {}  # of those: value, counter and step of each change

    def declare(self, name: Any, given: Tuple[Any, Any, Any, Any]) -> Knob:
        """Declare a knob, or return the one of this name. Raises TypeError, ValueError."""
        knob = Knob(name, given)
        if len(self.declared) >= _MOST_KNOBS and knob.name not in self.declared:
            raise ValueError(f"nsml.knob: a program has at most {_MOST_KNOBS:,} knobs")
        knob = self.declared.setdefault(knob.name, knob)
        self._settle(knob.name)
        return knob

    def hint(self, knob: Knob) -> None:
        """Warn once that a knob has two declarations."""
        if not knob.is_told:
            knob.is_told = True
            self._say(
                f"nsml.knob: {knob.name} is declared again in another way: the first one counts"
            )

    def bind(self, objects: Dict[str, Any]) -> None:
        """Register the optimizers and schedulers among the bound objects."""
        self.optimizers.bind(objects)
        self._settle()

    # Values known at the start.

    @property
    def has_presets_ahead(self) -> bool:
        """Whether a counter must be watched for a preset."""
        return any(not preset.is_reached for preset in self._presets)

    def advance(self, counter: str, position: int) -> None:
        """Set the presets reached when a counter is at `position`."""
        reached = [preset.reach(counter, position) for preset in self._presets]
        if any(reached):
            self._settle(position=position)

    @property
    def newest(self) -> int:
        """The number of the newest change of this attempt among the presets; 0 if none."""
        return max((preset.number for preset in self._presets), default=0)

    def take(self, presets: List[Preset], positions: Dict[str, int]) -> None:
        """Add changes made in this attempt before this process joined; `positions`: the current counters."""
        self._presets += presets
        for counter, position in positions.items():
            self.advance(counter, position)
        self._settle()

    def made(self) -> Dict[str, Any]:
        """Return changes of optimizers and current values, to be stored in a checkpoint beside their state."""
        return {
            name: {"now": self.optimizers.value(name), "changes": changes[-_MOST_MADE:]}
            for name, changes in self._made.items()
        }

    def loaded(self, made: Dict[str, Any]) -> None:
        """Handle a loaded checkpoint with these changes: presets that are due but not among them are set again.

        If the optimizer's state was not loaded with it, that is all of them.
        """
        self._made = {}
        for name in {*made, *(preset.name for preset in self._presets)}:
            changes = self._changes_in(made.get(name), name)
            if changes:
                self._made[name] = list(changes)
            for preset in self._presets:
                if preset.name != name or preset.name in self.declared:
                    continue
                found = next((one for one in changes if preset.is_made_by(one)), None)
                preset.is_set = found is not None
                preset.is_reached = preset.is_reached or preset.is_set
                if found is not None:
                    changes.remove(found)
        self._settle()

    def _changes_in(self, entry: Any, name: str) -> List[Any]:
        """Return the changes of a checkpoint, if the optimizer's number is the same as in it."""
        if not isinstance(entry, dict) or not isinstance(entry.get("changes"), list):
            return []
        return list(entry["changes"]) if entry.get("now") == self.optimizers.value(name) else []

    def unused_presets(self) -> List[str]:
        """Return names of presets that no knob had."""
        return sorted({one.name for one in self._presets if one.is_reached and not one.is_set})

    def _settle(self, only: str = "", *, position: Optional[int] = None) -> None:
        """Set reached presets; of several for a knob that of the last step is applied last, whenever it was decided."""
        for preset in sorted(self._presets, key=Preset.step):
            if preset.is_set or not preset.is_reached or (only and preset.name != only):
                continue
            if not self.has(preset.name):
                continue
            if any(one.is_set and one.is_after(preset) for one in self._presets):
                preset.is_set = True
                continue
            preset.is_set = True
            values = {preset.name: preset.value}
            why = self.refusal(values)
            try:
                if not why:
                    at = position if position is not None else preset.at
                    self._set(values, at, (preset.counter, preset.at))
            except Exception as error:
                if comes_from_signal(error):
                    raise
                why = f"{preset.name}: {reason(error)}"
            if why:
                self._say(f"{preset.name} is not set to {shown(preset.value)}: {why}")

    # Changes of the running program.

    def has(self, name: str) -> bool:
        """Return whether there is a knob of this name now."""
        return name in self.declared or self.optimizers.value(name) is not None

    def refusal(self, values: Dict[str, Any]) -> str:
        """Return why some of the values are refused, "" if all are valid."""
        return "; ".join(filter(None, (self._refusal(*entry) for entry in values.items())))

    def _refusal(self, name: str, value: Any) -> str:
        knob = self.declared.get(name)
        if knob is not None:
            return knob.refusal(value)
        now = self.optimizers.value(name)
        if now is None:
            names = sorted({*self.declared, *self.optimizers.names()})
            left = len(names) - _SHOWN_NAMES
            more = f" and {left} more" if left > 0 else ""
            listed = ", ".join(names[:_SHOWN_NAMES]) + more if names else "none"
            return f"there is no knob {shown_name(name)}: the program has declared {listed}"
        number, why = plain(float, value)
        return f"{name}: {why}" if number is None else self.optimizers.refusal(name, float(number))

    def lacking(self, values: Dict[str, Any], place: Tuple[str, Optional[int]]) -> Dict[str, Any]:
        """Return values of an earlier change still to be set: not in a checkpoint, and not replaced at a later step."""
        found = {}
        for name, value in values.items():
            mine = Preset(name, value, *place)
            is_replaced = any(one.is_set and one.is_after(mine) for one in self._presets)
            if not is_replaced and [value, *place] not in self._made.get(name, []):
                found[name] = value
        return found

    def set(
        self,
        values: Dict[str, Any],
        position: Optional[int],
        place: Tuple[str, Optional[int]] = ("", None),
        number: int = 0,
    ) -> Dict[str, List[Any]]:
        """Set all values, or none; return old and new by name.

        Args:
            values: by name.
            position: the counter's current number.
            place: the counter and step of the change.
            number: of the change.

        Raises:
            ValueError: they are refused; and whatever an optimizer's own objects raise.
        """
        done = self._set(values, position, place)
        for name, value in values.items():  # like presets: loading a checkpoint may revert them
            preset = Preset(name, value, *place, number)
            preset.is_reached = preset.is_set = True
            self._presets.append(preset)
        return done

    def _set(
        self, values: Dict[str, Any], position: Optional[int], place: Tuple[str, Optional[int]]
    ) -> Dict[str, List[Any]]:
        why = self.refusal(values)
        if why:
            raise ValueError(why)
        undo: List[Callable[[], None]] = []
        done: Dict[str, List[Any]] = {}
        try:
            for name, given in values.items():
                knob = self.declared.get(name)
                if knob is None:
                    old = self.optimizers.set(name, float(given), undo)
                    done[name] = [old, float(given)]
        except BaseException:
            for take_back in reversed(undo):
                with suppress(Exception):  # the one that raises is the one that could not be set
                    take_back()
            raise
        for name in done:
            self._set_at[name] = position
            self._made.setdefault(name, []).append([values[name], *place])
        for name, given in values.items():  # these cannot fail
            knob = self.declared.get(name)
            if knob is not None:
                value, _ = plain(knob.kind, given)
                done[name] = [knob.value, value]
                knob.value, knob.set_at, knob.is_read = value, position, False  # type: ignore[assignment]
        return {name: done[name] for name in values}

    def are_read(self, names: Any) -> Optional[bool]:
        """Return whether the program has read all of them since they were set; None if none is declared."""
        declared = [self.declared[name] for name in names if name in self.declared]
        if not declared:
            return None
        return len(declared) == len(list(names)) and all(knob.is_read for knob in declared)

    def read_back(self, values: Dict[str, List[Any]]) -> Tuple[Dict[str, List[Any]], str]:
        """Return old, new and in-force values by name; and warnings for people."""
        found: Dict[str, List[Any]] = {}
        whys: List[str] = []
        for name, (old, new) in values.items():
            knob = self.declared.get(name)
            if knob is not None:
                found[name] = [old, new, knob.value]
                if not knob.is_read:
                    whys.append(f"{name}: the program has not read it since")
                continue
            now = self.optimizers.value(name)
            in_force = now if now is not None and isfinite(now) else None
            found[name] = [old, new, in_force]
            if in_force is None:
                whys.append(f"{name} is no number any more")
            elif self.optimizers.is_back(name, in_force, old, new):
                whys.append(
                    f"{name} is back at {shown(in_force)} one step later: something else in the program sets it"
                    + self.optimizers.advice(name)
                )
        return found, "; ".join(whys)

    def table(self) -> Dict[str, Dict[str, Any]]:
        """Return the state of all knobs for JSON."""
        found = {name: knob.table() for name, knob in list(self.declared.items())}
        for name in self.optimizers.names():
            if name not in found:
                bounds = {"default": None, "min": None, "max": None, "choices": None}
                value = self.optimizers.value(name)
                value = value if value is not None and isfinite(value) else None
                found[name] = {"value": value, **bounds, "step": self._set_at.get(name)}
        return found
