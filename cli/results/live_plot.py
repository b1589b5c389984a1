"""plot -w: charts that are updated while sessions report."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from cli.app import App
from cli.exits import CommandError, ExitCode
from cli.live_table import Redrawn
from cli.results.charts import ChartOptions, chart_lines, narrowed
from cli.results.metric_options import let_go_words
from cli.results.series import Source, why_nothing
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.client.streams import Link
    from nsml.common.clock import Clock
    from nsml.v1.sessions_pb2 import Session

_REDRAW_S = 0.25
"""Redraw interval in seconds; points within it are drawn together."""
_LEAST_ROWS = 3


def check_terminal(app: App) -> None:
    """Raise CommandError if the terminal cannot redraw."""
    from nsml.view.plot import LETTERS

    if app.room is None or not app.has_live_progress or not app.can_show(LETTERS):
        raise CommandError(
            "-w draws on a terminal, in place",
            code=ExitCode.USAGE,
            why="a screen reader follows, or its letters cannot be shown"
            if app.room is not None
            else "the output is not a terminal",
            advice="nsml events SESSION -f\nnsml plot SESSION",
        )


class LivePlot:
    """Charts on the terminal, and their streams."""

    def __init__(
        self,
        app: App,
        source: Source,
        options: ChartOptions,
        *,
        has_height: bool,
    ) -> None:
        """`has_height`: the user set the height of charts; else they share the screen."""
        from nsml.view.live_series import GrowingCharts

        self._app = app
        self._source = source
        self._options = options
        self._has_height = has_height
        self._charts = GrowingCharts(options.look.axis, is_apart=source.is_apart)
        self._screen = Redrawn(app, draws=True)
        self._lost: dict[str, str] = {}
        self._is_stale = True
        self._seen: set[str] = set()
        """Metrics of the received points."""
        self._none = "nothing reported yet"

    async def follow(
        self, client: Client, sessions: Sequence[Session], labels: Sequence[str]
    ) -> None:
        """Draw until all sessions have ended."""
        from nsml.common.concurrency import beside_each_other

        async with beside_each_other() as whole:
            redrawing = whole.create_task(self._kept_true(client.clock))
            async with beside_each_other() as group:
                for session, label in zip(sessions, labels, strict=True):
                    group.create_task(self._read(client, session, label))
            redrawing.cancel()
        ended = [await client.sessions.get(session.id) for session in sessions]
        is_of_log = bool(self._source.from_log)
        gone = "" if is_of_log else await let_go_words(self._app, client, ended)
        self._none = gone or self._why_nothing(ended)
        self.draw()

    def _why_nothing(self, ended: Sequence[Session]) -> str:
        source = self._source
        if not source.globs or self._seen or source.is_part:
            return why_nothing(ended, source, self._seen)
        return f"no metric {' or '.join(map(repr, source.globs))} was reported"

    async def _read(self, client: Client, session: Session, label: str) -> None:
        from nsml.client.log_points import read_points

        def on_link(link: Link) -> None:
            self._lost.pop(label, None)
            if not link.is_live:
                self._lost[label] = f"connection lost, reconnecting ({link.reason})"
            self._is_stale = True

        source = self._source
        stream = read_points(
            client,
            session,
            from_log=source.from_log,
            names=source.globs,
            follow=True,
            all_attempts=True,
            on_link=on_link,
        )
        async with aclosing(stream):
            async for answer in stream:
                for point in answer.points:
                    if self._source.takes(point):
                        self._charts.add(label, point)
                        # One is enough to report that it is not numeric.
                        if not self._charts.count:
                            self._seen.add(point.name)
                self._is_stale = True

    async def _kept_true(self, clock: Clock) -> None:
        while True:
            if self._is_stale:
                self.draw()
            await clock.sleep(_REDRAW_S)

    def draw(self) -> None:
        """Redraw the charts in place."""
        import shutil

        from nsml.common.text import visible

        self._is_stale = False
        room = shutil.get_terminal_size().lines - 2
        lines = self._lines(room - bool(self._lost))
        lines += [visible(text) for text in list(self._lost.values())[:1]]
        self._screen.show(lines)

    def _lines(self, room: int) -> list[str]:
        """Return charts of as many metrics as fit the screen, and the number of further ones."""
        from nsml.common.text import visible
        from nsml.view.metrics import not_drawn_text, not_worth_drawing
        from nsml.view.plot import heights

        groups = {visible(name): lines for name, lines in self._charts.groups().items()}
        if not groups:
            return [self._none]
        origins = {visible(name): origin for name, origin in self._charts.origins().items()}
        undrawn = [] if self._source.globs else not_worth_drawing(groups)
        drawn = narrowed(
            {name: lines for name, lines in groups.items() if name not in undrawn},
            self._options.span,
        )
        room -= bool(self._charts.left_out) + bool(undrawn)
        least = self._options.height if self._has_height else _LEAST_ROWS
        shares = heights(room, list(drawn.values()), least=least)
        lines: list[str] = []
        for name, share in zip(drawn, shares, strict=False):
            options = replace(self._options, height=least if self._has_height else share)
            lines += chart_lines(self._app, {name: groups[name]}, options, origins=origins)
        if lines:
            # A blank line separates charts, with none below the last.
            lines.pop()
        if len(shares) < len(drawn):
            lines = lines[: room - 1]
            lines.append(f"... {counted(len(drawn) - len(shares), 'metric')} more: -m GLOB")
        lines = lines[:room]
        if undrawn:
            lines.append(not_drawn_text(undrawn))
        if self._charts.left_out:
            lines.append("... more lines than are kept: -m GLOB")
        return lines
