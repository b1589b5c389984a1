"""Backups of the platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.backups.backups import Backups
from controlplane.backups.service import BackupServicer
from controlplane.backups.session_restore import Restorer
from controlplane.backups.session_service import SessionBackupServicer
from controlplane.content.feature import content
from controlplane.core.feature import Feature
from controlplane.core.ids import new_id
from controlplane.datasets.feature import datasets
from controlplane.environments.feature import environment_locks
from controlplane.records.feature import logs
from controlplane.sessions.feature import presenter
from nsml.v1 import backups_pb2_grpc, session_backups_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def wire(core: Core) -> Feature:
    """Offer BackupService and SessionBackupService; the leader cleans up after broken restores."""
    backups = Backups(
        store=core.store, history=core.history, objects=core.objects, clock=core.clock
    )
    restorer = Restorer(
        store=core.store,
        state=core.state,
        history=core.history,
        content=core.shared(content),
        datasets=core.shared(datasets).lookup,
        locks=core.shared(environment_locks),
        admission=core.admission,
        clock=core.clock,
        new_id=lambda: "s" + new_id(core.random_bytes),
        cluster_id=core.cluster_id,
    )
    of_sessions = SessionBackupServicer(core, core.shared(logs), restorer, core.shared(presenter))
    return Feature(
        services=(
            (backups_pb2_grpc.add_BackupServiceServicer_to_server, BackupServicer(backups)),
            (
                session_backups_pb2_grpc.add_SessionBackupServiceServicer_to_server,
                of_sessions,
            ),
        ),
        leader_loops=(restorer.run,),
    )
