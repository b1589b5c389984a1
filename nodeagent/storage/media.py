"""Uploads media of one replica to the object store.

The SDK writes each file and then logs it in a record. The folder of the files is the upload queue: a
file is removed once the platform has it, or knows that it is lost. So after a crash the next agent
finds exactly the rest, and repeated work changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn

import structlog

from nodeagent.collect.pace import CountedLog, Pace, Patience
from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.safe_paths import open_file, open_folder, path_of
from nodeagent.storage.holes import SPARSE_TIMES, data_bytes, may_be_sparse
from nodeagent.storage.transfer import is_passing, put_tree, uninterrupted
from nsml.client.errors import ClientError
from nsml.client.rpc import Rpc
from nsml.common.clock import Clock, Offload, SystemClock
from nsml.content.errors import ContentError
from nsml.content.media import FILE_NAME, MOST_BYTES
from nsml.content.packing import Packed, pack_files
from nsml.v1 import media_pb2 as pb

FOLDER: Final = "media"
_FILES_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = MOST_BYTES
_FILES_PER_S: Final = 100.0
_BURST_S: Final = 10.0
"""Rate of sent files, and of messages about lost ones, while a replica runs; a session has 100,000 files at most."""
_MOST_REMEMBERED: Final = 100_000
_MISSING: Final = "the file is missing"
_READ_BYTES: Final = 1 << 20
_SPARSE_BYTES: Final = 1 << 20
"""Smaller files may have holes."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Found:
    """Result of one look into the folder: files to send, and why others are lost."""

    whole: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.whole) + len(self.lost)


def file_in(record: Mapping[str, Any]) -> str | None:
    """Return the file named by a record of kind `media`, or None if no SDK writes such a record."""
    name = record.get("file")
    return name if isinstance(name, str) and FILE_NAME.fullmatch(name) else None


