"""The HTTP listener of one control plane, made of its parts. Only who listens there loads its libraries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from controlplane.access.access_table import TABLE
from controlplane.domain.conditions import ConditionName
from controlplane.gateway.app import Scrapes, make_app
from controlplane.gateway.callers import Callers
from controlplane.gateway.figures import FigureSources, figures, take
from controlplane.gateway.guard import Guard, Rules
from controlplane.gateway.listener import HttpServer
from controlplane.gateway.readers import Readers
from controlplane.gateway.rpcs import CallCounts, unary_methods
from controlplane.gateway.viewers import Viewers
from nsml.concurrency import TaskGroup

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from pathlib import Path

    from controlplane.access.listeners import Identity
    from controlplane.plane import ControlPlane
    from nsml.connections import Limits


class Web:
    """Answers over HTTP while its control plane runs.

    Args:
        taken: the socket to answer on.
        identity: whose certificate is shown; None: without TLS.
        token_file: of the token for scrapes.
        url: where browsers reach it.
        server: where programs of this machine call the control plane; "" for nowhere.
        visdom_python: see Settings.
        rules: who is answered.
        limits: what one client may take.
        proxies: see HttpServer.

    Attributes:
        calls: counts what the gRPC server answers; one of its interceptors.
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
        known = known_of(plane)
        callers = Callers(plane.core.identities, plane.core.limiter)
        app = make_app(
            scrapes=Scrapes(lambda: take(known, self.calls), figures, plane.core.clock),
            readers=Readers(callers, token_file=token_file),
            why_not_ready=self._why_not_ready,
            callers=callers,
            views=plane.views,
        )
        self._views = plane.views
        self._views.viewing = Viewers(url=url, server=server, visdom_python=visdom_python)
        self._server = HttpServer(
            Guard(app, rules or Rules()), taken, identity, limits=limits, proxies=proxies
        )

    async def serve(self) -> None:
        """Answer until `stop`; views end then."""
        async with TaskGroup() as group:
            views = group.create_task(self._views.run(), name="views")
            await self._server.run_until_told()
            views.cancel()

    def stop(self) -> None:
        """Let `serve` end, once what is being answered is, within a moment."""
        self._server.should_exit = True

    def _why_not_ready(self) -> str:
        if not self.serves:
            return "it starts or stops"
        if self._conditions.stands(ConditionName.COORDINATION_GONE):
            return ConditionName.COORDINATION_GONE.value
        return ""


def known_of(plane: ControlPlane) -> FigureSources:
    """What figures of a control plane are made of."""
    return FigureSources(
        cluster_id=plane.core.cluster_id,
        state=plane.core.state,
        telemetry=plane.core.history.telemetry,
        usages=plane.usages,
        states=plane.node_states,
        members=plane.core.members,
        conditions=plane.core.health.conditions,
        leader=lambda: plane.core.leading.leader,
        leads=lambda: bool(plane.core.leading.term),
        scheduling=plane.scheduling,
        committer=plane.core.committer,
        collector=plane.collector,
        admission=plane.core.admission,
        kept=plane.core.kept,
        certificate_ends=plane.certificate_ends,
        clocks_ahead_s=plane.core.contacts.clocks_ahead_s,
        joins_refused=lambda: plane.joins_refused,
        clock=plane.core.clock,
    )
