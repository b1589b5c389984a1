"""dataset: visibility, description, tags of versions, and restoring removed versions."""

from __future__ import annotations

import click

from cli.app import App
from cli.arguments import DATASET, split_dataset, visibility_options
from cli.data.dataset_parts import part_messages, part_options
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_one
from nsml.common.shell import shell_line


@command(
    "share",
    reads=True,
    examples=[
        "nsml dataset share mnist --team",
        "nsml dataset share mnist --hide test/test_label",
        "nsml dataset share mnist --show test/test_label",
    ],
)
@click.argument("name", type=DATASET)
@visibility_options
@part_options(can_open=True)
@pass_app
def share(app: App, *, name: str, visibility: str | None, parts: dict[str, str]) -> None:
    """Choose who sees a dataset of yours, or parts of it.

    Holds for all versions. Sessions that wait start with what their user may read then; others keep what they have.
    """
    from nsml.common.text import visible
    from nsml.view.datasets import full_name, part_lines, record
    from nsml.view.sessions import visibility_named

    if visibility is None and not parts:
        raise click.UsageError(
            "say with whom: --public, --team or --private; or which files: --hide PATH"
        )
    words = [f"--{visibility}"] if visibility else []
    words += (
        word for path, flag in parts.items() for word in (f"--{flag.replace('_', '-')}", path)
    )
    plain = _all_versions(name, "share", *words)
    wanted = visibility_named(visibility) if visibility else None
    found = app.call(
        lambda client: client.datasets.update(plain, visibility=wanted, parts=part_messages(parts))
    )
    lines = [f"{full_name(found)} is {visibility}"] if visibility else []
    lines += map(visible, part_lines(found)) if parts else []
    write_one(app, record(found), lines)


@command(
    "describe",
    reads=True,
    examples=[
        "nsml dataset describe mnist 'handwritten digits, with a test split'",
        "nsml dataset describe mnist ''",
    ],
)
@click.argument("name", type=DATASET)
@click.argument("text")
@pass_app
def describe(app: App, *, name: str, text: str) -> None:
    """Set the description of a dataset of yours.

    '' removes it. Versions have messages of their own: nsml dataset push -m.
    """
    from nsml.view.datasets import full_name, record

    plain = _all_versions(name, "describe", text)
    found = app.call(lambda client: client.datasets.update(plain, description=text))
    words = "is described" if found.description else "has no description"
    write_one(app, record(found), [f"{full_name(found)} {words}"])


@command(
    "tag",
    reads=True,
    examples=["nsml dataset tag mnist@3 gold", "nsml dataset tag mnist@gold best"],
)
@click.argument("name", type=DATASET)
@click.argument("tag")
@pass_app
def tag(app: App, *, name: str, tag: str) -> None:
    """Name a version of a dataset of yours: NAME@TAG.

    Without @N its newest version. `nsml run -d NAME@TAG` uses it. A tag names one version; set
    again, it moves. Sessions keep the version that they were submitted with.
    """
    from nsml.view.datasets import record, reference

    plain, version, by_tag = split_dataset(name)
    answer = app.call(lambda client: client.datasets.tag(plain, tag, version, by_tag))
    found, before = answer.dataset, answer.version_before
    moved = f", no longer @{before}" if before not in {0, found.version} else ""
    write_one(
        app,
        {**record(found), "version_before": before or None},
        [f"{tag} is {reference(found)}{moved}"],
    )


@command(
    "untag",
    reads=True,
    examples=["nsml dataset untag mnist gold", "nsml dataset untag kim/mnist gold -j"],
)
@click.argument("name", type=DATASET)
@click.argument("tag")
@pass_app
def untag(app: App, *, name: str, tag: str) -> None:
    """Remove a tag of a dataset of yours. The version stays."""
    plain = _all_versions(name, "untag", tag)
    version = app.call(lambda client: client.datasets.untag(plain, tag))
    text = f"{plain}@{version} has no tag {tag} any more"
    write_one(app, {"name": plain, "tag": tag, "version": version}, [text])


@command(
    "restore",
    reads=True,
    examples=["nsml dataset restore mnist", "nsml dataset restore mnist@2"],
)
@click.argument("name", type=DATASET)
@pass_app
def restore(app: App, *, name: str) -> None:
    """Undo the last removal of a dataset, or of version @N.

    Versions come back with their numbers, and with the tags that no other version has got since.
    `nsml dataset versions NAME --removed` lists what can be restored.
    """
    from nsml.view.datasets import full_name, record

    plain, version, by_tag = split_dataset(name)
    if by_tag:
        raise CommandError(
            f"a removed version is named by its number, not by {by_tag!r}",
            code=ExitCode.USAGE,
            advice=f"nsml dataset versions {plain} --removed",
        )
    answer = app.call(lambda client: client.datasets.restore(plain, version))
    found = answer.dataset
    numbers = ", ".join(f"@{number}" for number in answer.versions)
    write_one(
        app,
        {**record(found), "restored": list(answer.versions)},
        [f"restored {full_name(found)}: {numbers}; the newest is @{found.version}"],
    )


def _all_versions(text: str, verb: str, *words: str) -> str:
    """Return the name of a dataset; CommandError if it names one version, for commands on all of them.

    `verb`, `words`: the command's, advised with the name alone.
    """
    name = split_dataset(text)
    if name.version or name.tag:
        raise CommandError(
            f"{text[:80]!r} names one version, and this changes the dataset",
            code=ExitCode.USAGE,
            advice=shell_line(["nsml", "dataset", verb, name.name, *words]),
        )
    return name.name
