"""gpustat, status, node: the machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import SESSION
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, near, not_there_yet, pass_app
from cli.output import write_list, write_one

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.v1.nodes_pb2 import Node


@command(
    "gpustat",
    reads=True,
    examples=["nsml gpustat", "nsml gpustat --free", "nsml gpustat gpu-014 gpu-021 -j"],
)
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@click.option("--free", is_flag=True, help="Only GPUs that nothing holds and that are offered.")
@not_there_yet("-w", "--watch", is_flag=True)
@not_there_yet("--model")
@not_there_yet("--user")
@pass_app
def gpustat(app: App, *, nodes: tuple[str, ...], free: bool) -> None:
    """Show every GPU: its load, its memory and the sessions on it."""
    from nsml.view import nodes as view
    from nsml.view.text import visible

    found = _chosen(app.call(lambda client: client.nodes.every()), nodes)
    devices = view.devices(found)
    if free:
        devices = [item for item in devices if view.is_free(item)]
    write_list(
        app,
        devices,
        columns=view.DEVICE_COLUMNS,
        record=view.device_record,
        name="uuid",
        none="no free GPUs" if free else "no GPUs",
    )
    for node in found:
        if app.is_for_people and (note := view.note(node)):
            app.say(f"{node.name}: {visible(note)}")


def _chosen(nodes: Sequence[Node], names: Sequence[str]) -> list[Node]:
    known = [node.name for node in nodes]
    for name in names:
        if name not in known:
            raise CommandError(
                f"no such node: {name}",
                code=ExitCode.NOT_FOUND,
                advice="\n".join(f"nsml gpustat {item}" for item in near(name, known))
                or "nsml node ls",
            )
    return [node for node in nodes if not names or node.name in names]


@command(
    "status",
    reads=True,
    examples=["nsml status", "nsml status --explain @last", "nsml status -j"],
)
@click.option("--explain", "session", type=SESSION, metavar="SESSION", help="Why does it wait?")
@not_there_yet("--queue", is_flag=True)
@not_there_yet("--services", is_flag=True)
@not_there_yet("-w", "--watch", is_flag=True)
@pass_app
def status(app: App, *, session: str | None) -> None:
    """Show the platform in a few lines: who leads, what is used, what waits."""
    from nsml.view.text import visible

    if session is not None:
        _explain(app, session)
        return
    from nsml.view import nodes as view

    cluster = app.call(lambda client: client.nodes.cluster())
    lines = view.cluster_lines(cluster, server=app.context.server)
    write_one(app, view.cluster_record(cluster), [visible(line) for line in lines], name="version")


def _explain(app: App, reference: str) -> None:
    from nsml.view.sessions import record, state_text
    from nsml.view.text import visible

    session = app.call(lambda client: client.sessions.get(reference))
    shown = record(session)
    lines = [f"{session.name}  {state_text(session)}"]
    if session.waiting:
        lines.append(f"  why: {session.waiting}")
    if session.end.message:
        lines.append(f"  why: {session.end.message}")
    if session.replicas:
        nodes = ", ".join(dict.fromkeys(replica.node for replica in session.replicas))
        lines.append(f"  on:  {nodes} (attempt {session.attempt})")
    fields = ("name", "id", "state", "waiting", "attempt", "replicas", "end")
    write_one(app, {key: shown[key] for key in fields}, [visible(line) for line in lines])


@click.group("node", cls=Group)
def node() -> None:
    """Nodes: the machines that run sessions."""


@command("ls", reads=True, examples=["nsml node ls", "nsml node ls -o wide"])
@pass_app
def ls(app: App) -> None:
    """List the nodes."""
    from nsml.v1 import nodes_pb2
    from nsml.view import nodes as view

    found = app.call(lambda client: client.nodes.every())
    write_list(
        app,
        found,
        columns=view.COLUMNS,
        record=view.record,
        none="no nodes yet · nsml join HOST --token TOKEN",
        blank=nodes_pb2.Node(),
    )


node.add_command(ls)
