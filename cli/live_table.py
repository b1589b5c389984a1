"""Repeated output: redrawn in place on a terminal, else printed again on change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.app import App
    from nsml.client.streams import Link


class Redrawn:
    """Lines redrawn in place on a terminal, with the cursor below them; else printed on change.

    Args:
        draws: redraw in place; None: if the output is for people, on a terminal.
    """

    def __init__(self, app: App, *, draws: bool | None = None) -> None:
        can_draw = app.room is not None and app.is_for_people and app.has_live_progress
        self.draws = can_draw if draws is None else draws
        self._app = app
        self._lines: list[str] = []
        self._shown: list[str] = []
        self._lost = ""
        self._tell = app.link_words()

    def show(self, lines: Sequence[str]) -> None:
        """Replace the shown lines if any differs; when redrawn, cut to the terminal's height."""
        self._lines = list(lines)
        self._show()

    def link(self, link: Link) -> None:
        """Show the state of the connection: below redrawn lines, else as messages on stderr."""
        if not self.draws:
            self._tell(link)
            return
        self._lost = "" if link.is_live else f"connection lost, reconnecting ({link.reason})"
        self._show()

    def _show(self) -> None:
        shown = self._fitted() if self.draws else self._lines
        if shown == self._shown:
            return
        up = f"\x1b[{len(self._shown)}A" if self._shown else ""
        before = f"{up}\x1b[J" if self.draws else ""
        self._app.stdout.write(before + "".join(f"{line}\n" for line in shown))
        self._app.stdout.flush()
        self._shown = shown

    def _fitted(self) -> list[str]:
        import shutil

        from nsml.common.text import fit_coloured, visible

        columns, height = shutil.get_terminal_size()
        lines, rows = self._lines, height - 2 - bool(self._lost)
        if len(lines) > rows:
            lines = [*lines[: rows - 1], f"... {len(lines) - rows + 1} more"]
        if self._lost:
            lines = [*lines, visible(self._lost)]
        # A wrapped line would take two rows, and the next redraw would start too low.
        return [fit_coloured(line, columns) for line in lines]


class OpenLines:
    """The last lines of a log that may still change, redrawn in place; the cursor stays after the last."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._shown: list[str] = []

    def show(self, lines: Sequence[str], style: str) -> None:
        """Replace the shown lines, cut to the terminal.

        `style`: the colour sequences in force before them.
        """
        import shutil

        from nsml.common.text import fit_coloured

        columns, height = shutil.get_terminal_size()
        # A line as wide as the terminal would wrap on some.
        shown = [fit_coloured(line.expandtabs(), columns - 1) for line in lines[1 - height :]]
        if self._shown and _grows(self._shown, shown):
            self._app.stdout.write(shown[0][len(self._shown[0]) :])
            self._shown = shown
        elif shown != self._shown:
            self._erase()
            self._app.stdout.write(("\x1b[0m" if style else "") + "\n".join(shown))
            self._shown = shown
        self._app.stdout.flush()

    def clear(self, style: str) -> None:
        """Erase them for permanent lines; `style`: the colour sequences in force before these lines."""
        if self._shown:
            self._erase()
            self._app.stdout.write(style)

    def over(self, text: str, style: str) -> str:
        """`clear` for a permanent text; return the part of it not yet on the screen."""
        if not style and self._shown and _grows(self._shown, [text]):
            done = len(self._shown[0])
            self._shown = []
            return text[done:]
        self.clear(style)
        return text

    def leave(self) -> None:
        """Leave the lines on the screen."""
        if self._shown:
            self._shown = []
            self._app.stdout.write("\n")
            self._app.stdout.flush()

    def _erase(self) -> None:
        up = len(self._shown) - 1
        if self._shown:
            self._app.stdout.write((f"\x1b[{up}A" if up > 0 else "") + "\r\x1b[J")
        self._shown = []


def _grows(before: Sequence[str], lines: Sequence[str]) -> bool:
    """Return whether a single line without colours was only extended: written without flicker."""
    is_plain = len(before) == len(lines) == 1 and "\x1b" not in before[0] + lines[0]
    return is_plain and lines[0].startswith(before[0])
