"""Uploads checkpoints and artifacts of one replica to the object store.

The SDK saves either as a folder and then logs it in a record. The record is noted here, on
disk, before it is passed on, so that after a crash the next agent knows what is still to be sent.
Of several checkpoints of one name only the newest is sent; artifacts are all sent, and then their folders removed.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import structlog

from nodeagent.collect.pace import CountedLog, Patience
from nodeagent.folders import ReplicaFolder, ReplicaId, write_atomically
from nodeagent.safe_paths import open_folder, path_of, remove_folder
from nodeagent.storage.file_lists import MOST_NAME_CHARS, regular_files
from nodeagent.storage.holes import SPARSE_TIMES, data_bytes, may_be_sparse
from nodeagent.storage.media import MediaUploads
from nodeagent.storage.sealed_checkpoints import Opened, forget, is_copy, keep, opened, parts_of
from nodeagent.storage.transfer import Weighed, is_passing, put_tree, uninterrupted
from nsml._checkpoints import ARTIFACT
from nsml._copies import seal
from nsml._path_text import recorded_name
from nsml.client.errors import ClientError, MissingBlobs, NotEnough
from nsml.client.rpc import Rpc
from nsml.common.clock import Clock, Offload, SystemClock
from nsml.common.concurrency import TaskGroup
from nsml.common.units import counted, size_text
from nsml.content.errors import ChangedWhilePacking, ContentError, Unreadable
from nsml.content.packing import Packed, pack_files
from nsml.content.paths import native_parts
from nsml.content.safe_paths import beneath
from nsml.spec.output_datasets import KEPT_FILES
from nsml.v1 import artifacts_pb2
from nsml.v1 import checkpoints_pb2 as pb

_LARGEST = 16 << 40
_SPARSE_BYTES = 4 << 30
"""Bytes of holes that a checkpoint may have, beside SPARSE_TIMES its data."""
_LONGEST_NAME = 512
_LONGEST_SEAL = 128
_HELD_BYTES = 1 << 20
"""Bytes of memory for pending ones, about; the last one may exceed it."""
_LONGEST_REASON = 500
_MOST_MISSING = 10
"""Checkpoints without a folder that are reported lost at once, of those noticed together."""
_MOST_UNNOTED = 64
_MOST_HELD = 1_000
_MOST_HELD_BYTES = 64 << 10
"""Checkpoints, and bytes of their names, in one query whether they are still kept."""
_MOST_GIVEN_UP = 20
"""Unreadable or changing kept files that are left out per replica: each time all are read again."""
LEFT_OUT = "left out: "
"""Prefix of `SavedCheckpoint.left_out`."""
_FILE_BYTES = 100
"""Bytes of memory of a path in a list, beyond its letters."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint or an artifact, as in its record.

    `folder` is relative to the replica's checkpoints, `files` to the folder, as text (`nsml._path_text`). `seal` shows whether they
    have changed since; "" from an older SDK. `is_whole`: all regular files of the folder, where nobody writes any more, and no
    list. `step`: of an artifact. `lost`: why there is nothing to send; `left_out`:
    what is missing from it, for people. `dropped`: paths of files left out during the upload, and why.
    `is_optional`: it is lost, and not retried, if the platform has no room for it.
    """

    name: str
    folder: str
    saved_at: float
    files: tuple[str, ...] = ()
    is_whole: bool = False
    seal: str = ""
    is_artifact: bool = False
    step: float | None = None
    lost: str = ""
    left_out: str = ""
    dropped: Mapping[str, str] = field(default_factory=dict)
    is_optional: bool = False

    @property
    def kind(self) -> str:
        """Its name in the log."""
        return "artifact" if self.is_artifact else "checkpoint"

    @property
    def key(self) -> tuple[bool, str]:
        """Of two with one key only the newer is sent."""
        return self.is_artifact, self.folder if self.is_artifact else self.name

    @property
    def is_kept_files(self) -> bool:
        """Whether it is the kept files of the working folder, and not an artifact of that name."""
        return self.is_whole and self.name == KEPT_FILES

    def all_left_out(self, *, is_named: bool) -> str:
        """Describe what is left out, for people; `is_named`: with the names of dropped files, else only their number."""
        by_reason: dict[str, list[str]] = {}
        for path, why in self.dropped.items():
            by_reason.setdefault(why, []).append(path[:MOST_NAME_CHARS])
        # First: the platform truncates long texts.
        found = []
        for why, paths in by_reason.items():
            names = f": {', '.join(paths)}" if is_named else ""
            found.append(f"{counted(len(paths), 'file')} ({why}){names}")
        before = self.left_out.removeprefix(LEFT_OUT)
        text = "; ".join([*found, before] if before else found)
        return text and f"{LEFT_OUT}{text}"

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> SavedCheckpoint | None:
        """Return the checkpoint or artifact of a record, or None if no SDK writes such a record, or it was lost at once."""
        name, folder, saved_at = record.get("name"), record.get("folder"), record.get("time")
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            return None
        is_artifact = record.get("kind") == "artifact"
        if not isinstance(folder, str) or not _is_folder(folder, is_artifact=is_artifact):
            return None
        if isinstance(saved_at, bool) or not isinstance(saved_at, int | float):
            return None
        match record.get("files"):
            case [*files] if all(_is_file(file) for file in files):
                paths = tuple(path for path, _ in files)
            case _:
                return None
        seal = record.get("seal", "")
        if not 0 <= saved_at < 1 << 33 or not isinstance(seal, str) or len(seal) > _LONGEST_SEAL:
            return None
        return cls(
            name=recorded_name(name),
            folder=folder,
            saved_at=float(saved_at),
            files=paths,
            seal=seal,
            is_artifact=is_artifact,
            step=_finite(record.get("step")) if is_artifact else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyResult:
    """All that is sent of a sealed session: its first artifact of this name, of at most so many bytes.

    What nobody reads would tell its user something, too, by how much there is: in figures of storage, say.
    """

    name: str
    most_bytes: int


_NOT_SENDABLE = (ContentError, OSError, ValueError)
"""Errors of files, and of paths that a program wrote."""


class CheckpointChanged(ValueError):
    """Its files have changed since it was saved."""


class Uploads:
    """Uploads the checkpoints and artifacts of one replica, one after the other, and in parallel its media.

    Args:
        replica_id, folder: the replica and its folder.
        rpc: returns the current connection.
        run: runs disk work in a thread.
        pause: awaited before a retry.
        clock: times log lines and retries.
        only: what is sent; None: everything.
    """

    def __init__(
        self,
        replica_id: ReplicaId,
        folder: ReplicaFolder,
        *,
        rpc: Callable[[], Rpc],
        run: Offload,
        pause: Callable[[], Awaitable[None]],
        clock: Clock | None = None,
        only: OnlyResult | None = None,
    ) -> None:
        self._only = only
        self._result = ""
        """Folder of the only result; "": none was reported yet."""
        self._noted_result = ""
        clock = clock or SystemClock()
        self._said = CountedLog(str(replica_id), clock)
        self._patience = Patience(clock)
        self._replica_id = replica_id
        self._folder = folder
        self._rpc = rpc
        self._run = run
        self._pause = pause
        self.media = MediaUploads(replica_id, folder, rpc=rpc, run=run, pause=pause, clock=clock)
        self._pending: dict[tuple[bool, str], SavedCheckpoint] = {}
        self._sent: dict[tuple[bool, str], dict[str, Any]] = {}
        """Commit arguments of pending ones that are in the object store already."""
        self._durable: dict[str, str] = {}
        """Folders of durable checkpoints, by name; those from before a restart are unknown."""
        self._kept_files: SavedCheckpoint | None = None
        """The kept files with their outcome, once they are not pending any more."""
        self._held = 0
        self._given_up = 0
        self._weighed: dict[tuple[bool, str], Weighed] = {}
        """Of uploads without room, so that no retry compresses anything again."""
        self._unnoted = 0
        self._changed = asyncio.Event()
        self._fewer = asyncio.Event()
        self._noting = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def _noted(self) -> Path:
        return self._folder.path / "uploads.json"

    async def restore(self) -> None:
        """Restore the pending uploads of an earlier agent."""
        if self._only is None:
            self.media.look()
        else:
            self._result = self._noted_result = await self._read(self._folder.result) or ""
        noted = await self._read(self._noted) or []
        saved = [SavedCheckpoint(**{**item, "files": tuple(item["files"])}) for item in noted]
        self._pending = {one.key: one for one in saved}
        if self._only is not None and saved and not self._result:  # of an agent that noted none
            self._result = saved[0].folder
        self._held = sum(map(_size, self._pending.values()))
        self._tell()

    async def existing(self, checkpoints: Iterable[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Return those with a folder, one for each: the SDK gives every checkpoint its own before it reports it.

        The others are false reports, or older than a sent one of the same name: they are not sent. Raises OSError if a
        result cannot be noted.
        """
        newest = {one.folder: one for one in checkpoints if self._is_wanted(one)}
        await self._note_result()
        missing = await uninterrupted(self._run, partial(self._missing, tuple(newest)))
        lost = [(newest.pop(folder), error) for folder, error in missing.items()]
        for checkpoint, error in lost:
            self._log("lost", checkpoint, error)
        # A program removes one or two; many false ones are reported at the attempt's end.
        with suppress(ClientError):  # reported later too if the platform does not answer
            for checkpoint, error in lost[-_MOST_MISSING:]:
                await self._report_loss(checkpoint, error)
        return list(newest.values())

    def _is_wanted(self, checkpoint: SavedCheckpoint) -> bool:
        if self._only is None:
            return True
        is_it = checkpoint.is_artifact and checkpoint.name == self._only.name
        if not is_it or self._result not in {"", checkpoint.folder}:
            return False
        self._result = checkpoint.folder
        return True

    async def _read(self, note: Path) -> Any:
        """Return what an earlier agent noted; None: nothing that can be read."""
        try:
            return json.loads(await self._run(note.read_bytes))
        except FileNotFoundError:
            return None
        except ValueError as error:  # cut short by a power loss
            log.warning("uploads.unreadable", replica=str(self._replica_id), error=str(error))
            return None

    async def _note_result(self) -> None:
        """Note the only result before it is sent: the next agent sends no other one. Raises OSError."""
        if self._only is None or self._result == self._noted_result:
            return
        result, content = self._folder.result, json.dumps(self._result).encode()
        await uninterrupted(self._run, partial(write_atomically, result, content, is_durable=True))
        self._noted_result = self._result

    def add_media(self, file: str) -> None:
        """Send a file of the folder `media`, named by a record."""
        if self._only is None:
            self.media.add(file)

    def _missing(self, folders: Iterable[str]) -> dict[str, Exception]:
        """Return why each of these cannot be opened, now or later."""
        found: dict[str, Exception] = {}
        for folder in folders:
            try:
                with opened(self._folder, folder):
                    continue
            except _NOT_SENDABLE as error:
                if not is_passing(error):
                    found[folder] = error
        return found

    async def add_found(self, *checkpoints: SavedCheckpoint) -> bool:
        """Add what another agent would find again, even if it cannot be noted, as on a full disk; return whether it was."""
        try:
            await self.add(*checkpoints)
        except OSError as error:
            log.warning("uploads.not_noted", replica=str(self._replica_id), error=str(error))
            self._tell()
            return False
        return True

    async def add(self, *checkpoints: SavedCheckpoint) -> None:
        """Note checkpoints; on return the next agent knows them, whatever ends this one.

        Waits while others hold too much: records of programs that save faster than the upload are read later.
        """
        is_noted = True
        for checkpoint in checkpoints:
            await self._keep(checkpoint)
            before = self._pending.get(checkpoint.key)
            while self._held - (_size(before) if before else 0) >= _HELD_BYTES:
                if not is_noted:
                    await self._note()
                    is_noted = True
                    self._tell()
                    continue
                self._fewer.clear()
                await self._fewer.wait()
                before = self._pending.get(checkpoint.key)
            self._drop(checkpoint)
            self._pending[checkpoint.key] = checkpoint
            self._held += _size(checkpoint)
            is_noted = False
        if not is_noted:
            await self._note()
        self._tell()

    async def work(self) -> None:
        """Send pending uploads until cancelled."""
        try:
            async with TaskGroup() as group:
                group.create_task(self.media.work())
                await self._send_checkpoints()
        finally:
            self._said.close()

    async def _send_checkpoints(self) -> NoReturn:
        while True:
            await self._changed.wait()
            for checkpoint in tuple(self._pending.values()):
                if self._pending.get(checkpoint.key) is checkpoint:
                    await self._send(checkpoint)
            if self._unnoted:
                await self._note_ends()
            self._changed.clear()
            self._tell()

    async def finished(self) -> None:
        """Return once nothing is pending: every checkpoint is durable, overwritten or lost, all media sent."""
        await self._idle.wait()
        if self._only is None:
            await self.media.finished()

    async def kept_files(self) -> SavedCheckpoint | None:
        """Wait until the files of the working folder are durable or lost, and return their outcome; None: none were pending."""
        while any(one.is_kept_files for one in self._pending.values()):
            self._fewer.clear()
            await self._fewer.wait()
        return self._kept_files

    async def _send(self, checkpoint: SavedCheckpoint) -> None:
        is_durable, end = True, checkpoint
        try:
            await self._upload(checkpoint)
        except (ClientError, *_NOT_SENDABLE) as error:
            is_given_up = checkpoint.is_optional and isinstance(error, NotEnough)
            if is_passing(error) and not is_given_up:
                self._log("delayed", checkpoint, error)
                await self._patience.wait(error, self._pause)
                return
            if await self._is_less(checkpoint, error):
                return
            self._log("lost", checkpoint, error)
            is_durable, end = False, replace(checkpoint, lost=_reason(error))
            try:
                await self._report_loss(checkpoint, error)
            except ClientError as away:
                self._log("delayed", checkpoint, away)
                await self._patience.wait(away, self._pause)
                return
        self._patience.reset()
        if self._pending.get(checkpoint.key) is checkpoint:
            self._drop(checkpoint)
            if end.is_kept_files:
                self._kept_files = end
            self._fewer.set()
            self._unnoted += 1
            # A lost one costs the next agent a look; a durable one, reading all of it.
            if is_durable or self._unnoted >= _MOST_UNNOTED:
                await self._note_ends()
            if checkpoint.is_artifact:
                await uninterrupted(self._run, partial(self._remove, checkpoint.folder))

    async def _is_less(self, checkpoint: SavedCheckpoint, error: Exception) -> bool:
        """Leave out the kept file that caused the error; return whether the others are to be sent without it."""
        if not (checkpoint.is_kept_files and isinstance(error, ChangedWhilePacking | Unreadable)):
            return False
        if error.path == ".":  # the folder itself: no file can be left out
            return False
        self._given_up += 1
        if self._given_up > _MOST_GIVEN_UP or self._pending.get(checkpoint.key) is not checkpoint:
            return False
        removing = partial(self._remove_file, checkpoint.folder, error.path)
        if not await uninterrupted(self._run, removing):
            return False
        self._log("without", checkpoint, error)
        why = "cannot be read" if isinstance(error, Unreadable) else "changed while being sent"
        dropped = {**checkpoint.dropped, error.path: why}
        self._sent.pop(checkpoint.key, None)
        self._pending[checkpoint.key] = replace(checkpoint, dropped=dropped)
        await self._note_ends()
        return True

    def _remove_file(self, folder: str, path: str) -> bool:
        """Remove one file from a folder and its kept copy; return whether it is gone from both."""
        try:
            *above, name = native_parts(path)
            entry, *inner = parts_of(folder)
            for root, parts in ((self._folder.run, ["checkpoints"]), (self._folder.kept, [])):
                with (
                    suppress(FileNotFoundError),
                    open_folder(root, [*parts, entry, *inner, *above]) as here,
                ):
                    os.unlink(name, dir_fd=here)
        except _NOT_SENDABLE:  # then everything is lost, with a reason
            return False
        return True

    async def _note_ends(self) -> None:
        try:
            await self._note()
        except OSError as error:  # the next agent sends it again, which changes nothing
            self._said.say("checkpoint.end_not_noted", error=str(error))

    def _drop(self, checkpoint: SavedCheckpoint) -> None:
        before = self._pending.pop(checkpoint.key, None)
        self._sent.pop(checkpoint.key, None)
        self._weighed.pop(checkpoint.key, None)
        if before is not None:
            self._held -= _size(before)

    async def _upload(self, checkpoint: SavedCheckpoint) -> None:
        if checkpoint.lost:
            raise CheckpointChanged(checkpoint.lost)
        outcome = self._sent.get(checkpoint.key) or await self._put(checkpoint)
        if self._pending.get(checkpoint.key) is checkpoint:
            self._sent[checkpoint.key] = outcome
        try:
            await self._commit(checkpoint, **outcome)
        except MissingBlobs:
            self._sent.pop(checkpoint.key, None)
            raise
        self._log("durable", checkpoint, None)
        if not checkpoint.is_artifact:
            await uninterrupted(self._run, partial(self._remove_older, checkpoint.folder))

    async def _put(self, checkpoint: SavedCheckpoint) -> dict[str, Any]:
        """Upload its files; return digest, size and number of files, as they are committed."""
        # Kept open while it is read: a folder that user code puts in its place is another one.
        with ExitStack() as stack:
            opening = opened(self._folder, checkpoint.folder)
            found = await uninterrupted(self._run, partial(stack.enter_context, opening))
            owner = os.geteuid() if found.is_kept else self._folder.run.stat().st_uid
            most = _LARGEST if self._only is None else self._only.most_bytes
            packing = partial(_packed, found, checkpoint, owner, most)
            packed = await uninterrupted(self._run, packing)
            digest = await put_tree(
                self._rpc(),
                packed,
                self._run,
                session_id=self._replica_id.session_id,
                weighed=self._weighed.setdefault(checkpoint.key, Weighed()),
            )
        self._weighed.pop(checkpoint.key, None)
        return {
            "digest": digest,
            "size_bytes": packed.manifest.size,
            "file_count": len(packed.manifest.entries),
        }

    async def _commit(self, checkpoint: SavedCheckpoint, **outcome: Any) -> None:
        if checkpoint.is_artifact:
            await self._commit_artifact(checkpoint, **outcome)
            return
        request = pb.CommitCheckpointRequest(
            session_id=self._replica_id.session_id,
            attempt=self._replica_id.attempt,
            name=checkpoint.name,
            **outcome,
        )
        request.saved_at.FromMicroseconds(round(checkpoint.saved_at * 1e6))
        self._durable.pop(checkpoint.name, None)
        if not request.why_lost:
            request.held.extend(_within(_MOST_HELD_BYTES, islice(self._durable, _MOST_HELD)))
        answer = await self._rpc().unary(
            "CheckpointService/CommitCheckpoint", request, pb.CommitCheckpointResponse
        )
        if not request.why_lost:  # a lost one need not exist, nor be a checkpoint
            self._durable[checkpoint.name] = checkpoint.folder
            await self._remove_removed(answer.removed)

    async def _remove_removed(self, names: Iterable[str]) -> None:
        """Remove the copies of checkpoints that the platform has removed, but none that was saved again and is pending.

        Its program cannot load them any more, either; but its last one stays until a later one is durable.
        """
        for name in names:
            folder = self._durable.pop(name, "")
            if folder and (False, name) not in self._pending:
                await uninterrupted(self._run, partial(self._remove, folder))

    async def _commit_artifact(self, artifact: SavedCheckpoint, **outcome: Any) -> None:
        request = artifacts_pb2.CommitArtifactRequest(
            session_id=self._replica_id.session_id,
            attempt=self._replica_id.attempt,
            rank=self._replica_id.rank,
            folder=artifact.folder,
            name=artifact.name,
            step=artifact.step,
            left_out=artifact.all_left_out(is_named=False),
            **outcome,
        )
        request.saved_at.FromMicroseconds(round(artifact.saved_at * 1e6))
        await self._rpc().unary(
            "ArtifactService/CommitArtifact", request, artifacts_pb2.CommitArtifactResponse
        )

    async def _report_loss(self, checkpoint: SavedCheckpoint, error: Exception) -> None:
        """Report the loss to the platform, and through it to the owner; raises temporary errors."""
        try:
            await self._commit(checkpoint, why_lost=_reason(error)[:_LONGEST_REASON])
        except ClientError as refused:
            if is_passing(refused):
                raise
            self._log("loss_not_reported", checkpoint, refused)

    async def _keep(self, checkpoint: SavedCheckpoint) -> None:
        """Take it from the program, if the SDK could not request that on saving."""
        try:
            await uninterrupted(self._run, partial(_keep_unchanged, self._folder, checkpoint))
        except _NOT_SENDABLE as error:  # then it is checked when it is sent
            log.debug("checkpoint.not_kept", replica=str(self._replica_id), error=str(error))

    def _remove(self, folder: str) -> None:
        """Delete the folder of an artifact or a checkpoint that is not read any more."""
        with suppress(ValueError):
            entry, *_ = parts_of(folder)
            for root, parts in ((self._folder.run, ["checkpoints"]), (self._folder.kept, [])):
                with suppress(OSError), open_folder(root, parts) as above:
                    remove_folder(entry, above)

    def _remove_older(self, folder: str) -> None:
        """Delete earlier checkpoints of the same name: `<number>-<escaped name>`, lower numbers."""
        number, dash, escaped = folder.split("/", maxsplit=1)[0].partition("-")
        if not dash or not number.isdecimal():
            return
        for root, parts in ((self._folder.run, ["checkpoints"]), (self._folder.kept, [])):
            with (
                suppress(FileNotFoundError),
                open_folder(root, parts) as checkpoints,
                os.scandir(checkpoints) as found,
            ):
                for entry in found:
                    other, _, name = entry.name.partition("-")
                    if name == escaped and other.isdecimal() and int(other) < int(number):
                        with suppress(OSError):
                            remove_folder(entry.name, checkpoints)

    async def _note(self) -> None:
        # one at a time: the last write must be the current state
        async with self._noting:
            pending, self._unnoted = tuple(self._pending.values()), 0
            await uninterrupted(self._run, partial(_write_note, self._noted, pending))

    def _tell(self) -> None:
        if self._pending:
            self._idle.clear()
            self._changed.set()
        else:
            self._idle.set()

    def _log(self, event: str, checkpoint: SavedCheckpoint, error: Exception | None) -> None:
        told = {} if error is None else {"error": str(error)}
        self._said.say(f"{checkpoint.kind}.{event}", **{checkpoint.kind: checkpoint.name}, **told)


