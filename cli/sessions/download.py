"""download: the files that a session made in its working folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import session_argument
from cli.exits import CommandError, ExitCode
from cli.fetching import fetched, target_errors
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

_APP = "/app"


def _below(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """A path below the working folder, relative to it; "" for all of it."""
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
@pass_app
def download(app: App, *, session: str, path: Path, below: str) -> None:
    """Fetch the files that an ended session made to PATH/USER_DATASET_N/files.

    Of sessions with --keep-files: what the last attempt made or changed in its working folder, without links and names
    that begin with a dot, as far as 1 GiB and 10,000 files go. What was left out is named. If its files
    are lost, those of an earlier attempt are fetched. They are kept as long as the session is (nsml
    artifact rm SESSION /app removes them). nsml cp copies from running sessions.
    """
    from nsml.client import artifacts
    from nsml.common.units import size_text

    async def fetch(
        client: Client, progress: Callable[[Transfer], None]
    ) -> tuple[Artifact, str, int, int]:
        found, lost = await _kept(client, session)
        with target_errors(artifacts.files_of(found.session, path)):
            extent = await artifacts.pull_files(client, found, path, below=below, progress=progress)
        return found, lost, extent.files, extent.size

    found, lost, count, size = fetched(app, fetch)
    target = artifacts.files_of(found.session, path)
    remember(app, [target.parent])
    of = f"{visible(found.session)}, attempt {found.attempt}"
    app.say(f"files of {of}: {files_text(count)} ({size_text(size)})")
    for text in filter(None, (lost, found.note)):
        app.say(visible(text))
    record = {
        "session": found.session,
        "attempt": found.attempt,
        "path": str(target),
        "files": count,
    }
    write_one(app, {**record, "left_out": found.note or None}, [str(target)], name="path")


async def _kept(client: Client, session: str) -> tuple[Artifact, str]:
    """What its last attempt left, or the last one whose files are not lost, and which are; raises CommandError: nothing."""
    from nsml.client.streams import ENDED_STATES
    from nsml.spec.output_datasets import KEPT_FILES
    from nsml.v1.artifacts_pb2 import ARTIFACT_STATE_DURABLE
    from nsml.v1.sessions_pb2 import SESSION_STATE_FINALIZING
    from nsml.view.artifacts import is_lost

    of = await client.sessions.get(session)
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
        why = "the session has not ended"
        advice = f"nsml cp {shell_word(f'{of.name}:.')} ."
    elif found:
        why, advice = found[-1].why_lost, f"nsml artifact ls {shell_word(of.name)}"
    elif of.spec.keep_files:
        is_removed = await client.artifacts.count_removed(of.id, KEPT_FILES)
        why = "they were removed (nsml artifact rm)" if is_removed else "it made none"
        advice = f"nsml artifact ls {shell_word(of.name)}"
    else:
        why = "it was started without --keep-files"
        advice = f"nsml artifact ls {shell_word(of.name)}\nnsml pull {shell_word(of.name)}"
    raise CommandError(
        f"no files of {of.name} are kept",
        code=ExitCode.CONFLICT if is_live else ExitCode.NOT_FOUND,
        reason="STATE_CONFLICT" if is_live else "NOT_FOUND",
        why=why,
        advice=advice,
    )
