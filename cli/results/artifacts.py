"""artifact: saved artifacts of sessions, in versions."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import session_argument
from cli.confirmation import confirmed, go_ahead, rule_of
from cli.exits import CommandError, ExitCode
from cli.fetching import fetched, fetching_to, pull_options, tell_files
from cli.group import Group, command, near, pass_app
from cli.output import write_list, write_one
from cli.sessions.written_files import remember
from nsml.common.shell import operands, shell_line, shell_word
from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.content.manifest import Entry
    from nsml.v1.artifacts_pb2 import Artifact
    from nsml.v1.sessions_pb2 import Session

_NAMED = 10
"""Most artifacts listed in an error: the last ones."""


@click.group("artifact", cls=Group)
def artifact() -> None:
    """Artifacts: files that sessions saved with nsml.artifact, in versions."""


@command("ls", reads=True, examples=["nsml artifact ls @last", "nsml artifact ls kim/mnist/3 -j"])
@session_argument()
@pass_app
def ls(app: App, *, session: str) -> None:
    """List the artifacts of a session, oldest first.

    An artifact has a version once it is in the object store. One that cannot be sent is lost; the list says why.
    """
    from nsml.v1 import artifacts_pb2
    from nsml.view import artifacts as view

    found = app.call(lambda client: client.artifacts.every(session))
    write_list(
        app,
        found,
        columns=view.COLUMNS,
        record=view.record,
        none="no artifacts yet",
        blank=artifacts_pb2.Artifact(),
    )
    for one in filter(view.is_lost, found):
        app.say(f"artifact {visible(one.name)} is lost: {visible(one.why_lost)}")


@command(
    "pull",
    reads=True,
    examples=["nsml artifact pull @last report .", "nsml artifact pull kim/mnist/3 report@2 ~"],
)
@session_argument()
@click.argument("artifact", metavar="NAME[@N]")
@click.argument("path", type=click.Path(file_okay=False, path_type=Path), default=".")
@pull_options
@pass_app
def pull(app: App, *, session: str, artifact: str, path: Path, force: bool, verbose: bool) -> None:
    """Fetch an artifact to PATH/USER_DATASET_N/artifacts/NAME@N.

    Without @N it is the newest version. Every file is verified by its digest. An existing folder is left alone,
    unless -f replaces it.
    """
    from nsml.client import artifacts
    from nsml.common.units import size_text
    from nsml.view.artifacts import label

    async def fetch(client: Client, progress: Callable[[Transfer], None]) -> tuple[Artifact, Path]:
        found = await _readable(client, session, artifact)
        target = artifacts.folder_of(found, path)
        with fetching_to(path, target, replaces=force) as place:
            await artifacts.pull(client, found, place, progress=progress)
        return found, target

    found, target = fetched(app, path, fetch)
    remember(app, [target.parent.parent])
    if verbose:
        tell_files(app, target)
    text = f"artifact {label(found)} of {found.session}: {size_text(found.size_bytes)}"
    app.say(visible(text))
    record = {
        "name": found.name,
        "version": found.version,
        "session": found.session,
        "path": str(target),
    }
    write_one(app, record, [str(target)], name="path")


@command(
    "info",
    reads=True,
    examples=["nsml artifact info @last report", "nsml artifact info kim/mnist/3 report@2 -j"],
)
@session_argument()
@click.argument("artifact", metavar="NAME[@N]")
@pass_app
def info(app: App, *, session: str, artifact: str) -> None:
    """Show one version of an artifact: files, step, digest. Without @N it is the newest one."""
    import time

    from nsml.client.content import read_manifest
    from nsml.view import artifacts as view

    async def look(client: Client) -> tuple[Artifact, Sequence[Entry]]:
        found = await _readable(client, session, artifact)
        manifest = await read_manifest(
            client,
            found.digest,
            shown_by=lambda: client.artifacts.every(found.session, found.name),
        )
        return found, manifest.entries

    found, files = app.call(look)
    lines = view.info_lines(found, files, time.time())
    write_one(app, view.info_record(found, files), [visible(line) for line in lines])


@command(
    "rm",
    examples=["nsml artifact rm @last report@1", "nsml artifact rm mnist/3 'eval-*' -y"],
)
@session_argument()
@click.argument("artifacts", metavar="NAME[@N]...", nargs=-1, required=True)
@click.option(
    "--confirm", type=int, metavar="N", help="Do not ask if N versions fit; else do nothing."
)
@confirmed
@pass_app
def rm(app: App, *, session: str, artifacts: tuple[str, ...], confirm: int | None) -> None:
    """Remove versions of artifacts, by names or globs in quotes. Asks first.

    NAME means all its versions. Their numbers are not given again. Storage is freed within minutes.
    """
    from nsml.common.units import counted, size_text
    from nsml.view.artifacts import label
    from nsml.view.confirmation import Plan, Target

    async def look(client: Client) -> tuple[Session, str, list[Artifact]]:
        found = await client.sessions.get(session)
        user = await client.accounts.caller()
        every = await client.artifacts.every(found.id)
        return found, user.user.name, [one for one in every if one.version]

    of, user, there = app.call(look)
    chosen = _fitting(artifacts, there, of.name)
    plan = Plan(
        rule=rule_of("artifact rm"),
        targets=[
            Target(label(one), of.owner, size_text(one.size_bytes), is_text=True) for one in chosen
        ],
        user=user,
        noun="artifact",
        last=f"from {of.name}",
    )
    if not go_ahead(app, plan, expected=confirm):
        return
    versions = [(one.name, one.version) for one in chosen]
    app.call(lambda client: client.artifacts.remove(of.id, versions))
    gone = ", ".join(visible(label(one)) for one in chosen)
    app.say(f"removed {counted(len(chosen), 'artifact')}: {gone}")


def _fitting(globs: Sequence[str], there: Sequence[Artifact], session: str) -> list[Artifact]:
    """Return the matching versions, in order; CommandError for a glob without matches."""
    from nsml.view.artifacts import label

    for glob in globs:
        if not any(_fits(one, glob) for one in there):
            raise _unknown(session, glob, [label(one) for one in there], verb="rm")
    return [one for one in there if any(_fits(one, glob) for glob in globs)]


def _fits(one: Artifact, glob: str) -> bool:
    from nsml.view.artifacts import label

    return any(text == glob or fnmatchcase(text, glob) for text in (one.name, label(one)))


async def _readable(client: Client, session: str, text: str) -> Artifact:
    """Return the version named by NAME@N, or the newest one of NAME; raises CommandError."""
    from nsml.view.artifacts import is_lost, label

    every = await client.artifacts.every(session)
    durable = [one for one in every if one.version]
    versions = [one for one in durable if one.name == text] or [
        one for one in durable if label(one) == text
    ]
    if versions:
        newest = max(versions, key=lambda one: one.version)
        # The list's page with this version may have come from another control plane.
        there = await client.artifacts.every(newest.session, newest.name)
        return next((one for one in there if one.version == newest.version), newest)
    others = [one for one in every if one.name == text]
    if others and is_lost(others[-1]):
        raise CommandError(
            f"artifact {visible(text)} is lost",
            code=ExitCode.NOT_FOUND,
            reason="LOST",
            why=others[-1].why_lost,
            advice=f"nsml artifact ls {shell_word(session)}",
        )
    if others:
        raise CommandError(
            f"artifact {visible(text)} is not in the object store yet",
            code=ExitCode.UNAVAILABLE,
            reason="NOT_DURABLE",
            why="it is on its node, and on its way",
            advice="run it again soon",
        )
    raise _unknown(session, text, [label(one) for one in every if one.version], verb="pull")


def _unknown(session: str, text: str, there: Sequence[str], *, verb: str) -> CommandError:
    return CommandError(
        f"session {session} has no artifact {text!r}",
        code=ExitCode.NOT_FOUND,
        reason="NOT_FOUND",
        why=f"there are {', '.join(there[-_NAMED:])}" if there else "it has none",
        advice="\n".join(
            shell_line(["nsml", "artifact", verb, *operands(session, one)])
            for one in near(text, list(there))
        )
        or f"nsml artifact ls {shell_word(session)}",
    )


for _command in (ls, info, pull, rm):
    artifact.add_command(_command)
