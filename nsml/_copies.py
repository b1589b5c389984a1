"""Files that no other process can change: copies, a test for open writers, and seals that detect changes."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` has, without loading that
import errno
import os
import stat
import sys
import time
from contextlib import suppress

from nsml._digests import sha256
from nsml._path_text import path_text
from nsml._rights import make_folder, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence, Tuple

_FICLONE = 0x40049409
_F_SETSIG = 10
_CLOCK_REALTIME_COARSE = 5
_LONGEST_TICK_S = 0.05
_PIECE_BYTES = 16 << 20
_CANNOT_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def copy_tree(source: str, target: str) -> None:
    """Copy the regular files and folders below `source` to the new folder `target`, writable.

    Blocks are shared if the file system can (Btrfs, XFS), else the bytes are copied. Links are
    skipped: the copy does not refer to the source.

    Raises:
        OSError: a file cannot be read, or the disk has no room; ENOSPC is raised before it is full.
    """
    is_checked = False
    make_folder(target)
    for base, folders, names in walk(source):
        below = os.path.relpath(base, source)
        there = os.path.join(target, below) if below != "." else target
        for name in folders:
            if not os.path.islink(os.path.join(base, name)):
                make_folder(os.path.join(there, name))
        for name in names:
            path = os.path.join(base, name)
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            is_shared = copy_file(path, os.path.join(there, name), clone_only=not is_checked)
            if not is_shared and not is_checked:
                is_checked = True
                check_room(source, target)
                copy_file(path, os.path.join(there, name))


def copy_file(source: str, target: str, *, clone_only: bool = False) -> bool:
    """Copy `source` to the new file `target`; return whether they share blocks.

    With `clone_only` no file is made if they cannot. Holes stay holes. Raises OSError.
    """
    with open(source, "rb") as read:
        mode = 0o755 if os.fstat(read.fileno()).st_mode & stat.S_IXUSR else 0o644
        with open(target, "xb") as written:
            if share_blocks(read.fileno(), written.fileno()):
                is_shared = True
            elif clone_only:
                os.unlink(target)
                return False
            else:
                is_shared = False
                _copy_bytes(read.fileno(), written.fileno())
            if hasattr(os, "fchmod"):
                os.fchmod(written.fileno(), mode)
    return is_shared


def share_blocks(source: int, target: int) -> bool:
    """Clone `source` into the empty file `target`; return whether the file system can."""
    try:
        import fcntl

        fcntl.ioctl(target, _FICLONE, source)
    except (ImportError, OSError):
        return False
    return sys.platform.startswith("linux")


def has_no_writer(file: int) -> Optional[bool]:
    """Return whether no process has this descriptor's file open or mapped for writing; None: unknown.

    A read lease is granted exactly then; it is released at once. Not all file systems support leases.
    """
    try:
        import fcntl

        setlease = fcntl.F_SETLEASE
    except (ImportError, AttributeError):
        return None
    try:
        # If a process opens it for writing meanwhile, the kernel sends a signal: choose one that is ignored.
        fcntl.fcntl(file, _F_SETSIG, _signal.SIGURG)
        fcntl.fcntl(file, setlease, fcntl.F_RDLCK)
        fcntl.fcntl(file, setlease, fcntl.F_UNLCK)
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    return True


def is_private(path: str) -> Optional[bool]:
    """Return whether a file has one name, and no process has it open or mapped for writing; None: unknown."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return False if os.fstat(file).st_nlink != 1 else has_no_writer(file)
    finally:
        os.close(file)


def make_private(path: str) -> bool:
    """Replace a file by a copy if another name, descriptor or mapping may still change it.

    Return whether one may; if unknown, the file is copied too. The content is that of this
    moment. Sessions run on Linux: elsewhere files are unchanged. Raises OSError.
    """
    if not sys.platform.startswith("linux"):
        return False
    known = is_private(path)
    if known:
        return False
    draft = f"{path}.{os.getpid()}.nsml"
    try:
        copy_file(path, draft)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise
    return known is False


def seal_of(folder: str, files: Sequence[str]) -> str:
    """Return the seal of files below `folder` in their current state. Raises OSError.

    Returns only when a later change would be detected, after a tick of the kernel's clock (some
    milliseconds).
    """
    found = [(path_text(path), os.lstat(os.path.join(folder, path))) for path in files]
    _wait_past(max([facts.st_ctime_ns for _, facts in found], default=0))
    return seal(found)


def seal(found: Sequence[Tuple[str, os.stat_result]]) -> str:
    """Return a digest of the files and their last changes of any kind, and one of their last content changes.

    64 hexadecimal digits each. Paths are as text. The kernel sets the time of the last change of any kind; a program cannot.
    """
    change, content = sha256(), sha256()
    for path, facts in found:
        name = path.encode("utf-8", "surrogateescape")
        content.update(b"%d:%d:%d:%s\0" % (facts.st_ino, facts.st_size, facts.st_mtime_ns, name))
        change.update(b"%d\0" % facts.st_ctime_ns)
    change.update(content.digest())
    return change.hexdigest() + content.hexdigest()


def _wait_past(moment_ns: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    until = time.monotonic() + _LONGEST_TICK_S
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= moment_ns:
        if time.monotonic() >= until:  # another machine's clock, or one that was set back
            return
        time.sleep(0.0005)


def _copy_bytes(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENXIO:  # a hole up to the end
                break
            start, end = at, size
        _copy_range(source, target, start, end)
        at = end
    os.ftruncate(target, size)


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    os.lseek(source, start, os.SEEK_SET)
    os.lseek(target, start, os.SEEK_SET)
    while start < end:
        try:
            count = os.copy_file_range(source, target, min(end - start, _PIECE_BYTES))
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _CANNOT_COPY:
                raise
            _write_through(source, target, end - start)
            return
        if not count:  # truncated meanwhile
            return
        start += count


def _write_through(source: int, target: int, size: int) -> None:
    while size > 0:
        rest = memoryview(os.read(source, min(size, _PIECE_BYTES)))
        if not rest:  # truncated meanwhile
            return
        size -= len(rest)
        while rest:
            rest = rest[os.write(target, rest) :]


def check_room(source: str, target: str) -> None:
    """Raise OSError (ENOSPC) if a copy of the file or folder `source` does not fit in the folder `target`."""
    if not hasattr(os, "statvfs"):
        return
    needed = 0 if os.path.isdir(source) else os.stat(source).st_blocks * 512
    for base, _, names in os.walk(source):
        needed += sum(os.lstat(os.path.join(base, name)).st_blocks * 512 for name in names)
    space = os.statvfs(target)
    if needed > space.f_bavail * space.f_frsize:
        raise OSError(errno.ENOSPC, f"no room for a copy of {needed} bytes", target)
