"""Signals writes to files of replicas, by inotify.

Polling would be late, or cost a processor. Signals may come too often and, on a machine without room for inotify, not at all: they say when to
look, never what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOENT
from pathlib import Path

import structlog
from inotify_simple import INotify, flags

from nodeagent.folders import ReplicaFolder

PACE_S = 0.05
"""Interval of looks at writes: data of many programs is sent together."""

_IN_A_FILE = flags.MODIFY | flags.DONT_FOLLOW
_IN_A_FOLDER = flags.CREATE | flags.MOVED_TO | flags.ONLYDIR | flags.DONT_FOLLOW
_IN_THE_SPOOL = _IN_A_FOLDER | flags.MODIFY
_EVERYTHING = -1
"""The watch of the kernel's overflow event."""

log = structlog.get_logger()


class Writes:
    """The watched files of all replicas. For one event loop."""

    def __init__(self, pace_s: float = PACE_S) -> None:
        """Raises OSError if no inotify instance is available."""
        self._pace_s = pace_s
        self._inotify = INotify(nonblocking=True)
        # More than one: a file moved from one replica's folder to another's belongs to both.
        self._watched: dict[int, set[WrittenFolder]] = {}
        self._again: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._listen()

    @classmethod
    def here(cls) -> Writes | None:
        """Return a watcher, or None if no inotify instance is available."""
        try:
            return cls()
        except OSError as error:
            log.warning(
                "writes.unwatched", error=str(error), attempt="fs.inotify.max_user_instances"
            )
            return None

    def close(self) -> None:
        """Stop watching."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._inotify.fileno())
        self._inotify.close()

    @contextmanager
    def told(self, folder: ReplicaFolder) -> Iterator[WrittenFolder]:
        """Signal writes to the folder while the context lasts."""
        written = WrittenFolder(self, folder)
        try:
            yield written
        finally:
            written.forget()

    def add(self, written: WrittenFolder, path: Path, mask: int) -> int:
        """Watch a path; return the number of the watch. Raises OSError."""
        number: int = self._inotify.add_watch(path, mask)
        self._watched.setdefault(number, set()).add(written)
        return number

    def remove(self, written: WrittenFolder, number: int) -> None:
        """Stop watching it."""
        others = self._watched.get(number)
        if others is None:
            return
        others.discard(written)
        if not others:
            del self._watched[number]
            with suppress(OSError):  # the watch went with its file
                self._inotify.rm_watch(number)

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._inotify.fileno(), self._hear)

    def _hear(self) -> None:
        self._loop.remove_reader(self._inotify.fileno())
        self._again = self._loop.call_later(self._pace_s, self._listen)
        for event in self._inotify.read(timeout=0):
            if event.wd == _EVERYTHING:
                told = set().union(*self._watched.values())
            else:
                told = self._watched.get(event.wd, set())
            for written in told:
                written.stirred.set()
            if event.mask & flags.IGNORED:
                self._watched.pop(event.wd, None)


class WrittenFolder:
    """The watched files of one replica: its log, and its record files."""

    def __init__(self, writes: Writes, folder: ReplicaFolder) -> None:
        self.stirred = asyncio.Event()
        """Set soon after a write."""
        self._writes = writes
        self._watched: dict[Path, int] = {}
        self._wanted = {
            folder.output: _IN_A_FILE,
            folder.run: _IN_A_FOLDER,
            folder.spool: _IN_THE_SPOOL,
        }
        self._spool = folder.spool

    def is_watched(self) -> bool:
        """Whether `stirred` is set by all writes from now on; watches new files."""
        # All of them each time: a program can replace its folders.
        lacking = [path for path, mask in self._wanted.items() if not self._watch(path, mask)]
        return not lacking

    def forget(self) -> None:
        """Stop watching all."""
        for number in self._watched.values():
            self._writes.remove(self, number)
        self._watched.clear()

    def _watch(self, path: Path, mask: int) -> bool:
        before = self._watched.pop(path, None)
        number = None
        try:
            number = self._watched[path] = self._writes.add(self, path, mask)
        except OSError as error:
            # A folder to be created is signalled by its parent.
            return error.errno == ENOENT and path == self._spool
        finally:
            if before is not None and before != number:
                self._writes.remove(self, before)
        return True
