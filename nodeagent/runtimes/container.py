"""Converts a `ReplicaSpec` to its container's whole configuration; a pure function.

No harmful default of the engine is left to a session: no capabilities, no way to gain
them, a read-only root, no processes but its own, no mounts of the host but the replica's
own folders and those that it may read.
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
from nodeagent.network.gang_network import NONE, overlay_name
from nodeagent.runtimes.account_names import names_file
from nodeagent.runtimes.launch import APP, RUN, SDK, all_mounts, layout_of, whole_environment
from nodeagent.shim import last_reads
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
_HAS_INTERPRETER = (  # without a shell of its own: that could exceed the program's process limit
    f'case "$1" in */*) if [ -f "$1" ] && IFS= read -r {_LINE} <"$1"; then case "${_LINE}" in "#!"*) '
    f'{_LINE}=${{{_LINE}#??}}; {_LINE}=${{{_LINE}#"${{{_LINE}%%[! ]*}}"}}; {_LINE}=${{{_LINE}%%[ ]*}}; '
    f'if ! [ -x "${_LINE}" ]; then '
    f"echo \"cannot start '$1': its first line names the interpreter '${_LINE}', which the image does not have\" "
    f"{_FAILS}; fi;; esac; fi;; esac; unset {_LINE}; "
)
_FOLLOWING = f"{RUN}/{last_reads.FOLDER}"
_LOOKS = 100
"""Looks at the followers: as many as end after `last_reads.LONGEST_S`."""
_AWAIT_FOLLOWERS = (
    "nsml_left=0; "
    f"while [ $nsml_left -lt {_LOOKS} ]; do nsml_alive=; "
    f"for nsml_one in {_FOLLOWING}/*; do nsml_one=${{nsml_one##*/}}; "
    'case "$nsml_one" in *[!0-9]*|0|1) continue;; esac; '
    'if kill -0 "$nsml_one" 2>/dev/null; then nsml_alive=1; break; fi; done; '
    'if [ -z "$nsml_alive" ]; then break; fi; '
    f"if sleep {last_reads.LONGEST_S / _LOOKS:g} 2>/dev/null; then nsml_left=$((nsml_left + 1)); "
    f"elif sleep 1; then nsml_left=$((nsml_left + {_LOOKS / last_reads.LONGEST_S:.0f})); else break; fi; done"
)
_RUN_PROGRAM = (
    "trap : HUP INT QUIT ABRT USR1 USR2 PIPE ALRM TERM; "
    f'(exec "$@" >>{OUTPUT} 2>&1); nsml_code=$?; trap "exit $nsml_code" EXIT; '
    f"{_AWAIT_FOLLOWERS}; exit $nsml_code"
)
"""The container ends with this shell, so it stays until the SDK's followers have read what the program left (`last_reads`).

Signals to the program's group must not end it first. `exec`: the program is no builtin of the shell. The
trap keeps the program's code where the shell has no room for a process."""
OWN_PROCESSES = 2
"""Processes of ours in a container: the engine's first one, and the shell below it."""
FIRST_PROGRAM = (
    f"{GIVEN}=; if [ -p {RUN}/{GATE} ]; then . {RUN}/{GATE}; fi; "
    f'if [ "${GIVEN}" != all ]; then echo "it was not let begin" {_FAILS}; fi; unset {GIVEN}; '
    'if [ "$1" = python ] && ! command -v python >/dev/null 2>&1 && command -v python3 >/dev/null 2>&1; '
    'then shift; set -- python3 "$@"; fi; '
    f"{_HAS_INTERPRETER}"
    f'if command -v "$1" >/dev/null 2>&1; then echo {BEGUN} >{RUN}/{SAID}; {_RUN_PROGRAM}; fi; '
    f"echo \"cannot start '$1': the image has no such program: name an image that has it\" "
    f'"(--image), or its Debian package in nsml_package.txt" {_FAILS}'
)
"""A script for /bin/sh: its arguments are the program, whose output the host stores as bytes.

If an image has `python3` only, like Debian's, `python` runs that."""
_LEAST_CPUS = 0.05
"""The engine prepares a container within its limit: with less that takes too long."""
_MEMLOCK = ({"Name": "memlock", "Soft": -1, "Hard": -1},)
"""Without a limit, for locked memory."""
_OOM_SCORE = 500
"""The kernel should kill user code first when memory runs out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    """Shared by all containers of an agent.

    `mark` distinguishes the agent's containers from another's on the same engine. `user` is
    `UID:GID` of the replicas' folders, for sessions without a user of their own. `open_files` is the soft and the hard limit of
    descriptors. `network` is the engine's network for sessions.
    """

    node: str
    mark: str
    user: str
    open_files: tuple[int, int]
    network: str


def container_name(replica_id: ReplicaId, mark: str) -> str:
    """Return the name of the replica's container."""
    return f"nsml-{mark}-{replica_id}"