def _reason(error: Exception) -> str:
    """Why a checkpoint is lost, for its owner."""
    match error:
        case ClientError():
            return error.message
        case FileNotFoundError() | NotADirectoryError():
            return "its folder was removed after it was saved"
        case OSError():
            return error.strerror or str(error)
    return _sendable(str(error)) or type(error).__name__


def _sendable(text: str) -> str:
    """Replace what is not UTF-8: programs may write it as JSON."""
    return text.encode(errors="replace").decode()


def _write_note(path: Path, pending: Sequence[SavedCheckpoint]) -> None:
    content = json.dumps([asdict(item) for item in pending]).encode()
    # The record is passed on after this: after a power loss it must not be all that is left.
    write_atomically(path, content, is_durable=True)


def _within(most_bytes: int, names: Iterable[str]) -> Iterator[str]:
    """Yield the first names that fit into so many bytes."""
    for name in names:
        most_bytes -= len(name.encode())
        if most_bytes < 0:
            return
        yield name


def _size(checkpoint: SavedCheckpoint) -> int:
    return sum(_FILE_BYTES + len(path) for path in (checkpoint.name, *checkpoint.files))


@contextmanager
def blobs_of(
    folder: ReplicaFolder, checkpoint: str, root: str, wanted: Collection[str]
) -> Iterator[Iterator[tuple[str, bytes]]]:
    """Return blobs of a checkpoint's folder, if it still is the tree `root`, each verified by its digest. Blocking.

    Raises CheckpointChanged if it is another tree; OSError, ValueError, ContentError.
    """
    saved = SavedCheckpoint(name=root, folder=checkpoint, saved_at=0.0, is_whole=True)
    with opened(folder, checkpoint) as found:
        owner = os.geteuid() if found.is_kept else folder.run.stat().st_uid
        packed = _packed(found, saved, owner)
        if packed.manifest.root.digest != root:
            raise CheckpointChanged("its files are other ones now")
        chunks = [name for name in packed.manifest.blobs() if name in wanted]
        with (
            closing(packed.source.batches(chunks, max_bytes=1)) as batches,
            closing(packed.manifest.naming_blobs(wanted)) as naming,
        ):
            yield chain(chain.from_iterable(batches), naming)


