"""The audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.audit.audit_retention_loop import Trimming
from controlplane.audit.service import AuditServicer
from controlplane.core.feature import Feature
from nsml.v1 import audit_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def wire(core: Core) -> Feature:
    """Write the calls recorded by the interceptor, list them, and keep the trail within its limits."""
    trimming = Trimming(
        ledger=core.history.ledger,
        clock=core.clock,
        most_rows=core.config.audit_rows,
        most_bytes=core.config.audit_bytes,
    )
    servicer = AuditServicer(core.audit, core.history.ledger, core.reading)
    return Feature(
        services=((audit_pb2_grpc.add_AuditServiceServicer_to_server, servicer),),
        leader_loops=(trimming.run,),
        member_loops={"audit": core.audit.run},
    )
