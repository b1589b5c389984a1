"""Reads what a replica wrote: record files and the log, from acknowledged cursors on.

The format of record files is in `docs/sdk-protocol.md`. Files below `run/` belong to the program,
which may replace them while they are read: they are opened by descriptor from the replica folder
down, never through a link, and no length in them is trusted.

What is damaged is reported as a `Gap`, never skipped in silence. A frame that is not whole yet is
waited for; when its writer is dead (`final`), it never was: the call that wrote it did not return.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import stat
from bisect import bisect_right
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING
from zlib import crc32

import structlog

from nodeagent.collect.streams import (
    GAP_COST,
    MAX_GAP_CREDIT,
    Batch,
    Channel,
    Cursor,
    Gap,
    StreamId,
    held_bytes,
)
from nodeagent.safe_paths import open_file, open_folder
from nsml._frames import HEADER, MAGIC, MAX_FILES, MAX_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import TypeGuard

    from nodeagent.collect.file_watcher import WrittenFolder
    from nodeagent.collect.streams import Item
    from nodeagent.folders import ReplicaFolder, ReplicaId
    from nsml.common.clock import Offload

_RECORD_FILE = re.compile(r"([1-9][0-9]{0,8})\.(?:records|lost)")
_SEARCH_WINDOW = 1 << 18
_SEARCH_BUDGET = 1 << 24
"""Bytes that one look for the next valid frame may checksum: a program could feign many."""
_SEARCHED_IN_ALL = 1 << 24
"""Bytes of one replica that are looked through for valid frames behind damage: it takes seconds,
and a program can write, or feign with holes, more than could be read in a day."""
_LONGEST_GAP = 1 << 32
"""Numbers further ahead than this are taken for noise,"""
_HIGHEST = 1 << 53
"""and so are those above this: no program counts so far, and no store need carry them."""
_LONGEST_TEXT = 4096
"""Bytes that are read of the file in which a writer counts what it lost."""
_LARGEST_PAGE = 2 << 20
"""Of the kernel's cache of files."""
_UNTOLD_S = 5.0
"""How long until a look at files that are watched: nothing may hang because a word was missed."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How files are opened that a program may have put something else in place of."""
_IN_THE_WAY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EACCES})
"""What opening says of that. Anything else (too many open files) passes: it says nothing of files."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """Bounds of one `ReplicaSpool.read`, for each stream, and the highest number of a record file."""

    bytes: int = 256 * 1024
    records: int = 2000
    files: int = MAX_FILES


class ReplicaSpool:
    """One replica's files, read once each from where `cursors` say. Blocking; for one reader."""

    def __init__(
        self,
        replica_id: ReplicaId,
        folder: ReplicaFolder,
        cursors: Mapping[StreamId, Cursor],
        limits: SpoolLimits | None = None,
    ) -> None:
        self._replica_id = replica_id
        self._folder = folder
        self._limits = limits or SpoolLimits()
        self._cursors = dict(cursors)
        self._files: dict[int, RecordFile] = {}
        self._search = Search()
        self._last_writer = 0
        self._has_warned = False
        self._has_further = False
        self._log = StreamId(replica_id=replica_id, channel=Channel.LOG, writer=0)
        self._gone: set[int] = set()
        """Writers whose files were read and removed: numbers are not used again (docs/sdk-protocol.md)."""
        self.gone: set[StreamId] = set()
        """Their streams, until they are forgotten: nothing of them is read any more."""
        self.may_have_more = True
        """Whether there may have been more than the last look gave."""

    def rewind(self, cursors: Mapping[StreamId, Cursor]) -> None:
        """Read again from `cursors` on: what was sent and not acknowledged is sent again."""
        self._cursors = dict(cursors)
        self._files.clear()
        self._search = Search()
        # What was acknowledged of the others is all there was.
        self._gone -= {stream.writer for stream in cursors if stream.channel is Channel.METRIC}
        self.gone.clear()

    def forget(self, stream: StreamId) -> None:
        """All of a stream in `gone` is acknowledged."""
        self.gone.discard(stream)

    def read(self, *, final: bool = False) -> list[Item]:
        """The next elements of every stream, bounded by the limits; empty when there are none.

        `final` says that no process of the replica is left. Then an empty answer means: that was all.
        """
        items = self._read_log()
        with ExitStack() as stack:
            try:
                spool = stack.enter_context(open_folder(self._folder.path, ("run", "spool")))
            except OSError as error:
                if error.errno not in _IN_THE_WAY:
                    raise
                if final:
                    items += self._read_removed(None, ())
            else:
                items += self._read_files(spool, final=final)
        self.may_have_more = self._is_bounded(items)
        return items

    def _is_bounded(self, items: Sequence[Item]) -> bool:
        """Whether a look that gave these may have ended before the files did; not always it has."""
        held = sum(map(held_bytes, items))
        has_gap = any(isinstance(item, Gap) for item in items)
        is_behind = any(file.is_behind for file in self._files.values())
        return has_gap or is_behind or held >= self._limits.bytes

    def _read_files(self, spool: int, *, final: bool) -> list[Item]:
        """From each record file in turn, beginning behind the last one of the pass before."""
        items: list[Item] = []
        held = 0
        writers = self._writers(spool)
        items += self._read_removed(spool, writers)
        items += self._read_further()
        turn = bisect_right(writers, self._last_writer)
        for writer in [*writers[turn:], *writers[:turn]]:
            file = self._files.get(writer) or self._new_file(writer)
            descriptor = _open_regular(f"{writer}.records", spool, longer_than=file.cursor.offset)
            found: list[Item] = []
            if descriptor is not None:
                try:
                    found = file.read(descriptor, self._limits, final=final)
                finally:
                    os.close(descriptor)
                self._last_writer = writer
            if final and not found:
                # It may end in half a frame, which was not whole when the writer died.
                found = file.lost_at_end(text_of(f"{writer}.lost", spool))
            items += found
            held += sum(map(held_bytes, found))
            if held >= self._limits.bytes:
                break
        return items

    def _writers(self, spool: int) -> list[int]:
        """Record files that may be read; of a folder with more in it than any SDK makes, some of them."""
        with os.scandir(spool) as entries:
            # Two of each writer, and whatever else there may be.
            names = [entry.name for entry in islice(entries, 3 * self._limits.files)]
        found = map(_RECORD_FILE.fullmatch, names)
        writers = {int(match[1]) for match in found if match is not None}
        self._has_further = self._has_further or max(writers, default=0) > self._limits.files
        if (self._has_further or len(names) > 2 * self._limits.files) and not self._has_warned:
            self._has_warned = True
            log.warning("spool.too_many_files", replica=str(self._replica_id))
        return sorted(n for n in writers - self._gone if n <= self._limits.files)

    def _read_removed(self, spool: int | None, writers: Sequence[int]) -> list[Item]:
        """What is missing of files that were removed; those with nothing left to report are gone."""
        items: list[Item] = []
        known = self._files.keys() | {
            stream.writer for stream in self._cursors if stream.channel is Channel.METRIC
        }
        for writer in known.difference(writers):
            if writer > self._limits.files:
                continue
            if spool is not None and _is_there(f"{writer}.records", spool):
                continue
            file = self._files.get(writer) or self._new_file(writer)
            if missing := file.lost_at_end():
                items += missing
                continue
            del self._files[writer]
            self._cursors.pop(file.stream, None)
            if file.cursor.last:
                self._gone.add(writer)
                self.gone.add(file.stream)
        return items

    def _read_further(self) -> list[Item]:
        """One gap, once, for all record files with higher numbers than are read."""
        stream = self._stream(self._limits.files + 1)
        if not self._has_further or stream in self._cursors:
            return []
        cursor = Cursor(last=1, offset=0)
        self._cursors[stream] = cursor
        return [_gap(stream, 1, cursor, "more processes have reported than are read")]

    def _stream(self, writer: int) -> StreamId:
        return StreamId(replica_id=self._replica_id, channel=Channel.METRIC, writer=writer)

    def _new_file(self, writer: int) -> RecordFile:
        stream = self._stream(writer)
        cursor = self._cursors.get(stream, Cursor.start(Channel.METRIC))
        file = RecordFile(stream, cursor, self._search)
        self._files[writer] = file
        return file

    def _read_log(self) -> list[Item]:
        cursor = self._cursors.get(self._log, Cursor.start(Channel.LOG))
        descriptor = _open(self._folder.output)
        if descriptor is None:
            return []
        try:
            item = _next_text(self._log, descriptor, cursor, self._limits.bytes)
        finally:
            os.close(descriptor)
        if item is None:
            return []
        self._cursors[self._log] = item.cursor
        return [item]


