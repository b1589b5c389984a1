"""Files that runs keep, as media by the ends of their names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from nsml._media import MOST_BYTES
from nsml.imports.folders import shown

if TYPE_CHECKING:
    from nsml.content.safe_paths import Parts
    from nsml.imports.folders import Folder
    from nsml.imports.runs import Recording

_CALLS: Final = {
    **dict.fromkeys(("png", "jpg", "jpeg", "gif", "webp", "bmp"), "image"),
    **dict.fromkeys(("wav", "mp3", "flac", "ogg"), "audio"),
    **dict.fromkeys(("mp4", "webm", "avi"), "video"),
    **dict.fromkeys(
        ("txt", "md", "log", "json", "yaml", "yml", "toml", "csv", "tsv", "html", "htm"), "text"
    ),
}
_MOST_TEXT_BYTES: Final = 1 << 20
_MOST_TABLE_BYTES: Final = 8 << 20


def is_media(name: str) -> bool:
    """Return whether a file of this name is shown."""
    return name.rpartition(".")[2].lower() in _CALLS


def show_file(
    into: Recording,
    folder: Folder,
    parts: Parts,
    name: str,
    *,
    call: str = "",
    step: float | None = None,
    time: float | None = None,
    caption: str = "",
) -> None:
    """Record a file as media of this name; what cannot be shown is left out. `call`: what it is; default: by its end."""
    why = try_to_show(into, folder, parts, name, call=call, step=step, time=time, caption=caption)
    if why:
        into.leave_out(why)


def try_to_show(
    into: Recording,
    folder: Folder,
    parts: Parts,
    name: str,
    *,
    call: str = "",
    step: float | None = None,
    time: float | None = None,
    caption: str = "",
) -> str:
    """Record a file as `show_file` does; return why not, "" if it is recorded."""
    call = call or _CALLS.get(parts[-1].rpartition(".")[2].lower(), "")
    most = _MOST_TABLE_BYTES if call in {"text", "table"} else MOST_BYTES
    try:
        data = folder.read(parts, most)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        return f"media {name[:80]} ({shown(parts)}): {why}"
    if call not in {"text", "table"}:
        return into.try_to_show(call, name, data, step, time, caption=caption) if call else ""
    table = table_of(data) if call == "table" or parts[-1].endswith(".json") else None
    if table is not None:
        return into.try_to_show(
            "table", name, table[1], step, time, columns=table[0], caption=caption
        )
    if call == "table" or len(data) > _MOST_TEXT_BYTES:
        return f"media {name[:80]}: no table, and no text of at most {_MOST_TEXT_BYTES:,} bytes"
    text = data.decode("utf-8", "replace")
    return into.try_to_show("text", name, text, step, time, caption=caption)


def table_of(data: bytes) -> tuple[list[str], list[Any]] | None:
    """Return columns and rows of a table of MLflow or W&B; None of other JSON."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    columns, rows = found.get("columns"), found.get("data")
    if not (isinstance(columns, list) and columns and isinstance(rows, list)):
        return None
    if not all(isinstance(row, list) and len(row) == len(columns) for row in rows):
        return None
    return [str(one) for one in columns], [[*map(_cell, row)] for row in rows]


def _cell(cell: Any) -> Any:
    """Return a cell; of a medium, the name of its file."""
    if isinstance(cell, dict):
        return str(cell.get("path") or cell.get("_type") or cell)
    return cell
