"""What is promised for an instant comes then, on a platform where nothing else happens.

More of them: `python -m tests.simulation --silence --seeds 100`.
"""

from __future__ import annotations

import pytest

from tests.simulation.silence import PROMISES, simulate_silence

FIRST = {"idle gives way", "a lower class gives way though it binds late"}


@pytest.mark.parametrize(
    ("promise", "seed"),
    [
        pytest.param(one, seed, marks=() if one in FIRST and seed == 3 else pytest.mark.variant)
        for one in PROMISES
        for seed in (1, 2, 3)
    ],
)
def test_a_promise_of_time_is_kept_though_nothing_else_happens(promise: str, seed: int) -> None:
    print(f"python -m tests.simulation --silence --seed {seed}, {promise}")
    print(simulate_silence(seed, promise))
