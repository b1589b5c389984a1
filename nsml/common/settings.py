"""A program's settings: one typed tree, read once from TOML files and the environment.

`nsml up` and `nsml join` may rewrite `agent.toml`. Administrators' settings belong in
`agent.site.toml` beside it, which nsml reads and never writes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from nsml.common.text_files import decoded, lines_of, toml_of

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


_LARGEST = (1 << 63) - 1
"""Limit of records and messages."""


class SettingsError(Exception):
    """Invalid settings; the message says which and why."""


def read_settings(
    kind: type[SettingsT],
    path: Path,
    environment: Mapping[str, str],
    *,
    prefix: str,
    may_be_absent: bool = False,
) -> SettingsT:
    """Read settings from the TOML file `path`, overridden by the site's file and by `environment`.

    The site's file is NAME.site.toml beside NAME.toml; the variable is `prefix` + the field's NAME.
    Relative paths are relative to the files' folder; a list in a variable is separated by commas.
    `may_be_absent`: a missing `path` counts as empty.

    Raises:
        SettingsError: a file cannot be read, or a value is missing, unknown or out of range.
    """
    texts = {} if may_be_absent and not path.exists() else {path: _text(path)}
    site = path.with_suffix(".site.toml")
    if site.exists():
        texts[site] = _text(site)
    document: dict[str, Any] = {}
    places: dict[str, str] = {}
    for file, text in texts.items():
        part = _document(file, text)
        document |= part
        places |= {name: _place(file, text, name) for name in part}
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name in document.keys() - fields.keys():
        raise SettingsError(f"{places[name]}: {_unknown(name, document[name], fields)}")
    for name, field in fields.items():
        variable = prefix + name.upper()
        if value := environment.get(variable):
            is_list = get_origin(field.type) is tuple
            document[name] = value.split(",") if is_list else value
            places[name] = f"{variable} in the environment"
        elif field.required and name not in document:
            raise SettingsError(f"{path}: {name} is missing; add: {name} = {_example(field.type)}")
    try:
        settings = msgspec.convert(document, kind, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        of_type = re.search(r"`\$\.(\w+)", str(error))
        if of_type:
            name = of_type[1]
            expected = _expected(fields[name].type)
            raise SettingsError(f"{places[name]}: {name} must be {expected}") from error
        of_value = re.match(r"(\w+):", str(error))
        where = places.get(of_value[1] if of_value else "", str(path))
        raise SettingsError(f"{where}: {error}") from error
    values = msgspec.structs.asdict(settings)
    _refuse_too_large(values, places)
    base = path.absolute().parent
    paths = {
        name: base / value.expanduser() for name, value in values.items() if isinstance(value, Path)
    }
    return msgspec.structs.replace(settings, **paths)


def _refuse_too_large(values: Mapping[str, Any], places: Mapping[str, str]) -> None:
    for name, value in values.items():
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise SettingsError(f"{places[name]}: {name} must be {_LARGEST} at most")


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error


def _document(path: Path, text: bytes) -> dict[str, Any]:
    try:
        return toml_of(text)
    except ValueError as error:
        is_bare = str(error).startswith(("Expected newline", "Invalid value"))
        advice = '; a text needs quotes: NAME = "TEXT"' if is_bare else ""
        raise SettingsError(f"{path} is not TOML: {error}{advice}") from error


def _place(path: Path, text: bytes, name: str) -> str:
    """Return the file, with the line that sets `name` (a key or a table) if found."""
    begins = re.compile(rf"""\s*(\[+\s*)?["']?{re.escape(name)}["']?\s*[=.\]]""")
    lines = enumerate(lines_of(decoded(text)), start=1)
    found = (number for number, line in lines if begins.match(line))
    number = next(found, None)
    return f"{path}, line {number}" if number else str(path)


def _unknown(name: str, value: Any, known: Iterable[str]) -> str:
    if isinstance(value, dict):
        return f"there is no table {name!r}: settings stand at the top of the file, without tables"
    nearest = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    meant = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
    return f"unknown setting {name!r}{meant}"


def _expected(kind: Any) -> str:
    """Describe the type of a setting, for people."""
    origin, of = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _expected(of[0])
    if origin is Literal:
        return f"one of {', '.join(map(_toml, of))}"
    if kind is bool:
        return "true or false"
    names = {int: "a whole number", float: "a number", tuple: "a list", dict: "a table"}
    return f"{names.get(origin or kind, 'a text in quotes')}, such as {_example(kind)}"


def _example(kind: Any) -> str:
    """Return an example value in TOML."""
    origin, of = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _example(of[0])
    if origin is tuple:
        return f"[{_example(of[0])}]"
    examples = {int: "1", float: "1.5", dict: '{ NAME = "VALUE" }', Path: '"/PATH"'}
    return examples.get(origin or kind, '"TEXT"')


def _toml(value: str) -> str:
    return f'"{value}"'


def _decode(kind: type, value: Any) -> Any:
    """Convert paths, which msgspec does not support."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"{value!r} is not a {kind.__name__}")
