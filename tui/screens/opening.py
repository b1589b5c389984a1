"""The first paint: the frame alone, before its content is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.events import Key
from textual.widgets import Static

from tui.background import in_background
from tui.screens.frame import Frame

if TYPE_CHECKING:
    from textual.app import ComposeResult


class Opening(Frame):
    """The frame, while the app opens; it keeps pressed keys for the next screen."""

    name_of = "sessions"

    def __init__(self) -> None:
        super().__init__()
        self._pressed: list[Key] = []

    def body(self) -> ComposeResult:
        """A note to wait."""
        yield Static("  loading...")

    def _begin(self) -> None:
        super()._begin()
        in_background(self.app, "opening", self._open, is_alone=False)

    async def _open(self) -> None:
        await self.dashboard.open()
        for key in self._pressed:
            self.app.post_message(Key(key.key, key.character))

    def on_key(self, event: Key) -> None:
        """Keep it for the next screen."""
        event.stop()
        self._pressed.append(event)
