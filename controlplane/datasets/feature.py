"""Datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.content.feature import content
from controlplane.core.feature import Feature
from controlplane.datasets.datasets import Datasets
from controlplane.datasets.service import DatasetServicer
from nsml.v1 import datasets_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def datasets(core: Core) -> Datasets:
    """All of them."""
    return Datasets(
        history=core.history,
        content=core.shared(content),
        clock=core.clock,
        users_of=core.state.users_of,
    )


def wire(core: Core) -> Feature:
    """Offer DatasetService."""
    servicer = DatasetServicer(core.shared(datasets), core.shared(content), core.reading)
    return Feature(services=((datasets_pb2_grpc.add_DatasetServiceServicer_to_server, servicer),))
