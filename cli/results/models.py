"""model: checkpoints of sessions."""

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
    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.sessions_pb2 import Session


@click.group("model", cls=Group)
def model() -> None:
    """Checkpoints: what sessions saved with nsml.save."""


@command("ls", reads=True, examples=["nsml model ls @last", "nsml model ls kim/mnist/3 -j"])
@session_argument()
@pass_app
def ls(app: App, *, session: str) -> None:
    """List the checkpoints of a session, oldest first.

    A checkpoint that was changed after nsml.save, or that never reached the object store, is lost;
    the list says why. With nsml run --keep, it also says how many were removed.
    """
    from nsml.v1 import checkpoints_pb2
    from nsml.view import checkpoints as view
    from nsml.view import nsml_style

    listing = app.call(lambda client: client.checkpoints.listing(session))
    found = listing.checkpoints
    write_list(
        app,
        found,
        columns=view.COLUMNS,
        record=view.record,
        none="no checkpoints yet",
        blank=checkpoints_pb2.Checkpoint(),
        nsml=nsml_style.CHECKPOINTS,
    )
    for one in filter(view.is_lost, found):
        app.say(f"checkpoint {one.name} is lost: {one.why_lost}")
        if view.has_earlier(one):
            app.say(f"try: {_pull(session, one.name, earlier=True)}")
    for line in view.retention_lines(listing):
        app.say(visible(line))


@command(
    "pull",
    reads=True,
    examples=["nsml model pull @last best .", "nsml model pull kim/mnist/3 @last ./models"],
)
@session_argument()
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("path", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "--earlier",
    is_flag=True,
    help="If the last save of that name is lost or not durable yet, take the durable one before it.",
)
@pull_options
@pass_app
def pull(
    app: App,
    *,
    session: str,
    checkpoint: str,
    path: Path,
    earlier: bool,
    force: bool,
    verbose: bool,
) -> None:
    """Fetch a checkpoint to PATH/USER_DATASET_N/CHECKPOINT/model.

    CHECKPOINT is a name or a tag; @last is the newest that is not lost. Every file is verified by its digest. An existing folder
    is left alone, unless -f replaces it.
    """
    from nsml.client import checkpoints
    from nsml.common.units import size_text

    async def fetch(
        client: Client, progress: Callable[[Transfer], None]
    ) -> tuple[Checkpoint, Path]:
        found = await _find(client, session, checkpoint, earlier=earlier)
        target = checkpoints.folder_of(found, path)
        with fetching_to(path, target, replaces=force) as place:
            await checkpoints.pull(client, found, place, progress=progress)
        return found, target

    found, target = fetched(app, path, fetch)
    remember(app, [target.parent.parent])
    if verbose:
        tell_files(app, target)
    app.say(f"checkpoint {found.name} of {found.session}: {size_text(found.size_bytes)}")
    record = {"name": found.name, "session": found.session, "path": str(target)}
    write_one(app, record, [str(target)], name="path")


@command(
    "rm",
    examples=["nsml model rm @last epoch-3", "nsml model rm mnist/3 'epoch-*' -y"],
)
@session_argument()
@click.argument("checkpoints", metavar="CHECKPOINT...", nargs=-1, required=True)
@click.option(
    "--confirm", type=int, metavar="N", help="Do not ask if N checkpoints fit; else do nothing."
)
@click.option("-f", "--force", is_flag=True, help="Remove tagged ones too.")
@confirmed
@pass_app
def rm(
    app: App, *, session: str, checkpoints: tuple[str, ...], confirm: int | None, force: bool
) -> None:
    """Remove checkpoints of a session, by names or globs in quotes. Asks first.

    The newest one of a live session stays, since the session resumes from it. Tagged ones need -f.
    Storage is freed within minutes.
    """
    from nsml.common.units import counted, size_text
    from nsml.view.confirmation import Plan, Target

    async def look(client: Client) -> tuple[Session, str, list[Checkpoint]]:
        found = await client.sessions.get(session)
        user = await client.accounts.caller()
        return found, user.user.name, await client.checkpoints.every(found.id)

    of, user, there = app.call(look)
    chosen = _fitting(checkpoints, there, of.name)
    if not force:
        _check_untagged(chosen, session, checkpoints)
    plan = Plan(
        rule=rule_of("model rm"),
        targets=[
            Target(one.name, of.owner, size_text(one.size_bytes), is_text=True) for one in chosen
        ],
        user=user,
        noun="checkpoint",
        last=f"from {of.name}",
    )
    if not go_ahead(app, plan, expected=confirm):
        return
    gone = app.call(
        lambda client: client.checkpoints.remove(
            of.id, [one.name for one in chosen], including_tagged=force
        )
    )
    app.say(f"removed {counted(len(gone), 'checkpoint')}: {', '.join(map(visible, gone))}")