@dataclass(slots=True)
class Search:
    """How many bytes of one replica's damaged files may still be looked through."""

    left: int = _SEARCHED_IN_ALL


class RecordFile:
    """One record file, read frame by frame; `cursor` is behind the last whole frame that was read."""

    def __init__(self, stream: StreamId, cursor: Cursor, search: Search | None = None) -> None:
        self.stream = stream
        self.cursor = cursor
        self._quota = search or Search()
        self._suspect = -1
        self._searched_to = 0
        self.is_behind = False
        """Whether the last look saw more in the file than it gave."""

    def read(self, descriptor: int, limits: SpoolLimits, *, final: bool) -> list[Item]:
        """The next batch, and gaps before it; empty when nothing whole is there yet."""
        while True:
            before = self.cursor
            items = self._read_on(descriptor, limits, final=final)
            if items or self.cursor == before:
                return items

    def lost_at_end(self, told: bytes = b"") -> list[Item]:
        """The gap behind the last record when no other follows: what is not reported yet, and `told`.

        That is what a dead writer says that it lost; it means nothing where a record followed.
        """
        cursor = self.cursor
        lost = cursor.lost + _count_behind(cursor.number, told)
        if not lost:
            return []
        self.cursor = replace(cursor, last=cursor.last + lost, lost=0)
        reason = "the program ended before it could report its lost records"
        return [_gap(self.stream, cursor.last + 1, self.cursor, reason)]

    def _read_on(self, descriptor: int, limits: SpoolLimits, *, final: bool) -> list[Item]:
        size = os.fstat(descriptor).st_size
        if self.cursor.offset == 0:
            magic = os.pread(descriptor, len(MAGIC), 0)
            if magic == MAGIC:
                self.cursor = replace(self.cursor, offset=len(MAGIC))
            elif MAGIC.startswith(magic):
                return []
            else:
                self._step_over(descriptor, size, final=final)
                return []
        data = os.pread(descriptor, max(limits.bytes, HEADER.size), self.cursor.offset)
        if len(data) >= HEADER.size:
            whole = HEADER.size + HEADER.unpack_from(data)[0]
            if len(data) < whole <= HEADER.size + MAX_PAYLOAD:
                data = os.pread(descriptor, whole, self.cursor.offset)
        start = self.cursor.offset
        items, damaged = self._parse(data, limits)
        self.is_behind = self.cursor.offset < start + len(data)
        if not items and (damaged or (final and self.cursor.offset < size)):
            self._step_over(descriptor, size, final=final)
        return items

    def _parse(self, data: bytes, limits: SpoolLimits) -> tuple[list[Item], bool]:
        """Items of the whole frames at the front of `data`, and whether a bad one stopped it."""
        parsed = _Parsed(self.stream, self.cursor)
        base, position, is_damaged = self.cursor.offset, 0, False
        # Nearly all records follow one another: of those nothing is asked but their number.
        run: list[bytes] = []
        number, room, size = parsed.number, limits.records, HEADER.size
        while position + size <= len(data) and len(run) < room:
            length, checksum, seq = HEADER.unpack_from(data, position)
            begin = position + size
            end = begin + length
            if length > MAX_PAYLOAD:
                is_damaged = True
                break
            if end > len(data):
                break
            payload = data[begin:end]
            if not _is_valid(payload, checksum, seq) or seq > _furthest(number):
                is_damaged = True
                break
            if seq == number + 1 and not parsed.lost:
                run.append(payload)
                number = seq
            else:
                parsed.extend(run)
                parsed.add(seq, payload, base + position)
                run, number, room = [], parsed.number, limits.records - parsed.count
            position = end
        parsed.extend(run)
        self.cursor = parsed.end(base + position)
        return parsed.items, is_damaged

    def _step_over(self, descriptor: int, size: int, *, final: bool) -> None:
        """Move on from where no valid frame is: look once more, then for the next valid one.

        At the end of a dead writer's file a frame that is not whole is cut off; one that is whole
        and wrong was a record.
        """
        offset = self.cursor.offset
        if self._suspect != offset:
            self._suspect, self._searched_to = offset, max(offset, 1)
            if not final:
                return
        found = self._search(descriptor, size, final=final)
        if found is not None:
            self.cursor = replace(self.cursor, offset=found)
        elif final:
            lost = self.cursor.lost + (1 if _is_whole(descriptor, offset, size) else 0)
            self.cursor = replace(self.cursor, lost=lost, offset=size)

    def _search(self, descriptor: int, size: int, *, final: bool) -> int | None:
        """The offset of the next valid frame with a number that is still to come.

        Goes on where the last search ended. One search is bounded, except for the final one; all
        together are, and what is behind is lost.
        """
        budget = _SEARCH_BUDGET
        unfinished = size
        while self._searched_to + HEADER.size <= size and self._quota.left > 0:
            self._searched_to = _behind_holes(descriptor, self._searched_to, size)
            window = os.pread(descriptor, _SEARCH_WINDOW, self._searched_to)
            self._quota.left -= len(window)
            for position in range(len(window) - HEADER.size + 1):
                length, checksum, seq = HEADER.unpack_from(window, position)
                if length > MAX_PAYLOAD or not self._may_come(seq):
                    continue
                offset = self._searched_to + position
                if offset + HEADER.size + length > size:
                    unfinished = min(unfinished, offset)
                    continue
                if _is_valid(os.pread(descriptor, length, offset + HEADER.size), checksum, seq):
                    return offset
                budget -= length
                if budget < 0 and not final:
                    self._searched_to = min(unfinished, offset + 1)
                    return None
            self._searched_to += max(len(window) - HEADER.size + 1, 1)
        self._searched_to = min(unfinished, self._searched_to)
        return None

    def _may_come(self, seq: int) -> bool:
        return self.cursor.number < seq <= _furthest(self.cursor.number)


