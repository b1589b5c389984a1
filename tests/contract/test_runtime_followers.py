"""Followers of the SDK under real shims: they read to the end of the files of a program that was killed."""

from __future__ import annotations

import base64
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.runtimes.interface import Isolation, PythonEnvironment
from nsml._install import write_sdk
from tests.contract.test_runtime_contract import (
    PROCESS_BENCHES,
    bench_named,
    facts,
    nothing_left,
    soon,
    tmp_path,
)
from tests.support.echoes import records_in
from tests.unit.nsml.echo.test_event_files import event, scalar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.contract.test_runtime_contract import Bench, IsolationFacts

__all__ = ["facts", "nothing_left", "tmp_path"]

FOLLOWED = """
markers=$NSML_RUN_DIR/echo/following
mkdir -p $markers
setsid sh -c 'echo > '$markers'/$$; sleep 0.5; echo read to the end; rm '$markers'/$$' &
while [ -z "$(ls $markers)" ]; do sleep 0.02; done
echo killed
"""

WRITES = '''\
"""Writes an event file as TensorFlow does: all of it at its end."""
import base64, os, signal, socket, sys, time
from nsml._echo import _following

folder = os.path.join(os.environ["NSML_RUN_DIR"], "runs")
os.mkdir(folder)
_following.follow(folder)
name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.0.v2"
with open(os.path.join(folder, name), "wb") as file:
    file.write(base64.b64decode(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
'''


@pytest.fixture(params=[*PROCESS_BENCHES, "docker"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    """Every way to run a program."""
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


async def test_a_follower_ends_before_it_is_killed(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.sh(FOLLOWED + "kill -9 $$")
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
        assert record.signal == signal.SIGKILL
        assert bench.output(spec) == b"killed\nread to the end\n"


async def test_what_a_program_writes_before_it_is_killed_is_read(
    bench: Bench, tmp_path: Path
) -> None:
    """The real follower, which may not have begun yet."""
    if bench.isolation is Isolation.USER:
        pytest.skip("the interpreter of the tests is out of the reach of other users")
    sdk = tmp_path / "sdk"
    write_sdk(sdk)
    prefix = Path(sys.base_prefix)
    python = PythonEnvironment(folder=prefix, base_prefix=prefix)
    events = b"".join(event(scalar(b"loss", step), step=step) for step in range(500))
    async with bench.new_driver() as driver:
        argv = ("python3", "-c", WRITES, base64.b64encode(events).decode())
        spec = bench.spec(argv=argv, sdk_folder=sdk, python=python)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
        assert record.signal == signal.SIGKILL, bench.output(spec)
        found = records_in(bench.folders.of(spec.replica_id).run, "metric")
        steps = [(one["step"], one["values"]["loss"]) for one in found]
        assert steps == [(step, float(step)) for step in range(500)]
        assert {one["origin"] for one in found} == {"tensorboard"}
