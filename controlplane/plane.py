"""One control plane, assembled from its areas: their services and loops.

No sockets and no files here: `startup/server.py` adds them; the simulation needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from controlplane.access.access_table import TABLE
from controlplane.access.incoming_memory import Arriving
from controlplane.access.interceptor import AccessInterceptor
from controlplane.accounts import feature as accounts
from controlplane.artifacts import feature as artifacts
from controlplane.audit import feature as audit
from controlplane.backups import feature as backups
from controlplane.boards import feature as boards
from controlplane.checkpoints import feature as checkpoints
from controlplane.compaction import feature as compaction
from controlplane.competitions import feature as competitions
from controlplane.content import feature as content
from controlplane.core.core import Core
from controlplane.datasets import feature as datasets
from controlplane.environments import feature as environments
from controlplane.health import feature as health
from controlplane.leadership import feature as leadership
from controlplane.leadership.leader_forwarding import PassingOn
from controlplane.media import feature as media
from controlplane.nodes import feature as nodes
from controlplane.notices import feature as notices
from controlplane.projects import feature as projects
from controlplane.records import feature as records
from controlplane.secrets import feature as secrets
from controlplane.sessions import feature as sessions
from controlplane.ssh_keys import feature as ssh_keys
from controlplane.submissions import feature as submissions
from controlplane.usage import feature as usage
from controlplane.views import feature as views
from controlplane.wire.errors import refuse
from controlplane.wire.monotonic_reads import Freshness
from controlplane.wire.throttle import Throttle
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.access.wrapping import Wrapper
    from controlplane.core.dependencies import Backends, MemberConfig
    from controlplane.core.feature import Feature

FEATURES: Final[tuple[Callable[[Core], Feature], ...]] = (
    compaction.wire,
    content.wire,
    datasets.wire,
    sessions.wire,
    submissions.wire,
    competitions.wire,
    nodes.wire,
    checkpoints.wire,
    environments.wire,
    media.wire,
    artifacts.wire,
    records.wire,
    usage.wire,
    accounts.wire,
    projects.wire,
    audit.wire,
    secrets.wire,
    ssh_keys.wire,
    notices.wire,
    boards.wire,
    views.wire,
    backups.wire,
    leadership.wire,
    health.wire,
)
"""All areas, in the order in which their loops start."""

_TOLD_WITHIN_S: Final = 0.2
"""How long agents have to receive the next leader's address."""
_SUCCESSOR_WITHIN_S: Final = 0.3
"""How long streams go on while there is no other leader: reads need none."""
_SUCCESSOR_FIRST_S: Final = 0.2
"""Head start of the successor before all readers and agents reconnect to it."""
_DISMISSED_WITHIN_S: Final = 0.3
"""Time over which readers are moved there, one after the other."""


class ControlPlane:
    """All areas of one control plane.

    Args:
        cluster_id: id of the store's platform.
    """

    def __init__(self, on: Backends, config: MemberConfig, cluster_id: str) -> None:
        self.core = core = Core(on, config, cluster_id)
        self.features = tuple(wire(core) for wire in FEATURES)
        self._passing_on = PassingOn(
            leading=core.leading, peers=core.backends.peers, clock=core.clock
        )

    async def run(self) -> None:
        """Follow the store, accept submissions and lead when elected; until cancelled."""
        core = self.core
        async with TaskGroup() as group:
            group.create_task(core.identities.run(), name="identities")
            group.create_task(core.state.follow(), name="state")
            group.create_task(core.members.run(), name="members")
            if core.backends.shared_clock is not None:
                group.create_task(core.backends.shared_clock.run(), name="clock")
            for feature in self.features:
                for name, loop in feature.member_loops.items():
                    group.create_task(loop(), name=name)
            loops = [loop for feature in self.features for loop in feature.leader_loops]
            group.create_task(core.leading.run(loops), name="leader")
            group.create_task(core.space.run(), name="space")
            group.create_task(core.kept.run(), name="kept")
            group.create_task(core.project_kept.run(), name="project_kept")

    def leave(self) -> None:
        """Stop leading now; `resign` does the rest."""
        self.core.leading.leave()

    async def resign(self) -> None:
        """Hand over to another leader, and end all streams: their callers resume there.

        May take as long as the store takes to answer. `run` goes on, for calls in progress.
        """
        core = self.core
        async with TaskGroup() as group:
            group.create_task(core.leading.resign(), name="leader.resign")
            await self._successor_first()
            has_successor = core.leading.elsewhere() is not None
            within_s = _DISMISSED_WITHIN_S if has_successor else 0.0
            await self._passing_on.dismiss(has_handed_over=False, within_s=within_s)
        await core.leading.hand_over()
        # Agents that get the successor's address go there; all others only learn that we stop.
        until = core.clock.monotonic() + _TOLD_WITHIN_S
        while any(core.contacts.links()) and core.clock.monotonic() < until:
            await core.clock.sleep(_TOLD_WITHIN_S / 20)
        await self._passing_on.dismiss(has_handed_over=True)

    async def _successor_first(self) -> None:
        """Let streams go on until another one leads, if there is a candidate."""
        core = self.core
        others = (one.name != core.config.member for one in core.members.everyone())
        if core.leading.elsewhere() is None and any(others):
            await core.leading.settled(_SUCCESSOR_WITHIN_S)
            if core.leading.elsewhere() is not None:
                await core.clock.sleep(_SUCCESSOR_FIRST_S)

    def interceptors(self) -> tuple[Wrapper, ...]:
        """Interceptors of every call, in this order; the first one authenticates."""
        core = self.core
        door = AccessInterceptor(
            core.identities,
            TABLE,
            limiter=core.limiter,
            refuse=refuse,
            audit=core.audit,
            arriving=Arriving(core.config.limits.request_bytes, core.admission.refused),
            calls=core.calls,
        )
        return door, Throttle(core.admission), self._passing_on, Freshness(core.state)

    def add_services(self, server: Any) -> None:
        """Register every service on a server, or on any object with generic handlers."""
        for feature in self.features:
            for add, servicer in feature.services:
                add(servicer, server)
