"""What a control plane is made of: what it stands on, and who it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from controlplane.access.peers import Alone
from controlplane.domain.idle import WasteRule
from controlplane.domain.limits import NO_TIME_LIMITS, TimeLimits, UserLimits
from controlplane.scheduler import NOTICE_S, RULES, Rules
from controlplane.scheduler.fair_share import HALF_LIFE_S
from nsml.common.clock import inline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from controlplane.access.authority import Authority
    from controlplane.access.peers import Peers
    from controlplane.access.platform_keys import SharedKeys
    from controlplane.access.vault import Vault
    from controlplane.core.webhook_targets import Post
    from controlplane.domain.cluster import Restore
    from controlplane.history.sql.history import History
    from controlplane.objects.bucket_files import Bucket
    from controlplane.objects.interface import ObjectStore
    from controlplane.state.agent_connections import RelayEnd
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock, Offload

ARCHIVE_LOGS_AFTER_S: Final = 3600.0
COLLECT_AFTER_S: Final = 86_400.0
OPENS_HTTP: Final = "nsml down --keep-sessions, then nsml up --http 127.0.0.1:18555"
"""What makes a control plane that `nsml up` started answer over HTTP."""


class Relay(Protocol):
    """Where clients and agents of different machines meet (`controlplane.tunnels.relay_process`)."""

    def expect(self, tunnel_id: str, user: str) -> tuple[RelayEnd, RelayEnd] | None:
        """The ways of a client and of an agent who are to meet there; None while they cannot."""
        ...

    def forget(self, tunnel_id: str) -> None:
        """The tunnel is over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """What a control plane stands on; the simulation gives other ones than production.

    Attributes:
        keys: of a shared platform: follows them in the store.
        elapsed: seconds that go by also while the machine sleeps; None: those of `clock`.
        random_bytes: so many unpredictable bytes.
        restores: those that the platform has behind it, as its record says.
        run: for what takes long; nothing else may wait for it.
        disks: folders whose disk no call of ours speaks of when it is full, by what lies there:
            that of an etcd of our own.
        folders: where store, history and objects keep their files, those of them that do.
        peers: the other control planes.
        post: calls users' webhooks; None: nobody is called.
        relay: passes on bytes of tunnels; None: they pass through this process.
        bucket: which has the objects, if nodes read it themselves; None: they do not.
    """

    store: KeyValueStore
    history: History
    objects: ObjectStore
    authority: Authority
    vault: Vault
    clock: Clock
    random_bytes: Callable[[int], bytes]
    elapsed: Callable[[], float] | None = None
    run: Offload = inline
    disks: Mapping[str, Path] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    keys: SharedKeys | None = None
    peers: Peers = field(default_factory=Alone)
    restores: tuple[Restore, ...] = ()
    post: Post | None = None
    relay: Relay | None = None
    bucket: Bucket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """Who a control plane is.

    Attributes:
        member: unique among all control planes of one store.
        address: where agents and other control planes reach it.
        user_address: where other machines call with TLS; "" for nowhere.
        agent_address: where joined agents dial with mutual TLS; "" for nowhere.
        jump_address: where its jump host for ssh is reached; "" for nowhere.
        local_address: where programs of its own machine call; "" for nowhere.
        instance: of its data folder: another one with the same `member` is refused.
        coordination: "etcd" or "embedded", for display.
        archive_logs_after_s: how long after its end a session's logs stay in the history.
        collect_after_s: how long objects that nothing refers to are kept, once in their place and once aside; 0: for ever.
        keep_points_s, keep_levels_s: the same of its points and of their finest levels; 0: for good.
        keep_checkpoints: which ones sessions keep that name nothing, and whose projects do not; "": all.
        keep_files: whether sessions that ask for nothing keep the files of their working folder.
        keep_files_s, keep_files_by_default_s: how long files that were asked for are kept, and others; 0: as long as their sessions.
        in_place_roots: folders below which every user may add datasets in place.
        rules: of giving way.
        time_limits: of the classes of sessions.
        waste: what sessions may make of their devices.
        limits: what users, projects and sessions may take of the stores.
        floor_bytes: room of each store's disk that is left to the platform; None: by the disk's size, 0: none.
        history_bytes: how large the history's database may become where its disk is not known; 0: that is not known, either.
        audit_rows, audit_bytes: how large the audit trail may become; 0: no limit.
        settings: those that all control planes have in common, by name.
        opens_http: what makes it answer over HTTP, as advice for its administrator.
        certificates: files with certificates from elsewhere, by the setting that names each.
    """

    member: str
    version: str
    address: str = ""
    user_address: str = ""
    agent_address: str = ""
    jump_address: str = ""
    local_address: str = ""
    instance: str = ""
    coordination: str = "embedded"
    heartbeat_s: float = 2.0
    silent_after_s: float = 10.0
    lease_s: float = 3.0
    notice_s: float = NOTICE_S
    half_life_s: float = HALF_LIFE_S
    archive_logs_after_s: float = ARCHIVE_LOGS_AFTER_S
    collect_after_s: float = COLLECT_AFTER_S
    keep_points_s: float = 0.0
    keep_levels_s: float = 0.0
    keep_checkpoints: str = ""
    keep_files: bool = False
    keep_files_s: float = 0.0
    keep_files_by_default_s: float = 0.0
    in_place_roots: tuple[str, ...] = ()
    rules: Rules = RULES
    time_limits: TimeLimits = field(default_factory=lambda: NO_TIME_LIMITS)
    waste: WasteRule = field(default_factory=WasteRule)
    limits: UserLimits = field(default_factory=UserLimits)
    floor_bytes: int | None = None
    history_bytes: int = 0
    audit_rows: int = 2_000_000
    audit_bytes: int = 1 << 30
    settings: Mapping[str, str] = field(default_factory=dict)
    certificates: Mapping[str, Path] = field(default_factory=dict)
    opens_http: str = OPENS_HTTP
