"""What one dataset, or one failure, holds up of the sessions that are about to start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from controlplane.datasets import queued_sessions
from controlplane.datasets.queued_sessions import AGAIN_S, QueuedSessions
from controlplane.domain.errors import Unavailable
from controlplane.domain.identity import User
from controlplane.domain.values import DatasetVersion, Session
from controlplane.history.errors import HistoryUnavailable
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock


class Catalogue:
    """Tells nothing of any dataset; some are slow for ever, and some fail."""

    def __init__(self) -> None:
        self.slow: set[str] = set()
        self.failing: set[str] = set()
        self.asked: list[str] = []

    async def dataset_versions(self, _owner: str, name: str, **_: Any) -> tuple[()]:
        self.asked.append(name)
        if name in self.slow:
            await asyncio.Event().wait()
        if name in self.failing:
            raise HistoryUnavailable("the history does not answer")
        return ()


class Writer:
    """Writes sessions, but those of which the store does not answer."""

    def __init__(self) -> None:
        self.failing: set[str] = set()

    async def change(
        self, session_id: str, decide: Callable[[Session], Session], **_: Any
    ) -> Session | None:
        if session_id in self.failing:
            raise Unavailable("the store does not answer")
        return None


class World:
    def __init__(self) -> None:
        self.clock, self.catalogue, self.writer = HandClock(), Catalogue(), Writer()
        history: Any = SimpleNamespace(catalogue=self.catalogue)
        writer: Any = self.writer

        async def user(name: str) -> User:
            return User(name=name)

        self.queued = QueuedSessions(
            history=history,
            live=list,
            writer=writer,
            user=user,
            withdrawn={"kim": 1}.__getitem__,
            clock=self.clock,
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(queued_sessions, "RENEWED_WITHIN_S", 0.2)
    return World()


def uses(*names: str) -> Session:
    datasets = tuple(DatasetVersion(owner="kim", name=one, version=1, digest="d") for one in names)
    return session(spec={"datasets": datasets})


async def test_a_dataset_that_cannot_be_looked_up_holds_up_its_own_sessions_alone(
    world: World,
) -> None:
    slow, failing, both, good = uses("a"), uses("b"), uses("a", "c"), uses("c")
    world.catalogue.slow, world.catalogue.failing = {"a"}, {"b"}
    with structlog.testing.capture_logs() as logs:
        waits = await world.queued.renew_before_start([slow, failing, both, good])
        assert waits == dict.fromkeys([slow.id, failing.id, both.id], AGAIN_S)
        world.catalogue.asked.clear()
        world.clock.now += 1.0
        newer = uses("a")
        waits = await world.queued.renew_before_start([newer, good])
        assert waits == {newer.id: AGAIN_S - 1.0}, "those that come later wait no longer"
        assert world.catalogue.asked == ["c"]
        world.clock.now += AGAIN_S - 1.0
        assert (await world.queued.renew_before_start([slow])).keys() == {slow.id}
    assert [one["datasets"] for one in logs] == ["kim/b", "kim/a", "kim/a, kim/c"]
    world.catalogue.slow.clear()
    world.clock.now += AGAIN_S
    assert not await world.queued.renew_before_start([slow, both])


async def test_what_is_not_reached_is_next(world: World) -> None:
    slow = [uses(f"slow{number}") for number in range(queued_sessions._LOOKED_UP_AT_ONCE)]
    good = uses("z")
    world.catalogue.slow = {one.spec.datasets[0].name for one in slow}
    waits = await world.queued.renew_before_start([*slow, good])
    assert waits == {**dict.fromkeys([one.id for one in slow], AGAIN_S), good.id: 0.0}
    assert (await world.queued.renew_before_start([*slow, good])).keys() == {one.id for one in slow}


async def test_those_that_were_renewed_before_a_failure_start(world: World) -> None:
    first, second = uses("a"), uses("a")
    world.writer.failing = {second.id}
    assert await world.queued.renew_before_start([first, second]) == {second.id: AGAIN_S}
