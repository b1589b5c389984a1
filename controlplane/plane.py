"""One control plane put together: its parts, the services that they offer, its loops.

No sockets and no files here: `server.py` adds them, the simulation does without.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from controlplane.access.access_table import TABLE
from controlplane.access.accounts import Accounts
from controlplane.access.failed_attempts import FailureLimiter
from controlplane.access.identities import Identities
from controlplane.access.incoming_memory import Arriving
from controlplane.access.interceptor import AccessInterceptor
from controlplane.access.joining import Joining
from controlplane.access.peers import Alone
from controlplane.access.secret import Secret, new_secret
from controlplane.access.user_secrets import UserSecrets
from controlplane.access.webhooks import Webhooks
from controlplane.domain.conditions import ConditionName
from controlplane.domain.identity import UserCaller
from controlplane.domain.idle import WasteRule
from controlplane.domain.limits import UserLimits
from controlplane.health import Health
from controlplane.loops.archiving import Archiving
from controlplane.loops.audit_retention import Trimming
from controlplane.loops.compaction import Compacting, Reclaiming
from controlplane.loops.device_usage import Measuring
from controlplane.loops.dispatch import Ordering
from controlplane.loops.downsampling import Folding
from controlplane.loops.export import Exporting
from controlplane.loops.idle_detection import Wasting
from controlplane.loops.leader import LeaderLoop
from controlplane.loops.leader_eviction import Deposing
from controlplane.loops.liveness import Liveness
from controlplane.loops.node_maintenance import Upkeep
from controlplane.loops.object_gc import Collecting, Forgetting
from controlplane.loops.probing import Probing
from controlplane.loops.retention import Thinning
from controlplane.loops.scheduling import Scheduling
from controlplane.loops.upload_expiry import Settling
from controlplane.loops.usage_ledger import Accounting
from controlplane.loops.user_storage import CountingKept
from controlplane.loops.warning import Warnings
from controlplane.operations import warnings
from controlplane.operations.admission import Admission
from controlplane.operations.admitted_objects import AdmittedObjects
from controlplane.operations.agent_connections import AgentConnections
from controlplane.operations.auditing import Audit
from controlplane.operations.backups import Backups
from controlplane.operations.checkpoints import Checkpoints
from controlplane.operations.committer import Committer
from controlplane.operations.compare_and_swap import SessionWriter
from controlplane.operations.concurrency_limits import Turns
from controlplane.operations.conditions import own_findings
from controlplane.operations.content import Content
from controlplane.operations.datasets import Datasets
from controlplane.operations.export import Exporter
from controlplane.operations.free_space import HISTORY, OBJECTS, Database, FreeSpace
from controlplane.operations.idle_detection import IdleDetector
from controlplane.operations.ingest import Ingestor
from controlplane.operations.live_state import LiveState
from controlplane.operations.log_search import Searches
from controlplane.operations.logs import Logs
from controlplane.operations.lost_uploads import Overdue
from controlplane.operations.media import Shown
from controlplane.operations.members import Member, Members
from controlplane.operations.node_images import NodeImages
from controlplane.operations.node_states import NodeStates
from controlplane.operations.nodes import NodeKeeper
from controlplane.operations.object_gc import Collector
from controlplane.operations.owned_names import Holdings
from controlplane.operations.preempt import Requeuer
from controlplane.operations.projects import Projects
from controlplane.operations.readers import Readers
from controlplane.operations.references import References
from controlplane.operations.registration import Registrar
from controlplane.operations.remove import Remover
from controlplane.operations.replica_rights import Rights
from controlplane.operations.report_limits import Rationing
from controlplane.operations.session_listing import Listings
from controlplane.operations.session_summaries import LastReports
from controlplane.operations.stop import Stopper
from controlplane.operations.submit import Submitter
from controlplane.operations.tunnels import Tunnels
from controlplane.operations.update import Updater
from controlplane.operations.usage import Usages
from controlplane.operations.user_storage import Kept, KeptUsages
from controlplane.operations.validation import NO_LIMITS, TimeLimits
from controlplane.operations.views import OPENS_HTTP, Views
from controlplane.scheduler import NOTICE_S, RULES, Rules
from controlplane.scheduler.fair_share import HALF_LIFE_S
from controlplane.services.accounts import AccountServicer, Platform
from controlplane.services.agents import AgentServicer
from controlplane.services.audit import AuditServicer
from controlplane.services.backups import BackupServicer
from controlplane.services.checkpoints import CheckpointServicer
from controlplane.services.content import ContentServicer
from controlplane.services.datasets import DatasetServicer
from controlplane.services.errors import refuse
from controlplane.services.leader_forwarding import PassingOn, Relay
from controlplane.services.media import MediaServicer
from controlplane.services.monotonic_reads import Freshness
from controlplane.services.nodes import ClusterFacts, NodeServicer
from controlplane.services.projects import ProjectServicer
from controlplane.services.queue import QueueView
from controlplane.services.secrets import SecretServicer
from controlplane.services.session_views import Presenter
from controlplane.services.sessions import SessionOperations, SessionServicer
from controlplane.services.telemetry import TelemetryServicer
from controlplane.services.throttle import Throttle
from controlplane.services.views import ViewServicer
from controlplane.services.webhooks import WebhookServicer
from controlplane.store.election import Candidate
from nsml.clock import SteadyClock, inline
from nsml.concurrency import TaskGroup
from nsml.v1 import (
    accounts_pb2_grpc,
    agents_pb2_grpc,
    audit_pb2_grpc,
    backups_pb2_grpc,
    checkpoints_pb2_grpc,
    content_pb2_grpc,
    datasets_pb2_grpc,
    media_pb2_grpc,
    nodes_pb2_grpc,
    projects_pb2_grpc,
    secrets_pb2_grpc,
    sessions_pb2_grpc,
    telemetry_pb2_grpc,
    views_pb2_grpc,
    webhooks_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from controlplane.access.authority import Authority
    from controlplane.access.peers import Peers
    from controlplane.access.platform_keys import SharedKeys
    from controlplane.access.vault import Vault
    from controlplane.access.webhooks import Post
    from controlplane.access.wrapping import Wrapper
    from controlplane.domain.cluster import Restore
    from controlplane.history.interface import History, Telemetry
    from controlplane.objects.interface import ObjectStore
    from controlplane.store.interface import KeyValueStore
    from nsml.clock import Clock, Offload

_READING: Final = 4
"""Pages that are read from the history and made into messages at one time,"""
_READING_EACH: Final = 2
"""how many of these for one user,"""
_READING_LOGS: Final = 8
_READING_LOGS_EACH: Final = 4
"""The same of logs, which may come from the object store: waiting for that holds up nothing else."""
_WAIT_TO_READ: Final = 1_000
"""and calls of a user that wait to read: a dashboard follows hundreds of sessions."""
_TOLD_WITHIN_S: Final = 0.2
"""How long agents have to take in where the next leader is."""
_SUCCESSOR_WITHIN_S: Final = 0.3
"""How long streams go on while nobody else leads: who only reads needs no leader."""
_SUCCESSOR_FIRST_S: Final = 0.2
"""How long the successor is left alone to decide, before all who read and all agents come to it."""
_DISMISSED_WITHIN_S: Final = 0.3
"""How long it takes to send all who read there, one after the other."""
ARCHIVE_LOGS_AFTER_S: Final = 3600.0
COLLECT_AFTER_S: Final = 86_400.0
LEADERLESS_S: Final = 3.0
"""So long nobody leads before that is a condition."""

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """Who a control plane is.

    Attributes:
        member: unique among all control planes of one store.
        address: where agents and other control planes reach it.
        user_address: where other machines call with TLS; "" for nowhere.
        agent_address: where joined agents dial with mutual TLS; "" for nowhere.
        local_address: where programs of its own machine call; "" for nowhere.
        instance: of its data folder: another one with the same `member` is refused.
        coordination: "etcd" or "embedded", for display.
        archive_logs_after_s: how long after its end a session's logs stay in the history.
        collect_after_s: how long objects that nothing refers to are kept, once in their place and once aside; 0: for ever.
        keep_points_s, keep_levels_s: the same of its points and of their finest levels; 0: for good.
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
    rules: Rules = RULES
    time_limits: TimeLimits = field(default_factory=lambda: NO_LIMITS)
    waste: WasteRule = field(default_factory=WasteRule)
    limits: UserLimits = field(default_factory=UserLimits)
    floor_bytes: int | None = None
    history_bytes: int = 0
    audit_rows: int = 2_000_000
    audit_bytes: int = 1 << 30
    settings: Mapping[str, str] = field(default_factory=dict)
    certificates: Mapping[str, Path] = field(default_factory=dict)
    opens_http: str = OPENS_HTTP


