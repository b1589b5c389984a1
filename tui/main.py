"""`nsml-tui`: chooses a platform and shows it."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import click

from nsml._version import VERSION
from nsml.client import contexts
from nsml.clock import SystemClock

if TYPE_CHECKING:
    from nsml.client.calls import Client

USAGE_CODE = 2
DENIED_CODE = 4


@click.command("nsml-tui", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--context", "name", metavar="NAME", help="The platform, as in nsml context ls.")
@click.version_option(VERSION, prog_name="nsml-tui")
def main(name: str | None) -> None:
    """Show the platform live: sessions, charts, logs, the queue and the machines.

    Keys are at the foot of the screen, and all of them behind ?. Ctrl-Q leaves; nothing that runs is touched.

    Every action is an nsml command, which is shown. NO_COLOR, TERM and the terminal's size are heeded.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _fail("nsml-tui needs a terminal", "for programs: nsml ps -w -o jsonl", USAGE_CODE)
    # gRPC's own diagnostics would go over the screen.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        context = contexts.choose(contexts.load(os.environ), os.environ, name)
        context.token()
    except contexts.ContextError as error:
        _fail(error.message, error.advice, DENIED_CODE)

    from tui.app import Dashboard

    def connect() -> AbstractAsyncContextManager[Client]:
        from nsml.client import connect as client

        return client.connect(context)

    app = Dashboard(connect, clock=SystemClock(), platform=context.name or context.places)
    app.run()
    sys.exit(app.return_code or 0)


def _fail(message: str, advice: str, code: int) -> None:
    click.echo(f"error: {message}", err=True)
    for line in advice.splitlines():
        click.echo(f"  try: {line}", err=True)
    sys.exit(code)
