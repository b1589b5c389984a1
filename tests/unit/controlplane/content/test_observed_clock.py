"""A clock that is set, or wrong, makes nothing old enough to be deleted."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import pytest
from structlog.testing import capture_logs

from controlplane.content.observed_clock import (
    MOST_APART_S,
    MOST_SPANS,
    OBSERVE_EVERY_S,
    TOLERANCE_S,
    UNOBSERVED_S,
    ClocksDiffer,
    Span,
    cutoff,
    extended,
    needed,
)
from controlplane.history.errors import HistoryUnavailable
from tests.unit.controlplane.content.test_object_gc import GRACE, World, a_world, tree

DAY_S = 86_400.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def goes_by(world: World, seconds: float) -> None:
    """While the leader observes the clock."""
    world.clock.now += seconds
    await world.observed.cutoff()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("days", [1.5, 40.0, -2.0])
async def test_a_clock_that_is_set_by_days_removes_nothing_early(
    world: World, days: float, is_restarted: bool
) -> None:
    """What was sent before is put aside once a grace went by, and what is aside is removed after another one."""
    await world.send(tree("a"))
    for expected in ("put_aside", "removed"):
        await goes_by(world, 60.0)
        world.clock.wrong += days * DAY_S
        if is_restarted:
            world.start()
        with capture_logs() as told:
            done = await world.look()
        assert (done.put_aside, done.removed) == (0, 0)
        jumps = [line["by_s"] for line in told if line["event"] == "clock.jumped"]
        assert jumps == ([] if is_restarted and days > 0 else [days * DAY_S])
        await goes_by(world, GRACE - 61.0)
        done = await world.look()
        assert (done.put_aside, done.removed) == (0, 0), "a minute is missing"
        await goes_by(world, 62.0 + max(-days * DAY_S, 0.0))
        assert getattr(await world.look(), expected) == 2
    assert await world.everything() == set()


async def test_a_platform_that_is_off_each_night_collects_once_it_was_on_for_a_grace(
    world: World,
) -> None:
    await world.send(tree("a"))
    looks = []
    for _ in range(6):
        await goes_by(world, 8 * 3600.0)
        done = await world.look()
        looks.append((done.put_aside, done.removed))
        world.clock.now += 16 * 3600.0
        world.start()
        await world.observed.cutoff()
    assert looks == [(0, 0), (0, 0), (2, 0), (0, 0), (0, 0), (0, 2)]


@pytest.mark.parametrize("apart", [MOST_APART_S + 1, -MOST_APART_S - 1])
async def test_nothing_is_done_while_two_clocks_differ(world: World, apart: float) -> None:
    """The history's, by which objects are stamped, may be that of another machine."""
    one = tree("a")
    await world.send(one)
    world.clock.now += GRACE
    with pytest.MonkeyPatch.context() as patch:

        async def now() -> float:
            return world.clock.now + apart

        patch.setattr(world.objects, "now", now)
        with pytest.raises(ClocksDiffer, match="behind" if apart < 0 else "ahead"):
            await world.look()
    assert await world.objects.has_missing(one.blobs) == set()
    assert (await world.look()).put_aside == 0, "it was set"


async def test_the_leader_observes_it_whatever_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = world.clock.now
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.clock.now += seconds
        if len(slept) == 4:
            raise asyncio.CancelledError

    async def update_property(name: str, change: Callable[[str], str]) -> str:
        if len(slept) == 2:
            raise HistoryUnavailable("away")
        return await sound(name, change)

    sound = world.history.update_property
    monkeypatch.setattr(world.clock, "sleep", sleep)
    monkeypatch.setattr(world.history, "update_property", update_property)
    with capture_logs() as told, contextlib.suppress(asyncio.CancelledError):
        await world.observed.run()
    assert slept == [OBSERVE_EVERY_S] * 4
    assert [line["event"] for line in told] == ["clock.not_observed"]
    world.clock.now = began + GRACE
    assert await world.observed.cutoff() == began


@pytest.mark.parametrize("seed", range(20))
def test_what_is_called_old_is_old_whatever_happens_to_the_clock(seed: int) -> None:
    """Set ahead or back, once at most between two readings, and not read for a while by another leader."""
    chance, grace = random.Random(seed), 10_000.0
    spans: tuple[Span, ...] = ()
    went_by, wrong, last = 0.0, 1e6, None
    stamped: list[tuple[float, float]] = []
    oldest = -1.0

    def stamp() -> None:
        nonlocal went_by
        went_by += chance.uniform(0.0, OBSERVE_EVERY_S / 4)
        stamped.append((went_by + wrong, went_by))

    for _ in range(600):
        stamp()
        if chance.random() < 0.005:
            wrong += chance.choice([-1, 1]) * chance.uniform(UNOBSERVED_S * 2, 100_000.0)
            stamp()
        elif chance.random() < 0.02:
            went_by, last = went_by + chance.uniform(0.0, 3 * UNOBSERVED_S), None
        stamp()
        now = went_by + wrong
        spans = needed(extended(spans, now, None if last is None else went_by - last), grace)
        last = went_by
        before = cutoff(spans, grace)
        for at, made in stamped:
            if at <= before:
                oldest = max(oldest, went_by - made)
                assert went_by - made >= grace - 1e-6
    assert oldest >= grace, "some were"
    assert len(spans) <= MOST_SPANS


def test_small_differences_are_no_jumps_and_add_up_to_nothing() -> None:
    spans: tuple[Span, ...] = ()
    for at in range(100):
        now = 1_000.0 + 300.0 * at + random.Random(at).uniform(-TOLERANCE_S, TOLERANCE_S) / 2
        spans = extended(spans, now, 300.0)
    assert len(spans) == 1
    assert cutoff(spans, 28_000.0) == pytest.approx(spans[0].end - 28_000.0)
    assert cutoff(spans, 31_000.0) == float("-inf")
