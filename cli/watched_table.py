"""A table that is watched: redrawn in place on a terminal, else a line for each row that looks different."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cli.app import Format
from cli.exits import CommandError, ExitCode
from cli.live_table import Redrawn
from cli.output import rendered, write_line
from nsml.common.text import visible
from nsml.view.tables import pick

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from cli.app import App
    from nsml.common.clock import Clock
    from nsml.view.tables import Column

T = TypeVar("T")
_REDRAW_S = 1.0
"""Interval in seconds in which ages are redrawn."""
_GROWING = frozenset({"submitted_at", "gpu_seconds"})
"""Columns of ages and running times: they differ from one look to the next although nothing happened."""
_NOTHING = frozenset({"", "-"})


class WatchedTable(Generic[T]):
    """The rows of a watched table, and their output.

    Args:
        key: identifies a row in all answers.
        record: of a row, for programs.
        none: shown instead of an empty table.
    """

    def __init__(
        self,
        app: App,
        *,
        key: Callable[[T], Hashable],
        record: Callable[[T], dict[str, Any]],
        none: str,
    ) -> None:
        self._app = app
        self._key = key
        self._record = record
        self._none = none
        self._screen = Redrawn(app)
        self._rows: Sequence[T] | None = None
        self._columns: Sequence[Column[T]] = ()
        self._head = ""
        self._titles: tuple[str, ...] = ()
        self._known: dict[Hashable, object] = {}
        self.link = self._screen.link

    def take(self, rows: Sequence[T], columns: Sequence[Column[T]], head: str = "") -> None:
        """Show the newest rows: redrawn below `head`, else those that changed, a line each."""
        self._rows, self._columns, self._head = rows, columns, head
        if self._screen.draws:
            self.draw()
        elif self._app.is_for_people:
            self._write_lines(rows)
        else:
            self._write_records(rows)

    def draw(self) -> None:
        """Redraw the table; its ages have changed."""
        if self._rows is None:
            return
        table = rendered(self._app, self._rows, self._columns)
        left_out = table.left_out_text(self._app.room)
        head = [visible(self._head)] if self._head else []
        lines = table.lines if self._rows else [self._none]
        self._screen.show([*head, *lines, *([left_out] if left_out else [])])

    async def keep_true(self, clock: Clock) -> None:
        """Redraw ages until cancelled."""
        while self._screen.draws:
            await clock.sleep(_REDRAW_S)
            self.draw()

    def _write_records(self, rows: Sequence[T]) -> None:
        for one in rows:
            if self._known.get(self._key(one)) != one:
                write_line(self._app, self._record(one))
        self._known = {self._key(one): one for one in rows}
        self._app.stdout.flush()

    def _write_lines(self, rows: Sequence[T]) -> None:
        """Write the rows that look different, with the columns of the whole table; titles again if these changed."""
        lines = rendered(self._app, rows, self._columns, fits=False).lines
        shown = pick(
            self._columns,
            self._app.flags.fields,
            wide=self._app.format is Format.WIDE,
            items=rows,
        )
        header = lines[: len(lines) - len(rows)]
        titles = tuple(column.title for column in shown)
        if rows and titles != self._titles:
            self._titles = titles
            for line in header:
                self._app.write(line)
        known, self._known = self._known, {self._key(one): self._cells(one, shown) for one in rows}
        for one, line in zip(rows, lines[len(header) :], strict=True):
            if known.get(self._key(one)) != self._known[self._key(one)]:
                self._app.write(line)
        self._app.stdout.flush()

    def _cells(self, row: T, shown: Sequence[Column[T]]) -> dict[str, str]:
        """Return the texts of a row by column, without ages, and without empty ones: a column may come and go."""
        now = self._app.clock.time()
        texts = {one.key: one.cell(row, now) for one in shown if one.key not in _GROWING}
        return {key: text for key, text in texts.items() if text not in _NOTHING}


def check_line_format(app: App, advice: str) -> None:
    """Raise CommandError (USAGE) for a format that cannot be written line by line."""
    if app.format not in {Format.TABLE, Format.WIDE, Format.JSONL}:
        raise CommandError(
            f"it writes line by line, not as {app.format.value}",
            code=ExitCode.USAGE,
            advice=advice,
        )
