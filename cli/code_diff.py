"""diff --code: in which files and lines the code of two sessions differs."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from cli.app import App
from cli.arguments import expand
from cli.exits import CommandError, ExitCode
from cli.output import write_list
from cli.reported import fits
from nsml.client.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.content.manifest import Entry, Manifest
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.code import File

_Bytes: TypeAlias = "dict[str, tuple[bytes, bytes]]"
"""Of files by path, in both sessions; none where one is not there."""


def diff_code(
    app: App, references: Sequence[str], ignored: Sequence[str], *, is_stat: bool
) -> bool:
    """Show how the code of two sessions differs, file by file; whether it does.

    `ignored`: globs of files that are left out. Raises CommandError where there are not two sessions, or
    their code cannot be read.
    """
    from nsml.view import code as view

    async def read(client: Client) -> tuple[list[Session], list[File], int, _Bytes]:
        sessions = [await client.sessions.get(name) for name in await expand(client, references)]
        _check_two(sessions)
        old, new = [await _tree(client, session) for session in sessions]
        files = [
            one for one in view.differing(old, new) if not (ignored and fits(one.path, ignored))
        ]
        paths = {entry.path for tree in (old, new) if tree is not None for entry in tree.entries}
        same = sum(not (ignored and fits(path, ignored)) for path in paths) - len(files)
        return sessions, files, same, await _read(client, sessions, view.readable(files))

    (first, second), files, same, data = app.call(read)
    names = first.name, second.name
    found = [
        view.compared(one, *data[one.path], names) if one.path in data else view.unread(one)
        for one in files
    ]
    if not app.is_for_people or is_stat:
        record = partial(view.record, has_lines=not is_stat)
        write_list(
            app, found, columns=view.COLUMNS, record=record, name="path", none="no file differs"
        )
    else:
        for one in found:
            for line in view.text_of(one):
                colour = view.colour_of(line) if app.painter else ""
                app.write(app.paint(line, colour) if colour else line)
    if app.is_for_people and (found or not is_stat):
        app.say(view.total_text(found, same))
    return bool(found)


def _check_two(sessions: Sequence[Session]) -> None:
    if len({session.id for session in sessions}) == len(sessions) == 2:
        bare = [session.name for session in sessions if not session.spec.bundle_digest]
        if len(bare) < 2:
            return
        raise CommandError(f"neither {bare[0]} nor {bare[1]} has code", code=ExitCode.NOT_FOUND)
    raise CommandError(
        "--code compares two sessions", code=ExitCode.USAGE, advice="nsml diff ONE ANOTHER --code"
    )


async def _tree(client: Client, session: Session) -> Manifest | None:
    """The files of a session's code; None where it was started without any."""
    from nsml.client.content import read_manifest

    root = session.spec.bundle_digest
    if not root:
        return None
    try:
        return await read_manifest(client, root, shown_by=partial(client.sessions.get, session.id))
    except NotFound as error:
        raise _is_gone(session, error) from error


async def _read(client: Client, sessions: Sequence[Session], files: Sequence[File]) -> _Bytes:
    olds = await _bytes(client, sessions[0], [file.old for file in files])
    news = await _bytes(client, sessions[1], [file.new for file in files])
    return {file.path: (old, new) for file, old, new in zip(files, olds, news, strict=True)}


async def _bytes(client: Client, session: Session, entries: Sequence[Entry | None]) -> list[bytes]:
    """The bytes of files, in one go; none of those that are not there."""
    from nsml.client.content import checked_blobs

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


def _is_gone(session: Session, error: NotFound) -> CommandError:
    return CommandError(
        f"the code of {session.name} cannot be read",
        code=ExitCode.NOT_FOUND,
        why=error.why or error.message,
    )
