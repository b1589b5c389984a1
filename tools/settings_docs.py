"""Write docs/settings.md from the settings of the control plane and of the agent.

python -m tools.settings_docs            write it
python -m tools.settings_docs --check    fail when it is out of step
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from controlplane.startup import config as controlplane
from nodeagent import config as agent
from tools.wrap_docs import wrapped

TARGET: Final = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD: Final = """\
# All settings

Generated from the code by `make generate`.

Settings are lines of a TOML file (`--config FILE`). `NAME.site.toml` beside `NAME.toml` overrides it and is for the
administrator; environment variables override both: the prefix and the setting's name in capitals, lists with commas.
Relative paths are relative to the file's folder. `nsml-controlplane --check` and `nsml-agent --check` report everything
that is wrong with a file, without starting anything.
"""

_PROGRAMS: Final = (
    ("nsml-controlplane", controlplane.Settings, controlplane.ENVIRONMENT_PREFIX),
    ("nsml-agent", agent.Settings, agent.ENVIRONMENT_PREFIX),
)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for program, kind, prefix in _PROGRAMS:
        rows = "\n".join(_rows(kind))
        parts.append(
            f"## {program}\n\nEnvironment: `{prefix}...`. In brackets is the default.\n\n{rows}\n"
        )
    return wrapped("\n".join(parts))


def _rows(kind: type[msgspec.Struct]) -> Iterator[str]:
    meanings = _meanings(kind)
    for field in msgspec.structs.fields(kind):
        if field.name not in meanings:
            raise SystemExit(f"{kind.__module__}: {field.name} has no docstring")
        yield f"- **`{field.name}`** ({_default(field)}): {meanings[field.name]}"


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value in (None, "", (), {}):
        return "none"
    return f"`{_toml(value)}`"


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | Path():
            return f'"{value}"'
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return str(value)


def _meanings(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """The text below each field of a class, on one line."""
    [body] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.name} is out of step with the code: make generate")
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
