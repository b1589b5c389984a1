"""Dataclasses of two versions, as what can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, frozenset):
        return [plain(one) for one in sorted(value)]
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else getattr(value, "value", value)
