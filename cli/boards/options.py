"""Arguments and options of several commands of boards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.arguments import BOARD, WholeRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsml.client.boards import Selection
    from nsml.v1.boards_pb2 import ListEntriesResponse

F = TypeVar("F", bound="Callable[..., Any] | click.Command")
_MOST = 1000
"""Most entries of one response."""


def name_argument() -> Callable[[F], F]:
    """Add the argument for one board: NAME or OWNER/NAME."""
    return click.argument("name", type=BOARD, metavar="NAME")


def per_option(command: F) -> F:
    """Add the option for what is listed of each participant."""
    return click.option(
        "--per",
        "--by",
        type=click.Choice(["user", "team", "none"]),
        help="The best of each user or team, or every entry (none); default: as the board does.",
    )(command)


def selection_options(command: F) -> F:
    """Add the options for which entries are listed."""
    options = [
        click.option("--mine", is_flag=True, help="Only your own entries, with their ranks."),
        per_option,
        click.option(
            "-n", "--first", type=WholeRange(1, _MOST), metavar="N", help="Only the first N."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def left_out_text(answer: ListEntriesResponse, first: int | None) -> str:
    """Return a line if there are more entries than one response has; "" if not, or if fewer were requested."""
    shown = len(answer.entries)
    if first is not None or shown < _MOST or answer.board.entry_count <= shown:
        return ""
    return f"(the first {shown:,} of {answer.board.entry_count:,})"


def selection_of(
    mine: bool = False, per: str | None = None, first: int | None = None, **more: Any
) -> Selection:
    """Return the requested entries."""
    from nsml.client.boards import Selection
    from nsml.view import boards as view

    return Selection(
        best_per=view.best_per_named(per or ""), own_only=mine, limit=first or 0, **more
    )
