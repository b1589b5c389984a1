"""`nsml doctor chaos`: torment a platform of its own, and judge what it did."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaos.nemesis import FAULTS
from cli.exits import CommandError, ExitCode
from cli.group import DURATION, command, pass_app
from cli.output import write_one

if TYPE_CHECKING:
    from cli.app import App


def _faults(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    chosen = tuple(filter(None, (word.strip() for word in value.split(","))))
    unknown = [word for word in chosen if word not in FAULTS]
    if unknown:
        raise click.BadParameter(f"no such fault: {unknown[0]}; there are {', '.join(FAULTS)}")
    if not chosen:
        raise click.BadParameter(f"at least one of {', '.join(FAULTS)}")
    return chosen


def _spacing(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> tuple[float, float]:
    least, _, most = value.partition("-")
    try:
        span = float(least), float(most or least)
    except ValueError:
        span = (0.0, -1.0)
    if not 0 < span[0] <= span[1]:
        raise click.BadParameter("seconds, or two with a dash between: 0.5-2")
    return span


@command(
    "chaos",
    reads=True,
    examples=[
        "nsml doctor chaos",
        "nsml doctor chaos --seconds 600 --seed 7 --faults kill,pause,cut -j",
        "nsml doctor chaos --seconds 1h --count 1000 --keep",
        "nsml doctor chaos --check /tmp/nsml-chaos-x1y2z3",
    ],
)
@click.option(
    "--seconds",
    type=DURATION,
    default=60.0,
    show_default=True,
    metavar="TIME",
    help="How long faults are drawn; start, take-overs, healing and the judgement come on top.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="End sooner, when so many faults have fired.",
)
@click.option("--seed", type=int, metavar="N", help="Repeat a run's draws; default: a new one.")
@click.option(
    "--faults",
    default=",".join(FAULTS),
    callback=_faults,
    metavar="A,B",
    help=f"Of {', '.join(FAULTS)}; default: all.",
)
@click.option(
    "--every",
    default="0.5-2",
    show_default=True,
    callback=_spacing,
    metavar="S-S",
    help="Seconds between two faults.",
)
@click.option(
    "--control-planes", type=click.IntRange(1, 9), default=3, show_default=True, metavar="N"
)
@click.option("--agents", type=click.IntRange(2, 32), default=4, show_default=True, metavar="N")
@click.option("--keep", is_flag=True, help="Keep the folder of the run, with logs and records.")
@click.option(
    "--check",
    "recorded",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Start nothing: judge a run that was kept.",
)
@pass_app
def chaos(
    app: App,
    /,
    *,
    seconds: float,
    count: int | None,
    seed: int | None,
    faults: tuple[str, ...],
    every: tuple[float, float],
    control_planes: int,
    agents: int,
    keep: bool,
    recorded: Path | None,
) -> int:
    """Try a platform of its own under faults, and judge it.

    Starts three etcd members, PostgreSQL, control planes, agents with simulated GPUs, all in a temporary
    folder and apart from every other platform; submits, stops, follows; kills, pauses and parts them, and
    fills their disks. Each is on a host of its own (network namespaces: root, or user namespaces); else nothing
    is cut, and without a mount namespace no disk is filled: the run says so.
    A run that found something, or broke, is kept. Exit code 1 for a violation, or when a fault that was to fire
    never did or no program reported anything: that is counted as "nothing proved". The longest wait is how long one call was
    repeated until it was answered, all faults of that time together; it is no violation.
    """
    if recorded is not None:
        return _judge(app, recorded)
    from chaos.hosts import with_rights_of_a_network
    from chaos.platform import Shape
    from chaos.run import Plan, run

    with_rights_of_a_network([sys.executable, "-m", "cli.main", *sys.argv[1:]], app.environ)
    plan = Plan(
        seconds=seconds,
        count=count,
        seed=secrets.randbelow(1 << 32) if seed is None else seed,
        faults=faults,
        shape=Shape(control_planes=control_planes, agents=agents),
        every_s=every,
    )
    app.say(f"seed {plan.seed}")
    folder = Path(tempfile.mkdtemp(prefix="nsml-chaos-"))
    # PostgreSQL runs as another user, whose own folder lies below.
    folder.chmod(0o711)
    is_kept = keep
    try:
        run(plan, folder, environ=app.environ, say=app.say)
        code = _judge(app, folder)
        is_kept = is_kept or code != ExitCode.OK
    except Exception:
        is_kept = True
        raise
    finally:
        if is_kept:
            app.say(f"kept: {folder}")
        else:
            _remove(folder)
    return code


def _judge(app: App, folder: Path) -> int:
    from chaos.check import violations
    from chaos.recording import read_recorded
    from chaos.summary import lines_of, record_of

    try:
        recorded = read_recorded(folder)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{folder} holds no whole record of a run",
            why=str(error),
            advice="nsml doctor chaos --keep",
        ) from error
    found = violations(recorded)
    record = record_of(recorded, found)
    write_one(app, record, lines_of(record), name="seed")
    return ExitCode.FAILED if found else ExitCode.OK


def _remove(folder: Path) -> None:
    """The folder, caches of agents included, which are read-only."""
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False)
    shutil.rmtree(folder, ignore_errors=True)
