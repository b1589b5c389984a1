"""Progress on stderr: one line redrawn in place on a terminal, else a line for every tenth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.common.text import fit, width
from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.app import App

_BAR, _LEAST_BAR = 24, 4
_LONGEST = 1000
_REDRAW_S = 0.1
_SHORT_S = 1.0


class Progress:
    """Progress of one transfer. `update` may be called from another thread."""

    def __init__(self, app: App, label: str, *, words: Callable[[int], str] = size_text) -> None:
        """`words`: formats the total; bytes by default."""
        self._app = app
        self._label = label
        self._words = words
        self._tenth = 0
        self._began_at = app.clock.monotonic()
        self._drawn_at = self._began_at - _REDRAW_S
        self._is_drawn = False

    def update(self, done: int, total: int) -> None:
        """Update to `done` of `total`, in bytes or the unit of `words`."""
        if self._app.is_quiet or not total:
            return
        if self._app.has_live_progress:
            self._draw(done, total)
            return
        tenth = done * 10 // total
        # Short transfers need no lines.
        is_short = self._app.clock.monotonic() - self._began_at < _SHORT_S
        if tenth > self._tenth and not is_short:
            self._app.say(f"{self._label} {tenth * 10}% of {self._words(total)}")
            self._tenth = tenth

    def _draw(self, done: int, total: int) -> None:
        now = self._app.clock.monotonic()
        if now - self._drawn_at < _REDRAW_S and done < total:
            return
        self._drawn_at = now
        words = f"{done * 100 // total:3}% of {self._words(total)}"
        # A line as wide as the terminal may wrap, and only its last row would be erased.
        room = (self._app.error_room or _LONGEST) - 1
        cells = min(_BAR, room - width(self._label) - width(words) - 2)
        line = self._label
        if cells >= _LEAST_BAR:
            filled = min(done * cells // total, cells)
            line += " " + "█" * filled + "░" * (cells - filled)
        self._app.stderr.write(f"\r\x1b[K{fit(f'{line} {words}', room)}")
        self._app.stderr.flush()
        self._is_drawn = True

    def close(self) -> None:
        """Erase the line."""
        if self._is_drawn:
            self._app.stderr.write("\r\x1b[K")
            self._app.stderr.flush()
            self._is_drawn = False