def _packed(
    found: Opened, checkpoint: SavedCheckpoint, owner: int, most_bytes: int = _LARGEST
) -> Packed:
    """Describe its files; raises CheckpointChanged if they differ from the saved ones.

    Files larger than all data on the disk have holes, and could take days to read.
    """
    root = path_of(found.descriptor)
    most = min(most_bytes, shutil.disk_usage(root).used)
    _check_seal(found, checkpoint)
    files = tuple(regular_files(found.descriptor)) if checkpoint.is_whole else checkpoint.files
    _refuse_sparse(root, files)
    packed = pack_files(root, files, max_bytes=most, owner=owner)
    _check_seal(found, checkpoint)
    return packed


def _refuse_sparse(root: Path, files: Iterable[str]) -> None:
    """Raise ValueError for files that are nearly all holes, or the same one under many names; OSError."""
    size = held = 0
    seen: set[int] = set()
    with beneath(root) as folder:
        for path in files:
            facts = folder.lstat(native_parts(path))
            size += facts.st_size
            if facts.st_ino in seen:
                continue
            seen.add(facts.st_ino)
            if not may_be_sparse(facts):
                held += facts.st_size
                continue
            file = folder.open_file(native_parts(path))
            try:
                held += data_bytes(file)
            finally:
                os.close(file)
    if size > _SPARSE_BYTES + SPARSE_TIMES * held:
        raise ValueError(
            f"its files have {size_text(size)}, and {size_text(held)} of data: the rest is holes or repeated"
        )


