"""Files and folders that are accessible to their owner, whatever umask or mode user code has set.

The umask is process-wide, so it is never changed here, not even temporarily: missing rights are
added after creation.
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
    """Make a folder and missing parents, accessible to their owner. Raises OSError."""
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
    """Make a new folder. Raises OSError."""
    os.mkdir(path, 0o700)
    allow(path, stat.S_IRWXU)


def make_unique(parent: str) -> str:
    """Make a uniquely named folder in `parent`, and return its path. Raises OSError."""
    while True:
        path = os.path.join(parent, f"{os.getpid():x}-{next(_numbers):x}-{os.urandom(6).hex()}")
        with suppress(FileExistsError):
            make_folder(path)
            return path


def create(path: str, flags: int = os.O_WRONLY) -> int:
    """Create a new file; return its descriptor. Raises OSError."""
    flags |= os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    file = os.open(path, flags, 0o600)
    if hasattr(os, "fchmod") and stat.S_IMODE(os.fstat(file).st_mode) & 0o600 != 0o600:
        with suppress(OSError):  # a file system without modes
            os.fchmod(file, 0o600)
    return file


def allow(path: str, rights: int, mode: int = -1) -> None:
    """Add missing `rights` for the owner; `mode`: the file's mode if known.

    Failures are ignored: later uses of the file raise the error.
    """
    with suppress(OSError):
        mode = mode if mode >= 0 else os.stat(path).st_mode
        if mode & rights != rights:
            os.chmod(path, stat.S_IMODE(mode) | rights)


def walk(folder: str) -> Any:
    """`os.walk` that also enters folders closed by their owner. Raises OSError if one cannot be read."""
    allow(folder, stat.S_IRWXU)
    for base, folders, names in os.walk(folder, onerror=_raise_unless_gone):
        for name in folders:
            path = os.path.join(base, name)
            if not os.path.islink(path):
                allow(path, stat.S_IRWXU)
        yield base, folders, names


def remove_tree(path: str) -> None:
    """Remove a folder and its contents as far as the disk allows; of a link only the link."""
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
                if os.name == "nt":  # where read-only files cannot be removed
                    allow(file, stat.S_IWRITE)
                with suppress(OSError):
                    os.unlink(file)
    for base in reversed(found):
        with suppress(OSError):
            os.rmdir(base)


def _raise_unless_gone(error: OSError) -> None:
    """Ignore missing files: a thread of the program may still be removing them."""
    if not isinstance(error, FileNotFoundError):
        raise error
