"""Results in every format: tables for people, raw values for programs. The only output on stdout."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, TypeVar

from cli.app import App, Format
from cli.exits import CommandError, ExitCode
from nsml.common.text import escaped, visible
from nsml.view.tables import Column, Rendered, pick, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")
SCHEMA_VERSION = 1
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
"""Colours of things shown together, in their order."""


def write_list(
    app: App,
    items: Sequence[T],
    *,
    columns: Sequence[Column[T]],
    record: Callable[[T], dict[str, Any]],
    name: str = "name",
    none: str = "",
    blank: T | None = None,
    beside: Mapping[str, Any] | None = None,
    nsml: Sequence[Column[T]] = (),
) -> None:
    """Write resources in the chosen format.

    `name` is the field for `-o name`; `none` is the message to people instead of an empty table;
    `blank` is an example record if there are no items, so that a wrong --fields is still an error;
    `beside` is added next to the items in JSON and YAML, which are one document;
    `nsml` are the columns of NSML's own table, for users who chose its style.
    """
    if nsml and _in_nsml_style(app, items, nsml, record):
        return
    if app.is_for_people:
        table = rendered(app, items, columns)
        if none and not items:
            app.say(none)
            return
        for line in table.lines:
            app.write(line)
        if left_out := table.left_out_text(app.room):
            app.say(left_out)
        return
    if blank is not None and not items:
        _narrow(app, record(blank))
    _write_records(app, [record(item) for item in items], name, beside or {})


def _in_nsml_style(
    app: App,
    items: Sequence[T],
    columns: Sequence[Column[T]],
    record: Callable[[T], dict[str, Any]],
) -> bool:
    """Write NSML's table, or its bare JSON list, if that style is chosen; other formats, and --fields, are ours."""
    is_plain = app.format in {Format.TABLE, Format.JSON} and not app.flags.fields
    if not is_plain or not app.is_nsml_style:
        return False
    if app.format is Format.JSON:
        app.write(to_json([record(item) for item in items]))
        return True
    now, has_header = app.clock.time(), app.flags.has_header
    for line in render(columns, items, now=now, header=has_header).lines:
        app.write(line)
    return True


def _write_records(
    app: App, records: Sequence[Mapping[str, Any]], name: str, beside: Mapping[str, Any]
) -> None:
    if app.format is Format.NAME:
        for record in records:
            if record[name] is not None:
                _write_name(app, str(record[name]))
        return
    narrowed = [_narrow(app, record) for record in records]
    match app.format:
        case Format.JSON:
            app.write(to_json({"schema_version": SCHEMA_VERSION, **beside, "items": narrowed}))
        case Format.YAML:
            for line in to_yaml({"schema_version": SCHEMA_VERSION, **beside, "items": narrowed}):
                app.write(line)
        case Format.CSV:
            _write_csv(app, narrowed)
        case _:
            for item in narrowed:
                app.write(to_json({"schema_version": SCHEMA_VERSION, **item}))


def write_one(
    app: App, record: Mapping[str, Any], lines: Iterable[str], *, name: str = "name"
) -> None:
    """Write one resource: `lines` for people, the record for programs."""
    match app.format:
        case Format.TABLE | Format.WIDE:
            for line in lines:
                app.write_text(line)
        case Format.JSON:
            app.write(to_json({"schema_version": SCHEMA_VERSION, **_narrow(app, record)}))
        case Format.JSONL:
            write_line(app, record)
        case Format.YAML:
            for line in to_yaml({"schema_version": SCHEMA_VERSION, **_narrow(app, record)}):
                app.write(line)
        case Format.CSV:
            _write_csv(app, [_narrow(app, record)])
        case Format.NAME:
            _write_name(app, str(record[name]))


def _write_name(app: App, name: str) -> None:
    """Write the exact name for programs; on a terminal control sequences are made visible."""
    app.write(visible(name) if app.stdout.isatty() else name)


