"""Deleted files that a replica holds open: they take disk space until released.

Standard library only: it runs in the shim. Descriptors are checked often, which is cheap; all other references to
a file rarely: descriptors of threads that share none with their process, mappings,
executables, current folders, and descriptors sent over a Unix socket and not received.
A file held only by a blocked system call (sendfile) is not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import select
import signal
import stat
import struct
import time

from nodeagent.shim import namespaces
from nodeagent.shim.disk_usage import BLOCK, FILE_BYTES
from nodeagent.shim.files import content_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Sequence
    from typing import NoReturn

    Files = dict[int, int]

    Door = tuple[int, int]
    """A descriptor of another process: thread and number."""

_SYS_PIDFD_GETFD = 438
_PIDFD_THREAD = os.O_EXCL
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}
FILES, FOLDERS = 2, 3
"""Resources that threads may share, by the numbers of kcmp(2)."""
_SO_PEEK_OFF = 42
_RIGHTS = (1, 1)
"""SOL_SOCKET and SCM_RIGHTS."""
_SENT_AT_ONCE = 253
"""Most descriptors of one message, SCM_MAX_FD."""
_PIECE = 1 << 16
_PEEK_S = 1.0
"""Timeout of the search for descriptors in flight."""
_MOST_MESSAGES = 100_000
"""Most unreceived messages to search."""
_UNCOUNTED = 0
"""No file's number: marks uncountable descriptors."""
_DELETED = b" (deleted)"
_IN_MEMORY = (b"/dev/zero ", b"/dev/shm/", b"/memfd:", b"/SYSV")
"""Mappings that are on no disk, of which some programs have thousands."""
_FILE = "=QQ"

_libc = ctypes.CDLL(None, use_errno=True)


def disk_of(path: str) -> int | None:
    """Return the device of a file: with overlay file systems its folder has another."""
    try:
        return os.stat(path, follow_symlinks=False).st_dev
    except OSError:
        return None


