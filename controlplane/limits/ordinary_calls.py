"""Unary calls being served: long-running work yields to them."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_LATELY_S: Final = 0.1


class OrdinaryCalls:
    """The unary calls of one control plane. Times are those of the running loop."""

    def __init__(self) -> None:
        self._open = 0
        self._last_at = float("-inf")
        self._none_is_open = asyncio.Event()

    @contextmanager
    def served(self) -> Iterator[None]:
        """Count a call as being served during the context."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._last_at = asyncio.get_running_loop().time()
            if not self._open:
                ended, self._none_is_open = self._none_is_open, asyncio.Event()
                ended.set()

    def are_made(self) -> bool:
        """Whether one is being served, or was a moment ago: then the next one is likely soon."""
        return bool(self._open) or asyncio.get_running_loop().time() - self._last_at < _LATELY_S

    async def settled(self, within_s: float) -> None:
        """Wait until none is being served, at most `within_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._open:
                    await self._none_is_open.wait()
