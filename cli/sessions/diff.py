"""diff: sessions side by side."""

from __future__ import annotations

from glob import escape
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import given_references, sessions_argument, sessions_of
from cli.exits import CommandError, ExitCode
from cli.group import command, near, pass_app, to_try
from cli.output import table_lines, write_list
from cli.results.metric_options import (
    ask_known,
    attempts_option,
    check_attempts,
    check_there,
    events_line,
    fits,
    metric_option,
    nothing_by,
    rank_options,
)
from cli.results.series import tell_left_out
from cli.sessions.code_diff import code_rows, diff_code
from nsml.common.text import visible
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import ReadSeriesRequest, ReadSeriesResponse, Session
    from nsml.view.compare import Row

_PATIENCE_S = 30.0
_COMPARED = 2
"""Number of sessions whose code can be compared."""
_KEY_CELLS, _NAME_CELLS, _VALUE_CELLS = 24, 8, 10
"""Minimum widths of keys, session names and texts on a narrow terminal; numbers are never cut."""
_SHOWN = 10
"""Most metrics named in an error."""
_TITLES = {
    "argument": "Argument",
    "config": "Reported config",
    "code": "Code",
    "data": "Data",
    "environment": "Environment",
    "setting": "Asked for",
    "knob": "Knob",
    "summary": "Summary",
    "metric": "Metric",
}


@command(
    "diff",
    reads=True,
    examples=[
        "nsml diff @last @2",
        "nsml diff @last @2 --all",
        "nsml diff @last @2 --metrics --lower 'val/*loss' --higher val/accuracy",
        "nsml diff 'kim/mnist/*' -m 'val/*' --all-keys",
        "nsml diff @last @2 --args --exit-code -q",
        "nsml diff @last @2 --code",
        "nsml diff mnist/3 mnist/4 --stat --ignore '*.md'",
    ],
)
@sessions_argument()
@click.option("--args", "asked_only", is_flag=True, help="Only requests, no results.")
@click.option(
    "--metrics", "with_metrics", is_flag=True, help="Also compare metrics: last (min .. max)."
)
@click.option("--all", "is_all", is_flag=True, help="Also compare files, packages and metrics.")
@click.option("--code", is_flag=True, help="Only the differing lines of the files of two sessions.")
@click.option("--stat", "is_stat", is_flag=True, help="The same, counted per file.")
@metric_option()
@click.option(
    "--lower", multiple=True, metavar="NAME", help="Metric or glob of which less is better."
)
@click.option(
    "--higher", multiple=True, metavar="NAME", help="Metric or glob of which more is better."
)
@click.option(
    "--ignore", multiple=True, metavar="KEY", help="Ignore this key or glob; with --code: file."
)
@click.option("--all-keys", is_flag=True, help="Also rows for what all have in common.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if anything differs.")
@rank_options
@attempts_option
@pass_app
def diff(
    app: App,
    *,
    references: tuple[str, ...],
    asked_only: bool,
    with_metrics: bool,
    is_all: bool,
    code: bool,
    is_stat: bool,
    metrics: tuple[str, ...],
    lower: tuple[str, ...],
    higher: tuple[str, ...],
    ignore: tuple[str, ...],
    all_keys: bool,
    exit_code: bool,
    rank: int | None,
    attempt: int | None,
    is_apart: bool,
) -> int:
    """Compare sessions: arguments, reported config, code, data, environment, settings, knobs, summaries.

    With --metrics also metrics, with --all also these, files and packages.

    Each row is a key that differs. A metric is shown as `last (min .. max)`; with --lower or
    --higher, which say which values are better, as `last / best`, and the best of all has a *.
    --code compares the packed files, as `diff -u` does.
    """
    from nsml.v1.sessions_pb2 import ReadSeriesRequest
    from nsml.view import compare

    check_attempts(attempt, is_apart=is_apart)
    with_metrics |= bool(is_all or metrics or rank is not None or attempt is not None or is_apart)
    judging = [*(("--lower", glob) for glob in lower), *(("--higher", glob) for glob in higher)]
    if asked_only and (with_metrics or lower or higher):
        raise click.UsageError("--args excludes results: use it without metrics")
    given = given_references(app, references)
    if code or is_stat:
        if asked_only or with_metrics or judging or all_keys:
            raise click.UsageError(
                "--code compares files alone: --ignore and --exit-code go with it"
            )
        differs = diff_code(app, given, ignore, is_stat=is_stat)
        return ExitCode.FAILED if exit_code and differs else ExitCode.OK
    better = [
        *((glob, compare.Better.LOWER) for glob in lower),
        *((glob, compare.Better.HIGHER) for glob in higher),
    ]

    async def read(
        client: Client,
    ) -> tuple[list[Session], list[ReadSeriesResponse], list[Row]]:
        found = await sessions_of(client, given)
        sessions = list({session.id: session for session in found}.values())
        _check_several(sessions)
        of_code = await code_rows(app, client, sessions) if is_all else []
        if not (with_metrics or _names_metrics(sessions, (*lower, *higher))):
            return sessions, [], of_code
        request = ReadSeriesRequest(
            names=metrics,
            ranks=[] if rank is None else [rank],
            attempts=[] if attempt is None else [attempt],
            all_attempts=is_apart,
        )
        return sessions, await _series(app, client, request, sessions), of_code

    sessions, answers, of_code = app.call(read)
    rows = [*compare.asked(sessions), *compare.set_live(sessions), *of_code]
    if not asked_only:
        rows += [
            *compare.configs(sessions),
            *compare.ran(sessions),
            *compare.summaries(sessions),
        ]
        found = compare.metrics(sessions, (one for said in answers for one in said.series))
        rows += found
        # Metrics beyond the limit are reported below.
        if not any(said.left_out_points or said.left_out_series for said in answers):
            if not found:
                check_there(sessions, rank, attempt)
            _tell_absent(app, sessions, found, metrics, rank=rank, attempt=attempt)
            _check_known(rows, judging)
        _check_one_is_better(rows, lower, higher)
    rows = [
        row
        for row in compare.judged(compare.by_kind(rows), better)
        if not (ignore and (fits(row.key, ignore) or fits(row.title, ignore)))
    ]
    differing = [row for row in rows if row.differs]
    tell_left_out(app, sessions, answers)
    write_rows(app, sessions, rows if all_keys else differing, has_any=bool(rows))
    _tell_code(app, sessions, differing)
    if app.is_for_people and not all_keys:
        _tell_same(app, [row for row in rows if not row.differs])
    return ExitCode.FAILED if exit_code and differing else ExitCode.OK


