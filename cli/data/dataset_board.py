"""dataset board: the submissions to a dataset, in NSML's columns."""

from __future__ import annotations

import click

from cli.app import App
from cli.arguments import DATASET
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list
from nsml.common.shell import shell_word


@command(
    "board",
    reads=True,
    examples=["nsml dataset board digits", "nsml dataset board lee/digits -j"],
)
@click.argument("name", type=DATASET)
@pass_app
def board(app: App, *, name: str) -> None:
    """List every submission to a dataset, best first.

    The columns are NSML's; nsml board show has ranks, teams and the best of each participant.
    """
    from nsml.client.boards import Selection
    from nsml.v1 import boards_pb2 as pb
    from nsml.view import boards as view
    from nsml.view import nsml_style

    answer = app.call(
        lambda client: client.boards.entries(name, Selection(best_per=pb.BEST_PER_NONE))
    )
    if answer.board.kind != pb.BOARD_KIND_DATASET:
        raise CommandError(
            f"{name} is a board of sessions, not of a dataset",
            code=ExitCode.CONFLICT,
            advice=f"nsml board show {shell_word(name)}",
        )
    write_list(
        app,
        answer.entries,
        columns=view.nsml_columns(answer.entries),
        record=view.nsml_record,
        name="session",
        none="no submissions yet: nsml submit SESSION CHECKPOINT",
        blank=pb.BoardEntry(),
        nsml=nsml_style.BOARD,
    )
