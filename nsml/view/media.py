"""Media as rows and records (`nsml media`), and as lines: texts, tables, embeddings, histograms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nsml.common.text import fit, pad, visible, width
from nsml.common.units import ago, local_moment, moment, size_text, whole
from nsml.v1 import media_pb2 as pb
from nsml.view.enums import enum_word
from nsml.view.sessions import plain
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsml.v1.media_pb2 import Media

_BARS = " ▏▎▍▌▋▊▉█"
_BAR_CELLS = 40
_MOST_BARS = 32
_MOST_ROWS = 1_000
_MOST_CELLS = 40
_MOST_WHOLE = 1e16
_TOO_LARGE = 1e300
"""Limit for numbers of a histogram: sums of many below are finite, too."""
_ENDINGS = {
    "image/png": ".png",
    "image/apng": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/bmp": ".bmp",
    "audio/wav": ".wav",
    "audio/ogg": ".ogg",
    "audio/flac": ".flac",
    "audio/mpeg": ".mp3",
    "video/mp4": ".mp4",
    "video/webm": ".webm",
    "video/x-msvideo": ".avi",
    "text/plain": ".txt",
    "application/json": ".json",
}
_WORDS = {
    "rows": ("row", "rows"),
    "columns": ("column", "columns"),
    "dimensions": ("dimension", "dimensions"),
    "images": ("image", "images"),
    "frames": ("frame", "frames"),
    "fps": ("frame a second", "frames a second"),
    "seconds": ("s", "s"),
    "sample_rate": ("Hz", "Hz"),
    "channels": ("channel", "channels"),
    "count": ("value", "values"),
    "min": ("", ""),
    "mean": ("", ""),
    "max": ("", ""),
    "not_finite": ("not finite", "not finite"),
    "left_out": ("left out", "left out"),
}
"""Nouns for each number, singular and plural, in display order; without a noun its own name
is shown before it."""
_UNLESS_NONE = frozenset(("left_out", "not_finite"))
IN_WORDS = frozenset(("text", "histogram", "table", "embedding"))
"""Kinds shown as lines on a terminal."""


def state_word(media: Media) -> str:
    """`saved` on its node, `durable` in the object store, or `lost`."""
    return enum_word(pb.MediaState, media.state, "MEDIA_STATE_")


def step_text(media: Media) -> str:
    """Return the step as reported; "-" for none. Short enough for a file name."""
    if not media.HasField("step"):
        return "-"
    is_whole = media.step.is_integer() and abs(media.step) < _MOST_WHOLE
    return repr(int(media.step)) if is_whole else repr(media.step)


def _said(media: Media, _now: float) -> str:
    """Summarize it without its content."""
    if media.why_lost:
        return media.why_lost
    facts = {key: plain(value) for key, value in media.facts.fields.items()}
    if "beginning" in facts:
        said = str(facts["beginning"])
    elif "width" in facts:
        parts = [f"{_number(facts.pop('width'))}x{_number(facts.pop('height', 0))}"]
        said = ", ".join(parts + _facts_said(facts))
    else:
        said = ", ".join(_facts_said(facts))
    return " · ".join(part for part in (media.caption, said) if part)


def _facts_said(facts: dict[str, Any]) -> list[str]:
    """Return `16 frames`, `10 a second`, `min -1`; facts of other versions by their name."""
    order = {name: at for at, name in enumerate(_WORDS)}
    said = []
    for name in sorted(facts, key=lambda name: (order.get(name, len(order)), name)):
        number = _number(facts[name])
        if name in _UNLESS_NONE and number == "0":
            continue
        one, many = _WORDS.get(name, ("", ""))
        word = one if number == "1" else many
        said.append(f"{number} {word}" if word else f"{name.replace('_', ' ')} {number}")
    return said


def _number(value: Any) -> str:
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else f"{value:.6g}"
    return str(value)


COLUMNS: tuple[Column[Media], ...] = (
    Column(key="name", title="Name", cell=lambda m, _: m.name, is_name=True),
    Column(key="step", title="Step", cell=lambda m, _: step_text(m)),
    Column(key="kind", title="Kind", cell=lambda m, _: m.kind),
    Column(key="size", title="Size", cell=lambda m, _: size_text(m.size_bytes)),
    Column(key="when", title="When", cell=lambda m, now: ago(now - seconds_of(m.time))),
    Column(key="state", title="State", cell=lambda m, _: state_word(m)),
    Column(key="said", title="What", cell=_said, shrinks_to=20),
    Column(key="attempt", title="Attempt", cell=lambda m, _: str(m.attempt), is_wide=True),
    Column(
        key="rank",
        title="Rank",
        cell=lambda m, _: str(m.rank),
        is_wide=True,
        is_worth=lambda m: m.rank > 0,
    ),
    Column(key="type", title="Type", cell=lambda m, _: m.content_type, is_wide=True),
    Column(
        key="time", title="Time", cell=lambda m, _: local_moment(seconds_of(m.time)), is_wide=True
    ),
)


def record(media: Media) -> dict[str, Any]:
    """Return all its fields in raw values."""
    return {
        "name": media.name,
        "kind": media.kind,
        "step": whole(media.step) if media.HasField("step") else None,
        "time": moment(seconds_of(media.time)),
        "attempt": media.attempt,
        "rank": media.rank,
        "state": state_word(media).upper(),
        "content_type": media.content_type,
        "size_bytes": media.size_bytes,
        "caption": media.caption,
        "facts": {key: plain(value) for key, value in sorted(media.facts.fields.items())},
        "sha256": media.file.partition("-")[0],
        "why_lost": media.why_lost or None,
    }


def ending(media: Media) -> str:
    """Return the file extension for an export by its declared type, else `.bin`."""
    return _ENDINGS.get(media.content_type.partition(";")[0], ".bin")


def lines(media: Media, data: bytes, *, columns: int) -> Iterator[str]:
    """Yield the content for a terminal; ValueError if it does not match its kind."""
    if media.kind == "text":
        for line in data.decode("utf-8", "replace").split("\n"):
            yield visible(line)
        return
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is no JSON, or too deep") from error
    match media.kind, value:
        case "histogram", {"edges": [*edges], "counts": [*counts]}:
            yield from _histogram(edges, counts, columns)
        case (("table" | "embedding"), {"columns": [*names], "data": [*rows]}):
            yield from _table(names, rows, columns)
        case _:
            raise ValueError(f"it is no {media.kind}")


def _histogram(edges: Sequence[Any], counts: Sequence[Any], columns: int) -> Iterator[str]:
    """Yield a bar for each bin, or for several together, starting with its lower edge; its length is the count."""
    if not counts:
        yield "no values"
        return
    if len(edges) != len(counts) + 1 or not all(map(_is_number, (*edges, *counts))):
        raise ValueError("its edges do not fit its counts")
    edges, counts = [float(edge) for edge in edges], [float(count) for count in counts]
    together = -(-len(counts) // _MOST_BARS)
    counts = [sum(counts[at : at + together]) for at in range(0, len(counts), together)]
    edges = [*edges[:-1:together], edges[-1]]
    named = [f"{edge:.4g}" for edge in edges[:-1]]
    room = max(map(len, named))
    told = [_number(count) for count in counts]
    cells = max(min(_BAR_CELLS, columns - room - max(map(len, told)) - 2), 1)
    most = max(counts) or 1
    for name, count, number in zip(named, counts, told, strict=True):
        yield f"{name:>{room}} {_bar(max(count, 0) / most, cells)} {number}"
    yield f"{edges[-1]:.4g}".rjust(room)


def _bar(share: float, cells: int) -> str:
    eighths = round(share * cells * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_BARS[rest] if rest else "")).ljust(cells)


def _table(names: Sequence[Any], rows: Sequence[Any], columns: int) -> Iterator[str]:
    shown = [list(map(_cell, row)) for row in rows[:_MOST_ROWS] if isinstance(row, list)]
    heads = [visible(str(name)) for name in names]
    if any(len(row) != len(heads) for row in shown):
        raise ValueError("its rows do not fit its columns")
    widths = [
        min(max(width(row[at]) for row in (heads, *shown)), _MOST_CELLS) for at in range(len(heads))
    ]
    fitting = _fitting(widths, columns)
    for row in (heads, ["-" * cells for cells in widths], *shown):
        cells = (pad(fit(row[at], widths[at]), widths[at]) for at in range(fitting))
        yield "  ".join(cells).rstrip()
    left = len(rows) - len(shown), len(heads) - fitting
    if any(left):
        yield f"({left[0]} more rows, {left[1]} more columns: export it)"


def _fitting(widths: Sequence[int], columns: int) -> int:
    """Return the number of columns that fit; at least one."""
    used = 0
    for at, cells in enumerate(widths):
        used += cells + 2
        if at and used - 2 > columns:
            return at
    return len(widths)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None:
        return ""
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < _TOO_LARGE
