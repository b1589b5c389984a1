"""The target nodes of a command: names and globs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from cli.arguments import NODE, is_glob
from cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.v1.nodes_pb2 import GetNodeResponse

_MOST_NAMES = 5
AT_ONCE = 16
"""Nodes requested at a time."""


def nodes_argument() -> Callable[[Any], Any]:
    """Add an argument for several node names or globs."""
    return click.argument("names", type=NODE, metavar="NODE...", nargs=-1, required=True)


async def names_of(client: Client, words: Sequence[str]) -> list[str]:
    """Replace every glob by the matching node names; duplicates are dropped.

    Raises CommandError (NOT_FOUND) for a glob without matches.
    """
    known = [one.name for one in await client.nodes.every()] if any(map(is_glob, words)) else []
    names: list[str] = []
    for word in words:
        fitting = [name for name in known if fnmatchcase(name, word)] if is_glob(word) else [word]
        if not fitting:
            raise CommandError(
                f"no node fits {word!r}", code=ExitCode.NOT_FOUND, advice="nsml node ls"
            )
        names += fitting
    return list(dict.fromkeys(names))


def chosen_nodes(app: App, words: Sequence[str]) -> list[GetNodeResponse]:
    """Read the current state of the nodes with these names and globs."""

    async def look(client: Client) -> list[GetNodeResponse]:
        return await look_at(client, await names_of(client, words))

    return app.call(look)


async def look_at(client: Client, names: Sequence[str]) -> list[GetNodeResponse]:
    """Read the current state of these nodes, in this order."""
    from nsml.common.concurrency import each_at_once

    return await each_at_once(names, client.nodes.get, most=AT_ONCE)


def nodes_words(names: Sequence[str]) -> str:
    """Return `node a`, `nodes a, b`, `12 nodes`."""
    if len(names) == 1:
        return f"node {names[0]}"
    return f"{len(names)} nodes" if len(names) > _MOST_NAMES else f"nodes {', '.join(names)}"
