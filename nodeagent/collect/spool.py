"""Reads the output of a replica: record files and the log, from acknowledged cursors on.

The format of record files is in `docs/sdk-protocol.md`. Files below `run/` belong to the program,
which may replace them while they are read: they are opened by descriptor from the replica folder
down, never through a link, and no length in them is trusted.

Damage is reported as a `Gap`, never skipped silently. An incomplete frame is
waited for; when its writer is dead (`final`), it does not count: the call that wrote it did not return.
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

from nodeagent.collect.log_metrics import LOG_WRITER
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
    from nodeagent.collect.log_metrics import LogMetrics
    from nodeagent.collect.streams import Item
    from nodeagent.folders import ReplicaFolder, ReplicaId
    from nsml.common.clock import Offload

_RECORD_FILE = re.compile(r"([1-9][0-9]{0,8})\.(?:records|lost)")
_SEARCH_WINDOW = 1 << 18
_SEARCH_BUDGET = 1 << 24
"""Bytes that one search for the next valid frame may checksum: a program could forge many."""
_SEARCHED_IN_ALL = 1 << 24
"""Bytes of one replica to search for valid frames after damage: it takes seconds,
and a program can write, or forge with holes, more than could be read in a day."""
_LONGEST_GAP = 1 << 32
"""Numbers further ahead than this are treated as noise,"""
_HIGHEST = 1 << 53
"""as are those above this: no program counts so far, and no store need support them."""
_LONGEST_TEXT = 4096
"""Most bytes read of a writer's file with its count of lost records."""
_LARGEST_PAGE = 2 << 20
"""Largest page of the kernel's cache of files."""
_UNTOLD_S = 5.0
"""Interval of looks at watched files: nothing may hang because an event was missed."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags to open files that a program may have replaced."""
_IN_THE_WAY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EACCES})
"""Errors of opening replaced files. Others (too many open files) are temporary, and no property of the file."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """Limits of one `ReplicaSpool.read`, for each stream, and the highest number of a record file."""

    bytes: int = 256 * 1024
    records: int = 2000
    files: int = MAX_FILES


class ReplicaSpool:
    """One replica's files, read once each from `cursors` on. Blocking; for one reader."""

    def __init__(
        self,
        replica_id: ReplicaId,
        folder: ReplicaFolder,
        cursors: Mapping[StreamId, Cursor],
        limits: SpoolLimits | None = None,
        *,
        log_metrics: LogMetrics | None = None,
    ) -> None:
        self._replica_id = replica_id
        self._log_metrics = log_metrics
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
        """Writers of read and removed files: their numbers are not reused (docs/sdk-protocol.md)."""
        self.gone: set[StreamId] = set()
        """Their streams, until they are forgotten: nothing more is read of them."""
        self.may_have_more = True
        """Whether there may be more than the last look returned."""
        self.is_searching = False
        """Whether there is more of the log to search for metrics, also if the last look returned nothing."""

    def rewind(self, cursors: Mapping[StreamId, Cursor]) -> None:
        """Read again from `cursors` on: unacknowledged data is sent again."""
        self._cursors = dict(cursors)
        self._files.clear()
        self._search = Search()
        # The others are acknowledged completely.
        self._gone -= {stream.writer for stream in cursors if stream.channel is Channel.METRIC}
        self.gone.clear()

    def forget(self, stream: StreamId) -> None:
        """Forget a stream in `gone`, after all of it was acknowledged."""
        self.gone.discard(stream)

    def read(self, *, final: bool = False) -> list[Item]:
        """Return the next elements of every stream, within the limits; empty when there are none.

        `final`: no process of the replica is left. Then an empty result means the end.
        """
        items = self._read_log()
        items += self._read_log_metrics(final=final)
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
        """Whether a look with this result may have ended before the files did."""
        held = sum(map(held_bytes, items))
        has_gap = any(isinstance(item, Gap) for item in items)
        is_behind = any(file.is_behind for file in self._files.values())
        return has_gap or is_behind or held >= self._limits.bytes

    def _read_files(self, spool: int, *, final: bool) -> list[Item]:
        """Read each record file in turn, beginning after the last one of the previous pass."""
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
                # It may end in half a frame, incomplete when the writer died.
                found = file.lost_at_end(text_of(f"{writer}.lost", spool))
            items += found
            held += sum(map(held_bytes, found))
            if held >= self._limits.bytes:
                break
        return items

    def _writers(self, spool: int) -> list[int]:
        """Return readable record files; of a folder with more files than any SDK creates, only some."""
        with os.scandir(spool) as entries:
            # Two of each writer, and any others.
            names = [entry.name for entry in islice(entries, 3 * self._limits.files)]
        found = map(_RECORD_FILE.fullmatch, names)
        writers = {int(match[1]) for match in found if match is not None}
        self._has_further = self._has_further or max(writers, default=0) > self._limits.files
        if (self._has_further or len(names) > 2 * self._limits.files) and not self._has_warned:
            self._has_warned = True
            log.warning("spool.too_many_files", replica=str(self._replica_id))
        return sorted(n for n in writers - self._gone if n <= self._limits.files)

    def _read_removed(self, spool: int | None, writers: Sequence[int]) -> list[Item]:
        """Return gaps of removed files; those with nothing left to report are marked gone."""
        items: list[Item] = []
        known = self._files.keys() | {
            stream.writer for stream in self._cursors if stream.channel is Channel.METRIC
        }
        for writer in known.difference(writers):
            if writer > self._limits.files:
                continue  # no file of the program
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
        """Return one gap, once, for all record files with numbers above the limit."""
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

    def _read_log_metrics(self, *, final: bool) -> list[Item]:
        """Search the next piece of the log for metrics, and return those on file that were not read."""
        metrics = self._log_metrics
        self.is_searching = False
        if metrics is None:
            return []
        try:
            with metrics.opened() as descriptor:
                self.is_searching = self._search_log(metrics)
                if final and not self.is_searching:
                    metrics.finish()
                file = self._files.get(LOG_WRITER) or self._new_file(LOG_WRITER)
                return file.read(descriptor, self._limits, final=final)
        except OSError as error:
            # The log itself and the program's reports are read in any case.
            log.warning("log_metrics.failed", replica=str(self._replica_id), error=str(error))
            return []

    def _search_log(self, metrics: LogMetrics) -> bool:
        """Search one piece; return whether there may be more."""
        descriptor = _open(self._folder.output)
        if descriptor is None:
            return False
        try:
            cursor = Cursor(last=-1, offset=metrics.offset)
            item = _next_text(self._log, descriptor, cursor, self._limits.bytes)
        finally:
            os.close(descriptor)
        if isinstance(item, Batch):
            return metrics.take(item.text) and len(item.text) == self._limits.bytes
        if item is None:
            metrics.flush()
            return False
        metrics.skip(item.cursor.offset)
        return True

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
    """Bytes of one replica's damaged files that may still be searched."""

    left: int = _SEARCHED_IN_ALL


