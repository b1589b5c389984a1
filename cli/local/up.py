"""up: start a platform on this machine."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cli.arguments import WholeRange
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.local import ports
from cli.local.bringup import BringUp
from cli.local.common import (
    DATA,
    ISOLATION,
    SIMULATE,
    agent_settings,
    certificate_settings,
    check_running,
    ensure_agent,
    open_way,
    start_again,
    tell_node,
    without_news_of_agent,
)
from cli.local.data_folder import (
    AGENT,
    CONTEXT_NAME,
    CONTROL_PLANE,
    NO_HTTP,
    Choices,
    DataFolder,
    data_folder,
    node_name,
    user_name,
)
from cli.local.processes import StartFailed
from nsml.client.errors import ClientError, NotSignedIn, Unavailable
from nsml.client.trust import digest_of
from nsml.common.urls import has_password, without_password
from nsml.spec.exit_codes import CANNOT_LISTEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cli.app import App
    from nsml.v1.nodes_pb2 import GetClusterResponse

DEFAULT_HTTP_PORT = 18_555
_MOVES = 4
"""Retries of a start on another port if one is taken: twice for each of two."""
F = TypeVar("F", bound="Callable[..., Any]")
NO_SSH: Final = "none"
_PEM = click.Path(exists=True, dir_okay=False, resolve_path=True)


_STANDING = (
    click.option("--etcd", metavar="URL,...", help="Use this etcd cluster."),
    click.option("--etcd-ca", type=_PEM, metavar="FILE", help="Its certificate authority, PEM."),
    click.option("--etcd-cert", type=_PEM, metavar="FILE", help="Client certificate for it."),
    click.option("--etcd-key", type=_PEM, metavar="FILE", help="Key of the client certificate."),
    click.option("--etcd-user", metavar="NAME", help="User, if the cluster requires one."),
    click.option("--etcd-password-file", type=_PEM, metavar="FILE", help="Password of that user."),
    click.option("--history", metavar="URL", help="postgresql://...: store the history there."),
    click.option(
        "--objects",
        metavar="URL",
        help="s3://, gs:// or az://BUCKET/PREFIX, or file:///MOUNTED: store files there.",
    ),
    click.option("--s3-endpoint", metavar="URL", help="URL of the S3 service, if not AWS."),
    click.option(
        "--platform-key",
        type=click.Path(dir_okay=False, resolve_path=True),
        metavar="FILE",
        help="Key shared by all control planes of a platform.",
    ),
    click.option(
        "--embedded", is_flag=True, help="Use a file for coordination, even if etcd is installed."
    ),
)


def standing_options(function: F) -> F:
    """Add the options for a platform's parts and places: for new platforms and restores."""
    for option in reversed(_STANDING):
        function = option(function)
    return function


@command(
    "up",
    examples=[
        "nsml up",
        "nsml up --simulate-gpus 8 --isolation container",
        "nsml up --listen 0.0.0.0:18600",
        "nsml up --http 127.0.0.1:18555",
        "nsml up --listen 0.0.0.0:18553 --ssh 0.0.0.0:18557",
        "nsml up --etcd https://a:2379,https://b:2379 --history postgresql:///nsml --objects s3://nsml",
    ],
)
@standing_options
@SIMULATE
@ISOLATION
@DATA
@click.option(
    "--port",
    type=WholeRange(1, 65535),
    metavar="P",
    help="Port on the loopback; default 18553.",
)
@click.option("--listen", metavar="HOST:PORT", help="Also serve other machines there, with TLS.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve browsers, health and metrics there, or none; default, without --listen: 127.0.0.1:18555.",
)
@click.option(
    "--ssh",
    metavar="HOST:PORT",
    help="Serve a jump host there, for ssh from machines without nsml; or none, the default.",
)
@click.option("--no-agent", is_flag=True, help="Run no sessions on this machine.")
@pass_app
def up(app: App, /, *, data: Path | None, no_agent: bool, **options: Any) -> None:
    """Start a platform on this machine: coordination, a control plane, an agent.

    What already runs is left alone. Options are kept for the next `nsml up` in the same data
    folder, except --no-agent. The agent of a machine that joined another platform is started by
    `nsml join HOST:PORT`.
    """
    folder = data_folder(data, app.environ)
    with folder.locked(), ports.Held() as held:
        before = folder.choices()
        choices = _chosen(app, folder, held, has_agent=not no_agent, **options)
        open_way(folder, choices)
        bring_up = BringUp(app, folder)
        if choices.has_agent:
            address = f"{ports.LOOPBACK}:{choices.port}"
            bring_up.check(AGENT, _node_settings(app, folder, choices, _by_token(folder, address)))
        with bring_up.undoing():
            said, choices = _ensure_control_plane(
                app,
                bring_up,
                folder,
                choices,
                held,
                is_fixed=options["port"] is not None,
                has_fixed_http=options["http"] is not None,
            )
            cluster = _ask_cluster(folder)
            choices = replace(choices, coordination=_settled(choices, cluster))
            # Settings that the agent fails to start with are not kept.
            folder.keep(without_news_of_agent(choices, before))
            agent = ensure_agent(
                folder, choices, before, lambda: _ensure_agent(app, bring_up, folder, choices, said)
            )
            folder.keep(choices)
        _use_context(app, folder)
        _tell_up(app, folder, choices, agent, is_news=bool(bring_up.started))


