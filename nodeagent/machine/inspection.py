"""Inspects a machine for `doctor.py`. Needs no root, control plane, or data folder."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from nodeagent.engine.client import Engine, EngineError, EngineRefused
from nodeagent.engine.images import find_image
from nodeagent.engine.networks import OWN_NETWORK
from nodeagent.machine.doctor import EngineSymptoms, Symptoms
from nodeagent.network.container_networks import ContainerNetworks
from nodeagent.network.pasta import probe_pasta
from nodeagent.network.rules import NetworkRules
from nodeagent.network.session_network import NetworkFacts, probe_network
from nodeagent.probes.nvml import NvmlProbe
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.isolation import probe_isolation
from nsml.client.errors import ClientError, NotSignedIn
from nsml.client.trust import NodeFiles, certificate_end, check_known

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.config import Settings

_NVIDIA = "0x10de"
_TIME_ERROR = 5
_UNSYNCHRONISED = 0x40
_REACH_S = 5.0
_ENGINE_S = 10.0
_CLOSES_IO_URING = 25
"""The first Docker with a default profile against io_uring."""
_WANTED = frozenset({"memory", "pids", "cpu"})
_SHM = "/dev/shm"  # noqa: S108 - nothing is written there
_CGROUPS = Path("/sys/fs/cgroup")


def look(
    data: Path,
    server: str,
    engine: Path,
    settings: Settings,
    *,
    ahead_s: float | None,
    error_s: float,
) -> Symptoms:
    """Gather all facts; takes some seconds, since programs are run to test the kernel.

    Args:
        data: the agent's data folder, which need not exist.
        server: HOST:PORT of the node's control plane; empty: it has not joined.
        engine: the socket of the container engine.
        settings: of the agent, or those that it would have.
        ahead_s: this clock's lead over the control plane's; None: unknown.
        error_s: uncertainty of that.
    """
    found: dict[str, Any] = {"data": str(data), "server": server}
    for part in (_driver, _isolation, _cgroups):
        found |= part()
    found |= _network(settings, found.get("isolation", ""))
    found |= _disk(data)
    return Symptoms(
        **found,
        engine=_engine(engine, settings),
        default_image=settings.default_image,
        is_image_pulled=settings.names_default_image,
        wanted_isolation=settings.isolation,
        **_certificate(settings, server),
        clock_ahead_s=ahead_s,
        clock_error_s=error_s,
        is_clock_synchronised=_is_synchronised(),
        server_refusal=_reach(server) if server else "",
        ports=_tried(_ports),
        is_root=os.geteuid() == 0,
        etcd=_tried(_etcd),
        python=sys.version_info[:3],
        has_pip=find_spec("pip") is not None,
        # introduced by the fix of CVE-2025-4517, also in distributions that fix older releases
        keeps_tar_in_place=hasattr(tarfile, "data_filter") and hasattr(os.path, "ALLOW_MISSING"),
        files=_files(),
        shm_bytes=_tried(lambda: shutil.disk_usage(_SHM).total),
        inotify=_tried(lambda: int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())),
    )


def _certificate(settings: Settings, server: str = "") -> dict[str, Any]:
    file = settings.certificate_file
    if file is None:
        return {}
    try:
        left_s = certificate_end(file) - time.time()
    except (OSError, ValueError) as error:
        return {"certificate_refusal": f"{file} cannot be read: {error}"}
    return {"certificate_left_s": left_s, "certificate_void": _void(settings, server)}


def _void(settings: Settings, server: str) -> str:
    """Return why the control plane rejects the node's certificate; "" if it does not, or is silent."""
    certificate, key, authority = (
        settings.certificate_file,
        settings.key_file,
        settings.authority_file,
    )
    if not server or certificate is None or key is None or authority is None:
        return ""
    files = NodeFiles(key=key, certificate=certificate, authority=authority)
    try:
        asyncio.run(check_known(server, files))
    except NotSignedIn as error:
        return error.why or error.message
    except (ClientError, OSError):
        pass  # an unreachable one is a finding of its own
    return ""


def _driver() -> dict[str, Any]:
    devices = NvmlProbe().devices()
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    kinds = (file for file in vendors if _tried(file.read_text, "").strip() == _NVIDIA)
    # 0x03....: display controllers, which include GPUs
    has_hardware = any(
        _tried((file.parent / "class").read_text, "").startswith("0x03") for file in kinds
    )
    refusal = "" if devices.devices else devices.reason or "the driver knows no devices"
    return {
        "devices": len(devices.devices),
        "driver_refusal": refusal,
        "has_nvidia_hardware": has_hardware,
    }


def _engine(at: Path, settings: Settings) -> EngineSymptoms | None:
    if not at.exists():
        return None
    engine = Engine(at, timeout_s=_ENGINE_S)
    default_image, metadata_reason = settings.default_image, ""
    try:
        facts = engine.facts()
        if settings.metadata_addresses:
            networks = ContainerNetworks(engine, settings, OWN_NETWORK)
            networks.bridges()
            metadata_reason = networks.open_reason(has_ids=os.geteuid() == 0)
        has_default_image = bool(default_image) and _has(engine, default_image)
    except EngineError as error:
        return EngineSymptoms(refusal=str(error))
    finally:
        engine.close()
    return EngineSymptoms(
        version=facts.version,
        has_nvidia=facts.has_nvidia,
        keeps_containers=facts.keeps_containers,
        filters_calls=facts.filters_calls,
        opens_io_uring=_opens_io_uring(facts.version),
        has_default_image=has_default_image,
        metadata_reason=metadata_reason,
    )


