"""gpustat, status, node: the machines, and their administration."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.app import App
from cli.arguments import NODE, SESSION
from cli.cluster.node_sh import sh
from cli.cluster.node_targets import chosen_nodes, names_of, nodes_argument, nodes_words
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import DURATION, Group, command, near, not_there_yet, pass_app, to_try
from cli.output import table_lines, write_list, write_one
from cli.sessions.what_if import WHAT_IF, Change, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.client.calls import Client
    from nsml.v1.artifacts_pb2 import Artifact
    from nsml.v1.nodes_pb2 import FenceNodeResponse, GetNodeResponse, Node
    from nsml.v1.sessions_pb2 import ExplainSessionResponse

F = TypeVar("F", bound="Callable[..., Any] | click.Command")


@command(
    "gpustat",
    reads=True,
    examples=["nsml gpustat", "nsml gpustat -w", "nsml gpustat --free", "nsml gpustat gpu-014 -j"],
)
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@click.option("--free", is_flag=True, help="Only free GPUs.")
@click.option("-w", "--watch", is_flag=True, help="Keep running and show changes.")
@not_there_yet("--model")
@not_there_yet("--user")
@pass_app
def gpustat(app: App, *, nodes: tuple[str, ...], free: bool, watch: bool) -> None:
    """List GPUs with their load, memory and sessions."""
    from nsml.common.text import visible
    from nsml.view import nodes as view

    if watch:
        _watch_gpus(app, nodes, free=free)
        return
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


def _watch_gpus(app: App, names: Sequence[str], *, free: bool) -> None:
    from cli.live_table import Redrawn
    from cli.results.telemetry import LOOKS_EVERY_S, check_drawing
    from nsml.view import nodes as view

    check_drawing(
        app, "nsml gpustat" if app.is_for_people else f"nsml gpustat -o {app.format.value}"
    )
    screen = Redrawn(app)
    none = "no free GPUs" if free else "no GPUs"

    async def follow(client: Client) -> None:
        from nsml.client.streams import look_again

        looking = look_again(client, client.nodes.every, every_s=LOOKS_EVERY_S, on_link=screen.link)
        async with aclosing(looking):
            async for nodes in looking:
                devices = view.devices(_chosen(nodes, names))
                shown = [item for item in devices if not free or view.is_free(item)]
                screen.show(table_lines(app, shown, view.DEVICE_COLUMNS) if shown else [none])

    app.call(follow)


def _chosen(nodes: Sequence[Node], names: Sequence[str]) -> list[Node]:
    known = [node.name for node in nodes]
    for name in names:
        if name not in known:
            raise CommandError(
                f"no such node: {name}",
                code=ExitCode.NOT_FOUND,
                advice=to_try("nsml gpustat", near(name, known)) or "nsml node ls",
            )
    return [node for node in nodes if not names or node.name in names]


@command(
    "status",
    reads=True,
    examples=[
        "nsml status",
        "nsml status --explain @last",
        "nsml status --explain mnist/3 --what-if gpus=4,priority=high,time-limit=1h",
        "nsml status --queue",
        "nsml status --history --window 7d",
        "nsml status -j",
    ],
)
@click.option(
    "--explain", "session", type=SESSION, metavar="SESSION", help="Explain why this session waits."
)
@click.option(
    "--what-if",
    type=WHAT_IF,
    metavar="K=V,...",
    help="With --explain: the answer for this request instead; changes nothing.",
)
@click.option("--queue", is_flag=True, help="Show the queue, as nsml queue does.")
@click.option("--history", is_flag=True, help="Show GPU utilization over time.")
@click.option(
    "--window",
    type=DURATION,
    metavar="TIME",
    help="With --history: this period until now; default: a day.",
)
@not_there_yet("--services", is_flag=True)
@not_there_yet("-w", "--watch", is_flag=True)
@pass_app
def status(
    app: App,
    *,
    session: str | None,
    what_if: Change | None,
    queue: bool,
    history: bool,
    window: float | None,
) -> int:
    """Show the platform in a few lines: leader, usage, queue, faults.

    --explain shows a queued session's place, the reason, which sessions block it and until when at
    most, and when enough is free. --what-if takes gpus, cpus, memory, nodes, priority, time-limit,
    gpu-model, pod and network.

    A fault has a name, and ends by itself: since when, what it means, and what ends it are shown.
    Exit code 0 without faults or with notices only, 1 with faults, 3 if no control plane answers.
    The leader's term is a number that grows with each election.
    """
    from nsml.common.text import visible

    if what_if is not None and session is None:
        raise click.UsageError("--what-if needs --explain SESSION")
    if window is not None and not history:
        raise click.UsageError("--window needs --history")
    if (session is not None) + history + queue > 1:
        raise click.UsageError("one of --explain, --history and --queue at a time")
    if session is not None:
        _explain(app, session, what_if)
        return ExitCode.OK
    if history:
        from cli.results.telemetry import show_history

        show_history(app, window)
        return ExitCode.OK
    if queue:
        from cli.sessions.queue import show_queue

        show_queue(app)
        return ExitCode.OK
    from nsml.view import nodes as view

    cluster = app.cluster()
    lines = view.cluster_lines(cluster, server=app.context.places)
    if conditions := view.condition_lines(cluster):
        lines += ["", *conditions]
    write_one(app, view.cluster_record(cluster), [visible(line) for line in lines], name="version")
    is_wrong = not all(map(view.is_notice, cluster.conditions))
    return ExitCode.FAILED if is_wrong else ExitCode.OK


def _explain(app: App, reference: str, change: Change | None) -> None:
    from nsml.common.text import visible
    from nsml.view import queue as view
    from nsml.view import session_status as explained
    from nsml.view.sessions import record

    what_if = message_of(change) if change is not None else None

    async def ask(client: Client) -> tuple[ExplainSessionResponse, list[Artifact]]:
        answer = await client.sessions.explain(reference, what_if)
        is_needed = explained.lacks_outputs(answer.session)
        return answer, await client.artifacts.every(answer.session.id) if is_needed else []

    answer, artifacts = app.call(ask)
    session, now = answer.session, app.clock.time()
    shown = record(session)
    waiting = answer.waiting if answer.HasField("waiting") else None
    lines = explained.lines(session, waiting, now, artifacts)
    if change is not None:
        lines += view.what_if_lines(answer.what_if, change.text, now)
    fields = (
        "name",
        "id",
        "state",
        "waiting",
        "stop",
        "attempt",
        "attempts",
        "replicas",
        "end",
        "usage",
        "episodes",
        "simulated",
        "environment_lock",
        "reported_config",
    )
    whole = {key: shown[key] for key in fields} | view.explained_record(answer)
    whole["outputs_not_made"] = dict(explained.outputs_not_made(session, artifacts))
    write_one(app, whole, [visible(line) for line in lines])


@click.group("node", cls=Group)
def node() -> None:
    """Nodes: the machines that run sessions. Administrators drain, resume, fence and remove them."""


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
        none="no nodes yet · nsml join HOST",
        blank=nodes_pb2.Node(),
    )


def _node_argument() -> Callable[[F], F]:
    return click.argument("name", type=NODE, metavar="NODE")


REASON = click.option(
    "--reason", default="", metavar="TEXT", help="Shown with the node and its sessions."
)


@command("show", reads=True, examples=["nsml node show gpu-7", "nsml node show gpu-7 -j"])
@_node_argument()
@pass_app
def show(app: App, *, name: str) -> None:
    """Show one node and its sessions."""
    from nsml.common.text import visible
    from nsml.view import nodes as view

    answer = app.call(lambda client: client.nodes.get(name))
    lines = view.shown_lines(answer, app.clock.time())
    write_one(app, view.shown_record(answer), [visible(line) for line in lines])


@command(
    "drain",
    examples=[
        "nsml node drain gpu-7",
        "nsml node drain gpu-7 --move-after 2h --reason 'new disks'",
        "nsml node drain gpu-7 --move-after 0s",
        "nsml node drain 'rack2-*' gpu-7 --reason 'power work'",
    ],
)
@nodes_argument()
@click.option(
    "--move-after",
    type=DURATION,
    metavar="TIME",
    help="After this time move the remaining sessions to other nodes; default: never.",
)
@REASON
@confirmed
@pass_app
def drain(app: App, *, names: tuple[str, ...], move_after: float | None, reason: str) -> None:
    """Place no new sessions on nodes; administrators.

    Running sessions end by themselves, or are moved: SIGTERM, their grace in which they can save,
    and the next attempt elsewhere, whatever their --retry. A gang is moved as a whole. With
    --move-after it asks first if sessions are on the node. Undo: nsml node resume.
    """
    from nsml.common.units import duration_text

    found = chosen_nodes(app, names)
    moved = _sessions_on(found) if move_after is not None else []
    last = f"after {duration_text(move_after)}" if moved and move_after else ""
    first = f"drain {nodes_words([one.node.name for one in found])}"
    if not confirm_names(app, "node drain", moved, noun="session", first=first, last=last):
        return
    for one in found:
        drained = partial(_drained, name=one.node.name, move_after_s=move_after, reason=reason)
        _write_node(app, app.call(drained))


async def _drained(client: Client, *, name: str, move_after_s: float | None, reason: str) -> Node:
    return await client.nodes.drain(name, move_after_s=move_after_s, reason=reason)


def _sessions_on(found: Sequence[GetNodeResponse]) -> list[str]:
    """Return the sessions of nodes, each once, with those hidden from the user."""
    names = dict.fromkeys(name for one in found for name in one.sessions)
    return [*names, *["a session of another user"] * sum(one.hidden_sessions for one in found)]


@command(
    "resume",
    examples=[
        "nsml node resume gpu-7",
        "nsml node resume gpu-7 -y",
        "nsml node resume 'rack2-*'",
    ],
)
@nodes_argument()
@confirmed
@pass_app
def resume(app: App, *, names: tuple[str, ...]) -> None:
    """Place sessions on drained or held nodes again; administrators.

    A node is held when the control plane's store was restored from a backup that is older than the
    node's orders. Sessions on it that the platform does not know are then stopped; it asks first.
    """
    from nsml.common.text import visible
    from nsml.view.nodes import foreign_replicas

    found = [one.node for one in chosen_nodes(app, names)]
    held = [one for one in found if not one.hold.lifted_by]
    stops = {one.name: foreign_replicas(one, app.clock.time()) for one in held}
    aside = "\n".join(
        f"node {one.name}: {visible(one.hold.why)}" for one in held if stops[one.name]
    )
    first = f"resume {nodes_words([one.name for one in found])}"
    every = [replica for replicas in stops.values() for replica in replicas]
    if confirm_names(app, "node resume", every, noun="replica", first=first, aside=aside):
        for one in found:
            _write_node(app, app.call(partial(_resumed, name=one.name)))


async def _resumed(client: Client, *, name: str) -> Node:
    return await client.nodes.resume(name)


@command(
    "fence",
    examples=[
        "nsml node fence gpu-7 --reason 'power supply burnt'",
        "nsml node fence gpu-7 --force -y",
        "nsml node fence 'rack2-*' --reason 'water'",
    ],
)
@nodes_argument()
@REASON
@click.option("--force", is_flag=True, help="Also if its agent is still connected.")
@confirmed
@pass_app
def fence(app: App, *, names: tuple[str, ...], reason: str, force: bool) -> None:
    """Declare that sessions on silent nodes are gone; administrators. Asks first if sessions are there.

    The sessions end (node lost) and run elsewhere if they have a --retry left. If the agent comes
    back in the same boot, it ends whatever it still runs before the node takes new sessions.
    """
    from nsml.common.text import visible

    found = chosen_nodes(app, names)
    for one in found:
        if one.HasField("fence_refusal") and not force:
            refusal = one.fence_refusal
            raise CommandError(
                refusal.message, code=ExitCode.CONFLICT, why=refusal.why, advice=refusal.attempt
            )
    fenced = [one.node.name for one in found]
    state = f" ({_state(found[0].node)})" if len(found) == 1 else ""
    first = f"fence {nodes_words(fenced)}{state}"
    if not confirm_names(app, "node fence", _sessions_on(found), noun="session", first=first):
        return
    for name in fenced:
        answer = app.call(partial(_fenced, name=name, reason=reason, force=force))
        _write_node(app, answer.node)
        for session in answer.sessions:
            app.write(f"  ended {visible(session)}")


async def _fenced(client: Client, *, name: str, reason: str, force: bool) -> FenceNodeResponse:
    return await client.nodes.fence(name, reason=reason, force=force)


@command("rm", examples=["nsml node rm gpu-7", "nsml node rm gpu-7 --revoke -y"])
@nodes_argument()
@click.option(
    "--revoke",
    is_flag=True,
    help="Also revoke its key and disconnect its agent: for a stolen machine.",
)
@confirmed
@pass_app
def rm(app: App, *, names: tuple[str, ...], revoke: bool) -> None:
    """Remove empty nodes with their names and keys; administrators. Asks first.

    The certificate is void at once. The machine, or another one, joins under the name again with a
    new join token (nsml admin join-token). Stop its agent first, except with --revoke.
    """
    found = app.call(lambda client: names_of(client, names))
    if confirm_names(app, "node rm", found, noun="node"):
        for name in found:
            app.call(partial(_removed, name=name, revoke=revoke))
            app.say(f"removed node {name}" + (" and barred its key" if revoke else ""))


async def _removed(client: Client, *, name: str, revoke: bool) -> None:
    await client.nodes.remove(name, revoke=revoke)


def _state(node: Node) -> str:
    from nsml.view.nodes import state_text

    return state_text(node)


def _write_node(app: App, node: Node) -> None:
    from nsml.common.text import visible
    from nsml.view.nodes import why_closed

    why = why_closed(node, app.clock.time())
    app.write(visible(f"{node.name}  {_state(node)}{f'  {why}' if why else ''}"))


for _command in (ls, show, sh, drain, resume, fence, rm):
    node.add_command(_command)
