"""Converts a `ReplicaSpec` to the shim's input: environment, working folder, plan of the root."""

from __future__ import annotations

import os
import resource
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent.folders import HOSTFILE
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.limits import LimitFacts, disk_watch, shim_limits
from nodeagent.runtimes.shares import mps_variables, share_variables
from nodeagent.shim.cgroups import Group
from nodeagent.shim.loopback import LISTENER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.folders import ReplicaFolder
    from nodeagent.runtimes.interface import Mount, ReplicaSpec
    from nodeagent.shim.namespaces import Account, MountEntry

APP = "/app"
RUN = "/nsml"
SDK = "/sdk"
DATA = "/data/"

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix")
_ETC = [
    "OpenCL",
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "default/locale",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "machine-id",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/tls/certs",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vulkan",
]
"""Files of /etc that libraries read. Not the folder itself: an agent that is root could read all of it."""
_GROUPS = "/sys/fs/cgroup"
_HIDDEN = (
    "/sys/fs/bpf",
    "/sys/fs/pstore",
    "/sys/firmware",
    "/sys/kernel/debug",
    "/sys/kernel/tracing",
    "/sys/devices/virtual/powercap",
)
"""Parts of /sys that reveal other sessions, or that engines hide too."""
_INTERFACES = ("/sys/class/net", "/sys/devices/virtual/net")
"""Parts of /sys that reveal the machine's interfaces, and the traffic of other sessions."""
_EMPTY = "mode=555,size=16k"
_DEVICE_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_NVIDIA_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WITH_OWN_ROOT = frozenset({Isolation.NAMESPACE, Isolation.CONTAINER})
FIRST_MARK = 0xA0000000
MARKS = 0x40000000
"""Ids of a group that a replica's programs alone have, drawn for each that neither a control group nor a pid namespace encloses:
none of them can leave it, since that takes a right of root. No file has it; users and groups of machines have lower ids, owners of user namespaces higher ones."""
_PASSED_ON = ("LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """User code's paths of its folders: inside its root, or the host's own without one."""

    app: str
    run: str
    tmp: str
    sdk: str | None
    data: Sequence[str]


def layout_of(spec: ReplicaSpec, folder: ReplicaFolder) -> Layout:
    """Return the paths as seen by the replica of `spec`."""
    data = [mount for mount in spec.mounts if mount.target.startswith(DATA)]
    if spec.isolation in _WITH_OWN_ROOT:
        return Layout(
            app=APP,
            run=RUN,
            tmp="/tmp",  # noqa: S108 - the replica's own folder, mounted there
            sdk=SDK if spec.sdk_folder else None,
            data=[mount.target for mount in data],
        )
    return Layout(
        app=str(folder.app),
        run=str(folder.run),
        tmp=str(folder.tmp),
        sdk=str(spec.sdk_folder) if spec.sdk_folder else None,
        data=[str(mount.source) for mount in data],
    )


def hosts_environment() -> dict[str, str]:
    """Return variables for programs on the host's root: only the locale comes from the agent."""
    return {"PATH": _PATH} | {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def whole_environment(
    spec: ReplicaSpec, layout: Layout, found: Mapping[str, str]
) -> dict[str, str]:
    """Return all environment variables of the program; `found` has those of its root."""
    replica = spec.replica_id
    env = {**found, **spec.env}
    path = [env.get("PATH", _PATH)]
    if spec.python and spec.isolation is not Isolation.CONTAINER:
        path.insert(0, str(spec.python.folder / "bin"))
        env["VIRTUAL_ENV"] = str(spec.python.folder)
        if (spec.python.folder / "conda-meta").is_dir():
            env["CONDA_PREFIX"] = str(spec.python.folder)
    real = [device.uuid for device in spec.devices if not device.simulated]
    python_path = [layout.sdk, env.get("PYTHONPATH")]
    env.update(
        {
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": os.pathsep.join(part for part in python_path if part),
            "PYTHONUNBUFFERED": "1",
            "HOME": layout.tmp,
            "TMPDIR": layout.tmp,
            # libraries look up a name, and the outside uid may have none
            "USER": env.get("USER", "nsml"),
            "LOGNAME": env.get("LOGNAME", "nsml"),
            "NSML_RUN_DIR": layout.run,
            "NSML_HOSTFILE": f"{layout.run}/{HOSTFILE}",
            "NSML_SESSION_ID": replica.session_id,
            "NSML_ATTEMPT": str(replica.attempt),
            "NSML_RANK": str(replica.rank),
            "NSML_REPLICA": str(replica),
            "NSML_DATASET_PATH": os.pathsep.join(layout.data),
            "NSML_ISOLATION": spec.isolation.value,
            "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in spec.devices),
            # A container runtime grants the devices named here: none of an image's own choice, and
            # no simulated ones.
            "NVIDIA_VISIBLE_DEVICES": ",".join(real) or "void",
            **share_variables(spec),
        }
    )
    if spec.mps_pipes:
        has_root = spec.isolation in _WITH_OWN_ROOT
        pipes = spec.mps_pipes.target if has_root else str(spec.mps_pipes.source)
        env.update(mps_variables(spec, pipes))
    return env


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Shared by all starts on this machine.

    `open_files` is the soft limit of descriptors of new programs; `system` is the plan's
    fixed part.
    """

    boot_id: str
    with_pid: bool
    open_files: int
    system: Sequence[MountEntry]
    limits: LimitFacts = field(default_factory=LimitFacts)


def this_machine(*, with_pid: bool) -> Machine:
    """Read the machine's facts for starts, once."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        boot_id=boot_id, with_pid=with_pid, open_files=open_files, system=_system_entries()
    )


def has_own_network(spec: ReplicaSpec) -> bool:
    """Whether a program has a network of its own, with a way out, if the machine supports it.

    A gang uses the machine's, as its replicas meet at their nodes and collectives need its speed, and so does a
    session at its request.
    """
    return spec.isolation is Isolation.NAMESPACE and spec.gang is None and not spec.without_network


def shim_spec(
    spec: ReplicaSpec,
    folder: ReplicaFolder,
    machine: Machine,
    *,
    network_files: Mapping[str, Path] | None = None,
    names: Mapping[str, Path] | None = None,
) -> dict[str, Any]:
    """Return the content of `spec.json` for a program that the shim forks.

    `network_files` replace files in /etc if it has a network of its own, or none; None: it has the
    machine's. `names` replace /etc/passwd and /etc/group.
    """
    layout = layout_of(spec, folder)
    namespace = None
    if spec.isolation is Isolation.NAMESPACE:
        mounts = root_plan(spec, folder, machine, network_files, names)
        namespace = {"pid": machine.with_pid, "mounts": mounts}
    cwd = spec.cwd
    if namespace is None and (cwd == APP or cwd.startswith(APP + "/")):
        cwd = layout.app + cwd.removeprefix(APP)
    account, mark = account_of(spec), None
    is_enclosed = machine.limits.groups is not None or (namespace is not None and machine.with_pid)
    if account is not None and not is_enclosed:
        mark = FIRST_MARK + secrets.randbelow(MARKS)
        account["groups"].append(mark)
    return {
        **limits_of(spec, machine),
        "argv": list(spec.argv),
        "env": whole_environment(spec, layout, hosts_environment()),
        "cwd": cwd,
        "namespace": namespace,
        "own_network": network_files is not None,
        "no_network": spec.without_network,
        "account": account,
        "mark": mark,
        "open_files": machine.open_files,
        **shim_limits(spec, machine.limits),
    }


def limits_of(spec: ReplicaSpec, machine: Machine) -> dict[str, Any]:
    """Return what every shim gets, whatever its program: its identity, and the limits that it enforces itself."""
    return {
        **({LISTENER: {"variables": names}} if (names := list(spec.listener_variables)) else {}),
        "version": 1,
        "replica": str(spec.replica_id),
        "boot_id": machine.boot_id,
        "time_limit_s": spec.time_limit_s,
        "warning_s": spec.warning_s,
        "leaves_at_limit": spec.leaves_at_limit,
        "grace_s": spec.grace_s,
        "lost_after_s": spec.lost_after_s,
        "watch": disk_watch(spec, machine.limits),
    }


def account_of(spec: ReplicaSpec) -> Account | None:
    """Return the account of the program of `spec`; None: the agent's own user."""
    if spec.uid is None or spec.gid is None:
        return None
    return {"uid": spec.uid, "gid": spec.gid, "groups": list(spec.groups)}


def root_plan(
    spec: ReplicaSpec,
    folder: ReplicaFolder,
    machine: Machine,
    network_files: Mapping[str, Path] | None = None,
    names: Mapping[str, Path] | None = None,
) -> list[MountEntry]:
    """Return the entries of the replica's root, in the order of construction."""
    own_files = {**(network_files or {}), **(names or {})}
    plan = [entry for entry in machine.system if entry["target"] not in own_files]
    plan += [_bind(str(source), target) for target, source in own_files.items()]
    plan += _kernel_entries(spec, machine.limits, has_own_network=network_files is not None)
    plan.append(_proc_entry(spec, machine))
    plan += _device_entries(spec)
    plan += [
        _bind(str(folder.tmp), "/tmp", write=True),  # noqa: S108
        _entry("symlink", "/tmp", "/var/tmp"),  # noqa: S108
        _bind(str(folder.app), APP, write=True),
        _bind(str(folder.run), RUN, write=True),
        # After /tmp: that would hide a data folder below it.
        *_python_entries(spec),
    ]
    if spec.sdk_folder:
        plan.append(_bind(str(spec.sdk_folder), SDK))
    plan += [_bind(str(mount.source), mount.target) for mount in all_mounts(spec)]
    return plan


def writable_entry(folder: Path, target: Path) -> MountEntry:
    """Return a further entry of a plan: a writable folder of the replica at `target`."""
    return _entry("bind", str(folder), str(target), write=True)


def shown_entry(folder: Path, target: str) -> MountEntry:
    """Return a further entry of a plan: a read-only folder of the machine at `target`."""
    return _entry("bind", str(folder), target)


def all_mounts(spec: ReplicaSpec) -> list[Mount]:
    """Return the host's mounts in a root of its own, beside the system and the replica's folder."""
    return [*spec.mounts, *([spec.mps_pipes] if spec.mps_pipes else [])]


def _system_entries() -> list[MountEntry]:
    entries = []
    for path in _SYSTEM_FOLDERS:
        if os.path.islink(path):  # noqa: PTH114
            entries.append(_entry("symlink", os.readlink(path), path))  # noqa: PTH115
        elif Path(path).is_dir():
            entries.append(_bind(path, path))
    for name in _ETC:
        source = os.path.realpath(f"/etc/{name}")
        if os.path.exists(source):  # noqa: PTH110
            entries.append(_bind(source, f"/etc/{name}"))
    return entries


def _kernel_entries(
    spec: ReplicaSpec, limits: LimitFacts, *, has_own_network: bool
) -> list[MountEntry]:
    """Return /sys, without parts about other sessions and the machine's internals."""
    hidden = [*_HIDDEN, *(_INTERFACES if has_own_network else ())]
    hidden = [path for path in hidden if os.path.isdir(path)]  # noqa: PTH112 - at each start
    # one empty folder for all: a file system for each would cost as much as several mounts
    entries = [_bind("/sys", "/sys")]
    entries += [_entry("tmpfs", _EMPTY, path) for path in hidden[:1]]
    entries += [_entry("same", hidden[0], path) for path in hidden[1:]]
    if os.path.isdir(_GROUPS):  # noqa: PTH112
        entries.append(_entry("tmpfs", _EMPTY, _GROUPS))
    if limits.groups is not None:
        group = Group(limits.groups, str(spec.replica_id))
        entries += [_entry("bind", source, target) for target, source in group.view().items()]
    return entries


def _proc_entry(spec: ReplicaSpec, machine: Machine) -> MountEntry:
    """Return /proc, with writable files of own processes.

    Not without an account if these are root's, like the kernel's, or, in the machine's pid namespace, the agent's.
    """
    has_account = account_of(spec) is not None
    write = has_account or (machine.with_pid and os.geteuid() != 0)
    return _entry("proc", "" if machine.with_pid else "/proc", "/proc", write=write)


def _python_entries(spec: ReplicaSpec) -> list[MountEntry]:
    """Return the environment and its interpreter at their own paths, unless in /usr."""
    if spec.python is None:
        return []
    folders = {str(spec.python.base_prefix): None, str(spec.python.folder): None}
    outside = [
        path for path in folders if not path.startswith(("/usr/", "/opt/")) and path != "/usr"
    ]
    return [_bind(path, path) for path in outside]


def _device_entries(spec: ReplicaSpec) -> list[MountEntry]:
    shm = f"mode=1777,size={spec.shm_bytes}"
    entries = [_device(name) for name in _DEVICE_NODES]
    granted = [device for device in spec.devices if not device.simulated]
    if granted:
        own = [f"nvidia{device.minor}" for device in granted if device.minor is not None]
        parts = [node.removeprefix("/dev/") for device in granted for node in device.nodes]
        names = list(dict.fromkeys([*_NVIDIA_NODES, *own, *parts]))
        entries += [_device(name) for name in names if Path("/dev", name).exists()]
    for place in spec.gang.devices if spec.gang else ():
        entries += [_device(str(path.relative_to("/dev"))) for path in _device_files(Path(place))]
    link = partial(_entry, "symlink")
    return [
        *entries,
        _entry("tmpfs", shm, "/dev/shm"),  # noqa: S108
        _entry("devpts", "", "/dev/pts"),
        link("pts/ptmx", "/dev/ptmx"),
        link("/proc/self/fd", "/dev/fd"),
        link("/proc/self/fd/0", "/dev/stdin"),
        link("/proc/self/fd/1", "/dev/stdout"),
        link("/proc/self/fd/2", "/dev/stderr"),
    ]


def _device_files(place: Path) -> list[Path]:
    """Return a node of /dev, or those in a folder of it; none if missing."""
    if place.is_dir():
        return sorted(path for path in place.rglob("*") if not path.is_dir())
    return [place] if place.exists() else []


def _entry(
    kind: str, source: str, target: str, *, write: bool = False, device: bool = False
) -> MountEntry:
    return {"kind": kind, "source": source, "target": target, "write": write, "device": device}


def _bind(source: str, target: str, *, write: bool = False) -> MountEntry:
    kind = "bind" if os.path.isdir(source) else "file"  # noqa: PTH112
    return _entry(kind, source, target, write=write)


def _device(name: str) -> MountEntry:
    return _entry("file", f"/dev/{name}", f"/dev/{name}", write=True, device=True)
