"""Folders on their way to the platform: packed and sent, with progress shown."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from cli.exits import CommandError
from cli.progress import Progress
from nsml.view.units import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.content import Transfer, Uploaded
    from nsml.content.ignore import IgnoreRules
    from nsml.content.packing import Packed

Made = TypeVar("Made")

_SPECIAL_SHOWN = 3


def pack_folder(app: App, folder: Path, *, ignore: IgnoreRules, max_bytes: int) -> Packed:
    """The folder described, what is no file told.

    Raises what `nsml.content.packing.pack` raises, but CommandError for a name that cannot be sent.
    """
    from nsml.content.errors import PathRefused
    from nsml.content.packing import pack
    from nsml.view.text import visible

    progress = Progress(app, "packing")
    try:
        packed = pack(
            folder,
            ignore=ignore,
            max_bytes=max_bytes,
            progress=lambda seen: progress.update(seen.bytes, seen.bytes_total),
        )
    except PathRefused as error:
        raise CommandError(
            f"{error.path!r} cannot be sent",
            why=error.reason,
            advice="another name for it, or a line with it in .nsmlignore",
        ) from error
    finally:
        progress.close()
    if packed.special:
        named = ", ".join(map(visible, packed.special[:_SPECIAL_SHOWN]))
        rest = len(packed.special) - _SPECIAL_SHOWN
        more = f" and {rest} more" if rest > 0 else ""
        app.say(f"note: left out, for they are no files: {named}{more}")
    return packed


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
