"""env: Python environments of sessions, and the packages in them."""

from __future__ import annotations

import click

from cli.app import App
from cli.arguments import session_argument
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list


@click.group("env", cls=Group)
def env() -> None:
    """Python environments of sessions on nodes without containers."""


@command(
    "lock",
    reads=True,
    examples=["nsml env lock @last > requirements.txt", "nsml env lock kim/mnist/3 -j"],
)
@session_argument()
@pass_app
def lock(app: App, *, session: str) -> None:
    """Print the packages of a session, with hashes.

    They are the packages that it ran with last, in the format of requirements.txt. The lock is kept
    as long as the session, and nsml fork, resume and rerun install the same packages. Sessions in
    containers have none.
    """
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
        for line in lines:
            app.write(line.text)
        return
    beside = {"digest": found.digest}
    write_list(app, lines, columns=LOCK_COLUMNS, record=lock_record, beside=beside)


env.add_command(lock)