def _check_seal(place: Opened, checkpoint: SavedCheckpoint) -> None:
    """Raise CheckpointChanged, OSError. Of files that the agent touched only their content's time counts."""
    if not checkpoint.seal:
        return
    found = []
    with beneath(path_of(place.descriptor)) as folder:
        for path in checkpoint.files:
            try:
                found.append((path, folder.lstat(native_parts(path))))
            except FileNotFoundError as error:
                raise CheckpointChanged(f"{path} was removed after it was saved") from error
    if place.is_kept and any(is_copy(facts) for _, facts in found):
        return  # copies have other inodes and times
    half = len(checkpoint.seal) // 2
    start = half if place.is_kept or place.is_touched else 0
    if seal(found)[start:] != checkpoint.seal[start:]:
        what = max(found, key=lambda one: one[1].st_ctime_ns)[0] if found else checkpoint.folder
        raise CheckpointChanged(f"{what} was changed after it was saved")


def _keep_unchanged(folder: ReplicaFolder, checkpoint: SavedCheckpoint) -> None:
    """Keep a checkpoint. Raises OSError, ValueError if it cannot be kept, or has changed."""
    if not checkpoint.seal:
        keep(folder, checkpoint.folder)
        return
    with opened(folder, checkpoint.folder) as found:
        if found.is_kept:
            return
        _check_seal(found, checkpoint)
        keep(folder, checkpoint.folder)
        try:
            _check_seal(found._replace(is_touched=True), checkpoint)
        except BaseException:
            forget(folder, checkpoint.folder)
            raise


def _is_folder(folder: str, *, is_artifact: bool) -> bool:
    """Return whether it fits a checkpoint, or an artifact, and not the other: an artifact's folder is removed once it is sent."""
    try:
        number, _, name = parts_of(folder)[0].partition("-")
    except ValueError:
        return False
    return number[:1] != "0" and (name == ARTIFACT) is is_artifact


def _finite(number: object) -> float | None:
    """Return the number; None if it is not a finite one."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    try:
        return float(number) if math.isfinite(number) else None
    except OverflowError:
        return None


def _is_file(file: object) -> bool:
    match file:
        case [str(), int()]:
            return True
    return False
