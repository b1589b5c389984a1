"""The property of the collector is awake: without one of its safeguards, some seed loses an object or keeps garbage.

Not here, because another safeguard makes up for it: what is put aside too young, or though something refers to it, is
taken back by whoever refers to it, or by the next look, before its grace aside is over.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from types import ModuleType

import pytest

from controlplane.content import content, object_gc
from tests.unit.controlplane.content import test_object_gc as property_of_collector

SEEDS = 50
"""A mutant that none of these shows is not found. Each is shown by one of the first few."""
WITHIN_S = 20.0
"""Of one life: it takes a tenth of a second. A mutant may have people wait for ever."""


@dataclass(frozen=True)
class Mutant:
    """A module in which these words stand for others."""

    name: str
    module: ModuleType
    words: str
    instead: str


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
        "yield [*await run(partial(_roots_in, page.records)), *page.roots], page.blobs",
        "yield [], page.blobs",
    ),
    Mutant(
        "what ended is not looked at",
        object_gc,
        "yield [*await run(partial(_roots_in, page.records)), *page.roots], page.blobs",
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


def _mutated(mutant: Mutant) -> ModuleType:
    source = inspect.getsource(mutant.module)
    assert source.count(mutant.words) == 1, (
        f"{mutant.name}: these words have changed; change the mutant"
    )
    module = ModuleType(mutant.module.__name__)
    module.__file__ = mutant.module.__file__
    exec(
        compile(source.replace(mutant.words, mutant.instead), mutant.name, "exec"), module.__dict__
    )
    return module


@pytest.mark.variant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_a_missing_safeguard_is_found(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = _mutated(mutant)
    for name in ("Collector", "Content"):
        if hasattr(changed, name) and getattr(changed, name).__module__ == changed.__name__:
            monkeypatch.setattr(property_of_collector, name, getattr(changed, name))
    if mutant.module is object_gc:
        monkeypatch.setattr(changed, "MARK_BITS", 20)
    for seed in range(SEEDS):
        try:
            async with asyncio.timeout(WITHIN_S):
                await property_of_collector.lived(seed)
        except (BaseExceptionGroup, AssertionError):
            print(f"{mutant.name}: seed {seed}")
            return
    pytest.fail(f"{mutant.name} is found by none of {SEEDS} seeds")