def write_line(app: App, record: Mapping[str, Any]) -> None:
    """Write one record as one line of JSON."""
    app.write(to_json({"schema_version": SCHEMA_VERSION, **_narrow(app, record)}))


def table_lines(app: App, items: Sequence[T], columns: Sequence[Column[T]]) -> Sequence[str]:
    """Return the lines of a table, following the flags."""
    return rendered(app, items, columns).lines


def rendered(
    app: App, items: Sequence[T], columns: Sequence[Column[T]], *, fits: bool = True
) -> Rendered:
    """Render a table, following the flags; also reports columns that do not fit the terminal.

    `fits`: False: a line for each row and all columns, however narrow the terminal is.
    """
    try:
        chosen = pick(columns, app.flags.fields, wide=app.format is Format.WIDE, items=items)
    except KeyError as error:
        raise _unknown_field(str(error.args[0]), [column.key for column in columns]) from error
    return render(
        chosen,
        items,
        now=app.clock.time(),
        room=app.room if fits else None,
        is_whole=app.format is Format.WIDE,
        header=app.flags.has_header,
        paint=app.painter,
    )


def to_json(value: Any) -> str:
    """Return strict JSON on one line: NaN and infinities, not valid in JSON, as strings.

    Text of any script stays readable, control characters are escaped: the value is the same.
    """
    import json

    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return escaped(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in {float("inf"), -float("inf")}):  # noqa: PLR0124 - NaN
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def to_yaml(value: Any, indent: int = 0) -> list[str]:
    """Return block YAML whose scalars are JSON, valid for every YAML reader."""
    space = " " * indent
    if isinstance(value, dict) and value:
        lines = []
        for key, item in value.items():
            if isinstance(item, (dict, list)) and item:
                lines.append(f"{space}{_scalar(key)}:")
                lines += to_yaml(item, indent + 2)
            else:
                lines.append(f"{space}{_scalar(key)}: {to_json(item)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for item in value:
            inner = to_yaml(item, indent + 2)
            lines.append(f"{space}- {inner[0].lstrip()}")
            lines += inner[1:]
        return lines
    return [space + to_json(value)]


def _scalar(key: str) -> str:
    return key if key.isidentifier() else to_json(key)


def _write_csv(app: App, records: Sequence[Mapping[str, Any]]) -> None:
    if not records:
        return
    import csv

    rows = [_flat(record) for record in records]
    writer = csv.writer(app.stdout, lineterminator="\n")
    columns = _csv_columns(records[0], rows)
    if app.flags.has_header:
        writer.writerow(map(visible, columns))
    for row in rows:
        writer.writerow([_csv_cell(row.get(column)) for column in columns])


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten a record: objects become columns such as `limits.shm_bytes`."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


def _csv_columns(record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return all columns of the rows, in the order of the record's fields; columns without values are kept."""
    found: dict[str, dict[str, None]] = {key: {} for key in record}
    for row in rows:
        for column in row:
            key = column if column in found else column.partition(".")[0]
            found[key][column] = None
    # An object in some rows is empty in the others.
    return [
        column
        for key, columns in found.items()
        for column in ([one for one in columns if one != key] or [key])
    ]


def _csv_cell(value: Any) -> str:
    """Return a list quoted for a shell; for lists of records, in full only in JSON, the count."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        if any(isinstance(one, (dict, list, tuple)) for one in value):
            return str(len(value))
        return visible(shlex.join(map(_csv_cell, value)))
    return visible(value) if isinstance(value, str) else str(value)


def _narrow(app: App, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with only the fields of --fields."""
    if not app.flags.fields:
        return dict(record)
    for field in app.flags.fields:
        if field not in record:
            raise _unknown_field(field, list(record))
    return {field: record[field] for field in app.flags.fields}


def _unknown_field(field: str, known: Sequence[str]) -> CommandError:
    from cli.group import near, to_try

    return CommandError(
        f"no such field: {field!r}",
        code=ExitCode.USAGE,
        why=f"there are {', '.join(known)}",
        advice=to_try("--fields", near(field.casefold(), known)),
    )
