"""The property of the collector is awake: without one of its safeguards, some seed loses an object or keeps garbage.

Not here, because another safeguard makes up for it: what is put aside too young, or though something refers to it, is
taken back by whoever refers to it, or by the next look, before its grace aside is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from controlplane.content import content, object_gc, observed_clock
from controlplane.content.observed_clock import MOST_APART_S
from tests.support.mutants import Mutant, install, is_found
from tests.unit.controlplane.content import test_object_gc as property_of_collector
from tests.unit.controlplane.content import test_observed_clock as of_clock
from tests.unit.controlplane.content.test_object_gc import a_world

SEEDS = 50
"""A mutant that none of these shows is not found. Each is shown by one of the first few."""


MUTANTS = (
    Mutant(
        "removed without having been aside",
        object_gc,
        "gone = await self._objects.put_aside([one.digest for one in idle], self._may)",
        "gone = await self._objects.put_aside([one.digest for one in idle], self._may)\n"
        "        await self._objects.delete(gone)",
    ),
    Mutant(
        "removed however short it was aside",
        object_gc,
        "if one.put_at <= before and one.digest not in wanted]",
        "if one.digest not in wanted]",
    ),
    Mutant(
        "removed though referred to",
        object_gc,
        "wanted = {one.digest for one in some if one.digest in marks}",
        "wanted = set()",
    ),
    Mutant(
        "the grace counts from after the references were read",
        object_gc,
        "marks = await self._marked(done, counted)\n            async for some in _batches(self._objects.list_aside()",
        "marks = await self._marked(done, counted)\n            before = await self._observed.cutoff()\n"
        "            async for some in _batches(self._objects.list_aside()",
    ),
    Mutant(
        "what lives is not looked at",
        object_gc,
        "live = [stored.value for stored in tuple(self._state.sessions.values())]",
        "live = []",
    ),
    Mutant(
        "what the history has is not looked at",
        object_gc,
        "yield [*(root for one in ended for root in roots_of(one)), *page.roots], page.blobs",
        "yield [], page.blobs",
    ),
    Mutant(
        "what ended is not looked at",
        object_gc,
        "yield [*(root for one in ended for root in roots_of(one)), *page.roots], page.blobs",
        "yield [*page.roots], page.blobs",
    ),
    Mutant(
        "nobody asks whether it is still there",
        content,
        "            if absent:\n                await self._objects.take_back(absent)",
        "            if False:\n                await self._objects.take_back(absent)",
    ),
    Mutant(
        "what is aside counts as there, and stays aside",
        content,
        "                await self._objects.take_back(absent)\n                if await self._objects.has_missing(absent):",
        "                if False:",
    ),
)


UNREAD = (
    Mutant(
        "what a manifest lists that cannot be read counts as nothing",
        object_gc,
        "    except (NotFound, BlobDamaged, ContentError) as error:\n        raise ",
        "    except (NotFound, BlobDamaged, ContentError) as error:\n        return\n        raise ",
    ),
    Mutant(
        "what a record refers to that cannot be read counts as nothing",
        object_gc,
        '        raise ReferencesUnread("the record of a session cannot be read", why=str(error)) from error',
        "        return []",
    ),
)
CLOCK = (
    Mutant(
        "the collector takes the clock as it is",
        object_gc,
        "before = await self._observed.cutoff()",
        "before = await self._objects.now() - self._observed._grace_s",
    ),
    Mutant(
        "a jump counts as time that went by",
        observed_clock,
        "if least - TOLERANCE_S <= now - end <= most + TOLERANCE_S:",
        "if now >= end:",
    ),
    Mutant(
        "a jump during a restart counts",
        observed_clock,
        "(0.0, UNOBSERVED_S) if",
        "(0.0, 1e12) if",
    ),
    Mutant(
        "what was seen before a step back counts",
        observed_clock,
        "if now - end < least:",
        "if False:",
    ),
    Mutant(
        "how long the clock was seen does not matter",
        observed_clock,
        "if end - start >= age_s:",
        "if True:",
    ),
    Mutant(
        "clocks that differ are trusted",
        observed_clock,
        "if abs(apart) > MOST_APART_S:",
        "if False:",
    ),
)


def lives() -> Iterator[Awaitable[object]]:
    return (property_of_collector.lived(seed) for seed in range(SEEDS))


async def _in_a_world(test: Callable[..., Awaitable[object]], *args: object) -> None:
    async with a_world() as world:
        await test(world, *args)


def unread() -> Iterator[Awaitable[object]]:
    yield _in_a_world(property_of_collector.test_a_manifest_that_cannot_be_read_stops_it_all)
    yield _in_a_world(property_of_collector.test_nothing_is_put_aside_while_a_page_cannot_be_read)
    yield _in_a_world(property_of_collector.test_a_record_that_cannot_be_read_stops_it_all)


async def _old(seed: int) -> None:
    of_clock.test_what_is_called_old_is_old_whatever_happens_to_the_clock(seed)


def clocks() -> Iterator[Awaitable[object]]:
    for days in (1.5, -2.0):
        for is_restarted in (False, True):
            test: Any = of_clock.test_a_clock_that_is_set_by_days_removes_nothing_early
            yield _in_a_world(test, days, is_restarted)
    yield _in_a_world(of_clock.test_nothing_is_done_while_two_clocks_differ, MOST_APART_S + 1)
    yield _in_a_world(
        of_clock.test_a_platform_that_is_off_each_night_collects_once_it_was_on_for_a_grace
    )
    yield from (_old(seed) for seed in range(20))


FOUND_BY = (
    *((mutant, lives) for mutant in MUTANTS),
    *((mutant, unread) for mutant in UNREAD),
    *((mutant, clocks) for mutant in CLOCK),
)


@pytest.mark.variant
@pytest.mark.parametrize(("mutant", "tests"), FOUND_BY, ids=lambda one: getattr(one, "name", ""))
async def test_a_missing_safeguard_is_found(
    mutant: Mutant,
    tests: Callable[[], Iterator[Awaitable[object]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_gc, "MARK_BITS", 20)
    install(mutant, monkeypatch)
    assert await is_found(mutant, tests)


@pytest.mark.variant
async def test_whatever_finds_them_finds_nothing_in_the_code_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_gc, "MARK_BITS", 20)
    nothing = Mutant(
        "nothing", observed_clock, "if end - start >= age_s:", "if end - start >= age_s:"
    )
    install(nothing, monkeypatch)
    for tests in (unread, clocks):
        assert not await is_found(nothing, tests)
