"""competition standings: the ranks of teams, also as they change."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import WholeRange
from cli.boards.submissions import check_line_format
from cli.competitions.options import name_argument, phase_option
from cli.group import command, pass_app
from cli.live_table import Redrawn
from cli.output import rendered, table_lines, write_line, write_list
from nsml.common.text import visible

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.common.clock import Clock
    from nsml.v1.competitions_pb2 import ListStandingsResponse, Standing, WatchStandingsResponse

_REDRAW_S = 1.0
"""Interval in seconds in which ages are redrawn."""
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
    from nsml.v1.competitions_pb2 import Standing
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
    write_list(
        app,
        view.first_rows(answer.standings, first),
        columns=view.STANDING_COLUMNS,
        record=view.standing_record,
        name="team",
        none="no teams yet",
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


class _Watched:
    """Standings on the screen, or as lines."""

    def __init__(self, app: App, first: int | None) -> None:
        self._app = app
        self._first = first
        self._screen = Redrawn(app)
        self._answer: WatchStandingsResponse | None = None
        self._known: dict[tuple[str, bool], Standing] = {}
        self.link = self._screen.link

    def take(self, answer: WatchStandingsResponse) -> None:
        """Show the newest standings: redrawn, else the rows that changed, a line each."""
        from nsml.view import competitions as view

        self._answer = answer
        if self._screen.draws:
            self.draw()
            return
        rows = view.first_rows(answer.standings, self._first)
        if not self._app.is_for_people:
            for one in rows:
                if self._known.get(_key(one)) != one:
                    write_line(self._app, view.standing_record(one))
            self._known = {_key(one): one for one in rows}
            self._app.stdout.flush()
            return
        self._lines(rows)

    def draw(self) -> None:
        """Redraw the table; its ages have changed."""
        from nsml.view import competitions as view

        if self._answer is None:
            return
        rows = view.first_rows(self._answer.standings, self._first)
        table = rendered(self._app, rows, view.STANDING_COLUMNS)
        left_out = table.left_out_text(self._app.room)
        lines = table.lines if rows else ["no teams yet"]
        head = visible(_headline(self._answer))
        self._screen.show([head, *lines, *([left_out] if left_out else [])])

    def _lines(self, rows: list[Standing]) -> None:
        """Write the rows that look different, apart from their ages, with the columns of the whole table."""
        from nsml.view import competitions as view

        lines = table_lines(self._app, rows, view.STANDING_COLUMNS) if rows else []
        header = lines[: len(lines) - len(rows)]
        for line in () if self._known else header:
            self._app.write(line)
        shown = {_key(one): _without_trend(one) for one in rows}
        for one, line in zip(rows, lines[len(header) :], strict=True):
            if self._known.get(_key(one)) != shown[_key(one)]:
                self._app.write(line)
        self._known = shown
        self._app.stdout.flush()

    async def keep_true(self, clock: Clock) -> None:
        """Redraw ages until cancelled."""
        while self._screen.draws:
            await clock.sleep(_REDRAW_S)
            self.draw()


def _without_trend(row: Standing) -> Standing:
    """Return a row without what most tables have no room for: the scores before its best one."""
    plain = type(row)()
    plain.CopyFrom(row)
    plain.ClearField("trend")
    return plain


def _key(row: Standing) -> tuple[str, bool]:
    return row.team, row.is_baseline


def _watch(app: App, name: str, phase: str, first: int | None) -> None:
    """Show the standings and their changes until interrupted.

    Raises:
        CommandError: a format that cannot be written line by line; USAGE.
    """
    from nsml.client.competitions import watch_standings
    from nsml.common.concurrency import beside_each_other

    check_line_format(app, "nsml competition standings NAME -w -o jsonl")
    watched = _Watched(app, first)

    async def follow(client: Client) -> None:
        # Fails at once on a dead platform; a lost one is waited for.
        await client.competitions.get(name)
        watching = watch_standings(client, name, phase, on_link=watched.link)
        async with beside_each_other() as group, aclosing(watching):
            group.create_task(watched.keep_true(client.clock))
            async for answer in watching:
                watched.take(answer)

    app.call(follow)
