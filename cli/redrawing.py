"""Lines on a terminal that are drawn over the ones before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.app import App


class Redrawn:
    """What is on the screen; the cursor stays below it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._drawn: list[str] = []

    def show(self, lines: Sequence[str]) -> None:
        """Put these lines in place of the last ones; they must fit the terminal's height."""
        import shutil

        from nsml.view.text import fit_coloured

        # A line that wrapped would take two, and the next redrawing start too low.
        fitting = [fit_coloured(line, shutil.get_terminal_size().columns) for line in lines]
        if fitting == self._drawn:
            return
        up = f"\x1b[{len(self._drawn)}A" if self._drawn else ""
        self._app.stdout.write(up + "\x1b[J" + "".join(f"{line}\n" for line in fitting))
        self._app.stdout.flush()
        self._drawn = fitting
