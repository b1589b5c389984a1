"""board: leaderboards of sessions and of submissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.arguments import WholeRange
from cli.boards.comparing import diff
from cli.boards.exporting import export
from cli.boards.options import left_out_text, name_argument, selection_of, selection_options
from cli.boards.settings import dataset_options, settings_of, settings_options
from cli.boards.watching import watch, watch_entries
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list, write_one
from nsml.common.shell import shell_word
from nsml.common.text import visible

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.boards_pb2 import Board


@click.group("board", cls=Group)
def board() -> None:
    """Leaderboards: of sessions by a metric, and of submissions to a dataset.

    A dataset with a hidden test set and an evaluation has a board of its own name: nsml submit.
    """


def _write_board(app: App, found: Board, limit: str = "") -> None:
    from nsml.view import boards as view

    lines = view.board_lines(found, limit)
    write_one(app, view.board_record(found), [visible(line) for line in lines])


async def _limited(client: Client, name: str) -> tuple[Board, str]:
    """Fetch a board, and the limit on it during a competition, else ""."""
    from nsml.client.errors import Unsupported
    from nsml.view.boards import full_name, is_of_dataset
    from nsml.view.competitions import limit_on

    found = await client.boards.get(name)
    if not is_of_dataset(found):
        return found, ""
    try:
        competitions = await client.competitions.every()
    except Unsupported:  # an earlier control plane
        return found, ""
    return found, limit_on(full_name(found), competitions)


@command(
    "create",
    reads=True,
    examples=[
        "nsml board create best-acc --metric val/acc",
        "nsml board create fast --metric loss --min --filter 'ds:mnist lr<0.1' --team",
        "nsml board create course --metric val/acc --per team --public -m 'Spring course'",
    ],
)
@click.argument("name")
@settings_options
@pass_app
def create(app: App, /, *, name: str, **given: Any) -> None:
    """Create a board of sessions, ranked by a metric.

    Sessions appear as soon as they report the metric; it lists only those that the reader may see.
    """
    if not given["metric"]:
        raise CommandError(
            "a board of sessions needs a metric",
            code=ExitCode.USAGE,
            why="sessions are ranked by a value that they report",
            advice=f"nsml board create {shell_word(name)} --metric val/acc",
        )
    settings = settings_of(given)
    _write_board(app, app.call(lambda client: client.boards.create(name, settings)))


@command(
    "set",
    reads=True,
    examples=[
        "nsml board set best-acc --per team --public",
        "nsml board set digits --min --limit 3/1d --public-score ladder",
        "nsml board set digits --close",
    ],
)
@name_argument()
@settings_options
@dataset_options
@pass_app
def change(app: App, /, *, name: str, **given: Any) -> None:
    """Change settings of your board, or of your dataset's board. Options that are not given stay.

    Limits, times, sizes and public scores are of boards of datasets alone. Who sees a dataset's
    board is who sees the dataset: nsml dataset share.
    """
    if all(value is None for value in given.values()):
        raise CommandError(
            "nothing to set",
            code=ExitCode.USAGE,
            advice=f"nsml board set {shell_word(name)} --per team\nnsml board set -h",
        )
    settings = settings_of(given)
    _write_board(app, app.call(lambda client: client.boards.update(name, settings)))


@command("ls", reads=True, examples=["nsml board ls", "nsml board ls -o wide"])
@pass_app
def ls(app: App) -> None:
    """List the boards that you may see."""
    from nsml.v1.boards_pb2 import Board
    from nsml.view import boards as view

    write_list(
        app,
        app.call(lambda client: client.boards.every()),
        columns=view.BOARD_COLUMNS,
        record=view.board_record,
        none="no boards yet: nsml board create NAME --metric METRIC",
        blank=Board(),
    )


@command("info", reads=True, examples=["nsml board info digits", "nsml board info lee/digits -j"])
@name_argument()
@pass_app
def info(app: App, *, name: str) -> None:
    """Show a board's settings.

    What is ranked and listed; of a dataset's board also limits of submissions, times and sizes. While
    a phase of a competition is held on it, the limit is that of the phase.
    """
    found, limit = app.call(lambda client: _limited(client, name))
    _write_board(app, found, limit)


@command(
    "show",
    reads=True,
    examples=[
        "nsml board show digits",
        "nsml board show lee/digits --mine -n 5",
        "nsml board show best-acc --per team -j",
        "nsml board show digits -w -o jsonl",
    ],
)
@name_argument()
@selection_options
@click.option(
    "--private-scores",
    "by_private",
    is_flag=True,
    help="Rank by scores on private rows; the board's owner.",
)
@click.option(
    "--evaluation",
    type=WholeRange(1, (1 << 32) - 1),
    metavar="N",
    help="Scores of the Nth evaluation of the dataset; default: the one that is shown.",
)
@click.option("-w", "--watch", "watches", is_flag=True, help="Keep running and show every change.")
@pass_app
def show(
    app: App,
    *,
    name: str,
    mine: bool,
    per: str | None,
    first: int | None,
    by_private: bool,
    evaluation: int | None,
    watches: bool,
) -> None:
    """Show the entries of a board, best first.

    Entries without a score are last. ± is the change of the rank within a day: +2 is two places up. -o wide adds ranks within the
    margin of error, and a trend of each participant's best scores.
    """
    from nsml.v1.boards_pb2 import BoardEntry
    from nsml.view import boards as view

    selection = selection_of(mine, per, first, by_private=by_private, evaluation=evaluation or 0)
    if watches:
        if by_private or evaluation is not None:
            raise click.UsageError(
                "-w shows what is current: without --private-scores, --evaluation"
            )
        watch_entries(app, name, selection)
        return
    answer = app.call(lambda client: client.boards.entries(name, selection))
    if app.is_for_people:
        app.say(visible(view.headline(answer.board, per or "")))
    write_list(
        app,
        answer.entries,
        columns=view.columns_for(answer.board, answer.entries),
        record=view.entry_record,
        name="session",
        none="no entries yet",
        blank=BoardEntry(),
        beside={"board": view.board_record(answer.board)},
    )
    if more := left_out_text(answer, first):
        app.say(more)


@command("rm", examples=["nsml board rm best-acc", "nsml board rm best-acc -y"])
@name_argument()
@confirmed
@pass_app
def rm(app: App, *, name: str) -> None:
    """Remove a board of sessions. Asks first.

    The sessions stay. The board of a dataset goes with its dataset: nsml dataset rm.
    """
    from nsml.view.boards import full_name

    found = app.call(lambda client: client.boards.get(name))
    full = full_name(found)
    if confirm_names(app, "board rm", [full], noun="board", loses=["its settings"]):
        app.call(lambda client: client.boards.remove(full))
        app.say(visible(f"removed board {full}"))


@command(
    "reevaluate",
    examples=["nsml board reevaluate digits", "nsml board reevaluate digits -y"],
)
@name_argument()
@confirmed
@pass_app
def reevaluate(app: App, *, name: str) -> None:
    """Evaluate all kept predictions of your dataset's board again. Asks first.

    For a changed evaluation, or other labels: nsml dataset push first. The board shows the scores of the
    version before until the last prediction is done; nsml board show --evaluation N shows earlier ones.
    """
    from nsml.common.units import counted
    from nsml.view.boards import full_name

    found = app.call(lambda client: client.boards.get(name))
    full = full_name(found)
    entries = counted(found.entry_count, "entry", "entries")
    if confirm_names(
        app, "board reevaluate", [full], noun="board", last=f"({entries}): its ranks may change"
    ):
        made = app.call(lambda client: client.boards.reevaluate(full))
        app.say(visible(f"re-evaluating {made.to_reevaluate} of {full}: nsml board show {full}"))


for _command in (ls, show, watch, diff, info, create, change, reevaluate, export, rm):
    board.add_command(_command)
