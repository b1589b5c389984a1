"""From a `ReplicaSpec` to the whole configuration of its container; a pure function.

Nothing is left to the engine's defaults that a session could do harm with: no capabilities, no way to
new ones, a root that cannot be written, nobody's processes but its own, nothing of the host mounted
but the replica's own folders and what it may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodeagent.engine.containers import AGENT_LABEL, BUILD_LABEL, REPLICA_LABEL
from nodeagent.engine.images import (
    is_engine_variable,
    refuse_large_configuration,
    without_meaning,
)
from nodeagent.engine.volumes import volume_targets
from nodeagent.network.gang_network import overlay_name
from nodeagent.runtimes.account_names import names_file
from nodeagent.runtimes.launch import APP, RUN, SDK, all_mounts, layout_of, whole_environment
from nodeagent.shim.cgroups import cpu_quota
from nodeagent.shim.contained import BEGUN, GATE, GIVEN, SAID, START_FAILED_CODE

if TYPE_CHECKING:
    from nodeagent.engine.images import StoredImage
    from nodeagent.folders import ReplicaFolder, ReplicaId
    from nodeagent.runtimes.interface import ReplicaSpec

NODE_LABEL = "nsml.node"
OUTPUT = "/.nsml/output"
_FAILS = f">{RUN}/{SAID}; exit {START_FAILED_CODE}"
_LINE = "nsml_line"
_HAS_INTERPRETER = (  # without a shell of its own: that would be a process more than the program may have
    f'case "$1" in */*) if [ -f "$1" ] && IFS= read -r {_LINE} <"$1"; then case "${_LINE}" in "#!"*) '
    f'{_LINE}=${{{_LINE}#??}}; {_LINE}=${{{_LINE}#"${{{_LINE}%%[! ]*}}"}}; {_LINE}=${{{_LINE}%%[ ]*}}; '
    f'if ! [ -x "${_LINE}" ]; then '
    f"echo \"cannot start '$1': its first line names the interpreter '${_LINE}', which the image does not have\" "
    f"{_FAILS}; fi;; esac; fi;; esac; unset {_LINE}; "
)
FIRST_PROGRAM = (
    f"{GIVEN}=; if [ -p {RUN}/{GATE} ]; then . {RUN}/{GATE}; fi; "
    f'if [ "${GIVEN}" != all ]; then echo "it was not let begin" {_FAILS}; fi; unset {GIVEN}; '
    'if [ "$1" = python ] && ! command -v python >/dev/null 2>&1 && command -v python3 >/dev/null 2>&1; '
    'then shift; set -- python3 "$@"; fi; '
    f"{_HAS_INTERPRETER}"
    f'if command -v "$1" >/dev/null 2>&1; then echo {BEGUN} >{RUN}/{SAID}; exec "$@" >>{OUTPUT} 2>&1; fi; '
    f"echo \"cannot start '$1': the image has no such program: name an image that has it\" "
    f'"(--image), or its Debian package in nsml_package.txt" {_FAILS}'
)
"""A script for /bin/sh: its arguments become the program, whose output the host keeps as bytes.

Where an image has `python3` only, as Debian's do, that is what `python` means."""
_LEAST_CPUS = 0.05
"""The engine prepares a container within its limit: with less that takes longer than anybody waits."""
_MEMLOCK = ({"Name": "memlock", "Soft": -1, "Hard": -1},)
"""Of the session's user and group, where the image has no other for their ids."""
_OOM_SCORE = 500
"""User code is what the machine should sacrifice when memory runs out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    """What all containers of an agent have in common.

    `mark` tells the agent's containers from those of another on the same engine. `user` is
    `UID:GID` of who owns the replicas' folders, where sessions have no user of their own. `open_files` is the soft and the hard limit of
    descriptors. `network` is the engine's network that sessions get.
    """

    node: str
    mark: str
    user: str
    open_files: tuple[int, int]
    network: str


def container_name(replica_id: ReplicaId, mark: str) -> str:
    """The name of the replica's container."""
    return f"nsml-{mark}-{replica_id}"


def session_volumes(spec: ReplicaSpec, folder: ReplicaFolder, image: StoredImage) -> list[str]:
    """Where the image declares volumes that the replica's own folders take the place of, in order.

    Raises EngineRefused for an image with which no program could run.
    """
    return volume_targets(image.volumes, [one["Target"] for one in _own_mounts(spec, folder)])


def late_variables(
    spec: ReplicaSpec, folder: ReplicaFolder, image: StoredImage
) -> tuple[dict[str, str], list[str]]:
    """Variables that the program gets in its container and no program of the engine does; those it loses.

    An engine's hooks may run with a container's variables and the machine's rights: what is loaded into
    them, and which devices they give, is not for an image or a session to choose. An image's variables of the platform's kind would tell
    a program something untrue of its session.
    """
    environment = whole_environment(spec, layout_of(spec, folder), image.environment)
    given = {name: value for name, value in environment.items() if is_engine_variable(name)}
    ours = whole_environment(spec, layout_of(spec, folder), {})
    lost = [name for name in image.environment if name.startswith("NSML_") and name not in ours]
    return given, sorted(lost)


