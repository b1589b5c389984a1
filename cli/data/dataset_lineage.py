"""dataset lineage: the sources of a version, session by session."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import click

from cli.app import App
from cli.arguments import DATASET, split_dataset
from cli.group import command, pass_app
from cli.output import write_one

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.datasets_pb2 import Dataset
    from nsml.view.dataset_lineage import Lineage

_MOST: Final = 500
"""Most versions read."""


@command(
    "lineage",
    reads=True,
    examples=["nsml dataset lineage features", "nsml dataset lineage kim/features@4 -j"],
)
@click.argument("name", type=DATASET)
@pass_app
def lineage(app: App, *, name: str) -> None:
    """Show which sessions and datasets a version was made from.

    For each version the session that made it of its output folder, its code and packages, and the
    versions that it read, back to what was pushed. Only the platform records this. Sessions and datasets that you may
    not see are not named.
    """
    from nsml.common.text import visible
    from nsml.view.dataset_lineage import graph_lines, graph_record

    found = app.call(lambda client: _traced(client, name))
    write_one(app, graph_record(found), map(visible, graph_lines(found)))


async def _traced(client: Client, name: str) -> Lineage:
    """Trace all sources of a version, the nearest first, each requested once."""
    from nsml.client.errors import InvalidRequest, NotFound
    from nsml.view.dataset_lineage import Lineage, sources
    from nsml.view.datasets import reference

    start = await client.datasets.get(*split_dataset(name))
    root = reference(start)
    found: dict[str, Dataset | None] = {root: start}
    left = deque(sources(start))
    known = {root, *left}
    while left and len(found) < _MOST:
        one = left.popleft()
        if one in found:
            continue
        full, _, number = one.rpartition("@")
        try:
            version = found[one] = await client.datasets.get(full, int(number))
        except (NotFound, InvalidRequest):
            found[one] = None
            continue
        further = sources(version)
        known.update(further)
        left.extend(further)
    return Lineage(root, found, len(known - found.keys()))
