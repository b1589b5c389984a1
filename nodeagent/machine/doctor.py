"""What a machine lacks to be a good node: pure checks of facts that `inspection.py` gathers.

A check is a function from the facts to findings, listed in `CHECKS`; each finding has a result and,
unless all is well, advice.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsml.common.units import counted, duration_text
from nsml.spec.etcd_versions import why_unsound
from nsml.spec.thresholds import CERTIFICATE_WARNING_S, WRONG_CLOCK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_GIB = 1 << 30

LEAST_FREE_BYTES: Final = 10 * _GIB
BAD_FREE_BYTES: Final = _GIB
LEAST_FREE_INODES: Final = 100_000
BAD_FREE_INODES: Final = 10_000
LEAST_FILES: Final = 4_096
BAD_FILES: Final = 1_024
LEAST_SHM_BYTES: Final = _GIB
LEAST_PORTS: Final = 1_000
LEAST_INOTIFY: Final = 1_024
WORST_CLOCK_S: Final = 2.0
"""Certificates and times of sessions are checked against several clocks."""
BAD_CLOCK_S: Final = WRONG_CLOCK_S
LEAST_PYTHON: Final = (3, 11)
TAR_FIXED_IN: Final = "3.11.13, 3.12.11, 3.13.4"
"""The first releases with a `tarfile` that keeps an archive in its folder (CVE-2025-4517)."""
_SHARED: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "lustre", "ceph"})
"""Filesystems with unreliable SQLite locks or durable renames."""
_FLEETING: Final = frozenset({"tmpfs", "ramfs"})


_JOIN_AGAIN: Final = (
    "nsml join HOST:PORT --token-stdin < FILE   with a new token (nsml admin join-token)"
)


class Grade(enum.StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the examination."""

    check: str
    grade: Grade
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSymptoms:
    """A container engine; `refusal` is why it does not answer.

    `filters_calls`: containers get a seccomp profile; without it the agent uses none. `opens_io_uring`:
    the engine's profile allows it, and so does the kernel. `metadata_reason`: why the
    agent's rules do not close metadata services of clouds to all containers.
    """

    refusal: str = ""
    version: str = ""
    has_nvidia: bool = False
    keeps_containers: bool = False
    has_default_image: bool = False
    filters_calls: bool = True
    opens_io_uring: bool = False
    metadata_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """Facts of the machine. None: unknown, or missing.

    Attributes:
        settings_refusal: why the agent's settings are invalid; empty: they are not, or there are none.
        default_image: the setting for sessions that name no image; "": there is none.
        is_image_pulled: the agent pulls it from a registry if it is missing.
        wanted_isolation: the setting, `auto` or a level.
        driver_refusal: why the NVIDIA driver returns no devices; empty if it does.
        has_nvidia_hardware: a PCI device of NVIDIA exists, whatever the driver reports.
        certificate_left_s: until the node's certificate expires, negative after that; None: there is none.
        certificate_refusal: why it is unreadable.
        certificate_void: why the platform rejects it.
        clock_ahead_s: of this clock over the control plane's; `clock_error_s` its uncertainty.
        is_clock_synchronised: according to the kernel.
        server: HOST:PORT of this node's control plane; `server_refusal` why it is unreachable.
        ports: number that the kernel may assign.
        data, filesystem: the data folder and its file system.
        isolation: the strongest working level; `isolation_reason` why a stronger one failed.
        has_own_networks: sessions at level `namespace` get networks of their own; None: not tested.
        network_reason: why they do not, or why metadata services of clouds are open to them.
        wanted_network: the setting `session_network`.
        is_metadata_open: they are.
        has_pip: the agent's environment has pip, which installs packages into images.
        keeps_tar_in_place: Python's own filters for tar archives work, or were fixed by the distribution.
        cgroups: 1 or 2 with the controllers, and whether we can create a group.
        inotify: most instances of one user of the machine.
    """

    settings_refusal: str = ""
    default_image: str = ""
    is_image_pulled: bool = False
    wanted_isolation: str = "auto"
    devices: int = 0
    driver_refusal: str = ""
    has_nvidia_hardware: bool = False
    engine: EngineSymptoms | None = None
    certificate_left_s: float | None = None
    certificate_refusal: str = ""
    certificate_void: str = ""
    clock_ahead_s: float | None = None
    clock_error_s: float = 0.0
    is_clock_synchronised: bool | None = None
    server: str = ""
    server_refusal: str = ""
    ports: int | None = None
    data: str = ""
    data_refusal: str = ""
    filesystem: str = ""
    free_bytes: int = 0
    free_inodes: int | None = None
    isolation: str = ""
    isolation_reason: str = ""
    has_own_networks: bool | None = None
    network_reason: str = ""
    wanted_network: str = "auto"
    is_metadata_open: bool = False
    is_root: bool = False
    cgroups: int | None = None
    controllers: frozenset[str] = frozenset()
    can_make_cgroups: bool = False
    etcd: str | None = None
    python: tuple[int, int, int] = (0, 0, 0)
    has_pip: bool = True
    keeps_tar_in_place: bool = True
    files: int | None = None
    shm_bytes: int | None = None
    inotify: int | None = None


