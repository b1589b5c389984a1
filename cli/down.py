"""down: stop the platform, or the node, on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.local import DataFolder, data_folder
from cli.machine import DATA
from cli.teardown import TearDown
from nsml.view.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cli.app import App
    from nsml.v1.sessions_pb2 import Session


@command("down", examples=["nsml down", "nsml down -y", "nsml down --keep-sessions"])
@click.option("--keep-sessions", is_flag=True, help="Leave sessions running for the next `up`.")
@DATA
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
    return counted(count, f"session {verb}".rstrip(), f"sessions {verb_of_many}".rstrip())


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
    what = "this node" if is_node else "the platform"
    if not app.agrees(f"stop {_sessions(count)} and {what}?", flag="-y, or --keep-sessions"):
        raise CommandError("nothing was stopped", code=ExitCode.FAILED)
