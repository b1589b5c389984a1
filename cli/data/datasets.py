"""dataset: push, pull, ls, info; other subcommands are in the files beside this one."""

from __future__ import annotations

import os
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cli.app import App
from cli.arguments import DATASET, SIZE, split_dataset, visibility_options
from cli.data.dataset_board import board
from cli.data.dataset_changes import describe, restore, share, tag, untag
from cli.data.dataset_lineage import lineage
from cli.data.dataset_parts import (
    check_parts,
    hidden_parts,
    part_messages,
    part_options,
    part_path,
    test_folders,
)
from cli.data.dataset_removal import rm
from cli.data.dataset_versions import diff, search, versions
from cli.data.in_place import add, copy_in_place
from cli.data.leaderboards import say_next_step, say_open_labels
from cli.exits import CommandError, ExitCode
from cli.fetching import fetched, fetching_to, pull_options, tell_files
from cli.group import Group, command, not_there_yet, pass_app
from cli.output import write_list, write_one
from cli.sessions.file_names import files_text
from cli.sessions.upload import list_files, made_of, send, stat_cache
from cli.sessions.written_files import remember_pushed
from nsml.common.shell import shell_line, shell_word
from nsml.spec.competition_datasets import EVALUATION, LOADER, TEST, TEST_SUBMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.client.uploads import Uploaded
    from nsml.content.listing import FolderFiles
    from nsml.v1.datasets_pb2 import CreateDatasetVersionResponse, Dataset


@click.group("dataset", cls=Group)
def dataset() -> None:
    """Datasets: names for immutable, numbered versions of files."""


def _only_one(_: click.Context, __: click.Parameter, files: tuple[str, ...]) -> str | None:
    if len(files) > 1:
        raise click.UsageError("-e names one file: a dataset has one evaluation.py")
    return next(iter(files), None)


@command(
    "push",
    reads=True,
    examples=[
        "nsml dataset push mnist ./mnist",
        "nsml dataset push mnist ./mnist --team --message 'with test split'",
        "nsml dataset push mnist ./mnist --hide test/test_label",
        "nsml dataset push mnist ./mnist --under train/mnist",
        "nsml dataset push -f -l -e evaluation.py mnist ./mnist",
    ],
)
@click.argument("name")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@visibility_options
@click.option("-m", "--message", default="", metavar="TEXT", help="Describe this version.")
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Exclude files, as in .nsmlignore."
)
@click.option("--max-size", type=SIZE, metavar="SIZE", help="Refuse a larger folder.")
@click.option("--rehash", is_flag=True, help="Read all files, also unchanged ones.")
@part_options()
@click.option(
    "--under",
    metavar="PATH",
    help="Put the files below a folder of the dataset, such as train/mnist.",
)
@click.option(
    "-l",
    "--leaderboard",
    is_flag=True,
    help="Hide test and test_submit, as NSML does for a leaderboard.",
)
@click.option(
    "-e",
    "--evaluation",
    multiple=True,
    callback=_only_one,
    metavar="FILE",
    help="As -l, with FILE as evaluation.py at the top; it may lie outside of PATH.",
)
@click.option(
    "-f",
    "--force",
    is_flag=True,
    help="As in NSML: put a folder without train and test below train/FOLDER.",
)
@click.option("-v", "--verbose", is_flag=True, help="List the files, with their sizes.")
@not_there_yet("--dry-run", is_flag=True)
@not_there_yet("--jobs")
@pass_app
def push(
    app: App,
    *,
    name: str,
    path: Path,
    visibility: str | None,
    message: str,
    exclude: tuple[str, ...],
    max_size: int | None,
    rehash: bool,
    parts: dict[str, str],
    under: str | None,
    leaderboard: bool,
    evaluation: str | None,
    force: bool,
    verbose: bool,
) -> None:
    """Upload PATH as the newest version of your dataset NAME.

    PATH is a folder or one file. Only new content is sent. Everybody with access to the dataset reads
    all of it, except hidden parts. Parts stay hidden in all versions.

    Programs written for NSML look for a plain folder below train/FOLDER: -f puts it there, and --under anywhere else.
    Nothing is overwritten: a push makes a new version.
    """
    from nsml.common.text import visible
    from nsml.common.units import size_text
    from nsml.v1.datasets_pb2 import CreateDatasetVersionRequest
    from nsml.view.datasets import part_lines, record
    from nsml.view.sessions import visibility_named

    wanted = visibility_named(visibility) if visibility else None
    request = CreateDatasetVersionRequest(
        name=name, message=message, visibility=wanted, parts=part_messages(parts)
    )
    app.call(lambda client: client.datasets.check(request))
    cache = stat_cache(app, rehash=rehash)
    listed = _list(app, path, exclude, max_size)
    plain = _plain_folder(path, listed) if under is None else ""
    listed = _under(listed, (plain if force else "") or under)
    if evaluation is not None:
        listed = _with_evaluation(app, listed, path, evaluation)
    files = [file.path for file in listed.files]
    check_parts(parts, files)
    has_board = leaderboard or evaluation is not None
    hidden = dict.fromkeys(_test_folders(name, files) if has_board else (), "hide")
    del request.parts[:]
    request.parts.extend(part_messages({**hidden, **parts}))
    if verbose:
        for file in listed.files:
            app.say(f"{size_text(file.size):>10}  {visible(file.path)}")

    async def make(client: Client) -> tuple[Uploaded, CreateDatasetVersionResponse, bool]:
        bases = await _version_before(client, name)
        sent = await send(app, client, listed, cache=cache, bases=bases)
        request.digest = sent.digest
        answer = await made_of(
            app, client, sent.packed, lambda: client.datasets.create_version(request), cache=cache
        )
        return sent, answer, not bases

    try:
        sent, answer, is_first = app.call(make)
    except KeyboardInterrupt:
        raise CommandError(
            "interrupted",
            code=ExitCode.INTERRUPTED,
            why=f"{name} has perhaps got its version already"
            if request.digest
            else "no version was made; what was sent is kept for now, and not sent again",
            advice=shell_line(["nsml", *app.arguments]),
        ) from None
    made = answer.dataset
    remember_pushed(app, path)
    app.say(
        f"packing   {files_text(len(listed.files))} {size_text(sent.packed.manifest.size)}"
        f" · sent {files_text(sent.files_sent)} {size_text(sent.bytes_sent)}"
    )
    if plain and (force or is_first):
        _tell_place(app, plain, name, path, is_there=force)
    if message and not answer.created:
        app.say("note: no new version: nothing changed; -m is ignored")
        app.say(f"  try: nsml dataset describe {shell_line([name, message])}    of all versions")
    words = "is" if answer.created else "already is"
    text = f"Dataset {made.owner}/{made.name} {words} at version {made.version}"
    for line in part_lines(made):
        app.say(f"          {visible(line)}")
    write_one(app, {**record(made), "created": answer.created}, [text])
    say_open_labels(app, made, listed)
    if has_board:
        say_next_step(app, made, listed)


