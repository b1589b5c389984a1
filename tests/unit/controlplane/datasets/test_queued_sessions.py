"""What one dataset, or one failure, holds up of the sessions that are about to start: never the plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import structlog

from controlplane.datasets.queued_datasets import (
    AGAIN_S,
    REFRESHED_AFTER_S,
    VALID_FOR_S,
    WANTED_FOR_S,
    QueuedDatasets,
)
from controlplane.datasets.queued_sessions import RENEWED_AT_ONCE, QueuedSessions
from controlplane.domain.errors import Unavailable
from controlplane.domain.identity import User
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import DatasetVersion, Session
from controlplane.history.errors import HistoryUnavailable
from controlplane.state.live_state import LiveState
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock


class Catalogue:
    """Tells nothing of any dataset; some hang, and some fail."""

    def __init__(self) -> None:
        self.hanging: set[str] = set()
        self.failing: set[str] = set()
        self.asked: list[str] = []
        self.look: Callable[[str], object] = lambda _: None

    async def dataset_versions(self, _owner: str, name: str, **_: Any) -> tuple[()]:
        self.asked.append(name)
        self.look(name)
        if name in self.hanging:
            await asyncio.Event().wait()
        if name in self.failing:
            raise HistoryUnavailable("the history does not answer")
        return ()


class Writer:
    """Writes sessions, but those of which the store does not answer."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.writing = self.most_writing = 0

    async def change(
        self, session_id: str, decide: Callable[[Session], Session], **_: Any
    ) -> Session | None:
        self.writing += 1
        self.most_writing = max(self.most_writing, self.writing)
        await asyncio.sleep(0)
        self.writing -= 1
        if session_id in self.failing:
            raise Unavailable("the store does not answer")
        return None


class World:
    def __init__(self) -> None:
        self.clock, self.catalogue, self.writer = HandClock(), Catalogue(), Writer()
        self.state = LiveState(None, self.clock)  # type: ignore[arg-type]
        self.withdrawn = {"kim": 1, "lee": 0}
        self._revisions = 0
        history: Any = SimpleNamespace(catalogue=self.catalogue)
        writer: Any = self.writer

        async def user(name: str) -> User:
            return User(name=name)

        self.datasets = QueuedDatasets(
            history=history,
            state=self.state,
            withdrawn=self.withdrawn.__getitem__,
            clock=self.clock,
        )
        self.queued = QueuedSessions(
            history=history,
            datasets=self.datasets,
            live=list,
            writer=writer,
            user=user,
            withdrawn=self.withdrawn.__getitem__,
        )

    def put(self, *sessions: Session) -> None:
        for one in sessions:
            self._revisions += 1
            self.state.put_session(one, self._revisions)

    async def starts(self, *sessions: Session) -> None:
        """Until nothing holds these up any more."""
        await self.reaches(sessions, {})

    async def reaches(self, sessions: Sequence[Session], waits: Mapping[str, float]) -> None:
        """Until sessions wait so long."""
        async with asyncio.timeout(60):
            while True:
                if await self.queued.renew_before_start(sessions) == waits:
                    return
                await asyncio.sleep(0.001)

    async def holds_up(self, *sessions: Session) -> bool:
        """Whether none of these starts."""
        waits = await self.queued.renew_before_start(sessions)
        return waits.keys() == {one.id for one in sessions}


