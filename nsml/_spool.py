"""Appends records to this process's own file of the spool: one `write` each, and never an error.

Failed writes are counted and the program continues; when writing works again, a record of kind
`dropped` has the number of missing ones. Until then the count is in a file of its own, allocated
early, so that it survives a program that ends while the disk is full.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from contextlib import suppress

from nsml._frames import LOST_BYTES, MAGIC, MAX_FILES, MAX_PAYLOAD, frame
from nsml._notice import notice
from nsml._rights import create, make_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, List, Optional, Sequence, Tuple

_REOPEN_AFTER_S = 1.0
_MOST_OWED = 1000
_HIGH_FD = 200
_MOST_AT_ONCE = 1 << 20
"""Bytes of records from which on a `write` has no more."""

_forks = 0
"""Since this module was loaded."""


class Spool:
    """The record files of one folder, as written by one process.

    Args:
        folder: of the files, made if missing; None discards all records (off-platform).

    Threads may share a spool, and a signal handler may append while it interrupts an append. After
    a fork the child must call `after_fork`: it then writes a file of its own.
    """

    def __init__(self, folder: Optional[str]) -> None:
        self._folder = folder
        self._noticed = self._has_exit = False
        self._file: Optional[_File] = None
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.RLock()
        self._queue: Deque[Tuple[bytes, bool]] = deque()
        self._writing = False
        self._owed: List[bytes] = []
        self._dropped = 0
        self._dropped_since = 0.0
        self._dropped_reason = ""
        self._lost_path = ""
        self._reopen_at = 0.0
        self._reopen_errno = 0

    def after_fork(self) -> None:
        """Drop the parent's file, lock and pending records.

        A signal handler may have forked in the middle of an append, which the child finishes, but not in
        the parent's file.
        """
        file, self._file = self._file, None
        if file is not None:
            file.leave()
        global _forks
        _forks += 1
        self._start_over()

    def append(self, payload: bytes, *, must_arrive: bool = False) -> None:
        """Append one record; after the return it survives the death of the process.

        With `must_arrive` a failed record is kept in memory and written first later.
        """
        if self._folder is None:
            return
        with self._lock:
            self._queue.append((payload, must_arrive))
            self._write_queue()

    def _write_queue(self) -> None:
        if self._writing:  # a signal handler: the interrupted append writes its records, too
            return
        try:
            self._writing = True
            while self._queue:
                self._write(*self._queue.popleft())
        finally:
            self._writing = False

    def append_all(self, payloads: Sequence[bytes]) -> None:
        """Append records in this order, many by one `write`: for one, and for errors, as `append`."""
        if len(payloads) == 1:
            self.append(payloads[0])
            return
        begin = 0
        while begin < len(payloads):
            end, size = begin, 0
            while end < len(payloads) and size < _MOST_AT_ONCE:
                size += len(payloads[end])
                end += 1
            self._append_together(payloads[begin:end])
            begin = end

    def _append_together(self, payloads: Sequence[bytes]) -> None:
        if self._folder is None:
            return
        written = 0
        with self._lock:
            file = self._file
            is_ready = file is not None and not (file.unsettled or self._owed or self._dropped)
            if file is not None and is_ready and not self._writing and _are_short(payloads):
                before = file.tail[1]
                try:
                    self._writing = True
                    file.put_all(payloads)
                except OSError:
                    self._undo()  # whole frames stay; `append` then says what the others meet
                finally:
                    self._writing = False
                written = file.tail[1] - before
            if written < len(payloads) or self._queue:
                for payload in payloads[written:]:
                    self._queue.append((payload, False))
                self._write_queue()

    def drop(self, reason: str, *, is_told: bool = False) -> None:
        """Count something lost before it became a record.

        `is_told`: it is already logged.
        """
        with self._lock:
            self._count_drop(reason, is_told=is_told)
        self.settle()

    @property
    def is_waiting(self) -> bool:
        """Whether records wait to be written."""
        return bool(self._owed)

    def settle(self) -> None:
        """Write pending records, if writing works again."""
        if self._folder is None:
            return
        with self._lock:
            if self._writing or not (self._owed or self._dropped):
                return
            try:
                self._writing = True
                self._make_ready()
            except OSError:
                self._undo()
                self._keep_count()
            finally:
                self._writing = False

    def _write(self, payload: bytes, must_arrive: bool) -> None:
        if len(payload) > MAX_PAYLOAD:
            self._count_drop(f"a record of {len(payload)} bytes is over {MAX_PAYLOAD}")
            payload = b""
        try:
            file = self._file
            if file is None or file.unsettled or self._owed or self._dropped:
                file = self._make_ready()
            if payload:
                file.put(payload)
        except OSError as error:
            self._undo()
            if error.errno == errno.EBADF:  # the program closed it: continue in another file
                self._file = None
                self._write(payload, must_arrive)
            elif must_arrive and len(self._owed) < _MOST_OWED:
                self._owed.append(payload)
                self._keep_count()
                self._warn(f"records wait to be written, training goes on: {error}")
            elif payload:
                self._count_drop(str(error))
            else:
                self._keep_count()

    def _undo(self) -> None:
        """Truncate a partial frame at once, so that it can never hide later ones."""
        if self._file is None or not self._file.unsettled:
            return
        with suppress(OSError):  # retried before the next frame
            self._file.find_tail()

    def _make_ready(self) -> _File:
        file = self._file or self._open()
        if file.unsettled:
            file.find_tail()
        while self._owed:
            file.put(self._owed[0])
            del self._owed[0]
        if self._dropped:
            record = {
                "kind": "dropped",
                "time": time.time(),
                "count": self._dropped,
                "since": self._dropped_since,
                "reason": self._dropped_reason,
            }
            dropped = self._dropped
            file.put(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
            self._dropped -= dropped
        return file

    def _open(self) -> _File:
        """Create the first free file number; after a failure retry only later."""
        if time.monotonic() < self._reopen_at:
            raise OSError(self._reopen_errno, os.strerror(self._reopen_errno))
        try:
            while True:
                forks = _forks
                fd, lost_path = _create(str(self._folder))
                file = _File(fd)
                self._file, self._lost_path = file, lost_path
                if forks == _forks:
                    return file
                # A signal handler forked in between, and this is the child: the file is its parent's.
                file.leave()
                if self._file is not file and self._file is not None:
                    return self._file  # the handler has reported here
        except OSError as error:
            self._reopen_at = time.monotonic() + _REOPEN_AFTER_S
            self._reopen_errno = error.errno or errno.EIO
            self._lost_path = self._lost_path or _given_room(str(self._folder))
            raise

    def _count_drop(self, reason: str, *, is_told: bool = False) -> None:
        if not self._dropped:
            self._dropped_since = time.time()
        self._dropped += 1
        self._dropped_reason = reason
        self._keep_count()
        self._warn("" if is_told else f"records are being dropped, training goes on: {reason}")

    def _keep_count(self) -> None:
        """Write the number of lost records, if none follows, to the allocated file.

        Pending ones are written first: as many as follow are not lost.
        """
        if not self._lost_path:
            return
        count = self._file.tail[1] if self._file is not None else 0
        told = {"after": count, "count": self._dropped + len(self._owed)}
        if self._owed:
            told["waiting"] = len(self._owed)
        # Opened each time: a descriptor closed by the program may be a file of its own by now.
        with suppress(OSError):
            fd = os.open(self._lost_path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                os.write(fd, json.dumps(told).encode().ljust(LOST_BYTES))
            finally:
                os.close(fd)

    def _warn(self, text: str) -> None:
        """Warn the first time, and write pending records when the program ends."""
        if not self._has_exit:
            self._has_exit = True
            import atexit

            atexit.register(self.settle)
        if text and not self._noticed:
            self._noticed = True
            notice(text)


class _File:
    """An open record file, and its length known to be complete."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.tail = (len(MAGIC), 0)  # bytes and records; one assignment moves both
        self.unsettled: Sequence[int] = ()  # lengths of frames that may not have been written
        self._place = os.fstat(fd)

    def put(self, payload: bytes) -> None:
        """Append a frame. Raises OSError."""
        size, count = self.tail
        data = frame(count + 1, payload)
        # Set before and cleared after: an exception from a signal handler (Ctrl-C) can come in
        # between, and the file's size then says whether the frame is there.
        self.unsettled = (len(data),)
        written = os.write(self.fd, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.tail = (size + written, count + 1)
        self.unsettled = ()

    def put_all(self, payloads: Sequence[bytes]) -> None:
        """Append frames by one write. Raises OSError: `find_tail` then keeps those that are whole."""
        size, count = self.tail
        frames = [frame(number, payload) for number, payload in enumerate(payloads, count + 1)]
        data = b"".join(frames)
        self.unsettled = [*map(len, frames)]
        written = os.write(self.fd, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.tail = (size + written, count + len(frames))
        self.unsettled = ()

    def find_tail(self) -> None:
        """Keep unsettled frames that are whole, cut off the rest. Raises OSError."""
        size, count = self.tail
        actual = os.fstat(self.fd).st_size
        for length in self.unsettled:
            if size + length > actual:
                break
            size, count = size + length, count + 1
        if size != actual:
            os.ftruncate(self.fd, size)
        self.tail = (size, count)
        self.unsettled = ()

    def leave(self) -> None:
        """Redirect further writes to nowhere: the file belongs to another process.

        Its descriptor stays in use, so that no other file gets it, unless the program has closed it.
        """
        with suppress(OSError):
            if os.path.samestat(os.fstat(self.fd), self._place):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fd, inheritable=False)
                os.close(nowhere)


def _are_short(payloads: Sequence[bytes]) -> bool:
    return max(map(len, payloads)) <= MAX_PAYLOAD


def _highest_number(folder: str) -> int:
    """Return the highest number of a record file in `folder`; 0 if there is none. Raises OSError."""
    stems = [name[: -len(".records")] for name in os.listdir(folder) if name.endswith(".records")]
    return max([int(stem) for stem in stems if stem.isdecimal()], default=0)


def _create(folder: str) -> Tuple[int, str]:
    """Create a record file with its magic, open for appending; never reuses a file.

    Also return the path of the file that counts lost records; "" if there is no room for one.
    """
    make_folders(folder)
    forks, number = _forks, _highest_number(folder)
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    while True:
        number += 1
        if number > MAX_FILES:
            raise OSError(errno.EMFILE, f"{MAX_FILES} processes have reported here already")
        path = os.path.join(folder, f"{number}.records")
        try:
            fd = create(path, os.O_RDWR)
        except FileExistsError:
            continue
        if forks != _forks:  # a signal handler forked: the file is the parent's
            os.close(fd)
            forks = _forks
            continue
        with suppress(OSError):
            if _begin(fd, MAGIC):
                appending = os.open(path, flags | os.O_APPEND)
                os.close(fd)
                lost_path = _take_room(os.path.join(folder, f"{number}.lost"))
                return _out_of_the_way(appending), lost_path
        os.close(fd)
        os.unlink(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _begin(fd: int, data: bytes) -> bool:
    """Write the start of a file; return whether there was room. May run twice, if a signal handler forks in between."""
    written = os.pwrite(fd, data, 0) if hasattr(os, "pwrite") else os.write(fd, data)
    return written == len(data)


def _take_room(path: str) -> str:
    """Allocate the file that counts lost records, unless that is done; return its path, "" on failure."""
    if _is_taken(path):
        return path
    try:
        fd = create(path)
    except OSError:
        return ""
    try:
        has_room = _begin(fd, b" " * LOST_BYTES)
    except OSError:
        has_room = False
    os.close(fd)
    if has_room:
        return path
    with suppress(OSError):
        os.unlink(path)
    return ""


def _given_room(folder: str) -> str:
    """Return the count file of the next record file, if the folder's creator has allocated it."""
    try:
        path = os.path.join(folder, f"{_highest_number(folder) + 1}.lost")
    except OSError:
        return ""
    return path if _is_taken(path) else ""


def _is_taken(path: str) -> bool:
    try:
        return os.stat(path).st_size == LOST_BYTES
    except OSError:
        return False


def _out_of_the_way(fd: int) -> int:
    """Move the file to a high descriptor, if possible.

    Programs that close "all" files and open others would otherwise reuse its descriptor.
    """
    try:
        import fcntl

        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    except (ImportError, OSError):
        return fd
    os.close(fd)
    return high
