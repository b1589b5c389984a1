"""node sh: a shell, or any program, on a node itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import NODE
from cli.group import ProgramCommand, command, pass_app
from cli.sessions.remote_program import program_options, run_joined

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from nsml.client.calls import Client
    from nsml.client.programs import RemoteProgram


@command(
    "sh",
    cls=ProgramCommand,
    examples=[
        "nsml node sh gpu-7",
        "nsml node sh gpu-7 -- nvidia-smi",
        "nsml node sh gpu-7 -- dmesg | grep NVRM",
    ],
)
@click.argument("name", type=NODE, metavar="NODE")
@program_options
@pass_app
def sh(
    app: App,
    *,
    name: str,
    argv: tuple[str, ...],
    has_terminal: bool | None,
    has_no_input: bool,
) -> int:
    """Start a shell, or a program, on a node itself.

    It runs as the account of the node's agent, outside all sessions and without their limits. For
    administrators, and only where the agent's setting node_shell is true. Each start is in the
    audit trail.

    Terminal, streams, signals, escapes and exit codes are as for nsml sh. Everything it started
    ends with it: when it has ended or nsml disconnects, what is left gets SIGHUP, and SIGKILL 5
    seconds later. To leave something running, use systemd-run.
    """

    def opening(
        client: Client, environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> AbstractAsyncContextManager[RemoteProgram]:
        return client.nodes.open_program(name, argv, environment=environment, terminal=terminal)

    return run_joined(
        app,
        argv,
        opening,
        has_terminal=has_terminal,
        has_no_input=has_no_input,
        lost="error: how the program ended is unknown",
        command_line=f"nsml node sh {name}",
    )
