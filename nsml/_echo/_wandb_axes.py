"""Which metric of W&B is the step of another one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

MOST_NAMES = 10_000
"""Most metrics with a remembered step."""


class Axes:
    """Which metric is the step of another one, as define_metric says."""

    def __init__(self) -> None:
        self._defined: Dict[str, str] = {}
        self._found: Dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._defined)

    def define(self, name: str, axis: str) -> None:
        """Remember the step metric of a name, or of all with this beginning if it ends in *; "" for none."""
        self._defined[name.replace("\\.", ".")] = axis.replace("\\.", ".")
        self._found = {}

    def axis(self, name: str) -> str:
        """Return the step metric of a metric, "" if it has none."""
        found = self._found.get(name)
        if found is None:
            found = self._look_up(name)
            if len(self._found) < MOST_NAMES:
                self._found[name] = found
        return found

    def _look_up(self, name: str) -> str:
        if name in self._defined:
            return self._defined[name]
        globs = [one for one in self._defined if one[-1:] == "*" and name.startswith(one[:-1])]
        return self._defined[max(globs, key=len)] if globs else ""
