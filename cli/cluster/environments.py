"""env: Python environments of sessions, and the packages in them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import NODE, session_argument
from cli.cluster.environment_builds import build
from cli.cluster.node_targets import AT_ONCE, names_of
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.view.environments import OnNode, Removal


@click.group("env", cls=Group)
def env() -> None:
    """Python environments of sessions on nodes."""


@command(
    "lock",
    reads=True,
    examples=["nsml env lock @last > requirements.txt", "nsml env lock kim/mnist/3 -j"],
)
@session_argument()
@pass_app
def lock(app: App, *, session: str) -> None:
    """Print the packages of a session, with hashes.

    They are the packages that it ran with, in the format of requirements.txt; of conda packages in that
    of conda create --file. The lock is kept as long as the session, and nsml fork, resume and rerun
    install the same packages.
    """
    from nsml.common.text import visible
    from nsml.packages.locks import LockRefused
    from nsml.view.environments import LOCK_COLUMNS, lock_record, locked_lines

    found = app.call(lambda client: client.environments.lock(session))
    try:
        lines = locked_lines(found.content)
    except LockRefused as error:
        raise CommandError(
            f"the lock of {session} cannot be read", code=ExitCode.FAILED, why=str(error)
        ) from error
    if app.is_for_people:
        for text in found.content.splitlines():
            app.write(visible(text))
        return
    beside = {"digest": found.digest}
    write_list(app, lines, columns=LOCK_COLUMNS, record=lock_record, beside=beside)


@command("ls", reads=True, examples=["nsml env ls", "nsml env ls 'gpu-*' -j"])
@click.argument("names", nargs=-1, type=NODE, metavar="[NODE...]")
@pass_app
def ls(app: App, *, names: tuple[str, ...]) -> None:
    """List the environments that nodes have for your sessions.

    NODE is a name or a glob; without one, all connected nodes. You see yours and those for all
    users, administrators see all. Shared is what other environments of the node, or its kept
    downloads, have too: removing one frees the rest. On nodes with containers these are the images
    with packages, and shared is their base.
    """
    from nsml.v1 import resources_pb2
    from nsml.view.environments import COLUMNS, OnNode, record

    write_list(
        app,
        app.call(partial(_on_nodes, app=app, words=names)),
        columns=COLUMNS,
        record=record,
        name="key",
        none="no environments: none was built yet",
        blank=OnNode(node="", environment=resources_pb2.NodeEnvironment()),
    )


@command(
    "rm",
    reads=True,
    examples=["nsml env rm 3f9a0c51d2e4", "nsml env rm 3f9a0c51d2e4 --node gpu-7 -y"],
)
@click.argument("key", metavar="ENVIRONMENT")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    type=NODE,
    metavar="NODE",
    help="Only from this node, or nodes that fit a glob; repeatable.",
)
@confirmed
@pass_app
def rm(app: App, *, key: str, nodes: tuple[str, ...]) -> int:
    """Remove an environment from nodes. Asks first.

    ENVIRONMENT is as in nsml env ls, or the beginning of its key. One that a session uses stays. A
    later session with the same packages builds it again. Only administrators remove those for all
    users.
    """
    from nsml.view.environments import REMOVAL_COLUMNS, Removal, removal_record

    found = _chosen(app.call(partial(_on_nodes, app=app, words=nodes)), key)
    if not confirm_names(
        app, "env rm", [f"{one.key} on {one.node}" for one in found], noun="environment"
    ):
        return ExitCode.OK
    removals = app.call(partial(_removed, chosen=found))
    write_list(
        app, removals, columns=REMOVAL_COLUMNS, record=removal_record, name="node", blank=Removal()
    )
    gone = sum(not one.why for one in removals)
    if gone == len(removals):
        return ExitCode.OK
    return ExitCode.PARTLY if gone else ExitCode.FAILED


def _chosen(found: Sequence[OnNode], key: str) -> list[OnNode]:
    """Return those of a key, on all nodes. Raises CommandError if there is none, or if the prefix is ambiguous."""
    begin, dot, number = key.partition(".")
    fitting = [
        one
        for one in found
        if one.environment.key.partition(".")[0].startswith(begin or "-")
        and one.environment.key.partition(".")[1:] == (dot, number)
    ]
    keys = {one.environment.key for one in fitting}
    if len(keys) == 1:
        return fitting
    names = ", ".join(sorted(keys)[:5])
    raise CommandError(
        f"several environments begin with {key}"
        if keys
        else f"no environment {key} on these nodes",
        code=ExitCode.USAGE if keys else ExitCode.NOT_FOUND,
        why=names,
        advice="nsml env ls",
    )


async def _on_nodes(client: Client, *, app: App, words: Sequence[str]) -> list[OnNode]:
    """Return the environments of the named nodes; without words, of all connected nodes that respond."""
    from nsml.client.errors import ClientError, NotSignedIn
    from nsml.common.concurrency import each_at_once
    from nsml.v1.nodes_pb2 import NODE_STATE_FENCED, NODE_STATE_SILENT
    from nsml.view.environments import OnNode

    away = {NODE_STATE_SILENT, NODE_STATE_FENCED}
    if words:
        nodes = await names_of(client, words)
    else:
        nodes = [one.name for one in await client.nodes.every() if one.state not in away]

    async def of(node: str) -> list[OnNode]:
        try:
            found = await client.environments.on_node(node)
        except NotSignedIn:
            raise
        except ClientError as error:
            if words:
                raise
            app.say(f"({node}: {error}: its environments are not listed)")
            return []
        return [OnNode(node=node, environment=one) for one in found]

    return [one for some in await each_at_once(nodes, of, most=AT_ONCE) for one in some]


async def _removed(client: Client, *, chosen: Sequence[OnNode]) -> list[Removal]:
    from nsml.client.errors import ClientError, NotSignedIn
    from nsml.common.concurrency import each_at_once
    from nsml.view.environments import Removal

    async def on(one: OnNode) -> Removal:
        key = one.environment.key
        try:
            await client.environments.remove(one.node, key)
        except NotSignedIn:
            raise
        except ClientError as error:
            return Removal(one.node, key, error.why or error.message)
        return Removal(one.node, key)

    return await each_at_once(chosen, on, most=AT_ONCE)


for _command in (ls, lock, rm, build):
    env.add_command(_command)
