"""What shows that removed datasets come back whole, and go in time, is awake: it finds each of these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from controlplane.datasets import datasets, purge_loop
from controlplane.history.sql import datasets as sql_datasets
from controlplane.history.sqlite import open_history
from nsml.common.clock import inline
from tests.support.mutants import Mutant, install, is_found
from tests.unit.controlplane.datasets import test_restoring as of_removals
from tests.unit.controlplane.limits.test_user_storage import World
from tests.unit.controlplane.workbench import HandClock

MUTANTS = (
    Mutant(
        "what is removed can be purged at once",
        datasets,
        "min(before, self.lookup.restorable_since())",
        "before",
    ),
    Mutant(
        "what is purged goes by the clock alone",
        datasets,
        "min(before, self.lookup.restorable_since())",
        "self.lookup.restorable_since()",
    ),
    Mutant(
        "the leader takes the clock as it is",
        purge_loop,
        "await self._observed.cutoff() - MOST_APART_S",
        "self._clock.time()",
    ),
    Mutant(
        "nothing is purged",
        datasets,
        "min(before, self.lookup.restorable_since())",
        "0.0",
    ),
    Mutant(
        "versions that are there are purged with removed ones",
        sql_datasets,
        '" WHERE owner = ? AND name = ? AND removed_at > 0 AND removed_at < ?)"',
        '" WHERE owner = ? AND name = ? AND removed_at < ?)"',
    ),
    Mutant(
        "versions that were removed later are purged with earlier ones",
        sql_datasets,
        '" WHERE owner = ? AND name = ? AND removed_at > 0 AND removed_at < ?)"',
        '" WHERE owner = ? AND name = ? AND removed_at > 0 AND ? > 0)"',
    ),
    Mutant(
        "parts of what is purged stay",
        sql_datasets,
        '                connection.execute(f"DELETE FROM dataset_roots {where}", key)\n',
        "",
    ),
    Mutant(
        "what is restored is removed still",
        sql_datasets,
        '"UPDATE dataset_versions SET removed_at = 0"',
        '"UPDATE dataset_versions SET removed_at = removed_at"',
    ),
    Mutant(
        "what is too old is restored",
        datasets,
        "catalogue, since = self._history.catalogue, self.lookup.restorable_since()",
        "catalogue, since = self._history.catalogue, 0.0",
    ),
    Mutant(
        "what is restored does not count",
        datasets,
        "            await self._count_again(caller, name, digests)\n",
        "            pass\n",
    ),
    Mutant(
        "a number is given again",
        sql_datasets,
        '"UPDATE datasets SET numbered = :highest WHERE owner = :owner AND name = :name"',
        '"UPDATE datasets SET numbered = 0 WHERE owner = :owner AND name = :name AND :highest > 0"',
    ),
)


async def _in_a_world(test: Callable[..., Awaitable[object]], *args: object) -> None:
    clock = HandClock()
    history = await open_history(":memory:", clock=clock, run=inline)
    try:
        world = World(history, clock)
        await world.observed.cutoff()
        with pytest.MonkeyPatch.context() as patch:
            await test(world, *(patch if one is pytest.MonkeyPatch else one for one in args))
    finally:
        await history.close()


def removals() -> Iterator[Awaitable[object]]:
    yield _in_a_world(of_removals.test_nothing_is_restored_after_its_grace)
    yield _in_a_world(of_removals.test_a_clock_that_is_days_ahead_purges_nothing_early, False)
    yield _in_a_world(of_removals.test_nothing_is_restored_above_the_limit)
    for seed in range(6):
        yield _in_a_world(of_removals.test_what_can_be_restored_is_whole, seed, pytest.MonkeyPatch)


@pytest.mark.variant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_a_missing_safeguard_is_found(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(mutant, monkeypatch)
    assert await is_found(mutant, removals)
