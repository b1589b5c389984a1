"""Whatever is removed, restored, purged and collected in whatever order: what has a name is whole, and nothing else stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from controlplane.content.observed_clock import MOST_APART_S
from controlplane.datasets.purge_loop import Purging
from controlplane.datasets.references import DatasetReference, parse_dataset
from controlplane.domain.errors import InvalidRequest, LimitReached, NotFound, StateConflict
from controlplane.domain.values import PartAccess
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.sql import object_references
from controlplane.history.sqlite import open_history
from nsml.common.clock import inline
from tests.unit.controlplane.limits.test_user_storage import (
    CALLERS,
    GRACE,
    LIMIT,
    Plane,
    World,
    tree,
)
from tests.unit.controlplane.rig import until
from tests.unit.controlplane.workbench import HandClock

KIM = CALLERS["kim"]
NAMES = ("one", "two")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = HandClock()
    clock.now = 1_000_000.0
    history = await open_history(":memory:", clock=clock, run=inline)
    made = World(history, clock)
    await made.observed.cutoff()
    yield made
    await history.close()


class Script:
    """Does what users and the leader may do at any time, and knows what each version has to have."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.plane, self.rng = world, Plane(world), random.Random(seed)
        self.content: dict[tuple[str, int], tuple[str, ...]] = {}

    async def push(self) -> None:
        name = self.rng.choice(NAMES)
        files = tuple(self.rng.sample("abcdefgh", self.rng.randint(1, 3)))
        try:
            await self.plane.push("kim", name, *files)
        except InvalidRequest:
            return  # nothing of it is open
        found = await self.plane.datasets.lookup.find(KIM, parse_dataset(name))
        known = self.content.setdefault((name, found.version.number), files)
        assert tree(*known)[0] == found.whole_digest, "a number names one content for good"

    async def hide(self) -> None:
        """Change who reads one file, in all versions of a dataset."""
        parts = {f"f{self.rng.randrange(3)}": self.rng.choice([*PartAccess])}
        with suppress(NotFound, InvalidRequest):
            await self.plane.datasets.update(
                KIM,
                DatasetReference(name=self.rng.choice(NAMES)),
                visibility=None,
                description=None,
                parts=parts,
            )

    async def remove(self) -> None:
        await self._try(self.plane.datasets.remove)

    async def restore(self) -> None:
        await self._try(self.plane.datasets.restore)

    async def _try(self, act: Any) -> None:
        version = self.rng.choice([0, *range(1, 6)])
        with suppress(NotFound, StateConflict):
            await act(KIM, DatasetReference(name=self.rng.choice(NAMES), version=version))

    async def purge(self) -> None:
        since = self.world.clock.now - GRACE
        kept = {key for key, at in (await self._removed_at()).items() if at == 0 or at >= since}
        await self.plane.datasets.purge(self.world.clock.now)
        assert kept == (await self._removed_at()).keys()

    async def _removed_at(self) -> dict[tuple[str, int], float]:
        listed = self.world.history.catalogue.dataset_versions
        return {
            (name, one.version.number): one.version.removed_at
            for name in NAMES
            for one in await listed("kim", name, with_removed=True)
        }

    async def wait(self) -> None:
        self.world.clock.now += GRACE * self.rng.choice([0.1, 0.5, 1.1])

    async def look(self) -> None:
        """A collection, during which others act between any two pages of references."""
        catalogue = self.world.history.catalogue
        read = catalogue.referred

        async def referred(after: Any = ()) -> Any:
            if self.rng.random() < 0.5:
                await self.rng.choice([self.remove, self.restore, self.purge, self.hide])()
            return await read(after)

        catalogue.referred = referred
        try:
            await self.world.collector().look()
        finally:
            catalogue.referred = read

    async def check(self) -> None:
        for name in NAMES:
            listed = await self.world.history.catalogue.dataset_versions(
                "kim", name, with_removed=True
            )
            for one in listed:
                files = self.content[name, one.version.number]
                roots = one.parts.roots if one.parts else ()
                for digest in [*tree(*files)[1], one.version.digest, *(of.digest for of in roots)]:
                    assert await self.world.objects.get(digest)


@pytest.mark.parametrize("seed", range(6))
async def test_what_can_be_restored_is_whole(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_references, "_PAGE_ROWS", 1)
    script = Script(world, seed)
    acts = [script.push, script.remove, script.restore, script.purge, script.wait, script.look]
    acts.append(script.hide)
    for _ in range(80):
        await script.rng.choice(acts)()
        await script.check()
    for name in NAMES:
        await world.history.catalogue.remove_dataset("kim", name, at=world.clock.now)
    world.clock.now += GRACE + 1
    await script.purge()
    for _ in range(3):
        world.clock.now += GRACE + 1
        await world.collector().look()
    assert [one async for one in world.objects.list()] == []
    assert [one async for one in world.objects.list_aside()] == []


