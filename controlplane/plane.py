"""One control plane put together: its parts, the services that they offer, its loops.

No sockets and no files here: `server.py` adds them, the simulation does without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from controlplane.access.access_table import TABLE
from controlplane.access.incoming_memory import Arriving
from controlplane.access.interceptor import AccessInterceptor
from controlplane.access.joining import Joining
from controlplane.access.secret import Secret, new_secret
from controlplane.access.user_secrets import UserSecrets
from controlplane.access.webhooks import Webhooks
from controlplane.core.core import WAIT_TO_READ, Core
from controlplane.core.ids import new_id
from controlplane.domain.conditions import ConditionName
from controlplane.domain.identity import UserCaller
from controlplane.loops.archiving import Archiving
from controlplane.loops.audit_retention import Trimming
from controlplane.loops.compaction import Compacting, Reclaiming
from controlplane.loops.device_usage import Measuring
from controlplane.loops.dispatch import Ordering
from controlplane.loops.downsampling import Folding
from controlplane.loops.export import Exporting
from controlplane.loops.idle_detection import Wasting
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
from controlplane.operations.admitted_objects import AdmittedObjects
from controlplane.operations.backups import Backups
from controlplane.operations.checkpoints import Checkpoints
from controlplane.operations.compare_and_swap import SessionWriter
from controlplane.operations.concurrency_limits import Turns
from controlplane.operations.content import Content
from controlplane.operations.datasets import Datasets
from controlplane.operations.export import Exporter
from controlplane.operations.idle_detection import IdleDetector
from controlplane.operations.ingest import Ingestor
from controlplane.operations.log_search import Searches
from controlplane.operations.logs import Logs
from controlplane.operations.lost_uploads import Overdue
from controlplane.operations.media import Shown
from controlplane.operations.node_images import NodeImages
from controlplane.operations.node_states import NodeStates
from controlplane.operations.nodes import NodeKeeper
from controlplane.operations.object_gc import Collector
from controlplane.operations.preempt import Requeuer
from controlplane.operations.projects import Projects
from controlplane.operations.readers import Readers
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
from controlplane.operations.user_storage import KeptUsages
from controlplane.operations.views import Views
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
    from collections.abc import Awaitable, Callable

    from controlplane.access.wrapping import Wrapper
    from controlplane.core.dependencies import Backends, MemberConfig

_READING_LOGS: Final = 8
_READING_LOGS_EACH: Final = 4
"""The same of logs, which may come from the object store: waiting for that holds up nothing else."""
_TOLD_WITHIN_S: Final = 0.2
"""How long agents have to take in where the next leader is."""
_SUCCESSOR_WITHIN_S: Final = 0.3
"""How long streams go on while nobody else leads: who only reads needs no leader."""
_SUCCESSOR_FIRST_S: Final = 0.2
"""How long the successor is left alone to decide, before all who read and all agents come to it."""
_DISMISSED_WITHIN_S: Final = 0.3
"""How long it takes to send all who read there, one after the other."""
LEADERLESS_S: Final = 3.0
"""So long nobody leads before that is a condition."""


class ControlPlane:
    """All parts of one control plane.

    Args:
        cluster_id: of the platform that lives in the store.
    """

    def __init__(self, on: Backends, config: MemberConfig, cluster_id: str) -> None:
        self.core = core = Core(on, config, cluster_id)
        self._led_at = core.clock.monotonic()
        # Each part is made of those before it.
        self._make_accounts()
        self._make_nodes()
        self._make_content()
        self._make_sessions()
        self._make_leading()

    def _make_accounts(self) -> None:
        """Nodes that join, users' secrets and webhooks."""
        core, on = self.core, self.core.backends
        self._joining = Joining(
            core.store, on.authority, clock=core.wall, random_bytes=on.random_bytes
        )
        self.secrets = UserSecrets(core.store, on.vault, clock=core.wall)
        self.webhooks = Webhooks(self.secrets, on.post)

    def _make_nodes(self) -> None:
        """Control planes, nodes, and connections to them."""
        on, character, clock = self.core.backends, self.core.config, self.core.clock
        self.keeper = NodeKeeper(
            state=self.core.state,
            committer=self.core.committer,
            contacts=self.core.contacts,
            clock=clock,
            notice_s=character.notice_s,
        )
        self.node_states = NodeStates(
            state=self.core.state,
            contacts=self.core.contacts,
            leads=self.core.leads,
            silent_after_s=character.silent_after_s,
            clock=clock,
        )
        self.tunnels = Tunnels(
            contacts=self.core.contacts, random_bytes=on.random_bytes, clock=clock
        )
        self.node_images = NodeImages(
            contacts=self.core.contacts, state=self.core.state, random_bytes=on.random_bytes
        )

    def _make_content(self) -> None:
        """Datasets and code."""
        on, history, clock = self.core.backends, self.core.history, self.core.clock
        self.admitted = AdmittedObjects(on.objects, self.core.admission, self.core.state)
        self.content = Content(
            objects=self.admitted,
            history=history,
            state=self.core.state,
            clock=on.clock,
            admission=self.core.admission,
            run=self.core.offload,
        )
        self.datasets = Datasets(
            history=history, content=self.content, clock=clock, users_of=self.core.state.users_of
        )

    def _make_sessions(self) -> None:
        """Sessions: submission, scheduling, and what is shown of them."""
        on, character, clock = self.core.backends, self.core.config, self.core.clock
        store, history = on.store, on.history
        self.scheduling = Scheduling(
            state=self.core.state,
            committer=self.core.committer,
            clock=clock,
            rules=replace(character.rules, notice_s=character.notice_s),
        )
        self.submitter = Submitter(
            store=store,
            state=self.core.state,
            history=history,
            datasets=self.datasets,
            content=self.content,
            secrets=self.secrets,
            clock=clock,
            new_id=lambda: "s" + new_id(on.random_bytes),
            answers=self.scheduling.known,
            time_limits=character.time_limits,
            admission=self.core.admission,
        )
        self.projects = Projects(
            store=store, state=self.core.state, users=self.core.accounts, clock=clock
        )
        self.logs = Logs(history=history, objects=on.objects, run=self.core.offload)
        self.usages = Usages(
            state=self.core.state,
            history=history,
            clock=clock,
            idle_percent=character.waste.percent,
        )
        self._reports = LastReports(
            state=self.core.state, history=history, usages=self.usages, clock=clock
        )
        self.views = Views(
            references=self.core.references,
            clock=clock,
            still=self._still,
            new_id=lambda: "v" + new_id(on.random_bytes),
            new_secret=lambda: new_secret(on.random_bytes).text,
            fingerprint=lambda text: Secret(text).fingerprint,
            opens_http=character.opens_http,
        )

    def _make_leading(self) -> None:
        """Election, the leader's work, and calls that are passed on to it."""
        on, character, store, clock = (
            self.core.backends,
            self.core.config,
            self.core.store,
            self.core.clock,
        )
        history = on.history
        self.collector = Collector(
            objects=on.objects,
            history=history,
            state=self.core.state,
            grace_s=character.collect_after_s,
            may=self.core.leads,
            term=self.core.term,
            users=self.core.identities.ids,
            run=self.core.offload,
        )
        self._deposing = Deposing(
            store=store, leading=self.core.leading, peers=on.peers, clock=clock
        )
        self._relay = Relay(leading=self.core.leading, peers=on.peers)
        self._passing_on = PassingOn(leading=self.core.leading, peers=on.peers, clock=clock)

    async def _still(self, token: str) -> UserCaller | None:
        """The user who stands behind a token now."""
        who = await self.core.identities.of_secret(Secret(token), thorough=True)
        return who if isinstance(who, UserCaller) else None

    def _leader_loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        on, who = self.core.backends, self.core.config
        exporter = Exporter(
            history=on.history,
            committer=self.core.committer,
            usages=self.usages,
            term=self.core.term,
        )
        overdue = Overdue(history=on.history, references=self.core.references, clock=on.clock)
        compacting = Compacting(
            store=on.store, revision=lambda: self.core.state.revision, clock=on.clock
        )
        loops = (
            # The embedded store forgets by itself.
            *((compacting,) if who.coordination == "etcd" else ()),
            *(
                (Collecting(collector=self.collector, clock=on.clock),)
                if who.collect_after_s
                else ()
            ),
            CountingKept(collector=self.collector, kept=self.core.kept, clock=on.clock),
            Forgetting(content=self.content, clock=on.clock),
            self.scheduling,
            Ordering(state=self.core.state, contacts=self.core.contacts),
            Upkeep(state=self.core.state, keeper=self.keeper, clock=on.clock),
            Exporting(state=self.core.state, exporter=exporter, clock=on.clock),
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
                state=self.core.state,
                committer=self.core.committer,
                contacts=self.core.contacts,
                clock=on.clock,
                silent_after_s=who.silent_after_s,
            ),
        )
        return tuple(loop.run for loop in loops)

    async def run(self) -> None:
        """Follow the store, take submissions and lead when elected; until cancelled."""
        async with TaskGroup() as group:
            group.create_task(self.core.identities.run(), name="identities")
            group.create_task(self.core.state.follow(), name="state")
            group.create_task(self.core.members.run(), name="members")
            group.create_task(self.submitter.run(), name="submit")
            group.create_task(self.core.audit.run(), name="audit")
            group.create_task(self.secrets.keep_renewed(), name="secrets")
            if self.core.backends.keys is not None:
                group.create_task(self.core.backends.keys.run(), name="keys")
            group.create_task(self._accounting().run(), name="accounting")
            group.create_task(self._folding().run(), name="folding")
            group.create_task(self._reports.run(), name="reports")
            group.create_task(self.core.leading.run(self._leader_loops()), name="leader")
            group.create_task(self._deposing.run(), name="deposing")
            group.create_task(self._probing().run(), name="probing")
            group.create_task(self.core.space.run(), name="space")
            group.create_task(self.core.kept.run(), name="kept")
            group.create_task(self._measuring().run(), name="measuring")
            group.create_task(self._reclaiming().run(), name="reclaiming")
            group.create_task(self._warnings().run(), name="warnings")

    def _wastes(self) -> IdleDetector:
        return IdleDetector(
            state=self.core.state,
            history=self.core.history,
            usages=self.usages,
            committer=self.core.committer,
            rule=self.core.config.waste,
            clock=self.core.clock,
        )

    def _measuring(self) -> Measuring:
        on = self.core.backends
        return Measuring(self.usages, on.history, leads=self.core.leads, clock=on.clock)

    def _accounting(self) -> Accounting:
        on = self.core.backends
        return Accounting(state=self.core.state, history=on.history, clock=on.clock)

    def _folding(self) -> Folding:
        return Folding(history=self.core.history, clock=self.core.clock)

    def _reclaiming(self) -> Reclaiming:
        return Reclaiming(
            store=self.core.store,
            conditions=self.core.health.conditions,
            touch=self.core.health.touch,
            turn=self._turn,
            clock=self.core.clock,
        )

    def _warnings(self) -> Warnings:
        joining = self._joining
        return Warnings(
            self.core.health.conditions,
            self.core.store,
            looks=(
                (
                    ConditionName.SETTINGS_DIFFER,
                    lambda: warnings.differing_settings(self.core.members.everyone()),
                ),
                (
                    ConditionName.CLOCK_WRONG,
                    lambda: warnings.wrong_clocks(self.core.contacts.clocks_ahead_s()),
                ),
                (
                    ConditionName.JOIN_REFUSED,
                    lambda: warnings.refused_joins(
                        joining.refused,
                        joining.refused_at,
                        joining.last_refusal,
                        self.core.wall.time(),
                    ),
                ),
            ),
            ends=lambda: (
                self.certificate_ends(),
                {"authority": self.core.backends.authority.expires_at},
            ),
            files=self.core.config.certificates,
            run=self.core.offload,
            wall=self.core.wall,
            clock=self.core.clock,
        )

    @property
    def joins_refused(self) -> int:
        """Attempts to join that were refused here."""
        return self._joining.refused

    def certificate_ends(self) -> dict[str, float]:
        """Ends of nodes' certificates, by node, Unix seconds; 0 where that is not known."""
        return {name: self.core.identities.certificate_ends(name) for name in self.core.state.nodes}

    def _turn(self) -> int:
        """How many control planes act before us where one is enough: the leader does first."""
        if self.core.leading.term:
            return 0
        names = [one.name for one in self.core.members.everyone()]
        others = [name for name in names if name < self.core.config.member]
        return len(others) + (self.core.leading.leader is not None)

    def _probing(self) -> Probing:
        return Probing(
            self.core.health.parts(),
            clock=self.core.clock,
            looks=(self.core.health.look_at_disks, self._look),
        )

    def _look(self) -> None:
        """Nobody leads: of that no call tells. While the store is gone nobody can.

        Between two leaders there is always a moment without one, which is nothing to tell of.
        """
        conditions, now = self.core.health.conditions, self.core.clock.monotonic()
        if self.core.leading.leader is not None:
            self._led_at = now
        is_gone = conditions.stands(ConditionName.COORDINATION_GONE)
        stands = now - self._led_at >= LEADERLESS_S and not is_gone
        conditions.set(ConditionName.NO_LEADER, stands=stands)

    def leave(self) -> None:
        """Lead no more from this moment on; `resign` does all the rest."""
        self.core.leading.leave()

    async def resign(self) -> None:
        """Have another one lead, and end all streams: their callers go on there.

        May take as long as the store takes to answer. `run` goes on, for calls that are not over.
        """
        async with TaskGroup() as group:
            group.create_task(self.core.leading.resign(), name="leader.resign")
            await self._successor_first()
            has_successor = self.core.leading.elsewhere() is not None
            within_s = _DISMISSED_WITHIN_S if has_successor else 0.0
            await self._passing_on.dismiss(has_handed_over=False, within_s=within_s)
        await self.core.leading.hand_over()
        # Agents that are told the successor's address go there; all others only hear that we stop.
        until = self.core.clock.monotonic() + _TOLD_WITHIN_S
        while any(self.core.contacts.links()) and self.core.clock.monotonic() < until:
            await self.core.clock.sleep(_TOLD_WITHIN_S / 20)
        await self._passing_on.dismiss(has_handed_over=True)

    async def _successor_first(self) -> None:
        """Let streams go on until somebody else leads, if anybody is there who can."""
        others = (one.name != self.core.config.member for one in self.core.members.everyone())
        if self.core.leading.elsewhere() is None and any(others):
            await self.core.leading.settled(_SUCCESSOR_WITHIN_S)
            if self.core.leading.elsewhere() is not None:
                await self.core.clock.sleep(_SUCCESSOR_FIRST_S)

    def interceptors(self) -> tuple[Wrapper, ...]:
        """What every call passes, in this order; the first is the door."""
        door = AccessInterceptor(
            self.core.identities,
            TABLE,
            limiter=self.core.limiter,
            refuse=refuse,
            audit=self.core.audit,
            arriving=Arriving(self.core.config.limits.request_bytes, self.core.admission.refused),
        )
        return door, Throttle(self.core.admission), self._passing_on, Freshness(self.core.state)

    def add_services(self, server: Any) -> None:
        """Offer every service on a server, or on whatever takes generic handlers."""
        on = self.core.backends
        presenter = Presenter(
            state=self.core.state,
            history=on.history,
            reports=self._reports,
            waiting=self.scheduling.waiting,
            usages=self.usages,
            kept=self.core.kept,
            clock=on.clock,
        )
        rights = self.core.rights
        checkpoints = Checkpoints(
            history=on.history,
            content=self.content,
            rights=rights,
            writer=SessionWriter(store=on.store, state=self.core.state),
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
                DatasetServicer(self.datasets, self.content, self.core.reading),
            ),
            (
                checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server,
                CheckpointServicer(
                    checkpoints, self.core.references, self.content, self.core.reading
                ),
            ),
            (
                media_pb2_grpc.add_MediaServiceServicer_to_server,
                MediaServicer(shown, self.core.references, self.content, self.core.reading),
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
                ProjectServicer(self.projects, self.core.state, clock=on.clock),
            ),
            (telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server, self._telemetry()),
            (views_pb2_grpc.add_ViewServiceServicer_to_server, ViewServicer(self.views)),
            (backups_pb2_grpc.add_BackupServiceServicer_to_server, self._backups()),
            (
                audit_pb2_grpc.add_AuditServiceServicer_to_server,
                AuditServicer(self.core.audit, on.history.ledger, self.core.reading),
            ),
        ]
        for add, servicer in services:
            add(servicer, server)

    def _telemetry(self) -> TelemetryServicer:
        return TelemetryServicer(
            state=self.core.state,
            history=self.core.history,
            references=self.core.references,
            usages=self.usages,
            clock=self.core.clock,
            reading=self.core.reading,
        )

    def _backups(self) -> BackupServicer:
        on = self.core.backends
        return BackupServicer(
            Backups(store=on.store, history=on.history, objects=on.objects, clock=on.clock)
        )

    def _session_operations(self) -> SessionOperations:
        on = self.core.backends
        writer = SessionWriter(store=on.store, state=self.core.state, admission=self.core.admission)
        followers = Readers(
            state=self.core.state,
            history=on.history,
            logs=self.logs,
            reading=self.core.reading,
            reading_logs=Turns(
                "to read logs",
                slots=_READING_LOGS,
                each=_READING_LOGS_EACH,
                most_waiting=WAIT_TO_READ,
            ),
        )
        return SessionOperations(
            submitter=self.submitter,
            references=self.core.references,
            listings=Listings(state=self.core.state, history=on.history, run=self.core.offload),
            stopper=Stopper(writer=writer, clock=on.clock),
            requeuer=Requeuer(writer, on.clock, notice_s=self.core.config.notice_s),
            remover=Remover(state=self.core.state, history=on.history),
            updater=Updater(writer=writer, references=self.core.references, history=on.history),
            followers=followers,
            reports=self._reports,
            searches=Searches(followers=followers, run=self.core.offload),
            tunnels=self.tunnels,
            relay=self._relay,
            queue=QueueView(
                state=self.core.state,
                clock=on.clock,
                answers=self.scheduling.known,
                projects=self.projects,
                users=self.core.accounts,
                time_limits=self.core.config.time_limits,
            ),
            history=on.history,
            content=self.content,
            state=self.core.state,
            clock=on.clock,
            reading=self.core.reading,
        )

    def _agents(self, rights: Rights) -> AgentServicer:
        on, who = self.core.backends, self.core.config
        return AgentServicer(
            state=self.core.state,
            committer=self.core.committer,
            contacts=self.core.contacts,
            registrar=Registrar(
                state=self.core.state,
                committer=self.core.committer,
                contacts=self.core.contacts,
                keeper=self.keeper,
                rights=rights,
                clock=on.clock,
                cluster_id=self.core.cluster_id,
                restores=on.restores,
            ),
            ingestor=Ingestor(
                history=on.history, rights=rights, rationing=Rationing(self.core.admission)
            ),
            tunnels=self.tunnels,
            images=self.node_images,
            secrets=self.secrets,
            clock=on.clock,
            cluster_id=self.core.cluster_id,
            heartbeat_s=who.heartbeat_s,
            silent_after_s=who.silent_after_s,
            term=self.core.term,
            leader_address=self.core.leading.leader_address,
            relay=self._relay,
            addresses=self._agent_addresses,
            wall=self.core.wall.time,
        )

    def _agent_addresses(self) -> tuple[str, ...]:
        """Where agents reach the control planes that serve them."""
        own = self.core.config.agent_address
        others = (one.agent_address for one in self.core.members.everyone())
        return tuple(dict.fromkeys(filter(None, (own, *others))))

    def _nodes(self) -> NodeServicer:
        facts = ClusterFacts(
            version=self.core.config.version,
            cluster_id=self.core.cluster_id,
            coordination=self.core.config.coordination,
            members=self.core.members,
            leader=lambda: self.core.leading.leader,
            leads=self.core.leads,
            conditions=self.core.health.conditions,
            known_at=self.core.health.known_at,
            wall=self.core.wall.time,
        )
        return NodeServicer(
            state=self.core.state,
            history=self.core.history,
            contacts=self.core.contacts,
            keeper=self.keeper,
            usages=self.usages,
            facts=facts,
            states=self.node_states,
            joining=self._joining,
            identities=self.core.identities,
            images=self.node_images,
        )

    def _accounts(self) -> AccountServicer:
        platform = Platform(
            cluster_id=self.core.cluster_id,
            user_address=self.core.config.user_address,
            agent_address=self.core.config.agent_address,
        )
        return AccountServicer(
            self.core.accounts,
            self._joining,
            self.projects,
            usages=KeptUsages(
                kept=self.core.kept,
                history=self.core.history,
                state=self.core.state,
                users=self.core.accounts,
            ),
            platform=platform,
            limiter=self.core.limiter,
        )