def _chosen(
    app: App,
    folder: DataFolder,
    held: ports.Held,
    *,
    etcd: str | None,
    embedded: bool,
    simulate_gpus: int | None,
    isolation: str | None,
    port: int | None,
    listen: str | None,
    http: str | None,
    ssh: str | None,
    has_agent: bool,
    **elsewhere: str | None,
) -> Choices:
    """Return the choices: the folder's setup, changed by the options.

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
            why=f"{folder.path} belongs to that; its agent needs no other platform, nor a new token",
            advice=f"{start_again(folder, choices)}    starts the agent again",
        )
    check_no_passwords(etcd=etcd, **elsewhere)
    wanted = etcd or ("embedded" if embedded else choices.coordination)
    is_moved = bool(etcd and "://" in choices.coordination)  # the control plane recognises it
    if before is not None and before.coordination not in {wanted, "auto"} and not is_moved:
        raise CommandError(
            f"the data in {folder.path} was made with {_words_of(before.coordination)}",
            code=ExitCode.CONFLICT,
            why=f"it cannot be used with {_words_of(wanted)}",
            advice="nsml up\nnsml up --data ANOTHER_FOLDER",
        )
    if listen:
        asked = ports.parse_listener(listen)
        listen = str(ports.with_ports(asked, before=choices.listen, avoid=port or choices.port))
    if http == "":
        http = NO_HTTP
    if http and http != NO_HTTP:
        ports.parse_http(http)
    if ssh == NO_SSH:
        ssh = ""
    if ssh:
        ports.parse_ssh(ssh)
    changed = replace(
        choices,
        coordination=wanted,
        simulate_gpus=choices.simulate_gpus if simulate_gpus is None else simulate_gpus,
        isolation=isolation or choices.isolation,
        port=port or choices.port,
        listen=choices.listen if listen is None else listen,
        http=choices.http if http is None else http,
        ssh=choices.ssh if ssh is None else ssh,
        has_agent=has_agent,
        **{name: value for name, value in elsewhere.items() if value is not None},
    )
    check_running(folder, choices, changed)
    return _with_ports(
        app, folder, changed, held, is_fixed=port is not None, has_fixed_http=http is not None
    )


def check_no_passwords(**given: str | None) -> None:
    """Refuse a password on the command line, which every user of the machine can read.

    Raises:
        CommandError: a URL has one.
    """
    for name, value in given.items():
        if value and has_password(value):
            raise CommandError(
                f"--{name.replace('_', '-')} has a password in its URL",
                code=ExitCode.USAGE,
                why="every user of this machine can read command lines, and shells keep them",
                advice="postgresql://NAME@HOST/DATABASE?passfile=FILE, a file as psql has it: "
                "HOST:PORT:DATABASE:NAME:PASSWORD, mode 0600"
                if name == "history"
                else "a URL without it; see nsml up --help",
            )


def _with_ports(
    app: App,
    folder: DataFolder,
    choices: Choices,
    held: ports.Held,
    *,
    is_fixed: bool,
    has_fixed_http: bool,
) -> Choices:
    """Return the choices with free, held ports, unless the control plane already runs.

    Raises:
        CommandError: a requested port is taken.
    """
    if folder.running(CONTROL_PLANE) is not None:
        return choices
    choices = with_http(choices, held, is_fixed=has_fixed_http)
    reason = ports.obstacle(ports.LOOPBACK, choices.port)
    if choices.listen:
        listener = ports.parse_listener(choices.listen)
        ports.check_free(listener)
        for port in listener.ports:
            held.hold(listener.host, port)
        if listener.covers(choices.port):
            reason = f"--listen {listener} takes it"
    if choices.ssh:
        host, port = ports.parse_ssh(choices.ssh)
        if taken := ports.obstacle(host, port):
            raise ports.refusal(choices.ssh, taken, "--ssh HOST:ANOTHER_PORT")
        held.hold(host, port)
    if reason:
        if is_fixed:
            address = f"{ports.LOOPBACK}:{choices.port}"
            raise ports.refusal(address, reason, "nsml up --port ANOTHER")
        choices = _on_another_port(app, choices, reason)
    held.hold(ports.LOOPBACK, choices.port)
    return choices


def with_http(choices: Choices, held: ports.Held, *, is_fixed: bool) -> Choices:
    """Return the choices with an HTTP address: on one machine the loopback, with another port if its own is taken.

    Raises:
        CommandError: an address that was requested, or is known to others, is taken.
    """
    if choices.http == NO_HTTP or (choices.listen and not choices.http):
        return choices
    address = choices.http or f"{ports.LOOPBACK}:{DEFAULT_HTTP_PORT}"
    host, port = ports.parse_http(address)
    taken = ports.obstacle(host, port)
    if host == ports.LOOPBACK and port == choices.port:
        taken = "users of this machine are served there"
    if taken and (is_fixed or host != ports.LOOPBACK):
        raise ports.refusal(address, taken, "--http HOST:ANOTHER_PORT")
    if taken:
        return _with_another_http_port(choices, held)
    held.hold(host, port)
    return replace(choices, http=address)


def _with_another_http_port(choices: Choices, held: ports.Held) -> Choices:
    port = ports.free_port(avoid={choices.port})
    held.hold(ports.LOOPBACK, port)
    return replace(choices, http=f"{ports.LOOPBACK}:{port}")


def _on_another_port(app: App, choices: Choices, reason: str) -> Choices:
    """Return the choices with another, free port."""
    listens = ports.parse_listener(choices.listen).ports if choices.listen else ()
    chosen = ports.free_port(avoid={choices.port, *listens})
    app.say(f"port {choices.port}: {reason}; port {chosen} is used instead")
    app.say("  commands of this account find it; to choose another: nsml up --port N")
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


def control_plane_settings(folder: DataFolder, choices: Choices) -> Mapping[str, object]:
    """Return the settings of a data folder's control plane."""
    settings: dict[str, object] = {
        "data": folder.path / CONTROL_PLANE,
        "coordination": choices.coordination,
        "address": f"127.0.0.1:{choices.port}",
        "admin": choices.admin,
        "node": choices.node,
    }
    elsewhere = {
        "etcd_ca": choices.etcd_ca,
        "etcd_certificate": choices.etcd_cert,
        "etcd_key": choices.etcd_key,
        "etcd_user": choices.etcd_user,
        "etcd_password_file": choices.etcd_password_file,
        "history": choices.history,
        "objects": choices.objects,
        "s3_endpoint": choices.s3_endpoint,
        "platform_key": choices.platform_key,
    }
    settings.update({name: value for name, value in elsewhere.items() if value})
    if choices.http_address:
        settings["http"] = choices.http_address
    if choices.ssh:
        settings["listen_ssh"] = choices.ssh
    if choices.listen:
        listener = ports.parse_listener(choices.listen)
        settings["listen"] = str(listener)
        settings["listen_agents"] = listener.agents
        settings["listen_relay"] = listener.relay
    return settings


