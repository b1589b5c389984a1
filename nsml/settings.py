"""A program's settings: one typed tree, read once from TOML files and the environment.

`agent.toml` may be written anew by `nsml up` and `nsml join`. What an administrator sets stands in
`agent.site.toml` beside it, which nsml reads and never writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec

from nsml.written import toml_of

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


class SettingsError(Exception):
    """Settings that cannot be used; the message says which and why."""


def read_settings(
    kind: type[SettingsT],
    path: Path,
    environment: Mapping[str, str],
    *,
    prefix: str,
    may_be_absent: bool = False,
) -> SettingsT:
    """The settings in the TOML file `path`, each overridden by the site's and by `environment`.

    The site's file is NAME.site.toml beside NAME.toml; the variable is `prefix` + the field's NAME.
    A relative path is meant from the files' folder; a list in a variable is separated by commas.
    `may_be_absent`: where there is no `path`, that is as if it were empty.

    Raises:
        SettingsError: a file cannot be read, or a value is missing, unknown or out of range.
    """
    document = {} if may_be_absent and not path.exists() else _document(path)
    named, site = str(path), path.with_suffix(".site.toml")
    if site.exists():
        document |= _document(site)
        named = f"{path} with {site.name}"
    variables = {field.name: prefix + field.name.upper() for field in msgspec.structs.fields(kind)}
    for field in msgspec.structs.fields(kind):
        if text := environment.get(variables[field.name]):
            is_list = get_origin(field.type) is tuple
            document[field.name] = text.split(",") if is_list else text
    try:
        settings = msgspec.convert(document, kind, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        # A file may have no such setting, or a sound one, where the environment has another.
        found = re.search(r"^(\w+):|`\$\.(\w+)", str(error))
        variable = variables.get((found[1] or found[2]) if found else "", "")
        where = f"{variable} in the environment" if environment.get(variable) else named
        raise SettingsError(f"{where}: {error}") from error
    base = path.absolute().parent
    paths = {
        name: base / value.expanduser()
        for name, value in msgspec.structs.asdict(settings).items()
        if isinstance(value, Path)
    }
    return msgspec.structs.replace(settings, **paths)


def _document(path: Path) -> dict[str, Any]:
    try:
        return toml_of(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error


def _decode(kind: type, value: Any) -> Any:
    """What msgspec does not know by itself: paths."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"{value!r} is not a {kind.__name__}")
