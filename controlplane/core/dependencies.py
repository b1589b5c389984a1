"""Dependencies of a control plane, and its configuration."""

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
    from controlplane.core.shared_clock import SharedClock
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
"""How to enable HTTP in a control plane started by `nsml up`."""


class Relay(Protocol):
    """Relay between clients and agents of different machines (`controlplane.tunnels.relay_process`)."""

    def expect(self, tunnel_id: str, user: str) -> tuple[RelayEnd, RelayEnd] | None:
        """Return the ends for a client and an agent; None while the relay is unavailable."""
        ...

    def forget(self, tunnel_id: str) -> None:
        """Remove an ended tunnel."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """Dependencies of a control plane; the simulation has other ones than production.

    Attributes:
        keys: of a shared platform: follows them in the store.
        shared_clock: of a database that several control planes may share; None: the history is in a file.
        elapsed: seconds, including the machine's sleep; None: as of `clock`.
        random_bytes: returns so many unpredictable bytes.
        restores: earlier restores of the platform, from its record.
        run: for slow work, which must not block anything else.
        disks: folders on disks whose lack of space no call of ours reports, by content:
            that of an etcd of our own.
        folders: of store, history and objects, as far as these keep files.
        peers: the other control planes.
        post: calls users' webhooks; None: none are called.
        relay: forwards bytes of tunnels; None: they pass through this process.
        bucket: has the objects, if nodes read it themselves; None: they do not.
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
    shared_clock: SharedClock | None = None
    peers: Peers = field(default_factory=Alone)
    restores: tuple[Restore, ...] = ()
    post: Post | None = None
    relay: Relay | None = None
    bucket: Bucket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """Identity and settings of a control plane.

    Attributes:
        member: unique among all control planes of one store.
        address: for agents and other control planes.
        user_address: for other machines, with TLS; "": none.
        agent_address: for joined agents, with mutual TLS; "": none.
        jump_address: of its jump host for ssh; "": none.
        local_address: for programs on its own machine; "": none.
        instance: of its data folder: another one with the same `member` is refused.
        coordination: "etcd" or "embedded", for display.
        archive_logs_after_s: how long after its end a session's logs stay in the history.
        collect_after_s: how long unreferenced objects are kept, first in place and then aside; 0: for ever.
        keep_points_s, keep_levels_s: how long after its end a session's points and their finest levels are kept; 0: for ever.
        keep_checkpoints: default for sessions, if neither they nor their project set it; "": all.
        keep_files: whether sessions keep the files of their working folder by default.
        keep_files_s, keep_files_by_default_s: how long files kept by request, and by default, are kept; 0: as long as their sessions.
        in_place_roots: folders in which every user may add datasets in place.
        rules: of preemption.
        time_limits: by class of sessions.
        waste: limits of idle devices.
        limits: of users, projects and sessions in the stores.
        floor_bytes: reserve of each store's disk for the platform; None: by the disk's size, 0: none.
        history_bytes: maximum size of the history's database if its disk is unknown; 0: unknown, too.
        audit_rows, audit_bytes: maximum size of the audit trail; 0: no limit.
        settings: those that must be equal on all control planes, by name.
        opens_http: how to enable HTTP, as advice for its administrator.
        certificates: files with external certificates, by their settings.
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
