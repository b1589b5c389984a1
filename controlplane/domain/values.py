"""Values that decisions are based on. All frozen: change them with `replace`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from controlplane.domain.lifecycle import ReplicaPhase, SessionState
from controlplane.domain.program_changes import KnobValue, ProgramChange

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST_NETWORK = "host"
NO_NETWORK = "none"
"""A node's network for replicas of gangs; any other value is the name of a separate network."""

WHOLE_DEVICE = 1000
"""Thousandths in one device."""


class Visibility(enum.IntEnum):
    """Who, beside the owner and administrators, may see a thing; numbers as in the contract."""

    PRIVATE = 1
    TEAM = 2
    PUBLIC = 3


class PartAccess(enum.IntEnum):
    """Who may read a part of a dataset; numbers as in the contract, each with fewer readers than the one before."""

    OPEN = 1
    """All users of the dataset."""
    OWNER = 2
    """The owner and administrators: only their sessions have it."""
    HIDDEN = 3
    """No session has it: the owner and administrators download it."""


class Priority(enum.IntEnum):
    """Priority class, lowest first; numbers as in the contract."""

    IDLE = 1
    """Opportunistic: uses spare capacity; preempted first."""
    LOW = 2
    NORMAL = 3
    HIGH = 4


class Isolation(enum.StrEnum):
    """How strongly a node separates sessions, weakest first."""

    NONE = "NONE"
    USER = "USER"
    NAMESPACE = "NAMESPACE"
    CONTAINER = "CONTAINER"


class Network(enum.StrEnum):
    """Network of a replica: its own, its node's, or none but a loopback."""

    OWN = "own"
    HOST = "host"
    NONE = "none"


class SessionStage(enum.StrEnum):
    """What a session does for a submission; see nsml.v1.SessionStage."""

    PREDICT = "PREDICT"
    PREDICT_TEST = "PREDICT_TEST"
    EVALUATE = "EVALUATE"
    INFER = "INFER"


class Launcher(enum.StrEnum):
    """What starts the processes of an entry; see nsml.v1.Launcher."""

    TORCHRUN = "TORCHRUN"
    ACCELERATE = "ACCELERATE"
    DEEPSPEED = "DEEPSPEED"
    MPIRUN = "MPIRUN"
    RAY = "RAY"
    JAX = "JAX"


class Cause(enum.StrEnum):
    """Why an attempt ended; see nsml.v1.Cause."""

    COMPLETED = "COMPLETED"
    PROGRAM_FAILED = "PROGRAM_FAILED"
    STOP_REQUESTED = "STOP_REQUESTED"
    TIME_LIMIT = "TIME_LIMIT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    ENVIRONMENT_FAILED = "ENVIRONMENT_FAILED"
    DATA_FAILED = "DATA_FAILED"
    START_FAILED = "START_FAILED"
    NODE_LOST = "NODE_LOST"
    LOST_AFTER = "LOST_AFTER"
    GANG_MEMBER_FAILED = "GANG_MEMBER_FAILED"
    PREEMPTED = "PREEMPTED"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    PORT_TAKEN = "PORT_TAKEN"
    NODE_REFUSED = "NODE_REFUSED"

    @property
    def is_platforms_fault(self) -> bool:
        """True if the program is not at fault: the attempt is repeated if retries are left."""
        return self in {Cause.NODE_LOST, Cause.LOST_AFTER, Cause.PREEMPTED}

    @property
    def may_not_recur(self) -> bool:
        """True if nothing ran, and the next attempt may succeed."""
        return self in {Cause.DATA_FAILED, Cause.PORT_TAKEN, Cause.NODE_REFUSED}


class HeldCause(enum.StrEnum):
    """Why a session is held; see nsml.v1.HeldCause. Its texts: nsml/spec/held_causes.py."""

    START_FAILURES = "START_FAILURES"
    NODE_LOSSES = "NODE_LOSSES"
    AFTER = "AFTER"

    @classmethod
    def of_bad_attempts(cls, last: Cause) -> HeldCause:
        """Return the cause for bad attempts. The last one decides: the session shows its end."""
        return cls.START_FAILURES if last.may_not_recur else cls.NODE_LOSSES


