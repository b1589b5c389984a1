"""Folders on their way to the platform: packed and sent, with progress shown."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from cli.exits import CommandError
from cli.progress import Progress
from cli.written import print_sent
from nsml._path_text import native_path
from nsml.view.units import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.content import Transfer, Uploaded
    from nsml.content import packing
    from nsml.content.ignore import IgnoreRules
    from nsml.content.packing import Packed

Made = TypeVar("Made")

_SHOWN = 3
_IGNORE_FILES = (".gitignore", ".dockerignore", ".gcloudignore", ".amlignore", ".skyignore")
"""Where other tools are told what not to send."""


def pack_folder(app: App, path: Path, *, ignore: IgnoreRules, max_bytes: int) -> Packed:
    """The folder described, or the one file as a folder that has it alone, with notes on what is not sent.

    Raises what `nsml.content.packing.pack` raises, but CommandError for what can be left out by a rule.
    """
    from nsml.content.errors import LinkRefused, PathRefused, Unreadable
    from nsml.content.ignore import IGNORE_FILE
    from nsml.content.packing import pack, pack_file
    from nsml.view.text import visible

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
    print_sent(app, path, packed)
    return packed


def _note_ignore_files(app: App, folder: Path, packed: Packed) -> None:
    """Say what is sent although git, or another tool, would leave it out: their rules are not read, in no folder."""
    from nsml.content.ignore import IGNORE_FILE, IgnoreRules
    from nsml.view.text import visible
    from nsml.view.units import size_text
    from nsml.written import decoded, lines_of

    paths = [item.path for item in packed.manifest.entries]
    files = [*_IGNORE_FILES, *(path for path in paths if path.rpartition("/")[2] in _IGNORE_FILES)]
    naming: list[str] = []
    sent: dict[str, int] = {}
    for file in dict.fromkeys(files):
        try:
            content = (folder / native_path(file)).read_bytes()
            rules = IgnoreRules(lines_of(decoded(content)))
        except (OSError, ValueError):
            continue
        base = file[: -len(file.rpartition("/")[2])]
        named = {
            item.path: item.size
            for item in packed.manifest.entries
            if item.path.startswith(base)
            and rules.ignores(native_path(item.path[len(base) :]), is_folder=False)
        }
        naming += [file] if named else []
        sent |= named
    if sent:
        are = "is" if len(naming) == 1 else "are"
        them = "it names" if len(naming) == 1 else "they name"
        app.say(
            f"note: {visible(shortened(naming))} {are} not read: {files_text(len(sent))}"
            f" ({size_text(sum(sent.values()))}) that {them} are sent; {IGNORE_FILE} leaves files out"
        )


def shortened(names: Sequence[str], most: int = _SHOWN) -> str:
    """The first of them, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def pattern_of(path: str) -> str:
    """A line of an ignore file that fits the path with this text."""
    plain = re.sub(r"(?:\\x[0-9a-f]{2})+", "*", path)
    return "/" + re.sub(r"([\[?]| $)", r"\\\1", plain)


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


def files_text(count: int) -> str:
    """So many files in words."""
    return counted(count, "file")