@command(
    "info",
    reads=True,
    examples=["nsml model info @last best", "nsml model info kim/mnist/3 @last -j"],
)
@session_argument()
@click.argument("checkpoint", metavar="CHECKPOINT")
@pass_app
def info(app: App, *, session: str, checkpoint: str) -> None:
    """Show one checkpoint: files, metrics, digest, tags, and its users.

    Used by: sessions that loaded it (nsml.load) or began with it (nsml fork -c, nsml resume).
    CHECKPOINT is a name, a tag, or @last.
    """
    import time

    from nsml.client.content import read_manifest
    from nsml.view import checkpoints as view

    async def look(client: Client) -> tuple[Checkpoint, Sequence[Entry]]:
        found = await _named(client, session, checkpoint)
        if not found.digest:
            return found, ()
        manifest = await read_manifest(
            client,
            found.digest,
            shown_by=lambda: client.checkpoints.get(found.session, found.name),
        )
        return found, manifest.entries

    found, files = app.call(look)
    lines = view.info_lines(found, files, time.time())
    write_one(app, view.info_record(found, files), [visible(line) for line in lines])


@command(
    "tag",
    examples=["nsml model tag @last epoch-7 paper", "nsml model tag kim/mnist/3 @last release"],
)
@session_argument()
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("tag", metavar="TAG")
@pass_app
def add_tag(app: App, *, session: str, checkpoint: str, tag: str) -> None:
    """Tag a checkpoint, so that it is kept and TAG names it.

    Use TAG wherever a checkpoint is named. TAG moves here if another checkpoint of the session has it. It stays with the name: what is saved
    under the same name later has the tag.
    """
    from nsml.v1 import checkpoints_pb2

    async def act(client: Client) -> checkpoints_pb2.TagCheckpointResponse:
        found = await _named(client, session, checkpoint)
        return await client.checkpoints.tag(found.session, found.name, tag)

    answer = app.call(act)
    found = answer.checkpoint
    moved = f", moved from {visible(answer.moved_from)}" if answer.moved_from else ""
    app.say(f"tagged checkpoint {visible(found.name)}: {visible(tag)}{moved}")


@command("untag", examples=["nsml model untag @last paper", "nsml model untag kim/mnist/3 release"])
@session_argument()
@click.argument("tag", metavar="TAG")
@pass_app
def untag(app: App, *, session: str, tag: str) -> None:
    """Remove a tag from the checkpoint of a session that has it. The checkpoint stays."""
    name = app.call(lambda client: client.checkpoints.untag(session, tag))
    app.say(f"removed tag {visible(tag)} from checkpoint {visible(name)}")


def _check_untagged(chosen: Sequence[Checkpoint], session: str, typed: Sequence[str]) -> None:
    """Raise CommandError if one of them is tagged, before any question."""
    tagged = [one for one in chosen if one.tags]
    if tagged:
        first = tagged[0]
        raise CommandError(
            f"checkpoint {visible(first.name)} has the tag {visible(first.tags[0])}",
            code=ExitCode.CONFLICT,
            reason="STATE_CONFLICT",
            why="tagged checkpoints are kept",
            advice=shell_line(["nsml", "model", "rm", "-f", *operands(session, *typed)]),
        )


