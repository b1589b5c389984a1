"""What accounts held lately is read page by page, told as of one instant, and never waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from controlplane.domain.snapshot import PastChanged
from controlplane.domain.values import DAY_S
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.values import AttemptCharge
from controlplane.loops import sharing
from controlplane.loops.sharing import Sharing
from controlplane.operations.past import AFRESH_EVERY_S
from controlplane.operations.state import LiveState
from controlplane.scheduler.fair_share import Past
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.rig import until
from tests.unit.controlplane.workbench import Bench, bench, working


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
        limit: int | None = None,
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

    async def tells(self, lately: dict[str, float]) -> None:
        async def are_told() -> bool:
            return self.state.lately == pytest.approx(lately, rel=1e-2)

        await until(are_told, f"{lately} is told; {self.state.lately}")


@contextlib.asynccontextmanager
async def scene(history: Ledger) -> AsyncIterator[Scene]:
    async with bench() as made:
        state = await made.member()
        loop = Sharing(state=state, history=history, clock=made.clock)  # type: ignore[arg-type]
        async with working(loop.run()):
            yield Scene(made, state, history)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(sharing, "RETRY_S", 0.01)
    monkeypatch.setattr(sharing, "ROWS_AT_ONCE", 3)


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
            return at.state.pasts.is_known("vision")

        await until(is_read, "the account is read")
        assert at.history.asked == count // 3 + 1
        await at.tells({"vision": lately(at.made, count)} if count else {})


async def test_whoever_plans_is_told_when_a_history_that_was_away_answers() -> None:
    async with scene(Ledger(is_away=True)) as at:
        at.history.rows = charges(4, at.made.clock.now)
        at.state.put_session(replace(session(project="vision")), 5)

        async def was_asked() -> bool:
            return at.history.asked > 2

        await until(was_asked, "the history is asked again")
        assert at.state.lately == {}
        with at.state.subscribed() as changes:
            at.history.is_away = False
            told = await asyncio.wait_for(changes.take(), 15)
        assert told == [PastChanged(lately=at.state.lately)]
        await at.tells({"vision": lately(at.made, 4)})
        assert at.state.snapshot().lately == at.state.lately


async def test_it_fades_and_an_end_that_nobody_heard_of_is_found() -> None:
    async with scene(Ledger()) as at:
        at.history.rows = charges(4, at.made.clock.now)
        at.state.put_session(replace(session(project="vision")), 5)
        await at.tells({"vision": (once := lately(at.made, 4))})
        at.made.clock.now += 7 * DAY_S
        await at.tells({"vision": once / 2})
        at.history.rows += charges(5, at.made.clock.now)[4:]
        at.made.clock.now += AFRESH_EVERY_S
        await at.tells({"vision": once / 2 + lately(at.made, 1)})
