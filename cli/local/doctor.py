"""doctor: checks this machine, and advises on each problem."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.exits import CommandError, ExitCode
from cli.group import LazyGroup, command, pass_app
from cli.local.common import DATA
from cli.local.data_folder import AGENT, data_folder
from cli.local.processes import program
from cli.output import write_list
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.app import App
    from cli.local.data_folder import DataFolder

_WITHIN_S = 120.0
_CLOCK_WITHIN_S = 3.0
_COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}

_COLUMNS: tuple[Column[dict[str, str]], ...] = (
    Column(key="check", title="Check", cell=lambda f, _: f["check"], is_name=True),
    Column(key="grade", title="Grade", cell=lambda f, _: f["grade"]),
    Column(key="found", title="Found", cell=lambda f, _: f["found"], shrinks_to=30),
)


_COMMANDS = {
    "Commands": {
        "chaos": (
            "chaos.command:chaos",
            "Try a platform of its own under faults, and judge it.",
        ),
        "node": (
            "cli.local.doctor:node",
            "Examine this machine as a node: no platform and no root needed.",
        ),
        "storage": (
            "cli.cluster.verify:storage",
            "Read all that is stored, and say what is damaged.",
        ),
    }
}


@click.group("doctor", cls=LazyGroup, sections=_COMMANDS)
def doctor() -> None:
    """Check this machine, or the platform, and advise."""


@command("node", reads=True, examples=["nsml doctor node", "nsml doctor node -j"])
@DATA
@pass_app
def node(app: App, *, data: Path | None) -> int:
    """Examine this machine as a node: no platform and no root needed.

    Exit code 1 when anything is bad; a warning is none.
    """
    folder = data_folder(data, app.environ)
    words = ["doctor", "--data", str(folder.path / AGENT), *_server(folder), *_clock(app)]
    findings = _examined(app, words)
    write_list(
        app,
        findings,
        columns=_COLUMNS,
        record=lambda finding: {**finding, "advice": finding["advice"] or None},
        name="check",
        none="nothing was examined",
    )
    if app.is_for_people:
        for finding in findings:
            if finding["advice"]:
                grade = finding["grade"]
                line = f" {finding['check']}: {finding['found']}"
                app.say(line, mark=grade, colour=_COLOURS[grade])
                for number, step in enumerate(finding["advice"].splitlines()):
                    app.say(f"  {'     ' if number else 'try: '}{step}")
    is_bad = any(finding["grade"] == "bad" for finding in findings)
    return ExitCode.FAILED if is_bad else ExitCode.OK


def _server(folder: DataFolder) -> list[str]:
    """Return the option for the control plane of this folder's node, if it has one."""
    choices = folder.choices()
    return ["--server", choices.agents] if choices is not None and choices.agents else []


def _clock(app: App) -> list[str]:
    """Return the options for this clock's lead over the control plane's, if one answers."""
    from nsml.client.contexts import ContextError
    from nsml.client.errors import ClientError

    app.flags.timeout_s = app.flags.timeout_s or _CLOCK_WITHIN_S
    before = app.clock.time()
    try:
        cluster = app.cluster()
    except (ClientError, ContextError, CommandError, OSError):
        return []
    after = app.clock.time()
    if not cluster.HasField("now"):
        return []
    ahead_s = (before + after) / 2 - cluster.now.ToNanoseconds() / 1e9
    return [f"--clock-ahead-s={ahead_s:.3f}", f"--clock-error-s={(after - before) / 2:.3f}"]


def _examined(app: App, words: Sequence[str]) -> list[dict[str, str]]:
    """The findings of the agent's program.

    Raises:
        CommandError: it does not answer.
    """
    try:
        process = subprocess.run(
            [*program(AGENT), *words],
            env=dict(app.environ),
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        answer: dict[str, Any] = json.loads(process.stdout)
        return list(answer["findings"])
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"the examination did not end within {_WITHIN_S:.0f} s",
            why="something on this machine hangs: a disk, the driver or the engine",
            advice="nvidia-smi, docker info, df: whichever does not answer",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(
            "this machine could not be examined", why=process.stderr.strip()[-500:]
        ) from error