def _plain_folder(path: Path, listed: FolderFiles) -> str:
    """Return where NSML puts a folder without its layout; "" for one with it, and for a file."""
    if not path.is_dir() or not _OF_NSML.isdisjoint(one.path.split("/")[0] for one in listed.files):
        return ""
    return f"train/{Path(normpath(path.absolute())).name or 'data'}"


def _tell_place(app: App, plain: str, name: str, path: Path, *, is_there: bool) -> None:
    from nsml.common.text import visible

    if is_there:
        app.say(f"note: the files are below {visible(plain)} in the dataset, as in NSML")
        return
    app.say(f"note: programs written for NSML look for the files below {visible(plain)}")
    line = shell_line(["nsml", "dataset", "push", name, str(path), "--under", plain])
    app.say(f"  try: {line}")


def _under(listed: FolderFiles, folder: str | None) -> FolderFiles:
    """Move the files below a folder of the dataset."""
    from nsml.content.errors import PathRefused
    from nsml.content.paths import split_path

    if folder is None:
        return listed
    above = part_path(folder)
    try:
        for file in listed.files:
            split_path(f"{above}/{file.path}")
    except PathRefused as error:
        raise CommandError(
            f"no files can be below {folder!r} in a dataset",
            code=ExitCode.USAGE,
            why=error.reason,
            advice="--under train/mnist    for example",
        ) from error
    files = tuple(replace(file, path=f"{above}/{file.path}") for file in listed.files)
    return replace(listed, files=files)


def _with_evaluation(app: App, listed: FolderFiles, path: Path, evaluation: str) -> FolderFiles:
    """Add `evaluation` to the files as evaluation.py at the top, from any path.

    Raises CommandError if it does not exist, or the folder has another one.
    """
    places = (Path(evaluation), path / evaluation)
    file = next((one for one in places if os.path.isfile(one)), None)  # noqa: PTH113 - any text
    if file is None:
        raise CommandError(
            f"there is no file {evaluation!r}",
            code=ExitCode.USAGE,
            why=f"it is looked for here and in {path}",
            advice="-e FILE    with its path",
        )
    there = path / EVALUATION
    if any(one.path == EVALUATION for one in listed.files):
        if there.exists() and there.samefile(file):
            return listed
        raise CommandError(
            f"two files would be {EVALUATION} at the top of the dataset: {file} and {there}",
            code=ExitCode.USAGE,
            advice=f"-e {EVALUATION}    for the one in the folder",
        )
    from nsml.content.listing import with_file

    return with_file(
        listed, list_files(app, file, ignore=None, max_bytes=listed.max_bytes), EVALUATION
    )


