"""Read and download the packed code of sessions: trees and files, of one session or of a pair."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from nsml._path_text import path_text
from nsml.client.content import checked_blobs, download, read_manifest
from nsml.client.errors import NotFound
from nsml.common.text_files import decoded
from nsml.packages.requirements import (
    Requirements,
    RequirementsRefused,
    most_bytes,
    read_requirements,
)
from nsml.spec.folders import session_folder
from nsml.spec.nsml_arguments import MOST_SOURCE_BYTES, MOST_SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.content.manifest import Entry, Manifest
    from nsml.content.stored_manifest import Extent
    from nsml.v1.sessions_pb2 import Session

_FOLDER = "code"
_MOST_ROUNDS = 8
"""Most rounds of fetching included files: each file may include further ones."""

Pair: TypeAlias = "tuple[Session, Session]"


def folder_of(session: Session, path: Path) -> Path:
    """Return the target of its code: PATH/USER_DATASET_N/code."""
    return path / session_folder(session.name) / _FOLDER


async def pull(
    client: Client,
    session: Session,
    path: Path,
    *,
    progress: Callable[[Transfer], None] | None = None,
) -> Extent:
    """Download the code of a session to `folder_of`, completely or not at all; return its extent.

    Every file is checked by digest. Raises ClientError, NotFound if it has no code or it is not kept any more; ContentError
    (TargetExists if the folder exists), OSError.
    """
    root = session.spec.bundle_digest
    if not root:
        raise NotFound(f"{session.name} has no code")
    shown_by = partial(client.sessions.get, session.id)
    try:
        return await download(
            client, root, folder_of(session, path), progress=progress, shown_by=shown_by
        )
    except NotFound as error:
        raise _is_gone(session, error) from error


async def read_trees(client: Client, sessions: Pair) -> tuple[Manifest | None, Manifest | None]:
    """Return the code tree of each session; None for one started without code.

    Raises ClientError, NotFound if neither has code, or it is not kept any more.
    """
    first, second = sessions
    if not (first.spec.bundle_digest or second.spec.bundle_digest):
        raise NotFound(f"neither {first.name} nor {second.name} has code")
    return await read_tree(client, first), await read_tree(client, second)


async def read_both(
    client: Client, sessions: Pair, entries: Sequence[tuple[Entry | None, Entry | None]]
) -> list[tuple[bytes, bytes]]:
    """Return the contents of pairs of files, read in one go per session; b"" for None.

    Raises ClientError, NotFound if they are not kept any more.
    """
    first, second = sessions
    olds = await read_files(client, first, [old for old, _ in entries])
    news = await read_files(client, second, [new for _, new in entries])
    return list(zip(olds, news, strict=True))


async def read_tree(client: Client, session: Session) -> Manifest | None:
    """Return the tree of its code; None if it was started without code.

    Raises ClientError, NotFound if it is not kept any more.
    """
    root = session.spec.bundle_digest
    if not root:
        return None
    try:
        return await read_manifest(client, root, shown_by=partial(client.sessions.get, session.id))
    except NotFound as error:
        raise _is_gone(session, error) from error


async def read_files(
    client: Client, session: Session, entries: Sequence[Entry | None]
) -> list[bytes]:
    """Return the contents of files of its code, read in one go; b"" for None. Raises as `read_tree`."""
    refs = [ref for entry in entries if entry is not None for ref in entry.chunks]
    again = partial(client.sessions.get, session.id)
    blobs = checked_blobs(client, session.spec.bundle_digest, refs, shown_by=again)
    try:
        async with aclosing(blobs):
            return [
                b"".join([await anext(blobs) for _ in (entry.chunks if entry else ())])
                for entry in entries
            ]
    except NotFound as error:
        raise _is_gone(session, error) from error


async def read_python(client: Client, session: Session) -> list[str]:
    """Return up to MOST_SOURCES Python files as text, the entry first, none over MOST_SOURCE_BYTES. Raises as `read_tree`."""
    tree = await read_tree(client, session)
    found = [
        one
        for one in (tree.entries if tree is not None else ())
        if one.path.endswith(".py") and one.size <= MOST_SOURCE_BYTES
    ]
    found.sort(key=lambda one: (one.path != session.spec.entry, one.path))
    data = await read_files(client, session, found[:MOST_SOURCES])
    return [decoded(one, "replace") for one in data]


async def read_required(
    client: Client, session: Session, *, has_image: bool
) -> Requirements | None:
    """Return the packages and images that its code requires; empty without code, None if they cannot be read.

    `has_image`: as for `read_requirements`.

    Raises ClientError, NotFound if the code is not kept any more.
    """
    tree = await read_tree(client, session)
    entry = "" if session.spec.argv else session.spec.entry
    entries = {one.path: one for one in tree.entries} if tree is not None else {}
    texts: dict[str, str] = {}
    lacking: list[str] = []

    def text(name: str) -> str | None:
        path = path_text(name)
        if path in entries and path not in texts:
            lacking.append(path)
        return texts.get(path)

    for _ in range(_MOST_ROUNDS):
        lacking.clear()
        try:
            found = read_requirements(
                text, entry=entry, files=entries, may_build=True, has_image=has_image
            )
        except RequirementsRefused:
            found = None
        if not lacking:
            return found
        if any(entries[path].size > most_bytes(path) for path in lacking):
            return None
        data = await read_files(client, session, [entries[path] for path in lacking])
        texts |= {path: decoded(one, "replace") for path, one in zip(lacking, data, strict=True)}
    return None


def _is_gone(session: Session, error: NotFound) -> NotFound:
    return NotFound(f"the code of {session.name} cannot be read", why=error.why or error.message)
