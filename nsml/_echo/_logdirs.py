"""Prefixes of metrics by log folder: none for the first of the replica, then names relative to it."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from nsml._path_text import name_text
from nsml._rights import create, make_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

_FOLDER = "echo"
_NAME = "logdirs"
_MOST = 1_000
_MOST_BYTES = 8 << 20
_MOST_PREFIX_CHARS = 200


class Logdirs:
    """The log folders of all processes of a replica, in the order of their first use: all agree on it.

    They are lines of a file: each is appended by one `write`, then the file is read again.

    Args:
        run_dir: the folder shared by the processes of a replica.
    """

    def __init__(self, run_dir: str) -> None:
        self._folder = os.path.join(run_dir, _FOLDER)
        self._prefixes: Dict[str, str] = {}
        self._first = ""
        self._read = 0
        self._lock = threading.RLock()

    def after_fork(self) -> None:
        """Forget the lock of the parent: its holder may not exist here."""
        self._lock = threading.RLock()

    def prefix(self, logdir: str) -> str:
        """Return the prefix of metrics written to this folder; it ends with a slash, unless it is ""."""
        path = os.path.realpath(logdir)
        found = self._prefixes.get(path)
        if found is None:
            with self._lock:
                with suppress(OSError):  # a full disk, a folder removed: this process decides alone
                    self._look(path)
                found = self._add(path)
        return found

    def is_known(self, logdir: str) -> bool:
        """Return whether a prefix of this folder was asked for."""
        return os.path.realpath(logdir) in self._prefixes

    def _look(self, path: str) -> None:
        name = os.path.join(self._folder, _NAME)
        flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        try:
            file = os.open(name, flags)
        except FileNotFoundError:
            make_folders(self._folder)
            with suppress(FileExistsError):
                os.close(create(name))
            file = os.open(name, flags)
        try:
            if os.fstat(file).st_size < _MOST_BYTES:
                os.write(file, os.fsencode(path).replace(b"\n", b"?") + b"\n")
            data = os.pread(file, _MOST_BYTES, self._read)
        finally:
            os.close(file)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.split(b"\n")[:-1]:
            self._add(os.fsdecode(line))

    def _add(self, path: str) -> str:
        found = self._prefixes.get(path)
        if found is None:
            if len(self._prefixes) >= _MOST:
                return _named(self._first, path)
            if not self._prefixes:
                self._first, found = path, ""
            else:
                found = self._unique(_named(self._first, path))
            self._prefixes[path] = found
        return found

    def _unique(self, prefix: str) -> str:
        taken = set(self._prefixes.values())
        found, number = prefix, 2
        while found in taken:
            found, number = f"{prefix[:-1]}-{number}/", number + 1
        return found


def _named(first: str, path: str) -> str:
    """Return the prefix of a folder, from its path relative to the first one."""
    parts: List[str] = [
        part for part in os.path.relpath(path, first).split(os.sep) if part not in (os.pardir, ".")
    ]
    text = name_text("/".join(parts or [os.path.basename(path) or "root"]))
    return f"{text[-_MOST_PREFIX_CHARS:].strip('/')}/"