def _test_folders(name: str, files: list[str]) -> list[str]:
    """Return the folders hidden by `-l`; CommandError if the folder lacks that layout."""
    from nsml.content.tree_parts import part_of

    found = test_folders(files)
    if not any(part_of(one, ("test",)) for one in found):
        raise CommandError(
            "there is no folder test",
            code=ExitCode.USAGE,
            why="a dataset with a leaderboard has test/test_data, and test/test_label, which -l hides",
            advice=f"nsml dataset push {shell_word(name)} PATH    for a dataset without",
        )
    return found


_NAMED: Final = 5
"""Paths named in an error."""
_OF_NSML: Final = frozenset({"train", TEST, TEST_SUBMIT, LOADER, EVALUATION})
"""Top-level names of a dataset in NSML's layout."""


async def _version_before(client: Client, name: str) -> tuple[str, ...]:
    """Return the digest of the newest version, whose data is not uploaded again; () if there is none."""
    from nsml.client.errors import InvalidRequest, NotFound

    try:
        return ((await client.datasets.get(name)).digest,)
    except (NotFound, InvalidRequest):
        return ()


def _list(app: App, path: Path, exclude: tuple[str, ...], max_size: int | None) -> FolderFiles:
    from nsml.common.text import visible
    from nsml.content.errors import TooLarge
    from nsml.content.ignore import DEFAULT_DATASET_IGNORES, rules_for
    from nsml.content.manifest import DEFAULT_LIMITS

    if exclude and path.is_file():
        app.say(f"note: --exclude leaves files out of a folder, and {visible(str(path))} is a file")
    folder = path.parent if path.is_file() else path
    rules = rules_for(folder, defaults=DEFAULT_DATASET_IGNORES, exclude=exclude)
    try:
        return list_files(app, path, ignore=rules, max_bytes=max_size or DEFAULT_LIMITS.bytes)
    except TooLarge as error:
        raise CommandError(
            str(error),
            reason="FOLDER_TOO_LARGE",
            advice="--exclude PATTERN    to leave out what is not needed\n"
            "--max-size SIZE      to send it all the same",
        ) from error


@command(
    "ls",
    reads=True,
    examples=[
        "nsml dataset ls",
        "nsml dataset ls 'kin_*'",
        "nsml dataset ls -j",
        "nsml dataset ls --removed",
    ],
)
@click.argument("glob", required=False, default="")
@click.option(
    "--removed", is_flag=True, help="List removed versions that you can restore, and until when."
)
@pass_app
def ls(app: App, *, glob: str, removed: bool) -> None:
    """List the datasets that you may use. GLOB filters by name."""
    from nsml.v1 import datasets_pb2
    from nsml.view import datasets as view
    from nsml.view import nsml_style

    if removed:
        write_list(
            app,
            app.call(lambda client: client.datasets.removed(glob)),
            columns=view.REMOVED_COLUMNS,
            record=view.version_record,
            none="nothing that you can restore",
            blank=datasets_pb2.Dataset(),
        )
        return
    found = app.call(lambda client: client.datasets.every(glob))
    write_list(
        app,
        found,
        columns=view.COLUMNS,
        record=view.record,
        none="no datasets yet · nsml dataset push NAME PATH",
        blank=datasets_pb2.Dataset(),
        nsml=nsml_style.DATASETS,
    )


@command(
    "info", reads=True, examples=["nsml dataset info mnist", "nsml dataset info kim/mnist@2 -j"]
)
@click.argument("name", type=DATASET)
@pass_app
def info(app: App, *, name: str) -> None:
    """Show one dataset, or with @N or @TAG one version of it."""
    from nsml.common.text import visible
    from nsml.view.dataset_lineage import made_from_text
    from nsml.view.datasets import COLUMNS, part_lines, record, use_record, uses_text

    answer = app.call(lambda client: client.datasets.look(*split_dataset(name)))
    found, is_told = answer.dataset, answer.HasField("use")
    cells = {column.title: column.cell(found, app.clock.time()) for column in COLUMNS}
    del cells["Parts"]  # each has a line
    if found.description and found.message:
        cells["Message"] = found.message
    if found.HasField("lineage"):
        cells["Made by"] = made_from_text(found)
    if is_told:
        cells["Used by"] = uses_text(answer.use)
    lines = [f"{title:<15}{visible(cell)}" for title, cell in cells.items() if cell]
    titles = ("Parts", *("" for _ in found.parts))
    lines += [
        f"{title:<15}{visible(line)}"
        for title, line in zip(titles, part_lines(found), strict=False)
    ]
    use = use_record(answer.use) if is_told else None
    write_one(app, {**record(found), "use": use}, lines)


