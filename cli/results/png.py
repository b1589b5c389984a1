"""Pictures as PNG, drawn by Pillow: an extra of nsml."""

from __future__ import annotations

from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any

from cli.exits import CommandError
from nsml.view.figure import Area, Label, Stroke

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsml.view.figure import Figure, Points, Shape, Tile

_SCALE = 2
"""Pixels of the file per pixel of the figure: sharp on any screen."""
_FINER = 2
"""Supersampling factor, for smooth edges."""
_FONTS = ("DejaVuSans", "LiberationSans-Regular", "NotoSans-Regular", "Arial")
_BOLD_FONTS = ("DejaVuSans-Bold", "LiberationSans-Bold", "NotoSans-Bold", "Arial_Bold")
_WIDE_FONTS = ("NotoSansCJK-Regular.ttc", "NanumGothic.ttf", "AppleGothic.ttf", "malgun.ttf")
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
_FIRST_WIDE = 0x1100


def check_library() -> None:
    """Raise CommandError if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise CommandError(
            "PNG needs Pillow, which is not installed here",
            why="it is an extra of nsml",
            advice="pip install 'nsml[png]'\nnsml plot ... --svg FILE",
        ) from error
    del Image


def write_png(figure: Figure, file: IO[bytes]) -> None:
    """Draw the figure part by part: only one at a time is in memory at the finer scale."""
    from PIL import Image

    size = round(figure.width * _SCALE), round(figure.height * _SCALE)
    whole = Image.new("RGB", size, "#ffffff")
    fonts: dict[tuple[float, bool, bool], Any] = {}
    for tile in figure.tiles:
        whole.paste(_drawn(tile, fonts), (round(tile.x * _SCALE), round(tile.y * _SCALE)))
    whole.save(file, format="PNG", optimize=True)


def _drawn(tile: Tile, fonts: dict[tuple[float, bool, bool], Any]) -> Any:
    from PIL import Image, ImageDraw

    size = round(tile.width * _SCALE), round(tile.height * _SCALE)
    image = Image.new("RGB", (size[0] * _FINER, size[1] * _FINER), "#ffffff")
    draw = ImageDraw.Draw(image)
    for shape in tile.shapes:
        _draw(draw, shape, fonts)
    return image.resize(size, Image.Resampling.LANCZOS)


def _draw(draw: Any, shape: Shape, fonts: dict[tuple[float, bool, bool], Any]) -> None:
    scale = _SCALE * _FINER
    match shape:
        case Stroke():
            colour = _blended(shape.colour, shape.opacity)
            line_width = max(round(shape.width * scale), 1)
            for points in _dashed(shape.points, shape.dashes):
                placed = [(x * scale, y * scale) for x, y in points]
                draw.line(placed, fill=colour, width=line_width, joint="curve")
        case Area():
            placed = [(x * scale, y * scale) for x, y in shape.points]
            draw.polygon(placed, fill=_blended(shape.colour, shape.opacity))
        case Label():
            is_wide = any(ord(letter) >= _FIRST_WIDE for letter in shape.text)
            key = (shape.size * scale, shape.is_bold, is_wide)
            if key not in fonts:
                fonts[key] = _font(*key)
            place = (shape.x * scale, shape.y * scale)
            draw.text(
                place, shape.text, fill=shape.colour, font=fonts[key], anchor=_ANCHORS[shape.anchor]
            )


def _font(size: float, is_bold: bool, is_wide: bool) -> Any:
    """Return a font of this machine, else Pillow's own, which lacks characters beyond Latin."""
    from PIL import ImageFont

    wanted: Sequence[str] = _BOLD_FONTS if is_bold else _FONTS
    for name in (*(_WIDE_FONTS if is_wide else ()), *wanted):
        try:
            return ImageFont.truetype(name if "." in name else f"{name}.ttf", size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _blended(colour: str, opacity: float) -> tuple[int, int, int]:
    """Blend the colour with white."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    white = 255 * (1 - opacity)
    return (
        round(red * opacity + white),
        round(green * opacity + white),
        round(blue * opacity + white),
    )


def _dashed(points: Points, dashes: Sequence[float]) -> Iterator[Points]:
    """Yield the line, or its dashes."""
    if not dashes:
        yield points
        return
    turn, left = 0, dashes[0]
    part = [points[0]]
    for begin, end in pairwise(points):
        x, y = begin
        length = ((end[0] - x) ** 2 + (end[1] - y) ** 2) ** 0.5
        done = 0.0
        while length - done > left:
            done += left
            place = (x + (end[0] - x) * done / length, y + (end[1] - y) * done / length)
            if turn % 2 == 0:
                yield (*part, place)
            part = [place]
            turn += 1
            left = dashes[turn % len(dashes)]
        left -= length - done
        part.append(end)
    if turn % 2 == 0 and len(part) > 1:
        yield tuple(part)
