"""The system calls refused to programs: a seccomp filter, assembled here and loaded by prctl.

Standard library only: it runs in the shim. The list follows the default profiles of container engines:
calls that a program without privileges does not need and in which kernels had vulnerabilities. All others
are allowed, including `ptrace` and `process_vm_readv`: debuggers and profilers of own processes work.

A refused call fails with EPERM. Calls that programs probe for and do without (`clone3`), and calls that are
newer than this list, fail with ENOSYS, as on a kernel without them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from nodeagent.shim import namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

REFUSED = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
"""Calls that fail with EPERM, and their numbers on x86-64 and aarch64; None: no such call there."""

MISSING = {"clone3": (435, 435)}
"""Calls that fail with ENOSYS: their flags are in memory, which no filter can read. Libraries use `clone`."""

NEW_NAMESPACES = 0x7E020000
"""Flags of `clone` that fail with EPERM: new user, mount, pid, network, ipc, uts, cgroup namespaces."""

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
"""Allowed arguments of `personality`: native, 32-bit address space, kernel version 2.6,
no address randomisation (debuggers), and the query."""

ADDRESS_FAMILIES = (38, 40)
"""Families of `socket` that fail with EAFNOSUPPORT: AF_ALG, and AF_VSOCK, which reaches a host of virtual
machines past all network rules."""

LAST_KNOWN = 469
"""The highest number known to this list (Linux 6.17); higher ones fail with ENOSYS."""

_MACHINES = {"x86_64": 0, "aarch64": 1}
"""Index of a machine in pairs of numbers."""
_ARCHITECTURES = (0xC000003E, 0xC00000B7)
_CLONE = (56, 220)
_PERSONALITY = (135, 92)
_SOCKET = (41, 198)

_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_COMPARED_IN_TURN = 3
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_SECCOMP_MODE_FILTER = 2
_PR_SET_SECCOMP = 22

_assembled: list[Filter] = []


class Filter:
    """A filter in the kernel's format, at a fixed address."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("@HP", len(code) // 8, ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header, len(header))

    def attach(self) -> None:
        """Attach it to the caller and its children, for good. Raises OSError.

        The caller cannot gain privileges (PR_SET_NO_NEW_PRIVS).
        """
        namespaces.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(self._header))


def load() -> None:
    """Attach this machine's filter to the caller and its children, for good. Raises OSError."""
    assemble().attach()


def assemble() -> Filter:
    """Return the filter for this machine, assembled once: before the fork of shims, to spare each the work.

    Raises OSError.
    """
    if not _assembled:
        _assembled.append(Filter(program(os.uname().machine)))
    return _assembled[0]


def program(machine: str) -> bytes:
    """Return the filter in the kernel's format, for a machine as `uname -m` names it. Raises OSError."""
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    which = _MACHINES[machine]
    denied = _ERRNO | errno.EPERM
    missing = _ERRNO | errno.ENOSYS
    blocks: dict[int, list[bytes]] = {}
    for calls, verdict in ((REFUSED, denied), (MISSING, missing)):
        numbers = (pair[which] for pair in calls.values())
        blocks.update({number: [_give(verdict)] for number in numbers if number is not None})
    blocks[_CLONE[which]] = [
        _load(_FIRST_ARGUMENT_AT),
        _instruction(_ANY_BIT, NEW_NAMESPACES, 0, 1),
        _give(denied),
        _give(_ALLOW),
    ]
    unsupported = _ERRNO | errno.EAFNOSUPPORT
    blocks[_SOCKET[which]] = _one_of(ADDRESS_FAMILIES, unsupported, otherwise=_ALLOW)
    blocks[_PERSONALITY[which]] = _one_of(PERSONALITIES, _ALLOW, otherwise=denied)
    code = [
        _load(_ARCHITECTURE_AT),
        _instruction(_EQUAL, _ARCHITECTURES[which], 1, 0),
        _give(_KILL),
        _load(_NUMBER_AT),
        _instruction(_GREATER, LAST_KNOWN, 0, 1),
        _give(missing),
        *_search(sorted(blocks.items())),
    ]
    return b"".join(code)


def _search(blocks: Sequence[tuple[int, list[bytes]]]) -> list[bytes]:
    """Find the block of the loaded number by binary search: the kernel runs this for every call."""
    if len(blocks) <= _COMPARED_IN_TURN:
        code = []
        for number, block in blocks:
            code += [_instruction(_EQUAL, number, 0, len(block)), *block]
        return [*code, _give(_ALLOW)]
    half = len(blocks) // 2
    lower, upper = _search(blocks[:half]), _search(blocks[half:])
    return [_instruction(_AT_LEAST, blocks[half][0], len(lower), 0), *lower, *upper]


def _one_of(values: Sequence[int], verdict: int, *, otherwise: int) -> list[bytes]:
    """Return the verdict on a call by its first argument."""
    code = [_load(_FIRST_ARGUMENT_AT)]
    for value in values:
        code += [_instruction(_EQUAL, value, 0, 1), _give(verdict)]
    return [*code, _give(otherwise)]


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _give(verdict: int) -> bytes:
    return _instruction(_RETURN, verdict)


def _instruction(code: int, value: int, where_true: int = 0, where_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, where_true, where_false, value)
