"""Artifacts of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.artifacts.artifacts import Artifacts
from controlplane.artifacts.service import ArtifactServicer
from controlplane.content.feature import content
from controlplane.core.feature import Feature
from nsml.v1 import artifacts_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def wire(core: Core) -> Feature:
    """Offer ArtifactService."""
    artifacts = Artifacts(history=core.history, content=core.shared(content), rights=core.rights)
    servicer = ArtifactServicer(artifacts, core.references, core.shared(content), core.reading)
    return Feature(services=((artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server, servicer),))
