"""The numbers in the groups of bound optimizers: learning rates and others, as in torch.

No library is loaded: objects with `param_groups` are optimizers, objects with base rates are schedulers.
"""

from __future__ import annotations

from math import isfinite

from nsml._strict import comes_from_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

_RATE = "lr"
_RATES_OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
"""Keys of a group scaled with the learning rate. Schedulers keep the rest there, or in lists of their own."""
_RATES_OF_SCHEDULERS = ("base_lrs", "max_lrs", "_last_lr")
_WITHIN = "_schedulers"
_DEEPEST = 4
_BACK, _BACK_OF_A_SCHEDULE = 0.5, 0.05
"""A number this near the old one, as a fraction of the change, was reset. One step of a schedule may change it a lot."""


class Optimizers:
    """The bound optimizers and schedulers.

    Groups are looked up at each use: loading a checkpoint replaces them.
    """

    def __init__(self) -> None:
        self._optimizers: List[Any] = []
        self._schedulers: List[Any] = []
        self._zeroed: Dict[str, List[float]] = {}
        """Numbers of groups before they were set to 0, by name, to keep their ratios."""

    def bind(self, objects: Dict[str, Any]) -> None:
        """Replace the bound objects."""
        self._optimizers, self._schedulers = [], []
        self._zeroed = {}
        self._take(list(objects.values()), 0)

    def _take(self, objects: List[Any], depth: int) -> None:
        for one in objects:
            if type(one) in (list, tuple) and depth < _DEEPEST:
                self._take(list(one), depth + 1)
            elif type(one) is dict and depth < _DEEPEST:
                self._take(list(one.values()), depth + 1)
            elif isinstance(_attribute(one, "param_groups"), list):
                self._optimizers.append(one)
            else:
                self._take_scheduler(one, depth)

    def _take_scheduler(self, one: Any, depth: int) -> None:
        if any(one is known for known in self._schedulers):
            return
        within = _attribute(one, _WITHIN)
        has_rates = any(isinstance(_attribute(one, name), list) for name in _RATES_OF_SCHEDULERS)
        if has_rates or isinstance(within, (list, tuple)):
            self._schedulers.append(one)
        if isinstance(within, (list, tuple)) and depth < _DEEPEST:
            for inner in within:
                self._take_scheduler(inner, depth + 1)

    def names(self) -> List[str]:
        """Return the names that can be set."""
        found = []
        for group in self._groups():
            for name in group:
                is_derived = name in _RATES_OF_GROUPS and name != _RATE
                if is_derived or not isinstance(name, str) or name in found:
                    continue
                if _number(group[name]) is not None:
                    found.append(name)
        return found

    def value(self, name: str) -> Optional[float]:
        """Return the first nonzero number of this name, or 0.0 if all are 0; None if no group has one."""
        if name in _RATES_OF_GROUPS and name != _RATE:
            return None
        numbers = [_number(group.get(name)) for group in self._groups()]
        there = [number for number in numbers if number is not None]
        return next((number for number in there if number), 0.0 if there else None)

    def refusal(self, name: str, new: float) -> str:
        """Return why a number is refused, "" if it is valid."""
        now = self.value(name)
        if new < 0:
            return f"{name}: {new!r} is less than 0"
        if now is not None and not isfinite(now):
            return f"{name}: it is {now!r} now"
        if name == _RATE and not now:
            return f"{name}: it is 0 now, so that there is no ratio to change the rates of groups and schedulers by"
        if name == _RATE and not new:
            return f"{name}: with 0 the rates of groups and schedulers would lose their ratios; set a small number"
        return ""

    def set(self, name: str, new: float, undo: List[Callable[[], None]]) -> float:
        """Set a number in all groups, keeping their ratios; return the old value.

        `undo` receives functions that revert the changes, also if one raises midway.

        Raises:
            ValueError: a number would be too large; exceptions of the program's objects pass through.
        """
        old = self.value(name)
        if old is None:
            raise ValueError(f"no optimizer has {name}")
        slots, seen = [], set()
        for slot in self._slots(name):
            if _number(slot.read()) is not None and slot.identity() not in seen:
                seen.add(slot.identity())  # groups may share one tensor
                slots.append(slot)
        numbers = [_number(slot.read()) or 0.0 for slot in slots]
        base, proportions = old, numbers
        if not old and len(self._zeroed.get(name, ())) == len(slots):
            proportions = self._zeroed[name]
            base = next(filter(None, proportions))
        scaled = [new if number == base else number * (new / base) for number in proportions]
        for number, after in zip(numbers, scaled):
            if not isfinite(after):
                raise ValueError(f"{name}: {number!r} of another group would be too large")
        for slot, number, after in zip(slots, numbers, scaled):
            undo.append(slot.writer(number))
            slot.write(after)
        if old and not new:
            self._zeroed[name] = numbers
        return old

    def is_back(self, name: str, now: float, old: float, new: float) -> bool:
        """Return whether a number seems to have been reset; a bound schedule continues from the new one."""
        nearness = _BACK_OF_A_SCHEDULE if name == _RATE and self._schedulers else _BACK
        return abs(now - old) < nearness * abs(new - old)

    def advice(self, name: str) -> str:
        """Return advice for a number that the program resets."""
        if name == _RATE and not self._schedulers:
            return (
                "; if that is a scheduler, name it as well: nsml.bind(optimizer=..., scheduler=...)"
            )
        return ""

    def _groups(self) -> Iterator[Dict[str, Any]]:
        for optimizer in self._optimizers:
            groups = _attribute(optimizer, "param_groups")
            for group in groups if isinstance(groups, list) else ():
                if isinstance(group, dict):
                    yield group

    def _slots(self, name: str) -> Iterator[_Slot]:
        """Yield the places of all numbers scaled with this one."""
        for group in self._groups():
            for key in _RATES_OF_GROUPS if name == _RATE else (name,):
                if key in group:
                    yield _Slot(group, key)
        if name != _RATE:
            return
        for scheduler in self._schedulers:
            for attribute in _RATES_OF_SCHEDULERS:
                rates = _attribute(scheduler, attribute)
                for position in range(len(rates)) if isinstance(rates, list) else ():
                    yield _Slot(rates, position)


class _Slot:
    """A number in a dict or a list, or in a tensor there."""

    def __init__(self, holder: Any, key: Any) -> None:
        self._holder = holder
        self._key = key

    def read(self) -> Any:
        return self._holder[self._key]

    def identity(self) -> Tuple[int, Any]:
        value = self.read()
        return (id(value), "tensor") if _is_tensor(value) else (id(self._holder), self._key)

    def write(self, number: float) -> None:
        value = self.read()
        if _is_tensor(value):
            value.fill_(number)
        else:
            self._holder[self._key] = number

    def writer(self, number: float) -> Callable[[], None]:
        return lambda: self.write(number)


def _attribute(one: Any, name: str) -> Any:
    """Return an attribute, or None if the object raises."""
    try:
        return getattr(one, name, None)
    except Exception as error:
        if comes_from_signal(error):
            raise
        return None


def _is_tensor(value: Any) -> bool:
    return callable(_attribute(value, "fill_")) and callable(_attribute(value, "item"))


def _number(value: Any) -> Optional[float]:
    """Return a number, also from a tensor of one element; None for anything else."""
    try:
        if isinstance(value, (int, float)):
            return None if isinstance(value, bool) else float(value)
        if _is_tensor(value) and value.numel() == 1:
            item = value.item()
            return (
                float(item)
                if isinstance(item, (int, float)) and not isinstance(item, bool)
                else None
            )
    except Exception as error:
        if comes_from_signal(error):
            raise
    return None
