"""What the product imports, or looks for, is declared: an installer brings nothing that happens to be here."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("cli", "controlplane", "nodeagent", "nsml", "tui")
GUESTS: Final = {"visdom", "tornado"}
"""What a site installs beside nsml, in an environment of its own."""
OF_PROGRAMS: Final = {"mlflow", "ray"}
"""Libraries of a user's program: its hooks in `nsml/_echo` run once it has imported them."""
NOT_INSTALLED: Final = {"_sha2", "_typeshed"}
"""The standard library's where it is there, and the type checker's."""
BROUGHT: Final = {
    "rich": "textual",
    "requests": "docker",
    "h11": "uvicorn",
    "werkzeug": "tensorboard",
}
"""What is met through another package, which needs it and shows it in its own interface."""


def _declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [
        *project["dependencies"],
        *chain.from_iterable(project["optional-dependencies"].values()),
    ]
    return {_name(one) for one in listed}


def _name(requirement: str) -> str:
    """Of a requirement or a distribution, as indexes spell it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; (]", requirement, maxsplit=1)[0]).lower()


def _wanted(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(
                func=ast.Name(id="find_spec") | ast.Attribute(attr="find_spec"),
                args=[ast.Constant(value=str(module))],
            ):
                yield module


def test_what_is_imported_is_declared() -> None:
    provided = packages_distributions()
    declared = _declared()
    missing: dict[str, str] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for module in _wanted(ast.parse(path.read_bytes())):
                top = module.partition(".")[0]
                if top in {*ROOMS, *GUESTS, *NOT_INSTALLED, *sys.stdlib_module_names}:
                    continue
                if top in OF_PROGRAMS and path.parent.name == "_echo":
                    continue
                names = {_name(one) for one in provided.get(top, ())}
                if not (names | {BROUGHT.get(top)}) & declared:
                    missing[top] = str(path.relative_to(ROOT))
    assert missing == {}


@pytest.mark.parametrize(("module", "by"), BROUGHT.items())
def test_what_another_package_brings(module: str, by: str) -> None:
    assert module in {_name(one) for one in requires(by) or ()}
