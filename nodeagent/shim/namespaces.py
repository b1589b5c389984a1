"""A root of its own for one replica: user, mount and pid namespaces through libc, no programs.

Standard library only: it runs in the shim. Order of calls, with the process of each:

```
shim         enter_network()         if its program has a network of its own, which the agent made as root;
             own_network()           or which it makes itself (pasta.py)
             no_network()            if its program reaches nothing
shim         fork()                  the shim stays in its own namespaces; the child is pid 1 of new ones
first child  settle()                sets limits of what the kernel counts by owner
             enter_root(root, plan)  builds the root on a tmpfs, pivots into it
             drop_privileges()       so that neither it nor its children can undo the above
             seccomp.load()          blocks system calls that programs do not need
```

Works for root and, where the kernel permits user namespaces, for all users. Outside ids are mapped
to themselves: the agent's own user and group, which build the root, and those of the program's
account. Without an account the program acts as the agent's own user.
That user may be root, whose files and kernel settings are protected by ownership alone; therefore
`/sys` and all of `/proc` except files of processes are read-only, and only harmless parts of `/etc`
are mounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import signal
import struct

from nodeagent.shim.files import content_of, write_into

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class MountEntry(TypedDict):
        """One line of a plan; targets are absolute inside the new root, parents before children.

        kind: `bind` (source, a folder of the host), `file` (source, any other file of the host),
        `tmpfs` (source = its options), `same` (source = the target of an earlier entry, mounted here
        read-only, too), `symlink` (source = its target), `folder`, `proc`, `devpts`.
        `write`: for mounts of the host, whether they are writable. `device`: for device nodes.
        """

        kind: str
        source: str
        target: str
        write: bool
        device: bool

    class Account(TypedDict):
        """User, group and supplementary groups of a program on the machine."""

        uid: int
        gid: int
        groups: list[int]


CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_MS_NOATIME, _MS_NODIRATIME, _MS_RELATIME = 0x400, 0x800, 0x200000
_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_HIDDEN_IN_PROC = ("locks",)
"""Files of /proc with what programs of other sessions chose: the byte ranges of their locks (F_OFD_SETLK)."""
_ONLY_SHOWN = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV

CAP_SYS_PTRACE = 19
"""Inspect processes of other users (capabilities(7))."""

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_FAILED_CODE = 127
LAST_DESCRIPTOR = (1 << 31) - 1

FIRST_OWNER = 0xFF000000
"""With the pid of a shim added: the owner id of its program's user namespace. No account has such an id."""
_COUNTS = {
    "user_namespaces": 0,
    "pid_namespaces": 0,
    "net_namespaces": 0,
    "uts_namespaces": 0,
    "time_namespaces": 0,
    # those of the root built next
    "mnt_namespaces": 1,
    "ipc_namespaces": 1,
    "cgroup_namespaces": 1,
    "fanotify_groups": 0,
    "fanotify_marks": 0,
}
"""Limits of a user namespace, by their names in /proc/sys/user."""
_SHARES = 4
"""Divisor of shared resources for one program."""
_INOTIFY = "/proc/sys/fs/inotify/max_user_{}"
_TERMINALS = 32
"""Most open pseudo terminals of one program; the machine has some thousand."""

# These numbers are the same on every architecture with the generic system call table.
_SYS_CLOSE_RANGE = 436
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc_with_lock = ctypes.PyDLL(None, use_errno=True)
"""For a fork: the child then holds the interpreter's lock as well."""
_libc_with_lock.syscall.argtypes = (ctypes.c_long, ctypes.c_ulong) + (ctypes.c_void_p,) * 4
_libc.mount.argtypes = (ctypes.c_char_p,) * 3 + (ctypes.c_ulong, ctypes.c_char_p)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_void_p) + (ctypes.c_ulong,) * 3


def prctl(option: int, argument: int | bytes = 0, second: int = 0) -> None:
    """Set a process attribute; raises OSError."""
    _check(_libc.prctl(option, argument, second, 0, 0), f"prctl {option}")


def end_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends; to be repeated after a change of user."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # a parent outside our pid namespace reads as 0
    if os.getppid() not in (parent, 0):
        os._exit(_FAILED_CODE)


def close_range(first: int, last: int) -> None:
    """Close all descriptors of this process from `first` to `last`, inclusive."""
    if first > last or _libc.syscall(_SYS_CLOSE_RANGE, first, last, 0) == 0:
        return
    # Linux before 5.9
    for name in os.listdir("/proc/self/fd"):
        if first <= int(name) <= last:
            with contextlib.suppress(OSError):
                os.close(int(name))