def _check_several(sessions: Sequence[Session]) -> None:
    if len(sessions) > 1:
        return
    raise CommandError(
        f"{sessions[0].name} alone cannot be compared",
        code=ExitCode.USAGE,
        why="it takes two sessions or more",
        advice=f"nsml diff {sessions[0].name} ANOTHER",
    )


def _names_metrics(sessions: Sequence[Session], globs: Sequence[str]) -> bool:
    """Return whether a glob matches no summary, and so must be of a metric."""
    keys = {key for session in sessions for key in session.summary.fields}
    return any(not any(fits(key, [glob]) for key in keys) for glob in globs)


def _tell_absent(
    app: App,
    sessions: Sequence[Session],
    found: Sequence[Row],
    globs: Sequence[str],
    *,
    rank: int | None,
    attempt: int | None,
) -> None:
    """Report requested metrics without a row. Raises CommandError if none was reported."""
    names = [session.name for session in sessions]
    absent = [glob for glob in globs if not any(fits(row.key, [glob]) for row in found)]
    if absent and not found:
        ask_known(app, names, globs, lambda one, name: ["diff", one, "ANOTHER", "-m", name])
    if rank is not None or attempt is not None:
        if absent or not found:
            app.say(
                nothing_by(rank, attempt, sessions) + "".join(f" as {glob}" for glob in absent[:1])
            )
        return
    if not absent:
        return

    from nsml.client.series import reported

    metrics = app.call(lambda client: reported(client, names))
    listed = {one.name: name for name, own in metrics.items() for one in own}
    for glob in absent:
        session, name = next(
            ((session, name) for name, session in listed.items() if fits(name, [glob])), ("", "")
        )
        if name:
            text = f"(no row of {name}: it is no single number; {events_line(session, name)})"
        else:
            text = f"(no metric {glob!r} was reported)"
        app.say(visible(text))


