"""The HTTP listener of one control plane. Its libraries are loaded only if it is configured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from controlplane.access.access_table import TABLE
from controlplane.accounts.feature import joining
from controlplane.competitions.feature import competition_views
from controlplane.content.feature import collector
from controlplane.domain.conditions import ConditionName
from controlplane.gateway.app import Scrapes, make_app
from controlplane.gateway.callers import Callers
from controlplane.gateway.guard import Guard, Rules
from controlplane.gateway.listener import HttpServer
from controlplane.gateway.rpcs import CallCounts, unary_methods
from controlplane.gateway.scrape_access import Readers
from controlplane.health.feature import certificate_ends
from controlplane.nodes.feature import node_states
from controlplane.sessions.feature import scheduling
from controlplane.startup.prometheus_metrics import FigureSources, figures, take
from controlplane.usage.feature import usages
from controlplane.views.feature import views
from controlplane.views.viewers import Viewers
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from pathlib import Path

    from controlplane.access.listeners import Identity
    from controlplane.core.core import Core
    from controlplane.plane import ControlPlane
    from nsml.common.connections import Limits


class Web:
    """Answers over HTTP while its control plane runs.

    Args:
        taken: the socket to answer on.
        identity: the certificate to show; None: without TLS.
        token_file: of the token for scrapes.
        url: the address for browsers.
        server: the control plane's address for programs of this machine; "" for none.
        visdom_python: see Settings.
        rules: the clients that are answered.
        limits: limits of one client.
        proxies: see HttpServer.

    Attributes:
        calls: counts the gRPC server's calls; one of its interceptors.
        serves: whether the control plane answers calls.
    """

    def __init__(
        self,
        plane: ControlPlane,
        taken: socket.socket,
        *,
        identity: Identity | None,
        token_file: Path | None,
        url: str = "",
        server: str = "",
        visdom_python: Path | None = None,
        rules: Rules | None = None,
        limits: Limits | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        self.calls = CallCounts(unary_methods(TABLE), time.monotonic)
        self.serves = False
        self._conditions = plane.core.health.conditions
        known = known_of(plane.core)
        app = make_app(
            scrapes=Scrapes(lambda: take(known, self.calls), figures, plane.core.clock),
            readers=Readers(
                Callers(plane.core.identities, plane.core.limiter), token_file=token_file
            ),
            why_not_ready=self._why_not_ready,
            routes=[route for feature in plane.features for route in feature.routes()],
        )
        self._views = plane.core.shared(views)
        plane.core.shared(competition_views).http_url = url
        self._views.viewing = Viewers(url=url, server=server, visdom_python=visdom_python)
        self._server = HttpServer(
            Guard(app, rules or Rules()), taken, identity, limits=limits, proxies=proxies
        )

    async def serve(self) -> None:
        """Answer until `stop`, which also ends views."""
        async with TaskGroup() as group:
            views = group.create_task(self._views.run(), name="views")
            await self._server.run_until_told()
            views.cancel()

    def stop(self) -> None:
        """End `serve` after calls in progress, within a moment."""
        self._server.should_exit = True

    def _why_not_ready(self) -> str:
        if not self.serves:
            return "it starts or stops"
        if self._conditions.stands(ConditionName.COORDINATION_GONE):
            return ConditionName.COORDINATION_GONE.value
        return ""


def known_of(core: Core) -> FigureSources:
    """Return the sources of a control plane's metrics."""
    return FigureSources(
        cluster_id=core.cluster_id,
        state=core.state,
        telemetry=core.history.telemetry,
        usages=core.shared(usages),
        states=core.shared(node_states),
        members=core.members,
        conditions=core.health.conditions,
        leader=lambda: core.leading.leader,
        leads=core.leads,
        scheduling=core.shared(scheduling),
        committer=core.committer,
        collector=core.shared(collector),
        admission=core.admission,
        kept=core.kept,
        certificate_ends=lambda: certificate_ends(core),
        clocks_ahead_s=core.contacts.clocks_ahead_s,
        fetched=core.contacts.fetched,
        joins_refused=lambda: core.shared(joining).refused,
        clock=core.clock,
    )
