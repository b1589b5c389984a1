"""What a dataset that is pushed with a leaderboard lacks, and the next step."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsml.common.shell import shell_line
from nsml.content.tree_parts import part_of
from nsml.spec.competition_datasets import (
    EVALUATION,
    LABELS,
    LOADER,
    TEST,
    TEST_SUBMIT,
    may_have_labels,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from cli.app import App
    from nsml.content.listing import FolderFiles
    from nsml.v1.datasets_pb2 import Dataset, DatasetPart

_TEST_LABELS: Final = f"{TEST}/{LABELS}"
_PUBLIC_ROWS: Final = f"{TEST}/public_rows"
_NAMED: Final = 3
"""Open labels that are named."""
LOADERS: Final = ("test_data_loader", "feed_infer")
"""Functions of the loader, of which submissions need one."""


def say_open_labels(app: App, made: Dataset, listed: FolderFiles) -> None:
    """Warn about test labels that everybody with access to the pushed dataset reads."""
    from nsml.common.text import visible
    from nsml.v1.datasets_pb2 import PART_ACCESS_OPEN

    kept = {one.path for one in made.parts if one.path and one.access != PART_ACCESS_OPEN}
    every = {one.path for one in made.parts}
    found = _open_labels((one.path for one in listed.files), every, kept)
    for labels in found[:_NAMED]:
        app.say(f"note: {visible(labels)} is open: everybody with access to {made.name} reads it")
        hiding = ["nsml", "dataset", "share", made.name, "--hide", labels]
        app.say(f"  try: {visible(shell_line(hiding))}    or push with -l")
    if len(found) > _NAMED:
        app.say(f"note: {len(found) - _NAMED:,} more with test labels are open: push with -l")


def _open_labels(files: Iterable[str], parts: Collection[str], kept: Collection[str]) -> list[str]:
    """Return the files and folders that are named as test labels, and are open.

    Args:
        files: paths of all files.
        parts: paths of all parts of the dataset.
        kept: paths of the parts that are not open.
    """
    found: dict[str, None] = {}
    for path in (one for one in files if LABELS in one):
        steps = path.split("/")
        named = [i for i, step in enumerate(steps) if step.startswith(LABELS)]
        if named and part_of(path, parts) not in kept:
            found["/".join(steps[: named[0] + 1])] = None
    return list(found)


def say_next_step(app: App, made: Dataset, listed: FolderFiles) -> None:
    """Say what the board of a pushed dataset lacks for submissions; without anything missing, what comes next."""
    missing = list(_missing(made, listed))
    has_dry_runs = any(one.path.startswith(f"{TEST_SUBMIT}/") for one in listed.files)
    no_dry_runs = f"there is no folder {TEST_SUBMIT}: dry runs (nsml submit -t) are refused"
    for note in [*missing, *([] if has_dry_runs else [no_dry_runs])]:
        app.say(f"note: {note}")
    if missing:
        app.say(f"  then: {shell_line(['nsml', *app.arguments])}")
        return
    setting = shell_line(["nsml", "board", "set", made.name])
    app.say(f"  next: {shell_line(['nsml', 'board', 'info', made.name])}    shows its board")
    app.say(f"        {setting} --limit 5/1d    limits submissions")
    app.say(f"        {setting} --min    if the score is an error: the least is the best")


def _missing(made: Dataset, listed: FolderFiles) -> Iterator[str]:
    by_path = {one.path: one for one in listed.files}
    if not any(map(_may_have_labels, made.parts)):
        yield f"there is no {_TEST_LABELS}: nothing can be submitted without labels in a part of their own"
    if EVALUATION not in by_path:
        yield f"there is no {EVALUATION} at the top: nothing can be submitted (-e FILE adds it)"
    if problem := _public_rows_problem(listed):
        yield f"submissions will fail: {problem}"
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


def _public_rows_problem(listed: FolderFiles) -> str:
    """Return why every evaluation would fail by the public rows; "" if none would, or there are none."""
    from nsml.evaluation import EvaluationError, read_public_rows

    by_path = {one.path: one for one in listed.files}
    files = [by_path.get(path) for path in (_PUBLIC_ROWS, _TEST_LABELS)]
    public, labels = (Path(listed.root, *one.parts) if one is not None else None for one in files)
    if public is None:
        return ""
    if labels is None:
        return f"{_PUBLIC_ROWS} has no {_TEST_LABELS}, a file"
    try:
        read_public_rows(str(public), str(labels))
    except EvaluationError as error:
        return str(error)
    return ""


def _may_have_labels(part: DatasetPart) -> bool:
    """Whether the platform takes a part of a pushed dataset for one with the labels of its test set."""
    from nsml.v1.datasets_pb2 import PART_ACCESS_OPEN

    is_kept = part.access != PART_ACCESS_OPEN and bool(part.file_count)
    return is_kept and bool(part.path) and may_have_labels(part.path)


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
