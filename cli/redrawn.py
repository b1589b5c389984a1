"""What -w shows again and again: drawn over at a terminal, else written again when it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.app import App


class Redrawn:
    """Lines as they were shown last."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._draws = app.room is not None and app.is_for_people and app.has_live_progress
        self._shown: list[str] = []

    def show(self, lines: Sequence[str]) -> None:
        """Show these in place of those before, where anything differs."""
        shown = self._fitted(lines) if self._draws else list(lines)
        if shown != self._shown:
            up = f"\x1b[{len(self._shown)}A\x1b[J" if self._draws and self._shown else ""
            self._app.stdout.write(up + "".join(f"{line}\n" for line in shown))
            self._shown = shown
        self._app.stdout.flush()

    def _fitted(self, lines: Sequence[str]) -> list[str]:
        import shutil

        from nsml.view.text import fit_coloured

        room, height = shutil.get_terminal_size()
        if len(lines) > height - 2:
            lines = [*lines[: height - 3], f"... {len(lines) - height + 3} more"]
        # A line that wrapped would take two, and the next redrawing start too low.
        return [fit_coloured(line, room) for line in lines]
