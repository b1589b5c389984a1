"""Charts of series: on the terminal, in words, or in picture files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.atomic_file import check_folder_of, whole_file
from cli.group import BadValue
from cli.output import COLOURS
from cli.sessions.written_files import remember
from nsml.common.time_zone import typed
from nsml.common.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nsml.view.figure import Look
    from nsml.view.plot import Piece
    from nsml.view.series import Axis, Series

COLUMNS = 80
"""Cells of a chart without a terminal."""
_MOST_TEXT = 80
_FLATTENS = 1_000
"""Peak ratio above which a line flattens the usual one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of an axis, inclusive."""

    low: float
    high: float


EVERYTHING = Span(low=-math.inf, high=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartOptions:
    """Options of charts."""

    look: Look
    span: Span = EVERYTHING
    in_words: bool = False
    width: int | None = None
    """Cells; None: the terminal's."""
    height: int


def parse_span(app: App, text: str | None, axis: Axis) -> Span:
    """Parse `A:B` as a part of the axis; either end may be omitted. Raises click.UsageError."""
    from nsml.view.series import Axis

    if text is None:
        return EVERYTHING
    read: dict[Axis, Callable[[str], float]] = {
        Axis.STEP: _number,
        Axis.RELATIVE: parse_duration,
        Axis.WALL: lambda word: _moment(word, app.clock.time()),
    }
    for place, letter in enumerate(text[:_MOST_TEXT]):
        if letter != ":":
            continue
        # Times contain colons: the separator is the colon with both sides readable.
        ends = text[:place].strip(), text[place + 1 :].strip()
        try:
            low = read[axis](ends[0]) if ends[0] else -math.inf
            high = read[axis](ends[1]) if ends[1] else math.inf
        except ValueError:
            continue
        if low > high:
            raise _no_span(f"{text[:_MOST_TEXT]!r} ends before it begins", axis)
        return Span(low=low, high=high)
    raise _no_span(f"{text[:_MOST_TEXT]!r} is no part of the axis", axis)


def _no_span(message: str, axis: Axis) -> BadValue:
    context = click.get_current_context(silent=True)
    known = context.command.params if context is not None else []
    option = next((one for one in known if one.name == "given_span"), None)
    examples = {
        "step": ("it takes steps, as A:B, A: or :B", "nsml plot ... --range 1000:5000"),
        "relative": (
            "with -x relative it takes times since the first point",
            "nsml plot ... -x relative --range 10m:1h",
        ),
        "wall": (
            "with -x wall it takes moments in local time, or how long ago",
            "nsml plot ... -x wall --range 2026-11-20T08:00:2026-11-20T09:30",
        ),
    }
    why, advice = examples[axis.value]
    return BadValue(message, option, context, why=why, advice=advice)


def _number(text: str) -> float:
    number = float(text)
    if math.isnan(number):
        raise ValueError("no place on an axis")
    return number


def _moment(text: str, now: float) -> float:
    try:
        return now - parse_duration(text)
    except ValueError:
        return typed(text).timestamp()


def narrowed(groups: Mapping[str, Sequence[Series]], span: Span) -> dict[str, list[Series]]:
    """Return the series within a part of the axis, without empty ones."""
    from nsml.view.plot import within

    if span == EVERYTHING:
        return {name: list(lines) for name, lines in groups.items()}
    cut = {name: [within(line, span.low, span.high) for line in ls] for name, ls in groups.items()}
    return {name: kept for name, ls in cut.items() if (kept := [line for line in ls if line.x])}


def flattened(groups: Mapping[str, Sequence[Series]]) -> list[str]:
    """Return metrics in whose linear chart at least half of the lines lie on the axis, since another reaches far above them."""
    found = []
    for name, lines in groups.items():
        finite = [[value for value in line.y if math.isfinite(value)] for line in lines]
        peaks = sorted(max(map(abs, values)) for values in finite if values)
        usual = peaks[(len(peaks) - 1) // 2] if len(peaks) > 1 else 0.0
        if usual > 0 and peaks[-1] / _FLATTENS > usual:
            found.append(name)
    return found


def is_in_words(app: App) -> bool:
    """Return whether charts are described in words, since they cannot be shown or seen."""
    from nsml.view.plot import LETTERS

    return app.is_read_aloud or not app.can_show(LETTERS)


def chart_lines(
    app: App,
    groups: Mapping[str, Sequence[Series]],
    options: ChartOptions,
    marks: Sequence[float] = (),
    origins: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield the charts of all metrics, or descriptions if no chart can be shown, line by line.

    `marks` are steps; `origins` what reported a metric, if not `nsml.report`.
    """
    from nsml.view import plot as view
    from nsml.view.metrics import origin_words
    from nsml.view.series import Axis, smooth

    axis, smoothing = options.look.axis, options.look.smoothing
    is_told = options.in_words or is_in_words(app)
    columns = options.width or app.room or COLUMNS
    smoothed = {name: [smooth(line, smoothing) for line in ls] for name, ls in groups.items()}
    averages = narrowed(smoothed, options.span)
    for title, lines in narrowed(groups, options.span).items():
        origin = origin_words((origins or {}).get(title, ""))
        average = view.Average(lines=averages[title], share=smoothing) if smoothing else None
        if is_told:
            for line, one in zip(lines, averages[title], strict=True):
                alone = view.Average(lines=[one], share=smoothing) if smoothing else None
                yield view.words(title, line, axis=axis, average=alone, origin=origin)
            continue
        rows = view.chart(
            title,
            lines,
            axis=axis,
            columns=columns,
            rows=options.height,
            is_log=options.look.is_log,
            average=average,
            marks=marks if axis is Axis.STEP else (),
            origin=origin,
        )
        for row in rows:
            yield "".join(_coloured(app, piece) for piece in row)
        yield ""


def _coloured(app: App, piece: Piece) -> str:
    if piece.series is None or app.painter is None:
        return piece.text
    return app.painter(piece.text, COLOURS[piece.series % len(COLOURS)])


class PictureFile(click.ParamType[str]):
    """The name of a picture file, with its usual suffix."""

    name = "file"

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; refuses another format's, and an empty one."""
        text = str(value)
        if not text or text == "-":
            self.fail("it names no file", param, ctx)
        other = Path(text).suffix.lower()
        if other in {".svg", ".png", ".pdf", ".jpg"} and other != self._suffix:
            raise BadValue(
                f"{text} ends with {other}, and would not be one",
                param,
                ctx,
                nearest=[str(Path(text).with_suffix(self._suffix))],
            )
        return text


def write_pictures(
    app: App,
    groups: Mapping[str, Sequence[Series]],
    options: ChartOptions,
    *,
    svg: str | None,
    png: str | None,
    left_out: int,
) -> None:
    """Write picture files, and print their names; `left_out` further metrics are mentioned in them."""
    from nsml.view import figure as view
    from nsml.view.svg import svg as as_svg

    for name in filter(None, (svg, png)):
        check_folder_of(Path(name))
    drawn = view.figure(
        groups, options.look, low=options.span.low, high=options.span.high, left_out=left_out
    )
    if svg:
        with whole_file(Path(svg)) as file:
            for line in as_svg(drawn, view.described(groups)):
                file.write(f"{line}\n".encode("utf-8", "replace"))
    if png:
        from cli.results.png import write_png

        with whole_file(Path(png)) as file:
            write_png(drawn, file)
    remember(app, map(Path, filter(None, (svg, png))))
    for name in filter(None, (svg, png)):
        app.write(name)