async def counted(world: World) -> Plane:
    """A control plane that knows a fresh count."""
    plane = Plane(world, kept_bytes=LIMIT)
    await world.collector().count()
    await plane.kept.look()
    return plane


async def test_nothing_is_restored_above_the_limit(world: World) -> None:
    names = [f"{letter}{digit}" for letter in "abcd" for digit in range(6)]
    first = Plane(world, kept_bytes=LIMIT)
    await first.push("kim", "large", *names)
    await first.push("kim", "large", *names, "one-more")
    await world.history.sent.forget(before=1 << 40)
    plane = await counted(world)
    full = plane.kept.use("kim").used
    assert LIMIT / 2 < full < LIMIT
    await plane.datasets.remove(KIM, parse_dataset("large"))
    assert (await plane.datasets.restore(KIM, parse_dataset("large")))[1] == (1, 2), "at once"
    with pytest.raises(StateConflict, match="kim/large@2 is there: it was not removed"):
        await plane.datasets.restore(KIM, parse_dataset("large", 2))
    await plane.datasets.remove(KIM, parse_dataset("large"))
    plane = await counted(world)
    assert plane.kept.use("kim").used == 0, "what is removed does not count"
    # Both versions share all but one file: each for itself they are too much.
    assert (await plane.datasets.restore(KIM, parse_dataset("large")))[1] == (1, 2)
    assert abs(plane.kept.use("kim").used - full) < full / 10
    assert (await counted(world)).kept.use("kim").used == full
    plane = await counted(world)
    await plane.datasets.remove(KIM, parse_dataset("large"))
    plane = await counted(world)
    await plane.push("kim", "other", *(f"x{name}" for name in names))
    with pytest.raises(LimitReached):
        await plane.datasets.restore(KIM, parse_dataset("large"))


async def test_nothing_is_restored_after_its_grace(world: World) -> None:
    plane = Plane(world)
    await plane.push("kim", "one", "a")
    await plane.datasets.remove(KIM, parse_dataset("one"))
    world.clock.now += GRACE + 1
    for act in (plane.datasets.restore, plane.datasets.lookup.find):
        with pytest.raises(NotFound) as refused:
            await act(KIM, parse_dataset("one"))
        assert "restore one" not in refused.value.attempt
    await plane.datasets.purge(world.clock.now)
    await plane.push("kim", "one", "a")
    assert (await plane.datasets.lookup.find(KIM, parse_dataset("one"))).version.number == 2


async def test_the_leader_purges_what_cannot_be_restored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = Plane(world)
    for name in NAMES:
        await plane.push("kim", name, "a")
        await plane.datasets.remove(KIM, parse_dataset(name))
        world.clock.now += GRACE / 2 + MOST_APART_S
    sound, failing = world.history.catalogue.purge_datasets, [HistoryUnavailable("away")]

    async def purge_datasets(before: float) -> int:
        if failing:
            raise failing.pop()
        return await sound(before)

    monkeypatch.setattr(world.history.catalogue, "purge_datasets", purge_datasets)
    left = [
        partial(world.history.catalogue.dataset_versions, "kim", name, with_removed=True)
        for name in NAMES
    ]

    async def is_purged() -> bool:
        return not failing and not await left[0]()

    purging = Purging(datasets=plane.datasets, observed=world.observed, clock=world.clock)
    running = asyncio.create_task(purging.run())
    try:
        await until(is_purged, "the one that was removed first is purged")
        assert len(await left[1]()) == 1, "it can be restored still"
        assert not running.done()
    finally:
        running.cancel()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_clock_that_is_days_ahead_purges_nothing_early(
    world: World, is_restarted: bool
) -> None:
    """Once it is right again, what was removed an hour ago can be restored; in a grace it goes."""
    plane = Plane(world)
    await plane.push("kim", "one", "a")
    await plane.datasets.remove(KIM, parse_dataset("one"))
    acts: list[float] = []

    async def sleep(_: float) -> None:
        acts.append(world.clock.now)
        if len(acts) == 2:
            raise asyncio.CancelledError

    async def purge_once() -> None:
        acts.clear()
        with suppress(asyncio.CancelledError):
            await Purging(datasets=plane.datasets, observed=observed, clock=world.clock).run()

    world.clock.sleep = sleep  # type: ignore[method-assign]
    observed = world.new_observed() if is_restarted else world.observed
    world.clock.now += 600
    world.clock.wrong = 3 * GRACE
    await purge_once()
    world.clock.wrong = 0.0
    await purge_once()
    assert (await plane.datasets.restore(KIM, parse_dataset("one")))[1] == (1,)
    await plane.datasets.remove(KIM, parse_dataset("one"))
    world.clock.now += GRACE + MOST_APART_S + 1
    await purge_once()
    assert not await world.history.catalogue.dataset_versions("kim", "one", with_removed=True)
