"""Arguments and options of several commands of competitions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.arguments import COMPETITION
from cli.output import write_one
from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.app import App
    from nsml.v1.competitions_pb2 import Competition, Team

F = TypeVar("F", bound="Callable[..., Any] | click.Command")
SETTINGS = click.Path(dir_okay=False, path_type=Path)
"""A file of settings."""


def name_argument() -> Callable[[F], F]:
    """Add the argument for one competition: NAME or OWNER/NAME."""
    return click.argument("name", type=COMPETITION, metavar="NAME")


def phase_option(text: str) -> Callable[[F], F]:
    """Add the option for a phase."""
    return click.option("--phase", metavar="PHASE", default="", help=text)


def write_competition(app: App, found: Competition) -> None:
    """Write a competition: its line for people, all of it for programs."""
    from nsml.view import competitions as view

    now = app.clock.time()
    write_one(
        app,
        view.competition_record(found),
        [visible(f"{view.full_name(found)} ({view.now_text(found, now)})")],
    )


def write_team(app: App, team: Team) -> None:
    """Write a team."""
    from nsml.view import competitions as view

    write_one(app, view.team_record(team), [visible(view.team_line(team))])
