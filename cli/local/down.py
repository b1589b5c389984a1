"""down: stop the platform, or the node, on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.confirmation import confirmed, go_ahead, rule_of
from cli.group import command, pass_app
from cli.local.common import DATA
from cli.local.data_folder import data_folder
from cli.local.running_folders import folder_of_context, running_folders
from cli.local.teardown import TearDown, is_finalizing
from cli.local.units import AGENT_UNIT, CONTROL_PLANE_UNIT, is_installed
from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cli.app import App
    from cli.local.data_folder import DataFolder
    from cli.local.teardown import Platform
    from nsml.v1.nodes_pb2 import Member
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.confirmation import Plan

_NAMED = 5
"""Other data folders named where nothing runs."""


@command(
    "down",
    examples=["nsml down", "nsml down -y", "nsml down --keep-sessions", "nsml down --data DIR"],
)
@click.option(
    "--keep-sessions", is_flag=True, help="Keep sessions running until the next `nsml up`."
)
@confirmed
@DATA
@pass_app
def down(app: App, /, *, keep_sessions: bool, data: Path | None) -> None:
    """Stop the platform, or the node, on this machine.

    Asks first if sessions would end. With --keep-sessions they continue, and the next `nsml up`
    takes them over.

    Without --data and NSML_DATA it is the platform in your own data folder; if none runs there, the one that
    `nsml up --data DIR` started last.

    If the platform has other control planes, only this machine stops: its control plane, its agent
    and its sessions. The control planes that continue are printed.
    """
    folder = _folder(app, data)
    if not folder.path.is_dir():
        _say_nothing_runs(app, folder)
        return
    with folder.locked():
        tear_down = TearDown(app, folder)
        programs, replicas = tear_down.programs, tear_down.replicas()
        platform = tear_down.platform()
        if not programs and not (replicas and not keep_sessions):
            if not app.flags.is_dry_run:
                tear_down.stop_programs()
            _say_nothing_runs(app, folder)
            return
        others = _named(platform.others) if platform else ""
        if others:
            app.say(f"{'platform':<14} goes on at {others}")
        sessions = None if others or platform is None else platform.sessions
        plan = _plan(folder, tear_down, platform, sessions, keeps=keep_sessions)
        aside = ""
        if plan.targets and sessions is None:
            aside = f"{_sessions(len(plan.targets), 'runs', 'run')} on this machine"
            is_mute = platform is None and not _is_joined(folder)
            aside += "; the control plane does not answer" if is_mute else ""
        if not go_ahead(app, plan, flag="-y, or --keep-sessions", aside=aside):
            return
        if not keep_sessions:
            for session in tear_down.stop_sessions(sessions or []):
                words = "did not end in time"
                if is_finalizing(session):
                    words = "has ended; its last logs and reports are sent after the next `nsml up`"
                app.say(f"{'sessions':<14} {session.name} {words}")
            tear_down.stop_replicas()
        tear_down.stop_programs()
        kept = len({replica.session_id for replica in tear_down.replicas()})
    words = f", {_sessions(kept, 'goes', 'go')} on" if kept else ""
    app.write(f"nsml is down{' on this machine' if others else ''}{words}")


def _folder(app: App, data: Path | None) -> DataFolder:
    """Return the data folder as chosen; by default the user's own, else the one that commands use."""
    folder = data_folder(data, app.environ)
    own = TearDown(app, folder)
    if data is not None or app.environ.get("NSML_DATA") or own.programs or own.replicas():
        return folder
    used = folder_of_context(app)
    if used is None:
        return folder
    app.say(f"{'data':<14} {visible(str(used.path))}")
    return used


def _say_nothing_runs(app: App, folder: DataFolder) -> None:
    """Say that nothing runs in a folder, and how to stop what runs in others."""
    app.say(visible(_nothing_words(folder)))
    for one in running_folders()[:_NAMED]:
        command = shell_line(["nsml", "down", "--data", str(one.path)])
        app.say(f"  try: {visible(command)}    stops what runs there")


def _nothing_words(folder: DataFolder) -> str:
    """Return the message if nothing runs here; programs of installed units are not ours to stop."""
    names = [one for one in (CONTROL_PLANE_UNIT, AGENT_UNIT) if is_installed(one)]
    units = " ".join(one.removesuffix(".service") for one in names)
    by = f" that nsml up or join started; units are stopped by: systemctl stop {units}"
    return f"nothing runs in {folder.path}{by if units else ''}"


def _is_joined(folder: DataFolder) -> bool:
    choices = folder.choices()
    return choices is not None and choices.is_joined


def _plan(
    folder: DataFolder,
    tear_down: TearDown,
    platform: Platform | None,
    sessions: Sequence[Session] | None,
    *,
    keeps: bool,
) -> Plan:
    """Return the plan. `sessions`: all of a platform that ends; None: only those on this machine."""
    from nsml.view.confirmation import Plan, Target, target_of

    choices = folder.choices()
    goes_on = choices is not None and choices.is_shared
    if platform is not None:
        goes_on = bool(platform.others)
    what = "this node" if _is_joined(folder) else "the platform"
    if goes_on:
        what = "the control plane of this machine"
    if sessions is not None:
        targets = [target_of(session) for session in sessions]
    else:
        ids = {replica.session_id for replica in tear_down.replicas()}
        targets = [Target(f"session {one}") for one in sorted(ids)]
    return Plan(rule=rule_of("down"), targets=[] if keeps else targets, first=f"stop {what}")


def _named(members: Sequence[Member]) -> str:
    """Name control planes, each with its address for users."""
    addresses = ((one.name, one.user_address or one.local_address) for one in members)
    return ", ".join(visible(f"{name} ({address})") for name, address in addresses)


def _sessions(count: int, verb: str = "", verb_of_many: str = "") -> str:
    """Return a count of sessions with their verb."""
    return counted(count, f"session {verb}".rstrip(), f"sessions {verb_of_many}".rstrip())