def _check_known(rows: Sequence[Row], judging: Sequence[tuple[str, str]]) -> None:
    """Raise CommandError for a glob, named with its flag, that matches no metric and no summary."""
    keys = list(dict.fromkeys(row.key for row in rows if row.is_reported))
    for flag, glob in judging:
        if any(fits(key, [glob]) for key in keys):
            continue
        raise CommandError(
            f"no metric or summary {glob!r} was reported",
            code=ExitCode.NOT_FOUND,
            why=f"there are {', '.join(keys[:_SHOWN])}{', ...' if len(keys) > _SHOWN else ''}"
            if keys
            else "nothing was reported",
            advice=to_try(f"nsml diff ... --metrics {flag}", map(escape, near(glob, keys))),
        )


def _check_one_is_better(rows: Sequence[Row], lower: Sequence[str], higher: Sequence[str]) -> None:
    """Raise click.UsageError for a key matched by both --lower and --higher."""
    if not (lower and higher):
        return
    for row in rows:
        if row.is_reported and fits(row.key, lower) and fits(row.key, higher):
            raise click.UsageError(
                f"{row.key} is named by --lower and by --higher: only one is true"
            )


async def _series(
    app: App, client: Client, request: ReadSeriesRequest, sessions: Sequence[Session]
) -> list[ReadSeriesResponse]:
    """Read each series in as few columns as possible, by wall clock: the last one has the latest value."""
    from nsml.client.streams import read_series
    from nsml.v1.sessions_pb2 import SERIES_AXIS_WALL

    request.sessions.extend(session.id for session in sessions)
    request.axis, request.width = SERIES_AXIS_WALL, 1
    return await read_series(client, request, patience_s=_PATIENCE_S, on_link=app.link_words())


def write_rows(
    app: App, sessions: Sequence[Session], rows: Sequence[Row], *, has_any: bool
) -> None:
    """Write a table of each kind for people, else one list; `has_any`: something was compared."""
    from nsml.view import compare

    if not app.is_for_people:
        write_list(
            app, rows, columns=_columns("key", sessions, rows), record=compare.record, name="key"
        )
        return
    if not rows:
        app.say("nothing differs" if has_any else "nothing to compare: every key is ignored")
    parts = [[row for row in rows if row.kind is kind] for kind in compare.Kind]
    tables = [(some, _columns(_TITLES[some[0].kind], sessions, some)) for some in parts if some]
    if not all(_has_room(app, some, columns) for some, columns in tables):
        _write_by_session(app, sessions, rows)
        return
    for number, (some, columns) in enumerate(tables):
        if number:
            app.write("")
        for line in table_lines(app, some, columns):
            app.write(line)


def _has_room(app: App, rows: Sequence[Row], columns: Sequence[Column[Row]]) -> bool:
    """Return whether all columns fit the terminal."""
    from nsml.view.tables import lay_out

    if app.room is None or app.flags.fields:
        return True
    layout = lay_out(columns, rows, now=0.0, room=app.room)
    # Two spaces between columns.
    needed = sum(layout.widths) + 2 * (len(layout.widths) - 1)
    return len(layout.columns) == len(columns) and needed <= app.room


def _write_by_session(app: App, sessions: Sequence[Session], rows: Sequence[Row]) -> None:
    """Write a line for each session, with the differing keys as columns, in as many tables as fit."""
    from nsml.view import compare

    metrics = [row for row in rows if row.kind is compare.Kind.METRIC]
    others = [row for row in rows if row.kind is not compare.Kind.METRIC]
    tables = [one for some in (others, metrics) for one in _tables(app, sessions, some)]
    for number, columns in enumerate(tables):
        if number:
            app.write("")
        for line in table_lines(app, sessions, columns):
            app.write(line)


