"""The referee is awake: without one of the platform's safeguards, a simulation ends in a violation.

Each mutant is run in a small situation that makes its safeguard matter, over a few seeds: one must show it, and
the invariant that was expected to.
"""

from __future__ import annotations

import pytest

from tests.simulation.invariants import Violation
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.scenario import play

QUIET_WITHIN_S = 400.0


@pytest.mark.variant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_safeguard_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    with pytest.raises(Violation) as found:
        run_some_seeds(mutant)
    names = {line.partition("]")[0].removeprefix("[") for line in found.value.args[0].splitlines()}
    print(f"{mutant.name}: {', '.join(sorted(names))}")
    assert names & {one.value for one in mutant.found_by}, found.value.args[0]


def run_some_seeds(mutant: Mutant) -> None:
    for seed in range(1, mutant.seeds + 1):
        play(seed, mutant.situation(seed), QUIET_WITHIN_S)


def test_there_are_enough_of_them_and_each_has_its_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
