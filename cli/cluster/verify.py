"""doctor storage: read all that the platform has stored, and say what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cli.exits import ExitCode
from cli.group import command, pass_app
from cli.output import write_list
from nsml.common.units import counted, size_text
from nsml.view.tables import Column

if TYPE_CHECKING:
    from cli.app import App
    from nsml.client.calls import Client
    from nsml.v1.content_pb2 import BrokenContent, VerifyStorageResponse

_TOLD_EVERY_S: Final = 5.0
_MOST_NAMES: Final = 3
_IN_PLACE: Final = "datasets in place"
_ADVICE: Final = {
    "datasets": "push the same files again: nsml dataset push NAME PATH",
    _IN_PLACE: "nsml dataset add NAME --in-place PATH makes a version of what is there",
    "checkpoints": "nsml model ls SESSION lists them, nsml model rm SESSION CHECKPOINT removes one",
    "artifacts": "nsml artifact ls SESSION lists them, nsml artifact rm SESSION NAME@VERSION removes one",
}


@command("storage", reads=True, examples=["nsml doctor storage", "nsml doctor storage -j"])
@pass_app
def storage(app: App) -> int:
    """Read everything that the platform has stored, and say what is damaged or missing. For administrators.

    Of datasets in place the newest versions are compared with their files, where this machine has them.
    Nothing is changed, but that damaged parts count as missing: the next push of a folder that has them
    sends them again. Exit code 1 when anything is damaged.
    """
    read, broken = app.call(lambda client: _verified(app, client))
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


async def _verified(app: App, client: Client) -> tuple[VerifyStorageResponse, list[BrokenContent]]:
    from nsml.v1.content_pb2 import VerifyStorageResponse

    read, broken = VerifyStorageResponse(), []
    told_at = app.clock.monotonic()
    async for answer in client.verify_storage():
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
    """Datasets in place whose files are not what they were, with the changed ones as what is lost."""
    from cli.data.in_place import changed_in_place
    from nsml.client.errors import ClientError
    from nsml.content.errors import ContentError
    from nsml.content.in_place import changes_text
    from nsml.v1.content_pb2 import BrokenContent

    found = []
    for one in [one for one in await client.datasets.every() if one.in_place]:
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


def _names(one: BrokenContent) -> str:
    names = list(one.names[:_MOST_NAMES])
    more = len(one.names) - len(names)
    return ", ".join([*names, f"and {more} more"] if more else names) or one.owner or "-"


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
    Column(key="lost", title="Blobs lost", cell=lambda one, _: f"{one.lost:,}"),
    Column(key="digest", title="Content", cell=lambda one, _: one.digest[:12]),
)