def container_config(
    spec: ReplicaSpec,
    folder: ReplicaFolder,
    place: ContainerPlace,
    *,
    image: StoredImage,
) -> dict[str, Any]:
    """What the engine is given to make the container of `spec`, in its own words.

    `image` is what `spec.image` names. Raises EngineRefused for an image with which no program could run.
    """
    refuse_large_configuration(image)
    environment = whole_environment(spec, layout_of(spec, folder), image.environment)
    environment["PATH"] += f":{environment['HOME']}/.local/bin"
    # Only its own home can be written: that what an image has is kept from pip protects nobody there.
    environment.setdefault("PIP_BREAK_SYSTEM_PACKAGES", "1")
    for name in filter(is_engine_variable, tuple(environment)):
        environment[name] = ""  # absent, it would be the image's
    # An order to stop goes to the program's whole group.
    environment["TINI_KILL_PROCESS_GROUP"] = "1"
    return {
        "Hostname": f"{spec.replica_id.session_id[:12]}-{spec.replica_id.rank}",
        "User": place.user if spec.uid is None else f"{spec.uid}:{spec.gid}",
        "Image": image.id,
        "Entrypoint": ["/bin/sh", "-c", FIRST_PROGRAM, "sh"],
        "Cmd": list(spec.argv),
        "WorkingDir": spec.cwd,
        "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
        "Labels": {
            **without_meaning(image.labels),
            BUILD_LABEL: "",
            AGENT_LABEL: place.mark,
            NODE_LABEL: place.node,
            REPLICA_LABEL: str(spec.replica_id),
        },
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "Tty": False,
        **_networking(spec),
        "HostConfig": {
            "Init": True,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no"},
            # Output is a file of the replica: the engine's own logs are not bytes, and not exact.
            "LogConfig": {"Type": "none", "Config": {}},
            "Privileged": False,
            "CapAdd": [],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "GroupAdd": [str(group) for group in spec.groups],
            "ReadonlyRootfs": True,
            "NetworkMode": spec.gang.engine_network if spec.gang else place.network,
            "IpcMode": "private",
            "PidMode": "",
            "UTSMode": "",
            "CgroupnsMode": "private",
            "PublishAllPorts": False,
            "Devices": [_device(path) for path in spec.gang.devices] if spec.gang else [],
            "DeviceRequests": _device_requests(spec),
            "Mounts": [
                *_own_mounts(spec, folder),
                *(_bind(str(names_file(folder, path)), path) for path in sorted(spec.names)),
                *_volume_mounts(spec, folder, image),
            ],
            "ShmSize": spec.shm_bytes,
            "Memory": spec.memory_bytes or 0,
            "MemorySwap": spec.memory_bytes or 0,
            **_cpu_limit(spec.cpus),
            # The first process, which is ours, counts too.
            "PidsLimit": spec.process_count + 1 if spec.process_count else 0,
            "OomScoreAdj": _OOM_SCORE,
            "OomKillDisable": False,
            "Ulimits": [
                {"Name": "nofile", "Soft": place.open_files[0], "Hard": place.open_files[1]},
                # 1, not 0: no handler of crashes reads, as root and outside, what the program made.
                {"Name": "core", "Soft": 1, "Hard": 1},
                *_MEMLOCK[: 1 if spec.gang and spec.gang.unlimited_memlock else 0],
            ],
        },
    }


def _cpu_limit(cpus: float | None) -> dict[str, int]:
    """As the kernel takes it: given cores, an engine refuses more than it sees itself, and few."""
    quota_us, period_us = cpu_quota(max(cpus, _LEAST_CPUS)) if cpus else (0, 0)
    return {"CpuPeriod": period_us, "CpuQuota": quota_us}


def _networking(spec: ReplicaSpec) -> dict[str, Any]:
    """The name by which others of the gang find it, where they do not meet at their nodes."""
    if spec.gang is None or not spec.gang.is_overlay:
        return {}
    name = overlay_name(spec.replica_id, spec.replica_id.rank)
    endpoint = {spec.gang.engine_network: {"Aliases": [name]}}
    return {"NetworkingConfig": {"EndpointsConfig": endpoint}}


def _device(path: str) -> dict[str, str]:
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"}


def _device_requests(spec: ReplicaSpec) -> list[dict[str, Any]]:
    uuids = [device.uuid for device in spec.devices if not device.simulated]
    if not uuids:
        return []
    return [{"Driver": "nvidia", "DeviceIDs": uuids, "Capabilities": [["gpu"]]}]


def _volume_mounts(
    spec: ReplicaSpec, folder: ReplicaFolder, image: StoredImage
) -> list[dict[str, Any]]:
    """Folders that count as the replica's, where an engine would make volumes that nobody counts."""
    targets = session_volumes(spec, folder, image)
    return [
        _bind(str(folder.volume(number)), target, write=True)
        for number, target in enumerate(targets)
    ]


def _own_mounts(spec: ReplicaSpec, folder: ReplicaFolder) -> list[dict[str, Any]]:
    mounts = [
        _bind(str(folder.app), APP, write=True),
        _bind(str(folder.run), RUN, write=True),
        _bind(str(folder.tmp), "/tmp", write=True),  # noqa: S108 - the replica's own
        _bind(str(folder.tmp), "/var/tmp", write=True),  # noqa: S108
        _bind(str(folder.output), OUTPUT, write=True),
    ]
    if spec.sdk_folder:
        mounts.append(_bind(str(spec.sdk_folder), SDK))
    return mounts + [_bind(str(mount.source), mount.target) for mount in all_mounts(spec)]


def _bind(source: str, target: str, *, write: bool = False) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": not write,
        "BindOptions": {"Propagation": "rprivate"},
    }
