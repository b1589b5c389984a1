"""diff --code: differences between the code of two sessions, by file and line."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cli.app import App
from cli.arguments import sessions_of
from cli.exits import CommandError, ExitCode
from cli.output import write_list
from cli.results.metric_options import fits
from nsml.common.shell import shell_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.client.calls import Client
    from nsml.packages.locks import LockedPackage
    from nsml.packages.requirements import Requirements
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.code import Compared
    from nsml.view.compare import Row

_MOST_FILES = 20
"""Most rows of files, for people."""


def diff_code(
    app: App, references: Sequence[str], ignored: Sequence[str], *, is_stat: bool
) -> bool:
    """Show the code differences of two sessions, file by file; return whether there are any.

    `ignored`: globs of files to leave out. Raises CommandError if there are not two sessions, or
    their code cannot be read.
    """
    from nsml.view import code as view

    def takes(path: str) -> bool:
        return not (ignored and fits(path, ignored))

    async def read(client: Client) -> tuple[list[Compared], int]:
        from nsml.client.code import read_both, read_trees

        pair = _check_two(await sessions_of(client, references))
        old, new = await read_trees(client, pair)
        files = [one for one in view.differing(old, new) if takes(one.path)]
        data = await read_both(client, pair, view.entries(files))
        names = pair[0].name, pair[1].name
        return view.all_compared(files, data, names), view.same(old, new, takes)

    found, same = app.call(read)
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


async def code_rows(app: App, client: Client, sessions: Sequence[Session]) -> list[Row]:
    """Return rows for differing files and required packages; unreadable code is reported and left out."""
    from nsml.client.code import read_required, read_tree
    from nsml.client.errors import ClientError
    from nsml.content.manifest import build
    from nsml.view import compare

    trees, required = {}, {}
    for one in sessions:
        try:
            trees[one.name] = await read_tree(client, one) or build([])
            asked = await read_required(client, one, has_image=bool(one.spec.image))
        except ClientError as error:
            app.say(f"({error.message}: its files are not compared)")
            continue
        if asked is None:
            app.say(f"(the requirements of {one.name} cannot be read: packages are not compared)")
        else:
            required[one.name] = asked
    files = compare.files(trees) if len(trees) == len(sessions) else []
    if app.is_for_people and len(files) > _MOST_FILES:
        names = shell_line(["nsml", "diff", *(one.name for one in sessions[:2]), "--stat"])
        app.say(f"({len(files) - _MOST_FILES:,} more files differ: {names})")
        del files[_MOST_FILES:]
    return [*files, *await _package_rows(app, client, sessions, required)]


async def _package_rows(
    app: App, client: Client, sessions: Sequence[Session], required: Mapping[str, Requirements]
) -> list[Row]:
    """Compare packages by locks; else by the code's requirements, if known."""
    from nsml.view import compare

    locks = await _locks(client, sessions)
    of_system = {name: asked.packages for name, asked in required.items()}
    if len(locks) == len(sessions):
        rows = compare.locked_packages(locks)
        return rows + (compare.packages(of_system) if len(required) == len(sessions) else [])
    if locks:
        names = ", ".join(one.name for one in sessions if one.name not in locks)
        app.say(f"(no lock of {names} is kept: packages are compared as the code asks for them)")
    if len(required) < len(sessions):
        return []
    asked = {name: [*one.lines, *one.specs, *of_system[name]] for name, one in required.items()}
    return compare.packages(asked)


async def _locks(client: Client, sessions: Sequence[Session]) -> dict[str, Sequence[LockedPackage]]:
    """Return the packages of sessions with stored locks, by name."""
    from nsml.client.errors import ClientError
    from nsml.packages.locks import read_lock

    found: dict[str, Sequence[LockedPackage]] = {}
    for one in sessions:
        if one.HasField("environment_lock"):
            try:
                found[one.name] = read_lock((await client.environments.lock(one.id)).content)
            except (ClientError, ValueError):
                continue
    return found


def _check_two(sessions: Sequence[Session]) -> tuple[Session, Session]:
    """Return the two sessions. Raises CommandError for any other number."""
    if len({session.id for session in sessions}) == len(sessions) == 2:
        return sessions[0], sessions[1]
    raise CommandError(
        "--code compares two sessions", code=ExitCode.USAGE, advice="nsml diff ONE ANOTHER --code"
    )
