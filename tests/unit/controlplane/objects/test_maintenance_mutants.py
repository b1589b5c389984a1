"""What shows that packs are kept in order is awake: without one of the safeguards it finds something lost, or kept for ever.

Not here, because another safeguard makes up for it: `move` without the condition that a blob is still where it was copied
from. The copy is verified, and what was put elsewhere meanwhile is the same blob.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.history.sql import packs
from controlplane.objects import maintenance
from tests.support.mutants import Mutant, install, is_found
from tests.unit.controlplane.objects import test_packed as of_packs

SEEDS = 40


async def _in_a_world(test: Callable[..., Awaitable[object]], *kept: object) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        wanted = [patch if one is pytest.MonkeyPatch else one for one in kept]
        await test(of_packs.World(Path(folder) / "objects"), *wanted)


async def _killed(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        test: Any = of_packs.test_killed_anywhere_nothing_that_was_acknowledged_is_lost_and_no_room
        await test(Path(folder), patch, seed)


def keeping() -> Iterator[Awaitable[object]]:
    yield _in_a_world(of_packs.test_who_does_not_lead_any_more_changes_nothing)
    for step in ("remove", "forget"):
        yield _in_a_world(
            of_packs.test_what_was_in_a_pack_does_not_come_back_if_its_removal_is_broken_off, step
        )
    yield _in_a_world(of_packs.test_blobs_of_earlier_versions_are_read_and_moved_into_packs)
    yield _in_a_world(of_packs.test_a_loose_blob_that_is_damaged_stays_and_is_replaced_by_a_put)
    yield _in_a_world(
        of_packs.test_a_pack_without_blobs_goes_and_one_with_few_is_copied, pytest.MonkeyPatch
    )
    yield _in_a_world(of_packs.test_many_small_packs_become_few)
    yield from (_killed(seed) for seed in range(SEEDS))


MUTANTS = (
    Mutant(
        "a pack goes as soon as it is empty",
        packs,
        "(now - before_s,)",
        "(now,)",
    ),
    Mutant(
        "a pack goes though something is read from it",
        packs,
        'f"SELECT name FROM packs WHERE emptied_at <= ? AND {_HAS_NONE}", (now - before_s,)',
        '"SELECT name FROM packs WHERE put_at <= ?", (now - before_s,)',
    ),
    Mutant(
        "a pack that is empty is never noted",
        packs,
        "WHERE emptied_at IS NULL AND {_HAS_NONE}",
        "WHERE emptied_at > 0 AND {_HAS_NONE}",
    ),
    Mutant(
        "the row of a pack goes before its file",
        maintenance,
        "            await self._files.remove(key_of(name))\n            await self._index.forget([name])",
        "            await self._index.forget([name])\n            await self._files.remove(key_of(name))",
    ),
    Mutant(
        "the file of a pack stays",
        maintenance,
        "            await self._files.remove(key_of(name))\n            await self._index.forget([name])",
        "            await self._index.forget([name])",
    ),
    Mutant(
        "who does not lead any more removes packs",
        maintenance,
        "            if not may():\n                return\n            # In this order",
        "            # In this order",
    ),
    Mutant(
        "blobs are read from a copy that is not written yet",
        maintenance,
        "        await self._files.put(key_of(name), pieces)\n        await self._index.move(name, sum(map(len, pieces)), self._moved)",
        "        await self._index.move(name, sum(map(len, pieces)), self._moved)\n        await self._files.put(key_of(name), pieces)",
    ),
    Mutant(
        "a copied blob is read from where it was in the pack before",
        packs,
        "(number, new.start, new.stored, old.digest, old.start, old.pack)",
        "(number, old.start, old.stored, old.digest, old.start, old.pack)",
    ),
    Mutant(
        "what is copied is not noted",
        maintenance,
        "        await self._index.move(name, sum(map(len, pieces)), self._moved)\n",
        "",
    ),
    Mutant(
        "blobs of an earlier version go before they are in a pack",
        maintenance,
        "        if pack.entries:\n            name, pieces",
        "        await self._loose.remove(moved)\n        if pack.entries:\n            name, pieces",
    ),
    Mutant(
        "what an earlier version put aside comes back",
        maintenance,
        "            if is_aside:\n",
        "            if False:\n",
    ),
)


@pytest.mark.variant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_a_missing_safeguard_is_found(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(mutant, monkeypatch)
    assert await is_found(mutant, keeping)
