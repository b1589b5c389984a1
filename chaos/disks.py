"""The disks of a tormented platform: small ones, in memory, that can be made full and large again.

Each is a file system of its own, mounted where one part keeps its files. A disk is filled by making it as small
as what is on it: nothing more fits from that moment on, whatever size it has, and nothing has to be removed
afterwards. They lie in a mount namespace of this process, so that nobody else sees them and all are gone
with its last process, also when it is killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chaos.processes import NotDone

if TYPE_CHECKING:
    from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_REMOUNT, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 32, 16384, 1 << 18, 2
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TRIES: Final = 50
_CANARY: Final = ".nsml-chaos-canary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One of them: `part` keeps its files on it, which are of `kind`."""

    part: str
    kind: str
    place: Path
    size_bytes: int


@dataclass
class Disks:
    """All of a platform, by part.

    Attributes:
        why_none: why there are none here; empty where there can be.
    """

    why_none: str = ""
    by_part: dict[str, Disk] = field(default_factory=dict)

    def put(self, disk: Disk, *, mode: int = 0o700) -> None:
        """Lay a disk over a folder that is there; nothing where there are none.

        Raises:
            OSError: it cannot be mounted.
        """
        if self.why_none:
            return
        options = f"size={disk.size_bytes},mode={mode:o}"
        _mount("nsml-chaos", disk.place, kind="tmpfs", flags=0, options=options)
        self.by_part[disk.part] = disk

    def fill(self, part: str) -> str:
        """Leave no room, and prove it: what does.

        Raises:
            NotDone: it takes more all the same.
        """
        disk = self.by_part[part]
        for _ in range(_TRIES):
            # Somebody may write meanwhile, or remove what was there.
            if _is_shrunk(disk) and not _takes_more(disk.place):
                return f"a write of {_PAGE} bytes was refused (ENOSPC)"
        self.empty(part)
        raise NotDone(f"the disk of {part} is not full")

    def empty(self, part: str) -> None:
        """Give all its room back."""
        disk = self.by_part[part]
        _resize(disk.place, disk.size_bytes)

    def close(self) -> None:
        """Take all of them away, with what is on them."""
        for disk in self.by_part.values():
            _libc().umount2(os.fsencode(disk.place), _MNT_DETACH)
        self.by_part.clear()


def disks_here() -> Disks:
    """Disks where this machine allows them: it needs root or user namespaces. Moves this thread."""
    try:
        _check(_libc().unshare(_CLONE_NEWNS))
        # What is mounted here stays here.
        _mount("none", "/", kind=None, flags=_MS_REC | _MS_PRIVATE, options="")
    except OSError as error:
        by = "" if os.geteuid() == 0 else " (it needs root or user namespaces)"
        return Disks(why_none=f"nothing can be mounted here{by}: {error.strerror}")
    return Disks()


def _is_shrunk(disk: Disk) -> bool:
    """Make a disk as small as what is on it; False where that has grown meanwhile."""
    facts = os.statvfs(disk.place)
    used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    try:
        _resize(disk.place, max(used, _PAGE))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _takes_more(place: Path) -> bool:
    """Whether a file of a page finds room; there is none of it afterwards."""
    canary = place / _CANARY
    try:
        canary.write_bytes(b"x" * _PAGE)
    except OSError as error:
        return error.errno != errno.ENOSPC
    finally:
        with suppress(OSError):
            canary.unlink()
    return True


def _resize(place: Path, size_bytes: int) -> None:
    _mount("nsml-chaos", place, kind="tmpfs", flags=_MS_REMOUNT, options=f"size={size_bytes}")


def _mount(source: str, target: str | Path, *, kind: str | None, flags: int, options: str) -> None:
    # mount(8) refuses whoever is not root, also in a user namespace of one's own.
    words = [source.encode(), os.fsencode(target), kind.encode() if kind else None]
    _check(_libc().mount(*words, ctypes.c_ulong(flags), options.encode()))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(answer: int) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
