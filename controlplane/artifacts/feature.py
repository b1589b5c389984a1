"""Artifacts of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.artifacts.artifacts import Artifacts
from controlplane.artifacts.expiry_loop import KeptFilesExpiry
from controlplane.artifacts.output_datasets import OutputDatasets
from controlplane.artifacts.service import ArtifactServicer
from controlplane.content.feature import content
from controlplane.core.feature import Feature
from controlplane.datasets.feature import datasets
from nsml.spec.output_datasets import KEPT_BY_DEFAULT_FOLDER, KEPT_FOLDER
from nsml.v1 import artifacts_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def wire(core: Core) -> Feature:
    """Offer ArtifactService; the leader removes kept files that have expired."""
    outputs = OutputDatasets(
        history=core.history,
        datasets=core.shared(datasets),
        content=core.shared(content),
        accounts=core.accounts,
    )
    artifacts = Artifacts(
        history=core.history,
        state=core.state,
        content=core.shared(content),
        rights=core.rights,
        outputs=outputs,
    )
    kept_for_s = {
        folder: keep_s
        for folder, keep_s in (
            (KEPT_FOLDER, core.config.keep_files_s),
            (KEPT_BY_DEFAULT_FOLDER, core.config.keep_files_by_default_s),
        )
        if keep_s
    }
    servicer = ArtifactServicer(
        artifacts, core.references, core.shared(content), core.reading, kept_for_s=kept_for_s
    )
    expiry = KeptFilesExpiry(history=core.history, clock=core.clock, kept_for_s=kept_for_s)
    return Feature(
        services=((artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server, servicer),),
        leader_loops=(expiry.run,) if kept_for_s else (),
    )
