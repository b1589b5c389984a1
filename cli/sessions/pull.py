"""pull: the code of a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.arguments import session_argument
from cli.fetching import fetched, fetching_to, pull_options, tell_files
from cli.group import command, pass_app
from cli.output import write_one
from cli.sessions.file_names import files_text
from cli.sessions.written_files import remember

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.content.stored_manifest import Extent
    from nsml.v1.sessions_pb2 import Session


@command("pull", reads=True, examples=["nsml pull @last", "nsml pull kim/mnist/3 ~/runs"])
@session_argument()
@click.argument("path", type=click.Path(file_okay=False, path_type=Path), default=".")
@pull_options
@pass_app
def pull(app: App, *, session: str, path: Path, force: bool, verbose: bool) -> None:
    """Fetch the code of a session, as it was submitted, to PATH/USER_DATASET_N/code.

    It is kept as long as the session is. Every file is verified by its digest. An existing folder is
    left alone, unless -f replaces it.
    """
    from nsml.client import code
    from nsml.common.units import size_text

    async def fetch(client: Client, progress: Callable[[Transfer], None]) -> tuple[Session, Extent]:
        found = await client.sessions.get(session)
        with fetching_to(path, code.folder_of(found, path), replaces=force) as place:
            return found, await code.pull(client, found, place, progress=progress)

    found, extent = fetched(app, path, fetch)
    target = code.folder_of(found, path)
    remember(app, [target.parent])
    if verbose:
        tell_files(app, target)
    app.say(f"code of {found.name}: {files_text(extent.files)} ({size_text(extent.size)})")
    record = {"session": found.name, "path": str(target), "files": extent.files}
    write_one(app, record, [str(target)], name="path")
