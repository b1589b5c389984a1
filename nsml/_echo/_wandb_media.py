"""Media of W&B, from the form in which it sends them: their files are in the run's folder then."""

from __future__ import annotations

import json
import os

from nsml._echo._sink import sink
from nsml._echo._wandb_account import read_text
from nsml._values import is_mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Mapping, Tuple

_MOST_DEPTH = 15
_SEVERAL = {
    "images/separated": ("filenames", "image-file"),
    "audio": ("audio", "audio-file"),
    "videos": ("videos", "video-file"),
}
"""Where a group has its entries, and of which type they are, by its type."""


def media_of(
    payload: Mapping[str, Any], prefix: str = "", depth: int = 0
) -> Iterator[Tuple[str, Any]]:
    """Yield name and form of each medium in a report; NAME.KEY in nested values."""
    for key, value in [*payload.items()]:
        if is_mapping(value) and depth < _MOST_DEPTH:
            name = f"{prefix}{key}"
            if isinstance(value.get("_type"), str):
                yield name, value
            else:
                yield from media_of(value, f"{name}.", depth + 1)


def show(origin: str, folder: str, name: str, value: Mapping[str, Any], step: Any) -> None:
    """Show one.

    Args:
        origin: as in records.
        folder: of the run's files.
        name: of the medium.
        value: its form.
        step: the x axis.
    """
    media = sink().media
    kind = str(value["_type"])
    caption = str(value.get("caption") or "")
    path = os.path.join(folder, str(value.get("path") or ""))
    if kind in _SEVERAL:
        _show_several(origin, folder, name, value, step)
    elif kind == "histogram":
        media.histogram(name, value.get("values"), step, edges=_edges(value))
    elif kind == "image-file":
        media.image(name, path, step, caption=caption)
    elif kind == "audio-file":
        media.audio(name, path, step, caption=caption)
    elif kind == "video-file":
        media.video(name, path, step, caption=caption)
    elif kind == "html-file":
        media.text(name, read_text(path), step, caption=caption)
    elif kind.endswith("table-file"):
        _show_table(name, path, step)
    else:
        sink().log_once(
            f"wandb {kind}", f"{name!r} is not recorded, since it is of type {kind}", origin
        )


def _show_several(origin: str, folder: str, name: str, group: Mapping[str, Any], step: Any) -> None:
    place, kind = _SEVERAL[str(group["_type"])]
    entries, captions = group.get(place) or [], group.get("captions") or []
    for at, entry in enumerate(entries):
        one = entry if is_mapping(entry) else {"path": entry}
        caption = captions[at] if at < len(captions) else ""
        each = f"{name}/{at}" if len(entries) > 1 else name
        show(origin, folder, each, {"caption": caption, **one, "_type": kind}, step)


def _edges(histogram: Mapping[str, Any]) -> Any:
    packed: Any = histogram.get("packedBins")
    if not is_mapping(packed):
        return histogram.get("bins")
    return [packed["min"] + packed["size"] * at for at in range(packed["count"] + 1)]


def _show_table(name: str, path: str, step: Any) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            table = json.load(file)
        columns, rows = [str(one) for one in table["columns"]], [*table["data"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    sink().media.table(name, [[*map(_cell, row)] for row in rows], step, columns=columns)


def _cell(cell: Any) -> Any:
    """Return a cell of a table; of a medium, the name of its file."""
    return str(cell.get("path") or cell.get("_type") or cell) if is_mapping(cell) else cell
