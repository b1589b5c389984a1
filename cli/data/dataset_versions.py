"""dataset: search, versions, and differences between two versions."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from cli.app import App
from cli.arguments import DATASET, WholeRange, split_dataset
from cli.data.in_place import list_of
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_list, write_one

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from nsml.client.calls import Client
    from nsml.content.manifest import EntryLike
    from nsml.content.tree_diff import TreeDiff
    from nsml.v1.datasets_pb2 import Dataset

_GLOB: Final = frozenset("*?[")
_LISTED: Final = 1_000
"""Default limit of the files listed by `diff`."""


@command(
    "search",
    reads=True,
    examples=[
        "nsml dataset search speech korean",
        "nsml dataset search 'kin_*'",
        "nsml dataset search gold -j",
    ],
)
@click.argument("words", nargs=-1, required=True)
@pass_app
def search(app: App, *, words: tuple[str, ...]) -> None:
    """Find datasets that you may use by words.

    Each word must occur in the name, the description, the newest version's message or its tags. A
    pattern, with * or ?, fits the name.
    """
    from nsml.v1 import datasets_pb2
    from nsml.view import datasets as view
    from nsml.view import nsml_style

    globs = [word for word in words if _GLOB.intersection(word)]
    if len(globs) > 1:
        raise CommandError(
            "one pattern at a time", code=ExitCode.USAGE, advice=f"nsml dataset search {globs[0]!r}"
        )
    plain = [word for word in words if word not in globs]
    found = app.call(lambda client: client.datasets.every("".join(globs), words=plain))
    write_list(
        app,
        found,
        columns=view.COLUMNS,
        record=view.record,
        none="no dataset that you may use has all of these words",
        blank=datasets_pb2.Dataset(),
        nsml=nsml_style.DATASETS,
    )


@command(
    "versions",
    reads=True,
    examples=["nsml dataset versions mnist", "nsml dataset versions kim/mnist --removed -j"],
)
@click.argument("name", type=DATASET)
@click.option(
    "--removed", is_flag=True, help="Also list removed versions that can still be restored."
)
@pass_app
def versions(app: App, *, name: str, removed: bool) -> None:
    """List the versions of a dataset, the newest first."""
    from nsml.v1 import datasets_pb2
    from nsml.view import datasets as view

    plain = _name_alone(name)
    found = app.call(lambda client: client.datasets.versions(plain, with_removed=removed))
    write_list(
        app,
        found,
        columns=view.VERSION_COLUMNS,
        record=view.version_record,
        blank=datasets_pb2.Dataset(),
    )


def _name_alone(text: str) -> str:
    """Return the name of a dataset; CommandError if it names a version."""
    name = split_dataset(text)
    if name.version or name.tag:
        raise CommandError(
            f"{text[:80]!r} names one version",
            code=ExitCode.USAGE,
            advice=f"nsml dataset versions {name.name}\nnsml dataset info {text}",
        )
    return name.name


@command(
    "diff",
    reads=True,
    examples=[
        "nsml dataset diff mnist@1 mnist@2",
        "nsml dataset diff mnist@1",
        "nsml dataset diff mnist",
        "nsml dataset diff kim/mnist@gold lee/mnist -j",
    ],
)
@click.argument("before", type=DATASET)
@click.argument("after", type=DATASET, required=False)
@click.option(
    "--limit",
    type=WholeRange(0),
    default=_LISTED,
    show_default=True,
    metavar="N",
    help="List at most N files; sums count all of them.",
)
@pass_app
def diff(app: App, *, before: str, after: str | None, limit: int) -> None:
    """Compare the files of two versions.

    Lists added, removed, changed and renamed files.
    Without AFTER the newest version of the same dataset; NAME alone shows what its last push
    changed. The files themselves are not fetched: versions in place are compared as they were when they were added.
    """
    from nsml.view import datasets as view

    old, new, found = app.call(lambda client: _compare(client, before, after, limit))
    app.say(f"{view.reference(old)} -> {view.reference(new)}")
    write_one(app, view.diff_record(old, new, found), view.change_lines(found))


async def _compare(
    client: Client, before: str, after: str | None, limit: int
) -> tuple[Dataset, Dataset, TreeDiff]:
    """Return the two versions and their differences; manifests are read from files, to save memory."""
    from nsml.content.tree_diff import tree_diff

    old, new = await _pair(client, before, after)
    if bool(old.in_place) != bool(new.in_place):
        raise CommandError(
            "a version in place cannot be compared with one that is not",
            why="the digests of its list are of whole files, and those of others of parts of files",
            advice=f"nsml dataset versions {new.owner}/{new.name}",
        )
    async with _files(client, old) as one, _files(client, new) as other:
        return old, new, tree_diff(one, other, most=limit)


@asynccontextmanager
async def _files(client: Client, one: Dataset) -> AsyncIterator[Iterable[EntryLike]]:
    """Open the files of a version, by path; of one in place as they were when it was added."""
    from nsml.client.content import open_tree
    from nsml.content.in_place import entries_of, read_list

    if one.in_place:
        async with list_of(client, one) as file:
            yield entries_of(read_list(file))
        return
    again = partial(client.datasets.get, f"{one.owner}/{one.name}", one.version)
    async with open_tree(client, one.digest, shown_by=again) as tree:
        yield tree.entries


async def _pair(client: Client, before: str, after: str | None) -> tuple[Dataset, Dataset]:
    first = split_dataset(before)
    if after is not None:
        return await client.datasets.get(*first), await client.datasets.get(*split_dataset(after))
    if first.version or first.tag:
        return await client.datasets.get(*first), await client.datasets.get(first.name)
    newest = await client.datasets.versions(first.name, limit=2)
    if len(newest) < 2:
        raise CommandError(
            f"{before} has one version only, and nothing to compare it with",
            advice=f"nsml dataset info {first.name}",
        )
    return newest[1], newest[0]
