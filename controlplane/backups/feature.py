"""Backups of the platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.backups.backups import Backups
from controlplane.backups.service import BackupServicer
from controlplane.core.feature import Feature
from nsml.v1 import backups_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def wire(core: Core) -> Feature:
    """Offer BackupService."""
    backups = Backups(
        store=core.store, history=core.history, objects=core.objects, clock=core.clock
    )
    return Feature(
        services=((backups_pb2_grpc.add_BackupServiceServicer_to_server, BackupServicer(backups)),)
    )
