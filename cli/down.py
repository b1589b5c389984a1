"""down: stop the platform, or the node, on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.local import data_folder
from cli.machine import DATA
from cli.teardown import TearDown, is_finalizing
from nsml.view.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cli.app import App
    from cli.local import DataFolder
    from cli.teardown import Platform
    from nsml.v1.nodes_pb2 import Member
    from nsml.v1.sessions_pb2 import Session


@command("down", examples=["nsml down", "nsml down -y", "nsml down --keep-sessions"])
@click.option("--keep-sessions", is_flag=True, help="Leave sessions running for the next `up`.")
@DATA
@pass_app
def down(app: App, /, *, keep_sessions: bool, data: Path | None) -> None:
    """Stop the platform, or the node, on this machine.

    Lists what runs and asks. With --keep-sessions training goes on, and the next `nsml up`
    takes it over.

    Of a platform that has other control planes only what is on this machine stops: its control
    plane, its agent, and the sessions that run here. It tells which control planes go on.
    """
    folder = data_folder(data, app.environ)
    if not folder.path.is_dir():
        app.say(f"nothing runs in {folder.path}")
        return
    with folder.locked():
        tear_down = TearDown(app, folder)
        programs, replicas = tear_down.programs, tear_down.replicas()
        platform = tear_down.platform()
        if not programs and not (replicas and not keep_sessions):
            tear_down.stop_programs()
            app.say(f"nothing runs in {folder.path}")
            return
        others = _named(platform.others) if platform else ""
        if others:
            app.say(f"{'platform':<14} goes on at {others}")
        if not keep_sessions:
            _stop_work(app, folder, tear_down, platform)
        tear_down.stop_programs()
        kept = len({replica.session_id for replica in tear_down.replicas()})
    words = f", {_sessions(kept, 'goes', 'go')} on" if kept else ""
    app.write(f"nsml is down{' on this machine' if others else ''}{words}")


def _stop_work(
    app: App, folder: DataFolder, tear_down: TearDown, platform: Platform | None
) -> None:
    """Ask, and end the sessions: all of a platform that ends, else those of this machine."""
    choices = folder.choices()
    is_joined = choices is not None and choices.is_joined
    goes_on = choices is not None and choices.is_shared
    if platform is not None:
        goes_on = bool(platform.others)
    sessions = platform.sessions if platform and not goes_on else None
    local = len({replica.session_id for replica in tear_down.replicas()})
    what = "this node" if is_joined else "the platform"
    if goes_on:
        what = "the control plane of this machine"
    _confirm(app, sessions, local, what=what, is_mute=platform is None and not is_joined)
    for session in tear_down.stop_sessions(sessions or []):
        words = "did not end in time"
        if is_finalizing(session):
            words = "has ended; what it left is sent after the next `nsml up`"
        app.say(f"{'sessions':<14} {session.name} {words}")
    tear_down.stop_replicas()


def _named(members: Sequence[Member]) -> str:
    """Control planes in words, each with its address for users."""
    from nsml.view.text import visible

    addresses = ((one.name, one.user_address or one.local_address) for one in members)
    return ", ".join(visible(f"{name} ({address})") for name, address in addresses)


def _sessions(count: int, verb: str = "", verb_of_many: str = "") -> str:
    """So many sessions, and what they do."""
    return counted(count, f"session {verb}".rstrip(), f"sessions {verb_of_many}".rstrip())


def _confirm(
    app: App, sessions: Sequence[Session] | None, local_count: int, *, what: str, is_mute: bool
) -> None:
    """List what would be ended and ask, unless nothing runs or -y was given.

    `sessions` is None where only those of this machine end; `is_mute` is whether its control plane
    should answer and does not.

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
        app.say(f"  {runs}; the control plane does not answer" if is_mute else f"  {runs}")
    if not app.agrees(f"stop {_sessions(count)} and {what}?", flag="-y, or --keep-sessions"):
        raise CommandError("nothing was stopped", code=ExitCode.FAILED)