class OriginKind(enum.StrEnum):
    """How a session was derived from another one; see nsml.v1.OriginKind."""

    RERUN = "RERUN"
    FORK = "FORK"
    RESUME = "RESUME"
    SWEEP = "SWEEP"
    SUBMISSION = "SUBMISSION"
    INFER = "INFER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a derived session, by its id and its name then; it may be removed since."""

    kind: OriginKind
    session_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialCheckpoint:
    """The checkpoint that a session's first attempt loads: of another session, by its id and its name then."""

    session_id: str
    name: str
    digest: str = ""
    session_name: str = ""
    saved_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """A session that must end before another one is queued, by its id and its name then.

    `is_any`: any end will do; otherwise it has to succeed.
    """

    session_id: str
    name: str = ""
    is_any: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFrom:
    """The source of a session restored from another platform, as text; `restored_at` in Unix seconds."""

    platform: str
    session_id: str
    name: str
    owner: str
    restored_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GitFacts:
    """The commit of a session's code, reported by its user's client. `is_dirty` None: unknown."""

    commit: str
    branch: str = ""
    remote: str = ""
    is_dirty: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Capacity, requested or held. GPU and CPU in thousandths of a device or core, memory in bytes."""

    gpu_thousandths: int = 0
    cpu_thousandths: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What each replica may use beside its `Resources`; 0: the node's default. Sizes in bytes."""

    shm_bytes: int = 0
    disk_bytes: int = 0
    process_count: int = 0