def session_volumes(spec: ReplicaSpec, folder: ReplicaFolder, image: StoredImage) -> list[str]:
    """Return the volumes of the image to be replaced by the replica's own folders, in order.

    Raises EngineRefused for an image that can run no program.
    """
    return volume_targets(image.volumes, [one["Target"] for one in _own_mounts(spec, folder)])


def late_variables(
    spec: ReplicaSpec, folder: ReplicaFolder, image: StoredImage
) -> tuple[dict[str, str], list[str]]:
    """Return variables that only the program gets, not the engine's own programs, and those to unset.

    An engine's hooks may run with a container's variables and the machine's rights: neither an image nor a session
    may choose their libraries and devices. An image's NSML_ variables would give
    a program wrong facts about its session.
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
    """Return the engine's configuration for the container of `spec`.

    `image` is the one named in `spec.image`. Raises EngineRefused for an image that can run no program.
    """
    refuse_large_configuration(image)
    environment = whole_environment(spec, layout_of(spec, folder), image.environment)
    environment["PATH"] += f":{environment['HOME']}/.local/bin"
    # Only its home is writable: pip's protection of the image protects nothing.
    environment.setdefault("PIP_BREAK_SYSTEM_PACKAGES", "1")
    for name in filter(is_engine_variable, tuple(environment)):
        environment[name] = ""  # if absent, the image's would apply
    # SIGTERM goes to the program's whole group.
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
            # Output is a file of the replica: the engine's own logs are neither bytes nor exact.
            "LogConfig": {"Type": "none", "Config": {}},
            "Privileged": False,
            "CapAdd": [],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "GroupAdd": [str(group) for group in spec.groups],
            "ReadonlyRootfs": True,
            "NetworkMode": _network_mode(spec, place),
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
            "PidsLimit": spec.process_count + OWN_PROCESSES if spec.process_count else 0,
            "OomScoreAdj": _OOM_SCORE,
            "OomKillDisable": False,
            "Ulimits": [
                {"Name": "nofile", "Soft": place.open_files[0], "Hard": place.open_files[1]},
                # 1, not 0: no crash handler reads, as root and outside, files of the program.
                {"Name": "core", "Soft": 1, "Hard": 1},
                *_MEMLOCK[: 1 if spec.gang and spec.gang.unlimited_memlock else 0],
            ],
        },
    }


def _network_mode(spec: ReplicaSpec, place: ContainerPlace) -> str:
    if spec.without_network:
        return NONE
    return spec.gang.engine_network if spec.gang else place.network


def _cpu_limit(cpus: float | None) -> dict[str, int]:
    """Return quota and period: given cores, an engine refuses more than it sees itself, and very few."""
    quota_us, period_us = cpu_quota(max(cpus, _LEAST_CPUS)) if cpus else (0, 0)
    return {"CpuPeriod": period_us, "CpuQuota": quota_us}


def _networking(spec: ReplicaSpec) -> dict[str, Any]:
    """Return its name for others of the gang, unless they meet at their nodes."""
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
    """Mount folders counted as the replica's, in place of the engine's uncounted volumes."""
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
