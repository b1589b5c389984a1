"""Keys and texts that screens with charts share."""

from __future__ import annotations

import math
from dataclasses import replace
from glob import escape
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from textual.binding import Binding

from nsml.client.streams import ENDED_STATES
from nsml.common.shell import shell_line
from nsml.common.text import fit_middle, visible
from nsml.common.units import counted
from nsml.v1.sessions_pb2 import SESSION_STATE_HELD
from nsml.view.elements import element_in
from nsml.view.metrics import origin_words
from nsml.view.program_changes import marks
from nsml.view.series import Axis
from tui.background import in_background
from tui.screens.frame import Frame
from tui.screens.picking import Choice, Picker
from tui.sources import Topic
from tui.widgets.charts import Charts

if TYPE_CHECKING:
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import Session
    from tui.model import Row

SMOOTHINGS: Final = (0.0, 0.3, 0.6, 0.9, 0.97, 0.99, 0.999)
CHART_ACTIONS: Final = frozenset(
    {"axis", "smooth", "log_axis", "metric", "metrics", "zoom", "pan", "whole"}
)
"""Key actions of charts."""
MOST_CHOSEN: Final = 200
"""Metrics per request."""
_NAME_CELLS: Final = 24
"""Width of a metric's name beside the other text about charts."""
_AXES: Final = tuple(Axis)


def draw_charts(frame: Frame, charts: Charts, row: Row | None) -> None:
    """Draw a session's series."""
    shown = frame.model.shown
    none, groups = "", shown.chart_query.of(shown.groups or {})
    if row is None:
        groups = {}
    elif not groups:
        nothing = "loading..." if shown.groups is None else _unreported(row.session)
        none = frame.none(Topic.SERIES, nothing)
    charts.draw(
        groups,
        axis=shown.chart_query.axis,
        none=none,
        marks=() if row is None else marks(row.session.changes),
    )


def draw_as_kept(frame: Frame, charts: Charts) -> None:
    """Apply the saved chart preferences."""
    preferences = frame.dashboard.preferences.charts
    charts.smoothing = min(SMOOTHINGS, key=lambda share: abs(share - preferences.smoothing))
    charts.is_log = preferences.is_log


def _unreported(session: Session) -> str:
    if session.state in ENDED_STATES or session.state == SESSION_STATE_HELD:
        return "nothing was reported"
    return (
        "nothing was reported yet: nsml.report(step=..., loss=...) in its code draws a chart here"
    )


