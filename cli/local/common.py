"""Common parts of up, down and join: options, settings fixed while a program runs, texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.arguments import WholeRange
from cli.exits import CommandError, ExitCode
from cli.local.data_folder import AGENT, CONTROL_PLANE, Choices
from nsml.common.shell import shell_word
from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cli.app import App
    from cli.local.data_folder import DataFolder

T = TypeVar("T")
DATA = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The data folder; default: NSML_DATA, else your own.",
)
SIMULATE = click.option(
    "--simulate-gpus",
    type=WholeRange(0, 64),
    metavar="N",
    help="Offer N simulated GPUs instead of the machine's own; every screen says so.",
)

ISOLATION = click.option(
    "--isolation",
    type=click.Choice(["auto", "container", "namespace", "user", "none"]),
    help="Isolation of sessions; auto: the strongest that this machine allows.",
)


def agent_settings(choices: Choices, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the settings of every agent started here."""
    settings: dict[str, object] = {
        "simulate_gpus": choices.simulate_gpus,
        "isolation": choices.isolation,
    }
    engine = environ.get("DOCKER_HOST", "")
    if engine.startswith("unix:///"):
        settings["engine_socket"] = engine.removeprefix("unix://")
    return settings


def certificate_settings(folder: DataFolder) -> dict[str, object]:
    """Return the certificate settings of an agent."""
    from nsml.client.trust import NodeFiles

    files = NodeFiles.within(folder.trust)
    return {
        "authority_file": files.authority,
        "certificate_file": files.certificate,
        "key_file": files.key,
    }


def open_way(folder: DataFolder, choices: Choices) -> None:
    """At level `user`, let users' programs traverse the data folder, to their own files below; not list it.

    Other users get no access to the rest: files and folders are private to their owner.
    """
    if choices.isolation == "user" and choices.has_agent:
        folder.path.chmod(0o711)


def without_news_of_agent(choices: Choices, before: Choices | None) -> Choices:
    """Return the choices with the agent's settings of `before`, or the defaults."""
    known = before or Choices(coordination="")
    return replace(choices, isolation=known.isolation, simulate_gpus=known.simulate_gpus)


def ensure_agent(
    folder: DataFolder, choices: Choices, before: Choices | None, ensure: Callable[[], T]
) -> T:
    """Start the agent if needed; if a kept option prevents that, advise how to choose another one.

    Raises:
        CommandError: it does not start.
    """
    try:
        return ensure()
    except CommandError as error:
        is_kept = before is not None and before.isolation == choices.isolation
        if choices.isolation != "auto" and is_kept:
            again = f"{start_again(folder, choices)} --isolation auto"
            error.advice = "\n".join(
                filter(
                    None,
                    (f"{again}    instead of {choices.isolation}, kept from before", error.advice),
                )
            )
        raise


def start_again(folder: DataFolder, choices: Choices) -> str:
    """Return the command that starts the folder's programs again."""
    command = f"nsml join {choices.server}" if choices.is_joined else "nsml up"
    return f"{command} --data {shell_word(str(folder.path))}"


def check_running(folder: DataFolder, before: Choices, after: Choices) -> None:
    """Refuse to change settings of a running program."""
    pairs = [
        (CONTROL_PLANE, "--port", before.port, after.port),
        (CONTROL_PLANE, "--listen", before.listen, after.listen),
        (CONTROL_PLANE, "--http", before.http, after.http),
        (CONTROL_PLANE, "--ssh", before.ssh, after.ssh),
        (CONTROL_PLANE, "--history", before.history, after.history),
        (CONTROL_PLANE, "--objects", before.objects, after.objects),
        (AGENT, "--simulate-gpus", before.simulate_gpus, after.simulate_gpus),
        (AGENT, "--isolation", before.isolation, after.isolation),
    ]
    for name, flag, old, new in pairs:
        if old != new and folder.running(name) is not None:
            raise CommandError(
                f"the platform runs with another {flag}: {old or 'none'}",
                code=ExitCode.CONFLICT,
                advice="nsml down --keep-sessions, then "
                f"{start_again(folder, after) if after.is_joined else 'nsml up'} {flag} {new or 'none'}",
            )


def node_lines(choices: Choices, agent: Mapping[str, Any]) -> list[str]:
    """Return lines on this machine's node: a summary, then the reasons for its limits.

    `agent` is the agent's ready message; empty: there is none.
    """
    if not agent:
        return ["none: this machine runs no sessions"]
    models = Counter(str(model) for model in agent.get("devices", ()))
    gpus = ", ".join(f"{count} x {model}" for model, count in models.items()) or "no GPUs"
    if agent.get("simulated"):
        gpus += " (simulated)"
    reasons = [
        "" if models else agent.get("device_note"),
        agent.get("only_owner") and f"runs only sessions of {choices.admin}: {agent['only_owner']}",
        agent.get("isolation_note"),
        agent.get("engine_note"),
    ]
    return [
        f"{choices.node}, isolation {agent.get('isolation')}, {gpus}",
        *(str(reason) for reason in reasons if reason),
    ]


def tell_node(app: App, choices: Choices, agent: Mapping[str, Any]) -> None:
    """Write the node's description, as the result of a command that started it."""
    for number, line in enumerate(node_lines(choices, agent)):
        app.write_text(f"  {'' if number else 'node':<14} {visible(line)}")
