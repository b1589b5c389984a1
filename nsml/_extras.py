"""`nsml.copy`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def copy(source: Any = None, target: Any = None) -> None:
    """Copy the state of `source` to `target` in place: a dict's entries or an object's attributes.

    Raises:
        TypeError: their types differ, or have neither.
    """
    if type(source) is not type(target):
        raise TypeError(
            f"nsml.copy needs two of a type, not {type(source).__name__} and {type(target).__name__}"
        )
    if isinstance(target, dict):
        target.update(source)
    elif hasattr(target, "__dict__"):
        target.__dict__.update(source.__dict__)
    else:
        raise TypeError(f"nsml.copy does not support {type(target).__name__}")
