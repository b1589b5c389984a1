"""Shared parts of all areas of one control plane: stores, clocks, live state, access, leadership.

No sockets and no files here. An area gets all of them from one `Core`; parts shared by some areas only are created
once by `Core.shared`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from controlplane.access.accounts import Accounts
from controlplane.access.auditing import Audit
from controlplane.access.failed_attempts import FailureLimiter
from controlplane.access.identities import Identities
from controlplane.core.health import Health
from controlplane.core.ids import new_id
from controlplane.core.leader import LeaderLoop
from controlplane.limits.admission import Admission
from controlplane.limits.concurrency_limits import Turns
from controlplane.limits.free_space import HISTORY, OBJECTS, Database, FreeSpace
from controlplane.limits.ordinary_calls import OrdinaryCalls
from controlplane.limits.user_storage import Kept, ProjectKept
from controlplane.state.agent_connections import AgentConnections
from controlplane.state.committer import Committer
from controlplane.state.conditions import own_findings
from controlplane.state.live_state import LiveState
from controlplane.state.members import Member, Members
from controlplane.state.owned_names import Holdings
from controlplane.state.references import References
from controlplane.state.replica_rights import Rights
from controlplane.store.election import Candidate
from nsml.common.clock import SteadyClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.core.dependencies import Backends, MemberConfig
    from controlplane.core.serving_process import ServingProcess
    from nsml.common.clock import Clock

T = TypeVar("T")

_READING: Final = 4
"""Pages read from the history and converted to messages at one time,"""
_READING_EACH: Final = 2
"""how many of these for one user,"""
WAIT_TO_READ: Final = 1_000
"""and waiting calls of a user: a dashboard follows hundreds of sessions."""


class Core:
    """The parts that every area may use.

    Args:
        backends: the control plane's dependencies.
        config: its identity and settings.
        cluster_id: of the store's platform.

    Attributes:
        backends: the same, with observed stores and a clock that never jumps.
        clock: for decisions.
        wall: for access, such as expiry of tokens.
        process: an id of this process.
        reading: turns of readers of history pages.
        leading: the election.
        beside: child processes of this control plane, added at its start.
    """

    def __init__(self, backends: Backends, config: MemberConfig, cluster_id: str) -> None:
        self.config = config
        self.cluster_id = cluster_id
        self._shared: dict[Callable[[Core], Any], Any] = {}
        self.beside: list[ServingProcess] = []
        self.reading = Turns(
            "to read", slots=_READING, each=_READING_EACH, most_waiting=WAIT_TO_READ
        )
        # Each part depends on those before it.
        self._observe(backends)
        self._make_access()
        self._make_admission()
        self._make_leading()
        self.references = References(state=self.state, history=self.history)
        self.rights = Rights(references=self.references, state=self.state)

    def shared(self, make: Callable[[Core], T]) -> T:
        """Return the result of `make` for this core: created by the first call, shared by all."""
        if make not in self._shared:
            self._shared[make] = make(self)
        made: T = self._shared[make]
        return made

    def term(self) -> int:
        """Return our term while we surely lead, else 0."""
        return self.leading.term

    def leads(self) -> bool:
        """Return whether this control plane surely leads."""
        return bool(self.leading.term)

    def _observe(self, backends: Backends) -> None:
        """Create observed store, history and objects, and the live state."""
        config = self.config
        self.health = Health(
            store=backends.store,
            history=backends.history,
            objects=backends.objects,
            clock=backends.clock,
            disks=backends.disks,
            folders=backends.folders,
        )
        # Token expiry uses the machine's wall clock; what is written and decided follows the platform's.
        self.wall: Clock = backends.clock
        self.platform_wall: Clock = backends.shared_clock or backends.clock
        self._steady = SteadyClock(self.platform_wall, backends.elapsed)
        self.clock: Clock = self._steady
        self.space = FreeSpace(
            # An etcd of our own has a disk of its own, which the store does not report.
            folders={**backends.folders, **backends.disks},
            store=backends.store,
            conditions=self.health.conditions,
            clock=backends.clock,
            floor_bytes=config.floor_bytes,
            database=Database(self.health.history.size, config.history_bytes),
        )
        self.store = self.health.store
        self.history = self.health.history
        self.objects = self.health.objects
        self.offload = backends.run
        self.random_bytes = backends.random_bytes
        self.backends = replace(
            backends,
            store=self.store,
            history=self.history,
            objects=self.objects,
            clock=self.clock,
        )
        self.state = LiveState(self.store, self._steady, half_life_s=config.half_life_s)

    def _make_access(self) -> None:
        """Create access control and the audit trail."""
        store, wall = self.store, self.wall
        self.identities = Identities(store, wall)
        self.accounts = Accounts(
            store,
            self.identities,
            clock=wall,
            random_bytes=self.random_bytes,
            owned=Holdings(store=store, state=self.state, history=self.history).of,
        )
        self.limiter = FailureLimiter(wall)
        self.calls = OrdinaryCalls()
        self.audit = Audit(
            ledger=self.history.ledger, clock=wall, is_low=lambda: self.space.is_low(HISTORY)
        )

    def _make_admission(self) -> None:
        """Create the limits of users' stored bytes and submissions."""
        self.kept = Kept(
            self.config.limits,
            self.history,
            self.clock,
            capacity=partial(self.space.size_bytes, OBJECTS),
            has_others=self.identities.has_others,
            own_limit=self.identities.kept_limit,
        )
        self.project_kept = ProjectKept(
            self.history,
            self.clock,
            find=self.state.project,
            every=lambda: (one.value for one in self.state.projects.values()),
        )
        self.admission = Admission(
            self.config.limits,
            usage=self.state.usage,
            clock=self.clock,
            space=self.space,
            kept=self.kept,
            project_kept=self.project_kept,
            has_others=self.identities.has_others,
        )

    def _make_leading(self) -> None:
        """Create members, connections to agents, decisions, and the election."""
        config, store, clock = self.config, self.store, self.clock
        self.committer = Committer(
            store=store,
            state=self.state,
            clock=clock,
            leader=self._leader_address,
        )
        self.members = Members(
            store,
            self._member(),
            clock=clock,
            ttl_s=config.lease_s,
            findings=lambda: own_findings(self.health.conditions.standing()),
        )
        self.contacts = AgentConnections(state=self.state, clock=clock)
        self.process = new_id(self.random_bytes)
        self.leading = LeaderLoop(
            store=store,
            state=self.state,
            committer=self.committer,
            contacts=self.contacts,
            clock=clock,
            candidate=Candidate(
                member=config.member,
                address=config.address,
                is_tls=bool(config.agent_address),
                process=self.process,
            ),
            ttl_s=config.lease_s,
            elected=self._go_on_from_what_is_written,
        )

    def _leader_address(self) -> str:
        return self.leading.leader_address()

    def _member(self) -> Member:
        who = self.config
        return Member(
            name=who.member,
            version=who.version,
            user_address=who.user_address,
            agent_address=who.agent_address,
            local_address=who.local_address or ("" if who.agent_address else who.address),
            jump_address=who.jump_address,
            started_at=self.clock.time(),
            instance=who.instance,
            settings=who.settings,
        )

    def _go_on_from_what_is_written(self) -> None:
        """Advance the clock to the newest stored instant, whatever the former leader's clock was."""
        self._steady.reach(self.state.newest_instant())
