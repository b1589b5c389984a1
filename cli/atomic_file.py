"""Atomic file writes: written beside their place, then renamed."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from cli.exits import CommandError, ExitCode
from nsml.common.shell import shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def check_folder_of(path: Path) -> None:
    """Raise CommandError if the parent folder of a new file or folder does not exist."""
    folder = path.resolve().parent
    if folder.is_dir():
        return
    raise CommandError(
        f"{path} cannot be written: there is no folder {path.parent}",
        code=ExitCode.NOT_FOUND,
        why="it may be a slip: only the last part of a path is made",
        advice=f"mkdir -p {shell_word(str(path.parent))}",
    )


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` if the body succeeds, and is removed otherwise.

    Links are followed. Raises CommandError if `path` is no regular file or its folder does not exist,
    and OSError, with the file's name, for a full disk.
    """
    place = path.resolve()
    if place.exists() and not place.is_file():
        raise CommandError(
            f"{path} is there and is no file",
            code=ExitCode.CONFLICT,
            why="a file would be put in its place",
            advice="another name, or - for stdout",
        )
    check_folder_of(path)
    draft = place.with_name(f".nsml-{secrets.token_hex(6)}.part")
    try:
        # As any new file: the umask decides the permissions.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(place)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError) and error.filename in {None, draft, str(draft)}:
            error.filename = str(path)
        raise
