"""Folders on their way to the platform: packed and sent, with progress shown."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from cli.exits import CommandError
from cli.progress import Progress
from cli.sessions.file_names import files_text, pattern_of, shortened
from cli.sessions.written_files import warn_of_sent
from nsml._path_text import native_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.content import Transfer, Uploaded
    from nsml.content import packing
    from nsml.content.ignore import IgnoreRules
    from nsml.content.packing import Packed

Made = TypeVar("Made")

_IGNORE_FILES = (".gitignore", ".dockerignore", ".gcloudignore", ".amlignore", ".skyignore")
"""Where other tools are told what not to send."""


def pack_folder(app: App, path: Path, *, ignore: IgnoreRules, max_bytes: int) -> Packed:
    """The folder described, or the one file as a folder that has it alone, with notes on what is not sent.

    Raises what `nsml.content.packing.pack` raises, but CommandError for what can be left out by a rule.
    """
    from nsml.common.text import visible
    from nsml.content.errors import LinkRefused, PathRefused, Unreadable
    from nsml.content.ignore import IGNORE_FILE
    from nsml.content.packing import pack, pack_file

    progress = Progress(app, "packing")

    def shown(seen: packing.Progress) -> None:
        progress.update(seen.bytes, seen.bytes_total)

    try:
        if path.is_file():
            return pack_file(path, max_bytes=max_bytes, progress=shown)
        packed = pack(path, ignore=ignore, max_bytes=max_bytes, progress=shown)
    except PathRefused as error:
        raise CommandError(
            f"{error.path!r} cannot be sent",
            why=error.reason,
            advice=f"another name for it, or a line {pattern_of(error.path)} in {IGNORE_FILE}",
        ) from error
    except (LinkRefused, Unreadable) as error:
        if error.path in {".", IGNORE_FILE}:
            raise
        raise CommandError(
            str(error), advice=f"a line {pattern_of(error.path)} in {IGNORE_FILE} leaves it out"
        ) from error
    finally:
        progress.close()
    for what, names in (
        ("left out, for they are no files", packed.special),
        ("left out, environments of Python packages", packed.environments),
        ("empty folders are not sent", packed.empty),
        (f"not read, only {IGNORE_FILE} of the folder itself is", packed.unread),
    ):
        if names:
            app.say(f"note: {what}: {visible(shortened(names))}")
    _note_ignore_files(app, path, packed)
    warn_of_sent(app, path, packed)
    return packed


def _note_ignore_files(app: App, folder: Path, packed: Packed) -> None:
    """Say what is sent although git, or another tool, would leave it out: their rules are not read, in no folder."""
    from nsml.common.text import visible
    from nsml.common.units import size_text
    from nsml.content.ignore import IGNORE_FILE

    entries = packed.manifest.entries
    rules = _rules_by_folder(folder, [item.path for item in entries])
    naming: set[str] = set()
    sizes: list[int] = []
    for item in entries if rules else ():
        files = _files_that_name(item.path, rules)
        naming.update(files)
        if files:
            sizes.append(item.size)
    if naming:
        are = "is" if len(naming) == 1 else "are"
        them = "it names" if len(naming) == 1 else "they name"
        named = [file for by_file in rules.values() for file in by_file if file in naming]
        app.say(
            f"note: {visible(shortened(named))} {are} not read: {files_text(len(sizes))}"
            f" ({size_text(sum(sizes))}) that {them} are sent; {IGNORE_FILE} leaves files out"
        )


def _rules_by_folder(folder: Path, paths: Iterable[str]) -> dict[str, dict[str, IgnoreRules]]:
    """Ignore files of other tools, by the folder that they are in ("" or one with a slash at its end)."""
    from nsml.common.text_files import decoded, file_content, lines_of
    from nsml.content.ignore import other_tool_rules

    found: dict[str, dict[str, IgnoreRules]] = {}
    for path in (*_IGNORE_FILES, *paths):
        inside = path[: path.rfind("/") + 1]
        if path[len(inside) :] in _IGNORE_FILES:
            with suppress(OSError, ValueError):
                content = file_content(folder / native_path(path))
                found.setdefault(inside, {})[path] = other_tool_rules(lines_of(decoded(content)))
    return found


def _files_that_name(path: str, rules: dict[str, dict[str, IgnoreRules]]) -> list[str]:
    """Those of its own folder and of the folders above that leave the file out."""
    files = []
    start = 0
    while True:
        files += [
            file
            for file, of_file in rules.get(path[:start], {}).items()
            if of_file.ignores(native_path(path[start:]), is_folder=False)
        ]
        start = path.find("/", start) + 1
        if not start:
            return files


async def send(app: App, client: Client, packed: Packed, bases: Sequence[str] = ()) -> Uploaded:
    """See `nsml.client.content.upload`."""
    from nsml.client.content import upload

    with _shown(app) as progress:
        return await upload(client, packed, bases=bases, progress=progress)


async def made_of(
    app: App, client: Client, packed: Packed, make: Callable[[], Awaitable[Made]]
) -> Made:
    """See `nsml.client.content.made_of`."""
    from nsml.client import content

    with _shown(app) as progress:
        return await content.made_of(client, packed, make, progress=progress)


@contextmanager
def _shown(app: App) -> Iterator[Callable[[Transfer], None]]:
    """Shows how far a transfer has come."""
    progress = Progress(app, "sending")
    try:
        yield lambda seen: progress.update(seen.bytes, seen.bytes_total)
    finally:
        progress.close()
