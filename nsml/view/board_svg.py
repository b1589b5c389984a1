"""A board as an SVG picture to embed in a page: its first rows, without scripts or external resources."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from unicodedata import category
from xml.sax.saxutils import escape

from nsml.common.text import fit, visible
from nsml.common.units import counted
from nsml.v1 import boards_pb2 as pb
from nsml.view.ranked_rows import scores_of
from nsml.view.scores import digits_of, score_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsml.view.scores import Digits

ROWS: Final = 10
WIDTH: Final = 640
_ROW: Final = 26
_HEAD: Final = 64
_FOOT: Final = 28
_PAD: Final = 16
_RANK, _CHANGE, _USER, _SCORE, _TREND = 34, 44, 78, 470, 500
_TREND_WIDTH: Final = 124
_TREND_HEIGHT: Final = 14
_TITLE_CELLS: Final = 44
_TEXT_CELLS: Final = 78
_USER_CELLS: Final = 32
_NO_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_STYLE: Final = """
.board { font: 13px system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif; }
.page { fill: #ffffff; stroke: #d0d7de; }
.text { fill: #1f2328; }
.faint { fill: #59636e; }
.up { fill: #1a7f37; }
.down { fill: #cf222e; }
.line { stroke: #d0d7de; }
.trend { stroke: #0969da; fill: none; stroke-width: 1.5; }
.number { font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; stroke: #3d444d; }
.text { fill: #f0f6fc; }
.faint { fill: #9198a1; }
.up { fill: #3fb950; }
.down { fill: #f85149; }
.line { stroke: #3d444d; }
.trend { stroke: #4493f8; }
}
"""


def board_svg(board: pb.Board, entries: Sequence[pb.BoardEntry]) -> str:
    """Return the picture of a board with its best entries, best first; those without a rank are left out."""
    return "\n".join(_lines(board, [one for one in entries if one.rank][:ROWS])) + "\n"


def _lines(board: pb.Board, rows: Sequence[pb.BoardEntry]) -> Iterator[str]:
    digits = digits_of(scores_of("score", rows))
    height = _HEAD + _ROW * max(len(rows), 1) + _FOOT
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img" class="board">'
    )
    name = f"{board.owner}/{board.name}"
    yield f"<title>{_text(name, _TITLE_CELLS)}</title>"
    yield f"<desc>{escape('; '.join(_described(rows, digits)))}</desc>"
    yield f"<style>{_STYLE}</style>"
    yield (f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>')
    yield _label(
        _PAD, 26, _text(name, _TITLE_CELLS), 'class="text" font-size="16" font-weight="600"'
    )
    about = board.settings.description or _metric(board)
    yield _label(_PAD, 48, _text(about, _TEXT_CELLS), 'class="faint"')
    yield _label(
        WIDTH - _PAD,
        26,
        escape(counted(board.entry_count, "entry", "entries")),
        'class="faint" text-anchor="end"',
    )
    yield f'<line class="line" x1="0" x2="{WIDTH}" y1="{_HEAD - 6}" y2="{_HEAD - 6}"/>'
    for number, row in enumerate(rows):
        yield from _row(row, digits, _HEAD + _ROW * number + 12)
    if not rows:
        yield _label(_PAD, _HEAD + 12, "no entries with a score yet", 'class="faint"')
    way = "least" if board.settings.direction == pb.SCORE_DIRECTION_MIN else "greatest"
    foot = f"{_metric(board)}, the {way} first"
    if board.kind == pb.BOARD_KIND_DATASET and board.evaluation > 1:
        foot += f", version {board.evaluation} of the scores"
    yield _label(_PAD, height - 12, _text(foot, _TEXT_CELLS), 'class="faint" font-size="11"')
    yield "</svg>"


def _metric(board: pb.Board) -> str:
    return board.settings.metric or "score"


def _row(row: pb.BoardEntry, digits: Digits, y: int) -> Iterator[str]:
    yield _label(_RANK, y, f"{row.rank}", 'class="text number" text-anchor="end"')
    if row.rank_before and row.rank_before != row.rank:
        is_up = row.rank < row.rank_before
        sign = f"{'▲' if is_up else '▼'}{abs(row.rank - row.rank_before)}"
        yield _label(_CHANGE, y, sign, f'class="{"up" if is_up else "down"}" font-size="10"')
    user = f"{row.owner} ({row.team})" if row.team else row.owner
    yield _label(_USER, y, _text(user, _USER_CELLS), 'class="text"')
    score = score_text(row.score, digits)
    if row.HasField("standard_error"):
        score += f" ± {row.standard_error:.2g}"
    yield _label(_SCORE, y, score, 'class="text number" text-anchor="end"')
    if len(row.trend) > 1:
        yield f'<polyline class="trend" points="{_points(row.trend, y)}"/>'


def _points(trend: Sequence[float], y: int) -> str:
    low, high = min(trend), max(trend)
    # Halves: the difference of two finite numbers may not be finite.
    span = high / 2 - low / 2
    places = [(value / 2 - low / 2) / span if span else 0.5 for value in trend]
    step = _TREND_WIDTH / (len(trend) - 1)
    top = y - _TREND_HEIGHT + 2
    return " ".join(
        f"{_TREND + step * at:.1f},{top + _TREND_HEIGHT * (1 - place):.1f}"
        for at, place in enumerate(places)
    )


def _described(rows: Iterable[pb.BoardEntry], digits: Digits) -> Iterator[str]:
    for row in rows:
        yield f"{row.rank}. {_clean(row.owner)} {score_text(row.score, digits)}"


def _label(x: int, y: int, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" {style}>{text}</text>'


def _text(text: str, cells: int) -> str:
    return escape(fit(_clean(text), cells))


def _clean(text: str) -> str:
    """Return one line without characters that are hidden, reorder others, or are not allowed in XML."""
    shown = _NO_XML.sub("\ufffd", visible(text))
    return "".join(letter for letter in shown if category(letter) != "Cf")