class ChartScreen(Frame):
    """A screen with charts of the shown sessions, and their keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="charts.back"),
        Binding("X", "axis", "Axis", id="plot.axis"),
        Binding("comma", "smooth(-1)", "Rougher", show=False, id="plot.rougher"),
        Binding("full_stop", "smooth(1)", "Smooth", key_display=".", id="plot.smoother"),
        Binding("y", "log_axis", "Log y", show=False, id="plot.log"),
        Binding("n", "metric(1)", "Metric", id="plot.next"),
        Binding("N", "metric(-1)", "Metric before", show=False, id="plot.before"),
        Binding("i", "metrics", "Choose metrics", show=False, id="plot.metrics"),
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom", show=False, id="plot.in"),
        Binding("minus", "zoom(2.0)", "Zoom out", show=False, id="plot.out"),
        Binding("H", "pan(-0.25)", "Left", show=False, id="plot.left"),
        Binding("L", "pan(0.25)", "Right", show=False, id="plot.right"),
        Binding("0", "whole", "Whole", show=False, id="plot.whole"),
    ]

    def on_mount(self) -> None:
        """Draw as saved."""
        super().on_mount()
        for charts in self.query(Charts):
            draw_as_kept(self, charts)
            charts.more_by = f"below: {self.key_of('plot.next')}"

    def _remember(self, **fields: Any) -> None:
        preferences = self.dashboard.preferences
        charts = msgspec.structs.replace(preferences.charts, **fields)
        self.dashboard.set_preferences(msgspec.structs.replace(preferences, charts=charts))

    def chart_words(self) -> str:
        """Name the first metric, and how it is drawn."""
        charts, query = self.query_one(Charts), self.model.shown.chart_query
        parts = []
        if charts.count:
            name = fit_middle(visible(charts.first_name), _NAME_CELLS)
            parts.append(f"metric {charts.first + 1}/{charts.count}: {name}")
        parts += [f"x: {query.axis.value}", f"smooth {charts.smoothing:g}"]
        parts += ["log y"] if charts.is_log else []
        if left_out := self.model.shown.left_out:
            parts.append(
                f"{left_out:,} more left out: {self.key_of('plot.metrics')} chooses by name"
            )
        if undrawn := self.undrawn():
            parts.append(f"{undrawn:,} hidden (counters, constants): {self.key_of('plot.metrics')}")
        parts += (
            [f"{counted(len(query.names), 'metric')} chosen: {self.key_of('plot.metrics')}"]
            if query.names
            else []
        )
        if query.low is not None or query.high is not None:
            parts.append(f"zoomed in: {self.key_of('plot.whole')} shows the whole")
        elif (query.axis, charts.smoothing, charts.is_log) != (Axis.STEP, 0.0, False):
            parts.append(f"{self.key_of('plot.whole')}: as it was reported")
        return " · ".join(parts)

    def undrawn(self) -> int:
        """Count metrics without a chart, since they were not chosen."""
        shown = self.model.shown
        groups = shown.groups or {}
        return 0 if shown.chart_query.names else len(groups) - len(shown.chart_query.of(groups))

    def plot_command(self, *names: str) -> tuple[str, str]:
        """Return the equivalent `nsml plot` command, and what it cannot show."""
        query, charts = self.model.shown.chart_query, self.query_one(Charts)
        words, lacks = ["nsml", "plot", *names], ""
        words += [word for name in query.names for word in ("-m", escape(name))]
        words += ["-x", query.axis.value] if query.axis is not Axis.STEP else []
        words += ["--smooth", f"{charts.smoothing:g}"] if charts.smoothing else []
        words += ["--log-y"] if charts.is_log else []
        if query.low is not None and query.high is not None:
            unit = {Axis.STEP: "", Axis.RELATIVE: "s"}.get(query.axis)
            if unit is None:
                lacks = "the part of the axis"
            else:
                low, high = max(math.floor(query.low), 0), max(math.ceil(query.high), 0)
                words += ["--range", f"{low}{unit}:{high}{unit}"]
        return shell_line(words), lacks

    def action_back(self) -> None:
        """Close the screen."""
        if self.is_current:
            self.app.pop_screen()

    def action_axis(self) -> None:
        """Switch to the next axis, at its full range."""
        query = self.model.shown.chart_query
        following = _AXES[(_AXES.index(query.axis) + 1) % len(_AXES)]
        self._remember(axis=following)
        self.dashboard.request_charts(replace(query, axis=following, low=None, high=None))

    def action_smooth(self, by: int) -> None:
        """Change the smoothing."""
        charts = self.query_one(Charts)
        place = SMOOTHINGS.index(charts.smoothing) + by
        charts.smoothing = SMOOTHINGS[min(max(place, 0), len(SMOOTHINGS) - 1)]
        self._remember(smoothing=charts.smoothing)
        self.redraw()

    def action_log_axis(self) -> None:
        """Toggle the logarithmic vertical axis."""
        charts = self.query_one(Charts)
        charts.is_log = not charts.is_log
        self._remember(is_log=charts.is_log)
        self.redraw()

    def action_metric(self, by: int) -> None:
        """Start with the next metric, or the previous one."""
        charts = self.query_one(Charts)
        charts.first += by
        self.redraw()

    def action_metrics(self) -> None:
        """Choose metrics by name, including those without room."""
        in_background(self, "metrics", self._choose_metrics)

    async def _choose_metrics(self) -> None:
        shown = self.model.shown
        rows = filter(None, map(self.model.row, shown.session_ids))
        names, origins = await self.dashboard.metric_names([row.session for row in rows])
        known = set(map(visible, names))
        choices = [*names, *(name for name in shown.groups or {} if name not in known)]

        def title(name: str) -> str:
            words = origin_words(origins.get(visible(element_in(name)[0]), ""))
            return f"{name}  {words}" if words else name

        def go(keys: tuple[str, ...] | None) -> None:
            if keys is None:
                return
            if len(keys) > MOST_CHOSEN:
                self.dashboard.say(f"the first {MOST_CHOSEN} are drawn")
            self.query_one(Charts).first = 0
            query = replace(self.model.shown.chart_query, names=keys[:MOST_CHOSEN])
            self.dashboard.request_charts(query)
            self.redraw()

        self.app.push_screen(
            Picker(
                "Metrics; with none chosen all but counters and constants",
                [Choice(name, title(name)) for name in choices],
                chosen=shown.chart_query.names,
                several=True,
            ),
            go,
        )

    def action_zoom(self, by: float) -> None:
        """Zoom in or out, around the middle of the axis."""
        if (span := self._span()) is not None:
            low, high = span
            middle, half = (low + high) / 2, (high - low) / 2 * by
            self._request_span(middle - half, middle + half)

    def action_pan(self, by: float) -> None:
        """Show another part of the axis, of the same width."""
        if (span := self._span()) is not None:
            low, high = span
            self._request_span(low + by * (high - low), high + by * (high - low))

    def action_whole(self) -> None:
        """Show the full axis; if it is shown already, reset to steps, no smoothing, no logarithmic axis."""
        from tui.preferences import ChartPreferences

        query, charts = self.model.shown.chart_query, self.query_one(Charts)
        if query.low is not None or query.high is not None:
            self.dashboard.request_charts(replace(query, low=None, high=None))
            return
        plain = ChartPreferences()
        charts.smoothing, charts.is_log = plain.smoothing, plain.is_log
        self._remember(axis=plain.axis, smoothing=plain.smoothing, is_log=plain.is_log)
        self.dashboard.request_charts(replace(query, axis=plain.axis))
        self.redraw()

    def _request_span(self, low: float, high: float) -> None:
        if math.isfinite(low) and math.isfinite(high) and low < high:
            self.dashboard.request_charts(replace(self.model.shown.chart_query, low=low, high=high))

    def _span(self) -> tuple[float, float] | None:
        """Return the drawn part of the axis."""
        query = self.model.shown.chart_query
        lines = [line for group in (self.model.shown.groups or {}).values() for line in group]
        ends = [end for line in lines if line.x for end in (line.x[0], line.x[-1])]
        if not ends:
            return None if query.low is None or query.high is None else (query.low, query.high)
        low = min(ends) if query.low is None else query.low
        high = max(ends) if query.high is None else query.high
        return low, high

    def on_charts_resized(self) -> None:
        """Request as many columns as fit."""
        self._fit()

    def on_screen_resume(self) -> None:
        """Fit after a screen with other charts."""
        self._fit()

    def _fit(self) -> None:
        if self.is_in_front:
            for charts in self.query(Charts):
                self.dashboard.fit_charts(charts.size.width)
