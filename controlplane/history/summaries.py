"""Summaries shortened for lists of sessions: a thousand of them are sent at once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controlplane.history.values import Summary

LISTED_VALUES: Final = 30
LISTED_BYTES: Final = 2 << 10
"""Most bytes of names and values as JSON; as many again for values requested by name."""
MOST_NAMES: Final = 64
"""Most values requested by name in one request."""


def listed(values: Mapping[str, Any], names: Sequence[str] = ()) -> tuple[dict[str, Any], int]:
    """Return the first values that fit, and those of `names`; and how many are left out."""
    kept: set[str] = set()
    room = LISTED_BYTES
    for name, value in values.items():
        if len(kept) == LISTED_VALUES:
            break
        if (size := _size(name, value)) <= room:
            kept.add(name)
            room -= size
    room = LISTED_BYTES
    for name in names:
        if name in values and name not in kept and (size := _size(name, values[name])) <= room:
            kept.add(name)
            room -= size
    return {name: values[name] for name in values if name in kept}, len(values) - len(kept)


def listed_of(summary: Summary, names: Sequence[str] = ()) -> Summary:
    """Shorten a whole summary for lists."""
    values, left_out = listed(summary.values, names)
    return replace(summary, values=values, left_out=left_out) if left_out else summary


def _size(name: str, value: Any) -> int:
    return len(json.dumps(name)) + len(json.dumps(value)) + 4
