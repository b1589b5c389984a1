"""The notice, of real shims and programs: who is given it, who leaves in time, and what comes of the rest."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from nodeagent.runtimes.interface import ExitRecord, ExitWhy, ReplicaSpec
from tests.contract.test_runtime_contract import (
    PATIENCE_S,
    Bench,
    facts,
    nothing_left,
    real,
    soon,
    tmp_path,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["facts", "nothing_left", "real", "tmp_path"]

BINDS = """echo '{"save": true, "load": true}' > $NSML_RUN_DIR/resumable.json; echo ready; """
WAITS = "while [ ! -e $NSML_RUN_DIR/notice.json ]; do sleep 0.02; done; echo noticed; "
LEAVES = "echo '{}' > $NSML_RUN_DIR/left.json; "
LONG_S = 1000.0
"""A time limit that nobody comes to."""
RUNS_ON = "while :; do sleep 0.02; done"


async def ended(
    bench: Bench, program: str, *, notice_s: float = PATIENCE_S, **spec: object
) -> tuple[ExitRecord, ReplicaSpec]:
    """What comes of a program that is told to go once it is ready."""
    async with bench.new_driver() as driver:
        made = bench.sh(program, **spec)
        await driver.start(made)
        await bench.ready(made)
        await driver.stop(
            made.replica_id, grace_s=PATIENCE_S, reason="gives way", notice_s=notice_s
        )
        return await soon(driver.wait(made.replica_id)), made


async def test_who_saves_and_leaves_was_stopped_whatever_its_exit_code(real: Bench) -> None:
    for code in (75, 0):
        record, spec = await ended(real, f"{BINDS}{WAITS}{LEAVES}exit {code}")
        assert (record.why, record.exit_code, record.message) == (
            ExitWhy.STOPPED,
            code,
            "gives way",
        )
        assert real.output(spec) == b"ready\nnoticed\n"
        async with real.new_driver() as driver:
            await driver.remove(spec.replica_id)


async def test_who_comes_to_its_own_end_meanwhile_has_come_to_its_end(real: Bench) -> None:
    record, _ = await ended(real, f"{BINDS}{WAITS}exit 0")
    assert (record.why, record.exit_code, record.message) == (ExitWhy.EXITED, 0, "")


async def test_who_fails_meanwhile_was_stopped(real: Bench) -> None:
    """Of a gang the others fail of who left first."""
    record, _ = await ended(real, f"{BINDS}{WAITS}exit 1")
    assert (record.why, record.exit_code) == (ExitWhy.STOPPED, 1)


async def test_who_takes_no_notice_gets_sigterm_after_it(real: Bench) -> None:
    record, _ = await ended(real, f"{BINDS}{RUNS_ON}", notice_s=0.5)
    assert (record.why, record.signal) == (ExitWhy.STOPPED, signal.SIGTERM)
    assert record.duration_s >= 0.5


async def test_who_cannot_save_is_given_no_notice(real: Bench) -> None:
    record, spec = await ended(real, f"echo ready; {RUNS_ON}", notice_s=1000)
    assert (record.why, record.signal) == (ExitWhy.STOPPED, signal.SIGTERM)
    assert not (real.folders.of(spec.replica_id).run / "notice.json").exists()


async def test_who_has_saved_is_given_notice(real: Bench) -> None:
    saves = "mkdir -p $NSML_RUN_DIR/checkpoints/1-best/model; echo ready; "
    record, spec = await ended(real, f"{saves}{WAITS}{LEAVES}exit 75")
    assert (record.why, record.exit_code) == (ExitWhy.STOPPED, 75)
    said = json.loads((real.folders.of(spec.replica_id).run / "notice.json").read_bytes())
    assert said == {"goes": True, "reason": "gives way"}


async def test_a_later_order_ends_the_notice(real: Bench) -> None:
    async with real.new_driver() as driver:
        spec = real.sh(f"{BINDS}{WAITS}{RUNS_ON}")
        await driver.start(spec)
        await real.ready(spec)
        await driver.stop(spec.replica_id, grace_s=1000, reason="gives way", notice_s=1000)
        await until(lambda: b"noticed\n" in real.output(spec))
        await driver.stop(spec.replica_id, grace_s=1000, reason="the owner")
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.signal) == (ExitWhy.STOPPED, signal.SIGTERM)


async def test_notice_outlives_the_agent(real: Bench) -> None:
    spec = real.sh(f"{BINDS}{WAITS}{RUNS_ON}")
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        await driver.stop(spec.replica_id, grace_s=1000, reason="gives way", notice_s=2.0)
        await until(lambda: b"noticed\n" in real.output(spec))
    async with real.new_driver() as driver:
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.signal) == (ExitWhy.STOPPED, signal.SIGTERM)


async def limited(bench: Bench, program: str, limit_s: float, *, leaves: bool) -> ExitRecord:
    """What comes of a program that is near its limit before it can save."""
    async with bench.new_driver() as driver:
        spec = bench.sh(
            program,
            time_limit_s=limit_s,
            warning_s=limit_s,
            leaves_at_limit=leaves,
            grace_s=PATIENCE_S,
        )
        await driver.start(spec)
        return await soon(driver.wait(spec.replica_id))


async def test_before_its_time_limit_who_goes_on_later_may_leave(real: Bench) -> None:
    record = await limited(real, f"{BINDS}{WAITS}{LEAVES}exit 75", LONG_S, leaves=True)
    assert (record.why, record.exit_code) == (ExitWhy.TIME_LIMIT, 75)
    assert record.duration_s < LONG_S
    assert "1000 s" in record.message


async def test_else_it_is_told_and_has_all_of_its_time(real: Bench) -> None:
    record = await limited(real, f"{BINDS}{WAITS}{RUNS_ON}", 2.0, leaves=False)
    assert (record.why, record.signal) == (ExitWhy.TIME_LIMIT, signal.SIGTERM)
    assert record.duration_s >= 2.0


async def test_no_link_of_the_program_is_followed(real: Bench, tmp_path: Path) -> None:
    """A program may not have the shim, which may be root, write or read elsewhere."""
    victim = tmp_path / "victim"
    victim.write_text('{"save": true}')
    links = (
        f"ln -s {victim} $NSML_RUN_DIR/notice.json; ln -s {victim} $NSML_RUN_DIR/resumable.json; "
    )
    record, _ = await ended(real, f"{links}echo ready; {RUNS_ON}", notice_s=1000)
    assert record.signal == signal.SIGTERM, "what a link says it bound does not count"
    assert victim.read_text() == '{"save": true}'
    async with real.new_driver() as driver:
        await driver.remove(real.sh("").replica_id)
    pipe = "mkfifo $NSML_RUN_DIR/resumable.json $NSML_RUN_DIR/left.json; echo ready; "
    record, _ = await ended(real, f"{pipe}{RUNS_ON}", notice_s=1000)
    assert record.signal == signal.SIGTERM
