"""Knobs: values that a running program reads anew at each step, and that people change meanwhile (`nsml set`).

A knob is declared by the program (`nsml.knob`), or it is a number in the groups of an optimizer that it has bound.
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
    """One that the program declared.

    Args:
        given: default, min, max and choices as the program has them: what it says again is compared with that.

    Raises:
        TypeError, ValueError: they do not go together.
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
        """The position of its counter at which it was set last."""
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
        """Whether another call declares the same."""
        try:
            return bool(again == self.given)
        except Exception as error:
            if comes_from_signal(error):
                raise
            return False

    def refusal(self, given: Any) -> str:
        """Why it cannot have a value, "" where it can."""
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
        """What it is, as JSON has it."""
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
        presets: in the order in which they are to be set.
        say: for what people should know.
    """

    def __init__(self, presets: List[Preset], say: Callable[[str], None]) -> None:
        self.declared: Dict[str, Knob] = {}
        self.optimizers = Optimizers()
        self._presets = presets
        self._say = say
        self._set_at: Dict[str, Optional[int]] = {}  # of those of optimizers
        self._made: Dict[
            str, List[List[Any]]
        ] = {}  # of those: value, counter and step of each change

    def declare(self, name: Any, given: Tuple[Any, Any, Any, Any]) -> Knob:
        """A new knob, or the one that has its name. Raises TypeError, ValueError."""
        knob = Knob(name, given)
        if len(self.declared) >= _MOST_KNOBS and knob.name not in self.declared:
            raise ValueError(f"nsml.knob: a program has at most {_MOST_KNOBS:,} knobs")
        knob = self.declared.setdefault(knob.name, knob)
        self._settle(knob.name)
        return knob

    def hint(self, knob: Knob) -> None:
        """Say once that a knob is declared in two ways."""
        if not knob.is_told:
            knob.is_told = True
            self._say(
                f"nsml.knob: {knob.name} is declared again in another way: the first one counts"
            )

    def bind(self, objects: Dict[str, Any]) -> None:
        """Take the optimizers and schedulers among what the program has bound."""
        self.optimizers.bind(objects)
        self._settle()

    # Values that are known from the start.

    @property
    def has_presets_ahead(self) -> bool:
        """Whether a counter has to be watched for one."""
        return any(not preset.is_reached for preset in self._presets)

    def advance(self, counter: str, position: int) -> None:
        """Set what is to be set where a counter is at `position` now."""
        reached = [preset.reach(counter, position) for preset in self._presets]
        if any(reached):
            self._settle(position=position)

    @property
    def newest(self) -> int:
        """The number of the last change of this attempt that is among them; 0 without one."""
        return max((preset.number for preset in self._presets), default=0)

    def take(self, presets: List[Preset], positions: Dict[str, int]) -> None:
        """Take in what was set in this attempt without this process, of which the counters are at `positions` now."""
        self._presets += presets
        for counter, position in positions.items():
            self.advance(counter, position)
        self._settle()

    def made(self) -> Dict[str, Any]:
        """What was changed of optimizers, and is now: it goes into a checkpoint beside their state."""
        return {
            name: {"now": self.optimizers.value(name), "changes": changes[-_MOST_MADE:]}
            for name, changes in self._made.items()
        }

    def loaded(self, made: Dict[str, Any]) -> None:
        """A checkpoint was loaded, which has these changes: what else is to be set by now is set again.

        Where the state of the optimizer was not loaded with it, that is all of them.
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
        """The changes of a checkpoint, where the number is what it was then."""
        if not isinstance(entry, dict) or not isinstance(entry.get("changes"), list):
            return []
        return list(entry["changes"]) if entry.get("now") == self.optimizers.value(name) else []

    def unused_presets(self) -> List[str]:
        """Names that nothing in the program had."""
        return sorted({one.name for one in self._presets if one.is_reached and not one.is_set})

    def _settle(self, only: str = "", *, position: Optional[int] = None) -> None:
        """Set what is reached: of several values of a knob that of the last step comes last, whenever it was decided."""
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

    # Values that are set in the running program.

    def has(self, name: str) -> bool:
        """Whether there is one by this name now."""
        return name in self.declared or self.optimizers.value(name) is not None

    def refusal(self, values: Dict[str, Any]) -> str:
        """Why some of them cannot be set, "" where all can."""
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
        """Those of an earlier change that are still to be set: no checkpoint had them, no later step has others."""
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
        """Set all of them, or none: old and new by name.

        Args:
            values: by name.
            position: where the counter is now.
            place: the counter and the step at which they were to be set.
            number: of the change.

        Raises:
            ValueError: they cannot be set; and whatever an optimizer's own objects raise.
        """
        done = self._set(values, position, place)
        for name, value in values.items():  # as if it had been known: a checkpoint may take it back
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
        for name, given in values.items():  # of these nothing can fail
            knob = self.declared.get(name)
            if knob is not None:
                value, _ = plain(knob.kind, given)
                done[name] = [knob.value, value]
                knob.value, knob.set_at, knob.is_read = value, position, False  # type: ignore[assignment]
        return {name: done[name] for name in values}

    def are_read(self, names: Any) -> Optional[bool]:
        """Whether the program has read all of them since they were set; None where none is declared."""
        declared = [self.declared[name] for name in names if name in self.declared]
        if not declared:
            return None
        return len(declared) == len(list(names)) and all(knob.is_read for knob in declared)

    def read_back(self, values: Dict[str, List[Any]]) -> Tuple[Dict[str, List[Any]], str]:
        """Old, new and what is in force now by name; and what people should know of it."""
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
        """All of them, as JSON has it."""
        found = {name: knob.table() for name, knob in list(self.declared.items())}
        for name in self.optimizers.names():
            if name not in found:
                bounds = {"default": None, "min": None, "max": None, "choices": None}
                value = self.optimizers.value(name)
                value = value if value is not None and isfinite(value) else None
                found[name] = {"value": value, **bounds, "step": self._set_at.get(name)}
        return found
