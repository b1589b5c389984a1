"""Files written by nsml on this machine (checkpoints, exports, pictures), and pushed datasets.

They must not be sent with code unnoticed. Their paths are lines of a file each in this user's cache: if it
is lost, so are the notes, and nothing else.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cli.sessions.file_names import files_text, pattern_of, shortened
from nsml._path_text import path_text
from nsml.client.contexts import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cli.app import App
    from nsml.content.listing import FolderFiles

_MOST_BYTES = 64 << 10
"""Limit of the file; beyond it, missing paths and the oldest ones are dropped."""
_MOST_KEPT = 200
_SHOWN = 3


_WRITTEN, _PUSHED = "written.jsonl", "pushed.jsonl"


def remember(app: App, paths: Iterable[Path]) -> None:
    """Record files or folders written by nsml. Never fails: a note is not worth an error."""
    _add(app, _WRITTEN, paths)


def remember_pushed(app: App, path: Path) -> None:
    """Record a file or folder as a dataset. Never fails."""
    _add(app, _PUSHED, [path])


def _add(app: App, name: str, paths: Iterable[Path]) -> None:
    file = cache_folder(app.environ) / name
    lines = [json.dumps(str(path.resolve())) for path in dict.fromkeys(paths)]
    with suppress(OSError, ValueError):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.stat().st_size > _MOST_BYTES:
            kept = [path for path in _recorded(file) if path.exists()][-_MOST_KEPT:]
            lines = [json.dumps(str(path)) for path in kept] + lines
            file.unlink()
        with file.open("a", encoding="utf-8") as opened:
            opened.write("".join(f"{line}\n" for line in lines))


def _recorded(file: Path) -> list[Path]:
    found: list[Path] = []
    with suppress(OSError, ValueError, UnicodeDecodeError):
        for line in file.read_text("utf-8").splitlines():
            with suppress(ValueError, TypeError):  # half a line of a command that was killed
                found.append(Path(json.loads(line)))
    return list(dict.fromkeys(found))


def warn_of_sent(app: App, folder: Path, listed: FolderFiles) -> None:
    """Warn of files written by nsml and sent with the code, with the line to exclude them."""
    _warn(app, _WRITTEN, "that nsml wrote here", folder, listed)


def warn_of_pushed(app: App, folder: Path, listed: FolderFiles) -> None:
    """The same for files pushed as a dataset: the program has them at /data."""
    _warn(app, _PUSHED, "of a pushed dataset", folder, listed)


def _warn(app: App, name: str, which: str, folder: Path, listed: FolderFiles) -> None:
    from nsml.common.text import visible
    from nsml.common.units import size_text
    from nsml.content.ignore import IGNORE_FILE

    top = folder.resolve()
    recorded = _recorded(cache_folder(app.environ) / name)
    inside = [path for path in recorded if top in path.parents]
    paths = {path_text(path.relative_to(top).as_posix()) for path in inside}
    if not paths:
        return
    sent = {item.path: (_written_at(item.path, paths), item.size) for item in listed.files}
    included = {path: place for path, (place, _) in sent.items() if place}
    if not included:
        return
    size = size_text(sum(sent[path][1] for path in included))
    names = [one if one in sent else f"{one}/" for one in sorted({*included.values()})]
    are = "is" if len(included) == 1 else "are"
    app.say(
        f"note: {files_text(len(included))} ({size}) {which} {are} sent, too:"
        f" {visible(shortened(names, _SHOWN))}; {IGNORE_FILE} leaves files out"
    )
    app.say(f"  try: {leave_out_line(folder, names)}")


def leave_out_line(folder: Path, names: Iterable[str]) -> str:
    """Return a shell line that excludes files of the folder from uploads."""
    from nsml.common.shell import shell_line, shell_word
    from nsml.content.ignore import IGNORE_FILE

    file = folder / IGNORE_FILE
    place = IGNORE_FILE if folder.resolve() == Path.cwd() else str(file)
    patterns = [pattern_of(one) for one in names]
    return f"printf '{_form(file)}' {shell_line(patterns)} >> {shell_word(place)}"


def _written_at(path: str, written: Iterable[str]) -> str:
    """Return the file, or the nearest folder above it, that nsml wrote; "" if none."""
    while path:
        if path in written:
            return path
        path = path.rpartition("/")[0]
    return ""


def _form(file: Path) -> str:
    """Return printf's format, which puts each word on its own line after the file's contents."""
    try:
        content = file.read_bytes()
    except OSError:
        content = b""
    return "%s\\n" if not content or content.endswith(b"\n") else "\\n%s"
