"""What nsml wrote on this machine (checkpoints, exports, pictures), so that none of it is sent with code unnoticed.

Their paths are lines of a file among the caches of this user: when it is lost, so are the notes, and nothing else.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nsml._path_text import path_text
from nsml.client.contexts import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cli.app import App
    from nsml.content.packing import Packed

_MOST_BYTES = 64 << 10
"""Of the file; beyond that, paths that are gone are forgotten, and the oldest ones."""
_MOST_KEPT = 200
_SHOWN = 3


def _file(app: App) -> Path:
    return cache_folder(app.environ) / "written.jsonl"


def remember(app: App, paths: Iterable[Path]) -> None:
    """Note that nsml made these files or folders. Never fails: a note is not worth an error."""
    file = _file(app)
    lines = [json.dumps(str(path.resolve())) for path in dict.fromkeys(paths)]
    with suppress(OSError, ValueError):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.stat().st_size > _MOST_BYTES:
            kept = [path for path in _known(app) if path.exists()][-_MOST_KEPT:]
            lines = [json.dumps(str(path)) for path in kept] + lines
            file.unlink()
        with file.open("a", encoding="utf-8") as opened:
            opened.write("".join(f"{line}\n" for line in lines))


def _known(app: App) -> list[Path]:
    found: list[Path] = []
    with suppress(OSError, ValueError, UnicodeDecodeError):
        for line in _file(app).read_text("utf-8").splitlines():
            with suppress(ValueError, TypeError):  # half a line of a command that was killed
                found.append(Path(json.loads(line)))
    return list(dict.fromkeys(found))


def print_sent(app: App, folder: Path, packed: Packed) -> None:
    """Say what of that is among the files that are sent, and how to leave it out."""
    from cli.sending import files_text, pattern_of, shortened
    from nsml.content.ignore import IGNORE_FILE
    from nsml.view.shell import shell_line
    from nsml.view.text import visible
    from nsml.view.units import size_text

    top = folder.resolve()
    inside = [path for path in _known(app) if top in path.parents]
    paths = {path_text(path.relative_to(top).as_posix()) for path in inside}
    if not paths:
        return
    sent = {item.path: (_made(item.path, paths), item.size) for item in packed.manifest.entries}
    found = {path: made for path, (made, _) in sent.items() if made}
    if not found:
        return
    made = sorted({*found.values()})
    size = size_text(sum(sent[path][1] for path in found))
    names = [one if one in sent else f"{one}/" for one in made]
    are = "is" if len(found) == 1 else "are"
    app.say(
        f"note: {files_text(len(found))} ({size}) that nsml wrote here {are} sent, too:"
        f" {visible(shortened(names, _SHOWN))}; {IGNORE_FILE} leaves files out"
    )
    form = _form(folder / IGNORE_FILE)
    patterns = [pattern_of(one) for one in names]
    app.say(f"  try: printf '{form}' {shell_line(patterns)} >> {IGNORE_FILE}")


def _made(path: str, written: Iterable[str]) -> str:
    """The longest way up from a file to something that nsml wrote; "" where there is none."""
    while path:
        if path in written:
            return path
        path = path.rpartition("/")[0]
    return ""


def _form(file: Path) -> str:
    """What printf is to write so that each word is a line of its own behind what is in the file."""
    try:
        content = file.read_bytes()
    except OSError:
        content = b""
    return "%s\\n" if not content or content.endswith(b"\n") else "\\n%s"