@asynccontextmanager
async def world(*sessions: Session) -> AsyncIterator[World]:
    made = World()
    made.put(*sessions)
    running = asyncio.create_task(made.datasets.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def uses(*names: str) -> Session:
    datasets = tuple(DatasetVersion(owner="kim", name=one, version=1, digest="d") for one in names)
    return session(spec={"datasets": datasets})


async def test_a_history_that_hangs_holds_up_no_plan_and_its_own_sessions_alone() -> None:
    hangs, fails, both, good = uses("a"), uses("b"), uses("a", "c"), uses("c")
    async with world(hangs, fails, both, good) as at:
        at.catalogue.hanging, at.catalogue.failing = {"a"}, {"b"}
        await at.starts(good)
        assert await at.holds_up(hangs, both)


async def test_a_failure_is_logged_once_and_asked_again_later() -> None:
    fails = uses("b")
    with structlog.testing.capture_logs() as logs:
        async with world(fails) as at:
            at.catalogue.failing = {"b"}
            await at.reaches([fails], {fails.id: AGAIN_S})
            at.clock.now += 1.0
            newer = uses("b")
            at.put(newer)
            waits = await at.queued.renew_before_start([newer])
            assert waits == {newer.id: AGAIN_S - 1.0}, "those that come later wait no longer"
            at.clock.now += AGAIN_S - 1.0
            await at.reaches([fails, newer], {fails.id: AGAIN_S, newer.id: AGAIN_S})
            assert at.catalogue.asked == ["b", "b"]
            at.catalogue.failing.clear()
            at.clock.now += AGAIN_S
            await at.starts(fails, newer)
    assert [one["dataset"] for one in logs] == ["kim/b"]


async def test_what_was_read_before_a_change_or_an_attempt_starts_nothing() -> None:
    one = uses("a")
    async with world(one) as at:
        await at.starts(one)
        at.catalogue.hanging = {"a"}
        assert not await at.queued.renew_before_start([one]), "it is known"
        at.withdrawn["kim"] += 1
        assert await at.holds_up(one)
        at.withdrawn["kim"] -= 1
        again = replace(one, attempt=one.attempt + 1)
        assert await at.holds_up(again)
        at.clock.now += VALID_FOR_S
        assert await at.holds_up(one)


async def test_datasets_of_who_never_changed_a_right_hold_up_nothing() -> None:
    one = uses("a", "b")
    mine, other = one.spec.datasets
    both = replace(one, spec=replace(one.spec, datasets=(mine, replace(other, owner="lee"))))
    async with world(both) as at:
        await at.starts(both)
        assert at.catalogue.asked == ["a"]
        at.withdrawn["lee"] = 1
        assert await at.holds_up(both)
        await at.starts(both)
        assert at.catalogue.asked == ["a", "b"]


async def test_what_no_queued_session_uses_is_not_looked_up() -> None:
    runs, plain, one = uses("a"), uses("b"), uses("c")
    [of_lee] = [replace(dataset, owner="lee") for dataset in plain.spec.datasets]
    plain = replace(plain, spec=replace(plain.spec, datasets=(of_lee,)))
    async with world(replace(runs, state=SessionState.RUNNING), plain, one) as at:
        await at.starts(one)
        assert at.catalogue.asked == ["c"]
        assert not at.queued.must_renew(plain)
        at.put(replace(one, state=SessionState.RUNNING), replace(runs, attempt=2))
        again = replace(runs, attempt=2)
        await at.starts(again)
        assert set(at.datasets._known) == {("kim", "a")}


async def test_one_that_cannot_be_written_holds_up_no_other() -> None:
    first, second = uses("a"), uses("a")
    async with world(first, second) as at:
        at.writer.failing = {first.id}
        await at.starts(second)
        assert await at.queued.renew_before_start([first, second]) == {first.id: AGAIN_S}


async def test_who_is_queued_while_something_is_always_due_and_asked_for_is_looked_up() -> None:
    """As with 80 datasets and look-ups of 300 ms: each round ends when the next has begun."""
    old = uses("old")
    async with world(old) as at:

        def slow(_: str) -> None:
            at.clock.now += REFRESHED_AFTER_S
            at.datasets.of(old)
            at.datasets.want(old)

        at.catalogue.look = slow
        at.datasets.want(old)
        async with asyncio.timeout(60):
            while len(at.catalogue.asked) < 10:  # noqa: ASYNC110 - the history sets no event
                await asyncio.sleep(0)
            at.put(uses("new"))
            while "new" not in at.catalogue.asked:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_what_is_about_to_start_is_looked_up_before_all_that_waits() -> None:
    new = uses("new")
    others = [uses(f"d{number}") for number in range(40)]
    async with world(*others) as at:

        def queued(_: str) -> None:
            at.catalogue.look = lambda _: None
            at.put(new)
            at.datasets.of(new)
            at.datasets.want(new)

        at.catalogue.look = queued
        await at.starts(new)
        assert at.catalogue.asked.index("new") < 10
        await at.starts(*others)


async def test_what_is_not_about_to_start_is_not_looked_up_again() -> None:
    waits, starts = uses("a"), uses("b")
    async with world(waits, starts) as at:
        await at.starts(waits, starts)
        for _ in range(int((WANTED_FOR_S + VALID_FOR_S) / REFRESHED_AFTER_S) + 1):
            at.clock.now += REFRESHED_AFTER_S
            before = at.catalogue.asked.count("b")
            async with asyncio.timeout(60):
                while at.catalogue.asked.count("b") == before:
                    await at.queued.renew_before_start([starts])
                    at.datasets.want(starts)
                    await asyncio.sleep(0.001)
        assert at.catalogue.asked.count("b") > at.catalogue.asked.count("a")
        assert await at.holds_up(waits), "what was read long ago starts nothing"
        await at.starts(waits)


async def test_sessions_are_written_beside_each_other() -> None:
    many = [uses("a") for _ in range(3 * RENEWED_AT_ONCE)]
    async with world(*many) as at:
        await at.starts(*many)
        assert at.writer.most_writing == RENEWED_AT_ONCE
