"""Folders that commands fetch from the platform: their progress, and why one cannot be written."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from cli.exits import CommandError, ExitCode
from cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.content import Transfer

T = TypeVar("T")


def fetched(app: App, fetch: Callable[[Client, Callable[[Transfer], None]], Awaitable[T]]) -> T:
    """What `fetch` gives, to which it tells its progress."""
    progress = Progress(app, "fetching")
    try:
        return app.call(
            lambda client: fetch(client, lambda seen: progress.update(seen.bytes, seen.bytes_total))
        )
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