def _settled(choices: Choices, cluster: GetClusterResponse) -> str:
    """Return the coordination from now on: the first start resolves `auto`."""
    return cluster.coordination if choices.coordination == "auto" else choices.coordination


def _ask_cluster(folder: DataFolder) -> GetClusterResponse:
    """Ask the control plane for its state, as its administrator."""
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
            why=f"{folder.admin_token} has expired, or was revoked by nsml logout --revoke",
            advice="nsml down --keep-sessions, then nsml up: a new one is made at its start",
        ) from error


def _ensure_control_plane(
    app: App,
    bring_up: BringUp,
    folder: DataFolder,
    choices: Choices,
    held: ports.Held,
    *,
    is_fixed: bool,
    has_fixed_http: bool,
) -> tuple[Mapping[str, Any], Choices]:
    """Start the control plane; if a port was taken meanwhile, on another one, unless the port was requested.

    Two simultaneous starts both find a port free, and hold it. The other may be gone by now, and come again.
    """
    for _ in range(_MOVES):
        try:
            return bring_up.ensure(CONTROL_PLANE, control_plane_settings(folder, choices)), choices
        except CommandError as error:
            is_own = _is_taken(error, f"{ports.LOOPBACK}:{choices.port}") and not is_fixed
            has_own_http = choices.http.startswith(f"{ports.LOOPBACK}:") and not has_fixed_http
            if not is_own and not (has_own_http and _is_taken(error, choices.http)):
                raise
        if is_own:
            choices = _on_another_port(app, choices, "taken while it started")
            held.hold(ports.LOOPBACK, choices.port)
        else:
            app.say(f"{choices.http}: taken while it started; HTTP is served on another port")
            choices = _with_another_http_port(choices, held)
    return bring_up.ensure(CONTROL_PLANE, control_plane_settings(folder, choices)), choices


