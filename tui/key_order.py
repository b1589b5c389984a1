"""Handles keys in the order in which they were typed, however fast they come."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.app import App
    from textual.dom import DOMNode
    from textual.events import Key
    from textual.widget import Widget

PATIENCE_S: Final = 0.5
"""Timeout for one widget, in seconds: a stuck one does not block keys forever."""
MOST_ROUNDS: Final = 8
_ENOUGH: Final = 2


class KeyOrder:
    """Delivers a key when all effects of the previous one are done.

    Textual hands a letter to the focused widget at once, while a key with a binding first goes up to the app, and what
    that opens gets the focus later still: in a burst, as over a slow line, letters overtake it
    (Textualize/textual#6605), and those typed after `/` would act as commands of the list.

    Args:
        app: the owner of the widgets.
        deliver: hands a key to Textual.
    """

    def __init__(self, app: App[None], deliver: Callable[[Key], Awaitable[None]]) -> None:
        self._app = app
        self._deliver = deliver
        self._waiting: deque[Key] = deque()
        self._last_for: Widget | None = None
        self._settling: asyncio.Task[None] | None = None

    async def take(self, key: Key) -> None:
        """Deliver it now, or after the waiting keys."""
        self._waiting.append(key)
        if self._settling is None:
            await self._next()

    async def _next(self) -> None:
        self._settling = None
        if not self._waiting or self._has_ended():
            return
        # However old the last key: on a busy machine its effect may take as long.
        if self._last_for is not None and not self._is_calm():
            self._last_for = None
            self._settling = asyncio.create_task(self._settle())
            return
        key = self._waiting.popleft()
        self._last_for = self._focus()
        await self._deliver(key)
        if self._waiting and self._settling is None:
            await self._next()

    def _is_calm(self) -> bool:
        """Whether the last key is fully handled, and has not moved the focus."""
        focus = self._focus()
        return focus is self._last_for and not any(
            node.message_queue_size for node in focus.ancestors_with_self
        )

    async def _settle(self) -> None:
        """Wait for the widgets on a key's path, until the focus no longer moves."""
        before, calm = None, 0
        for _ in range(MOST_ROUNDS):
            if self._has_ended():
                return
            focus = self._focus()
            calm = calm + 1 if focus is before else 0
            if calm == _ENOUGH:
                break
            before = focus
            for node in focus.ancestors_with_self:
                await _reached(node)
        self._app.call_later(self._next)

    def _has_ended(self) -> bool:
        """Whether the app has no screen left: keys mean nothing."""
        try:
            return not self._app.screen_stack
        except KeyError:  # no mode either
            return True

    def _focus(self) -> Widget:
        return self._app.focused or self._app.screen


async def _reached(node: DOMNode) -> None:
    """Wait until it has handled its queued messages; a closing node never does."""
    done = asyncio.Event()
    if node.call_later(done.set):
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), PATIENCE_S)
