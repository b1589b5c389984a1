"""What the documents say of the code is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PLACE = re.compile(r"`([a-z_]+/[a-z_/]+\.py)` \(([^)]*)\)")


def decided() -> list[tuple[str, str]]:
    """File and function of every row of the table in architecture.md."""
    page = (ROOT / "docs/architecture.md").read_text()
    _, _, table = page.partition("## 8. Where it is decided")
    return [
        (file, name)
        for file, names in _PLACE.findall(table)
        for name in re.findall(r"`(\w+)`", names)
    ]


@pytest.mark.parametrize(("file", "name"), decided())
def test_what_decides_is_where_the_table_says(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {one.name for one in ast.walk(tree) if isinstance(one, functions)}


def test_the_table_is_read() -> None:
    assert len(decided()) > 25


def test_the_readme_begins_on_a_machine_without_gpus() -> None:
    """Its first run asks for a GPU."""
    readme = (ROOT / "README.md").read_text()
    first = next(line for line in readme.splitlines() if line.startswith("nsml up"))
    assert first.startswith("nsml up --simulate-gpus")
