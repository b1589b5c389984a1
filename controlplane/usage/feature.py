"""Use of devices: telemetry, charges, and sessions with idle devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.notices.feature import webhooks
from controlplane.usage.charge_totals_loop import Accounting
from controlplane.usage.device_usage_loop import Measuring
from controlplane.usage.idle_detection import IdleDetector
from controlplane.usage.idle_detection_loop import Wasting
from controlplane.usage.service import TelemetryServicer
from controlplane.usage.usage import Usages
from nsml.v1 import telemetry_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def usages(core: Core) -> Usages:
    """Measures the use of devices by sessions."""
    return Usages(
        state=core.state,
        history=core.history,
        clock=core.clock,
        idle_percent=core.config.waste.percent,
    )


def wire(core: Core) -> Feature:
    """Offer TelemetryService; the leader ends sessions that are idle for too long."""
    measured = core.shared(usages)
    detector = IdleDetector(
        state=core.state,
        history=core.history,
        usages=measured,
        committer=core.committer,
        rule=core.config.waste,
        clock=core.clock,
    )
    wasting = Wasting(detector, core.shared(webhooks), clock=core.clock)
    accounting = Accounting(state=core.state, history=core.history, clock=core.clock)
    measuring = Measuring(measured, core.history, leads=core.leads, clock=core.clock)
    servicer = TelemetryServicer(core, measured)
    return Feature(
        services=((telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server, servicer),),
        leader_loops=(wasting.run,),
        member_loops={"accounting": accounting.run, "measuring": measuring.run},
    )