def examine(symptoms: Symptoms) -> list[Finding]:
    """Return all findings, in the order of `CHECKS`."""
    return [finding for check in CHECKS for finding in check(symptoms)]


def _python(s: Symptoms) -> Iterator[Finding]:
    version = ".".join(map(str, s.python))
    if s.python[:2] < LEAST_PYTHON:
        yield _bad(
            "python", version, "install Python 3.11 or newer, and nsml in an environment of it"
        )
    elif not s.keeps_tar_in_place:
        yield _warn(
            "python",
            f"{version}: a tar archive can write outside its folder (CVE-2025-4517)",
            "the agent unpacks none, but sessions and installers use this Python: update it to one of"
            f" {TAR_FIXED_IN} or newer",
        )
    else:
        yield _ok("python", version)


def _pip(s: Symptoms) -> Iterator[Finding]:
    if not s.has_pip:
        yield _bad(
            "pip",
            "the agent's own environment has none: nothing is installed into images",
            "install it where nsml is installed: python -m ensurepip, or uv pip install pip",
        )


def _settings(s: Symptoms) -> Iterator[Finding]:
    if s.settings_refusal:
        yield _bad(
            "settings",
            s.settings_refusal,
            "put it right, or run this as the user that the agent runs as: no agent starts with it",
        )


def _driver(s: Symptoms) -> Iterator[Finding]:
    if not s.driver_refusal:
        yield _ok("driver", counted(s.devices, "device"))
    elif s.has_nvidia_hardware:
        yield _bad(
            "driver",
            s.driver_refusal,
            "an NVIDIA device is there: install its driver, and look whether nvidia-smi answers",
        )
    else:
        yield _warn("driver", s.driver_refusal, "none is needed without NVIDIA devices")


def _engine(s: Symptoms) -> Iterator[Finding]:
    if s.engine is None:
        yield _warn(
            "engine", "no container engine", "install docker if sessions are to name images"
        )
        return
    if s.engine.refusal:
        yield _warn(
            "engine",
            s.engine.refusal,
            "start it, and let the agent's user use its socket (group docker);"
            " DOCKER_HOST=unix:///PATH of nsml up and join, or engine_socket in agent.toml, names another one",
        )
        return
    yield _ok("engine", f"docker {s.engine.version}")
    if not s.engine.filters_calls:
        yield _bad(
            "engine",
            "containers run without a seccomp profile, so sessions get none",
            "take --seccomp-profile=unconfined (seccomp-profile in /etc/docker/daemon.json) away",
        )
    if s.engine.opens_io_uring:
        yield _warn(
            "engine",
            "containers may use io_uring, in which kernels had many holes, and which hides removed files from --disk: "
            "engines close it from 25 on",
            "sysctl -w kernel.io_uring_disabled=2, and the same line in /etc/sysctl.d",
        )
    if not s.engine.keeps_containers:
        yield _warn(
            "engine",
            "containers end when the engine is restarted",
            '"live-restore": true in /etc/docker/daemon.json',
        )
    if s.engine.has_nvidia:
        yield _ok("toolkit", "the engine gives out NVIDIA devices")
    elif s.has_nvidia_hardware or not s.driver_refusal:
        yield _bad(
            "toolkit",
            "the engine gives out no NVIDIA devices",
            "install nvidia-container-toolkit, then: nvidia-ctk runtime configure && systemctl restart docker",
        )


def _image(s: Symptoms) -> Iterator[Finding]:
    """Check the default image: without it the agent has no container to try, and uses none."""
    if s.engine is None or s.engine.refusal or s.wanted_isolation not in {"auto", "container"}:
        return
    if not s.default_image:
        yield _ok("image", "no default image: sessions must name theirs")
    elif s.engine.has_default_image:
        yield _ok("image", s.default_image)
    elif s.is_image_pulled:
        yield _warn(
            "image",
            f"the engine has no {s.default_image} yet: the agent pulls it when it starts",
            f"docker pull {s.default_image}    shows whether this machine has access\n"
            "registry_config in agent.site.toml, if its registry needs credentials",
        )
    else:
        is_required = s.wanted_isolation == "container"
        yield Finding(
            check="image",
            grade=Grade.BAD if is_required else Grade.WARN,
            found=f"the engine has no {s.default_image}: "
            + ("the agent does not start" if is_required else "sessions get no containers"),
            advice=f"in a checkout of nsml, as root: deploy/image/build {s.default_image}\n"
            'default_image = "ANOTHER" in agent.site.toml, which the agent pulls when it starts',
        )


