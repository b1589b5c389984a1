"""The values that decisions are made of. All frozen: a change makes a new one with `replace`."""

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
"""How replicas of gangs reach one another on a node; anything else names a network of its own."""

WHOLE_DEVICE = 1000
"""Thousandths in one device."""


class Visibility(enum.IntEnum):
    """Who beside the owner and administrators sees something; numbers are those of the contract."""

    PRIVATE = 1
    TEAM = 2
    PUBLIC = 3


class PartAccess(enum.IntEnum):
    """Who reads a part of a dataset; numbers are those of the contract, and each names fewer than the one before."""

    OPEN = 1
    """Everybody who may use the dataset."""
    OWNER = 2
    """The owner and administrators: their sessions have it, others' do not."""
    HIDDEN = 3
    """No session has it: the owner and administrators fetch it by themselves."""


class Priority(enum.IntEnum):
    """Whose turn it is first, lowest class first; numbers are those of the contract."""

    IDLE = 1
    """Opportunistic: it has what nobody else wants, and gives it back when somebody does."""
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
    """Which network a replica has: one of its own, or its node's."""

    OWN = "own"
    HOST = "host"


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
        """True when the program did nothing wrong: such an attempt is repeated if retries are left."""
        return self in {Cause.NODE_LOST, Cause.LOST_AFTER, Cause.PREEMPTED}

    @property
    def may_not_recur(self) -> bool:
        """True when nothing ran, and the next attempt may have what this one could not."""
        return self in {Cause.DATA_FAILED, Cause.PORT_TAKEN, Cause.NODE_REFUSED}


class HeldCause(enum.StrEnum):
    """Why a session is held; see nsml.v1.HeldCause. Its words: nsml/spec/held_causes.py."""

    START_FAILURES = "START_FAILURES"
    NODE_LOSSES = "NODE_LOSSES"
    AFTER = "AFTER"

    @classmethod
    def of_bad_attempts(cls, last: Cause) -> HeldCause:
        """Why one is held for its bad attempts. The last decides: its end is what the session shows."""
        return cls.START_FAILURES if last.may_not_recur else cls.NODE_LOSSES


