"""What a dataset that is pushed with a leaderboard lacks, and the next step."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsml.common.shell import shell_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.app import App
    from nsml.content.listing import FolderFiles

EVALUATION: Final = "evaluation.py"
LOADER: Final = "data_loader.py"
LOADERS: Final = ("test_data_loader", "feed_infer")
"""Functions of the loader, of which submissions need one."""


def say_next_step(app: App, name: str, listed: FolderFiles) -> None:
    """Say what the board of a pushed dataset lacks for submissions; without anything missing, what comes next."""
    missing = list(_missing(listed))
    for note in missing:
        app.say(f"note: {note}")
    if missing:
        app.say(f"  then: {shell_line(['nsml', *app.arguments])}")
    else:
        app.say(f"  next: {shell_line(['nsml', 'board', 'info', name])}    shows its board")
        app.say(
            f"        {shell_line(['nsml', 'board', 'set', name])} --limit 5/1d    limits submissions"
        )


def _missing(listed: FolderFiles) -> Iterator[str]:
    by_path = {one.path: one for one in listed.files}
    if EVALUATION not in by_path:
        yield f"there is no {EVALUATION} at the top: nothing can be submitted (-e FILE adds it)"
    if LOADER not in by_path:
        yield f"there is no {LOADER} at the top: submissions fail without {' or '.join(LOADERS)}"
        return
    source = Path(listed.root, *by_path[LOADER].parts).read_bytes()
    try:
        names = defined_names(source)
    except (SyntaxError, ValueError) as error:
        yield f"{LOADER} is not valid Python, submissions will fail: {error}"
        return
    if names is not None and not names.intersection(LOADERS):
        yield f"{LOADER} defines neither {' nor '.join(LOADERS)}: submissions will fail"


def defined_names(source: bytes) -> set[str] | None:
    """Return the names that a module defines or imports anywhere; None: it imports all names of another one.

    Raises:
        SyntaxError, ValueError: it is not valid Python.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {one.asname or one.name for one in node.names}
    return None if "*" in names else names
