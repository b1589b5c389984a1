"""Reads what a `setup.py` requires, as a syntax tree and without running it. Standard library only.

As a program, with the file as its argument, it says so as JSON: [lines, notes]. A parser of a whole
language is a large target, and takes much memory and time for little text: the agent runs it in a sandbox.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path


def install_requires(setup: str) -> tuple[list[str], list[str]]:
    """What `setup(install_requires=...)` lists, as far as it is written out in the file, and notes."""
    notes: list[str] = []
    return _listed(setup, notes), notes


def _listed(setup: str, notes: list[str]) -> list[str]:
    try:
        tree = ast.parse(setup)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        notes.append(f"setup.py is not Python that can be read ({error}): it is left out")
        return []
    names = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node.func) != "setup":
            continue
        for keyword in node.keywords:
            if keyword.arg == "install_requires":
                return _strings(keyword.value, names, notes)
    return []


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _strings(value: ast.expr, names: dict[str, ast.expr], notes: list[str]) -> list[str]:
    if isinstance(value, ast.Name):
        value = names.get(value.id, value)
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        notes.append("setup.py computes its install_requires: it is left out")
        return []
    if isinstance(found, str):
        return found.split("\n")
    if isinstance(found, list | tuple) and all(isinstance(line, str) for line in found):
        return [line for line in found if line.strip()]
    notes.append("setup.py: install_requires is no list of strings: it is left out")
    return []


if __name__ == "__main__":
    print(json.dumps(install_requires(Path(sys.argv[1]).read_text(encoding="utf-8"))))  # noqa: T201