class MediaUploads:
    """Sends the files in the folder, some at a time.

    Args:
        replica_id, folder: the replica and its folder.
        rpc: returns the current connection.
        run: runs disk work in a thread.
        pause: awaited before a retry.
        clock: measures the rate of files.
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
    ) -> None:
        clock = clock or SystemClock()
        self._said = CountedLog(str(replica_id), clock)
        self._patience = Patience(clock)
        self._pace = Pace(_FILES_PER_S, clock, burst_s=_BURST_S)
        self._replica_id = replica_id
        self._folder = folder
        self._rpc = rpc
        self._run = run
        self._pause = pause
        self._told: set[str] = set()  # named by records, not sent yet
        self._sent: set[str] = set()  # sent before their records were read
        self._stuck: set[str] = set()  # could not be removed
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()

    def look(self) -> None:
        """Look for files, also of an earlier agent, or of a program that has ended."""
        self._idle.clear()
        self._changed.set()

    def add(self, file: str) -> None:
        """Add a file named by a record."""
        if file in self._sent:
            self._sent.discard(file)
        elif file not in self._stuck and len(self._told) < _MOST_REMEMBERED:
            self._told.add(file)
            self.look()

    async def work(self) -> None:
        """Send files until cancelled."""
        try:
            await self._work()
        finally:
            self._said.close()

    async def _work(self) -> NoReturn:
        while True:
            await self._changed.wait()
            self._changed.clear()
            told = frozenset(self._told)
            while (found := await self._look(told & self._told)).count:
                # Lost files take one message, however many.
                await self._pace.wait(len(found.whole) + bool(found.lost))
                failed = await self._send(found)
                if failed is None:
                    self._patience.reset()
                    await self._forget([*found.whole, *found.lost])
                else:
                    await self._patience.wait(failed, self._pause)
            if not self._changed.is_set():
                self._idle.set()

    async def finished(self) -> None:
        """Return, after the end of the program, once a look begun after this call finds nothing more to send."""
        self._pace.lift()
        self.look()
        await self._idle.wait()

    async def _look(self, told: frozenset[str]) -> _Found:
        while True:
            try:
                return await uninterrupted(self._run, partial(self._found, told))
            except FileNotFoundError:
                return _Found(lost=dict.fromkeys(_some(told), _MISSING))
            except (OSError, ValueError) as error:
                if not is_passing(error):  # a link or a file where the folder was
                    self._log("media.unreadable", error=str(error))
                    return _Found(lost=dict.fromkeys(_some(told), "their folder cannot be read"))
                self._log("media.delayed", error=str(error))
            await self._pause()

    def _found(self, told: frozenset[str]) -> _Found:
        found, size = _Found(), 0
        owner = self._folder.run.stat().st_uid
        with open_folder(self._folder.run, [FOLDER]) as folder:
            there = set()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not FILE_NAME.fullmatch(entry.name) or entry.name in self._stuck:
                        continue
                    there.add(entry.name)
                    if len(there) >= _FILES_AT_ONCE:
                        break
            is_all = len(there) < _FILES_AT_ONCE
            for name in sorted(there):
                try:
                    size += _checked(name, folder, owner)
                except (OSError, ValueError) as error:
                    if is_passing(error):
                        raise
                    found.lost[name] = str(error)
                    continue
                if size > _BYTES_AT_ONCE and found.whole:
                    break
                found.whole.append(name)
        if is_all and not found.count:
            missing = _some(told - there)
            found.lost = dict.fromkeys(missing, _MISSING)
        return found

    async def _send(self, found: _Found) -> Exception | None:
        """Upload and commit; return the error if a retry may help."""
        try:
            root = await self._upload(found)
            await self._commit(root, found)
        except (ClientError, ContentError, OSError) as error:
            if is_passing(error):
                self._log("media.delayed", files=found.count, error=str(error))
                return error
            # The platform rejects it: the session was removed, or was never on this node.
            self._log("media.lost", files=found.count, error=str(error))
        else:
            self._log("media.durable", files=len(found.whole), lost=len(found.lost))
        return None

    async def _upload(self, found: _Found) -> str:
        """Upload the files and return their root; files that can never be sent are lost."""
        try:
            return await self._put(found) if found.whole else ""
        except (ClientError, ContentError, OSError, ValueError) as error:
            if is_passing(error):
                raise
            found.lost.update(dict.fromkeys(found.whole, str(error)))
            found.whole.clear()
            return ""

    async def _put(self, found: _Found) -> str:
        """Upload; files that change or vanish meanwhile are lost, without loss of others."""
        owner = self._folder.run.stat().st_uid
        with open_folder(self._folder.run, [FOLDER]) as descriptor:
            while found.whole:
                packing = partial(_packed, descriptor, tuple(found.whole), owner)
                try:
                    packed = await uninterrupted(self._run, packing)
                    return await put_tree(
                        self._rpc(), packed, self._run, session_id=self._replica_id.session_id
                    )
                except ContentError as error:
                    path = getattr(error, "path", "")
                    if path not in found.whole or is_passing(error):
                        raise
                    found.whole.remove(path)
                    found.lost[path] = str(error)
        return ""

    async def _commit(self, root: str, found: _Found) -> None:
        files = [pb.MediaContent(file=name) for name in found.whole]
        files += [pb.MediaContent(file=name, why_lost=why) for name, why in found.lost.items()]
        request = pb.CommitMediaRequest(
            session_id=self._replica_id.session_id,
            attempt=self._replica_id.attempt,
            rank=self._replica_id.rank,
            root=root,
            files=files,
        )
        await self._rpc().unary("MediaService/CommitMedia", request, pb.CommitMediaResponse)

    async def _forget(self, names: Sequence[str]) -> None:
        """Remove files known to the platform; later records do not make them missing."""
        left = await uninterrupted(self._run, partial(self._remove, names))
        early = set(names) - self._told
        self._told.difference_update(names)
        self._stuck |= left
        if len(self._sent) < _MOST_REMEMBERED:
            self._sent |= early - left

    def _remove(self, names: Sequence[str]) -> set[str]:
        """Remove files; return those that could not be removed."""
        left = set()
        with suppress(OSError, ValueError), open_folder(self._folder.run, [FOLDER]) as folder:
            for name in names:
                try:
                    os.unlink(name, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except OSError:
                    left.add(name)
        return left

    def _log(self, event: str, **told: object) -> None:
        self._said.say(event, **told)


def _some(names: Iterable[str]) -> list[str]:
    return sorted(names)[:_FILES_AT_ONCE]


def _checked(name: str, folder: int, owner: int) -> int:
    """Return the size of a file whose content matches the digest in its name.

    Raises OSError if it cannot be read, ValueError if it is refused.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = open_file(name, folder, flags)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != owner:
            raise ValueError("it is not a regular file of the program")
        if facts.st_size > MOST_BYTES:
            raise ValueError(f"{facts.st_size} bytes are more than the {MOST_BYTES} of one file")
        # A file that costs its program nothing is not read once per name, or for its holes.
        if facts.st_nlink != 1:
            raise ValueError("it has more than one name")
        if facts.st_size > _SPARSE_BYTES and _is_sparse(descriptor, facts):
            raise ValueError("it consists almost only of holes")
        digest, left = hashlib.sha256(), MOST_BYTES
        while left > 0 and (part := os.read(descriptor, min(_READ_BYTES, left))):
            digest.update(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    if digest.hexdigest() != name[:64]:
        raise ValueError("its bytes are not those that were shown")
    return facts.st_size


def _is_sparse(file: int, facts: os.stat_result) -> bool:
    return may_be_sparse(facts) and facts.st_size > SPARSE_TIMES * data_bytes(file)


def _packed(descriptor: int, names: Sequence[str], owner: int) -> Packed:
    return pack_files(path_of(descriptor), names, max_bytes=2 * _BYTES_AT_ONCE, owner=owner)