class Holding:
    """One look at the deleted files that processes hold on a disk; call `advance` until it is `done`.

    Files in memory, like most shared memory, are on no disk. `is_thorough`: checks more than descriptors.
    `files` has the files found so far: bytes by inode, FILE_BYTES each at least. `is_incomplete`:
    some descriptors in flight cannot be checked: over a connection not accepted, or too many.
    """

    def __init__(self, pids: Iterable[int], disk: int | None, *, is_thorough: bool) -> None:
        self.files: Files = {}
        self.done = disk is None
        self.is_thorough = is_thorough
        self.is_incomplete = False
        self._disk = disk
        self._steps = self._look(pids)

    def advance(self, seconds: float) -> bool:
        """Continue for `seconds`, or to the end; return whether it is done."""
        until = time.monotonic() + seconds
        for _ in self._steps:
            if time.monotonic() >= until:
                return False
        self.done = True
        return True

    def _look(self, pids: Iterable[int]) -> Iterator[None]:
        doors: dict[int, Door] = {}
        for pid in pids:
            if not self.is_thorough:
                yield from self._opened(pid, {})
                continue
            threads = threads_of(pid)
            for thread in distinct(threads, FILES):
                yield from self._opened(thread, doors)
            for thread in distinct(threads, FOLDERS):
                for name in ("cwd", "root"):
                    self._note(f"/proc/{thread}/{name}")
                yield
            self._note(f"/proc/{pid}/exe")
            yield from self._mapped(threads)
        senders = []
        for door in doors.values():
            if _has_descriptors(*door):
                senders.append(door)
            yield
        if senders:
            self._in_flight(senders)

    def _note(self, path: str) -> os.stat_result | None:
        """Check one file, and store it if it is deleted but on the disk."""
        try:
            facts = os.stat(path)
        except OSError:
            return None
        if _is_nameless(facts, self._disk):
            self.files[facts.st_ino] = _size(facts)
        return facts

    def _opened(self, thread: int, doors: dict[int, Door]) -> Iterator[None]:
        """Check a thread's open files; its sockets are added to `doors` by inode."""
        with contextlib.suppress(OSError), os.scandir(f"/proc/{thread}/fd") as entries:
            for entry in entries:
                facts = self._note(entry.path)
                if facts is not None and stat.S_ISSOCK(facts.st_mode):
                    doors.setdefault(facts.st_ino, (thread, int(entry.name)))
                yield

    def _mapped(self, threads: Sequence[int]) -> Iterator[None]:
        """Check a process's mappings: if its first thread has ended, by another one."""
        for thread in threads:
            seen: set[bytes] = set()
            content = b""
            with contextlib.suppress(OSError):
                content = content_of(f"/proc/{thread}/maps")
            yield
            for line in content.splitlines() if _DELETED in content else ():
                if line.endswith(_DELETED):
                    addresses, _, _, device, inode, path = line.split(maxsplit=5)
                    if device + inode not in seen and not path.startswith(_IN_MEMORY):
                        seen.add(device + inode)
                        # takes root
                        self._note(f"/proc/{thread}/map_files/{addresses.decode()}")
                        yield
            if content:
                return

    def _in_flight(self, doors: Sequence[Door]) -> None:
        """Check descriptors queued at these sockets, in a process of its own: closing one may block."""
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            peeker = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            return
        if peeker == 0:
            _be_peeker(doors, self._disk, write)
        os.close(write)
        content = _read_all(read, time.monotonic() + _PEEK_S)
        os.close(read)
        os.kill(peeker, signal.SIGKILL)
        os.waitpid(peeker, 0)
        signal.sigtimedwait((signal.SIGCHLD,), 0)
        self.files.update(struct.iter_unpack(_FILE, content[: len(content) // 16 * 16]))
        self.is_incomplete = self.files.pop(_UNCOUNTED, None) is not None


def _read_all(descriptor: int, until: float) -> bytes:
    """Read from a pipe until then, or to its end."""
    content = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], left)[0]:
            break
        piece = os.read(descriptor, _PIECE)
        if not piece:
            break
        content += piece
    return content


def _is_nameless(facts: os.stat_result, disk: int | None) -> bool:
    return facts.st_dev == disk and not facts.st_nlink


def _size(facts: os.stat_result) -> int:
    return max(facts.st_blocks * BLOCK, FILE_BYTES)


def threads_of(pid: int) -> list[int]:
    """Return its threads from /proc; the first of them may have ended."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def distinct(threads: Sequence[int], kind: int) -> Sequence[int]:
    """Return one of each group of threads that share a resource; all, if the kernel does not report it."""
    number = _SYS_KCMP.get(os.uname().machine, -1)

    def compare(one: int, other: int) -> int:
        answer: int = _libc.syscall(number, one, other, kind, 0, 0)
        return -1 if answer == 1 else min(abs(answer), 1)

    if not any(compare(threads[0], one) for one in threads[1:]):
        return threads[:1]
    ordered = sorted(threads, key=functools.cmp_to_key(compare))
    pairs = zip(ordered[1:], ordered, strict=False)
    return [ordered[0], *(one for one, before in pairs if compare(one, before))]


def _has_descriptors(thread: int, number: int) -> bool:
    """Whether descriptors are queued at a socket; kernels before 5.6 do not report it."""
    with contextlib.suppress(OSError), open(f"/proc/{thread}/fdinfo/{number}", "rb") as lines:
        for line in lines:
            if line.startswith(b"scm_fds:"):
                return int(line.split()[1]) > 0
    return False


def _be_peeker(doors: Sequence[Door], disk: int | None, write: int) -> NoReturn:
    """Write the files queued at these sockets, and exit."""
    try:
        namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for facts in _peeked(doors):
            if facts is None:
                os.write(write, struct.pack(_FILE, _UNCOUNTED, 0))
            elif _is_nameless(facts, disk):
                os.write(write, struct.pack(_FILE, facts.st_ino, _size(facts)))
    finally:
        os._exit(0)


def _peeked(doors: Sequence[Door]) -> Iterator[os.stat_result | None]:
    """Yield files queued at sockets of other processes, and at sockets queued there; None: some are not visible."""
    import socket

    sockets = []
    for thread, number in doors:
        with contextlib.suppress(OSError):
            sockets.append(socket.socket(fileno=_copied(thread, number)))
    seen: set[int] = set()
    messages = 0
    while sockets:
        one = sockets.pop()
        inode = os.fstat(one.fileno()).st_ino
        if one.family == socket.AF_UNIX and inode not in seen:
            seen.add(inode)
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield None
            for descriptors in _queued(one):
                messages += 1
                for descriptor in descriptors:
                    facts = os.fstat(descriptor)
                    yield facts
                    if stat.S_ISSOCK(facts.st_mode):
                        sockets.append(socket.socket(fileno=descriptor))
                    else:
                        os.close(descriptor)
                if messages > _MOST_MESSAGES:
                    yield None
                    return
        one.detach()  # closed with this process: closing a connection may block


def _queued(one: socket.socket) -> Iterator[Sequence[int]]:
    """Yield copies of the descriptors of each queued message, which stays queued."""
    import socket

    how = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    with contextlib.suppress(OSError):
        before = one.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
        one.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
        try:
            while True:
                data, more, _, _ = one.recvmsg(_PIECE, socket.CMSG_SPACE(4 * _SENT_AT_ONCE), how)
                rights = [content for level, kind, content in more if (level, kind) == _RIGHTS]
                yield [one for content in rights for (one,) in struct.iter_unpack("=i", content)]
                if not data and one.type == socket.SOCK_STREAM:
                    break
        finally:
            one.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, before)


def _copied(thread: int, number: int) -> int:
    """Return a copy of another process's descriptor. Raises OSError."""
    try:
        owner = os.pidfd_open(thread, _PIDFD_THREAD)
    except OSError:  # before Linux 6.9 for processes only
        owner = os.pidfd_open(thread)
    copy: int = _libc.syscall(_SYS_PIDFD_GETFD, owner, number, 0)
    os.close(owner)
    if copy < 0:
        raise OSError("it cannot be copied")
    return copy
