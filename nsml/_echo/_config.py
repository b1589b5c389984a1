"""Configurations of other libraries as JSON: argparse namespaces, dataclasses, arrays and other objects become plain."""

from __future__ import annotations

from itertools import islice

from nsml._report import MOST_NAME_CHARS
from nsml._strict import comes_from_signal
from nsml._values import is_mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping

_MOST_DEPTH = 12
_MOST_ENTRIES = 2_000
_MOST_TEXT = 4_096
_SIMPLE = (bool, int, float, type(None))


def plain_config(values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the values with types of JSON; others become text, and those beyond a limit are left out."""
    found = _Plain().of(values, 0)
    return found if type(found) is dict else {}


class _Plain:
    def __init__(self) -> None:
        self._left = _MOST_ENTRIES

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        kind = type(value)
        if kind in _SIMPLE:
            return value
        if issubclass(kind, str):
            return str.__str__(value)[:_MOST_TEXT]
        if depth < _MOST_DEPTH:
            if is_mapping(value):
                entries = islice(value.items(), max(self._left, 0))
                return {
                    str(key)[:MOST_NAME_CHARS]: self.of(entry, depth + 1) for key, entry in entries
                }
            if issubclass(kind, (list, tuple, set, frozenset)):
                return [self.of(entry, depth + 1) for entry in islice(value, max(self._left, 0))]
        return self._other(value)

    def _other(self, value: Any) -> Any:
        """Return a number of numpy or torch as Python's; other objects as text."""
        try:
            item = value.item() if hasattr(value, "item") else None
            return item if type(item) in _SIMPLE and item is not None else str(value)[:_MOST_TEXT]
        except Exception as error:  # any exception of a program's object
            if comes_from_signal(error):
                raise
            return f"<{type(value).__name__}>"
