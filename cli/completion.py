"""completion: scripts for shells, and names from the platform with a short-lived cache."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from cli.app import App
from cli.exits import CommandError
from cli.group import command, pass_app
from nsml.client import contexts
from nsml.client.errors import ClientError

if TYPE_CHECKING:
    from pathlib import Path

    from nsml.client.calls import Client

_FRESH_S = 5.0
_PATIENCE_S = 1.5
_NODES = 8
_SESSIONS = 50
_SUBMISSIONS = 50


@command(
    "completion",
    examples=[
        'eval "$(nsml completion bash)"',
        "nsml completion fish > ~/.config/fish/completions/nsml.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@pass_app
def completion(app: App, context: click.Context, *, shell: str) -> None:
    """Print the completion script of a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise CommandError(f"no completion for {shell}")
    script = kind(context.find_root().command, {}, "nsml", "_NSML_COMPLETE")
    # Not .source(): that of bash starts a bash to ask for its version.
    app.write((script.source_template % script.source_vars()).strip())


def names(app: App, kind: str, incomplete: str) -> list[CompletionItem]:
    """Return the names of a kind with this prefix; none if the platform does not answer."""
    try:
        known = _known(app)
    except (ClientError, contexts.ContextError, CommandError, OSError):
        return []
    fitting = [name for name in known.get(kind, []) if name.startswith(incomplete)]
    if kind == "dataset" and "@" not in incomplete:  # a name without a tag is complete
        fitting = [name for name in fitting if "@" not in name]
    return list(map(CompletionItem, fitting))


def _known(app: App) -> dict[str, list[str]]:
    """Return names by kind: from the cache if it is seconds old, else from the platform."""
    file = contexts.cache_folder(app.environ) / f"completion-{app.context.name}.json"
    found = _cached(app, file)
    if found is None:
        app.flags.timeout_s = _PATIENCE_S
        found = app.call(_fetch, waits=False)
        contexts.write_private(file, json.dumps(found))
    return found


def _cached(app: App, file: Path) -> dict[str, list[str]] | None:
    try:
        if not 0 <= app.clock.time() - file.stat().st_mtime < _FRESH_S:
            return None
        found: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


async def _fetch(client: Client) -> dict[str, list[str]]:
    from nsml.common.concurrency import each_at_once
    from nsml.spec.gpu_models import model_word
    from nsml.v1.resources_pb2 import ISOLATION_CONTAINER
    from nsml.v1.sessions_pb2 import SessionFilter

    chosen = SessionFilter(include_ended=True, without_submission_steps=True)
    sessions = [s.name async for s in client.sessions.every(chosen, limit=_SESSIONS, short=True)]
    found = await client.datasets.every()
    datasets = [dataset.name for dataset in found]
    datasets += [f"{dataset.name}@{tag}" for dataset in found for tag in dataset.tags]
    nodes = await client.nodes.every()
    # nodes have similar images, and each takes a request
    contained = [node.name for node in nodes if node.isolation == ISOLATION_CONTAINER]
    looked = await each_at_once(contained[:_NODES], client.nodes.get, most=_NODES)
    return {
        "session": ["@last", *sessions],
        "dataset": datasets,
        "node": [node.name for node in nodes],
        "model": sorted(
            {model_word(u.device.model) for node in nodes for u in node.devices} - {""}
        ),
        "project": [project.name for project in await client.projects.every()],
        "pod": sorted({node.pod for node in nodes} - {""}),
        "image": sorted({one.name for node in looked for one in node.images}),
        "board": await _boards(client),
        "submission": await _submissions(client),
        "competition": await _competitions(client),
    }


async def _boards(client: Client) -> list[str]:
    """Return boards by full name, and those that the user may change also by their own; none of an older platform."""
    from nsml.client.errors import Unsupported

    try:
        found = await client.boards.every()
    except Unsupported:
        return []
    return [
        *(one.name for one in found if one.may_change),
        *(f"{one.owner}/{one.name}" for one in found),
    ]


async def _submissions(client: Client) -> list[str]:
    from nsml.client.errors import Unsupported

    try:
        return [one.id async for one in client.submissions.every(limit=_SUBMISSIONS)]
    except Unsupported:
        return []


async def _competitions(client: Client) -> list[str]:
    """Return competitions by their names and full names; none of an older platform."""
    from nsml.client.errors import Unsupported

    try:
        found = await client.competitions.every()
    except Unsupported:
        return []
    return [one.name for one in found] + [f"{one.owner}/{one.name}" for one in found]