def _opens_io_uring(version: str) -> bool:
    """Whether an engine's own profile allows io_uring on this kernel."""
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) >= _CLOSES_IO_URING:
        return False
    try:
        return Path("/proc/sys/kernel/io_uring_disabled").read_text(encoding="ascii").strip() != "2"
    except OSError:
        return True  # kernels before 6.6 cannot forbid it


def _has(engine: Engine, image: str) -> bool:
    try:
        return find_image(engine, image) is not None
    except EngineRefused:  # an invalid name of an image
        return False


def _isolation() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="nsml-doctor-") as scratch:
        try:
            facts = probe_isolation(Path(scratch) / "trial")
        except OSError as error:
            return {"isolation_reason": str(error)}
    return {"isolation": facts.level.value, "isolation_reason": facts.reason}


def _network(settings: Settings, isolation: str) -> dict[str, Any]:
    """Creates networks like an agent's, tests them, and removes them."""
    wanted = {"wanted_network": settings.session_network}
    is_wanted = isolation == Isolation.NAMESPACE and settings.session_network != "host"
    with tempfile.TemporaryDirectory(prefix="nsml-doctor-") as scratch:
        if os.geteuid() == 0:
            facts = probe_network(
                Path(scratch),
                rules=NetworkRules(uids=(settings.uid_first, settings.uid_first)),
                subnet=settings.session_subnet,
                nameservers=settings.session_nameservers,
                is_wanted=is_wanted,
            )
            facts.remove()
        elif is_wanted:
            facts = probe_pasta(
                Path(scratch),
                subnet=settings.session_subnet,
                nameservers=settings.session_nameservers,
                metadata=settings.metadata_addresses,
            )
        else:
            reason = "its agent is not root"
            facts = NetworkFacts(reason=reason, open_reason=reason)
    return {
        "has_own_networks": facts.network is not None,
        "network_reason": facts.reason or facts.open_reason,
        "is_metadata_open": bool(settings.metadata_addresses and facts.open_reason),
        **wanted,
    }


def _cgroups() -> dict[str, Any]:
    unified = _CGROUPS / "cgroup.controllers"
    if unified.exists():
        controllers = set(_tried(unified.read_text, "").split())
        own = _tried(Path("/proc/self/cgroup").read_text, "").rpartition("::")[2].strip()
        places = [_CGROUPS / own.lstrip("/")]
        version = 2
    else:
        controllers = {name for name in _WANTED if (_CGROUPS / name).is_dir()}
        places = [_CGROUPS / name for name in sorted(controllers)]
        version = 1
    if not controllers:
        return {}
    return {
        "cgroups": version,
        "controllers": frozenset(controllers & _WANTED),
        "can_make_cgroups": all(map(_can_make, places)),
    }


def _can_make(place: Path) -> bool:
    trial = place / f"nsml-doctor-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError:
        return False
    with contextlib.suppress(OSError):
        trial.rmdir()
    return True


def _is_synchronised() -> bool | None:
    """Return the kernel's clock status; None if unknown."""

    class _Timex(ctypes.Structure):
        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_char * 256),
        )

    answer = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(answer))
    if state < 0:
        return None
    return state != _TIME_ERROR and not answer.status & _UNSYNCHRONISED


def _reach(server: str) -> str:
    """Return why a connection to HOST:PORT fails, or ""."""
    host, _, port = server.removeprefix("unix:").rpartition(":")
    try:
        if server.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as way:
                way.settimeout(_REACH_S)
                way.connect(server.removeprefix("unix:"))
        else:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S):
                pass
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _ports() -> int:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    first, last = map(int, text.split())
    return last - first + 1


def _disk(data: Path) -> dict[str, Any]:
    there = next(place for place in (data, *data.parents) if place.exists())
    if not os.access(there, os.W_OK):
        return {"data_refusal": f"{there} cannot be written"}
    counts = os.statvfs(there)
    mounts = [
        mount for mount in psutil.disk_partitions(all=True) if _holds(mount.mountpoint, there)
    ]
    nearest = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    return {
        "free_bytes": counts.f_bavail * counts.f_frsize,
        "free_inodes": counts.f_favail if counts.f_files else None,
        "filesystem": nearest.fstype if nearest else "",
    }


def _holds(mountpoint: str, place: Path) -> bool:
    return place.resolve().is_relative_to(mountpoint)


def _etcd() -> str | None:
    binary = shutil.which("etcd")
    if binary is None:
        return None
    process = subprocess.run(
        [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
    )
    version = re.search(r"etcd Version: (\S+)", process.stdout)
    return version.group(1) if version else "unknown"


def _files() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if limit == resource.RLIM_INFINITY else limit


def _tried(question: Callable[[], Any], otherwise: Any = None) -> Any:
    """Return an answer of the machine, or `otherwise`."""
    try:
        return question()
    except (OSError, ValueError, subprocess.SubprocessError):
        return otherwise
