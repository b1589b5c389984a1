"""dataset add: versions of files already on the nodes; and reading such versions in a client."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import DATASET, visibility_options
from cli.exits import CommandError, ExitCode
from cli.fetching import target_errors
from cli.group import command, pass_app
from cli.output import write_one
from cli.progress import Progress
from cli.sessions.file_names import files_text
from nsml.common.shell import shell_word

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nsml.client.calls import Client
    from nsml.content.in_place import Changes, ListedFile
    from nsml.v1.datasets_pb2 import CreateDatasetVersionResponse, Dataset


@command(
    "add",
    reads=True,
    examples=[
        "nsml dataset add imagenet --in-place /shared/imagenet",
        "nsml dataset add imagenet --in-place /shared/imagenet --public -m 2012",
    ],
)
@click.argument("name", type=DATASET)
@click.option(
    "--in-place",
    "path",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="PATH",
    help="A folder of a shared file system, by the path that nodes have, too.",
)
@visibility_options
@click.option("-m", "--message", default="", metavar="TEXT", help="Describe this version.")
@pass_app
def add(app: App, *, name: str, path: Path, visibility: str | None, message: str) -> None:
    """Make a shared folder a version of your dataset, without a copy.

    It is the newest version of NAME. All files are read once, here. When a session starts, its node compares sizes and times of all
    files, and the content of some: a changed file ends the session, and is named. Administrators
    add any folder, others those below the site's in_place_roots.
    """
    from nsml.client.uploads import made_of, push
    from nsml.common.units import size_text
    from nsml.content.in_place import LIST_NAME, MOST_LIST_BYTES, encode, look_at
    from nsml.content.listing import list_file
    from nsml.spec.in_place_paths import is_plain
    from nsml.v1.datasets_pb2 import CreateDatasetVersionRequest
    from nsml.view.datasets import record
    from nsml.view.sessions import visibility_named

    place = os.path.abspath(path)  # noqa: PTH100 - resolve() follows links
    if os.path.realpath(place) != place or not is_plain(place):
        raise CommandError(
            f"{place} leads through a link",
            code=ExitCode.USAGE,
            why="nodes mount the folder itself",
            advice=f"nsml dataset add {name} --in-place {os.path.realpath(place)}",
        )
    request = CreateDatasetVersionRequest(
        name=name,
        message=message,
        visibility=visibility_named(visibility) if visibility else None,
        in_place=place,
    )
    app.call(lambda client: client.datasets.check(request))
    progress = Progress(app, "reading")
    try:
        files = look_at(Path(place), progress.update)
    finally:
        progress.close()
    request.in_place_files, request.in_place_bytes = len(files), sum(one.size for one in files)

    with TemporaryDirectory(prefix="nsml-add-") as folder:
        file = Path(folder, LIST_NAME)
        file.write_bytes(encode(files))
        listed = list_file(file, max_bytes=MOST_LIST_BYTES)

        async def make(client: Client) -> CreateDatasetVersionResponse:
            sent = await push(client, listed)
            request.digest = sent.digest
            return await made_of(
                client, sent.packed, lambda: client.datasets.create_version(request)
            )

        answer = app.call(make)
    made = answer.dataset
    if not made.in_place:
        raise CommandError(
            "the platform is of an older version: it knows no datasets in place",
            code=ExitCode.FAILED,
            advice=f"nsml dataset rm {made.owner}/{made.name}@{made.version} -y",
        )
    app.say(f"in place  {files_text(len(files))} {size_text(made.size_bytes)} at {place}")
    words = "is" if answer.created else "already is"
    text = f"Dataset {made.owner}/{made.name} {words} at version {made.version}"
    write_one(app, {**record(made), "created": answer.created}, [text])


async def listed_files(client: Client, found: Dataset) -> list[ListedFile]:
    """Return the files of a version in place, as they were when it was added."""
    from nsml.common.clock import in_thread
    from nsml.content.in_place import read_list

    async with list_of(client, found) as file:
        return await in_thread(lambda: list(read_list(file)))


@asynccontextmanager
async def list_of(client: Client, found: Dataset) -> AsyncIterator[Path]:
    """Download the file list of a version in place, as a file while the context lasts."""
    from nsml.client.content import download
    from nsml.content.in_place import LIST_NAME

    full = f"{found.owner}/{found.name}"
    with TemporaryDirectory(prefix="nsml-list-") as folder:
        place = Path(folder, "list")
        await download(
            client,
            found.digest,
            place,
            shown_by=lambda: client.datasets.get(full, found.version),
        )
        yield place / LIST_NAME


async def copy_in_place(
    client: Client, found: Dataset, target: Path, only: Sequence[str] = ()
) -> tuple[int, int, list[str]]:
    """Copy a version in place to the new folder `target`, from this machine's files; each is verified.

    `only`: copy these files and folders. Returns the number of files, of bytes, and the missing paths of `only`. Raises
    CommandError if this machine lacks the files or has others, and NotFound if nothing of `only` exists.
    """
    from nsml.client.errors import NotFound
    from nsml.common.clock import in_thread
    from nsml.content.errors import ChangedInPlace, ContentError, TargetExists
    from nsml.content.in_place import copy
    from nsml.content.tree_parts import Chosen

    full = f"{found.owner}/{found.name}"
    listed = await listed_files(client, found)
    chosen = Chosen(only)
    if only:
        listed = [one for one in listed if chosen.has(one.path)]
    if only and not listed:
        raise NotFound(f"there is no file or folder {', '.join(map(repr, only[:5]))} in {full}")
    try:
        with target_errors(target):
            await in_thread(lambda: copy(Path(found.in_place), listed, target))
    except TargetExists:
        raise
    except ChangedInPlace as error:
        raise CommandError(
            f"{full}@{found.version} is in place at {found.in_place}, and cannot be copied",
            reason="IN_PLACE",
            why=str(error),
            advice=f"nsml dataset add {full} --in-place {shell_word(found.in_place)}"
            "    as its owner, makes a version of what is there now\n"
            f"nsml run -d {full}@{found.version} --allow-changed ...    reads it as it is",
        ) from error
    except ContentError as error:
        raise CommandError(
            f"{full}@{found.version} is in place at {found.in_place}, and cannot be copied",
            reason="IN_PLACE",
            why=str(error),
            advice=f"nsml run -d {full}@{found.version} ...    reads it on the nodes",
        ) from error
    return len(listed), sum(one.size for one in listed), chosen.absent()


async def changed_in_place(client: Client, found: Dataset) -> Changes | None:
    """Return the changes of a version in place; None on a machine without its folder."""
    from random import SystemRandom

    from nsml.common.clock import in_thread
    from nsml.content.in_place import changes

    source = Path(found.in_place)
    if not await in_thread(source.is_dir):
        return None
    listed = await listed_files(client, found)
    return await in_thread(lambda: changes(source, listed, SystemRandom()))
