"""Followers of the SDK under real shims: they read to the end of the files of a program that was killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.contract.test_runtime_contract import (
    PROCESS_BENCHES,
    bench_named,
    facts,
    nothing_left,
    soon,
    tmp_path,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.contract.test_runtime_contract import Bench, IsolationFacts

__all__ = ["facts", "nothing_left", "tmp_path"]

FOLLOWED = """
markers=$NSML_RUN_DIR/echo/following
mkdir -p $markers
setsid sh -c 'echo > '$markers'/$$; sleep 0.5; echo read to the end; rm '$markers'/$$' &
while [ -z "$(ls $markers)" ]; do sleep 0.02; done
echo killed
"""


@pytest.fixture(params=PROCESS_BENCHES)
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    """Every way to run a program but containers, which end with it."""
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


async def test_a_follower_ends_before_it_is_killed(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.sh(FOLLOWED + "kill -9 $$")
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
        assert record.signal == signal.SIGKILL
        assert bench.output(spec) == b"killed\nread to the end\n"
