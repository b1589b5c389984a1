"""Names of keys in hints, by the user's keymap; and which keys only move."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import format_key

if TYPE_CHECKING:
    from textual.app import App

_MOVES: Final = frozenset({"up", "down", "left", "right", "first", "last", "page-up", "page-down"})


def key_of(app: App[Any], name: str) -> str:
    """Return the name of a binding's first key, by the keymap or its default.

    Raises:
        KeyError: there is no such binding.
    """
    keys = app._keymap.get(name) or _usual(name)  # noqa: SLF001 - what set_keymap was given
    key = keys.split(",")[0]
    return key if key == "enter" else format_key(key)


def is_moving(binding: Binding) -> bool:
    """Whether its key only moves the cursor or the focus, like all of Textual's own bindings."""
    return binding.id is None or binding.id.rpartition(".")[2] in _MOVES


@cache
def _usual(name: str) -> str:
    left: list[type[DOMNode]] = [DOMNode]
    while left:
        for part in left.pop().__subclasses__():
            left.append(part)
            for one in part.__dict__.get("BINDINGS", ()):
                if isinstance(one, Binding) and one.id == name:
                    return one.key
    raise KeyError(name)
