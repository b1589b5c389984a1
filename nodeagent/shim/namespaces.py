"""A root of its own for one replica: user, mount and pid namespaces through libc, no programs.

Standard library only: it runs in the shim. Order of calls, each in the process named:

```
shim         enter_network()         where its program has a network of its own, which the agent made
shim         new_user_and_pid()      the shim keeps its mounts; its next child is pid 1
first child  enter_root(root, plan)  builds the root on a tmpfs, pivots into it
             drop_privileges()       nothing that it or its children hold can undo the above
             seccomp.load()          nor do they ask the kernel for what programs have no use for
```

Works for root and, where the kernel permits user namespaces, for everybody. Outside ids are mapped
to themselves: the agent's own user and group, who build the root, and those of the account that the
program is to run as. Without an account, whatever a program does, it does as the agent's own user.
That user may be root, whose files and kernel settings are guarded by ownership alone; therefore
`/proc` and `/sys` are read-only and only harmless parts of `/etc` are there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class MountEntry(TypedDict):
        """One line of a plan; targets are absolute inside the new root, parents before children.

        kind: `bind` (source, a folder of the host), `file` (source, any other file of the host),
        `tmpfs` (source = its options), `symlink` (source = what it says), `folder`, `proc`, `devpts`.
        `write`: for what is the host's, whether it can be written to. `device`: for device nodes.
        """

        kind: str
        source: str
        target: str
        write: bool
        device: bool

    class Account(TypedDict):
        """Whom a program runs as on the machine, and which further groups' files it may read."""

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
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_MS_NOATIME, _MS_NODIRATIME, _MS_RELATIME = 0x400, 0x800, 0x200000
_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4

# These numbers are the same on every architecture with the generic system call table; x86-64 and
# arm64 differ only in pivot_root.
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITY_VERSION_3 = 0x20080522


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p,) * 3 + (ctypes.c_ulong, ctypes.c_char_p)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_void_p) + (ctypes.c_ulong,) * 3


def prctl(option: int, argument: int | bytes = 0, second: int = 0) -> None:
    """Set a process attribute, by the call of that name; raises OSError."""
    _check(_libc.prctl(option, argument, second, 0, 0), f"prctl {option}")


def new_network() -> None:
    """Put the calling thread into a new network namespace, without any interface that is up."""
    _check(_libc.unshare(CLONE_NEWNET), "unshare network namespace")


def enter_network(descriptor: int) -> None:
    """Put the calling thread into the network namespace of a descriptor."""
    _check(_libc.setns(descriptor, CLONE_NEWNET), "enter network namespace")


def new_user_and_pid(*, with_pid: bool, account: Account | None = None) -> None:
    """Put the caller into a new user namespace and its next children into a new pid namespace.

    Below it nobody makes another: in a namespace of its own a program would have capabilities
    again, and could mount the control groups, whose files belong to the agent's user. With an
    `account` the caller must be root.
    """
    flags = CLONE_NEWUSER | (CLONE_NEWPID if with_pid else 0)
    uids, gids = [os.geteuid()], [os.getegid()]  # without a map there they have no numbers
    if account is None:
        _check(_libc.unshare(flags), "unshare user namespace")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", _mapped(uids))
        _write("/proc/self/gid_map", _mapped(gids))
    else:
        gids += [account["gid"], *account["groups"]]
        _unshare_mapped(flags, _mapped([*uids, account["uid"]]), _mapped(gids))
    try:
        _write("/proc/sys/user/max_user_namespaces", "0")
    except OSError:
        # read-only in a container of the agent's, where programs are parted less anyway
        if with_pid:
            raise


def _mapped(ids: list[int]) -> str:
    """A map of these ids to themselves."""
    return "".join(f"{one} {one} 1\n" for one in dict.fromkeys(ids))


def _unshare_mapped(flags: int, uid_map: str, gid_map: str) -> None:
    """Enter a new user namespace with maps that only a process outside of it may write: a child."""
    shim = os.getpid()
    entered, told = os.pipe2(os.O_CLOEXEC)
    outside = os.fork()
    if outside == 0:
        number = 0
        try:
            os.close(told)
            if os.read(entered, 1):
                _write(f"/proc/{shim}/uid_map", uid_map)
                _write(f"/proc/{shim}/gid_map", gid_map)
        except OSError as error:
            number = error.errno or 1
        os._exit(number)
    os.close(entered)
    try:
        _check(_libc.unshare(flags), "unshare user namespace")
        os.write(told, b"!")
    finally:
        os.close(told)
        _, ended = os.waitpid(outside, 0)
    number = os.waitstatus_to_exitcode(ended)
    if number:
        raise OSError(number, f"map the account's ids: {os.strerror(number)}")


def enter_root(root: str, plan: list[MountEntry]) -> None:
    """Leave the host's mounts: `root`, an empty folder, becomes `/` as `plan` describes it.

    Raises OSError whose text says which entry failed.
    """
    _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWCGROUP), "unshare mount namespace")
    _mount("", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("nsml", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=4m")
    for entry in plan:
        _apply(root, entry)
    os.chdir(root)
    pivot = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(pivot, b".", b"."), "pivot_root")
    # the old root is stacked over the new one until this call
    _check(_libc.umount2(b".", _MNT_DETACH), "detach the old root")
    os.chdir("/")
    _set_attributes("/", _MOUNT_ATTR_RDONLY, recursive=False)


def drop_privileges(account: Account | None = None) -> None:
    """Give up every capability for good, also those a setuid program would bring back.

    With an `account`, become it for good, too; what the kernel was told to do at the parent's end
    (PR_SET_PDEATHSIG) it forgets then.
    """
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last capability that this kernel knows
    prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if account is not None:
        os.setgroups(account["groups"])
        os.setresgid(account["gid"], account["gid"], account["gid"])
        os.setresuid(account["uid"], account["uid"], account["uid"])
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _apply(root: str, entry: MountEntry) -> None:
    """Carry out one entry of the plan below `root`."""
    kind, source, target = entry["kind"], entry["source"], root + entry["target"]
    try:
        _make(kind, source, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _make(kind, source, target)
    if kind in ("bind", "file"):
        # without MS_REC the kernel refuses what has mounts below it: they would be uncovered
        _mount(source, target, None, _MS_BIND | _MS_REC)
        _set_attributes(target, _bind_attributes(entry), recursive=True)
    elif kind == "tmpfs":
        _mount("nsml", target, "tmpfs", _MS_NOSUID | _MS_NODEV, source)
    elif kind == "proc":
        _mount("proc", target, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        _set_attributes(target, _MOUNT_ATTR_RDONLY, recursive=False)
    elif kind == "devpts":
        _mount("devpts", target, "devpts", _MS_NOSUID | _MS_NOEXEC, "ptmxmode=0666,mode=620")


def _make(kind: str, source: str, target: str) -> None:
    """Make what an entry is, or is mounted on; a folder may be there already."""
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
    # Linux before 5.12: one remount each, which has to repeat the flags that are locked
    for point in _mounts_at(target) if recursive else [target]:
        kept = os.statvfs(point).f_flag
        _mount("", point, None, _MS_REMOUNT | _MS_BIND | _locked(kept) | attributes)


def _locked(statvfs_flags: int) -> int:
    """The mount flags that a statvfs answer shows (their numbers differ only for relatime)."""
    same = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_NOATIME | _MS_NODIRATIME
    return (statvfs_flags & same) | (_MS_RELATIME if statvfs_flags & 0x1000 else 0)


def _mounts_at(target: str) -> list[str]:
    """The mount points at and below `target`."""
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


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _check(result: int, action: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