def _isolation(s: Symptoms) -> Iterator[Finding]:
    if s.isolation == "namespace":
        yield _ok("namespaces", "sessions get a root of their own")
        return
    advice = (
        "allow user namespaces: sysctl user.max_user_namespaces and kernel.unprivileged_userns_clone=1,"
        " or kernel.apparmor_restrict_unprivileged_userns=0"
    )
    grade = Grade.WARN if s.isolation == "user" or s.engine is not None else Grade.BAD
    reason = s.isolation_reason or "it was not tried"
    yield Finding(
        check="namespaces",
        grade=grade,
        found=f"isolation {s.isolation or 'none'}: {reason}",
        advice=advice,
    )


def _network(s: Symptoms) -> Iterator[Finding]:
    advice = "run the agent as root (deploy/systemd) and install nftables"
    if not s.is_root:
        advice += "; or, without root, install passt (pasta)"
    if s.has_own_networks:
        yield _ok("network", "sessions get a network of their own")
    elif s.wanted_network == "host":
        yield _ok("network", "sessions have the machine's network: session_network = host")
    elif s.has_own_networks is not None:
        is_required = s.wanted_network == "own"
        yield Finding(
            check="network",
            grade=Grade.BAD if is_required else Grade.WARN,
            found=f"sessions share the machine's network: {s.network_reason}",
            advice=advice,
        )
    engine = s.engine if s.engine and s.wanted_isolation in {"auto", "container"} else None
    has_containers = engine is not None and not engine.refusal
    words = "in a cloud, sessions would reach its metadata service"
    role = "give the machine no role of the cloud"
    if s.is_metadata_open and (s.is_root or has_containers):
        yield _warn("metadata", f"{words}: {s.network_reason}", f"{advice}; {role}")
    elif engine is not None and engine.metadata_reason:
        yield _warn("metadata", f"{words}: {engine.metadata_reason}", role)


def _cgroups(s: Symptoms) -> Iterator[Finding]:
    if s.cgroups is None:
        yield _warn(
            "cgroups", "no control groups", "limits of memory and processes are kept less strictly"
        )
        return
    missing = sorted({"memory", "pids", "cpu"} - s.controllers)
    if missing:
        yield _warn(
            "cgroups",
            f"version {s.cgroups} without {', '.join(missing)}",
            "boot with cgroup_enable=memory, or delegate the controllers to the agent's unit",
        )
    elif not s.can_make_cgroups:
        yield _warn(
            "cgroups",
            f"version {s.cgroups}, but no group can be made",
            "run the agent as root, or from the unit in deploy/ (Delegate=yes)",
        )
    else:
        yield _ok("cgroups", f"version {s.cgroups} with {', '.join(sorted(s.controllers))}")


def _clock(s: Symptoms) -> Iterator[Finding]:
    advice = (
        "run one time service on all machines: systemctl enable --now systemd-timesyncd, or chrony"
    )
    if s.clock_ahead_s is not None:
        sure = max(abs(s.clock_ahead_s) - s.clock_error_s, 0.0)
        side = "ahead of" if s.clock_ahead_s > 0 else "behind"
        found = f"{abs(s.clock_ahead_s):.1f} s {side} the control plane's"
        if sure > BAD_CLOCK_S:
            yield _bad("clock", found, advice)
        elif sure > WORST_CLOCK_S:
            yield _warn("clock", found, advice)
        else:
            yield _ok("clock", "as the control plane's")
    if s.is_clock_synchronised is False:
        yield _warn("clock", "the kernel calls it unsynchronised", advice)
    elif s.clock_ahead_s is None and s.is_clock_synchronised:
        yield _ok("clock", "synchronised; no control plane answered to compare with")
    elif s.clock_ahead_s is None:
        yield _warn("clock", "nothing to compare it with", "nsml login HOST, then again")


def _certificate(s: Symptoms) -> Iterator[Finding]:
    if s.certificate_refusal:
        yield _bad("certificate", s.certificate_refusal, _JOIN_AGAIN)
    if s.certificate_left_s is None:
        return
    lasts = duration_text(abs(s.certificate_left_s))
    if s.certificate_left_s <= 0:
        yield _bad("certificate", f"ended {lasts} ago: no control plane talks to it", _JOIN_AGAIN)
    elif s.certificate_void:
        yield _bad("certificate", f"the platform refuses it: {s.certificate_void}", _JOIN_AGAIN)
    elif s.certificate_left_s < CERTIFICATE_WARNING_S:
        advice = "read the agent's log (certificate.not_renewed); it renews while it runs"
        yield _warn("certificate", f"ends in {lasts}", advice)
    else:
        yield _ok("certificate", f"ends in {lasts}")


