"""What the kernel counts for a user: one program that takes all it gets leaves others theirs.

Each takes until it is refused, says how many it has, and holds them.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.folders import ReplicaId
from tests.contract.test_runtime_contract import (  # noqa: F401 - fixtures
    SESSION,
    Bench,
    bench_named,
    facts,
    nothing_left,
    soon,
    tmp_path,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.runtimes.isolation import IsolationFacts

TAKES = """
import ctypes, os, resource, sys, time
libc = ctypes.CDLL(None, use_errno=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

def instance():
    return libc.inotify_init1(0) >= 0

def timer():
    return libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0

queues = 0
def queue():
    global queues
    queues += 1
    return libc.mq_open(b"/%d" % queues, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0

def terminal():
    try:
        return os.open("/dev/ptmx", os.O_RDWR) >= 0
    except OSError:
        return False

count, take = 0, globals()[sys.argv[1]]
while count < int(sys.argv[2]) and take():
    count += 1
print("ready", count, flush=True)
time.sleep(1000)
"""
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(params=["own uid", "namespace"])
async def counted(
    request: pytest.FixtureRequest,
    tmp_path: Path,  # noqa: F811
    facts: IsolationFacts,  # noqa: F811
) -> AsyncIterator[Bench]:
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


def program(bench: Bench, what: str, *, most: int, rank: int = 0) -> ReplicaSpec:
    replica_id = ReplicaId(session_id=SESSION, attempt=1, rank=rank)
    return bench.spec(argv=("python3", "-c", TAKES, what, str(most)), replica_id=replica_id)


def taken(bench: Bench, spec: ReplicaSpec) -> int:
    return int(bench.output(spec).split()[1])


def instance() -> bool:
    found = libc.inotify_init1(0)
    if found >= 0:
        os.close(found)
    return bool(found >= 0)


def timer() -> bool:
    made = ctypes.c_void_p()
    is_made = libc.timer_create(1, None, ctypes.byref(made)) == 0
    if is_made:
        libc.timer_delete(made)
    return is_made


def queue() -> bool:
    name = b"/nsml-test-%d" % os.getpid()
    found = libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)
    if found >= 0:
        os.close(found)
        libc.mq_unlink(name)
    return bool(found >= 0)


def terminal() -> bool:
    os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    return True


@pytest.mark.parametrize("taken_here", [instance, timer, queue, terminal])
async def test_a_program_that_takes_all_it_gets_leaves_others_theirs(
    counted: Bench, taken_here: Callable[[], bool]
) -> None:
    what = taken_here.__name__
    async with counted.new_driver() as driver:
        greedy = program(counted, what, most=1_000_000)
        await driver.start(greedy)
        await until(lambda: b"\n" in counted.output(greedy))
        modest = program(counted, what, most=1, rank=1)
        await driver.start(modest)
        await until(lambda: b"\n" in counted.output(modest))
        assert taken(counted, greedy) >= 1
        assert taken(counted, modest) == 1
        assert taken_here(), "the machine's own programs"
        for spec in (greedy, modest):
            await driver.kill(spec.replica_id, reason="seen")
            await soon(driver.wait(spec.replica_id))


async def test_a_crash_is_read_by_no_handler_of_the_machine(counted: Bench) -> None:
    """Of RLIMIT_CORE 1 alone the kernel takes that where core_pattern is a pipe; see core(5)."""
    async with counted.new_driver() as driver:
        limit = "import resource; print(*resource.getrlimit(resource.RLIMIT_CORE))"
        spec = counted.spec(
            argv=("python3", "-c", limit),
            replica_id=ReplicaId(session_id=SESSION, attempt=1, rank=0),
        )
        await driver.start(spec)
        await soon(driver.wait(spec.replica_id))
        assert counted.output(spec).split() == [b"1", b"1"]