class _Parsed:
    """Gives the frames of a record file their positions: records in batches, what is missing in gaps.

    A gap is reported where it is. A file with many of them has records close together and what is
    missing between them reported later, as one gap: else each record would be a chunk of its own.
    The file alone decides it (`Cursor.gap_credit`), not how much of it is there when it is read.
    """

    def __init__(self, stream: StreamId, cursor: Cursor) -> None:
        self.items: list[Item] = []
        self.count = 0
        """Records in them, and in the batch that is not ended."""
        self._stream = stream
        self._records: list[bytes] = []
        self._first = cursor.last + 1
        self._last, self.lost, self._credit = cursor.last, cursor.lost, cursor.gap_credit

    @property
    def number(self) -> int:
        """The sequence number of the last frame."""
        return self._last + self.lost

    def extend(self, payloads: list[bytes]) -> None:
        """Frames that follow the last one and one another, while nothing is `lost`."""
        self._records += payloads
        self.count += len(payloads)
        self._last += len(payloads)
        self._credit = min(self._credit + len(payloads), MAX_GAP_CREDIT)

    def add(self, seq: int, payload: bytes, offset: int) -> None:
        """The next frame, which begins at `offset`; nothing is done with a repeated one."""
        if seq <= self.number:
            return
        missing = self.lost + seq - self.number - 1
        if missing and self._credit >= GAP_COST:
            self.end(offset)
            first, self._last, self.lost = self._last + 1, self._last + missing, 0
            self._credit -= GAP_COST
            self._first = self._last + 1
            reason = "records are missing from their file"
            self.items.append(_gap(self._stream, first, self._cursor(offset), reason))
        else:
            self.lost = missing
        self._records.append(payload)
        self.count += 1
        self._last += 1
        self._credit = min(self._credit + 1, MAX_GAP_CREDIT)

    def end(self, offset: int) -> Cursor:
        """End the batch; the cursor behind it, where reading goes on at `offset`."""
        cursor = self._cursor(offset)
        if self._records:
            batch = Batch(
                stream=self._stream,
                first=self._first,
                last=self._last,
                records=tuple(self._records),
                cursor=cursor,
            )
            self.items.append(batch)
            self._records = []
        return cursor

    def _cursor(self, offset: int) -> Cursor:
        return Cursor(last=self._last, offset=offset, lost=self.lost, gap_credit=self._credit)