def new_cluster_id(random_bytes: Callable[[int], bytes]) -> str:
    """An id that no other platform has."""
    return "c" + new_name(random_bytes)


def new_name(random_bytes: Callable[[int], bytes]) -> str:
    """16 characters of 80 random bits."""
    number = int.from_bytes(random_bytes(10), "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(0, 80, 5))


class ControlPlane:
    """All parts of one control plane.

    Args:
        cluster_id: of the platform that lives in the store.
    """

    def __init__(self, on: Backends, character: MemberConfig, cluster_id: str) -> None:
        self._log = structlog.get_logger("controlplane").bind(member=character.member)
        self.character = character
        self.cluster_id = cluster_id
        self._reading = Turns(
            "to read", slots=_READING, each=_READING_EACH, most_waiting=_WAIT_TO_READ
        )
        self._led_at = on.clock.monotonic()
        # Each part is made of those before it.
        self._make_ground(on)
        self._make_accounts()
        self._make_admission()
        self._make_nodes()
        self._make_content()
        self._make_sessions()
        self._make_leading()

    def _make_ground(self, on: Backends) -> None:
        """Store, history and objects, observed, and the live state."""
        character = self.character
        self.health = Health(
            store=on.store,
            history=on.history,
            objects=on.objects,
            clock=on.clock,
            disks=on.disks,
            folders=on.folders,
        )
        # Token expiry uses the wall clock; scheduling uses the monotonic clock.
        self._wall, self._steady = on.clock, SteadyClock(on.clock, on.elapsed)
        self.space = FreeSpace(
            # An etcd of our own has a disk of its own, of which the store says nothing.
            folders={**on.folders, **on.disks},
            store=on.store,
            conditions=self.health.conditions,
            clock=on.clock,
            floor_bytes=character.floor_bytes,
            database=Database(self.health.history.size, character.history_bytes),
        )
        self._on = replace(
            on,
            store=self.health.store,
            history=self.health.history,
            objects=self.health.objects,
            clock=self._steady,
        )
        self.state = LiveState(self._on.store, self._steady, half_life_s=character.half_life_s)

    def _make_accounts(self) -> None:
        """Accounts, their secrets, and the audit trail."""
        on, wall = self._on, self._wall
        store, history = on.store, on.history
        self.identities = Identities(store, wall)
        self.accounts = Accounts(
            store,
            self.identities,
            clock=wall,
            random_bytes=on.random_bytes,
            owned=Holdings(store=store, state=self.state, history=history).of,
        )
        self._joining = Joining(store, on.authority, clock=wall, random_bytes=on.random_bytes)
        self.secrets = UserSecrets(store, on.vault, clock=wall)
        self.webhooks = Webhooks(self.secrets, on.post)
        self.limiter = FailureLimiter(wall)
        self._audit = Audit(
            ledger=history.ledger, clock=wall, is_low=lambda: self.space.is_low(HISTORY)
        )

    def _make_admission(self) -> None:
        """Limits of what users keep and submit."""
        on, character, history = self._on, self.character, self._on.history
        self.kept = Kept(
            character.limits,
            history,
            on.clock,
            capacity=partial(self.space.size_bytes, OBJECTS),
            has_others=self.identities.has_others,
            own_limit=self.identities.kept_limit,
        )
        self.admission = Admission(
            character.limits,
            usage=self.state.usage,
            clock=on.clock,
            space=self.space,
            kept=self.kept,
            has_others=self.identities.has_others,
        )

    def _make_nodes(self) -> None:
        """Control planes, nodes, and connections to them."""
        on, character, store, clock = self._on, self.character, self._on.store, self._steady
        self.committer = Committer(
            store=store, state=self.state, clock=clock, leader=self._leader_address
        )
        self.members = Members(
            store,
            self._member(),
            clock=clock,
            ttl_s=character.lease_s,
            findings=lambda: own_findings(self.health.conditions.standing()),
        )
        self.contacts = AgentConnections(state=self.state, clock=clock)
        self.keeper = NodeKeeper(
            state=self.state,
            committer=self.committer,
            contacts=self.contacts,
            clock=clock,
            notice_s=character.notice_s,
        )
        self.node_states = NodeStates(
            state=self.state,
            contacts=self.contacts,
            leads=lambda: bool(self.leading.term),
            silent_after_s=character.silent_after_s,
            clock=clock,
        )
        self.tunnels = Tunnels(contacts=self.contacts, random_bytes=on.random_bytes, clock=clock)
        self.node_images = NodeImages(
            contacts=self.contacts, state=self.state, random_bytes=on.random_bytes
        )

    def _make_content(self) -> None:
        """Datasets and code."""
        on, history, clock = self._on, self._on.history, self._steady
        self.references = References(state=self.state, history=history)
        self.admitted = AdmittedObjects(on.objects, self.admission, self.state)
        self.content = Content(
            objects=self.admitted,
            history=history,
            state=self.state,
            clock=on.clock,
            admission=self.admission,
            run=on.run,
        )
        self.datasets = Datasets(
            history=history, content=self.content, clock=clock, users_of=self.state.users_of
        )

    def _make_sessions(self) -> None:
        """Sessions: submission, scheduling, and what is shown of them."""
        on, character, clock = self._on, self.character, self._steady
        store, history = on.store, on.history
        self.scheduling = Scheduling(
            state=self.state,
            committer=self.committer,
            clock=clock,
            rules=replace(character.rules, notice_s=character.notice_s),
        )
        self.submitter = Submitter(
            store=store,
            state=self.state,
            history=history,
            datasets=self.datasets,
            content=self.content,
            secrets=self.secrets,
            clock=clock,
            new_id=lambda: "s" + new_name(on.random_bytes),
            answers=self.scheduling.known,
            time_limits=character.time_limits,
            admission=self.admission,
        )
        self.projects = Projects(store=store, state=self.state, users=self.accounts, clock=clock)
        self.logs = Logs(history=history, objects=on.objects, run=on.run)
        self.usages = Usages(
            state=self.state,
            history=history,
            clock=clock,
            idle_percent=character.waste.percent,
        )
        self._reports = LastReports(
            state=self.state, history=history, usages=self.usages, clock=clock
        )
        self.views = Views(
            references=self.references,
            clock=clock,
            still=self._still,
            new_id=lambda: "v" + new_name(on.random_bytes),
            new_secret=lambda: new_secret(on.random_bytes).text,
            fingerprint=lambda text: Secret(text).fingerprint,
            opens_http=character.opens_http,
        )

    def _make_leading(self) -> None:
        """Election, the leader's work, and calls that are passed on to it."""
        on, character, store, clock = self._on, self.character, self._on.store, self._steady
        history = on.history
        self.process = new_name(on.random_bytes)
        self.collector = Collector(
            objects=on.objects,
            history=history,
            state=self.state,
            grace_s=character.collect_after_s,
            may=lambda: bool(self.leading.term),
            term=lambda: self.leading.term,
            users=self.identities.ids,
            run=on.run,
        )
        self.leading = self._leader_loop()
        self._deposing = Deposing(store=store, leading=self.leading, peers=on.peers, clock=clock)
        self._relay = Relay(leading=self.leading, peers=on.peers)
        self._passing_on = PassingOn(leading=self.leading, peers=on.peers, clock=clock)

    def _member(self) -> Member:
        who = self.character
        return Member(
            name=who.member,
            version=who.version,
            user_address=who.user_address,
            agent_address=who.agent_address,
            local_address=who.local_address or ("" if who.agent_address else who.address),
            started_at=self._on.clock.time(),
            instance=who.instance,
            settings=who.settings,
        )

    async def _still(self, token: str) -> UserCaller | None:
        """The user who stands behind a token now."""
        who = await self.identities.of_secret(Secret(token), thorough=True)
        return who if isinstance(who, UserCaller) else None

    def _leader_address(self) -> str:
        return self.leading.leader_address()

    def _leader_loop(self) -> LeaderLoop:
        on, who = self._on, self.character
        exporter = Exporter(
            history=on.history,
            committer=self.committer,
            usages=self.usages,
            term=lambda: self.leading.term,
        )
        overdue = Overdue(history=on.history, references=self.references, clock=on.clock)
        compacting = Compacting(
            store=on.store, revision=lambda: self.state.revision, clock=on.clock
        )
        loops = (
            # The embedded store forgets by itself.
            *((compacting,) if who.coordination == "etcd" else ()),
            *(
                (Collecting(collector=self.collector, clock=on.clock),)
                if who.collect_after_s
                else ()
            ),
            CountingKept(collector=self.collector, kept=self.kept, clock=on.clock),
            Forgetting(content=self.content, clock=on.clock),
            self.scheduling,
            Ordering(state=self.state, contacts=self.contacts),
            Upkeep(state=self.state, keeper=self.keeper, clock=on.clock),
            Exporting(state=self.state, exporter=exporter, clock=on.clock),
            Settling(overdue=overdue, clock=on.clock),
            Archiving(
                history=on.history,
                logs=self.logs,
                clock=on.clock,
                after_s=who.archive_logs_after_s,
            ),
            Thinning(
                history=on.history,
                clock=on.clock,
                points_s=who.keep_points_s,
                levels_s=who.keep_levels_s,
            ),
            Trimming(
                ledger=on.history.ledger,
                clock=on.clock,
                most_rows=who.audit_rows,
                most_bytes=who.audit_bytes,
            ),
            Wasting(self._wastes(), self.webhooks, clock=on.clock),
            Liveness(
                state=self.state,
                committer=self.committer,
                contacts=self.contacts,
                clock=on.clock,
                silent_after_s=who.silent_after_s,
            ),
        )
        return LeaderLoop(
            store=on.store,
            state=self.state,
            committer=self.committer,
            contacts=self.contacts,
            clock=on.clock,
            candidate=Candidate(
                member=who.member,
                address=who.address,
                is_tls=bool(who.agent_address),
                process=self.process,
            ),
            ttl_s=who.lease_s,
            loops=[loop.run for loop in loops],
            elected=self._go_on_from_what_is_written,
        )

    def _go_on_from_what_is_written(self) -> None:
        """Nothing that a former leader did lies ahead of us, whatever its clock said."""
        self._steady.reach(self.state.newest_instant())

    async def run(self) -> None:
        """Follow the store, take submissions and lead when elected; until cancelled."""
        async with TaskGroup() as group:
            group.create_task(self.identities.run(), name="identities")
            group.create_task(self.state.follow(), name="state")
            group.create_task(self.members.run(), name="members")
            group.create_task(self.submitter.run(), name="submit")
            group.create_task(self._audit.run(), name="audit")
            group.create_task(self.secrets.keep_renewed(), name="secrets")
            if self._on.keys is not None:
                group.create_task(self._on.keys.run(), name="keys")
            group.create_task(self._accounting().run(), name="accounting")
            group.create_task(self._folding().run(), name="folding")
            group.create_task(self._reports.run(), name="reports")
            group.create_task(self.leading.run(), name="leader")
            group.create_task(self._deposing.run(), name="deposing")
            group.create_task(self._probing().run(), name="probing")
            group.create_task(self.space.run(), name="space")
            group.create_task(self.kept.run(), name="kept")
            group.create_task(self._measuring().run(), name="measuring")
            group.create_task(self._reclaiming().run(), name="reclaiming")
            group.create_task(self._warnings().run(), name="warnings")

    def _wastes(self) -> IdleDetector:
        return IdleDetector(
            state=self.state,
            history=self._on.history,
            usages=self.usages,
            committer=self.committer,
            rule=self.character.waste,
            clock=self._on.clock,
        )

    def _measuring(self) -> Measuring:
        on = self._on
        leads = lambda: bool(self.leading.term)  # noqa: E731
        return Measuring(self.usages, on.history, leads=leads, clock=on.clock)

    def _accounting(self) -> Accounting:
        on = self._on
        return Accounting(state=self.state, history=on.history, clock=on.clock)

    def _folding(self) -> Folding:
        return Folding(history=self._on.history, clock=self._on.clock)

    def _reclaiming(self) -> Reclaiming:
        return Reclaiming(
            store=self._on.store,
            conditions=self.health.conditions,
            touch=self.health.touch,
            turn=self._turn,
            clock=self._on.clock,
        )

    def _warnings(self) -> Warnings:
        joining = self._joining
        return Warnings(
            self.health.conditions,
            self._on.store,
            looks=(
                (
                    ConditionName.SETTINGS_DIFFER,
                    lambda: warnings.differing_settings(self.members.everyone()),
                ),
                (
                    ConditionName.CLOCK_WRONG,
                    lambda: warnings.wrong_clocks(self.contacts.clocks_ahead_s()),
                ),
                (
                    ConditionName.JOIN_REFUSED,
                    lambda: warnings.refused_joins(
                        joining.refused, joining.refused_at, joining.last_refusal, self._wall.time()
                    ),
                ),
            ),
            ends=lambda: (self.certificate_ends(), {"authority": self._on.authority.expires_at}),
            files=self.character.certificates,
            run=self._on.run,
            wall=self._wall,
            clock=self._on.clock,
        )

    @property
    def joins_refused(self) -> int:
        """Attempts to join that were refused here."""
        return self._joining.refused

    def certificate_ends(self) -> dict[str, float]:
        """Ends of nodes' certificates, by node, Unix seconds; 0 where that is not known."""
        return {name: self.identities.certificate_ends(name) for name in self.state.nodes}

    def _turn(self) -> int:
        """How many control planes act before us where one is enough: the leader does first."""
        if self.leading.term:
            return 0
        names = [one.name for one in self.members.everyone()]
        others = [name for name in names if name < self.character.member]
        return len(others) + (self.leading.leader is not None)

    def _probing(self) -> Probing:
        return Probing(
            self.health.parts(), clock=self._on.clock, looks=(self.health.look_at_disks, self._look)
        )

    def _look(self) -> None:
        """Nobody leads: of that no call tells. While the store is gone nobody can.

        Between two leaders there is always a moment without one, which is nothing to tell of.
        """
        conditions, now = self.health.conditions, self._on.clock.monotonic()
        if self.leading.leader is not None:
            self._led_at = now
        is_gone = conditions.stands(ConditionName.COORDINATION_GONE)
        stands = now - self._led_at >= LEADERLESS_S and not is_gone
        conditions.set(ConditionName.NO_LEADER, stands=stands)

    def leave(self) -> None:
        """Lead no more from this moment on; `resign` does all the rest."""
        self.leading.leave()

    async def resign(self) -> None:
        """Have another one lead, and end all streams: their callers go on there.

        May take as long as the store takes to answer. `run` goes on, for calls that are not over.
        """
        async with TaskGroup() as group:
            group.create_task(self.leading.resign(), name="leader.resign")
            await self._successor_first()
            has_successor = self.leading.elsewhere() is not None
            within_s = _DISMISSED_WITHIN_S if has_successor else 0.0
            await self._passing_on.dismiss(has_handed_over=False, within_s=within_s)
        await self.leading.hand_over()
        # Agents that are told the successor's address go there; all others only hear that we stop.
        until = self._on.clock.monotonic() + _TOLD_WITHIN_S
        while any(self.contacts.links()) and self._on.clock.monotonic() < until:
            await self._on.clock.sleep(_TOLD_WITHIN_S / 20)
        await self._passing_on.dismiss(has_handed_over=True)

    async def _successor_first(self) -> None:
        """Let streams go on until somebody else leads, if anybody is there who can."""
        others = (one.name != self.character.member for one in self.members.everyone())
        if self.leading.elsewhere() is None and any(others):
            await self.leading.settled(_SUCCESSOR_WITHIN_S)
            if self.leading.elsewhere() is not None:
                await self._on.clock.sleep(_SUCCESSOR_FIRST_S)

    def interceptors(self) -> tuple[Wrapper, ...]:
        """What every call passes, in this order; the first is the door."""
        door = AccessInterceptor(
            self.identities,
            TABLE,
            limiter=self.limiter,
            refuse=refuse,
            audit=self._audit,
            arriving=Arriving(self.character.limits.request_bytes, self.admission.refused),
        )
        return door, Throttle(self.admission), self._passing_on, Freshness(self.state)

    def add_services(self, server: Any) -> None:
        """Offer every service on a server, or on whatever takes generic handlers."""
        on = self._on
        presenter = Presenter(
            state=self.state,
            history=on.history,
            reports=self._reports,
            waiting=self.scheduling.waiting,
            usages=self.usages,
            kept=self.kept,
            clock=on.clock,
        )
        rights = Rights(references=self.references, state=self.state)
        checkpoints = Checkpoints(
            history=on.history,
            content=self.content,
            rights=rights,
            writer=SessionWriter(store=on.store, state=self.state),
        )
        shown = Shown(history=on.history, content=self.content, rights=rights)
        services: list[tuple[Any, Any]] = [
            (
                sessions_pb2_grpc.add_SessionServiceServicer_to_server,
                SessionServicer(self._session_operations(), presenter),
            ),
            (agents_pb2_grpc.add_AgentServiceServicer_to_server, self._agents(rights)),
            (nodes_pb2_grpc.add_NodeServiceServicer_to_server, self._nodes()),
            (
                content_pb2_grpc.add_ContentServiceServicer_to_server,
                ContentServicer(self.content, self.admitted),
            ),
            (
                datasets_pb2_grpc.add_DatasetServiceServicer_to_server,
                DatasetServicer(self.datasets, self.content, self._reading),
            ),
            (
                checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server,
                CheckpointServicer(checkpoints, self.references, self.content, self._reading),
            ),
            (
                media_pb2_grpc.add_MediaServiceServicer_to_server,
                MediaServicer(shown, self.references, self.content, self._reading),
            ),
            (accounts_pb2_grpc.add_AccountServiceServicer_to_server, self._accounts()),
            (
                secrets_pb2_grpc.add_SecretServiceServicer_to_server,
                SecretServicer(self.secrets),
            ),
            (
                webhooks_pb2_grpc.add_WebhookServiceServicer_to_server,
                WebhookServicer(self.webhooks),
            ),
            (
                projects_pb2_grpc.add_ProjectServiceServicer_to_server,
                ProjectServicer(self.projects, self.state, clock=on.clock),
            ),
            (telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server, self._telemetry()),
            (views_pb2_grpc.add_ViewServiceServicer_to_server, ViewServicer(self.views)),
            (backups_pb2_grpc.add_BackupServiceServicer_to_server, self._backups()),
            (
                audit_pb2_grpc.add_AuditServiceServicer_to_server,
                AuditServicer(self._audit, on.history.ledger, self._reading),
            ),
        ]
        for add, servicer in services:
            add(servicer, server)

    @property
    def telemetry(self) -> Telemetry:
        """What was read of nodes and devices."""
        return self._on.history.telemetry

    @property
    def clock(self) -> Clock:
        """The one that what is decided goes by."""
        return self._on.clock

    def _telemetry(self) -> TelemetryServicer:
        return TelemetryServicer(
            state=self.state,
            history=self._on.history,
            references=self.references,
            usages=self.usages,
            clock=self._on.clock,
            reading=self._reading,
        )

    def _backups(self) -> BackupServicer:
        on = self._on
        return BackupServicer(
            Backups(store=on.store, history=on.history, objects=on.objects, clock=on.clock)
        )

    def _session_operations(self) -> SessionOperations:
        on = self._on
        writer = SessionWriter(store=on.store, state=self.state, admission=self.admission)
        followers = Readers(
            state=self.state,
            history=on.history,
            logs=self.logs,
            reading=self._reading,
            reading_logs=Turns(
                "to read logs",
                slots=_READING_LOGS,
                each=_READING_LOGS_EACH,
                most_waiting=_WAIT_TO_READ,
            ),
        )
        return SessionOperations(
            submitter=self.submitter,
            references=self.references,
            listings=Listings(state=self.state, history=on.history, run=on.run),
            stopper=Stopper(writer=writer, clock=on.clock),
            requeuer=Requeuer(writer, on.clock, notice_s=self.character.notice_s),
            remover=Remover(state=self.state, history=on.history),
            updater=Updater(writer=writer, references=self.references, history=on.history),
            followers=followers,
            reports=self._reports,
            searches=Searches(followers=followers, run=on.run),
            tunnels=self.tunnels,
            relay=self._relay,
            queue=QueueView(
                state=self.state,
                clock=on.clock,
                answers=self.scheduling.known,
                projects=self.projects,
                users=self.accounts,
                time_limits=self.character.time_limits,
            ),
            history=on.history,
            content=self.content,
            state=self.state,
            clock=on.clock,
            reading=self._reading,
        )

    def _agents(self, rights: Rights) -> AgentServicer:
        on, who = self._on, self.character
        return AgentServicer(
            state=self.state,
            committer=self.committer,
            contacts=self.contacts,
            registrar=Registrar(
                state=self.state,
                committer=self.committer,
                contacts=self.contacts,
                keeper=self.keeper,
                rights=rights,
                clock=on.clock,
                cluster_id=self.cluster_id,
                restores=on.restores,
            ),
            ingestor=Ingestor(
                history=on.history, rights=rights, rationing=Rationing(self.admission)
            ),
            tunnels=self.tunnels,
            images=self.node_images,
            secrets=self.secrets,
            clock=on.clock,
            cluster_id=self.cluster_id,
            heartbeat_s=who.heartbeat_s,
            silent_after_s=who.silent_after_s,
            term=lambda: self.leading.term,
            leader_address=self._leader_address,
            relay=self._relay,
            addresses=self._agent_addresses,
            wall=self._wall.time,
        )

    def _agent_addresses(self) -> tuple[str, ...]:
        """Where agents reach the control planes that serve them."""
        own = self.character.agent_address
        others = (one.agent_address for one in self.members.everyone())
        return tuple(dict.fromkeys(filter(None, (own, *others))))

    def _nodes(self) -> NodeServicer:
        facts = ClusterFacts(
            version=self.character.version,
            cluster_id=self.cluster_id,
            coordination=self.character.coordination,
            members=self.members,
            leader=lambda: self.leading.leader,
            leads=lambda: bool(self.leading.term),
            conditions=self.health.conditions,
            known_at=self.health.known_at,
            wall=self._wall.time,
        )
        return NodeServicer(
            state=self.state,
            history=self._on.history,
            contacts=self.contacts,
            keeper=self.keeper,
            usages=self.usages,
            facts=facts,
            states=self.node_states,
            joining=self._joining,
            identities=self.identities,
            images=self.node_images,
        )

    def _accounts(self) -> AccountServicer:
        platform = Platform(
            cluster_id=self.cluster_id,
            user_address=self.character.user_address,
            agent_address=self.character.agent_address,
        )
        return AccountServicer(
            self.accounts,
            self._joining,
            self.projects,
            usages=KeptUsages(
                kept=self.kept, history=self._on.history, state=self.state, users=self.accounts
            ),
            platform=platform,
            limiter=self.limiter,
        )
