"""What accounts used is read page by page, told to whoever plans, begun anew with each period, and fades."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from controlplane.domain.changes import PastChanged, ProjectChanged
from controlplane.domain.values import DAY_S, Budget, Project
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.values import AttemptCharge
from controlplane.scheduler.fair_share import Past
from controlplane.state.charge_totals import AFRESH_EVERY_S
from controlplane.state.live_state import LiveState
from controlplane.usage import charge_totals_loop as accounting
from controlplane.usage.charge_totals_loop import Accounting
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.rig import until
from tests.unit.controlplane.workbench import Bench, bench, working

BUDGET = Budget(gpu_seconds=100.0, period_days=1, anchor=0.0)
VISION = Project(name="vision", members=frozenset({"kim"}), budget=BUDGET)


def charge(number: int, ended_at: float, project: str = "vision") -> AttemptCharge:
    return AttemptCharge(
        session_id=f"s{number}",
        attempt=1,
        owner="kim",
        project=project,
        gpu_thousandths=1000,
        seconds=10.0,
        ended_at=ended_at,
    )


@dataclass
class Ledger:
    """Rows, while it answers."""

    rows: list[AttemptCharge] = field(default_factory=list)
    is_away: bool = False
    asked: int = 0

    @property
    def ledger(self) -> Ledger:
        return self

    async def charges(
        self,
        project: str,
        *,
        since: float,
        behind: AttemptCharge | None = None,
        limit: int,
    ) -> tuple[AttemptCharge, ...]:
        self.asked += 1
        if self.is_away:
            raise HistoryUnavailable("scripted")
        rows = [one for one in self.rows if one.project == project and one.ended_at > since]
        first = rows.index(behind) + 1 if behind else 0
        return tuple(rows[first:][:limit])


@dataclass
class Scene:
    made: Bench
    state: LiveState
    history: Ledger

    def used(self) -> dict[str, float]:
        found = self.state.accounts.used(self.made.clock.time())
        return {one.project: one.gpu_seconds for one in found}

    async def tells(self, used: dict[str, float]) -> None:
        async def are_told() -> bool:
            return self.used() == used

        await until(are_told, f"it is known that {used} is used; {self.used()}")

    async def tells_lately(self, lately: dict[str, float]) -> None:
        async def are_told() -> bool:
            return self.state.lately == pytest.approx(lately, rel=1e-2)

        await until(are_told, f"{lately} is told; {self.state.lately}")


@contextlib.asynccontextmanager
async def scene(history: Ledger) -> AsyncIterator[Scene]:
    async with bench() as made:
        state = await made.member()
        loop = Accounting(state=state, history=history, clock=made.clock)  # type: ignore[arg-type]
        async with working(loop.run()):
            yield Scene(made, state, history)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(accounting, "RETRY_S", 0.01)
    monkeypatch.setattr(accounting, "ROWS_AT_ONCE", 3)


async def test_a_budget_that_is_made_is_counted_from_the_ledger() -> None:
    async with scene(Ledger()) as at:
        since = at.made.clock.now // DAY_S * DAY_S
        at.history.rows = [charge(1, since + 50), charge(2, since + 4), charge(3, since, "q")]
        at.state.put_project(VISION, 5)
        await at.tells({"vision": 14.0})


async def test_who_plans_is_told_once_a_history_that_was_away_answers() -> None:
    async with scene(Ledger(is_away=True)) as at:
        at.state.put_project(VISION, 5)

        async def was_asked() -> bool:
            return at.history.asked > 2

        await until(was_asked, "the history is asked again")
        assert at.used() == {}
        with at.state.subscribed() as changes:
            at.history.is_away = False
            told = await asyncio.wait_for(changes.take(), 60)
            assert told == [ProjectChanged(project=VISION)]
            assert at.used() == {"vision": 0.0}


async def test_another_period_begins_with_nothing_and_is_told() -> None:
    async with scene(Ledger()) as at:
        clock = at.made.clock
        since = clock.now // DAY_S * DAY_S
        at.history.rows = [charge(1, since + 50)]
        at.state.put_project(VISION, 5)
        await at.tells({"vision": 10.0})
        with at.state.subscribed() as changes:
            clock.now = since + DAY_S
            told = await asyncio.wait_for(changes.take(), 60)
            assert ProjectChanged(project=VISION) in told
        assert at.used() == {"vision": 0.0}
        clock.now = since + DAY_S - 3600
        await at.tells({"vision": 10.0})


async def test_an_end_that_nobody_heard_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(Ledger()) as at:
        at.state.put_project(VISION, 5)
        await at.tells({"vision": 0.0})
        since = at.made.clock.now // DAY_S * DAY_S
        at.history.rows = [charge(1, since + 50)]
        at.made.clock.now += AFRESH_EVERY_S
        await at.tells({"vision": 10.0})


def charges(count: int, now: float, project: str = "vision") -> list[AttemptCharge]:
    """Each a GPU for a day, all of it just now."""
    return [
        AttemptCharge(
            session_id=f"s{number}",
            attempt=1,
            owner="kim",
            project=project,
            gpu_thousandths=1000,
            seconds=DAY_S,
            ended_at=now,
        )
        for number in range(count)
    ]


def lately(made: Bench, days: int) -> float:
    past, now = Past(), made.clock.now
    past.held(1000 * days, now - DAY_S, now)
    return past.lately(now)


@pytest.mark.parametrize("count", [0, 2, 3, 7])
async def test_an_account_with_a_session_is_counted_from_the_ledger(count: int) -> None:
    async with scene(Ledger()) as at:
        at.history.rows = charges(count, at.made.clock.now) + charges(5, at.made.clock.now, "q")
        at.state.put_session(replace(session(project="vision")), 5)

        async def is_read() -> bool:
            return at.state.accounts.is_known("vision")

        await until(is_read, "the account is read")
        assert at.history.asked == count // 3 + 1
        await at.tells_lately({"vision": lately(at.made, count)} if count else {})


async def test_whoever_orders_the_queue_is_told_once_a_history_that_was_away_answers() -> None:
    async with scene(Ledger(is_away=True)) as at:
        at.history.rows = charges(4, at.made.clock.now)
        at.state.put_session(replace(session(project="vision")), 5)

        async def was_asked() -> bool:
            return at.history.asked > 2

        await until(was_asked, "the history is asked again")
        assert at.state.lately == {}
        with at.state.subscribed() as changes:
            at.history.is_away = False
            told = await asyncio.wait_for(changes.take(), 60)
        assert told == [PastChanged(lately=at.state.lately)]
        await at.tells_lately({"vision": lately(at.made, 4)})
        assert PastChanged(lately=at.state.lately) in at.state.everything()


async def test_a_share_fades_and_an_end_that_nobody_heard_of_is_found() -> None:
    async with scene(Ledger()) as at:
        at.history.rows = charges(4, at.made.clock.now)
        at.state.put_session(replace(session(project="vision")), 5)
        await at.tells_lately({"vision": (once := lately(at.made, 4))})
        at.made.clock.now += 7 * DAY_S
        await at.tells_lately({"vision": once / 2})
        at.history.rows += charges(5, at.made.clock.now)[4:]
        at.made.clock.now += AFRESH_EVERY_S
        await at.tells_lately({"vision": once / 2 + lately(at.made, 1)})
