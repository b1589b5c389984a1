"""doctor storage: reads all stored data of the platform, reports damage, and repairs it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from cli.exits import ExitCode
from cli.group import command, pass_app
from cli.output import write_list
from nsml.common.units import counted, size_text
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from cli.app import App
    from nsml.client.calls import Client
    from nsml.v1.content_pb2 import BrokenContent, RepairStorageResponse, VerifyStorageResponse
    from nsml.v1.datasets_pb2 import Dataset

    _Read = VerifyStorageResponse | RepairStorageResponse

_TOLD_EVERY_S: Final = 5.0
_MOST_IN_VAIN: Final = 2
"""Calls in a row that neither repair anything nor ask another node: after these the repair ends."""
_MOST_NAMES: Final = 3
_IN_PLACE: Final = "datasets in place"
_ADVICE: Final = {
    "datasets": "push the same files again: nsml dataset push NAME PATH",
    _IN_PLACE: "nsml dataset add NAME --in-place PATH makes a version of what is there,"
    " nsml dataset rm NAME@N removes an old one",
    "checkpoints": "nsml model ls SESSION lists them, nsml model rm SESSION CHECKPOINT removes one",
    "artifacts": "nsml artifact ls SESSION lists them, nsml artifact rm SESSION NAME@VERSION removes one",
}


@dataclass(slots=True)
class _Found:
    """Damaged content: the sources of its repaired blobs, by digest, and its unreadable blobs."""

    broken: BrokenContent
    sources: dict[str, str] = field(default_factory=dict)
    lost: int = 0
    lost_digests: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@command(
    "storage",
    reads=True,
    examples=["nsml doctor storage", "nsml doctor storage --repair", "nsml doctor storage -j"],
)
@click.option(
    "--repair",
    "repairs",
    is_flag=True,
    help="Put damaged and missing parts again, from other packs and from nodes that have them.",
)
@pass_app
def storage(app: App, *, repairs: bool) -> int:
    """Read everything that the platform has stored, and say what is damaged or missing. For administrators.

    All versions of datasets in place are compared with their files, where this machine has them.
    Without --repair nothing is changed, but that damaged parts count as missing: the next push of a folder
    that has them sends them again. Exit code 1 when anything is damaged, and stays so.
    """
    read, broken = app.call(lambda client: _verified(app, client, repairs=repairs))
    if repairs:
        found = app.call(lambda client: _all_repaired(client, broken))
        found += [
            _Found(one, lost=one.lost) for one in app.call(lambda client: _in_place(app, client))
        ]
        return _tell_repaired(app, read, found)
    broken += app.call(lambda client: _in_place(app, client))
    if app.is_for_people:
        app.say(f"read {counted(read.blobs, 'blob')}, {size_text(read.bytes)}")
    write_list(
        app,
        broken,
        columns=_COLUMNS,
        record=_record,
        name="digest",
        none="nothing is damaged or missing"
        if not read.damaged
        else f"{counted(read.damaged, 'blob')} are damaged, and nothing refers to them",
    )
    if app.is_for_people:
        for kind in sorted({one.kind for one in broken} & _ADVICE.keys()):
            app.say(f"  {kind}: {_ADVICE[kind]}")
    return ExitCode.FAILED if broken or read.damaged else ExitCode.OK


def _tell_repaired(app: App, read: _Read, found: list[_Found]) -> int:
    """Report the repairs and their sources, and remaining losses; return the exit code."""
    left = [one for one in found if one.lost]
    if app.is_for_people:
        app.say(f"read {counted(read.blobs, 'blob')}, {size_text(read.bytes)}")
    write_list(
        app,
        found,
        columns=_REPAIR_COLUMNS,
        record=_repair_record,
        name="digest",
        none="nothing that anything refers to is damaged or missing",
    )
    if app.is_for_people:
        if read.damaged:
            app.say(f"{counted(read.damaged, 'blob')} are damaged, and nothing refers to them")
        for one in left:
            for reason in one.reasons:
                app.say(f"  {one.broken.digest[:12]}: {reason}")
        for kind in sorted({one.broken.kind for one in left} & _ADVICE.keys()):
            app.say(f"  {kind}: {_ADVICE[kind]}")
    return ExitCode.FAILED if left or read.damaged else ExitCode.OK


async def _all_repaired(client: Client, broken: list[BrokenContent]) -> list[_Found]:
    return [await _repaired(client, one) for one in broken]


async def _repaired(client: Client, broken: BrokenContent) -> _Found:
    """Have nodes upload lost blobs again, as long as they have some."""
    found = _Found(broken, {one.digest: one.source for one in broken.repaired}, broken.lost)
    is_first, most, in_vain = True, 0, 0
    while found.lost and in_vain < _MOST_IN_VAIN:
        answer = await client.repair_content(broken.digest, is_from_start=is_first)
        is_first, count = False, answer.nodes_in_vain
        in_vain = 0 if answer.repaired or count > most else in_vain + 1
        # After a repair all nodes are asked again for the rest.
        most = 0 if answer.repaired else max(most, count)
        found.sources |= {one.digest: one.source for one in answer.repaired}
        found.lost, found.lost_digests = answer.lost, tuple(answer.lost_digests)
        found.reasons = tuple(answer.reasons)
        if not (answer.repaired or answer.is_partial):
            break
    return found


async def _verified(
    app: App, client: Client, *, repairs: bool
) -> tuple[_Read, list[BrokenContent]]:
    from nsml.v1.content_pb2 import VerifyStorageResponse

    read: _Read = VerifyStorageResponse()
    broken = []
    told_at = app.clock.monotonic()
    answers: AsyncGenerator[_Read, None] = (
        client.repair_storage() if repairs else client.verify_storage()
    )
    async for answer in answers:
        if answer.HasField("broken"):
            broken.append(answer.broken)
            continue
        read = answer
        now = app.clock.monotonic()
        if now - told_at >= _TOLD_EVERY_S:
            app.say(f"read {counted(read.blobs, 'blob')}, {size_text(read.bytes)}")
            told_at = now
    return read, broken


async def _in_place(app: App, client: Client) -> list[BrokenContent]:
    """Return datasets in place with changed files, listed as lost."""
    from cli.data.in_place import changed_in_place
    from nsml.client.errors import ClientError
    from nsml.content.errors import ContentError
    from nsml.content.in_place import changes_text
    from nsml.v1.content_pb2 import BrokenContent

    found = []
    for one in await _versions_in_place(client):
        name = f"{one.owner}/{one.name}@{one.version}"
        try:
            changed = await changed_in_place(client, one)
        except (ClientError, ContentError, OSError) as error:
            app.say(f"note: {name}, in place at {one.in_place}, was not compared: {error}")
            continue
        if changed is None:
            app.say(f"note: {name} is in place at {one.in_place}, which this machine does not have")
        elif changed.count:
            app.say(f"{name}, in place at {one.in_place}: {changes_text(changed)}")
            found.append(
                BrokenContent(
                    kind=_IN_PLACE,
                    owner=one.owner,
                    names=[name],
                    digest=one.digest,
                    lost=changed.count,
                )
            )
    return found


async def _versions_in_place(client: Client) -> list[Dataset]:
    """Return all versions in place that are not removed, not only the newest."""
    from nsml.client.errors import NotFound

    found = []
    for newest in await client.datasets.every():
        with suppress(NotFound):  # removed since
            versions = await client.datasets.versions(f"{newest.owner}/{newest.name}")
            found += [one for one in versions if one.in_place]
    return found


def _sources(found: _Found) -> str:
    """Return `3 from node node-1, 1 from pack 0f...`; `-` if nothing was repaired."""
    by_source = Counter(found.sources.values())
    texts = [f"{count:,} from {source}" for source, count in sorted(by_source.items())]
    more = len(texts) - _MOST_NAMES
    return ", ".join([*texts[:_MOST_NAMES], *([f"and {more} more"] if more > 0 else [])]) or "-"


def _repair_record(found: _Found) -> dict[str, Any]:
    return {
        **_record(found.broken),
        "lost": found.lost,
        "lost_digests": list(found.lost_digests),
        "repaired": [{"digest": one, "from": source} for one, source in found.sources.items()],
        "reasons": list(found.reasons),
    }


def _names(one: BrokenContent) -> str:
    names = list(one.names[:_MOST_NAMES])
    more = len(one.names) - len(names)
    return ", ".join([*names, f"and {more} more"] if more else names) or one.owner or "-"


def _lost_text(one: BrokenContent, lost: int | None = None) -> str:
    """Return the unrepaired losses: `3 blobs`, `1 file`."""
    count = one.lost if lost is None else lost
    return counted(count, "file" if one.kind == _IN_PLACE else "blob")


def _record(one: BrokenContent) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "owner": one.owner or None,
        "names": list(one.names),
        "digest": one.digest,
        "lost": one.lost,
    }


_COLUMNS: tuple[Column[BrokenContent], ...] = (
    Column(key="kind", title="Kind", cell=lambda one, _: one.kind),
    Column(key="of", title="Of", cell=lambda one, _: _names(one), is_name=True),
    Column(key="lost", title="Damaged", cell=lambda one, _: _lost_text(one)),
    Column(key="digest", title="Content", cell=lambda one, _: one.digest[:12]),
)

_REPAIR_COLUMNS: tuple[Column[_Found], ...] = (
    Column(key="kind", title="Kind", cell=lambda one, _: one.broken.kind),
    Column(key="of", title="Of", cell=lambda one, _: _names(one.broken), is_name=True),
    Column(key="repaired", title="Blobs repaired", cell=lambda one, _: _sources(one)),
    Column(
        key="lost",
        title="Still damaged",
        cell=lambda one, _: _lost_text(one.broken, one.lost),
    ),
    Column(key="digest", title="Content", cell=lambda one, _: one.broken.digest[:12]),
)