class SpoolFollower:
    """Follows a spool until its replica has ended.

    It looks when it is poked; where it cannot count on that, often while things come, and seldom when
    they do not.

    Args:
        written: tells when to look.
    """

    def __init__(
        self,
        spool: ReplicaSpool,
        run: Offload,
        *,
        shortest_s: float = 0.02,
        longest_s: float = 1.0,
        written: WrittenFolder | None = None,
    ) -> None:
        self._spool = spool
        self._run = run
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._written = written
        self._poked = written.stirred if written is not None else asyncio.Event()
        self._ended = False

    def poke(self) -> None:
        """Look at once."""
        self._poked.set()

    def end(self) -> None:
        """The replica is gone: read what is left, then finish."""
        self._ended = True
        self._poked.set()

    async def __aiter__(self) -> AsyncIterator[list[Item]]:
        """What comes, in bounded pieces; the next is read only when asked for."""
        pause_s = self._shortest_s
        while True:
            # Whatever is written from here on pokes again.
            self._poked.clear()
            is_told = self._written is not None and self._written.is_watched()
            final = self._ended
            items = await self._run(partial(self._spool.read, final=final))
            if items:
                pause_s = self._shortest_s
                yield items
                if final or not is_told or self._spool.may_have_more:
                    continue
            elif final:
                return
            await self._rest(_UNTOLD_S if is_told else pause_s)
            pause_s = min(pause_s * 2, self._longest_s)

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._poked.wait()