@command(
    "pull",
    reads=True,
    examples=[
        "nsml dataset pull mnist",
        "nsml dataset pull kim/mnist@2 ~/data",
        "nsml dataset pull mnist --only test --only classes.txt",
    ],
)
@click.argument("name", type=DATASET)
@click.argument("path", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "--only", multiple=True, metavar="PATH", help="Only this file or folder of it; may be repeated."
)
@pull_options
@pass_app
def pull(
    app: App, *, name: str, path: Path, only: tuple[str, ...], force: bool, verbose: bool
) -> int:
    """Fetch a dataset to PATH/NAME.

    Without @N or @TAG its newest version. Every file is verified by its digest. An existing folder is left alone: -f
    replaces it; with --only, -f replaces only those paths.
    Hidden parts come with it for the owner and administrators alone. Files keep their paths with --only; exit code 9
    if only some of its paths are there, and 5 if none is.
    """
    from nsml.client.content import download
    from nsml.client.errors import NotFound
    from nsml.common.text import visible
    from nsml.common.units import size_text
    from nsml.spec.folders import folder_name
    from nsml.view.datasets import record

    wanted = split_dataset(name)
    paths = tuple(dict.fromkeys(map(part_path, only)))
    absent: list[str] = []

    async def fetch(
        client: Client, progress: Callable[[Transfer], None]
    ) -> tuple[Dataset, Path, int, int]:
        found = await client.datasets.get(*wanted)
        full = f"{found.owner}/{found.name}"
        target = path / folder_name(found.name)
        with fetching_to(path, target, replaces=force, only=paths) as root:
            place = root / target.name
            if found.in_place:
                files, size, missing = await copy_in_place(client, found, place, paths)
                absent.extend(missing)
                return found, target, files, size
            try:
                extent = await download(
                    client,
                    found.digest,
                    place,
                    progress=progress,
                    shown_by=lambda: client.datasets.get(full, found.version),
                    below=paths,
                    absent=absent.append,
                )
            except NotFound as error:
                _refuse_hidden(found, name, paths, error, is_all=len(absent) == len(paths))
                raise
        if not paths:
            return found, target, found.file_count, found.size_bytes
        return found, target, extent.files, extent.size

    found, target, files, size = fetched(app, path, fetch)
    remember_pushed(app, target)
    if verbose:
        tell_files(app, target)
    app.say(
        f"{'part of ' if paths else ''}version {found.version} of {found.owner}/{found.name}:"
        f" {files_text(files)} ({size_text(size)})"
    )
    withheld = hidden_parts(found, paths)
    for one in absent:
        if not hidden_parts(found, [one]):
            app.say(f"note: there is no file {visible(one)} in it, and none below it")
    if withheld:
        app.say(f"not included, hidden by the owner: {visible(', '.join(withheld))}")
    facts = {**record(found), "path": str(target)}
    if paths:
        facts |= {"only": list(paths), "not_there": absent, "fetched_files": files}
    write_one(app, facts, [str(target)], name="path")
    return ExitCode.PARTLY if absent else ExitCode.OK


def _refuse_hidden(
    found: Dataset, name: str, paths: Collection[str], error: Exception, *, is_all: bool
) -> None:
    """Raise CommandError if none of the paths was there because they are hidden."""
    if paths and is_all and (hidden := hidden_parts(found, paths)):
        raise CommandError(
            f"{', '.join(hidden[:_NAMED])} of {found.owner}/{found.name} is hidden by the owner",
            code=ExitCode.NOT_FOUND,
            why="hidden parts can be pulled by the owner and administrators alone",
            advice=f"nsml dataset info {shell_word(name)}    shows the parts, and who reads them",
        ) from error


dataset.add_command(push)
dataset.add_command(add)
dataset.add_command(pull)
for each in (ls, search, info, board, versions, lineage, diff, share, describe, tag, untag):
    dataset.add_command(each)
for each in (rm, restore):
    dataset.add_command(each)
