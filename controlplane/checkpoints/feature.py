"""Checkpoints of sessions, and lost uploads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.checkpoints.checkpoints import Checkpoints
from controlplane.checkpoints.lost_uploads import Overdue
from controlplane.checkpoints.retention_loop import CheckpointRetention
from controlplane.checkpoints.service import CheckpointServicer
from controlplane.checkpoints.upload_expiry_loop import Settling
from controlplane.content.feature import content
from controlplane.core.compare_and_swap import SessionWriter
from controlplane.core.feature import Feature
from nsml.v1 import checkpoints_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def checkpoints(core: Core) -> Checkpoints:
    """Lists and commits checkpoints."""
    return Checkpoints(
        history=core.history,
        content=core.shared(content),
        rights=core.rights,
        writer=SessionWriter(store=core.store, state=core.state),
        clock=core.clock,
        changed=core.shared(retention).changed,
    )


def retention(core: Core) -> CheckpointRetention:
    """Applies sessions' checkpoint retention."""
    return CheckpointRetention(history=core.history, references=core.references, clock=core.clock)


def wire(core: Core) -> Feature:
    """Offer CheckpointService; apply retention; the leader marks overdue uploads as lost."""
    overdue = Overdue(history=core.history, references=core.references, clock=core.clock)
    servicer = CheckpointServicer(
        core.shared(checkpoints), core.references, core.shared(content), core.reading
    )
    return Feature(
        services=((checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server, servicer),),
        leader_loops=(Settling(overdue=overdue, clock=core.clock).run,),
        member_loops={"checkpoint-retention": core.shared(retention).run},
    )