def _fitting(globs: Sequence[str], there: Sequence[Checkpoint], session: str) -> list[Checkpoint]:
    """Return the matching checkpoints, in order; CommandError for a glob without matches."""
    if not there:
        raise CommandError(
            f"{session} has no checkpoints: there is nothing to remove",
            code=ExitCode.NOT_FOUND,
            reason="NOT_FOUND",
        )
    names = {one.name: None for one in there}
    by_tag = {tag: one.name for one in there for tag in one.tags}
    globs = [glob if glob in names else by_tag.get(glob, glob) for glob in globs]
    for glob in globs:
        if not any(one.name == glob or fnmatchcase(one.name, glob) for one in there):
            raise CommandError(
                f"{session} has no checkpoint {glob!r}",
                code=ExitCode.NOT_FOUND,
                reason="NOT_FOUND",
                why=_some_of([*names]),
                advice="\n".join(
                    shell_line(["nsml", "model", "rm", *operands(session, one)])
                    for one in near(glob, [*names])
                )
                or f"nsml model ls {shell_word(session)}",
            )
    # A full name selects only itself, even if it is also a glob that matches others.
    return [
        one
        for one in there
        if any(one.name == glob if glob in names else fnmatchcase(one.name, glob) for glob in globs)
    ]


_NAMED = 10
"""Most checkpoints listed in an error: the last ones."""


async def _find(client: Client, session: str, name: str, *, earlier: bool) -> Checkpoint:
    """Return the checkpoint to fetch."""
    found = await _named(client, session, name)
    _check_readable(found, session, earlier=earlier)
    return found


async def _named(client: Client, session: str, name: str) -> Checkpoint:
    """Return the checkpoint of a name or a tag, or the newest that is not lost."""
    from nsml.client.errors import NotFound
    from nsml.view.checkpoints import is_lost

    if name == "@last":
        every = [one for one in await client.checkpoints.every(session) if not is_lost(one)]
        if not every:
            raise NotFound(f"session {session} has no checkpoints", reason="NOT_FOUND")
        newest = max(every, key=lambda item: item.saved_at.ToNanoseconds())
        # The listed checkpoint may not be readable yet.
        found = await client.checkpoints.get(session, newest.name)
    else:
        try:
            found = await client.checkpoints.get(session, name)
        except NotFound as error:
            names = [item.name for item in await client.checkpoints.every(session)]
            raise NotFound(
                error.message,
                reason=error.reason,
                why=_some_of(names),
                advice="\n".join(_pull(session, item) for item in near(name, names))
                or f"nsml model ls {shell_word(session)}",
            ) from error
    return found


def _some_of(names: Sequence[str]) -> str:
    shown = ", ".join(names[-_NAMED:])
    if len(names) > _NAMED:
        return f"there are {len(names):,}, the last ones: {shown}"
    return f"there are {shown}" if names else "it has none"


def _pull(session: str, name: str, *, earlier: bool = False) -> str:
    flags = ["--earlier"] if earlier else []
    return shell_line(["nsml", "model", "pull", *flags, *operands(session, name)])


def _check_readable(found: Checkpoint, session: str, *, earlier: bool) -> None:
    """Raise CommandError for a lost or pending one, unless an `earlier` one of its name is accepted."""
    from nsml.v1.checkpoints_pb2 import CHECKPOINT_STATE_DURABLE
    from nsml.view.checkpoints import has_earlier, is_lost

    if found.state == CHECKPOINT_STATE_DURABLE or (earlier and has_earlier(found)):
        return
    before = _pull(session, found.name, earlier=True)
    if is_lost(found):
        raise CommandError(
            f"checkpoint {visible(found.name)} is lost",
            code=ExitCode.NOT_FOUND,
            reason="LOST",
            why=found.why_lost,
            advice=before if has_earlier(found) else f"nsml model ls {shell_word(session)}",
        )
    raise CommandError(
        f"checkpoint {visible(found.name)} is not in the object store yet",
        code=ExitCode.UNAVAILABLE,
        reason="NOT_DURABLE",
        why="it is on its node, and on its way",
        advice=f"run it again soon\n{before}" if has_earlier(found) else "run it again soon",
    )


for _command in (ls, info, pull, rm, add_tag, untag):
    model.add_command(_command)