def _tables(
    app: App, sessions: Sequence[Session], rows: Sequence[Row]
) -> list[list[Column[Session]]]:
    """Return the columns of each table: the name, and as many rows as fit beside it."""
    from nsml.common.text import width

    name = _name_column(sessions)
    room = app.room or 0  # only a table on a terminal can be too wide
    widest = max(width(text) for text in (name.title, *(name.cell(one, 0) for one in sessions)))
    tables: list[list[Column[Session]]] = []
    left = 0
    for row in rows:
        column = _column_of(row, sessions)
        needed = 2 + column.least
        if needed > left:
            tables.append([name])
            left = room - min(widest, room // 2)
        tables[-1].append(column)
        left -= needed
    return tables


def _name_column(sessions: Sequence[Session]) -> Column[Session]:
    from nsml.view.sessions import SIMULATED

    behind = f" ({SIMULATED})"
    are_all = all(session.simulated for session in sessions)
    return Column(
        key="session",
        title=f"Session{behind if are_all else ''}",
        cell=lambda session, _: (
            session.name + (behind if session.simulated and not are_all else "")
        ),
        is_name=True,
    )


def _column_of(row: Row, sessions: Sequence[Session]) -> Column[Session]:
    """Return a row as a column, never cut below `least`: for texts and titles a prefix of that width."""
    from nsml.common.text import fit_middle, width
    from nsml.view import compare

    texts = compare.aligned([compare.cell(row, session.name) for session in sessions])
    shown = dict(zip((session.name for session in sessions), texts, strict=True))
    longest = max(map(width, [row.title, *texts]))
    numbers = (width(shown[one.name]) for one in sessions if compare.is_number(row, one.name))
    least = max([min(longest, _KEY_CELLS), *numbers])
    return Column(
        key=row.key,
        title=row.title,
        title_within=lambda cells: fit_middle(row.title, cells),
        cell=lambda session, _: shown[session.name],
        colour=lambda session: "green" if session.name in row.best else "",
        shrinks_to=least,
        least=least,
    )


def _columns(
    title: str, sessions: Sequence[Session], rows: Sequence[Row]
) -> tuple[Column[Row], ...]:
    from nsml.common.text import fit_middle, width
    from nsml.view import compare
    from nsml.view.compare import aligned
    from nsml.view.sessions import SIMULATED_SHORT

    room_of_name = _room_to_tell_apart([session.name for session in sessions])

    def column(session: Session) -> Column[Row]:
        texts = aligned([compare.cell(row, session.name) for row in rows])
        shown = dict(zip(map(id, rows), texts, strict=True))
        behind = f" ({SIMULATED_SHORT})" if session.simulated else ""
        numbers = (width(shown[id(row)]) for row in rows if compare.is_number(row, session.name))
        least = max([min(room_of_name, width(session.name)) + width(behind), *numbers])
        return Column(
            key=session.name,
            title=session.name + behind,
            title_within=lambda cells: fit_middle(session.name, cells - width(behind)) + behind,
            cell=lambda row, _: shown[id(row)],
            colour=lambda row: "green" if session.name in row.best else "",
            shrinks_to=max(_VALUE_CELLS, least),
            least=least,
        )

    return (
        Column(
            key="key",
            title=title,
            cell=lambda row, _: row.title,
            shrinks_to=_KEY_CELLS,
            is_name=True,
        ),
        *map(column, sessions),
    )


def _room_to_tell_apart(names: Sequence[str]) -> int:
    """Return the smallest width at which names cut in the middle still differ."""
    from nsml.common.text import fit_middle, width

    longest = max(map(width, names))
    rooms = range(min(_NAME_CELLS, longest), longest)
    return next(
        (n for n in rooms if len({fit_middle(name, n) for name in names}) == len(names)), longest
    )


def _tell_code(app: App, sessions: Sequence[Session], differing: Sequence[Row]) -> None:
    """Print the command that shows the code differences, if there are any to show."""
    from nsml.view import compare

    is_other = any(row.kind is compare.Kind.CODE and row.key == "code" for row in differing)
    if app.is_for_people and is_other and len(sessions) == _COMPARED:
        first, second = sessions
        app.say(visible(f"(how the code differs: nsml diff {first.name} {second.name} --code)"))


def _tell_same(app: App, rows: Sequence[Row]) -> None:
    """Print the common values."""
    from nsml.view import compare

    if rows:
        app.say(f"the same ({len(rows)}): {compare.same_text(rows)}")
