"""A process drops access to the files and processes of its account, by Landlock (Linux 5.13 and newer; landlock(7)).

For processes with untrusted peers that run as the control plane's account, whose files have the platform's keys. Program
code stays readable; open files stay open, and sockets are connected as before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_NO_NEW_PRIVS: Final = 38

_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_RIGHTS: Final = (13, 14, 15, 15, 16)
"""Number of file rights, by version from 1 on."""
_SCOPES_SINCE: Final = 6
_SCOPES: Final = 0b11
"""Abstract sockets of other processes, and signals to them."""

_FOLDERS: Final = ("/usr", "/lib", "/lib64", "/proc/self", "/dev/urandom")
_SETTINGS: Final = (
    *("hosts", "resolv.conf", "nsswitch.conf", "host.conf", "gai.conf", "localtime"),
    *("ssl/openssl.cnf", "pki/tls/openssl.cnf", "crypto-policies"),
)
"""In /etc, which may have secrets: files for names, times and TLS."""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("net", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def confine() -> None:
    """Drop access for good, in this thread and all that it starts: call it first, as other threads keep theirs.

    Files of the program and of Python stay readable, nothing is written or executed, and memory, environment and
    descriptors of other processes are inaccessible, as are signals to them from Linux 6.12 on. Raises OSError, ENOSYS if the kernel lacks Landlock.
    """
    version = landlock_version()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    rights = (1 << _RIGHTS[min(version, len(_RIGHTS)) - 1]) - 1
    attributes = _Ruleset(rights, 0, _SCOPES if version >= _SCOPES_SINCE else 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = _checked(_LIBC.syscall(_CREATE_RULESET, ctypes.byref(attributes), size, 0))
    try:
        for path in _readable():
            with suppress(FileNotFoundError, NotADirectoryError):
                _allow(ruleset, path)
        _checked(_LIBC.prctl(_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))))
        _checked(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def landlock_version() -> int:
    """Return this kernel's version; 0: it has none, or it is disabled."""
    found: int = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return max(found, 0)


def _readable() -> set[str]:
    code = {one for one in (*sys.path, sys.prefix, sys.base_prefix) if one.startswith("/")}
    return {*code, *_FOLDERS, *(f"/etc/{name}" for name in _SETTINGS)} - {"/"}


def _allow(ruleset: int, path: str) -> None:
    allowed = _READ_FILE | (_READ_DIR if Path(path).is_dir() else 0)
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(allowed, parent)
        _checked(_LIBC.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(parent)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
