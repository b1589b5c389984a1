"""up, down, join: the platform on this machine."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli import ports
from cli.app import App
from cli.bringup import BringUp
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.local import (
    AGENT,
    CONTEXT_NAME,
    CONTROL_PLANE,
    Choices,
    DataFolder,
    data_folder,
    node_name,
    user_name,
)
from cli.teardown import TearDown
from nsml.client import contexts
from nsml.client.errors import NotSignedIn
from nsml.client.trust import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.v1.nodes_pb2 import GetClusterResponse
    from nsml.v1.sessions_pb2 import Session

_DATA = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The data folder; default: NSML_DATA, else your own.",
)
_PEM = click.Path(exists=True, dir_okay=False, resolve_path=True)
_SIMULATE = click.option(
    "--simulate-gpus",
    type=click.IntRange(0, 64),
    metavar="N",
    help="Offer N simulated GPUs instead of the machine's own; every screen says so.",
)


@command(
    "up",
    examples=["nsml up", "nsml up --simulate-gpus 8", "nsml up --listen 0.0.0.0:18600"],
)
@click.option("--etcd", metavar="URL,...", help="Use this etcd cluster.")
@click.option("--etcd-ca", type=_PEM, metavar="FILE", help="Authority of its servers.")
@click.option("--etcd-cert", type=_PEM, metavar="FILE", help="Certificate that it asks for.")
@click.option("--etcd-key", type=_PEM, metavar="FILE", help="That certificate's key.")
@click.option("--embedded", is_flag=True, help="Coordinate by a file, even if etcd is installed.")
@_SIMULATE
@_DATA
@click.option("--port", type=click.IntRange(1, 65535), help="Port on the loopback; default 18553.")
@click.option("--listen", metavar="HOST:PORT", help="Also serve other machines there, with TLS.")
@click.option("--no-agent", is_flag=True, help="Run no sessions on this machine.")
@pass_app
def up(app: App, /, *, data: Path | None, no_agent: bool, **options: Any) -> None:
    """Start a platform on this machine: coordination, the control plane, an agent.

    What runs already is left alone.
    """
    folder = data_folder(data, app.environ)
    with folder.locked():
        choices = _chosen(app, folder, has_agent=not no_agent, **options)
        bring_up = BringUp(app, folder)
        with bring_up.undoing():
            said = bring_up.ensure(CONTROL_PLANE, _control_plane_settings(folder, choices))
            cluster = _ask_cluster(folder)
            choices = replace(choices, coordination=_settled(choices, cluster))
            folder.keep(choices)
            agent = _ensure_agent(bring_up, folder, choices, said)
        _use_context(app, folder)
        _tell_up(app, folder, choices, agent, is_news=bool(bring_up.started))


def _chosen(
    app: App,
    folder: DataFolder,
    *,
    etcd: str | None,
    embedded: bool,
    simulate_gpus: int | None,
    port: int | None,
    listen: str | None,
    has_agent: bool,
    **etcd_files: str | None,
) -> Choices:
    """What to start: what the folder was set up as, changed by what is asked for now.

    Raises:
        CommandError: it cannot be changed, at all or while it runs.
    """
    if etcd and embedded:
        raise click.UsageError("--etcd and --embedded exclude one another")
    before = folder.choices()
    choices = before or Choices(admin=user_name(), node=node_name())
    if choices.is_joined:
        raise CommandError(
            f"this machine is a node of the platform at {choices.server}",
            code=ExitCode.CONFLICT,
            why=f"{folder.path} belongs to that",
            advice="nsml up --data ANOTHER_FOLDER",
        )
    wanted = etcd or ("embedded" if embedded else choices.coordination)
    if before is not None and before.coordination not in {wanted, "auto"}:
        raise CommandError(
            f"the data in {folder.path} was made with {_words_of(before.coordination)}",
            code=ExitCode.CONFLICT,
            why=f"it cannot be used with {_words_of(wanted)}",
            advice="nsml up\nnsml up --data ANOTHER_FOLDER",
        )
    if listen:
        asked = ports.parse_listener(listen)
        listen = str(ports.with_ports(asked, before=choices.listen, avoid=port or choices.port))
    changed = replace(
        choices,
        coordination=wanted,
        simulate_gpus=choices.simulate_gpus if simulate_gpus is None else simulate_gpus,
        port=port or choices.port,
        listen=choices.listen if listen is None else listen,
        has_agent=has_agent,
        **{name: file for name, file in etcd_files.items() if file is not None},
    )
    _check_running(folder, choices, changed)
    return _with_ports(app, folder, changed, is_fixed=port is not None)


def _check_running(folder: DataFolder, before: Choices, after: Choices) -> None:
    """Refuse a change of settings that a running program already has."""
    pairs = [
        (CONTROL_PLANE, "--port", before.port, after.port),
        (CONTROL_PLANE, "--listen", before.listen, after.listen),
        (AGENT, "--simulate-gpus", before.simulate_gpus, after.simulate_gpus),
    ]
    for name, flag, old, new in pairs:
        if old != new and folder.running(name) is not None:
            raise CommandError(
                f"the platform runs with another {flag}: {old or 'none'}",
                code=ExitCode.CONFLICT,
                advice=f"nsml down --keep-sessions, then nsml up {flag} {new}",
            )


def _with_ports(app: App, folder: DataFolder, choices: Choices, *, is_fixed: bool) -> Choices:
    """The choices with ports that are free, unless the control plane holds them already.

    Raises:
        CommandError: a port that was asked for is taken.
    """
    if folder.running(CONTROL_PLANE) is not None:
        return choices
    reason = ports.obstacle(ports.LOOPBACK, choices.port)
    if choices.listen:
        listener = ports.parse_listener(choices.listen)
        ports.check_free(listener)
        if listener.covers(choices.port):
            reason = f"--listen {listener} takes it"
    if not reason:
        return choices
    if is_fixed:
        address = f"{ports.LOOPBACK}:{choices.port}"
        raise ports.refusal(address, reason, "nsml up --port ANOTHER")
    taken = ports.parse_listener(choices.listen).ports if choices.listen else ()
    chosen = ports.free_port(avoid=taken)
    app.say(f"port {choices.port}: {reason}; users of this machine are served on {chosen}")
    return replace(choices, port=chosen)


def _words_of(coordination: str) -> str:
    match coordination:
        case "embedded":
            return "the embedded store"
        case "etcd":
            return "an etcd of its own"
        case "auto":
            return "whatever is there"
    return f"the etcd cluster at {coordination}"


def _control_plane_settings(folder: DataFolder, choices: Choices) -> Mapping[str, object]:
    settings: dict[str, object] = {
        "data": folder.path / CONTROL_PLANE,
        "coordination": choices.coordination,
        "address": f"127.0.0.1:{choices.port}",
        "admin": choices.admin,
        "node": choices.node,
    }
    files = {
        "etcd_ca": choices.etcd_ca,
        "etcd_certificate": choices.etcd_cert,
        "etcd_key": choices.etcd_key,
    }
    settings.update({name: file for name, file in files.items() if file})
    if choices.listen:
        listener = ports.parse_listener(choices.listen)
        settings["listen"] = str(listener)
        settings["listen_agents"] = listener.agents
    return settings


def _settled(choices: Choices, cluster: GetClusterResponse) -> str:
    """What coordinates from now on: the first start decides what `auto` is."""
    return cluster.coordination if choices.coordination == "auto" else choices.coordination


def _ask_cluster(folder: DataFolder) -> GetClusterResponse:
    """Ask the control plane who it is, as its administrator."""
    from nsml.client.connect import connect

    async def ask() -> GetClusterResponse:
        context = folder.context()
        if context is None:
            raise CommandError(
                "the control plane ended again", advice=f"read {folder.path / CONTROL_PLANE}.log"
            )
        async with connect(context) as client:
            return await client.nodes.cluster()

    try:
        return asyncio.run(ask())
    except NotSignedIn as error:
        raise CommandError(
            "the administrator's token of this platform is not valid any more",
            code=ExitCode.DENIED,
            why=f"{folder.admin_token} has expired, or was revoked by nsml logout",
            advice="nsml down --keep-sessions, then nsml up: a new one is made at its start",
        ) from error


def _ensure_agent(
    bring_up: BringUp, folder: DataFolder, choices: Choices, control_plane: Mapping[str, Any]
) -> Mapping[str, Any]:
    if not choices.has_agent:
        return {}
    path = control_plane.get("socket")
    settings = {
        "node": choices.node,
        "server": f"unix:{path}" if path else control_plane["address"],
        "data": folder.path / AGENT,
        "token_file": folder.node_token,
        "owner": choices.admin,
        "simulate_gpus": choices.simulate_gpus,
    }
    return bring_up.ensure(AGENT, settings)


def _use_context(app: App, folder: DataFolder) -> None:
    """Make the platform the one that later commands talk to."""
    context = folder.context()
    if context is None:
        return
    wanted = app.config.with_context(context)
    if wanted != app.config:
        app.save(wanted)


def _tell_up(
    app: App, folder: DataFolder, choices: Choices, agent: Mapping[str, Any], *, is_news: bool
) -> None:
    said = folder.said(CONTROL_PLANE)
    app.write("nsml is up" if is_news else "nsml already runs")
    app.write(f"  control plane  {said.get('address')}, on {_words_of(choices.coordination)}")
    if choices.listen:
        app.write(f"  other machines {choices.listen}, with TLS")
    app.write(f"  node           {_node_words(choices, agent)}")
    app.write(f"  you            {choices.admin}, context {CONTEXT_NAME}")
    app.write(f"  data           {folder.path}")
    gpus = 1 if agent.get("devices") else 0
    steps = ["nsml dataset push NAME FOLDER", f"nsml run -g {gpus}", "nsml status", "nsml down"]
    if agent and not gpus:
        steps.append("nsml up --simulate-gpus 2    (after down: to try GPUs without any)")
    if choices.listen:
        steps[:0] = ["nsml admin join-token", "nsml admin user add NAME"]
        digest = digest_of(folder.authority.read_text(encoding="ascii"))
        app.say(f"users of other machines:  nsml login {said.get('listen')}#{digest}")
    app.say("next:  " + "\n       ".join(steps))


def _node_words(choices: Choices, agent: Mapping[str, Any]) -> str:
    if not agent:
        return "none: this machine runs no sessions"
    models = Counter(str(model) for model in agent.get("devices", ()))
    gpus = ", ".join(f"{count} x {model}" for model, count in models.items()) or "no GPUs"
    if agent.get("simulated"):
        gpus += " (simulated)"
    note = f" ({agent['device_note']})" if agent.get("device_note") and not models else ""
    return f"{choices.node}, isolation {agent.get('isolation')}, {gpus}{note}"


@command("down", examples=["nsml down", "nsml down -y", "nsml down --keep-sessions"])
@click.option("--keep-sessions", is_flag=True, help="Leave sessions running for the next `up`.")
@_DATA
@pass_app
def down(app: App, /, *, keep_sessions: bool, data: Path | None) -> None:
    """Stop the platform, or the node, on this machine.

    Lists what runs and asks. With --keep-sessions training goes on, and the next `nsml up`
    takes it over.
    """
    folder = data_folder(data, app.environ)
    if not folder.path.is_dir():
        app.say(f"nothing runs in {folder.path}")
        return
    with folder.locked():
        tear_down = TearDown(app, folder)
        programs, replicas = tear_down.programs, tear_down.replicas()
        sessions = tear_down.sessions()
        if not programs and not (replicas and not keep_sessions):
            tear_down.stop_programs()
            app.say(f"nothing runs in {folder.path}")
            return
        if not keep_sessions:
            local = len({replica.session_id for replica in replicas})
            _confirm(app, sessions, local, is_node=_is_joined(folder))
            left = tear_down.stop_sessions(sessions or [])
            for session in left:
                app.say(f"{'sessions':<14} {session.name} did not end in time")
            tear_down.stop_replicas()
        tear_down.stop_programs()
        kept = len({replica.session_id for replica in tear_down.replicas()})
    words = f", {_sessions(kept, 'goes', 'go')} on" if kept else ""
    app.write(f"nsml is down{words}")


def _sessions(count: int, verb: str = "", verb_of_many: str = "") -> str:
    """So many sessions, and what they do."""
    return (
        f"1 session {verb}".rstrip() if count == 1 else f"{count} sessions {verb_of_many}".rstrip()
    )


def _is_joined(folder: DataFolder) -> bool:
    choices = folder.choices()
    return choices is not None and choices.is_joined


def _confirm(
    app: App, sessions: Sequence[Session] | None, local_count: int, *, is_node: bool
) -> None:
    """List what would be ended and ask, unless nothing runs or -y was given.

    Raises:
        CommandError: no, or nobody is there to ask.
    """
    from nsml.view.text import visible

    count = len(sessions) if sessions is not None else local_count
    if not count:
        return
    for session in sessions or ():
        app.say(f"  {visible(session.name)}  {visible(session.memo)}".rstrip())
    if sessions is None:
        runs = f"{_sessions(count, 'runs', 'run')} on this machine"
        app.say(f"  {runs}" if is_node else f"  {runs}; the control plane does not answer")
    if app.flags.says_yes:
        return
    what = "this node" if is_node else "the platform"
    question = f"stop {_sessions(count)} and {what}? [y/N] "
    if app.ask(question, flag="-y, or --keep-sessions").lower() not in {"y", "yes"}:
        raise CommandError("nothing was stopped", code=ExitCode.FAILED)


@command(
    "join",
    examples=[
        "nsml join gpu.lab:18600 --token nsml_...",
        "nsml join gpu.lab:18600 --token nsml_... --name gpu-7",
    ],
)
@click.argument("server", metavar="HOST:PORT")
@click.option("--token", metavar="TOKEN", help="From nsml admin join-token; default: asks.")
@click.option("--name", metavar="NODE", help="Name of this node; default: the host's.")
@_SIMULATE
@_DATA
@pass_app
def join(
    app: App,
    /,
    *,
    server: str,
    token: str | None,
    name: str | None,
    simulate_gpus: int | None,
    data: Path | None,
) -> None:
    """Make this machine a node of the platform at HOST:PORT, and start its agent."""
    folder = data_folder(data, app.environ)
    address = contexts.parse_server(server)
    with folder.locked():
        before = folder.choices()
        _check_free_for(folder, before, address)
        wanted = before or Choices(
            coordination="", server=address, node=name or node_name(), admin=user_name()
        )
        if simulate_gpus is not None:
            wanted = replace(wanted, simulate_gpus=simulate_gpus)
        if before is not None:
            _check_running(folder, before, wanted)
        choices = _joined(app, folder, wanted, token)
        folder.keep(choices)
        bring_up = BringUp(app, folder)
        with bring_up.undoing():
            agent = bring_up.ensure(AGENT, _node_settings(folder, choices))
    app.write("joined" if bring_up.started else "already joined, and the agent runs")
    app.write(f"  platform       {choices.server}")
    app.write(f"  node           {_node_words(choices, agent)}")


def _check_free_for(folder: DataFolder, before: Choices | None, address: str) -> None:
    if before is None or before.server == address:
        return
    owner = f"the node of {before.server}" if before.is_joined else "a platform of its own"
    raise CommandError(
        f"{folder.path} holds {owner}",
        code=ExitCode.CONFLICT,
        advice="nsml join ... --data ANOTHER_FOLDER",
    )


def _joined(app: App, folder: DataFolder, choices: Choices, token: str | None) -> Choices:
    """The choices with the address of the agents' listener, asked for with a join token.

    A node that has joined needs none: its certificate is renewed when that is due. With one it joins
    again, under the same name and key.
    """
    from nsml.client import trust

    if choices.agents and token is None:
        files = trust.NodeFiles.within(folder.trust)
        now = app.clock.time()
        asyncio.run(trust.renew_when_due(choices.agents, choices.node, files, now=now))
        return choices
    host, port = contexts.split_server(choices.server)
    parsed = trust.parse_join_token(_join_token(app, token))
    app.say(f"{'platform':<14} asking {choices.server} to sign this machine's key")
    listener = asyncio.run(trust.join(host, port, parsed, node=choices.node, folder=folder.trust))
    if not listener:
        raise CommandError(
            f"the platform at {choices.server} serves no agents of other machines",
            code=ExitCode.CONFLICT,
            advice="on its machine: nsml up --listen HOST:PORT",
        )
    # the name that we reached it under is one that works from here
    agents_port = contexts.split_server(listener)[1]
    return replace(choices, agents=contexts.server_at(host, agents_port))


def _join_token(app: App, token: str | None) -> str:
    if token is not None:
        return app.stdin.readline() if token == "-" else token  # noqa: S105 - stdin
    if not app.can_ask:
        raise CommandError(
            "a join token is needed",
            code=ExitCode.USAGE,
            advice="nsml admin join-token   on a machine where you are administrator\n"
            "nsml join HOST:PORT --token TOKEN",
        )
    return str(click.prompt("Join token", hide_input=True, err=True))


def _node_settings(folder: DataFolder, choices: Choices) -> Mapping[str, object]:
    from nsml.client.trust import NodeFiles

    files = NodeFiles.within(folder.trust)
    return {
        "node": choices.node,
        "server": choices.agents,
        "data": folder.path / AGENT,
        "authority_file": files.authority,
        "certificate_file": files.certificate,
        "key_file": files.key,
        "owner": choices.admin,
        "simulate_gpus": choices.simulate_gpus,
    }
