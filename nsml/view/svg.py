"""A picture as SVG: text for any browser, small, without scripts or external resources."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from nsml.view.figure import Area, Figure, Label, Shape, Stroke

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsml.view.figure import Points

_FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
# Characters not allowed in XML 1.0.
_NO_XML = "[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]"


def svg(figure: Figure, described: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of an SVG file; `described` is for screen readers."""
    size = f"{figure.width:g} {figure.height:g}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img"'
        f' width="{figure.width:g}" height="{figure.height:g}" font-family="{_FONT}">'
    )
    yield f"<title>{_text(figure.title)}</title>"
    if described:
        yield f"<desc>{_text('; '.join(described))}</desc>"
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    for tile in figure.tiles:
        yield f'<g transform="translate({tile.x:g} {tile.y:g})">'
        for shape in tile.shapes:
            yield _element(shape)
        yield "</g>"
    yield "</svg>"


def _element(shape: Shape) -> str:
    match shape:
        case Stroke():
            dashes = " ".join(f"{part:g}" for part in shape.dashes)
            return (
                f'<polyline points="{_points(shape.points)}" fill="none" stroke="{shape.colour}"'
                f' stroke-width="{shape.width:g}" stroke-linejoin="round"{_opacity(shape.opacity)}'
                + (f' stroke-dasharray="{dashes}"' if dashes else "")
                + "/>"
            )
        case Area():
            return (
                f'<polygon points="{_points(shape.points)}" fill="{shape.colour}"'
                f"{_opacity(shape.opacity)}/>"
            )
        case Label():
            bold = ' font-weight="600"' if shape.is_bold else ""
            return (
                f'<text x="{shape.x:g}" y="{shape.y:g}" font-size="{shape.size:g}"{bold}'
                f' text-anchor="{shape.anchor}" fill="{shape.colour}">{_text(shape.text)}</text>'
            )


def _points(points: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _opacity(value: float) -> str:
    return "" if value == 1.0 else f' opacity="{value:g}"'


def _text(text: str) -> str:
    return escape(re.sub(_NO_XML, "\ufffd", text))
