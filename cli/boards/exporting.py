"""board export: the entries of a board as a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App
from cli.arguments import one_of
from cli.atomic_file import check_folder_of, whole_file
from cli.boards.options import left_out_text, name_argument, selection_of, selection_options
from cli.group import command, pass_app
from cli.output import SCHEMA_VERSION, to_json
from cli.sessions.written_files import remember
from nsml.common.text import visible
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FORMULA: Final = (*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters that make spreadsheets evaluate a cell; the last four are their wide forms."""


@command(
    "export",
    examples=[
        "nsml board export digits -o digits.csv",
        "nsml board export digits --json | jq '.items[].score'",
        "nsml board export lee/digits --per none > all.csv",
    ],
)
@name_argument()
@one_of("form", csv="A row for each entry (default).", json="One JSON document.")
@click.option(
    "-o",
    "--out",
    "target",
    metavar="FILE",
    default="-",
    help="Write this file, when it is complete. Default: stdout (-).",
)
@selection_options
@pass_app
def export(
    app: App,
    *,
    name: str,
    form: str | None,
    target: str,
    mine: bool,
    per: str | None,
    first: int | None,
) -> None:
    """Write the entries of a board to a file.

    Best first, with all their fields. In CSV, a text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    from nsml.view import boards as view

    is_json = form == "json" or (form is None and target.lower().endswith(".json"))
    if target != "-":
        check_folder_of(Path(target))
    selection = selection_of(mine, per, first)
    answer = app.call(lambda client: client.boards.entries(name, selection))
    records = [view.entry_record(one) for one in answer.entries]
    if is_json:
        board = view.board_record(answer.board)
        text = to_json({"schema_version": SCHEMA_VERSION, "board": board, "items": records}) + "\n"
    else:
        from nsml.v1.boards_pb2 import BoardEntry

        text = csv_text(list(view.entry_record(BoardEntry())), records)
    if target == "-":
        app.stdout.write(text)
        app.stdout.flush()
    else:
        with whole_file(Path(target)) as file:
            file.write(text.encode())
        remember(app, [Path(target)])
    count = counted(len(records), "entry", "entries")
    more = left_out_text(answer, first)
    app.say(visible(f"{count} of {view.full_name(answer.board)} {more}".rstrip()))


def csv_text(columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as CSV with a header; texts are inert in spreadsheets."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_cell(record[column]) for column in columns])
    return file.getvalue()


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str():
            text = visible(value)
            return f"'{text}" if value.startswith(_FORMULA) else text
        case list():
            return " ".join(map(_cell, value))
        case _:
            return str(value)
