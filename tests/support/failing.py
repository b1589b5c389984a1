"""Stores, histories and object stores that fail when a test says so."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_SOUND = {"newest"}
"""What answers from memory where all else fails, by its contract."""


class Failing:
    """Passes calls on to `inner`; while `error` is set, its coroutines raise what that makes.

    Attributes:
        error: given the name of the method, an exception to raise, or None to let it through.
    """

    def __init__(self, inner: Any, *parts: str) -> None:
        self._inner = inner
        self._parts = parts
        self._source: Failing | None = None
        self.error: Callable[[str], Exception | None] | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in self._parts:
            part = Failing(found)
            part._source = self
            return part
        if name in _SOUND or not inspect.iscoroutinefunction(found):
            return found
        failing = self._source or self

        async def call(*args: Any, **kwargs: Any) -> Any:
            error = failing.error(name) if failing.error is not None else None
            if error is not None:
                raise error
            return await found(*args, **kwargs)

        return call


def failing_history(history: Any) -> Any:
    """A history that can be made to fail."""
    return Failing(history, "streams", "telemetry", "catalogue", "artifacts", "ledger")
