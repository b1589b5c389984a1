"""Folders for upload: listed and sent, with progress."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from cli.exits import CommandError
from cli.progress import Progress
from cli.sessions.file_names import files_text, pattern_of, shortened
from cli.sessions.written_files import leave_out_line, warn_of_sent
from nsml._path_text import native_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.client.uploads import Uploaded
    from nsml.content.ignore import IgnoreRules
    from nsml.content.listing import FolderFiles
    from nsml.content.packing import Packed
    from nsml.content.stat_cache import StatCache

Made = TypeVar("Made")

_IGNORE_FILES = (".gitignore", ".dockerignore", ".gcloudignore", ".amlignore", ".skyignore")
"""Ignore files of other tools."""


def list_files(app: App, path: Path, *, ignore: IgnoreRules | None, max_bytes: int) -> FolderFiles:
    """Return the folder's files to send, or a single file as a folder, with notes on what is not sent.

    Raises the errors of `nsml.content.listing.list_folder`, but CommandError for paths that a rule can exclude.
    """
    from nsml.common.text import visible
    from nsml.content.ignore import IGNORE_FILE
    from nsml.content.listing import list_file, list_folder

    with _left_out_by_rules():
        if path.is_file():
            return list_file(path, max_bytes=max_bytes)
        listed = list_folder(path, ignore=ignore, max_bytes=max_bytes)
    for what, names in (
        ("left out, for they are no files", listed.special),
        ("left out, environments of Python packages", listed.environments),
        ("empty folders are not sent", listed.empty),
        (f"not read, only {IGNORE_FILE} of the folder itself is", listed.unread),
    ):
        if names:
            app.say(f"note: {what}: {visible(shortened(names))}")
    _note_ignore_files(app, path, listed)
    _warn_of_secrets(app, path, listed)
    warn_of_sent(app, path, listed)
    return listed


def _warn_of_secrets(app: App, folder: Path, listed: FolderFiles) -> None:
    """Warn of files that look like secrets, with the line to exclude them: viewers of the content can read them."""
    from nsml.common.text import visible
    from nsml.content.ignore import IGNORE_FILE
    from nsml.content.secret_files import looks_secret

    found = [item.path for item in listed.files if looks_secret(item.path)]
    if not found:
        return
    looks = "looks like a secret, and is" if len(found) == 1 else "look like secrets, and are"
    app.say(
        f"warning: {files_text(len(found))} {looks} sent: {visible(shortened(found))};"
        f" {IGNORE_FILE} leaves files out"
    )
    app.say(f"  try: {leave_out_line(folder, found)}")


@contextmanager
def _left_out_by_rules() -> Iterator[None]:
    """Convert errors of listing or reading a folder; if a rule helps, the error names it."""
    from nsml.content.errors import LinkRefused, PathRefused, Unreadable
    from nsml.content.ignore import IGNORE_FILE

    try:
        yield
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


def _note_ignore_files(app: App, folder: Path, listed: FolderFiles) -> None:
    """Report sent files that git or another tool would ignore: those rules are not read, in any folder."""
    from nsml.common.text import visible
    from nsml.common.units import size_text
    from nsml.content.ignore import IGNORE_FILE

    rules = _rules_by_folder(folder, [item.path for item in listed.files])
    naming: set[str] = set()
    sizes: list[int] = []
    for item in listed.files if rules else ():
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
    """Return other tools' ignore files, by their folder ("" or one with a trailing slash)."""
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
    """Return the ignore files, of its folder and those above, that exclude the file."""
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


def stat_cache(app: App, *, rehash: bool = False) -> StatCache | None:
    """Return the cache of this user's files, to be made before they are listed; None with `rehash`."""
    from nsml.client.contexts import cache_folder
    from nsml.content.stat_cache import FILE_NAME, StatCache

    if rehash:
        return None
    now_ns = int(app.clock.time() * 1e9)
    return StatCache(cache_folder(app.environ) / FILE_NAME, now_ns=now_ns)


async def send(
    app: App,
    client: Client,
    listed: FolderFiles,
    *,
    cache: StatCache | None,
    bases: Sequence[str] = (),
    project: str = "",
) -> Uploaded:
    """See `nsml.client.uploads.push`."""
    from nsml.client.uploads import push

    with _shown(app) as progress, _left_out_by_rules():
        return await push(
            client, listed, cache=cache, bases=bases, project=project, progress=progress
        )


async def made_of(
    app: App,
    client: Client,
    packed: Packed,
    make: Callable[[], Awaitable[Made]],
    *,
    cache: StatCache | None,
    project: str = "",
) -> Made:
    """See `nsml.client.uploads.made_of`."""
    from nsml.client import uploads

    with _shown(app) as progress:
        return await uploads.made_of(
            client, packed, make, cache=cache, project=project, progress=progress
        )


@contextmanager
def _shown(app: App) -> Iterator[Callable[[Transfer], None]]:
    """Show a transfer's progress."""
    from nsml.common.c_memory import keep_freed_memory

    keep_freed_memory()
    weighing, comparing = Progress(app, "checking size"), Progress(app, "comparing")
    sending = Progress(app, "sending")

    def show(seen: Transfer) -> None:
        shown = sending if seen.is_sent else comparing
        (weighing if seen.is_weighed else shown).update(seen.bytes, seen.bytes_total)

    try:
        yield show
    finally:
        for each in (weighing, comparing, sending):
            each.close()
