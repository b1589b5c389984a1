"""dataset: access to its parts, for `push` and `share`, and NSML's layout."""

from __future__ import annotations

from posixpath import normpath
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cli.exits import CommandError, ExitCode
from nsml._path_text import path_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nsml.v1.datasets_pb2 import Dataset, DatasetPart

F = TypeVar("F", bound="Callable[..., Any]")

TEST_FOLDERS: Final = ("test", "test/test_label", "test_submit", "test_submit/test_label")
"""Folders that NSML hides from training. Labels are separate parts: prediction reads the rest of the folder."""


def part_options(*, can_open: bool = False) -> Callable[[F], F]:
    """Add the flags of `parts`: a mapping of paths to their access; `can_open`: with --show."""

    def note(context: click.Context, parameter: click.Parameter, paths: tuple[str, ...]) -> None:
        parts: dict[str, str] = context.params.setdefault("parts", {})
        for path in map(part_path, paths):
            if parts.setdefault(path, str(parameter.name)) != parameter.name:
                raise click.UsageError(f"two flags name {path!r}, which has one right", context)

    def add(command: F) -> F:
        flags = {
            "hide": "Keep a file or folder of the dataset from all sessions; you can pull it.",
            "owner-only": "Keep it from sessions of other users.",
        }
        if can_open:
            flags["show"] = "Open it to everybody with access to the dataset."
        for flag, text in reversed(flags.items()):
            option = click.option(
                f"--{flag}",
                multiple=True,
                metavar="PATH",
                expose_value=False,
                callback=note,
                help=text,
            )
            command = option(command)
        return command

    return add


def part_path(text: str) -> str:
    """Normalize a typed path in a dataset: `./test/` is test."""
    path = path_text(text)
    return normpath(path) if path else path


def part_messages(parts: dict[str, str]) -> list[DatasetPart]:
    """Convert parts for a request."""
    from nsml.v1 import datasets_pb2 as pb

    access = {
        "hide": pb.PART_ACCESS_HIDDEN,
        "owner_only": pb.PART_ACCESS_OWNER,
        "show": pb.PART_ACCESS_OPEN,
    }
    return [pb.DatasetPart(path=path, access=access[flag]) for path, flag in sorted(parts.items())]


def check_parts(parts: Collection[str], files: Iterable[str]) -> None:
    """Raise CommandError for a part without files, before any is uploaded."""
    left = set(parts)
    for file in files:
        while file and left:
            left.discard(file)
            file = file.rpartition("/")[0]  # noqa: PLW2901 - the folders above it
    for path in sorted(left):
        raise CommandError(
            f"there is no file {path} to hide, and none below it",
            code=ExitCode.USAGE,
            why="a part is named by its path in the dataset",
            advice="--hide test/test_label    for example",
        )


def hidden_parts(found: Dataset, below: Collection[str] = ()) -> list[str]:
    """Return the parts hidden from the caller; `below`: only those that overlap these files and folders."""
    hidden = [one.path for one in found.parts if not one.digest]
    return [
        part
        for part in hidden
        if not below
        or any(
            f"{part}/".startswith(f"{one}/") or f"{one}/".startswith(f"{part}/") for one in below
        )
    ]


def test_folders(files: Collection[str]) -> list[str]:
    """Return NSML's folders that the dataset has."""
    return [
        folder
        for folder in TEST_FOLDERS
        if any(file == folder or file.startswith(f"{folder}/") for file in files)
    ]