class OriginKind(enum.StrEnum):
    """How a session came from another one; see nsml.v1.OriginKind."""

    RERUN = "RERUN"
    FORK = "FORK"
    RESUME = "RESUME"
    SWEEP = "SWEEP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The session that another one came from, by its id and the name that it had; it may be removed since."""

    kind: OriginKind
    session_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialCheckpoint:
    """What the first attempt of a session loads: saved by another session, by its id and the name that it had."""

    session_id: str
    name: str
    digest: str = ""
    session_name: str = ""
    saved_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """A session that ends before another one is queued, by its id and the name that it had.

    `is_any`: however it ends; otherwise it has to succeed.
    """

    session_id: str
    name: str = ""
    is_any: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFrom:
    """The session of another platform that one was restored from, as text; `restored_at` in Unix seconds."""

    platform: str
    session_id: str
    name: str
    owner: str
    restored_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GitFacts:
    """The commit of a session's code, as its user's client said. `is_dirty` None: not known."""

    commit: str
    branch: str = ""
    remote: str = ""
    is_dirty: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Capacity, asked for or held. GPU and CPU in thousandths of a device or core, memory in bytes."""

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
    """How a node keeps one limit of its sessions; see nsml.v1.Keeping."""

    UNSPECIFIED = "UNSPECIFIED"
    NONE = "NONE"
    WATCHED = "WATCHED"
    GROUP = "GROUP"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLimits:
    """How a node keeps each limit; `note` says why not by the kernel."""

    memory: Keeping = Keeping.UNSPECIFIED
    cpus: Keeping = Keeping.UNSPECIFIED
    processes: Keeping = Keeping.UNSPECIFIED
    disk: Keeping = Keeping.UNSPECIFIED
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU of a node.

    `withheld` says why nothing new is placed on it; empty: it is offered. `parent_uuid` names the
    device that a MIG instance is a part of. Versions are those of its driver, and of the newest CUDA that this runs;
    "": not known.
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
    """Some thousandths of a device."""

    uuid: str
    thousandths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVersion:
    """A dataset version as a session uses it: mounted at /data/NAME or, `streamed`, read over S3 and not fetched.

    `folder`: in place of NAME, "" for that. `in_place`: the folder of the node that has its files; "": they are in the
    object store. `size_bytes`: of its files; 0: not known.
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
        """What a node that runs the session has of it on its disk."""
        return 0 if self.streamed or self.in_place else self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What a node has of what sessions need, and how fast it fetches more, as its agent says.

    `things` are bytes by the digest of a dataset version, or by the whole reference of an image; the two never look
    alike. `bytes_per_s` 0: it has fetched nothing by which that could be told.
    """

    things: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    bytes_per_s: float = 0.0

    def images(self) -> dict[str, int]:
        """Bytes of images by whole reference, which has a tag or a digest behind a colon."""
        return {name: size for name, size in self.things.items() if ":" in name}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLogin:
    """A user's login at a registry of images; `version` is another one for each that was set."""

    registry: str
    user: str
    password: str = field(repr=False)
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretUse:
    """A secret of the session's owner, and the variable of its program that holds it."""

    name: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What to run; immutable. `entry` or `argv`, never both. 0 in a duration: none or never.

    `preemptible`: its owner allows it to be ended without a save. `gpu_model` and `pod` keep it to
    devices of that model (see `domain.models`) and to nodes of that pod; "": any. `network` keeps it to
    nodes that give its replicas that one; None: any. `refresh_environment`: what nodes built from its
    requirements before it was submitted is built anew. `labels` are its user's to group sessions by.
    `initial_checkpoint` None: its first attempt begins anew. `after`: the sessions that end before it is queued.
    `keep_checkpoints`: see nsml.spec.checkpoint_retention; "": all. `environment_lock`: digest of the packages that are
    installed; "": what the requirements lead to. `output_datasets`: see nsml.spec.output_datasets. `allow_changed_data`:
    it starts although files of a dataset in place have changed. `keep_files`: what its attempts leave in their
    working folder becomes an artifact; `no_keep_files`: it does not, whatever the platform's default is, and
    `keep_files_by_default`: it asks for neither, and it does. `dockerfile`: path in the code of what its image is built from, with `build_arguments`; "": it is `image`.
    `needs_conda`: its code lists packages of conda.
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

    @property
    def keeps_files(self) -> bool:
        """Whether what its attempts leave in their working folder is kept."""
        return self.keep_files or self.keep_files_by_default

    @property
    def may_be_preempted(self) -> bool:
        """Whether it may be ended without a save: its owner says so, or its class implies it."""
        return self.preemptible or self.priority is Priority.IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one replica ended, as its node saw it. Times in Unix seconds, 0 when it never ran.

    `memory_peak_bytes`: the most that it used at one time, 0 where nobody measured it.
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

    `exit` was heard of at `heard_at`, by the leader's clock. `is_near_data`: it was placed there, and not on a node
    as good, since less of its data had to be fetched. `waiting`: what it waits for while it is prepared, for people.
    `image`: that of its container, by digest. `python_version`: of the Python that its node gave it; "" in containers.
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
    """A durable request that a session ends.

    `notice_s`: so long before SIGTERM a program that can save is told to; 0: it is not told.
    `came_first`: no replica had ended badly when a user asked for it. `asked_at`: since when notice and grace
    count, Unix seconds by the clock that decisions go by; 0: of a version that did not note it.
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
        """When what it stops is gone at the latest, Unix seconds; 0: not known."""
        return self.asked_at and self.asked_at + self.notice_s + self.grace_s

    def text(self, when: str = "") -> str:
        """Who asked, and why: `stopped by kim: too slow`; `when` follows the name."""
        who = " ".join(filter(None, ("stopped by", self.asked_by, when)))
        return f"{who}: {self.reason}" if self.reason else who

    def since(self, now: float, earlier: Stop | None = None) -> Stop:
        """The same, asked now. It lengthens nothing: in place of an earlier one it ends no later than that."""
        if earlier is None or not earlier.asked_at:
            return replace(self, asked_at=now)
        return replace(self, asked_at=min(now, earlier.ends_by - self.notice_s - self.grace_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a session would lose by being moved, as its rank 0 says: known to within half a minute.

    `is_resumable`: another attempt can go on from what it saves. `saved_at`: Unix seconds, by the
    leader's clock, of its newest checkpoint; 0: it has saved none.
    """

    is_resumable: bool = False
    saved_at: float = 0.0

    @property
    def can_go_on(self) -> bool:
        """Whether another attempt would find something to go on from."""
        return self.is_resumable and self.saved_at > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """Some thousandths of a device of a node."""

    node: str
    uuid: str
    thousandths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was measured of the devices of a session while it held them, each by its share.

    Attributes:
        utilization: mean, percent; None where devices do not tell.
        utilization_peak, memory_peak: highest of any device, percent and bytes.
    """

    device_seconds: float = 0.0
    utilization: float | None = None
    utilization_peak: float = 0.0
    memory_peak: float = 0.0
    watt_hours: float = 0.0


class EpisodeKind(enum.StrEnum):
    """What is made of devices that are held: hardly anything, or nothing could be."""

    IDLE = "IDLE"
    ZOMBIE = "ZOMBIE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A time in which a session made nothing of its devices. Unix seconds; `until` 0: it stands."""

    kind: EpisodeKind
    since: float
    reason: str
    until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """What one attempt is charged for: `held_s` seconds of `gpu_thousandths`.

    `nodes` ran its replicas, by rank: their agents may still send its records. `reason` is for people:
    for whom it gave way ("gives way to kim/mnist/12 (high)"), or what went wrong. `devices` are what it
    held, empty where that is not known any more. `simulated`: any of them was. `gpu_models` are thousandths of
    GPUs by model, which add up to `gpu_thousandths`; empty of versions before they were kept. `durable_until`:
    when its newest durable checkpoint was saved, by our clock and never after `ended_at`; 0: none is durable.
    `driver_versions` and `python_versions`, each once: of its GPUs, and of the Python that nodes gave its replicas.
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

    `Progress.saved_at` is sooner: that checkpoint may be on its node only, and lost with it.
    """

    attempt: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """From which checkpoint an attempt goes on, and its content then; "": it begins anew.

    It is settled once an attempt, so that all replicas of a gang go on from the same, whatever is saved meanwhile.
    """

    attempt: int
    checkpoint: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session. `attempt` counts from 1 and is 0 before the first placement.

    `settling` are the ranks of an ended attempt of which what they saved may still be on its way, while
    the session is queued again and `not_before` makes it wait for that. `avoids` are the devices, by
    uuid, and the nodes on which nothing of it is placed any more: its attempts ended there by their fault.
    `usage` is measured once, when it has ended and is moved to the catalogue. `episodes` are the newest times
    in which it made nothing of its devices, oldest first (`domain/idle.py`). `resume` and
    `durable` may be an earlier attempt's. `held_cause` is set while it is HELD, and only then. `changes` are those of its
    running programs, of all attempts, oldest first; only the last one may be open.
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

    @property
    def change(self) -> ProgramChange | None:
        """How its running programs are changed now; None: they are not."""
        last = self.changes[-1] if self.changes else None
        return last if last is not None and last.phase.is_open else None

    def with_change(self, change: ProgramChange) -> Session:
        """The session with its last change as it is now."""
        return replace(self, changes=(*self.changes[:-1], change))

    @property
    def dataset(self) -> str:
        """The middle part of its name; "None" without a dataset."""
        return self.name.split("/")[1]

    @property
    def is_simulated(self) -> bool:
        """True when any device that it holds or held is simulated: what it reported stays after it left them."""
        held = any(device.simulated for replica in self.replicas for device in replica.devices)
        return held or any(one.simulated for one in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An administrator's word that a node takes nothing new.

    What runs there ends by itself, or is moved from `move_at` (Unix seconds) on; 0: never.
    """

    asked_by: str = ""
    reason: str = ""
    asked_at: float = 0.0
    move_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """An administrator's word that what a node ran in the boot `boot_id` is gone.

    It stands until the machine was started again, or its agent has ended all that it still ran.
    `replicas` are those that were given up (session id, attempt, rank): their sessions may have been
    removed by the time that the agent is back.
    """

    boot_id: str
    asked_by: str = ""
    reason: str = ""
    asked_at: float = 0.0
    replicas: frozenset[tuple[str, int, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedAs:
    """What a node's agent knows of one of its replicas: words for people, nothing is decided by them.

    `started_at` is in Unix seconds; 0: its program has not started, or nobody knows when.
    """

    session_name: str = ""
    device_uuids: tuple[str, ...] = ()
    started_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A node obeyed orders, or runs replicas, that this store never had: it was restored from a copy.

    Nothing is started, stopped or given up there until an administrator has lifted it.

    Attributes:
        term, revision: of the newest orders that its agent obeyed.
        replicas: which run there and were never placed there: session id, attempt, rank.
        foreign: what the agent says of the first of them.
        lifted_by: the administrator who said that these may be stopped, and those orders forgotten.
    """

    found_at: float = 0.0
    term: int = 0
    revision: int = 0
    replicas: frozenset[tuple[str, int, int]] = frozenset()
    foreign: tuple[tuple[tuple[str, int, int], PlacedAs], ...] = ()
    lifted_by: str = ""

    @property
    def stands(self) -> bool:
        """Whether nothing may be ordered there."""
        return not self.lifted_by

    @property
    def is_of_orders(self) -> bool:
        """Whether its agent obeyed what this store never had: that does not end by itself."""
        return bool(self.term or self.revision)

    def without(self, key: tuple[str, int, int]) -> Hold:
        """The same once that replica runs no more."""
        return replace(
            self,
            replicas=self.replicas - {key},
            foreign=tuple((one, known) for one, known in self.foreign if one != key),
        )

    def covers(self, other: Hold) -> bool:
        """Whether nothing in `other` goes beyond what is known here."""
        return (other.term, other.revision) <= (self.term, self.revision) and (
            other.replicas <= self.replicas
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine as it registered last. `capacity` is what sessions may use in sum."""

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
    """Why its agent cannot keep users apart; "" when it can, or runs sessions without isolation."""
    gang_network: str = HOST_NETWORK
    networks: tuple[Network, ...] = ()
    """What sessions that are no gangs may ask for there, in the order of Network; none where its agent
    would not look at that."""
    isolation_note: str = ""
    setting_note: str = ""
    not_ready: str = ""
    """Why its agent can start no sessions now; "" when it can."""
    engine_note: str = ""
    """What a restart of its container engine does to its sessions; "" where they outlive it."""
    shared_roots: tuple[str, ...] = ()
    """Folders below which it can mount datasets in place."""
    abilities: tuple[str, ...] = ()
    """What its agent can be asked: names of `Ability`."""
    python_version: str = ""
    """Of the Python that programs get there; "" with containers, or of an agent that does not say."""
    data_bytes: int = 0
    """What its disk can hold of datasets at most; 0: not known."""
    registered_at: float = 0.0
    limits: KeptLimits = field(default_factory=KeptLimits)
    drain: Drain | None = None
    fence: Fence | None = None
    hold: Hold | None = None

    @property
    def closed_by(self) -> str:
        """Why it takes no sessions, beside silence: "fenced", "held", "drained", "not ready"; "" when it does."""
        if self.fence is not None:
            return "fenced"
        if self.hold is not None:
            return "held"
        if self.drain is not None:
            return "drained"
        return "not ready" if self.not_ready else ""

    @property
    def builds_conda(self) -> bool:
        """Whether packages of conda can be installed there."""
        return "CONDA" in self.abilities

    def holds_data(self, size: int) -> bool:
        """Whether so many bytes of datasets would fit on its disk, were nothing else there; also where that is not known."""
        return not self.data_bytes or size <= self.data_bytes

    def shares(self, path: str) -> bool:
        """Whether it can mount a dataset in place there."""
        return any(f"{path}/".startswith(f"{root.rstrip('/')}/") for root in self.shared_roots)

    def networks_for(self, replica_count: int) -> tuple[Network, ...]:
        """The networks that the replicas of a session may have there, where it asks for one."""
        if replica_count == 1:
            return self.networks
        if self.gang_network == NO_NETWORK:
            return ()
        return (Network.HOST if self.gang_network == HOST_NETWORK else Network.OWN,)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedReplica:
    """One replica that a node is to run: the order and the allocation are this one record."""

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
    """Everything that one node is to run."""

    node: str
    replicas: tuple[AllocatedReplica, ...] = ()

    def held_thousandths(self) -> dict[str, int]:
        """How much of each device is held, by uuid."""
        held: dict[str, int] = {}
        for replica in self.replicas:
            for share in replica.devices:
                held[share.uuid] = held.get(share.uuid, 0) + share.thousandths
        return held


DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much at once; 0: no bound. GPU and CPU in thousandths, memory in bytes."""

    gpu_thousandths: int = 0
    cpu_thousandths: int = 0
    memory_bytes: int = 0
    sessions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much in a period: GPU-seconds, more than 0, in each `period_days` from `anchor` on.

    `anchor`: Unix seconds of the beginning of one period; those before and after follow from it.
    """

    gpu_seconds: float
    period_days: int
    anchor: float

    def period(self, now: float) -> tuple[float, float]:
        """The period in which an instant lies: from, until; Unix seconds."""
        length = self.period_days * DAY_S
        since = self.anchor + (now - self.anchor) // length * length
        return since, since + length


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What sessions count for: members, and what they may have together.

    Attributes:
        owner: a member who says who the others are; "": administrators do.
        members: users by name, the owner among them.
        created_at: Unix seconds; what was used before counts for no budget.
        quota, member_quota: of all members together, and of each.
        weight: of its fair share, more than 0.
        most_priority: the highest class that its sessions may have.
        keep_checkpoints: of its sessions that name nothing; "": as the platform has it.
        kept_bytes: what the object store may keep for it; 0: no limit.
        keep_files: "on" or "off", of its sessions that ask for nothing; "": as the platform has it.
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
        """What of its budget's period is its own: (0, 0) without a budget."""
        if self.budget is None:
            return 0.0, 0.0
        since, until = self.budget.period(now)
        return max(since, self.created_at), until


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a project has used of its budget since `since`, ended and live; as of one instant.

    In whole GPU-thousandths times milliseconds, so that no order of adding matters.
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
"""In one GPU-second."""
