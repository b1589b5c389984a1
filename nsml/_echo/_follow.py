"""The process that reads the event files of one program while it writes them, and to their end after its own.

It trusts nothing in them: what it cannot read it skips, and it ends rather than to disturb anything. Its messages are
lines of JSON on standard input; the end of that is the end of the program.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import sys
import time
from contextlib import suppress

from nsml._echo._event_files import EventReader
from nsml._echo._events import ORIGIN, record
from nsml._echo._following import mark, unmark
from nsml._echo._logdirs import Logdirs
from nsml._echo._sink import Sink
from nsml._progress import ProgressWriter
from nsml._report import Reporter
from nsml._spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from nsml._echo._event_files import EventValue

LOOK_S = 0.1
"""Interval of looks at the files, in seconds."""
_LOOK_AT_PROGRAM_S = 1.0
_MOST_FILES = 500
_MOST_FOLDERS = 1_000
_MOST_ENTRIES = 20_000
"""Most entries of a folder that are looked at."""
_MOST_INPUT = 1 << 20
_NAME = re.compile(r"\.tfevents\.([0-9]{1,12})\.(.*)", re.DOTALL)
_WRITER = re.compile(r"\.([0-9]+)\.[0-9]+(?:\.[^.0-9][^.]*)?$")
"""The end of a name: pid, number of the writer, and a suffix. Writers of TensorFlow 1 have none of these."""
_HOLD_S = 10.0
"""So long at most is a hook between making a file and naming it."""


class _File:
    """One file that is followed."""

    def __init__(self, file: Any, folder: str) -> None:
        self.file = file
        self.folder = folder
        self.reader = EventReader()
        self.size = 0


class Follower:
    """Reads the event files that one process writes.

    Args:
        run_dir: the folder shared by the node agent and the program.
        pid: of the program.
        began: when it made its first writer, in Unix seconds: older files are not read.
    """

    def __init__(self, run_dir: str, pid: int, began: float) -> None:
        self._pid = pid
        self._began = int(began)
        spool = Spool(os.path.join(run_dir, "spool"))
        nothing = Spool(None)
        self._sink = Sink(run_dir, spool, Reporter(nothing), ProgressWriter(nothing))
        self._logdirs = Logdirs(run_dir)
        self._folders: Dict[str, int] = {}
        self._files: Dict[Tuple[int, int], Optional[_File]] = {}
        self._holds = 0
        self._holds_until = 0.0
        self._born = _birth(pid)
        self._looked_at_program = 0.0

    def hear(self, message: Any) -> None:
        """Take a message of `_following`."""
        if "logdir" in message and len(self._folders) < _MOST_FOLDERS:
            self._folders.setdefault(str(message["logdir"]), -1)
        elif "hold" in message:
            self._holds += 1
            self._holds_until = time.monotonic() + _HOLD_S
        elif "wrote" in message:
            self._holds = max(self._holds - 1, 0)
            device, inode = message["wrote"]
            self._files[int(device), int(inode)] = None

    def find(self) -> List[Tuple[str, str, Tuple[int, int]]]:
        """Return folder, path, and device and inode of files that may have to be followed."""
        found = []
        for folder, changed in self._folders.items():
            with suppress(OSError):
                now = os.stat(folder).st_mtime_ns
                if now != changed:
                    found += [(folder, *one) for one in self._in_folder(folder)]
                    # An entry that was made in the same tick of the clock would be missed.
                    is_settled = time.time_ns() - now > 2_000_000_000
                    self._folders[folder] = now if is_settled else -1
        if time.monotonic() - self._looked_at_program > _LOOK_AT_PROGRAM_S:
            self._looked_at_program = time.monotonic()
            found += [(os.path.dirname(path), path, place) for path, place in self._open_files()]
        return [one for one in found if one[2] not in self._files]

    def begin(self, found: List[Tuple[str, str, Tuple[int, int]]], *, is_last: bool) -> None:
        """Follow these files, unless a hook may be about to name one of them."""
        if self._holds and time.monotonic() < self._holds_until and not is_last:
            for folder in self._folders:
                self._folders[folder] = -1
            return
        for folder, path, place in found:
            if place in self._files or len(self._files) >= _MOST_FILES:
                continue
            with suppress(OSError):
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                file = open(os.open(path, flags), "rb", buffering=0)  # noqa: SIM115 - it stays open
                facts = os.fstat(file.fileno())
                if stat.S_ISREG(facts.st_mode) and (facts.st_dev, facts.st_ino) == place:
                    self._files[place] = _File(file, folder)
                else:
                    file.close()

    def read(self) -> None:
        """Record what is new in the files."""
        for one in [*self._files.values()]:
            if one is None:
                continue
            with suppress(OSError):
                size = os.fstat(one.file.fileno()).st_size
                if size < one.reader.offset <= one.size:  # written anew
                    one.reader = EventReader()
                if size != one.size:
                    one.size = size
                    prefix = self._logdirs.prefix(one.folder)
                    for found in one.reader.read(one.file):
                        self._record(found, prefix)

    def is_program_gone(self) -> bool:
        """Return whether the program has ended, also if a child of it holds the pipe."""
        return _birth(self._pid) != self._born

    def _record(self, found: List[EventValue], prefix: str) -> None:
        """Record values; numbers of one step and about one time become one record, many records one `write`."""
        records: List[bytes] = []
        encode = self._sink.records
        group: Dict[str, float] = {}
        step, began = 0, 0.0
        for one in found:
            kind, tag, at, time, value = one
            if kind != "scalar":
                self._sink.append(records)
                records = []
                record(self._sink, one, prefix)
                continue
            if group and (at != step or tag in group or abs(time - began) > LOOK_S):
                records += encode(ORIGIN, group, step, prefix=prefix, time=began or None)
                group = {}
            if not group:
                step, began = at, time
            group[tag] = value
        if group:
            records += encode(ORIGIN, group, step, prefix=prefix, time=began or None)
        self._sink.append(records)

    def _in_folder(self, folder: str) -> List[Tuple[str, Tuple[int, int]]]:
        """Return event files that the program has made in a folder, by their names."""
        found = []
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_MOST_ENTRIES), entries):
                if self._is_own(entry.name) and entry.is_file(follow_symlinks=False):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((entry.path, (facts.st_dev, facts.st_ino)))
        return found

    def _open_files(self) -> List[Tuple[str, Tuple[int, int]]]:
        """Return event files that the program has open for writing."""
        found = []
        with suppress(OSError):
            for number in os.listdir(f"/proc/{self._pid}/fd"):
                with suppress(OSError, ValueError):
                    path = os.readlink(f"/proc/{self._pid}/fd/{number}")
                    name = os.path.basename(path)
                    if self._is_own(name, is_open=True) and self._is_written(number):
                        facts = os.stat(path)
                        found.append((path, (facts.st_dev, facts.st_ino)))
        return found

    def _is_own(self, name: str, *, is_open: bool = False) -> bool:
        """Return whether the program has made a file of this name; one without a pid must be open there."""
        named = _NAME.search(name)
        if named is None or int(named[1]) < self._began:
            return False
        writer = _WRITER.search(name)
        return is_open if writer is None else int(writer[1]) == self._pid

    def _is_written(self, number: str) -> bool:
        with open(f"/proc/{self._pid}/fdinfo/{number}", encoding="ascii") as file:
            flags = next(line for line in file if line.startswith("flags:")).split()[1]
        return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _birth(pid: int) -> str:
    """Return what tells a process from later ones of its number; "" if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            facts = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if facts[0] in "ZX" else facts[19]


