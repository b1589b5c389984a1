"""Follows event files that TensorFlow's own code writes: starts a process that reads them, and tells it where they are.

A process, not a thread: it reads to the end of the files after a program that was killed. It is started when the first
writer is made, holds no stream of the program, and is no child of it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress

from nsml._rights import create, make_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Set, Tuple

_PROGRAM = "import sys; sys.path[:] = [sys.argv[1], *sys.path]; from nsml._echo._follow import main; main()"
MARKERS = "echo/following"
"""Folder in the run folder: a file named by its pid for each follower, until it has ended. The session waits for these."""
_MOST_BYTES = 4_000
"""A message is one `write`: it is whole, or not there."""


class _Follower:
    """The way to the follower of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pipe = -1
        self.has_failed = False
        self.written: Set[Tuple[int, int]] = set()
        """Device and inode of files that hooks record."""


_follower = _Follower()


def follow(logdir: str) -> None:
    """Follow the event files that this process writes into a folder from now on."""
    if "://" in logdir:  # in an object store
        return
    with _follower.lock:
        if _follower.pipe < 0 and not _follower.has_failed:
            with suppress(OSError, ValueError):
                _start()
    _send({"logdir": os.path.abspath(logdir)})


def hold() -> None:
    """Begin no further file until `wrote`: a writer with a hook makes one."""
    _send({"hold": True})


def wrote(path: str) -> None:
    """Never follow this file: what is written to it is recorded by a hook."""
    place = (-1, -1)
    with suppress(OSError):
        facts = os.stat(path)
        place = (facts.st_dev, facts.st_ino)
        if len(_follower.written) < 10_000:
            _follower.written.add(place)
    _send({"wrote": place})


def _send(message: Any) -> None:
    data = json.dumps(message).encode("utf-8", "surrogateescape") + b"\n"
    if _follower.pipe >= 0 and len(data) <= _MOST_BYTES:
        with suppress(OSError):  # it has ended, or does not read: nothing waits for it
            os.write(_follower.pipe, data)


def _start() -> None:
    _follower.has_failed = True  # until it runs, and for ever in a program that is no interpreter
    if not sys.executable or getattr(sys, "frozen", False) or os.name != "posix":
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    _follower.pipe = _out_of_the_way(writing)
    _follower.has_failed = False
    for place in _follower.written:
        _send({"wrote": place})
    import subprocess

    import nsml

    folder = os.path.dirname(os.path.dirname(os.path.abspath(nsml.__file__)))
    arguments = [sys.executable, "-S", "-E", "-c", _PROGRAM, folder]
    arguments += [str(os.getpid()), repr(time.time())]
    nowhere = subprocess.DEVNULL
    try:
        started = subprocess.Popen(
            arguments, stdin=reading, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
    finally:
        os.close(reading)
    marker = mark(started.pid)
    # Its first part ends at once: no `os.wait` of the program waits for the follower.
    with suppress(RuntimeError):  # no thread can be started while the program ends
        threading.Thread(target=_reap, args=(started, marker), daemon=True).start()


def _reap(started: subprocess.Popen[bytes], marker: str) -> None:
    started.wait()
    unmark(marker)


def mark(pid: int) -> str:
    """Let the end of the session wait for a process; return what `unmark` needs."""
    marker = os.path.join(os.environ.get("NSML_RUN_DIR") or os.devnull, MARKERS, str(pid))
    with suppress(OSError):
        make_folders(os.path.dirname(marker))
        os.close(create(marker))
    return marker


def unmark(marker: str) -> None:
    """End that."""
    with suppress(OSError):
        os.unlink(marker)


def _out_of_the_way(fd: int) -> int:
    """Move the pipe to a high descriptor: programs that close "all" files would reuse it."""
    try:
        import fcntl

        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
    except (ImportError, OSError):
        return fd
    os.close(fd)
    return high


def _after_fork() -> None:
    """Leave the follower to the parent, whose end it must see: a child has its own."""
    global _follower
    pipe, written = _follower.pipe, _follower.written
    _follower = _Follower()
    _follower.written = written
    if pipe >= 0:
        with suppress(OSError):
            os.close(pipe)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
