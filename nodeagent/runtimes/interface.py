"""The agent's interface to a runtime: start, stop, find again and remember the end of replicas.

Errors, all subclasses of `RuntimeDriverError`:

```
RuntimeDriverError
    StartRefused       the spec cannot be run here; nothing was left behind
        ImageGone      its image was removed since its preparation
        EngineGone     the container engine does not answer
    ReplicaNotFound    no such replica on this machine
    ReplicaRunning     the call requires an ended replica
```
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nodeagent.folders import ReplicaFolder, ReplicaId
    from nodeagent.network.gang_network import GangNetwork


class Isolation(enum.StrEnum):
    """How a session is isolated from the machine and from other sessions."""

    CONTAINER = "container"
    """An engine's container."""
    NAMESPACE = "namespace"
    """A root of its own by user, mount and pid namespaces: `/app` and `/data/NAME` resolve."""
    USER = "user"
    """An agent with root runs each user under a uid of its own."""
    NONE = "none"
    """The agent's own rights and view of the machine; `NSML_DATASET_PATH` has host paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the host that the session reads at `target`, for example `/data/NAME`.

    Without a root of its own (`Isolation.NONE`) nothing is mounted: the path is `source`.
    """

    source: Path
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrant:
    """One device that the replica may use.

    `minor` numbers its node `/dev/nvidia<minor>`, `nodes` are its other paths in /dev (for a MIG
    instance: its capabilities).
    """

    uuid: str
    minor: int | None = None
    simulated: bool = False
    nodes: Sequence[str] = ()
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonEnvironment:
    """The interpreter for user code: a virtual environment and its base prefix."""

    folder: Path
    base_prefix: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """All that a runtime needs to start one replica.

    `env` has the session's variables beside those of the runtime (paths, devices, rank):
    the runtime's values take precedence, except that `PYTHONPATH` and `PATH` are
    joined. `cwd` and mount targets are paths as user code sees them; `/app` is the replica's `app/`,
    filled by the caller. `image` is that of a container, unused at other levels. `image_name`
    is its name for people, and `names` are its files with names of users and groups, by path: in its
    container the session's user is added to them.
    `secrets` are variables, too, in none of `env`: their values reach the program's environment, and
    are kept nowhere after the start. With `listener_variables` its shim holds a TCP listener on the loopback
    address of the program's network, and these variables contain its URL.

    Limits hold for all processes of the replica together, without the shim: `memory_bytes`
    includes /dev/shm (of `shm_bytes`); `process_count` counts threads;
    `disk_bytes` is the most in `app/`, `tmp/`, `run/`, an image's volumes and `output` together. None: no limit. A
    runtime enforces each one, or refuses the start.

    `gang` is a shared network: that of its gang, or the machine's at the session's
    request. None: the runtime's default, one of its own if possible. With `without_network` it reaches nothing but a
    loopback of its own: only with a root of its own, and no `gang`.

    `uid` and `gid`, set together, are the program's user on the machine, and the owner of its folders
    and log; None: the agent's own user. `groups` are supplementary groups, for its read rights.

    `warning_s` before its time limit a program that can save gets a notice; with `leaves_at_limit` it may
    exit then, since it resumes in another attempt.

    `device_share` is the replica's share of each of its devices; MPS at `mps_pipes`, a further
    mount, enforces it. None: it is not enforced.
    """

    replica_id: ReplicaId
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    listener_variables: Sequence[str] = ()
    cwd: str = "/app"
    mounts: Sequence[Mount] = ()
    devices: Sequence[DeviceGrant] = ()
    time_limit_s: float | None = None
    warning_s: float = 0.0
    leaves_at_limit: bool = False
    grace_s: float = 10.0
    lost_after_s: float | None = None
    isolation: Isolation = Isolation.NAMESPACE
    memory_bytes: int | None = None
    shm_bytes: int = 1 << 30
    cpus: float | None = None
    process_count: int | None = None
    disk_bytes: int | None = None
    sdk_folder: Path | None = None
    python: PythonEnvironment | None = None
    gang: GangNetwork | None = None
    without_network: bool = False
    image: str | None = None
    image_name: str = ""
    names: Mapping[str, bytes] = field(default_factory=dict)
    uid: int | None = None
    gid: int | None = None
    groups: Sequence[int] = ()
    device_share: float = 1.0
    mps_pipes: Mount | None = None


