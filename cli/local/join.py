"""join: make this machine a node of a platform."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
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
    tell_node,
    without_news_of_agent,
)
from cli.local.data_folder import AGENT, Choices, DataFolder, data_folder, node_name, user_name
from cli.local.processes import program
from cli.local.units import AGENT_UNIT, REPLICAS, REPLICAS_UNIT, agent_unit
from nsml.client import contexts
from nsml.common.shell import shell_word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cli.app import App
    from nsml.client.trust import NodeFiles


@command(
    "join",
    examples=[
        "nsml join gpu.lab:18600",
        "nsml join gpu.lab:18600 --token-stdin < token.txt",
        "nsml join gpu.lab:18600 --data /var/lib/nsml-node --systemd",
    ],
)
@click.argument("server", metavar="HOST:PORT")
@click.option("--token-stdin", is_flag=True, help="Read the token from stdin; default: ask.")
@click.option(
    "--token", metavar="TOKEN", help="The token; visible to all users of this machine (ps)."
)
@click.option("--name", metavar="NODE", help="Name of this node; default: the host's.")
@click.option(
    "--systemd",
    "is_unit",
    is_flag=True,
    help="Write systemd units for the agent instead of starting it, and print how to install them.",
)
@SIMULATE
@ISOLATION
@DATA
@pass_app
def join(
    app: App,
    /,
    *,
    server: str,
    token: str | None,
    token_stdin: bool,
    name: str | None,
    is_unit: bool,
    simulate_gpus: int | None,
    isolation: str | None,
    data: Path | None,
) -> None:
    """Make this machine a node of the platform at HOST:PORT, and start its agent.

    The token is from nsml admin join-token. Without a token the command starts the agent of a node
    that has joined before.
    """
    if token_stdin and token is not None:
        raise click.UsageError("--token and --token-stdin exclude one another")
    if token_stdin:
        token = "-"  # noqa: S105 - stdin
    folder = data_folder(data, app.environ)
    address = contexts.parse_server(server)
    with folder.locked():
        before = folder.choices()
        if before is None:
            wanted = Choices(
                coordination="", server=address, node=name or node_name(), admin=user_name()
            )
        elif before.server == address:
            wanted = before
        else:
            token = _token_of_same_platform(app, folder, before, address, token)
            wanted = replace(before, server=address)
        if simulate_gpus is not None:
            wanted = replace(wanted, simulate_gpus=simulate_gpus)
        if isolation is not None:
            wanted = replace(wanted, isolation=isolation)
        if before is not None:
            check_running(folder, before, wanted)
        if is_unit and folder.running(AGENT) is not None:
            raise CommandError(
                "the agent runs already, and not from a unit",
                code=ExitCode.CONFLICT,
                advice="nsml down --keep-sessions, then the same again",
            )
        choices = _joined(app, folder, wanted, token)
        folder.keep(choices if is_unit else without_news_of_agent(choices, before))
        open_way(folder, choices)
        if is_unit:
            _tell_units(app, choices, _write_units(app, folder, choices))
            return
        bring_up = BringUp(app, folder)
        settings = _node_settings(app, folder, choices)
        bring_up.check(AGENT, settings)
        with bring_up.undoing():
            agent = ensure_agent(folder, choices, before, lambda: bring_up.ensure(AGENT, settings))
        folder.keep(choices)
    app.write("joined" if bring_up.started else "already joined, and the agent runs")
    app.write_text(f"  platform       {choices.server}")
    tell_node(app, choices, agent)


def _write_units(app: App, folder: DataFolder, choices: Choices) -> list[Path]:
    """Write the agent's settings and its units; return the units' paths."""
    settings = folder.write_settings(AGENT, _node_settings(app, folder, choices))
    texts = {AGENT_UNIT: agent_unit(program(AGENT), settings), REPLICAS_UNIT: REPLICAS}
    for name, text in texts.items():
        (folder.path / name).write_text(text, encoding="utf-8")
    return [folder.path / name for name in texts]


def _tell_units(app: App, choices: Choices, units: Sequence[Path]) -> None:
    app.write("joined; nothing is started")
    app.write_text(f"  platform       {choices.server}")
    app.write_text(f"  node           {choices.node}")
    for unit in units:
        app.write_text(f"  unit           {unit}")
    app.write("next, as root:")
    files = " ".join(shell_word(str(unit)) for unit in units)
    app.write(f"  install -m 644 {files} /etc/systemd/system/")
    app.write("  systemctl daemon-reload")
    app.write(f"  systemctl enable --now {AGENT_UNIT}")


def _token_of_same_platform(
    app: App, folder: DataFolder, before: Choices, address: str, token: str | None
) -> str:
    """Return the join token of a node that joins again at another control plane of its platform.

    The digest in the token identifies the platform. Raises CommandError for another one.
    """
    from nsml.client import trust

    advice = "nsml join ... --data ANOTHER_FOLDER"
    if before.is_joined:
        if token is not None:
            token = _join_token(app, token)
            expected = trust.parse_join_token(token).authority_digest
            authority = trust.NodeFiles.within(folder.trust).authority
            if authority.exists() and expected == trust.digest_of(authority.read_text("utf-8")):
                return token
        again = f"nsml join {address} --token-stdin < FILE   if that is another control plane of its platform"
        advice = f"nsml join {before.server}\n{again}\n{advice}   if it is another platform"
    owner = f"the node of {before.server}" if before.is_joined else "a platform of its own"
    raise CommandError(f"{folder.path} holds {owner}", code=ExitCode.CONFLICT, advice=advice)


def _joined(app: App, folder: DataFolder, choices: Choices, token: str | None) -> Choices:
    """Return the choices with the address of the agents' listener, requested with a join token.

    A joined node needs none: its certificate is renewed when due. With one it joins
    again, under the same name and key.
    """
    from nsml.client import trust

    if choices.agents and token is None:
        files = trust.NodeFiles.within(folder.trust)
        asyncio.run(_still_joined(choices, files, app.clock.time()))
        return choices
    host, port = contexts.split_server(choices.server)
    parsed = trust.parse_join_token(_join_token(app, token))
    app.say(f"{'platform':<14} asking {choices.server} to sign this machine's key")
    listener = asyncio.run(trust.join(host, port, parsed, node=choices.node, folder=folder.trust))
    if not listener:
        raise CommandError(
            f"the platform at {choices.server} serves no agents of other machines",
            code=ExitCode.CONFLICT,
            advice="on its machine: nsml up --listen HOST:PORT, or of a unit: listen_agents in its settings",
        )
    # the host name used here is reachable from here
    agents_port = contexts.split_server(listener)[1]
    return replace(choices, agents=contexts.server_at(host, agents_port))


async def _still_joined(choices: Choices, files: NodeFiles, now: float) -> None:
    """Renew the certificate if due; refused if an administrator removed the node.

    While no control plane answers, the agent still starts: its sessions go on.
    """
    from nsml.client import trust
    from nsml.client.errors import NotSignedIn, Unavailable

    await trust.renew_when_due(choices.agents, choices.node, files, now=now)
    try:
        await trust.check_known(choices.agents, files)
    except Unavailable:
        return
    except NotSignedIn as error:
        raise CommandError(
            f"node {choices.node} is not a node of this platform any more",
            code=ExitCode.CONFLICT,
            why=f"{error.message}: {error.why}",
            advice=f"nsml admin join-token   where you are administrator, and with that token\n"
            f"nsml join {choices.server} --token-stdin < FILE",
        ) from error


def _join_token(app: App, token: str | None) -> str:
    if token not in {None, "-"}:
        return str(token)
    if token is not None and not app.can_ask:
        return app.read_line()
    if not app.can_ask:
        raise CommandError(
            "a join token is needed",
            code=ExitCode.USAGE,
            advice="nsml admin join-token   on a machine where you are administrator\n"
            "nsml join HOST:PORT --token-stdin < FILE",
        )
    return str(click.prompt("Join token", hide_input=True, err=True))


def _node_settings(app: App, folder: DataFolder, choices: Choices) -> Mapping[str, object]:
    return {
        "node": choices.node,
        "server": choices.agents,
        "data": folder.path / AGENT,
        **certificate_settings(folder),
        "owner": choices.admin,
        **agent_settings(choices, app.environ),
    }
