"""Datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.content.feature import content, observed_clock, withdrawals
from controlplane.core.compare_and_swap import SessionWriter
from controlplane.core.feature import Feature
from controlplane.datasets.datasets import Datasets
from controlplane.datasets.purge_loop import Purging
from controlplane.datasets.queued_datasets import QueuedDatasets
from controlplane.datasets.queued_sessions import QueuedSessions
from controlplane.datasets.service import DatasetServicer
from nsml.v1 import datasets_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.core.core import Core
    from controlplane.domain.values import Session


def queued_datasets(core: Core) -> QueuedDatasets:
    """The leader's cache of datasets of queued sessions."""
    return QueuedDatasets(
        history=core.history,
        state=core.state,
        withdrawn=core.shared(withdrawals).count,
        clock=core.clock,
    )


def datasets(core: Core) -> Datasets:
    """Build the Datasets."""

    def live() -> Iterator[Session]:
        return (stored.value for stored in core.state.sessions.values())

    return Datasets(
        history=core.history,
        content=core.shared(content),
        clock=core.clock,
        live=live,
        live_session=core.state.session,
        grace_s=core.config.collect_after_s,
        in_place_roots=core.config.in_place_roots,
        queued=QueuedSessions(
            history=core.history,
            datasets=core.shared(queued_datasets),
            live=live,
            writer=SessionWriter(store=core.store, state=core.state),
            user=core.accounts.get_user,
            withdrawn=core.shared(withdrawals).count,
        ),
    )


def wire(core: Core) -> Feature:
    """Register DatasetService; the leader purges expired versions, and reads ahead for queued sessions."""
    found = core.shared(datasets)
    servicer = DatasetServicer(found, core.shared(content), core.reading)
    purging = Purging(datasets=found, observed=core.shared(observed_clock), clock=core.clock)
    return Feature(
        services=((datasets_pb2_grpc.add_DatasetServiceServicer_to_server, servicer),),
        leader_loops=(
            core.shared(queued_datasets).run,
            *((purging.run,) if core.config.collect_after_s else ()),
        ),
    )