class Keeping(enum.StrEnum):
    """How a node enforces one limit of its sessions; see nsml.v1.Keeping."""

    UNSPECIFIED = "UNSPECIFIED"
    NONE = "NONE"
    WATCHED = "WATCHED"
    GROUP = "GROUP"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLimits:
    """How a node enforces each limit; `note`: why the kernel does not."""

    memory: Keeping = Keeping.UNSPECIFIED
    cpus: Keeping = Keeping.UNSPECIFIED
    processes: Keeping = Keeping.UNSPECIFIED
    disk: Keeping = Keeping.UNSPECIFIED
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU of a node.

    `withheld`: why nothing new is placed on it; empty: it is offered. `parent_uuid`: the device that
    contains a MIG instance. Versions: of its driver, and of the newest CUDA for that driver; "": unknown.
    """

    uuid: str
    index: int
    model: str = ""
    memory_bytes: int = 0
    simulated: bool = False
    withheld: str = ""
    parent_uuid: str = ""
    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """A share of a device, in thousandths."""

    uuid: str
    thousandths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVersion:
    """A dataset version in a session: mounted at /data/NAME or, if `streamed`, read over S3 and not fetched.

    `folder`: replaces NAME; "": NAME. `in_place`: the node's folder with its files; "": they are in the object store.
    `size_bytes`: of its files; 0: unknown.
    """

    owner: str
    name: str
    version: int
    digest: str
    streamed: bool = False
    folder: str = ""
    in_place: str = ""
    size_bytes: int = 0

    @property
    def fetched_bytes(self) -> int:
        """Its bytes on the disk of the session's node."""
        return 0 if self.streamed or self.in_place else self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """Dataset versions and images cached on a node, and its fetch rate, as its agent reports.

    `things`: bytes by the digest of a dataset version, or by the whole reference of an image; the two never look
    alike. `bytes_per_s` 0: unknown, since it has fetched too little.
    """

    things: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    bytes_per_s: float = 0.0

    def images(self) -> dict[str, int]:
        """Return bytes of images by whole reference, which has a tag or a digest after a colon."""
        return {name: size for name, size in self.things.items() if ":" in name}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLogin:
    """A user's login at an image registry; `version` changes whenever it is set."""

    registry: str
    user: str
    password: str = field(repr=False)
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretUse:
    """A secret of the session's owner, and its environment variable in the program."""

    name: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What to run; immutable. `entry` or `argv`, never both. 0 in a duration: none or never.

    `preemptible`: its owner allows preemption without a checkpoint. `gpu_model` and `pod` restrict it to
    devices of that model (see `domain.models`) and to nodes of that pod; "": any. `network` restricts it to
    nodes that offer its replicas that one; None: any. `refresh_environment`: nodes rebuild environments of its
    requirements that are older than its submission. `labels`: its user's, to group sessions.
    `initial_checkpoint` None: its first attempt starts from scratch. `after`: sessions that must end before it is
    queued. `keep_checkpoints`: see nsml.spec.checkpoint_retention; "": all. `environment_lock`: digest of the packages
    to install; "": resolve the requirements. `output_datasets`: see nsml.spec.output_datasets. `allow_changed_data`:
    start although files of a dataset in place have changed. `keep_files`: the files left in its attempts' working
    folders become an artifact; `no_keep_files`: never; `keep_files_by_default`: it requests neither, and the default
    is to keep them. `dockerfile`: path in the code of its image's Dockerfile, with `build_arguments`; "": use `image`.
    `needs_conda`: its code lists conda packages. `stage`: its step of the submission `submission_id`; None: none.
    `log_metrics`: see nsml.log_metrics.patterns.
    `launcher`: what starts the processes of its entry; None: Python alone.
    """

    entry: str = ""
    args: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    bundle_digest: str = ""
    datasets: tuple[DatasetVersion, ...] = ()
    resources: Resources = field(default_factory=Resources)
    replica_count: int = 1
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    image: str = ""
    time_limit_s: float = 0.0
    idle_limit_s: float = 0.0
    grace_s: float = 10.0
    retry_count: int = 0
    lost_after_s: float = 0.0
    limits: Limits = field(default_factory=Limits)
    secrets: tuple[SecretUse, ...] = ()
    priority: Priority = Priority.NORMAL
    preemptible: bool = False
    gpu_model: str = ""
    pod: str = ""
    network: Network | None = None
    refresh_environment: bool = False
    knobs: tuple[KnobValue, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    initial_checkpoint: InitialCheckpoint | None = None
    after: tuple[After, ...] = ()
    keep_checkpoints: str = ""
    environment_lock: str = ""
    output_datasets: tuple[str, ...] = ()
    allow_changed_data: bool = False
    keep_files: bool = False
    no_keep_files: bool = False
    keep_files_by_default: bool = False
    dockerfile: str = ""
    build_arguments: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    needs_conda: bool = False
    stage: SessionStage | None = None
    submission_id: str = ""
    log_metrics: tuple[str, ...] = ()
    launcher: Launcher | None = None

    @property
    def is_submission_step(self) -> bool:
        """Whether it predicts or evaluates for a submission."""
        return self.stage in {
            SessionStage.PREDICT,
            SessionStage.PREDICT_TEST,
            SessionStage.EVALUATE,
        }

    @property
    def is_confined(self) -> bool:
        """Whether nothing may leave it but its result: no network, and only on nodes that keep it apart."""
        return self.is_submission_step

    @property
    def is_sealed(self) -> bool:
        """Whether its own user reads nothing that it writes: it has seen hidden test inputs."""
        return self.stage is SessionStage.PREDICT

    @property
    def keeps_files(self) -> bool:
        """Whether files left in its attempts' working folders are kept."""
        return self.keep_files or self.keep_files_by_default

    @property
    def may_be_preempted(self) -> bool:
        """Whether it may be preempted without a checkpoint: by its owner's choice, or by its class."""
        return self.preemptible or self.priority is Priority.IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one replica ended, as its node reports. Times in Unix seconds, 0 if it never ran.

    `memory_peak_bytes`: its highest memory use, 0 if not measured.
    """

    cause: Cause
    exit_code: int = 0
    message: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    ran_for_s: float = 0.0
    memory_peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One member of the gang of the current attempt. `started_at` 0: it is not known to have run.

    `exit` was reported at `heard_at`, by the leader's clock. `is_near_data`: its node was preferred to an equal one,
    since less of its data had to be fetched. `waiting`: what it waits for during preparation, for people.
    `image`: its container's, by digest. `python_version`: of its node's Python; "" in containers.
    """

    rank: int
    node: str
    devices: tuple[Device, ...] = ()
    resources: Resources = field(default_factory=Resources)
    phase: ReplicaPhase = ReplicaPhase.PLACED
    started_at: float = 0.0
    exit: Exit | None = None
    heard_at: float = 0.0
    is_near_data: bool = False
    waiting: str = ""
    image: str = ""
    python_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a session ended."""

    cause: Cause
    exit_code: int = 0
    rank: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A durable request to end a session.

    `notice_s`: seconds before SIGTERM at which a program that can save is asked to; 0: it is not asked.
    `came_first`: no replica had failed when a user requested it. `asked_at`: start of notice and grace, Unix
    seconds by the clock for decisions; 0: of a version that did not record it.
    """

    grace_s: float
    notice_s: float = 0.0
    cause: Cause = Cause.STOP_REQUESTED
    reason: str = ""
    asked_by: str = ""
    came_first: bool = False
    asked_at: float = 0.0

    @property
    def ends_by(self) -> float:
        """Latest end of the stopped session's processes, Unix seconds; 0: unknown."""
        return self.asked_at and self.asked_at + self.notice_s + self.grace_s

    def text(self, when: str = "") -> str:
        """Say who requested it, and why: `stopped by kim: too slow`; `when` follows the name."""
        who = " ".join(filter(None, ("stopped by", self.asked_by, when)))
        return f"{who}: {self.reason}" if self.reason else who

    def since(self, now: float, earlier: Stop | None = None) -> Stop:
        """Return it as requested now, but ending no later than the earlier one that it replaces."""
        if earlier is None or not earlier.asked_at:
            return replace(self, asked_at=now)
        return replace(self, asked_at=min(now, earlier.ends_by - self.notice_s - self.grace_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a session would lose by a move, as its rank 0 reports: accurate to half a minute.

    `is_resumable`: another attempt can resume from its checkpoints. `saved_at`: Unix seconds, by the
    leader's clock, of its newest checkpoint; 0: there is none.
    """

    is_resumable: bool = False
    saved_at: float = 0.0

    @property
    def can_go_on(self) -> bool:
        """Whether another attempt could resume from a checkpoint."""
        return self.is_resumable and self.saved_at > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A share of a device of a node, in thousandths."""

    node: str
    uuid: str
    thousandths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Measured use of a session's devices while it held them, each by its share.

    Attributes:
        utilization: mean, percent; None if devices do not report it.
        utilization_peak, memory_peak: highest of any device, percent and bytes.
    """

    device_seconds: float = 0.0
    utilization: float | None = None
    utilization_peak: float = 0.0
    memory_peak: float = 0.0
    watt_hours: float = 0.0


class EpisodeKind(enum.StrEnum):
    """How held devices are wasted: hardly used, or unusable."""

    IDLE = "IDLE"
    ZOMBIE = "ZOMBIE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A time in which a session wasted its devices. Unix seconds; `until` 0: it is ongoing."""

    kind: EpisodeKind
    since: float
    reason: str
    until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An ended attempt and its charge: `held_s` seconds of `gpu_thousandths`.

    `nodes` ran its replicas, by rank: their agents may still send its records. `reason` is for people:
    the cause of a preemption ("gives way to kim/mnist/12 (high)"), or the failure. `devices`: the devices
    that it held, empty if no longer known. `simulated`: any of them was. `gpu_models`: thousandths of GPUs by
    model, which add up to `gpu_thousandths`; empty of versions that did not record them. `durable_until`: when its
    newest durable checkpoint was saved, by our clock and never after `ended_at`; 0: there is none.
    `driver_versions`, `python_versions`: of its GPUs, and of its nodes' Python for its replicas, each once.
    """

    number: int
    cause: Cause
    placed_at: float
    ended_at: float
    gpu_thousandths: int
    held_s: float
    nodes: tuple[str, ...] = ()
    reason: str = ""
    devices: tuple[HeldDevice, ...] = ()
    simulated: bool = False
    gpu_models: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    durable_until: float = 0.0
    driver_versions: tuple[str, ...] = ()
    python_versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """When the newest durable checkpoint of an attempt was saved, Unix seconds by our clock.

    `Progress.saved_at` is set sooner: that checkpoint may be on its node only, and lost with it.
    """

    attempt: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The checkpoint that an attempt resumes from, and its digest then; "": it starts from scratch.

    Decided once per attempt, so that all replicas of a gang resume from the same one, whatever is saved meanwhile.
    """

    attempt: int
    checkpoint: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session. `attempt` counts from 1 and is 0 before the first placement.

    `settling`: ranks of an ended attempt whose checkpoints may still be in transfer, while the session is
    requeued and waits for them until `not_before`. `avoids`: devices, by uuid, and nodes where it is not
    placed any more: its attempts ended there by their fault. `usage` is measured once, when it has ended and
    is moved to the catalogue. `episodes`: the newest times in which it wasted its devices, oldest first
    (`domain/idle.py`). `resume` and `durable` may be an earlier attempt's. `held_cause` is set only while it is
    HELD. `changes`: of its running programs, of all attempts, oldest first; only the last one may be open.
    `competition_teams`: teams that it counts for, as COMPETITION_ID/TEAM (`TeamQuota`); sorted.
    """

    id: str
    name: str
    owner: str
    spec: SessionSpec
    created_at: float
    project: str = ""
    team: str = ""
    visibility: Visibility = Visibility.PRIVATE
    state: SessionState = SessionState.QUEUED
    attempt: int = 0
    replicas: tuple[Replica, ...] = ()
    started_at: float = 0.0
    ended_at: float = 0.0
    end: End | None = None
    memo: str = ""
    command: tuple[str, ...] = ()
    request_id: str = ""
    request_digest: bytes = b""
    stop: Stop | None = None
    bad_attempts: int = 0
    attempts: tuple[EndedAttempt, ...] = ()
    not_before: float = 0.0
    progress: Progress = field(default_factory=Progress)
    settling: frozenset[int] = frozenset()
    avoids: frozenset[str] = frozenset()
    usage: Usage | None = None
    owner_id: str = ""
    episodes: tuple[Episode, ...] = ()
    resume: Resume | None = None
    durable: Durable | None = None
    held_cause: HeldCause | None = None
    origin: Origin | None = None
    changes: tuple[ProgramChange, ...] = ()
    git: GitFacts | None = None
    imported: ImportedFrom | None = None
    competition_teams: tuple[str, ...] = ()

    @property
    def change(self) -> ProgramChange | None:
        """The open change of its running programs; None: there is none."""
        last = self.changes[-1] if self.changes else None
        return last if last is not None and last.phase.is_open else None

    def with_change(self, change: ProgramChange) -> Session:
        """Replace the last change."""
        return replace(self, changes=(*self.changes[:-1], change))

    @property
    def dataset(self) -> str:
        """The middle part of its name; "None" without a dataset."""
        return self.name.split("/")[1]

    @property
    def is_simulated(self) -> bool:
        """True if any device that it holds or held is simulated: its reports stay after it released them."""
        held = any(device.simulated for replica in self.replicas for device in replica.devices)
        return held or any(one.simulated for one in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An administrator's request that a node accepts no new sessions.

    Sessions there end by themselves, or are moved from `move_at` (Unix seconds) on; 0: never.
    """

    asked_by: str = ""
    reason: str = ""
    asked_at: float = 0.0
    move_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """An administrator's statement that all replicas of a node's boot `boot_id` are gone.

    It is in force until the machine was rebooted, or its agent has ended all its running replicas.
    `replicas`: those given up (session id, attempt, rank): their sessions may have been removed by the
    time the agent is back.
    """

    boot_id: str
    asked_by: str = ""
    reason: str = ""
    asked_at: float = 0.0
    replicas: frozenset[tuple[str, int, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedAs:
    """A node agent's description of a replica, for people; no decision depends on it.

    `started_at`: Unix seconds; 0: its program has not started, or at an unknown time.
    """

    session_name: str = ""
    device_uuids: tuple[str, ...] = ()
    started_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A node obeyed orders, or runs replicas, that this store never had: the store was restored from a copy.

    Nothing is started, stopped or given up there until an administrator has lifted it.

    Attributes:
        term, revision: of the newest orders that its agent obeyed.
        replicas: run there, but were never placed there: session id, attempt, rank.
        foreign: the agent's descriptions of the first of them.
        lifted_by: the administrator who allowed to stop these and to forget those orders.
    """

    found_at: float = 0.0
    term: int = 0
    revision: int = 0
    replicas: frozenset[tuple[str, int, int]] = frozenset()
    foreign: tuple[tuple[tuple[str, int, int], PlacedAs], ...] = ()
    lifted_by: str = ""

    @property
    def stands(self) -> bool:
        """Whether orders to the node are forbidden."""
        return not self.lifted_by

    @property
    def is_of_orders(self) -> bool:
        """Whether its agent obeyed orders that this store never had: that does not end by itself."""
        return bool(self.term or self.revision)

    def without(self, key: tuple[str, int, int]) -> Hold:
        """Remove a replica that no longer runs."""
        return replace(
            self,
            replicas=self.replicas - {key},
            foreign=tuple((one, known) for one, known in self.foreign if one != key),
        )

    def covers(self, other: Hold) -> bool:
        """Return whether this hold includes all of `other`."""
        return (other.term, other.revision) <= (self.term, self.revision) and (
            other.replicas <= self.replicas
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine, as last registered. `capacity` is for all its sessions together."""

    name: str
    boot_id: str
    capacity: Resources
    devices: tuple[Device, ...] = ()
    isolation: Isolation = Isolation.NONE
    agent_version: str = ""
    pod: str = ""
    host: str = ""
    owner: str = ""
    device_note: str = ""
    only_owner: str = ""
    """Why its agent cannot isolate users; "" if it can, or runs sessions without isolation."""
    gang_network: str = HOST_NETWORK
    networks: tuple[Network, ...] = ()
    """Networks that sessions of one replica may request there, in the order of Network; none if its agent ignores
    the request."""
    isolation_note: str = ""
    setting_note: str = ""
    not_ready: str = ""
    """Why its agent cannot start sessions now; "" if it can."""
    engine_note: str = ""
    """Effect of a restart of its container engine on its sessions; "" if they outlive it."""
    shared_roots: tuple[str, ...] = ()
    """Folders whose datasets it can mount in place."""
    abilities: tuple[str, ...] = ()
    """Abilities of its agent: names of `Ability`."""
    python_version: str = ""
    """Of the Python for programs there; "" with containers, or if the agent does not report it."""
    data_bytes: int = 0
    """Maximum bytes of datasets on its disk; 0: unknown."""
    registered_at: float = 0.0
    limits: KeptLimits = field(default_factory=KeptLimits)
    drain: Drain | None = None
    fence: Fence | None = None
    hold: Hold | None = None

    @property
    def closed_by(self) -> str:
        """Why it accepts no sessions, ignoring silence: "fenced", "held", "drained", "not ready"; "" if it does."""
        if self.fence is not None:
            return "fenced"
        if self.hold is not None:
            return "held"
        if self.drain is not None:
            return "drained"
        return "not ready" if self.not_ready else ""

    @property
    def builds_conda(self) -> bool:
        """Whether conda packages can be installed there."""
        return "CONDA" in self.abilities

    def holds_data(self, size: int) -> bool:
        """Return whether so many bytes of datasets fit on its empty disk; True if unknown."""
        return not self.data_bytes or size <= self.data_bytes

    def shares(self, path: str) -> bool:
        """Return whether it can mount a dataset in place at this path."""
        return any(f"{path}/".startswith(f"{root.rstrip('/')}/") for root in self.shared_roots)

    @property
    def keeps_apart(self) -> bool:
        """Whether its sessions have a root of their own, apart from the machine and from one another."""
        return self.isolation in {Isolation.NAMESPACE, Isolation.CONTAINER}

    def networks_for(self, replica_count: int) -> tuple[Network, ...]:
        """Return the networks that a session may request there for its replicas."""
        if replica_count == 1:
            if self.keeps_apart:
                return self.networks
            # whoever sees the machine's sockets and files is not cut off by a network
            return tuple(one for one in self.networks if one is not Network.NONE)
        if self.gang_network == NO_NETWORK:
            return ()
        return (Network.HOST if self.gang_network == HOST_NETWORK else Network.OWN,)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedReplica:
    """One replica that a node is to run: both the order and the allocation."""

    session_id: str
    attempt: int
    rank: int
    devices: tuple[DeviceShare, ...] = ()
    cpu_thousandths: int = 0
    memory_bytes: int = 0
    placed_at: float = 0.0

    @property
    def gpu_thousandths(self) -> int:
        """GPU capacity that it holds."""
        return sum(share.thousandths for share in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All replicas that a node is to run."""

    node: str
    replicas: tuple[AllocatedReplica, ...] = ()

    def held_thousandths(self) -> dict[str, int]:
        """Return the held thousandths of each device, by uuid."""
        held: dict[str, int] = {}
        for replica in self.replicas:
            for share in replica.devices:
                held[share.uuid] = held.get(share.uuid, 0) + share.thousandths
        return held


DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits at one time; 0: no limit. GPU and CPU in thousandths, memory in bytes."""

    gpu_thousandths: int = 0
    cpu_thousandths: int = 0
    memory_bytes: int = 0
    sessions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQuota:
    """How many GPUs the sessions of each team of an open competition may hold at one time.

    Attributes:
        competition: its name.
        datasets: OWNER/NAME of the datasets whose sessions count; sorted.
        gpu_thousandths: of one team; 0: no limit.
        merged: teams that are part of another one now, with that one.
    """

    competition_id: str
    competition: str
    datasets: tuple[str, ...] = ()
    gpu_thousandths: int = 0
    merged: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def present(self, team: str) -> str:
        """Return the team that a team is now a part of, else itself."""
        return self.merged.get(team, team)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limit per period: GPU-seconds, more than 0, per `period_days`.

    `anchor`: Unix seconds of the beginning of one period; it fixes all others.
    """

    gpu_seconds: float
    period_days: int
    anchor: float

    def period(self, now: float) -> tuple[float, float]:
        """Return the period that contains an instant: from, until; Unix seconds."""
        length = self.period_days * DAY_S
        since = self.anchor + (now - self.anchor) // length * length
        return since, since + length


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project, to which sessions are charged: its members, and their limits.

    Attributes:
        owner: a member who manages the members; "": administrators do.
        members: users by name, including the owner.
        created_at: Unix seconds; earlier use is not charged to a budget.
        quota, member_quota: of all members together, and of each.
        weight: of its fair share, more than 0.
        most_priority: the highest class that its sessions may have.
        keep_checkpoints: default for its sessions; "": the platform's.
        kept_bytes: limit of its bytes in the object store; 0: no limit.
        keep_files: "on" or "off", default for its sessions; "": the platform's.
    """

    name: str
    owner: str = ""
    members: frozenset[str] = frozenset()
    created_at: float = 0.0
    quota: Quota = field(default_factory=Quota)
    member_quota: Quota = field(default_factory=Quota)
    budget: Budget | None = None
    weight: float = 1.0
    most_priority: Priority = Priority.HIGH
    keep_checkpoints: str = ""
    kept_bytes: int = 0
    keep_files: str = ""

    def period(self, now: float) -> tuple[float, float]:
        """Return its budget's period, from its creation on; (0, 0) without a budget."""
        if self.budget is None:
            return 0.0, 0.0
        since, until = self.budget.period(now)
        return max(since, self.created_at), until


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A project's use of its budget since `since`, by ended and live sessions; as of one instant.

    In whole GPU-thousandths times milliseconds, so that sums do not depend on their order.
    """

    project: str
    gpu_units: int
    since: float
    until: float

    @property
    def gpu_seconds(self) -> float:
        """The same in GPU-seconds."""
        return self.gpu_units / GPU_UNITS


GPU_UNITS = WHOLE_DEVICE * 1000
"""Units per GPU-second."""