def _is_taken(error: CommandError, address: str) -> bool:
    """Return whether a program did not start because this address is taken, the first such one."""
    failed = error.__cause__
    cannot_listen = isinstance(failed, StartFailed) and failed.code == CANNOT_LISTEN
    return cannot_listen and f"cannot listen on {address}: " in str(failed)


def _ensure_agent(
    app: App,
    bring_up: BringUp,
    folder: DataFolder,
    choices: Choices,
    control_plane: Mapping[str, Any],
) -> Mapping[str, Any]:
    if not choices.has_agent:
        return {}
    way = _way(folder, choices, control_plane)
    return bring_up.ensure(AGENT, _node_settings(app, folder, choices, way))


def _way(
    folder: DataFolder, choices: Choices, control_plane: Mapping[str, Any]
) -> Mapping[str, object]:
    """Return the agent's settings to reach the platform: all control planes with a listener, if several are possible."""
    listener = control_plane.get("listen_agents")
    if listener and folder.running(AGENT) is None:
        with nullcontext() if choices.is_shared else suppress(ClientError):  # then it has no peers
            _certify(folder)
    if choices.is_shared and listener:
        return {"server": listener, **certificate_settings(folder)}
    path = control_plane.get("socket")
    way = _by_token(folder, f"unix:{path}" if path else str(control_plane["address"]))
    return {**way, "peer_trust": folder.trust} if listener else way


def _by_token(folder: DataFolder, server: str) -> Mapping[str, object]:
    """Return the settings of an agent connected only to its own machine's control plane."""
    return {"server": server, "token_file": folder.node_token}


def _certify(folder: DataFolder) -> None:
    """Get the node a certificate like those of joined nodes: other control planes and peers require one.

    An existing one is used while a new one cannot be made.
    """
    from nsml.client.connect import connect
    from nsml.client.trust import NodeFiles, certify

    files, context = NodeFiles.within(folder.trust), folder.context()
    if context is None:
        return  # it ended again: the agent's start reports it

    async def ask() -> None:
        async with connect(context._replace(token_file=str(folder.node_token))) as client:
            await certify(client.accounts, files)

    try:
        asyncio.run(ask())
    except Unavailable:
        if not files.certificate.exists():
            raise


def _node_settings(
    app: App, folder: DataFolder, choices: Choices, way: Mapping[str, object]
) -> Mapping[str, object]:
    return {
        "node": choices.node,
        **way,
        "data": folder.path / AGENT,
        "owner": choices.admin,
        **agent_settings(choices, app.environ),
    }


def _use_context(app: App, folder: DataFolder) -> None:
    """Make the platform the default for later commands."""
    context = folder.context()
    if context is None:
        return
    known = app.config.contexts.get(context.name)
    if known is not None and known.server == context.server:
        context = context.at(known.servers)
    wanted = app.config.with_context(context)
    if wanted != app.config:
        app.save(wanted)


def _tell_up(
    app: App, folder: DataFolder, choices: Choices, agent: Mapping[str, Any], *, is_news: bool
) -> None:
    said = folder.said(CONTROL_PLANE)
    app.write("nsml is up" if is_news else "nsml already runs")
    app.write_text(f"  control plane  {said.get('address')}")
    app.write_text(f"  coordination   {_words_of(choices.coordination)}")
    for title, url in (("history", choices.history), ("objects", choices.objects)):
        if url:
            app.write_text(f"  {title:<14} {without_password(url)}")
    if choices.listen:
        app.write_text(f"  other machines {choices.listen}, with TLS")
    if said.get("http"):
        app.write_text(
            f"  http           {said['http']}  in a browser: nsml dashboard; also /healthz /readyz /metrics"
        )
    if said.get("listen_ssh"):
        app.write_text(f"  jump host      {said['listen_ssh']}  for ssh without nsml: nsml key add")
    tell_node(app, choices, agent)
    app.write_text(f"  you            {choices.admin}, context {CONTEXT_NAME}")
    app.write_text(f"  data           {folder.path}")
    gpus = 1 if agent.get("devices") else 0
    steps = ["nsml dataset push NAME FOLDER", f"nsml run -g {gpus}", "nsml-tui", "nsml down"]
    if agent and not gpus:
        steps.append("nsml up --simulate-gpus 2    # after down: to try GPUs without any")
    if choices.listen:
        steps[:0] = ["nsml admin join-token", "nsml admin user add NAME"]
        digest = digest_of(folder.authority.read_text(encoding="ascii"))
        app.say("users of other machines:")
        app.say(f"nsml login {said.get('listen')}#{digest}")
    if choices.is_shared:
        key = choices.platform_key or folder.path / CONTROL_PLANE / "platform.key"
        app.say(f"further control planes need a copy of {key}: nsml up ... --platform-key FILE")
    for number, step in enumerate(steps):
        app.say(f"{'' if number else 'next:':<7}{step}")
