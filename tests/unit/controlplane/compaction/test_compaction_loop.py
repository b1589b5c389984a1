"""Room is made in a full store; what failed for another reason says nothing of its quota."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from controlplane.compaction.compaction_loop import PAUSES_S, Reclaiming
from controlplane.domain.conditions import ConditionName
from controlplane.state.conditions import Conditions
from controlplane.store.interface import CommitUnknown, NoSpace, StoreError, StoreUnavailable
from tests.simulation.virtual_time import VirtualClock, run

FULL = ConditionName.COORDINATION_FULL


class Store:
    """One whose room cannot be made, for these reasons in turn, and then can."""

    def __init__(self, reasons: Sequence[StoreError], conditions: Conditions) -> None:
        self.reasons = list(reasons)
        self.conditions = conditions
        self.remarks: list[str] = []

    async def reclaim(self) -> None:
        (condition,) = self.conditions.standing()
        self.remarks.append(condition.remark)
        if self.reasons:
            raise self.reasons.pop(0)

    async def touch(self) -> None:
        self.conditions.set(FULL, stands=False)


def healed(*reasons: StoreError) -> tuple[list[str], list[str], float]:
    """The remarks before each try, what was logged as a defect, and how long it took."""

    async def main() -> tuple[list[str], float]:
        clock = VirtualClock(asyncio.get_running_loop())
        conditions = Conditions(clock)
        conditions.set(FULL, stands=True)
        store = Store(reasons, conditions)
        reclaiming = Reclaiming(
            store=store,  # type: ignore[arg-type]
            conditions=conditions,
            touch=store.touch,
            turn=lambda: 0,
            clock=clock,
        )
        running = asyncio.create_task(reclaiming.run())
        while conditions.stands(FULL):
            await clock.sleep(0.1)
        running.cancel()
        return store.remarks, clock.monotonic()

    with capture_logs() as logs:
        remarks, took_s = run(main())
    return remarks, [line["event"] for line in logs if line["log_level"] == "error"], took_s


@pytest.mark.parametrize(
    "reason", [StoreUnavailable("cut off"), CommitUnknown("cut off")], ids=repr
)
def test_a_store_that_is_out_of_reach_is_not_taken_for_one_without_room(reason: StoreError) -> None:
    remarks, defects, took_s = healed(*[reason] * 8)
    assert remarks == [""] * 9
    assert not defects
    assert took_s < 8 * PAUSES_S[0] + 2


def test_what_lives_may_need_more_than_there_is() -> None:
    reasons = [NoSpace("full"), StoreUnavailable("cut off"), NoSpace("full")]
    remarks, defects, took_s = healed(*reasons)
    assert remarks[0] == ""
    assert remarks[1] == remarks[2]
    assert "once without success" in remarks[1]
    assert "2 times without success" in remarks[3]
    assert defects == ["store.not_reclaimed"] * 2
    assert took_s > sum(PAUSES_S[:2])
