"""Write a backup from the control plane's streams to a folder of backups."""

from __future__ import annotations

from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from nsml.client.errors import ClientError
from nsml.content.backups import Manifest, drafting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from pathlib import Path

    from nsml.client.calls import Backups
    from nsml.content.backups import Backup, Draft
    from nsml.v1 import backups_pb2 as pb

_BLOBS_A_CALL: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Blobs in the backup so far, how many of them were copied now, and the bytes copied."""

    blobs: int = 0
    copied: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished backup, and the blobs copied for it."""

    backup: Backup
    progress: Progress


async def take(
    calls: Backups,
    folder: Path,
    *,
    without_objects: bool,
    keys_of: Callable[[str], tuple[Mapping[str, bytes], Mapping[str, Any]]],
) -> Result:
    """Make a backup of the whole platform in `folder`.

    `keys_of` returns the private files and the setup choices of the platform with this id; both
    empty if out of reach.

    Raises:
        ClientError, BackupError, OSError: only blobs were added to the folder.
    """
    with ExitStack() as stack:
        async with aclosing(calls.create(without_objects=without_objects)) as answers:
            first = await anext(answers, None)
            if first is None or first.WhichOneof("kind") != "header":
                raise _broken("it does not begin with what it is of")
            manifest, name = _read_header(first.header)
            draft = stack.enter_context(drafting(folder, name))
            await _receive(answers, draft)
        lost, progress = await _copy_blobs(calls, draft)
        keys, choices = keys_of(manifest.cluster_id)
        for name, content in keys.items():
            draft.add_key(name, content)
        finished = draft.finish(
            replace(manifest, lost=tuple(lost), choices=choices, blob_count=progress.blobs)
        )
        return Result(backup=finished, progress=progress)


def _read_header(header: pb.BackupHeader) -> tuple[Manifest, str]:
    """Return the backup's manifest and name."""
    manifest = Manifest(
        cluster_id=header.cluster_id,
        version=header.version,
        data_version=header.data_version,
        revision=header.revision,
        taken_at=header.taken_at.ToMicroseconds() / 1e6,
    )
    return manifest, header.taken_at.ToDatetime().strftime("%Y%m%dT%H%M%SZ")


async def _receive(answers: AsyncGenerator[pb.CreateBackupResponse, None], draft: Draft) -> None:
    """Write the parts; each ends with its digest before the next one begins."""
    async for answer in answers:
        part = answer.part
        with draft.writing(part.name) as writing:
            writing.write(part.data)
            while not part.digest:
                further = await anext(answers, None)
                if further is None or further.part.name != part.name:
                    raise _broken(f"the part {part.name} does not end")
                part = further.part
                writing.write(part.data)
            if writing.part.digest != part.digest:
                raise _broken(f"the part {part.name} came with other bytes than were sent")


async def _copy_blobs(calls: Backups, draft: Draft) -> tuple[list[str], Progress]:
    """Copy the blobs that the folder lacks; return the digests of the lost ones."""
    lost: list[str] = []
    progress = Progress()
    wanted = draft.digests
    while chosen := list(islice(wanted, _BLOBS_A_CALL)):
        missing = [digest for digest in chosen if not draft.has_blob(digest)]
        progress = replace(progress, blobs=progress.blobs + len(chosen) - len(missing))
        if missing:
            async with aclosing(calls.blobs(missing)) as answers:
                held: list[bytes] = []
                async for answer in answers:
                    if answer.lost:
                        lost.append(answer.digest)
                        held = []
                        continue
                    held.append(answer.data)
                    if not answer.last:
                        continue
                    data, held = b"".join(held), []
                    draft.add_blob(answer.digest, data)
                    progress = Progress(
                        blobs=progress.blobs + 1,
                        copied=progress.copied + 1,
                        copied_bytes=progress.copied_bytes + len(data),
                    )
    return lost, progress


def _broken(why: str) -> ClientError:
    return ClientError("the control plane sent no whole backup", reason="BROKEN_BACKUP", why=why)
