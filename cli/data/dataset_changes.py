"""dataset: who sees it, what is said of it, tags of its versions, removal and what undoes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import DATASET, split_dataset, visibility_options
from cli.confirmation import confirmed, go_ahead, rule_of
from cli.data.dataset_parts import part_messages, part_options
from cli.exits import CommandError, ExitCode
from cli.group import command, pass_app
from cli.output import write_one
from nsml.common.shell import shell_line

if TYPE_CHECKING:
    from collections.abc import Collection

    from nsml.v1.datasets_pb2 import DatasetUse


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
    "rm",
    reads=True,
    examples=["nsml dataset rm mnist@2", "nsml dataset rm mnist -y"],
)
@click.argument("name", type=DATASET)
@confirmed
@pass_app
def rm(app: App, *, name: str) -> None:
    """Remove a dataset, or with @N one version of it.

    Says which sessions use it, and asks first. Running and queued sessions that use it continue.
    `nsml dataset restore` undoes it for a day, unless the platform is set otherwise. What the object
    store keeps for you is counted anew within minutes.
    """
    from nsml.common.units import counted, duration_text, moment
    from nsml.view.confirmation import Plan, Target
    from nsml.view.times import seconds_of

    answer = app.call(lambda client: client.datasets.look(*split_dataset(name)))
    found, full = answer.dataset, f"{answer.dataset.owner}/{answer.dataset.name}"
    plain = split_dataset(name)
    version = found.version if plain.version or plain.tag else 0
    target = Target(f"{full}@{version}" if version else full, found.owner)
    plan = Plan(
        rule=rule_of("dataset rm"),
        targets=[target],
        noun="dataset",
        loses=[] if version else ["all its versions"],
        user=app.call(lambda client: client.accounts.caller()).user.name,
        last=_known_by(found.tags if version else (), answer.use),
    )
    if not go_ahead(app, plan):
        return
    done = app.call(lambda client: client.datasets.remove(full, version))
    text = f"removed {counted(done.removed, 'version')} of {full}"
    if done.live_sessions:
        text += f"; {counted(done.live_sessions, 'live session')} can use it until the end"
    until = seconds_of(done.restorable_until) if done.HasField("restorable_until") else None
    lines = [text]
    if until is not None:
        span = duration_text(round(until - app.clock.time()))
        lines.append(f"to undo it, within {span}: nsml dataset restore {target.name}")
    gone = {
        "name": target.name,
        "removed": done.removed,
        "live_sessions": done.live_sessions,
        "restorable_until": None if until is None else moment(until),
    }
    write_one(app, gone, lines)


def _known_by(tags: Collection[str], use: DatasetUse) -> str:
    """What names it, or uses it, in parentheses; "" for nothing."""
    from nsml.view.datasets import uses_text

    words = [f"tagged {', '.join(tags)}"] if tags else []
    if use.live_sessions or use.ended_sessions:
        words.append(f"used by {uses_text(use)}")
    return f"({'; '.join(words)})" if words else ""


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
    """The name of a dataset; CommandError where a version is named, for what is of all of them.

    `verb`, `words`: of the command, which is advised with the name alone.
    """
    name = split_dataset(text)
    if name.version or name.tag:
        raise CommandError(
            f"{text[:80]!r} names one version, and this changes the dataset",
            code=ExitCode.USAGE,
            advice=shell_line(["nsml", "dataset", verb, name.name, *words]),
        )
    return name.name
