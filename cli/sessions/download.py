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
    that begin with a dot, as far as 1 GiB and 10,000 files go. What was left out is named. They are
    kept as long as the session is (nsml artifact rm SESSION /app removes them). nsml cp copies from
    running sessions.
    """
    from nsml.client import artifacts
    from nsml.common.units import size_text

    async def fetch(
        client: Client, progress: Callable[[Transfer], None]
    ) -> tuple[Artifact, int, int]:
        found = await _kept(client, session)
        with target_errors(artifacts.files_of(found.session, path)):
            extent = await artifacts.pull_files(client, found, path, below=below, progress=progress)
        return found, extent.files, extent.size

    found, count, size = fetched(app, fetch)
    target = artifacts.files_of(found.session, path)
    remember(app, [target.parent])
    app.say(f"files of {visible(found.session)}: {files_text(count)} ({size_text(size)})")
    if found.why_lost:
        app.say(visible(found.why_lost))
    record = {"session": found.session, "path": str(target), "files": count}
    write_one(app, {**record, "left_out": found.why_lost or None}, [str(target)], name="path")


async def _kept(client: Client, session: str) -> Artifact:
    """What its last attempt left; raises CommandError that says why there is nothing."""
    from nsml.client.streams import ENDED_STATES
    from nsml.spec.output_datasets import KEPT_FILES
    from nsml.v1.artifacts_pb2 import ARTIFACT_STATE_DURABLE
    from nsml.v1.sessions_pb2 import SESSION_STATE_FINALIZING

    of = await client.sessions.get(session)
    found = await client.artifacts.every(of.id, KEPT_FILES)
    durable = [one for one in found if one.state == ARTIFACT_STATE_DURABLE and one.version]
    if durable:
        return max(durable, key=lambda one: one.version)
    if of.state == SESSION_STATE_FINALIZING:
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
        why, advice = "it made none", f"nsml artifact ls {shell_word(of.name)}"
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
