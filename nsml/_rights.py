"""Files and folders that their owner can use, whatever umask or mode user code has set.

A umask belongs to the whole process, so it is never changed here, not even for a moment: what was made is
given the missing rights afterwards.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_numbers = count(1)


def make_folders(path: str) -> None:
    """Make a folder and those above it that are missing, and let their owner use them. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError:
        above = os.path.dirname(path)
        if not above or above == path:
            raise
        make_folders(above)
        make_folders(path)
        return
    allow(path, stat.S_IRWXU)


def make_folder(path: str) -> None:
    """Make a folder that must not exist yet. Raises OSError."""
    os.mkdir(path, 0o700)
    allow(path, stat.S_IRWXU)


def make_unique(parent: str) -> str:
    """Make a folder under a name of its own in `parent`, and return its path. Raises OSError."""
    while True:
        path = os.path.join(parent, f"{os.getpid():x}-{next(_numbers):x}-{os.urandom(6).hex()}")
        with suppress(FileExistsError):
            make_folder(path)
            return path


def create(path: str, flags: int = os.O_WRONLY) -> int:
    """Create a file that must not exist yet; its descriptor. Raises OSError."""
    flags |= os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    file = os.open(path, flags, 0o600)
    if hasattr(os, "fchmod") and stat.S_IMODE(os.fstat(file).st_mode) & 0o600 != 0o600:
        with suppress(OSError):  # a file system without modes
            os.fchmod(file, 0o600)
    return file


def allow(path: str, rights: int, mode: int = -1) -> None:
    """Give the owner `rights` where they are missing; `mode` is that of the file if it is known.

    What cannot be changed stays as it is: whoever uses the file then gets the error.
    """
    with suppress(OSError):
        mode = mode if mode >= 0 else os.stat(path).st_mode
        if mode & rights != rights:
            os.chmod(path, stat.S_IMODE(mode) | rights)


def walk(folder: str) -> Any:
    """`os.walk` which enters folders that their owner closed. Raises OSError where one cannot be read."""
    allow(folder, stat.S_IRWXU)
    for base, folders, names in os.walk(folder, onerror=_raise_unless_gone):
        for name in folders:
            path = os.path.join(base, name)
            if not os.path.islink(path):
                allow(path, stat.S_IRWXU)
        yield base, folders, names


def remove_tree(path: str) -> None:
    """Remove a folder and all in it as far as the disk allows; of a link only the link."""
    if os.path.islink(path):
        with suppress(OSError):
            os.unlink(path)
        return
    found = []
    with suppress(OSError):
        for base, folders, names in walk(path):
            found.append(base)
            links = [name for name in folders if os.path.islink(os.path.join(base, name))]
            for name in names + links:
                file = os.path.join(base, name)
                if os.name == "nt":  # where files that are read-only cannot be removed
                    allow(file, stat.S_IWRITE)
                with suppress(OSError):
                    os.unlink(file)
    for base in reversed(found):
        with suppress(OSError):
            os.rmdir(base)


def _raise_unless_gone(error: OSError) -> None:
    """A thread of the program's may still be clearing up."""
    if not isinstance(error, FileNotFoundError):
        raise error