class RecordFile:
    """One record file, read frame by frame; `cursor` is after the last whole frame read."""

    def __init__(self, stream: StreamId, cursor: Cursor, search: Search | None = None) -> None:
        self.stream = stream
        self.cursor = cursor
        self._quota = search or Search()
        self._suspect = -1
        self._searched_to = 0
        self.is_behind = False
        """Whether the file has more than the last look returned."""

    def read(self, descriptor: int, limits: SpoolLimits, *, final: bool) -> list[Item]:
        """Return the next batch, and gaps before it; empty without a whole frame."""
        while True:
            before = self.cursor
            items = self._read_on(descriptor, limits, final=final)
            if items or self.cursor == before:
                return items

    def lost_at_end(self, told: bytes = b"") -> list[Item]:
        """Return the gap after the last record: losses not reported yet, and those in `told`.

        That is the count of a dead writer's losses; it is void if a record followed.
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
        """Return items of the whole frames at the front of `data`, and whether a bad one stopped it."""
        parsed = _Parsed(self.stream, self.cursor)
        base, position, is_damaged = self.cursor.offset, 0, False
        # Nearly all records are consecutive: only their number is checked.
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
        """Handle an invalid frame: retry it once, then search for the next valid one.

        At the end of a dead writer's file an incomplete frame is cut off; a complete
        invalid one counts as a record.
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
        """Return the offset of the next valid frame with a future number.

        Continues where the last search ended. One search is bounded, except for the final one; all
        together are, too, and frames beyond that are lost.
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
    """Assigns positions to the frames of a record file: records in batches, missing ones in gaps.

    A gap is reported at its position. A file with many of them has records joined and the missing
    ones reported later, as one gap: otherwise each record would be a chunk of its own.
    Only the file's content decides this (`Cursor.gap_credit`), not how much of it exists at the time of reading.
    """

    def __init__(self, stream: StreamId, cursor: Cursor) -> None:
        self.items: list[Item] = []
        self.count = 0
        """Records in them, and in the open batch."""
        self._stream = stream
        self._records: list[bytes] = []
        self._first = cursor.last + 1
        self._last, self.lost, self._credit = cursor.last, cursor.lost, cursor.gap_credit

    @property
    def number(self) -> int:
        """The sequence number of the last frame."""
        return self._last + self.lost

    def extend(self, payloads: list[bytes]) -> None:
        """Add consecutive frames after the last one, while nothing is `lost`."""
        self._records += payloads
        self.count += len(payloads)
        self._last += len(payloads)
        self._credit = min(self._credit + len(payloads), MAX_GAP_CREDIT)

    def add(self, seq: int, payload: bytes, offset: int) -> None:
        """Add the next frame, which begins at `offset`; repeated ones are ignored."""
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
        """End the batch; return the cursor after it, with reading to continue at `offset`."""
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

    It reads when poked; if that is unreliable, often while data comes, and rarely
    otherwise.

    Args:
        written: signals when to look.
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
        """The replica has ended: read the rest, then finish."""
        self._ended = True
        self._poked.set()

    async def __aiter__(self) -> AsyncIterator[list[Item]]:
        """Yield items in bounded batches; each is read only on request."""
        pause_s = self._shortest_s
        while True:
            # Writes from here on poke again.
            self._poked.clear()
            is_told = self._written is not None and self._written.is_watched()
            final = self._ended
            items = await self._run(partial(self._spool.read, final=final))
            if items:
                pause_s = self._shortest_s
                yield items
                if final or not is_told or self._spool.may_have_more or self._spool.is_searching:
                    continue
            elif self._spool.is_searching:
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
    """Return the next piece of a log; None if there is none, or no file.

    A program can truncate its own log (`> /dev/stdout` does), or extend it beyond the size of any
    disk. The loss is then unknown: the gap counts as one byte, and positions continue
    after it.
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
        # Space allocated but not written (fallocate) looks written once read, or read ahead.
        cached = cursor.offset - cursor.offset % _LARGEST_PAGE
        os.posix_fadvise(descriptor, cached, 0, os.POSIX_FADV_DONTNEED)
        written = _behind_holes(descriptor, cursor.offset, facts.st_size)
        if written >= cursor.offset + limit:
            return _log_gap(stream, cursor, "the log has a hole", offset=written)
        # the page read last stays: the hole begins after it
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
    """Return the gap from position `first` to `cursor`."""
    return Gap(stream=stream, first=first, last=cursor.last, reason=reason, cursor=cursor)