def _ports(s: Symptoms) -> Iterator[Finding]:
    if s.server_refusal:
        yield _bad(
            "ports",
            f"{s.server} is not reached: {s.server_refusal}",
            "is the control plane up, and does every firewall between let this port through?",
        )
    elif s.server:
        yield _ok("ports", f"{s.server} is reached; nothing needs to reach this machine but gangs")
    if s.ports is not None and s.ports < LEAST_PORTS:
        yield _warn(
            "ports",
            f"{counted(s.ports, 'port')} for programs",
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        )
    elif not s.server and not s.server_refusal:
        yield _ok("ports", "no other machine's control plane to reach: this one has not joined any")


def _disk(s: Symptoms) -> Iterator[Finding]:
    if s.data_refusal:
        yield _bad(
            "disk",
            f"{s.data}: {s.data_refusal}",
            "choose a folder that you may write: --data, NSML_DATA",
        )
        return
    free = f"{s.data}: {s.free_bytes / _GIB:,.1f} GiB free"
    if s.free_bytes < BAD_FREE_BYTES:
        yield _bad("disk", free, "make room, or choose another disk: --data, NSML_DATA")
    elif s.free_bytes < LEAST_FREE_BYTES:
        yield _warn("disk", free, "datasets, environments and checkpoints need more: make room")
    else:
        yield _ok("disk", free)
    inodes = s.free_inodes
    if inodes is not None and inodes < LEAST_FREE_INODES:
        grade = Grade.BAD if inodes < BAD_FREE_INODES else Grade.WARN
        advice = "an environment has tens of thousands of files: choose another filesystem"
        yield Finding(check="inodes", grade=grade, found=f"{inodes:,} left", advice=advice)
    if s.filesystem in _SHARED:
        yield _bad("filesystem", s.filesystem, "the data folder must be on a disk of this machine")
    elif s.filesystem in _FLEETING:
        yield _warn("filesystem", s.filesystem, "it is empty after a boot: choose a disk")
    elif s.filesystem:
        yield _ok("filesystem", s.filesystem)


def _limits(s: Symptoms) -> Iterator[Finding]:
    if s.files is not None and s.files < LEAST_FILES:
        grade = Grade.BAD if s.files < BAD_FILES else Grade.WARN
        advice = "LimitNOFILE=65536 in the agent's unit, or ulimit -Hn in /etc/security/limits.conf"
        yield Finding(
            check="files", grade=grade, found=f"at most {s.files} open files", advice=advice
        )
    else:
        yield _ok("files", "no limit" if s.files is None else f"at most {s.files:,} open files")
    if s.shm_bytes is None:
        yield _bad("shm", "there is no /dev/shm", "mount -t tmpfs tmpfs /dev/shm")
    elif s.shm_bytes < LEAST_SHM_BYTES:
        yield _warn(
            "shm",
            f"{s.shm_bytes / _GIB:.2f} GiB in /dev/shm",
            "loaders of data need more: mount -o remount,size=50% /dev/shm",
        )
    else:
        yield _ok("shm", f"{s.shm_bytes / _GIB:,.1f} GiB in /dev/shm")


def _inotify(s: Symptoms) -> Iterator[Finding]:
    """Check inotify. At level `namespace` with root each session has instances of its own."""
    if s.inotify is None:
        return
    has_own = s.isolation == "namespace" and s.is_root and s.engine is None
    if has_own or s.inotify >= LEAST_INOTIFY:
        yield _ok("inotify", f"{s.inotify:,} instances for each user")
    else:
        yield _warn(
            "inotify",
            f"{s.inotify:,} instances for all sessions of a user together",
            "sysctl -w fs.inotify.max_user_instances=8192, and the same line in /etc/sysctl.d",
        )


def _etcd(s: Symptoms) -> Iterator[Finding]:
    if s.etcd is None:
        return  # a node needs none, and a control plane has its embedded store
    why = why_unsound(s.etcd)
    if why:
        yield _warn("etcd", why, "a control plane here uses the embedded store instead")
    else:
        yield _ok("etcd", f"{s.etcd} is sound")


CHECKS: Final[tuple[Callable[[Symptoms], Iterable[Finding]], ...]] = (
    _python,
    _pip,
    _settings,
    _driver,
    _engine,
    _image,
    _isolation,
    _network,
    _cgroups,
    _clock,
    _certificate,
    _ports,
    _disk,
    _limits,
    _inotify,
    _etcd,
)


def _ok(check: str, found: str) -> Finding:
    return Finding(check=check, grade=Grade.OK, found=found)


def _warn(check: str, found: str, advice: str) -> Finding:
    return Finding(check=check, grade=Grade.WARN, found=found, advice=advice)


def _bad(check: str, found: str, advice: str) -> Finding:
    return Finding(check=check, grade=Grade.BAD, found=found, advice=advice)