def _next_text(stream: StreamId, descriptor: int, cursor: Cursor, limit: int) -> Item | None:
    """The next piece of a log; None where there is none, or no file.

    A program can shorten its own log (`> /dev/stdout` does), or lengthen it by more than any disk
    holds. How much was lost then is not known: the gap counts as one byte, and positions go on
    behind it.
    """
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        return None
    if facts.st_size < cursor.offset:
        return _log_gap(stream, cursor, "the program shortened its log", offset=0)
    text = os.pread(descriptor, limit, cursor.offset)
    if not text:
        return None
    if text.count(0) == limit:
        # Room that was taken and not written to (fallocate) looks written where it was read, or read ahead.
        cached = cursor.offset - cursor.offset % _LARGEST_PAGE
        os.posix_fadvise(descriptor, cached, 0, os.POSIX_FADV_DONTNEED)
        written = _behind_holes(descriptor, cursor.offset, facts.st_size)
        if written >= cursor.offset + limit:
            return _log_gap(stream, cursor, "the log has a hole", offset=written)
        # the page that was read last stays: the hole begins behind it
        hole = _next_hole(descriptor, cursor.offset, facts.st_size)
        text = text[: hole - cursor.offset] or text
    last = cursor.last + len(text)
    return Batch(
        stream=stream,
        first=cursor.last + 1,
        last=last,
        text=text,
        cursor=Cursor(last=last, offset=cursor.offset + len(text)),
    )


def _gap(stream: StreamId, first: int, cursor: Cursor, reason: str) -> Gap:
    """From position `first` to where `cursor` is."""
    return Gap(stream=stream, first=first, last=cursor.last, reason=reason, cursor=cursor)


def _count_behind(number: int, told: bytes) -> int:
    """How many records a writer says that it lost behind record `number`; 0 where it says nothing of that.

    Of those that waited, which come first, some may have been written since.
    """
    try:
        lost = json.loads(told)
        after, count, waiting = lost["after"], lost["count"], lost.get("waiting", 0)
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    if not (_is_number(after) and _is_number(count) and _is_number(waiting)):
        return 0
    if count > _LONGEST_GAP or after + count > _HIGHEST:
        return 0
    written = number - after
    return count - written if 0 <= written <= min(waiting, count) else 0


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _log_gap(stream: StreamId, cursor: Cursor, reason: str, *, offset: int) -> Gap:
    lost = cursor.last + 1
    after = Cursor(last=lost, offset=offset)
    return Gap(stream=stream, first=lost, last=lost, reason=reason, cursor=after)


def _behind_holes(descriptor: int, offset: int, size: int) -> int:
    """Where the next bytes are that were written; `size` when there are none."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError:
        return size


def _next_hole(descriptor: int, offset: int, size: int) -> int:
    """Where the next bytes are that were not written, from `offset` on; `size` when there are none."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_HOLE)
    except OSError:
        return size


def _furthest(last: int) -> int:
    """The highest number that may come behind `last`."""
    return min(last + _LONGEST_GAP, _HIGHEST)


def _is_valid(payload: bytes, checksum: int, seq: int) -> bool:
    return crc32(payload, crc32(seq.to_bytes(8, "little"))) == checksum


def _is_whole(descriptor: int, offset: int, size: int) -> bool:
    """Whether the bytes at `offset` look like a frame that fits the file."""
    header = os.pread(descriptor, HEADER.size, offset)
    if len(header) < HEADER.size:
        return False
    length: int = HEADER.unpack(header)[0]
    return length > MAX_PAYLOAD or offset + HEADER.size + length <= size


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _open_regular(name: str, folder: int, *, longer_than: int) -> int | None:
    """A descriptor of a regular file in `folder`; None for a shorter one or anything else.

    Somebody else's file is anything else: a hard link there is no right to read what it names.
    """
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(facts.st_mode) or facts.st_size <= longer_than:
        return None
    descriptor = _open(name, folder)
    if descriptor is None:
        return None
    # what the name stands for may have changed in between
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.fstat(folder).st_uid:
        return descriptor
    os.close(descriptor)
    return None


def text_of(name: str, folder: int) -> bytes:
    """What a program wrote into a small file in `folder`; nothing of anything else."""
    descriptor = _open_regular(name, folder, longer_than=0)
    if descriptor is None:
        return b""
    try:
        return os.pread(descriptor, _LONGEST_TEXT, 0)
    finally:
        os.close(descriptor)


def _open(path: str | os.PathLike[str], folder: int | None = None) -> int | None:
    """A descriptor to read; None where something else is in the way. Raises OSError."""
    try:
        return open_file(path, folder, _READ)
    except OSError as error:
        if error.errno in _IN_THE_WAY:
            return None
        raise
