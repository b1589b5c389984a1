"""download: the files written by a session in its working folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import session_argument
from cli.exits import CommandError, ExitCode
from cli.fetching import fetched, fetching_to, pull_options, target_errors, tell_files
from cli.group import command, pass_app
from cli.output import write_one
from cli.sessions.file_names import files_text
from cli.sessions.written_files import remember
from nsml.common.shell import shell_word
from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.v1.artifacts_pb2 import Artifact
    from nsml.v1.sessions_pb2 import Session

_APP = "/app"


def _below(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """Parse a path below the working folder, relative to it; "" for all of it."""
    path = text.removeprefix(_APP).strip("/") if text == _APP or text.startswith("/") else text
    path = path.rstrip("/").removeprefix("./")
    outside = text.startswith("/") and not f"{text}/".startswith(f"{_APP}/")
    if outside or ".." in path.split("/"):
        raise click.BadParameter(f"{text!r} is not in the working folder, /app")
    return "" if path == "." else path


@command(
    "download",
    reads=True,
    examples=["nsml download @last", "nsml download -s /app/out/test.csv kim/mnist/3 ~/runs"],
)
@session_argument()
@click.argument("path", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option(
    "-s",
    "--source",
    "below",
    metavar="/app/PATH",
    default="",
    callback=_below,
    help="Only this file or folder.",
)
@pull_options
@pass_app
def download(app: App, *, session: str, path: Path, below: str, force: bool, verbose: bool) -> int:
    """Fetch the files that a session made to PATH/USER_DATASET_N/files.

    Of an ended session: what its last attempt made or changed in its working folder, without links, __pycache__ and names
    that begin with a dot. 100 MiB of it are kept, for 14 days; of a session with --keep-files 1 GiB, as long as the
    session (the platform may say otherwise). What was left out is named. If the files are lost, those of an earlier attempt
    are fetched. An existing folder is left alone: -f replaces it; with -s, -f replaces only that path. nsml artifact rm SESSION
    /app removes the files.

    Of a running session of yours, to PATH/USER_DATASET_N/live: its working folder on rank 0 as it is now, code included, as
    nsml cp copies it. The same command again fetches what has changed, and once it has ended its kept files.
    """
    from nsml.client import artifacts
    from nsml.common.units import size_text
    from nsml.v1.sessions_pb2 import SESSION_STATE_PAUSED, SESSION_STATE_RUNNING

    async def fetch(
        client: Client, progress: Callable[[Transfer], None]
    ) -> tuple[Artifact, str, int, int] | Session:
        of = await client.sessions.get(session)
        if of.state in {SESSION_STATE_RUNNING, SESSION_STATE_PAUSED}:
            return of
        found, lost = await _kept(client, of)
        target = artifacts.files_of(found.session, path)
        with fetching_to(path, target, replaces=force, only=(below,) if below else ()) as place:
            extent = await artifacts.pull_files(
                client, found, place, below=below, progress=progress
            )
        return found, lost, extent.files, extent.size

    answer = fetched(app, path, fetch)
    if not isinstance(answer, tuple):
        return _copy(app, answer, path, below, is_listed=verbose)
    found, lost, count, size = answer
    target = artifacts.files_of(found.session, path)
    remember(app, [target.parent])
    if verbose:
        tell_files(app, target)
    of = f"{visible(found.session)}, attempt {found.attempt}"
    app.say(f"files of {of}: {files_text(count)} ({size_text(size)})")
    for text in filter(None, (lost, found.note, expiry_words(found))):
        app.say(visible(text))
    record = {
        "session": found.session,
        "attempt": found.attempt,
        "path": str(target),
        "files": count,
    }
    write_one(app, {**record, "left_out": found.note or None}, [str(target)], name="path")
    return ExitCode.OK


def expiry_words(found: Artifact) -> str:
    """Return the expiry of these files; "" if they are kept as long as their session."""
    from nsml.view.artifacts import expiry_text

    text = expiry_text(found)
    return text and f"kept {text}: then the platform removes them"


def _copy(app: App, of: Session, path: Path, below: str, *, is_listed: bool) -> int:
    """Copy the working folder of a running session, or `below` in it, in its current state."""
    from cli.sessions.cp import carried_out, judged
    from nsml.client import artifacts

    target = artifacts.live_files_of(of.name, path)
    place = (target / below).parent if below else target
    made = [one for one in (place, *place.parents) if not one.exists()]
    with target_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    try:
        report = carried_out(
            app,
            lambda client, shown: client.sessions.copy_out(
                of.id, below or ".", str(place), progress=shown
            ),
            str(place),
            "written",
        )
    except BaseException:
        # A partial copy is resumed later; if nothing was copied, new folders are removed.
        for one in made:
            with suppress(OSError):
                one.rmdir()
        raise
    remember(app, [target.parent])
    if is_listed:
        tell_files(app, target)
    app.say(f"files of {visible(of.name)}, which is running, as they are now")
    record = {"session": of.name, "attempt": of.attempt, "path": str(target)}
    files = report.files + report.skipped
    write_one(app, {**record, "files": files, "left_out": None}, [str(target)], name="path")
    return judged(app, report, below or ".")


async def _kept(client: Client, of: Session) -> tuple[Artifact, str]:
    """Return the newest durable files and a note on later, lost ones; raises CommandError if there are none."""
    from nsml.client.streams import ENDED_STATES
    from nsml.spec.output_datasets import KEPT_FILES
    from nsml.v1.artifacts_pb2 import ARTIFACT_STATE_DURABLE
    from nsml.v1.sessions_pb2 import SESSION_STATE_FINALIZING
    from nsml.view.artifacts import is_lost

    found = await client.artifacts.every(of.id, KEPT_FILES)
    durable = [one for one in found if one.state == ARTIFACT_STATE_DURABLE and one.version]
    newest = max(durable, key=lambda one: one.version, default=None)
    is_coming = of.state == SESSION_STATE_FINALIZING
    if newest is not None and (newest.attempt == of.attempt or not is_coming):
        lost = [one for one in found if is_lost(one) and one.attempt > newest.attempt]
        words = (f"those of attempt {one.attempt} are lost: {one.why_lost}" for one in lost[-1:])
        return newest, next(words, "")
    if is_coming:
        raise CommandError(
            f"the files of {of.name} are not in the object store yet",
            code=ExitCode.UNAVAILABLE,
            reason="NOT_DURABLE",
            why="they are on their node, and on their way",
            advice="run it again soon",
        )
    is_live = of.state not in ENDED_STATES
    if is_live:
        why = "it has not ended, and does not run now"
        advice = f"nsml status --explain {shell_word(of.name)}"
    elif found:
        why, advice = found[-1].why_lost, f"nsml artifact ls {shell_word(of.name)}"
    else:
        why = await _why_none(client, of)
        advice = f"nsml artifact ls {shell_word(of.name)}\nnsml pull {shell_word(of.name)}"
    raise CommandError(
        f"no files of {of.name} are kept",
        code=ExitCode.CONFLICT if is_live else ExitCode.NOT_FOUND,
        reason="STATE_CONFLICT" if is_live else "NOT_FOUND",
        why=why,
        advice=advice,
    )


async def _why_none(client: Client, of: Session) -> str:
    """Return why an ended session has no files, none of which is lost."""
    from nsml.spec.output_datasets import KEPT_FILES

    if of.spec.no_keep_files:
        return "it was started with --no-keep-files"
    if not (of.spec.keep_files or of.spec.keep_files_by_default):
        return (
            "it was started without --keep-files, and its platform or project kept none by default"
        )
    removed, expired = await client.artifacts.count_removed(of.id, KEPT_FILES)
    if expired:
        kept = "they had been kept as long as this platform keeps them"
        longer = " unasked; nsml run --keep-files keeps them longer"
        return kept if of.spec.keep_files else kept + longer
    if removed:
        return "they were removed (nsml artifact rm)"
    if of.HasField("imported"):
        return "the backup that it comes from had none"
    none = "it made no files that are kept (links, __pycache__ and names with a dot first are not)"
    too_old = ", or the agent of its node was too old to keep any"
    return none if of.spec.keep_files else none + too_old
