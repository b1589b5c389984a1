"""Folders that commands fetch from the platform: their progress, and why one cannot be written."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from cli.exits import CommandError, ExitCode
from cli.progress import Progress
from nsml.common.shell import shell_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.content import Transfer

T = TypeVar("T")


def fetched(app: App, fetch: Callable[[Client, Callable[[Transfer], None]], Awaitable[T]]) -> T:
    """What `fetch` gives, to which it tells its progress.

    Raises CommandError after Ctrl-C: a folder is there whole or not at all.
    """
    from nsml.common.c_memory import keep_freed_memory

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


@contextmanager
def target_errors(target: Path) -> Iterator[None]:
    """Raises CommandError for a target that is there, or that cannot be written."""
    from nsml.content.errors import TargetExists

    try:
        yield
    except TargetExists as error:
        raise CommandError(
            str(error),
            code=ExitCode.CONFLICT,
            reason="TARGET_EXISTS",
            advice="remove it, or give another PATH",
        ) from error
    except OSError as error:
        raise CommandError(f"cannot write {target}", why=error.strerror or "") from error
