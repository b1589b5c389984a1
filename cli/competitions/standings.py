"""competition standings: the ranks of teams, also as they change."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import WholeRange
from cli.competitions.options import name_argument, phase_option
from cli.group import command, pass_app
from cli.output import write_list
from cli.watched_table import WatchedTable, check_line_format
from nsml.common.text import visible

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.competitions_pb2 import ListStandingsResponse, Standing, WatchStandingsResponse

_MOST = 100_000


@command(
    "standings",
    reads=True,
    examples=[
        "nsml competition standings digits-cup",
        "nsml competition standings lee/digits-cup --phase final -n 10 -w",
        "nsml competition standings digits-cup --private -j",
    ],
)
@name_argument()
@phase_option("Of this phase; default: the one that runs, else the last that began.")
@click.option("-w", "--watch", "watches", is_flag=True, help="Keep running and show every change.")
@click.option(
    "-n",
    "--first",
    type=WholeRange(1, _MOST),
    metavar="N",
    help="Only the first N, and your own team.",
)
@click.option(
    "--private",
    "by_private",
    is_flag=True,
    help="By private scores; before the end for its organiser.",
)
@pass_app
def standings(
    app: App, *, name: str, phase: str, watches: bool, first: int | None, by_private: bool
) -> None:
    """Show the standings of a phase, best first.

    They are preliminary, by public scores, until the phase is over and all its submissions are evaluated;
    then final, by private scores of the picked submissions. Baselines and disqualified teams have no rank.
    ± is the change of the rank.
    """
    from nsml.v1.competitions_pb2 import COMPETITION_STATE_CLOSED, Standing
    from nsml.view import competitions as view

    if watches:
        if by_private:
            raise click.UsageError("-w shows what participants see: without --private")
        _watch(app, name, phase, first)
        return
    answer = app.call(
        lambda client: client.competitions.standings(name, phase, by_private=by_private)
    )
    if app.is_for_people:
        app.say(visible(_headline(answer)))
    rows = view.first_rows(answer.standings, first)
    write_list(
        app,
        rows,
        columns=view.standing_columns(rows),
        record=view.standing_record,
        name="team",
        none="no teams" if answer.competition.state == COMPETITION_STATE_CLOSED else "no teams yet",
        blank=Standing(),
        beside={
            "competition": view.full_name(answer.competition),
            "phase": answer.phase or None,
            "is_final": answer.is_final,
        },
    )


def _headline(answer: ListStandingsResponse | WatchStandingsResponse) -> str:
    from nsml.view import competitions as view

    return view.headline(answer.competition, answer.phase, is_final=answer.is_final)


def _key(row: Standing) -> tuple[str, bool]:
    return row.team, row.is_baseline


def _watch(app: App, name: str, phase: str, first: int | None) -> None:
    """Show the standings and their changes until interrupted.

    Raises:
        CommandError: a format that cannot be written line by line; USAGE.
    """
    from nsml.client.competitions import watch_standings
    from nsml.common.concurrency import beside_each_other
    from nsml.view import competitions as view

    check_line_format(app, "nsml competition standings NAME -w -o jsonl")
    watched = WatchedTable(app, key=_key, record=view.standing_record, none="no teams yet")

    async def follow(client: Client) -> None:
        # Fails at once on a dead platform; a lost one is waited for.
        await client.competitions.get(name)
        watching = watch_standings(client, name, phase, on_link=watched.link)
        async with beside_each_other() as group, aclosing(watching):
            group.create_task(watched.keep_true(client.clock))
            async for answer in watching:
                rows = view.first_rows(answer.standings, first)
                watched.take(rows, view.standing_columns(rows), _headline(answer))

    app.call(follow)