def _count_behind(number: int, told: bytes) -> int:
    """Return how many records a writer lost after record `number`, by its own count; 0 if that does not apply.

    Some of its waiting records, which come first, may have been written since.
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
    """Return the offset of the next written bytes; `size` if there are none."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError:
        return size


def _next_hole(descriptor: int, offset: int, size: int) -> int:
    """Return the offset of the next hole from `offset` on; `size` if there is none."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_HOLE)
    except OSError:
        return size


def _furthest(last: int) -> int:
    """Return the highest valid number after `last`."""
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
    """Open a regular file in `folder`; None for a shorter one or anything else.

    Including files of other owners: a hard link there gives no right to read its file.
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
    # the file may have been replaced in between
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.fstat(folder).st_uid:
        return descriptor
    os.close(descriptor)
    return None


def text_of(name: str, folder: int) -> bytes:
    """Return the content of a program's small file in `folder`; empty for anything else."""
    descriptor = _open_regular(name, folder, longer_than=0)
    if descriptor is None:
        return b""
    try:
        return os.pread(descriptor, _LONGEST_TEXT, 0)
    finally:
        os.close(descriptor)


def _open(path: str | os.PathLike[str], folder: int | None = None) -> int | None:
    """Open for reading; None if something else is in its place. Raises OSError."""
    try:
        return open_file(path, folder, _READ)
    except OSError as error:
        if error.errno in _IN_THE_WAY:
            return None
        raise
