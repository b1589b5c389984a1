"""Folders fetched from the platform: their progress, and write errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.atomic_file import check_folder_of
from cli.exits import CommandError, ExitCode
from cli.progress import Progress
from nsml.common.shell import shell_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.content import Transfer

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def fetched(
    app: App, path: Path, fetch: Callable[[Client, Callable[[Transfer], None]], Awaitable[T]]
) -> T:
    """Run `fetch`, which makes folders in `path` and reports progress to its argument; return its result.

    Raises CommandError if the parent of `path` does not exist, and after Ctrl-C: a folder appears only when complete.
    """
    from nsml.common.c_memory import keep_freed_memory

    check_folder_of(path)
    keep_freed_memory()
    progress = Progress(app, "fetching")
    try:
        return app.call(
            lambda client: fetch(client, lambda seen: progress.update(seen.bytes, seen.bytes_total))
        )
    except KeyboardInterrupt:
        progress.close()
        raise CommandError(
            "interrupted",
            code=ExitCode.INTERRUPTED,
            why="nothing was written: the folder appears once it is whole",
            advice=f"{shell_line(['nsml', *app.arguments])}    begins anew",
        ) from None
    finally:
        progress.close()


def pull_options(function: F) -> F:
    """Add the options of all commands that fetch a folder: -f and -v, as in NSML."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="List the files, with their sizes."),
        click.option(
            "-f", "--force", is_flag=True, help="Replace an existing folder, once all is fetched."
        ),
    ):
        function = option(function)
    return function


@contextmanager
def fetching_to(
    path: Path, target: Path, *, replaces: bool, only: Sequence[str] = ()
) -> Iterator[Path]:
    """Yield the folder to fetch into, in place of `path`, so that `target`, below `path`, is created.

    An existing target is an error, or with `replaces` is replaced at the end: a failed fetch leaves it unchanged. `only`:
    if it exists, replace only these paths in it. Raises CommandError as `target_errors` and `replacing`.
    """
    from cli.replacing import replacing

    with target_errors(target):
        if not (replaces and os.path.lexists(target)):
            yield path
            return
        with replacing(path, target, only) as staging:
            yield staging


def tell_files(app: App, folder: Path) -> None:
    """List the fetched files: sizes and paths, in order."""
    from nsml.common.text import visible
    from nsml.common.units import size_text

    for base, folders, names in os.walk(folder):
        folders.sort()
        for file in (Path(base, name) for name in sorted(names)):
            shown = visible(str(file.relative_to(folder)))
            app.say(f"{size_text(file.lstat().st_size):>10}  {shown}")


@contextmanager
def target_errors(target: Path) -> Iterator[None]:
    """Raise CommandError if the target exists or cannot be written."""
    from nsml.content.errors import TargetExists

    try:
        yield
    except TargetExists as error:
        raise CommandError(
            str(error),
            code=ExitCode.CONFLICT,
            reason="TARGET_EXISTS",
            advice="add -f to replace it, or give another PATH",
        ) from error
    except OSError as error:
        raise CommandError(f"cannot write {target}", why=error.strerror or "") from error
