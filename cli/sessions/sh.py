"""sh: a shell, or any program, in a running session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import session_argument
from cli.group import ProgramCommand, command, pass_app
from cli.sessions.remote_program import program_options, run_joined
from cli.sessions.replicas import RANK, replica_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from nsml.client.calls import Client
    from nsml.client.programs import RemoteProgram


@command(
    "sh",
    cls=ProgramCommand,
    examples=[
        "nsml sh @last",
        "nsml sh kim/mnist/3 -- nvidia-smi",
        "nsml sh 12:1 -- tar c checkpoints | tar x",
    ],
)
@session_argument(metavar="SESSION[:RANK]")
@click.option("--rank", type=RANK, metavar="R", help="Run in this replica.")
@program_options
@pass_app
def sh(
    app: App,
    *,
    session: str,
    argv: tuple[str, ...],
    rank: int | None,
    has_terminal: bool | None,
    has_no_input: bool,
) -> int:
    """Start a shell, or a program, in a running session.

    It runs next to the session's program, with the same files, devices, environment, user and
    limits. It ends with the session; processes that it leaves in the background run until then.

    With a terminal, ~. at the beginning of a line disconnects, and ~? lists all escapes. Without
    one, stdin, stdout and stderr are separate pipes, and SIGINT, SIGTERM, SIGHUP and SIGQUIT are
    forwarded; the third disconnects. The program gets SIGHUP when nsml disconnects.

    The exit code is the program's, 128+N after signal N, or 255 if it is unknown because the
    connection broke or the session ended. You can enter your own sessions; administrators all.
    """
    session, rank = replica_of(session, rank)

    def opening(
        client: Client, environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> AbstractAsyncContextManager[RemoteProgram]:
        return client.sessions.open_program(
            session, argv, rank=rank, environment=environment, terminal=terminal
        )

    return run_joined(
        app,
        argv,
        opening,
        session=session,
        has_terminal=has_terminal,
        has_no_input=has_no_input,
        lost="error: the session's program has ended, and this one with it",
        command_line=f"nsml sh {session}",
    )
