"""The referee is awake: without one of the platform's safeguards, a simulation ends in a violation.

Each mutant is run with the faults that make its safeguard matter, over a few seeds: one must show it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from controlplane.domain import snapshot
from controlplane.domain.values import Allocation
from controlplane.loops.liveness import Liveness
from controlplane.operations import placing
from controlplane.operations.draft import Draft
from controlplane.operations.ingest import Ingestor
from controlplane.operations.submit import Submitter
from controlplane.store.interface import Compare, Transaction
from nodeagent.outbox import Outbox
from nodeagent.runtimes.fake import FakeMachine
from nsml.v1 import agents_pb2
from tests.simulation.invariants import Violation
from tests.simulation.scenario import Workload, simulate
from tests.simulation.workload import mixed, patient

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A safeguard taken away: how, which faults it guards against, what the referee says."""

    name: str
    apply: Callable[[Patch], None]
    says: str
    faults: Mapping[str, float]
    every_s: float = 2.0
    sessions: int = 40
    workload: Workload = mixed


def without_fence(patch: Patch) -> None:
    sound = Draft.transaction

    def transaction(self: Draft, fence: Compare) -> Transaction:
        made = sound(self, fence)
        return replace(made, compares=made.compares[1:], failure=made.failure[1:])

    patch.setattr(Draft, "transaction", transaction)


def without_exit_reports(patch: Patch) -> None:
    sound = Outbox.put
    turns = itertools.count()

    def put(self: Outbox, replica_id: Any, report: agents_pb2.ReplicaReport) -> None:
        if not report.HasField("exit") or next(turns) % 10:
            sound(self, replica_id, report)

    patch.setattr(Outbox, "put", put)


def without_idempotent_submission(patch: Patch) -> None:
    sound = Submitter.submit
    turns = itertools.count()

    async def submit(self: Submitter, wish: Any) -> Any:
        return await sound(self, replace(wish, request_id=f"{wish.request_id}-{next(turns)}"))

    patch.setattr(Submitter, "submit", submit)


def without_waiting_for_proof(patch: Patch) -> None:
    """A silent node's sessions are given up at once."""
    sound = Liveness._lose_overdue

    async def lose(self: Liveness, node: str, silent_for: float) -> None:
        await sound(self, node, silent_for + 1_000.0)

    patch.setattr(Liveness, "_lose_overdue", lose)


def without_lost_after_in_shims(patch: Patch) -> None:
    async def keep_limits(self: FakeMachine, process: Any) -> None:
        """No watch over contacts."""

    patch.setattr(FakeMachine, "_keep_limits", keep_limits)


def without_storing_all(patch: Patch) -> None:
    """Some chunks are acknowledged and forgotten."""
    sound = Ingestor.ingest
    turns = itertools.count(1)

    async def ingest(self: Ingestor, caller: Any, chunks: Sequence[Any], sample: Any) -> Any:
        if next(turns) % 50:
            return await sound(self, caller, chunks, sample)
        return {chunk.stream: chunk.last + 1 for chunk in chunks}

    patch.setattr(Ingestor, "ingest", ingest)


def without_whole_gangs(patch: Patch) -> None:
    sound = Draft.put_allocation

    def put(self: Draft, allocation: Allocation) -> None:
        kept = tuple(one for one in allocation.replicas if one.rank == 0)
        sound(self, replace(allocation, replicas=kept))

    patch.setattr(Draft, "put_allocation", put)


def without_counting_what_is_held(patch: Patch) -> None:
    sound = snapshot.capacity_of

    def capacity_of(node: Any, allocation: Allocation, **facts: Any) -> Any:
        return sound(node, Allocation(node=allocation.node), **facts)

    patch.setattr(snapshot, "capacity_of", capacity_of)
    patch.setattr(placing, "capacity_of", capacity_of)


LEADER_CHANGES = {"freeze store": 3.0, "cut store": 1.0, "kill control plane": 1.0}
SILENCES = {"long silence": 1.0}
BROKEN_ANSWERS = {"lose answers": 1.0}

MUTANTS = (
    Mutant(
        name="fence",
        apply=without_fence,
        says="only the leader",
        faults=LEADER_CHANGES,
        every_s=1.0,
    ),
    Mutant(name="exit reports", apply=without_exit_reports, says="everything ended", faults={}),
    Mutant(
        name="idempotent submission",
        apply=without_idempotent_submission,
        says="requests made",
        faults=BROKEN_ANSWERS,
        every_s=0.3,
    ),
    Mutant(
        name="proof of an end",
        apply=without_waiting_for_proof,
        says="ended .* while",
        faults=SILENCES,
        every_s=10.0,
        sessions=8,
        workload=patient,
    ),
    Mutant(
        name="lost_after in shims",
        apply=without_lost_after_in_shims,
        says="ended .* while",
        faults=SILENCES,
        every_s=10.0,
        sessions=8,
        workload=patient,
    ),
    Mutant(
        name="all is stored",
        apply=without_storing_all,
        says="what is acknowledged is committed",
        faults={},
    ),
    Mutant(name="whole gangs", apply=without_whole_gangs, says="has ranks", faults={}),
    Mutant(
        name="capacity",
        apply=without_counting_what_is_held,
        says="no device beyond its capacity",
        faults={},
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_safeguard_is_found(mutant: Mutant, monkeypatch: Patch) -> None:
    mutant.apply(monkeypatch)
    with pytest.raises(Violation, match=mutant.says):
        run_some_seeds(mutant)


def run_some_seeds(mutant: Mutant) -> None:
    for seed in range(1, 5):
        simulate(
            seed,
            sessions=mutant.sessions,
            workload=mutant.workload,
            faults=mutant.faults,
            fault_every_s=mutant.every_s,
            quiet_within_s=300.0,
        )