def close_all_but(*kept: int) -> None:
    """Close every descriptor of this process that is not in `kept`, standard streams included."""
    first = 0
    for one in sorted(kept):
        close_range(first, one - 1)
        first = one + 1
    close_range(first, LAST_DESCRIPTOR)


def new_network() -> None:
    """Move the calling thread into a new network namespace, without any interface that is up."""
    _check(_libc.unshare(CLONE_NEWNET), "unshare network namespace")


def own_network() -> None:
    """Move the calling single-threaded process, not root, into a new user and a new network namespace.

    Ids are those outside. Children of `fork` are below that user namespace, without rights in it.
    """
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNET), "unshare user and network namespace")
    write_into("/proc/self/setgroups", "deny")
    write_into("/proc/self/uid_map", _mapped([uid]))
    write_into("/proc/self/gid_map", _mapped([gid]))


def no_network() -> None:
    """Move the calling single-threaded process into a network namespace with a loopback alone. Raises OSError.

    Without root that takes a user namespace, too, as in `own_network`.
    """
    if os.geteuid() == 0:
        new_network()
    else:
        own_network()
    set_up("lo")


def set_up(interface: str) -> None:
    """Set an interface of the calling thread's network namespace up. Raises OSError."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        asked = struct.pack("16sh22x", interface.encode(), 0)
        (flags,) = struct.unpack_from("16xh", fcntl.ioctl(end, _SIOCGIFFLAGS, asked))
        fcntl.ioctl(end, _SIOCSIFFLAGS, struct.pack("16sh22x", interface.encode(), flags | _IFF_UP))


def enter_network(descriptor: int) -> None:
    """Move the calling thread into the network namespace of a descriptor."""
    _check(_libc.setns(descriptor, CLONE_NEWNET), "enter network namespace")


def enter(descriptor: int, kind: int) -> None:
    """Move the calling process into the namespace of a descriptor; for pids, its children. Raises OSError."""
    _check(_libc.setns(descriptor, kind), "enter a namespace")


def enter_users(descriptor: int) -> None:
    """Move the calling single-threaded process into the user namespace of a descriptor, with all rights there."""
    _check(_libc.setns(descriptor, CLONE_NEWUSER), "enter user namespace")


def fork(*, with_pid: bool, account: Account | None = None) -> int:
    """Fork into a new user namespace and, `with_pid`, a new pid namespace; return the child's pid, 0 in the child.

    The child must call `settle`. With an `account` the caller must be root. Raises OSError, in the caller alone.
    """
    uids, gids = [os.geteuid()], [os.getegid()]  # unmapped ids have no numbers there
    if account is not None:
        uids.append(account["uid"])
        gids += [account["gid"], *account["groups"]]
    mapped, tell = os.pipe2(os.O_CLOEXEC)
    securebits = _count_apart()
    flags = CLONE_NEWUSER | (CLONE_NEWPID if with_pid else 0) | signal.SIGCHLD
    child: int = _libc_with_lock.syscall(_SYS_CLONE[os.uname().machine], flags, *(None,) * 4)
    if child == 0:
        os.close(tell)
        if not os.read(mapped, 1):
            os._exit(1)  # the parent reports why
        os.close(mapped)
        return 0
    number = ctypes.get_errno()
    _count_together(securebits)
    os.close(mapped)
    try:
        _check(min(child, 0), "fork into a user namespace", number)
        if account is None:
            write_into(f"/proc/{child}/setgroups", "deny")
        write_into(f"/proc/{child}/uid_map", _mapped(uids))
        write_into(f"/proc/{child}/gid_map", _mapped(gids))
        os.write(tell, b"!")
    except OSError:
        if child > 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        raise
    finally:
        os.close(tell)
    return child


def settle(*, is_required: bool) -> None:
    """Restore the user of the caller of `fork`, in its child, and set limits of the new user namespace.

    They forbid further user namespaces: in one of its own a program would have capabilities again, and
    could mount the control groups, whose files belong to the agent's user. Raises OSError, for limits
    only if `is_required`.
    """
    limits = dict(_COUNTS)
    if os.geteuid() != os.getuid():
        os.setresuid(-1, os.getuid(), -1)
    else:
        # not counted separately: leave most of each to others
        for name in ("instances", "watches"):
            with contextlib.suppress(OSError, ValueError):
                most = int(content_of(_INOTIFY.format(name)))
                limits[f"inotify_{name}"] = max(most // _SHARES, 1)
        for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
            _, most = resource.getrlimit(kind)
            if most != resource.RLIM_INFINITY:
                resource.setrlimit(kind, (most // _SHARES, most // _SHARES))
    for name, count in limits.items():
        try:
            write_into(f"/proc/sys/user/max_{name}", str(count))
        except FileNotFoundError:
            continue  # a kernel without this count
        except OSError:
            # read-only in a container of the agent's, which isolates programs less anyway
            if is_required:
                raise


def _count_apart() -> int | None:
    """Give user namespaces made next a unique owner id, if possible.

    The kernel also counts inotify instances, pending signals, timers, message queues, locked memory and
    namespaces of a user namespace for its owner, against the limits outside of it: with root as owner,
    one session would use up those of the machine and of all other sessions. No program may run as that
    id: the owner of a namespace has all rights in it. Returns the argument for `_count_together`.
    """
    if os.geteuid() != 0:
        return None
    securebits: int = _libc.prctl(_PR_GET_SECUREBITS, None, 0, 0, 0)
    try:
        # without capabilities, as for other users, many machines refuse user namespaces
        prctl(_PR_SET_SECUREBITS, securebits | _SECBIT_NO_SETUID_FIXUP)
        os.setresuid(-1, FIRST_OWNER + os.getpid(), -1)
    except OSError:  # for example in a container with few ids
        with contextlib.suppress(OSError):
            prctl(_PR_SET_SECUREBITS, securebits)
        return None
    return securebits


def _count_together(securebits: int | None) -> None:
    """Undo `_count_apart`."""
    if securebits is not None:
        os.setresuid(-1, 0, -1)
        prctl(_PR_SET_SECUREBITS, securebits)


def _mapped(ids: list[int]) -> str:
    """Return a map of these ids to themselves."""
    return "".join(f"{one} {one} 1\n" for one in dict.fromkeys(ids))


def enter_root(root: str, plan: list[MountEntry]) -> None:
    """Leave the host's mounts: `root`, an empty folder, becomes `/` as described by `plan`.

    Raises OSError naming the failed entry.
    """
    _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWCGROUP), "unshare mount namespace")
    _mount("", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("nsml", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=4m")
    shown = list(itertools.takewhile(_is_only_shown, plan))
    for entry in shown:
        _apply(root, entry)
    # Most of a root: a call for each would take as long as mounting it.
    _set_attributes(root, _ONLY_SHOWN, recursive=True)
    _let_write(root)
    for entry in plan[len(shown) :]:
        _apply(root, entry)
        if entry["kind"] in ("bind", "file"):
            _set_attributes(root + entry["target"], _bind_attributes(entry), recursive=True)
    os.chdir(root)
    pivot = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(pivot, b".", b"."), "pivot_root")
    # the old root covers the new one until this call
    _check(_libc.umount2(b".", _MNT_DETACH), "detach the old root")
    os.chdir("/")
    _set_attributes("/", _MOUNT_ATTR_RDONLY, recursive=False)


def drop_privileges(account: Account | None = None) -> None:
    """Drop every capability for good, including those of setuid programs.

    With an `account`, switch to it for good; the kernel then forgets the parent-death signal
    (PR_SET_PDEATHSIG).
    """
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            break  # past the kernel's last capability
    prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if account is not None:
        os.setgroups(account["groups"])
        os.setresgid(account["gid"], account["gid"], account["gid"])
        os.setresuid(account["uid"], account["uid"], account["uid"])
    _check(_libc.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES), "capset")


def keep_capability(capability: int, uid: int, gid: int) -> None:
    """As root switch to a user for good, with one capability; executed programs have it, too. Raises OSError."""
    prctl(PR_SET_KEEPCAPS, 1)
    for other in range(64):
        if other != capability and _libc.prctl(PR_CAPBSET_DROP, other, 0, 0, 0):
            break  # past the kernel's last capability
    with contextlib.suppress(PermissionError):  # in a user namespace not made by an account
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    alone = (ctypes.c_uint32 * 6)(*(1 << capability,) * 3)  # effective, permitted, inheritable
    _check(_libc.capset(_CAPABILITY_HEADER, alone), "capset")
    prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def _is_only_shown(entry: MountEntry) -> bool:
    """Whether an entry needs only `_ONLY_SHOWN`, which one call sets for many."""
    is_hosts = entry["kind"] in ("bind", "file") and not (entry["write"] or entry["device"])
    return is_hosts or entry["kind"] == "symlink"


def _apply(root: str, entry: MountEntry) -> None:
    """Carry out one entry of the plan below `root`; attributes of the host's mounts are set later."""
    kind, source, target = entry["kind"], entry["source"], root + entry["target"]
    try:
        _make(kind, source, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _make(kind, source, target)
    if kind in ("bind", "file"):
        # without MS_REC the kernel refuses folders with mounts below: they would be uncovered
        _mount(source, target, None, _MS_BIND | _MS_REC)
    elif kind == "tmpfs":
        _mount("nsml", target, "tmpfs", _MS_NOSUID | _MS_NODEV, source)
    elif kind == "same":
        _mount(root + source, target, None, _MS_BIND)
        _set_attributes(target, _ONLY_SHOWN, recursive=False)
    elif kind == "proc":
        _mount_proc(source, target, write=entry["write"])
    elif kind == "devpts":
        options = f"ptmxmode=0666,mode=620,max={_TERMINALS}"
        _mount("devpts", target, "devpts", _MS_NOSUID | _MS_NOEXEC, options)


def _mount_proc(source: str, target: str, *, write: bool) -> None:
    """Mount /proc; with `write`, files of processes are writable for their owners.

    They must be: CUDA names its threads in `/proc/self/task/TID/comm`, and otherwise fails
    (cuInit: 304). So does pthread_setname_np. The rest of /proc belongs to the kernel.
    """
    if source:
        _mount(source, target, None, _MS_BIND | _MS_REC)
        _set_attributes(target, _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, recursive=True)
    else:
        _mount("proc", target, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for path in _writable_of_kernel(target) if write else ():
        _mount(path, path, None, _MS_BIND | _MS_REC)
    for name in _HIDDEN_IN_PROC:
        with contextlib.suppress(FileNotFoundError):  # a kernel without it
            hidden = os.path.join(target, name)
            _mount(os.devnull, hidden, None, _MS_BIND)
            # A device still, the empty one: or it could not be read.
            _set_attributes(hidden, _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, recursive=False)
    _set_attributes(target, _MOUNT_ATTR_RDONLY, recursive=bool(source) or write)
    if write:
        _let_write(target)


def _writable_of_kernel(proc: str) -> list[str]:
    """Return entries at the top of /proc, other than processes, that are folders or writable."""
    with os.scandir(proc) as entries:
        return [
            entry.path
            for entry in entries
            if not (entry.name.isdigit() or entry.is_symlink())
            and (entry.is_dir() or entry.stat().st_mode & 0o222)
        ]


def _make(kind: str, source: str, target: str) -> None:
    """Create the entry or its mount point; a folder may exist already."""
    if kind == "symlink":
        os.symlink(source, target)
    elif kind == "file":
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    else:
        with contextlib.suppress(FileExistsError):
            os.mkdir(target)


def _bind_attributes(entry: MountEntry) -> int:
    attributes = _MOUNT_ATTR_NOSUID
    if not entry["write"]:
        attributes |= _MOUNT_ATTR_RDONLY
    if not entry["device"]:
        attributes |= _MOUNT_ATTR_NODEV
    return attributes


def _set_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Add `attributes` to a mount and, when `recursive`, to all below it."""
    wanted = _MountAttributes(attr_set=attributes)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    flags = _AT_RECURSIVE if recursive else 0
    path = os.fsencode(target)
    done = _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(wanted), size)
    if done == 0:
        return
    # Linux before 5.12: one remount each, which must repeat locked flags
    for point in _mounts_at(target) if recursive else [target]:
        kept = os.statvfs(point).f_flag
        _mount("", point, None, _MS_REMOUNT | _MS_BIND | _locked(kept) | attributes)


def _let_write(target: str) -> None:
    """Make one mount writable, not those below it; no effect if it was read-only before.

    Read-only mounts of the parent namespace stay so (mount_namespaces(7)).
    """
    wanted = _MountAttributes(attr_clr=_MOUNT_ATTR_RDONLY)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    path = os.fsencode(target)
    if not _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, 0, ctypes.byref(wanted), size):
        return
    with contextlib.suppress(PermissionError):
        kept = _locked(os.statvfs(target).f_flag) & ~_MS_RDONLY
        _mount("", target, None, _MS_REMOUNT | _MS_BIND | kept)


def _locked(statvfs_flags: int) -> int:
    """Return the mount flags of a statvfs result (the numbers differ only for relatime)."""
    same = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_NOATIME | _MS_NODIRATIME
    return (statvfs_flags & same) | (_MS_RELATIME if statvfs_flags & 0x1000 else 0)


def _mounts_at(target: str) -> list[str]:
    """Return the mount points at and below `target`."""
    points = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            point = line.split(" ", 5)[4].replace("\\040", " ")
            if point == target or point.startswith(target + "/"):
                points.append(point)
    return points


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    name = None if kind is None else kind.encode()
    done = _libc.mount(os.fsencode(source), os.fsencode(target), name, flags, os.fsencode(data))
    _check(done, f"mount {source or kind or 'flags'} on {target}")


def _check(result: int, action: str, number: int | None = None) -> None:
    if result != 0:
        number = ctypes.get_errno() if number is None else number
        raise OSError(number, f"{action}: {os.strerror(number)}")