class ExitWhy(enum.StrEnum):
    """Reason of a replica's end."""

    EXITED = "EXITED"
    """The program ended by itself, with a code or a signal."""
    STOPPED = "STOPPED"
    """A stop order; `message` is its reason."""
    TIME_LIMIT = "TIME_LIMIT"
    """The session's own limit."""
    LOST_AFTER = "LOST_AFTER"
    """The node had no contact with the control plane for `lost_after_s`."""
    START_FAILED = "START_FAILED"
    """The program could not be started; `message` gives the reason, the code is 127."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """It used all of its memory; `message` gives the amount."""
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    """It exceeded its limit of disk or processes; `message` names it."""
    ENGINE_AWAY = "ENGINE_AWAY"
    """The container engine did not answer at the start; no program ran."""
    ENGINE_LOST = "ENGINE_LOST"
    """The container engine was restarted or ended, and the program with it."""
    SHIM_LOST = "SHIM_LOST"
    """The shim was killed or the machine restarted: the code is unknown, the processes are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a replica ended. Times are Unix seconds; `duration_s` is monotonic, except after a reboot.

    Exactly one of `exit_code` and `signal` is set when the program ended; both are None when it
    never ran or nobody saw its end. `output_bytes` is the length of the finished log.
    `memory_peak_bytes` is the peak of all its processes, 0 if not measured;
    `max_rss_bytes` is that of the largest single process; for a container, measured as a whole,
    it is the same.
    """

    why: ExitWhy
    exit_code: int | None
    signal: int | None
    message: str
    started_at: float
    ended_at: float
    duration_s: float
    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_bytes: int = 0
    memory_peak_bytes: int = 0
    output_bytes: int = 0


class ReplicaState(enum.StrEnum):
    """State of a replica with a folder."""

    PREPARED = "PREPARED"
    """A folder without a process: the agent died before it could start one. `start` continues."""
    RUNNING = "RUNNING"
    """Processes of it exist, or may: without a `pid` its shim is gone, and its remaining processes cannot
    be killed yet."""
    EXITED = "EXITED"
    """It has an exit record, and no process of it is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """One item of `RuntimeDriver.list`; `exit` is set only in state EXITED.

    `started_at` is set in state RUNNING, in Unix seconds.
    """

    replica_id: ReplicaId
    state: ReplicaState
    pid: int | None = None
    started_at: float = 0.0
    exit: ExitRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHandle:
    """A replica started now, or before (`adopted`)."""

    replica_id: ReplicaId
    folder: ReplicaFolder
    adopted: bool


class RuntimeDriverError(Exception):
    """A runtime could not carry out a call."""


class StartRefused(RuntimeDriverError):
    """The spec cannot be run on this machine."""


class NodeRefused(StartRefused):
    """This machine no longer has what the session was placed here for: another one may."""


class ImageGone(StartRefused):
    """The prepared image is no longer on this machine: it can be prepared again."""


class EngineGone(StartRefused):
    """The container engine does not answer: the node is at fault, not the session."""


class ReplicaNotFound(RuntimeDriverError):
    """No such replica on this machine."""


class ReplicaRunning(RuntimeDriverError):
    """The replica still runs."""


class RuntimeDriver(Protocol):
    """Runs replicas on this machine, each in its own folder, and never loses an exit code.

    Identity is the replica id. Everything survives the driver: a new one over the same folders
    finds replicas started by the last one (`list`), can wait for and stop them. Methods may be called
    concurrently, also for one replica. `async with driver:` opens and closes it; closing leaves
    the replicas running.
    """

    async def __aenter__(self) -> Self:
        """Make the driver ready."""
        ...

    async def __aexit__(self, *_exception: object) -> None:
        """Release all replicas without stopping them."""
        ...

    async def start(self, spec: ReplicaSpec) -> ReplicaHandle:
        """Start the replica, or adopt it if it was started before, ignoring `spec` then.

        Returns once a process exists that will write the exit record. A program that cannot be
        executed is not an error of this call: its exit record says START_FAILED. Raises
        StartRefused.
        """
        ...

    async def stop(
        self, replica_id: ReplicaId, *, grace_s: float, reason: str, notice_s: float = 0.0
    ) -> None:
        """Order the end: SIGTERM, and SIGKILL to every process after `grace_s`; does not wait.

        A program that can save gets a notice first, and SIGTERM `notice_s` later if it has not exited.
        A later order can shorten both, never lengthen them. No effect on a replica that
        has ended. Raises ReplicaNotFound.
        """
        ...

    async def kill(self, replica_id: ReplicaId, *, reason: str) -> None:
        """`stop` without grace."""
        ...

    async def list(self) -> Sequence[ReplicaFacts]:
        """Every replica with a folder on this machine, in order of id.

        One with unkillable processes delays nobody for long: it is RUNNING.
        """
        ...

    async def wait(self, replica_id: ReplicaId) -> ExitRecord:
        """Return once the replica has ended with all its processes.

        Can be called at any time, by any number of callers, also after the end. Raises
        ReplicaNotFound for a replica that was never started.
        """
        ...

    async def remove(self, replica_id: ReplicaId) -> None:
        """Delete the folder of an ended replica; idempotent. Raises ReplicaRunning."""
        ...