class _Input:
    """Messages on standard input."""

    def __init__(self) -> None:
        self._rest = b""
        self.has_ended = False

    def messages(self, wait_s: float) -> List[Any]:
        """Return the messages that are there, after at most this time."""
        found: List[Any] = []
        while not self.has_ended and select.select([0], [], [], wait_s)[0]:
            wait_s = 0.0
            data = os.read(0, 65_536)
            self.has_ended = not data
            *lines, self._rest = (self._rest + data)[-_MOST_INPUT:].split(b"\n")
            for line in lines:
                with suppress(ValueError):
                    found.append(json.loads(line.decode("utf-8", "surrogateescape")))
        return found


def run(run_dir: str, pid: int, began: float) -> None:
    """Follow until the program has ended and all is read."""
    follower, given = Follower(run_dir, pid, began), _Input()
    next_check = 0.0
    is_last = False
    while True:
        for message in given.messages(0.0 if is_last else LOOK_S):
            follower.hear(message)
        found = follower.find()
        for message in given.messages(0.0):  # a file that a hook has made meanwhile is held by now
            follower.hear(message)
        follower.begin(found, is_last=is_last)
        follower.read()
        if is_last:
            return
        is_last = given.has_ended
        if not is_last and time.monotonic() > next_check:
            next_check = time.monotonic() + 1.0
            is_last = follower.is_program_gone()


def main() -> None:
    """Become a process without a parent, and follow. Arguments: the folder of the SDK, pid, begin."""
    with suppress(Exception):  # nobody reads what it would say
        pid = os.fork()
        if pid:
            mark(pid)  # before that of this part goes
            unmark(mark(os.getpid()))
            os._exit(0)
        marker = mark(os.getpid())
        try:
            run(os.environ["NSML_RUN_DIR"], int(sys.argv[2]), float(sys.argv[3]))
        finally:
            unmark(marker)
    os._exit(0)
