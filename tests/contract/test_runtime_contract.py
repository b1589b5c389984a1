"""One suite for every runtime, and what only real processes can be asked."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from structlog.testing import capture_logs

from nodeagent import folders
from nodeagent.engine.client import Engine, EngineRefused
from nodeagent.engine.containers import containers_of, remove_container
from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.machine.accounts import barrier
from nodeagent.runtimes.container import ContainerPlace, container_name
from nodeagent.runtimes.containment import probe_containers
from nodeagent.runtimes.docker import DockerDriver, EnginePlace
from nodeagent.runtimes.interface import (
    DeviceGrant,
    ExitWhy,
    Isolation,
    Mount,
    NodeRefused,
    PythonEnvironment,
    ReplicaNotFound,
    ReplicaRunning,
    ReplicaSpec,
    ReplicaState,
    RuntimeDriver,
    StartRefused,
)
from nodeagent.runtimes.isolation import probe_isolation, with_containers
from nodeagent.runtimes.launch import this_machine
from nodeagent.runtimes.launcher import Launcher, StartedShim, start_directly
from nodeagent.runtimes.limits import LimitFacts, probe_limits
from nodeagent.runtimes.shims import ShimDriver
from nodeagent.runtimes.strays import Strays
from nsml.common.clock import SystemClock, in_own_thread, in_thread
from tests.engines import SOCKET, required_engine, required_image
from tests.support.fake_machine import Act, FakeDriver, FakeMachine, Script
from tests.support.process_drivers import process_driver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from nodeagent.runtimes.isolation import IsolationFacts

SESSION = "s" + base64.b32encode(os.urandom(10)).decode().lower()
"""Of this run alone: processes are found and killed by it."""
MARK = base64.b32encode(os.urandom(5)).decode().lower()
"""Of this run's containers alone."""
PATIENCE_S = 120.0
"""An engine that is asked for a container by several at once copies the image for each."""
ACCOUNT, STRANGER, TRIAL = random.sample(range(1_500_000_000, 1_800_000_000), 3)
"""Ids of this run alone: processes are found and killed by them, too."""

T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """The same behaviour twice: as a program and as a script of the fake."""

    argv: tuple[str, ...]
    script: Script


def shell(text: str, script: Script) -> Program:
    return Program(("sh", "-c", text), script)


SUCCEEDS = Program(("true",), Script())
EXITS_3 = shell("exit 3", Script(exit_code=3))
SIGNALS_ITSELF = shell("kill -USR1 $$", Script(signal=int(signal.SIGUSR1)))
RUNS_ON = shell("echo ready; exec sleep 1000", Script(acts=[Act(output=b"ready\n")], forever=True))
IGNORES_SIGTERM = shell(
    "trap '' TERM; echo ready; while :; do sleep 0.05; done",
    Script(acts=[Act(output=b"ready\n")], forever=True, stops_in_s=None),
)
HEARS_SIGTERM = shell(
    "trap 'echo heard' TERM; echo ready; while :; do sleep 0.05; done",
    Script(
        acts=[Act(output=b"ready\n"), Act(after_s=2.8, output=b"heard\n")],
        forever=True,
        stops_in_s=None,
    ),
)
CLEANS_UP = shell(
    "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.02; done",
    Script(
        acts=[Act(output=b"ready\n"), Act(after_s=0.1, output=b"bye\n")], exit_code=5, stops_in_s=9
    ),
)
EXITS_7_LATER = shell(
    "echo ready; sleep 0.2; exit 7",
    Script(acts=[Act(output=b"ready\n"), Act(after_s=0.2)], exit_code=7),
)
WRITES_BYTES = shell(
    r"printf '\377\376\000\033[2J\033]0;t\007'; printf 'err' >&2; printf 'no newline'",
    Script(acts=[Act(output=b"\xff\xfe\x00\x1b[2J\x1b]0;t\x07errno newline")]),
)
IS_MISSING = Program(
    ("no-such-program-anywhere",), Script(start_error="cannot start 'no-such-program-anywhere'")
)
PROGRAMS = [
    SUCCEEDS, EXITS_3, SIGNALS_ITSELF, RUNS_ON, IGNORES_SIGTERM, HEARS_SIGTERM, CLEANS_UP,
    EXITS_7_LATER, WRITES_BYTES, IS_MISSING,
]  # fmt: skip
SCRIPTS = {program.argv: program.script for program in PROGRAMS}


@dataclass
class Bench:
    """One machine under test: makes specs, and drivers that share the machine."""

    folders: ReplicaFolders
    isolation: Isolation
    new_driver: Callable[[], RuntimeDriver]
    touch: Callable[[ReplicaId], None]
    lose_shim: Callable[[ReplicaId], None]
    account: int | None = None
    """Whom programs run as; None: who runs the tests."""
    limits: LimitFacts = field(default_factory=LimitFacts)

    def spec(self, program: Program | None = None, **more: Any) -> ReplicaSpec:
        more.setdefault("replica_id", ReplicaId(session_id=SESSION, attempt=1, rank=0))
        if program is not None:
            more["argv"] = program.argv
        more.setdefault("uid", self.account)
        return ReplicaSpec(isolation=self.isolation, gid=more["uid"], **more)

    def sh(self, text: str, **more: Any) -> ReplicaSpec:
        return self.spec(argv=("sh", "-c", text), **more)

    def output(self, spec: ReplicaSpec) -> bytes:
        return self.folders.of(spec.replica_id).output.read_bytes()

    async def ready(self, spec: ReplicaSpec) -> None:
        await until(lambda: b"ready\n" in self.output(spec))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - of other processes nobody sets an event
            await asyncio.sleep(0.005)


async def soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE_S):
        return await work


@contextmanager
def place_for_all() -> Iterator[Path]:
    """A folder that every user can pass, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="nsml-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        place.chmod(0o711)
        yield place


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with place_for_all() as place:
        yield place


@pytest.fixture(scope="session")
def facts() -> IsolationFacts:
    trial_id = TRIAL if os.geteuid() == 0 else None
    with place_for_all() as place:
        return probe_isolation(place / "agent" / "trial", trial_id=trial_id)


def process_bench(
    tmp_path: Path,
    facts: IsolationFacts,
    isolation: Isolation,
    *,
    account: int | None = None,
    zygote: bool,
    groups: bool = True,
    floor: int = 0,
) -> Bench:
    """`groups`: limits are kept by control groups where those work, else by looking."""
    if account is not None and os.geteuid():
        pytest.skip("users get ids of their own where the agent is root, and the tests are not")
    if isolation not in (facts.levels if account is None else facts.with_accounts):
        pytest.skip(f"{isolation.value} does not work here: {facts.reason}")
    folders = ReplicaFolders(tmp_path / "agent" / "replicas")
    folders.create()
    if isolation is Isolation.USER:
        for folder in (folders.path, folders.path.parent):
            folder.chmod(0o711)
    limits = probe_limits(tmp_path, disk_floor_bytes=floor, with_groups=groups)

    def driver() -> RuntimeDriver:
        return process_driver(folders, facts, limits, zygote=zygote)

    def touch(replica_id: ReplicaId) -> None:
        folders.of(replica_id).touch_contact()

    return Bench(folders, isolation, driver, touch, partial(lose_shim, folders), account, limits)


def docker_bench(tmp_path: Path, facts: IsolationFacts) -> Bench:
    required_image()
    folders = ReplicaFolders(tmp_path / "agent" / "replicas")

    def driver() -> RuntimeDriver:
        return docker_driver(folders, facts, zygote=True)

    def touch(replica_id: ReplicaId) -> None:
        folders.of(replica_id).touch_contact()

    return Bench(folders, Isolation.CONTAINER, driver, touch, partial(lose_shim, folders))


def docker_driver(folders: ReplicaFolders, facts: IsolationFacts, *, zygote: bool) -> RuntimeDriver:
    engine, said = required_engine()
    container = ContainerPlace(
        node="test",
        mark=MARK,
        user=f"{os.getuid()}:{os.getgid()}",
        open_files=(1024, 4096),
        network="none",
    )
    return DockerDriver(
        folders,
        machine=facts.machine,
        place=EnginePlace(
            engine=engine,
            api=said.api,
            container=container,
            default_image=required_image(),
            root=Path(said.root),
        ),
        launcher=Launcher(in_thread, with_zygote=zygote),
        clock=SystemClock(),
        run=in_thread,
        run_long=in_thread,
    )


def lose_shim(folders: ReplicaFolders, replica_id: ReplicaId) -> None:
    os.kill(json.loads(folders.of(replica_id).shim.read_bytes())["pid"], signal.SIGKILL)


@asynccontextmanager
async def fake_bench(tmp_path: Path) -> AsyncIterator[Bench]:
    folders = ReplicaFolders(tmp_path / "agent" / "replicas")
    clock = SystemClock()
    async with FakeMachine(clock, lambda spec: SCRIPTS[tuple(spec.argv)]) as machine:
        yield Bench(
            folders,
            Isolation.NONE,
            lambda: FakeDriver(folders, machine, clock),
            machine.contacted,
            machine.lose,
        )


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever a test did, no process of its replicas outlives it."""
    yield
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                command = Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue
            if str(tmp_path).encode() in command:
                with suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)


PROCESS_BENCHES = [
    # Where the tests are root, `own uid` is that and another user.
    pytest.param("namespace", marks=[pytest.mark.variant] if os.geteuid() == 0 else []),
    "own uid",
    *(pytest.param(name, marks=pytest.mark.variant) for name in ("user", "shared pids", "none")),
]


@asynccontextmanager
async def bench_named(
    name: str, tmp_path: Path, facts: IsolationFacts, *, groups: bool | None = None
) -> AsyncIterator[Bench]:
    """`namespace` runs programs as who runs the tests, `own uid` in a root of their own, too.

    `groups`: whether control groups keep limits; None: where they work, in some of them.
    """
    if name == "docker":
        made = docker_bench(tmp_path, facts)
    else:
        levels = {"none": Isolation.NONE, "direct": Isolation.NONE, "user": Isolation.USER}
        level = levels.get(name, Isolation.NAMESPACE)
        if name == "shared pids":  # as where the kernel refuses a /proc of one's own
            facts = replace(facts, machine=this_machine(with_pid=False))
        account = ACCOUNT if name in ("own uid", "user") else None
        if groups is None:
            groups = name not in ("shared pids", "direct")
        made = process_bench(
            tmp_path, facts, level, account=account, zygote=name != "direct", groups=groups
        )
    yield made
    await end_all(made)
    if name == "docker":
        await nothing_left_in_engine()


@pytest.fixture(
    params=[
        *PROCESS_BENCHES,
        pytest.param("direct", marks=pytest.mark.variant),
        "docker",
        "fake",
    ]
)
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    if request.param == "fake":
        async with fake_bench(tmp_path) as fake:
            yield fake
        return
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


@pytest.fixture(params=[*PROCESS_BENCHES, "docker"])
async def real(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


@pytest.fixture(params=[*PROCESS_BENCHES[:2], "docker"])
async def rooted(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    """Where programs have a root of their own."""
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


@pytest.fixture(
    params=["own uid", pytest.param("user", marks=pytest.mark.variant), "user, watched"]
)
async def parted(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    """Where an agent with root runs each user under a uid of its own."""
    name, _, watched = request.param.partition(", ")
    groups = False if watched else None
    async with bench_named(name, tmp_path, facts, groups=groups) as made:
        yield made


@pytest.fixture
async def docker(tmp_path: Path, facts: IsolationFacts) -> AsyncIterator[Bench]:
    made = docker_bench(tmp_path, facts)
    yield made
    await end_all(made)
    await nothing_left_in_engine()


ROOTED = (Isolation.NAMESPACE, Isolation.CONTAINER)


async def nothing_left_in_engine() -> None:
    """A container may go a moment after its end is written down."""
    engine, _ = required_engine()
    await until(lambda: containers_of(engine, MARK) == [])


async def end_all(bench: Bench) -> None:
    """Stop what a failed test left running."""
    if all(bench.folders.of(found).exit.exists() for found in bench.folders.ids()):
        return
    async with bench.new_driver() as driver:
        for fact in await driver.list():
            if fact.state is ReplicaState.RUNNING:
                await driver.kill(fact.replica_id, reason="the test is over")
                await soon(driver.wait(fact.replica_id))


async def test_success(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(SUCCEEDS)
        handle = await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert not handle.adopted
    assert (record.why, record.exit_code, record.signal) == (ExitWhy.EXITED, 0, None)
    assert record.ended_at >= record.started_at > 0
    assert record.duration_s >= 0


async def test_exit_code(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        await driver.start(bench.spec(EXITS_3))
        record = await soon(driver.wait(bench.spec(EXITS_3).replica_id))
    assert (record.why, record.exit_code, record.signal) == (ExitWhy.EXITED, 3, None)


async def test_signal(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(SIGNALS_ITSELF)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code) == (ExitWhy.EXITED, None)
    assert record.signal == signal.SIGUSR1


async def test_stop_lets_the_program_clean_up(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(CLEANS_UP)
        await driver.start(spec)
        await bench.ready(spec)
        await driver.stop(spec.replica_id, grace_s=PATIENCE_S, reason="asked to")
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code, record.message) == (ExitWhy.STOPPED, 5, "asked to")
    assert bench.output(spec).endswith(b"bye\n")
    assert record.output_bytes == len(bench.output(spec))


async def test_stop_of_a_plain_program_is_sigterm(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(RUNS_ON)
        await driver.start(spec)
        await bench.ready(spec)
        await driver.stop(spec.replica_id, grace_s=PATIENCE_S, reason="enough")
        record = await soon(driver.wait(spec.replica_id))
        # once more, after the end: nothing happens
        await driver.stop(spec.replica_id, grace_s=1, reason="again")
    assert (record.why, record.signal) == (ExitWhy.STOPPED, signal.SIGTERM)


async def test_sigterm_ignored_is_killed_after_the_grace(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(IGNORES_SIGTERM)
        await driver.start(spec)
        await bench.ready(spec)
        await driver.stop(spec.replica_id, grace_s=0.2, reason="stop")
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.signal) == (ExitWhy.STOPPED, signal.SIGKILL)


async def test_a_later_order_shortens_the_grace(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(IGNORES_SIGTERM)
        await driver.start(spec)
        await bench.ready(spec)
        await driver.stop(spec.replica_id, grace_s=1000, reason="gently")
        await driver.kill(spec.replica_id, reason="now")
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.STOPPED
    assert record.signal == signal.SIGKILL


async def test_a_later_order_does_not_lengthen_the_grace(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(IGNORES_SIGTERM)
        await driver.start(spec)
        await bench.ready(spec)
        await driver.stop(spec.replica_id, grace_s=0.5, reason="soon")
        await driver.stop(spec.replica_id, grace_s=1000, reason="later")
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.message) == (ExitWhy.STOPPED, "soon")


async def test_stop_right_after_start_is_not_lost(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(RUNS_ON)
        await driver.start(spec)
        await driver.stop(spec.replica_id, grace_s=PATIENCE_S, reason="changed my mind")
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.STOPPED


async def test_time_limit(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(IGNORES_SIGTERM, time_limit_s=short_limit_s(bench), grace_s=0.1)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.TIME_LIMIT
    assert record.signal == signal.SIGKILL
    assert f"{short_limit_s(bench):g} s" in record.message


def short_limit_s(bench: Bench) -> float:
    """Of a program that is there by then: what an engine takes for its start counts."""
    return 5.0 if bench.isolation is Isolation.CONTAINER else 2.5


async def test_an_order_does_not_lengthen_the_grace_of_a_limit(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(HEARS_SIGTERM, time_limit_s=short_limit_s(bench), grace_s=2.5)
        await driver.start(spec)
        await until(lambda: b"heard\n" in bench.output(spec))
        await driver.stop(spec.replica_id, grace_s=1000, reason="later")
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.TIME_LIMIT


async def test_silence_ends_the_replica(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(RUNS_ON, lost_after_s=0.5, grace_s=0.1)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.LOST_AFTER


async def test_contact_keeps_the_replica(bench: Bench) -> None:
    """An agent that stands still meanwhile, on a busy machine, has no contact: this one is a thread of its own."""
    is_seen = threading.Event()

    def keep_in_contact() -> None:
        while not is_seen.wait(0.05):
            with suppress(FileNotFoundError):  # it has not begun
                bench.touch(spec.replica_id)

    async with bench.new_driver() as driver:
        spec = bench.spec(RUNS_ON, lost_after_s=2.5, grace_s=0.1)
        contact = threading.Thread(target=keep_in_contact)
        contact.start()
        try:
            await driver.start(spec)
            await asyncio.sleep(3.0)
            (fact,) = await driver.list()
            assert fact.state is ReplicaState.RUNNING
            assert fact.started_at > 0
            await driver.kill(spec.replica_id, reason="done")
            assert (await soon(driver.wait(spec.replica_id))).why is ExitWhy.STOPPED
        finally:
            is_seen.set()
            contact.join()


async def test_output_is_exact(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(WRITES_BYTES)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    expected = b"\xff\xfe\x00\x1b[2J\x1b]0;t\x07errno newline"
    assert bench.output(spec) == expected
    assert record.output_bytes == len(expected)


async def test_a_program_that_is_not_there(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(IS_MISSING)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code) == (ExitWhy.START_FAILED, 127)
    assert "no-such-program-anywhere" in record.message


async def test_double_start_is_one_start(bench: Bench) -> None:
    async with bench.new_driver() as driver, bench.new_driver() as other:
        spec = bench.spec(EXITS_7_LATER)
        await asyncio.gather(driver.start(spec), driver.start(spec))
        await other.start(spec)
        records = await soon(
            asyncio.gather(driver.wait(spec.replica_id), other.wait(spec.replica_id))
        )
        after_the_end = await driver.start(spec)
    assert after_the_end.adopted
    assert [record.exit_code for record in records] == [7, 7]
    assert bench.output(spec) == b"ready\n"


async def test_a_new_driver_finds_what_runs_and_what_ended(bench: Bench) -> None:
    runs = bench.spec(CLEANS_UP)
    ended = bench.spec(EXITS_3, replica_id=ReplicaId(session_id=SESSION, attempt=1, rank=1))
    async with bench.new_driver() as driver:
        await driver.start(ended)
        await soon(driver.wait(ended.replica_id))
        await driver.start(runs)
        await bench.ready(runs)
    async with bench.new_driver() as later:
        found = {fact.replica_id: fact for fact in await later.list()}
        assert found[runs.replica_id].state is ReplicaState.RUNNING
        assert found[ended.replica_id].state is ReplicaState.EXITED
        last = found[ended.replica_id].exit
        assert last is not None
        assert last.exit_code == 3
        await later.stop(runs.replica_id, grace_s=PATIENCE_S, reason="seen")
        record = await soon(later.wait(runs.replica_id))
    assert (record.why, record.exit_code) == (ExitWhy.STOPPED, 5)


async def test_an_agent_at_the_path_of_another_ends_none_of_its_programs(
    tmp_path: Path, facts: IsolationFacts
) -> None:
    """Of a data folder that was moved away, or that is another's, on another machine of the same kernel."""
    data = tmp_path / "data"
    data.mkdir()
    first = process_bench(data, facts, Isolation.NONE, zygote=False)
    if first.limits.groups is None:
        pytest.skip(f"no control groups: {first.limits.reason}")
    spec = first.spec(RUNS_ON)
    async with first.new_driver() as driver:
        await driver.start(spec)
        await first.ready(spec)
    data.rename(tmp_path / "moved")
    data.mkdir()
    other = process_bench(data, facts, Isolation.NONE, zygote=False)
    async with other.new_driver():
        pass
    moved = process_bench(tmp_path / "moved", facts, Isolation.NONE, zygote=False)
    assert moved.limits.places == first.limits.places, "it knows its own again"
    async with moved.new_driver() as driver:
        (found,) = await driver.list()
        assert found.exit is None
    await end_all(moved)


async def test_a_folder_without_a_process_is_prepared(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(SUCCEEDS)
        bench.folders.of(spec.replica_id).create()
        (fact,) = await driver.list()
        assert fact.state is ReplicaState.PREPARED
        with pytest.raises(ReplicaNotFound):
            await driver.wait(spec.replica_id)
        handle = await driver.start(spec)
        assert not handle.adopted
        assert (await soon(driver.wait(spec.replica_id))).exit_code == 0


async def test_a_killed_shim_takes_the_replica_with_it(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(RUNS_ON)
        await driver.start(spec)
        await bench.ready(spec)
        bench.lose_shim(spec.replica_id)
        record = await soon(driver.wait(spec.replica_id))
        (fact,) = await driver.list()
    assert (record.why, record.exit_code, record.signal) == (ExitWhy.SHIM_LOST, None, None)
    assert fact.exit == record


async def test_remove(bench: Bench) -> None:
    async with bench.new_driver() as driver:
        spec = bench.spec(RUNS_ON)
        await driver.start(spec)
        with pytest.raises(ReplicaRunning):
            await driver.remove(spec.replica_id)
        await driver.kill(spec.replica_id, reason="done")
        await soon(driver.wait(spec.replica_id))
        await driver.remove(spec.replica_id)
        await driver.remove(spec.replica_id)
        assert await driver.list() == []
        assert not bench.folders.of(spec.replica_id).path.exists()


async def test_unknown_replicas(bench: Bench) -> None:
    stranger = ReplicaId(session_id=SESSION, attempt=9, rank=9)
    async with bench.new_driver() as driver:
        with pytest.raises(ReplicaNotFound):
            await driver.stop(stranger, grace_s=1, reason="")
        with pytest.raises(ReplicaNotFound):
            await driver.wait(stranger)
        await driver.remove(stranger)


async def test_refusals_leave_nothing_behind(bench: Bench, tmp_path: Path) -> None:
    async with bench.new_driver() as driver:
        with pytest.raises(StartRefused):
            await driver.start(bench.spec(argv=()))
        missing = Mount(source=tmp_path / "nowhere", target="/data/x")
        with pytest.raises(StartRefused, match="/data/x"):
            await driver.start(bench.spec(SUCCEEDS, mounts=(missing,)))
        assert await driver.list() == []


async def test_a_level_that_is_not_there_is_refused(real: Bench) -> None:
    level = Isolation.CONTAINER
    if level is real.isolation:
        level = Isolation.NONE
    async with real.new_driver() as driver:
        with pytest.raises(StartRefused, match=level.value):
            await driver.start(replace(real.spec(SUCCEEDS), isolation=level))
        assert await driver.list() == []


# What only processes have.


@pytest.mark.parametrize("of", ["another process", "another boot"])
async def test_a_number_that_another_process_has_by_now_is_not_the_shim(
    real: Bench, of: str
) -> None:
    spec = real.spec(RUNS_ON)
    folder = real.folders.of(spec.replica_id)
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        real.lose_shim(spec.replica_id)
        await soon(driver.wait(spec.replica_id))
    folder.exit.unlink()
    claim = json.loads(folder.shim.read_bytes())
    bystander = await asyncio.create_subprocess_exec("sleep", "1000")
    ticks = int(text_of(f"/proc/{bystander.pid}/stat").rpartition(")")[2].split()[19])
    other = {"pid": bystander.pid, "start_ticks": ticks, "boot_id": claim["boot_id"]}
    other |= {"boot_id": "0"} if of == "another boot" else {"start_ticks": claim["start_ticks"]}
    folder.shim.write_text(json.dumps(other))
    async with real.new_driver() as driver:
        (found,) = await soon(driver.list())
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()
    assert found.exit is not None
    assert found.exit.why is ExitWhy.SHIM_LOST


@pytest.mark.parametrize("stepped_s", [-3600.0, 3600.0])
async def test_how_long_it_ran_goes_by_no_clock_that_is_set(real: Bench, stepped_s: float) -> None:
    spec = real.spec(RUNS_ON)
    folder = real.folders.of(spec.replica_id)
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        # As the wall clock was when it was set since.
        written_at = time.time() - stepped_s
        os.utime(folder.spec, (written_at, written_at))
        real.lose_shim(spec.replica_id)
        record = await soon(driver.wait(spec.replica_id))
    assert 0 < record.duration_s < 300
    folder.exit.unlink()
    claim = json.loads(folder.shim.read_bytes())
    folder.shim.write_text(json.dumps(claim | {"boot_id": "another"}))
    async with real.new_driver() as driver:
        (found,) = await soon(driver.list())
    assert found.exit is not None
    assert found.exit.duration_s == pytest.approx(max(stepped_s, 0.0), abs=300)


async def run(bench: Bench, spec: ReplicaSpec) -> tuple[int | None, str]:
    async with bench.new_driver() as driver:
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
        return record.exit_code, bench.output(spec).decode()


SECRET = "s3cret-" + base64.b32encode(os.urandom(10)).decode()


@pytest.mark.parametrize("length", [1, 32 << 10, 512 << 10])
async def test_a_secret_is_in_the_environment_and_nowhere_else(real: Bench, length: int) -> None:
    hard = "\n\"'\\$HOME `id` \\n \N{SNOWMAN}"
    values = {f"SECRET_{n}": SECRET + hard + "x" * (length // 8) for n in range(8)}
    look = "import hashlib, json, os, sys; print('ready', flush=True); "
    look += "found = {k: v for k, v in os.environ.items() if k.startswith('SECRET_')}; "
    look += "print(hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest(), "
    look += "sys.stdin.read() == '', flush=True); import time; time.sleep(1000)"
    spec = real.spec(argv=("python3", "-c", look), secrets=values, env={"PUBLIC": "1"})
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    async with real.new_driver() as driver:
        await driver.start(spec)
        await until(lambda: b"True" in real.output(spec) or b"False" in real.output(spec))
        assert real.output(spec).decode().split() == ["ready", digest, "True"]
        folder = real.folders.of(spec.replica_id).path
        files = [file for file in folder.rglob("*") if file.is_file()]
        assert [file for file in files if b"PUBLIC" in file.read_bytes()]
        assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
        assert SECRET not in repr(spec)
        await driver.kill(spec.replica_id, reason="done")
        await soon(driver.wait(spec.replica_id))
    assert [file for file in files if file.exists() and SECRET.encode() in file.read_bytes()] == []


async def test_each_replica_has_its_own_secrets(real: Bench) -> None:
    """The same process starts them one after the other."""
    async with real.new_driver() as driver:
        for rank, value in enumerate(["first", None, "third"]):
            spec = replace(
                real.sh("echo ${S:-none}"),
                replica_id=ReplicaId(session_id=SESSION, attempt=1, rank=rank),
                secrets={} if value is None else {"S": value},
            )
            await driver.start(spec)
            assert (await soon(driver.wait(spec.replica_id))).exit_code == 0
            assert real.output(spec).decode().strip() == (value or "none")


async def test_a_shim_whose_secrets_did_not_come_starts_nothing(
    real: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.runtimes.shims._written", lambda _: b"")
    spec = replace(real.sh("echo started"), secrets={"S": SECRET})
    async with real.new_driver() as driver:
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.START_FAILED
    assert "secrets" in record.message
    assert real.output(spec) == b""


def text_of(path: str) -> str:
    return Path(path).read_text()


def has_ended(pid: int) -> bool:
    try:
        return ") Z " in text_of(f"/proc/{pid}/stat")
    except OSError:
        return True


def is_child(pid: int, parent: int) -> bool:
    try:
        return parent_of(pid) == parent
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])


def state_of(pid: int) -> str:
    return text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]


def marked(replica_id: ReplicaId) -> list[int]:
    """Live processes that carry the replica's mark."""
    mark = f"NSML_REPLICA={replica_id}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def test_daemonised_grandchildren_are_gone_at_the_end(real: Bench) -> None:
    stays = "setsid sh -c 'trap \"\" TERM HUP; echo ready; sleep 1000' &"
    spec = real.sh(f"{stays} until [ -e $NSML_RUN_DIR/go ]; do sleep 0.01; done; exit 4")
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        assert marked(spec.replica_id)
        (real.folders.of(spec.replica_id).run / "go").touch()
        record = await soon(driver.wait(spec.replica_id))
        assert record.exit_code == 4
        assert marked(spec.replica_id) == []


async def test_the_end_is_not_written_before_the_last_process_is_gone(real: Bench) -> None:
    spec = real.sh("for n in $(seq 60); do setsid sleep 1000 & done; echo ready; sleep 0.1")
    async with real.new_driver() as driver:
        await driver.start(spec)
        async with asyncio.timeout(PATIENCE_S):
            while not real.folders.of(spec.replica_id).exit.exists():  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert marked(spec.replica_id) == []


async def test_an_order_behind_the_programs_own_end_is_not_its_cause(real: Bench) -> None:
    spec = real.sh("echo ready; until [ -e $NSML_RUN_DIR/go ]; do sleep 0.01; done; exit 3")
    folder = real.folders.of(spec.replica_id)
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        await until(lambda: "child" in json.loads(folder.shim.read_bytes()))
        claim = json.loads(folder.shim.read_bytes())
        os.kill(claim["pid"], signal.SIGSTOP)
        (folder.run / "go").touch()
        await until(lambda: has_ended(claim["child"]))
        await driver.stop(spec.replica_id, grace_s=PATIENCE_S, reason="too late")
        os.kill(claim["pid"], signal.SIGCONT)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code, record.message) == (
        ExitWhy.EXITED,
        3,
        "last output: ready",
    )


async def test_a_program_ends_with_its_shim_also_where_no_agent_is(real: Bench) -> None:
    spec = real.spec(RUNS_ON)
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
    assert marked(spec.replica_id)
    real.lose_shim(spec.replica_id)
    await until(lambda: marked(spec.replica_id) == [])


async def test_an_end_that_the_disk_does_not_take_is_told_and_written_later(
    real: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = real.spec(RUNS_ON)
    other = real.spec(RUNS_ON, replica_id=ReplicaId(session_id=SESSION, attempt=1, rank=1))
    folder = real.folders.of(spec.replica_id)
    in_the_way = folder.exit.with_name(f".{folder.exit.name}.staged")
    # Whichever thread writes it.
    monkeypatch.setattr(
        folders, "staged_beside", lambda path: path.with_name(f".{path.name}.staged")
    )
    async with real.new_driver() as driver:
        for one in (spec, other):
            await driver.start(one)
            await real.ready(one)
        (folder.path / ".reserve").unlink()
        in_the_way.mkdir()
        real.lose_shim(spec.replica_id)
        assert (await soon(driver.wait(spec.replica_id))).why is ExitWhy.SHIM_LOST
    assert not folder.exit.exists()
    async with real.new_driver() as later:
        found = {fact.replica_id: fact for fact in await soon(later.list())}
        assert found[other.replica_id].state is ReplicaState.RUNNING
        lost = found[spec.replica_id].exit
        assert lost is not None
        assert lost.why is ExitWhy.SHIM_LOST
        in_the_way.rmdir()
        assert (await soon(later.wait(spec.replica_id))).why is ExitWhy.SHIM_LOST
        assert folder.exit.exists()
        await later.kill(other.replica_id, reason="the test is over")
        await soon(later.wait(other.replica_id))


async def test_a_replica_whose_folder_is_gone_has_an_end(real: Bench) -> None:
    spec = real.spec(RUNS_ON)
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        shim = json.loads(real.folders.of(spec.replica_id).shim.read_bytes())["pid"]
        real.folders.of(spec.replica_id).remove()
        with suppress(ProcessLookupError):  # it may have noticed
            os.kill(shim, signal.SIGKILL)
        assert (await soon(driver.wait(spec.replica_id))).why is ExitWhy.SHIM_LOST


async def test_an_image_that_is_not_there_is_refused(docker: Bench) -> None:
    async with docker.new_driver() as driver:
        with pytest.raises(StartRefused, match="no-such-image"):
            await driver.start(docker.spec(SUCCEEDS, image="no-such-image:1"))
        assert await driver.list() == []


async def test_a_broken_engine_is_no_end(docker: Bench, tmp_path: Path) -> None:
    """What the shim asks the engine fails for a while: the end is told once it answers."""
    spec = docker.sh("echo ready; until [ -e $NSML_RUN_DIR/go ]; do sleep 0.01; done; exit 7")
    folder = docker.folders.of(spec.replica_id)
    way = tmp_path / "engine.sock"
    way.symlink_to(SOCKET)
    async with docker.new_driver() as driver:
        assert isinstance(driver, DockerDriver)
        engine = Engine(way)
        driver._place = replace(driver._place, engine=engine)
        await driver.start(spec)
        await docker.ready(spec)
        await until(lambda: "child" in json.loads(folder.shim.read_bytes()))
        way.unlink()
        (folder.run / "go").touch()
        child = json.loads(folder.shim.read_bytes())["child"]
        await until(lambda: has_ended(child))
        await asyncio.sleep(0.3)
        (fact,) = await driver.list()
        assert fact.state is ReplicaState.RUNNING
        way.symlink_to(SOCKET)
        record = await soon(driver.wait(spec.replica_id))
        engine.close()
    assert (record.why, record.exit_code) == (ExitWhy.EXITED, 7)


async def test_a_container_that_somebody_removed_has_an_end(docker: Bench) -> None:
    spec = docker.spec(RUNS_ON)
    engine, _ = required_engine()
    async with docker.new_driver() as driver:
        await driver.start(spec)
        await docker.ready(spec)
        remove_container(engine, container_name(spec.replica_id, MARK))
        record = await soon(driver.wait(spec.replica_id))
    assert (record.exit_code, record.signal) in {(None, None), (None, signal.SIGKILL)}


async def test_a_killed_keeper_is_replaced(docker: Bench) -> None:
    spec = docker.spec(RUNS_ON)
    async with docker.new_driver() as driver:
        await driver.start(spec)
        await docker.ready(spec)
        folder = docker.folders.of(spec.replica_id)
        await until(lambda: "child" in json.loads(folder.shim.read_bytes()))
        shim = json.loads(folder.shim.read_bytes())["pid"]
        (keeper,) = [pid for pid in processes() if is_child(pid, shim)]
        os.kill(keeper, signal.SIGKILL)
        await until(lambda: any(is_child(pid, shim) and pid != keeper for pid in processes()))
        (fact,) = await driver.list()
        assert fact.state is ReplicaState.RUNNING
    docker.lose_shim(spec.replica_id)
    await until(lambda: marked(spec.replica_id) == [])


async def test_an_engine_knows_no_secret(docker: Bench) -> None:
    spec = replace(docker.sh("echo $S; echo ready; exec sleep 1000"), secrets={"S": SECRET})
    engine, _ = required_engine()
    async with docker.new_driver() as driver:
        await driver.start(spec)
        await docker.ready(spec)
        assert docker.output(spec).decode().split() == [SECRET, "ready"]
        (found,) = containers_of(engine, MARK)
        known = engine.sdk.api.inspect_container(found.name)
        assert str(spec.replica_id) in str(known), "or nothing is looked at"
        assert SECRET not in str(known)
        pipe = docker.folders.of(spec.replica_id).run / ".gate"
        await until(lambda: not pipe.exists())
        await driver.kill(spec.replica_id, reason="done")
        await soon(driver.wait(spec.replica_id))


async def test_an_image_whose_shell_reads_nothing_is_told(
    docker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = docker.sh("echo started")
    monkeypatch.setattr("nodeagent.runtimes.container.FIRST_PROGRAM", "sleep 1000")
    monkeypatch.setattr("nodeagent.runtimes.docker.BEGINS_WITHIN_S", 0.5)
    async with docker.new_driver() as driver:
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.START_FAILED
    assert "its /bin/sh reads no commands" in record.message
    assert docker.output(spec) == b""


async def test_containers_without_a_folder_are_removed(
    docker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an engine that refuses it first, as busy ones do: "did not receive an exit event"."""
    spec = docker.spec(RUNS_ON)
    engine, _ = required_engine()
    asked: list[str] = []

    def remove(engine: Engine, name: str) -> None:
        asked.append(name)
        if len(asked) == 1:
            raise EngineRefused("tried to kill container, but did not receive an exit event")
        remove_container(engine, name)

    async with docker.new_driver() as driver:
        await driver.start(spec)
        await docker.ready(spec)
        async with docker.new_driver():
            assert len(containers_of(engine, MARK)) == 1
        shim = json.loads(docker.folders.of(spec.replica_id).shim.read_bytes())["pid"]
        (keeper,) = [pid for pid in processes() if is_child(pid, shim)]
        for pid in (keeper, shim):
            os.kill(pid, signal.SIGSTOP)
        # Until then they may be writing to the folder.
        await until(lambda: {state_of(pid) for pid in (keeper, shim)} == {"T"})
        docker.folders.of(spec.replica_id).remove()
        monkeypatch.setattr("nodeagent.runtimes.docker.remove_container", remove)
        async with docker.new_driver():
            await until(lambda: containers_of(engine, MARK) == [])
        assert len(asked) >= 2
        for pid in (keeper, shim):
            os.kill(pid, signal.SIGKILL)
        assert (await soon(driver.wait(spec.replica_id))).why is ExitWhy.SHIM_LOST


async def test_a_container_runs_as_the_user_whom_its_agent_gives_it(docker: Bench) -> None:
    if os.geteuid():
        pytest.skip("only root gives its files away")
    script = "id -u; id -g; : > /app/a && : > /nsml/spool/a && : > /tmp/a; echo $S"
    spec = replace(docker.sh(script), uid=ACCOUNT, gid=ACCOUNT, secrets={"S": SECRET})
    assert await run(docker, spec) == (0, f"{ACCOUNT}\n{ACCOUNT}\n{SECRET}\n")


def test_users_have_ids_in_containers_also_where_no_other_level_gives_them_any(
    tmp_path: Path, facts: IsolationFacts
) -> None:
    if os.geteuid():
        pytest.skip("only root gives its files away")
    engine, _ = required_engine()
    probe_containers(
        engine,
        facts.machine,
        tmp_path / "trial",
        node="test",
        mark=MARK,
        default_image=required_image(),
        most_open_files=facts.machine.open_files,
        trial_id=TRIAL,
    )
    bare = replace(facts, with_accounts=frozenset())
    assert Isolation.CONTAINER in with_containers(bare, trial_id=TRIAL).with_accounts
    assert Isolation.CONTAINER not in with_containers(facts, trial_id=None).with_accounts
    assert containers_of(engine, MARK) == []


async def test_no_call_of_a_start_to_the_engine_holds_a_thread_of_the_pool(docker: Bench) -> None:
    """An engine that hangs would keep the agent from stopping what runs."""
    asked: list[str] = []

    class Noting(Engine):
        @property
        def sdk(self) -> object:
            asked.append(threading.current_thread().name)
            return super().sdk

    async with docker.new_driver() as driver:
        assert isinstance(driver, DockerDriver)
        driver._run_long = in_own_thread
        engine = Noting(SOCKET)
        driver._place = replace(driver._place, engine=engine)
        spec = docker.spec(SUCCEEDS)
        await driver.start(spec)
        await soon(driver.wait(spec.replica_id))
        engine.close()
    assert asked
    assert not [name for name in asked if name.startswith("asyncio")]


async def test_memory_of_a_container_is_limited(docker: Bench) -> None:
    """It ends alone, and the record says why."""
    spec = docker.spec(argv=("python3", "-c", "b'1' * (1 << 30)"), memory_bytes=256 << 20)
    async with docker.new_driver() as driver:
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.signal) == (ExitWhy.OUT_OF_MEMORY, signal.SIGKILL)


async def test_processes_of_a_container_are_limited(docker: Bench) -> None:
    spec = docker.sh("for n in $(seq 40); do sleep 5 & done; echo all", process_count=20)
    _, text = await run(docker, spec)
    assert "all" not in text


async def test_programs_are_what_is_killed_first_when_memory_runs_out(real: Bench) -> None:
    assert await run(real, real.sh("cat /proc/self/oom_score_adj")) == (0, "500\n")


async def test_detached_processes_of_a_killed_shim_are_gone(real: Bench) -> None:
    spec = real.sh("setsid sh -c 'trap \"\" TERM HUP; echo ready; sleep 1000' & wait")
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        real.lose_shim(spec.replica_id)
        record = await soon(driver.wait(spec.replica_id))
        assert record.why is ExitWhy.SHIM_LOST
        assert marked(spec.replica_id) == []


async def test_a_process_that_cannot_be_killed_keeps_nobody_else_waiting(
    real: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for one that hangs in the kernel: killing finds it again and again."""
    stuck = real.spec(RUNS_ON)
    other = real.spec(RUNS_ON, replica_id=ReplicaId(session_id=SESSION, attempt=1, rank=1))
    folder = real.folders.of(stuck.replica_id)
    async with real.new_driver() as driver:
        for one in (stuck, other):
            await driver.start(one)
            await real.ready(one)
    hanging, kill = [os.getpid()], Strays.kill
    monkeypatch.setattr(Strays, "kill", lambda strays: kill(strays) + hanging)
    monkeypatch.setattr("nodeagent.runtimes.shims._SETTLED_WITHIN_S", 0.1)
    monkeypatch.setattr("nodeagent.runtimes.shims._SAID_AFTER_S", 0.0)
    shim = json.loads(folder.shim.read_bytes())["pid"]
    real.lose_shim(stuck.replica_id)
    await until(lambda: has_ended(shim))
    async with real.new_driver() as later:
        found = {fact.replica_id: fact for fact in await soon(later.list())}
        assert {fact.state for fact in found.values()} == {ReplicaState.RUNNING}
        assert found[stuck.replica_id].pid is None
        with capture_logs() as said:
            waiting = asyncio.ensure_future(later.wait(stuck.replica_id))
            await until(lambda: f"'{os.getpid()} (" in str(said))
        await later.stop(stuck.replica_id, grace_s=0, reason="impatience")
        for _ in range(3):
            await soon(later.list())
        assert not waiting.done()
        assert not folder.exit.exists()
        hanging.clear()
        assert (await soon(waiting)).why is ExitWhy.SHIM_LOST
        assert folder.exit.exists()
        await later.kill(other.replica_id, reason="the test is over")
        assert (await soon(later.wait(other.replica_id))).why is ExitWhy.STOPPED


TITLED = """
import ctypes, os, time
if os.fork():
    os.wait()
os.setsid()
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)
print("ready", flush=True)
time.sleep(1000)
"""
"""Overwrites its environment, as setproctitle does."""


async def test_a_detached_process_without_its_environment_is_gone_too(real: Bench) -> None:
    base = PythonEnvironment(folder=Path(sys.base_prefix), base_prefix=Path(sys.base_prefix))
    spec = real.spec(argv=("python3", "-c", TITLED), python=base)
    output = real.folders.of(spec.replica_id).output
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        assert any(speaks_to(pid, output) for pid in processes())
        real.lose_shim(spec.replica_id)
        assert (await soon(driver.wait(spec.replica_id))).why is ExitWhy.SHIM_LOST
    assert not any(speaks_to(pid, output) for pid in processes())


def processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def speaks_to(pid: int, output: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/fd/1").stat().st_ino == output.stat().st_ino
    except OSError:
        return False


LEADERLESS = """
import ctypes, os, signal, threading, time
def live():
    print("ready", flush=True)
    time.sleep(1000)
if os.fork():
    time.sleep(1000)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=live).start()
ctypes.CDLL(None).pthread_exit(None)
"""


async def test_a_process_whose_first_thread_has_ended_is_killed_too(real: Bench) -> None:
    base = PythonEnvironment(folder=Path(sys.base_prefix), base_prefix=Path(sys.base_prefix))
    spec = real.spec(argv=("python3", "-c", LEADERLESS), python=base)
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        await driver.stop(spec.replica_id, grace_s=0.1, reason="enough")
        record = await soon(driver.wait(spec.replica_id))
        assert record.why is ExitWhy.STOPPED


@pytest.mark.parametrize("content", [b"", b"{}", b"\0\0\0"])
async def test_a_damaged_exit_record_is_an_unknown_end(real: Bench, content: bytes) -> None:
    spec = real.spec(SUCCEEDS)
    async with real.new_driver() as driver:
        await driver.start(spec)
        await soon(driver.wait(spec.replica_id))
    real.folders.of(spec.replica_id).exit.write_bytes(content)
    async with real.new_driver() as driver:
        (found,) = await soon(driver.list())
        assert found.exit is not None
        assert found.exit.why is ExitWhy.SHIM_LOST
        assert (await soon(driver.wait(spec.replica_id))) == found.exit


async def test_a_shim_whose_folder_is_gone_ends(real: Bench) -> None:
    spec = real.spec(RUNS_ON)
    async with real.new_driver() as driver:
        await driver.start(spec)
        await real.ready(spec)
        note = real.folders.of(spec.replica_id).shim
        # The program may be heard of before the shim has written down which it is.
        await until(lambda: "child" in json.loads(note.read_bytes()))
        said = json.loads(note.read_bytes())
        shutil.rmtree(real.folders.path)
        os.kill(said["child"], signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{said['pid']}").exists())


async def test_twenty_megabytes_of_output(real: Bench) -> None:
    spec = real.sh("head -c 20971520 /dev/zero | tr '\\0' '\\377'; echo end")
    async with real.new_driver() as driver:
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert record.output_bytes == 20971520 + 4
    assert real.output(spec) == b"\xff" * 20971520 + b"end\n"


AGENT = """
import asyncio, sys, pickle
from tests.contract import test_runtime_contract as suite

async def main():
    folders, facts, specs, zygote, suite.MARK = pickle.load(open(sys.argv[1], "rb"))
    new = suite.docker_driver if specs[0].isolation == "container" else suite.process_driver
    async with new(folders, facts, zygote=zygote) as driver:
        for spec in specs:
            await driver.start(spec)
        print("started", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("zygote", [True, False])
async def test_replicas_outlive_a_killed_agent(
    real: Bench, facts: IsolationFacts, tmp_path: Path, zygote: bool
) -> None:
    waits = real.sh('echo ready; while [ ! -e "$NSML_RUN_DIR/go" ]; do sleep 0.02; done; exit 7')
    rank_1 = ReplicaId(session_id=SESSION, attempt=1, rank=1)
    ends = real.sh("echo ready; sleep 0.2; exit 8", replica_id=rank_1)
    plan = tmp_path / "plan"
    plan.write_bytes(pickle.dumps((real.folders, facts, [waits, ends], zygote, MARK)))
    root = Path(__file__).parents[2]
    agent = subprocess.Popen(  # noqa: ASYNC220 - it is killed, not awaited
        [sys.executable, "-c", AGENT, str(plan)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )
    assert agent.stdout is not None
    while (line := await in_thread(agent.stdout.readline)) != b"started\n":
        assert line, "the agent failed"
    await real.ready(waits)
    agent.kill()
    agent.wait()
    await until(real.folders.of(ends.replica_id).exit.exists)
    async with real.new_driver() as driver:
        states = {fact.replica_id: fact.state for fact in await driver.list()}
        assert states == {
            waits.replica_id: ReplicaState.RUNNING,
            ends.replica_id: ReplicaState.EXITED,
        }
        assert (await soon(driver.wait(ends.replica_id))).exit_code == 8
        (real.folders.of(waits.replica_id).run / "go").touch()
        assert (await soon(driver.wait(waits.replica_id))).exit_code == 7


async def test_a_killed_zygote_is_replaced(real: Bench) -> None:
    async with real.new_driver() as driver:
        first, second = real.spec(RUNS_ON), real.spec(SUCCEEDS)
        second = replace(second, replica_id=ReplicaId(session_id=SESSION, attempt=1, rank=1))
        await driver.start(first)
        await real.ready(first)
        shim = json.loads(real.folders.of(first.replica_id).shim.read_bytes())["pid"]
        zygote = parent_of(shim)
        assert text_of(f"/proc/{zygote}/comm") == "nsml-zygote\n"
        os.kill(zygote, signal.SIGKILL)
        await driver.start(second)
        assert (await soon(driver.wait(second.replica_id))).exit_code == 0
        await driver.kill(first.replica_id, reason="done")
        assert (await soon(driver.wait(first.replica_id))).why is ExitWhy.STOPPED


async def test_an_order_reaches_the_shim_that_has_the_claim(
    real: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = real.spec(RUNS_ON)

    def started_and_held(folder: ReplicaFolder, *given: Any) -> StartedShim:
        shim = start_directly(folder, *given)
        os.kill(shim.pid, signal.SIGSTOP)
        return shim

    async with real.new_driver() as driver:
        assert isinstance(driver, ShimDriver)
        zygote = driver._launcher._zygote
        assert zygote is not None
        start = zygote.start

        async def answer_too_late(folder: ReplicaFolder, *given: Any) -> StartedShim:
            os.close((await start(folder, *given)).pidfd)
            await real.ready(spec)
            raise TimeoutError

        monkeypatch.setattr(zygote, "start", answer_too_late)
        monkeypatch.setattr("nodeagent.runtimes.launcher.start_directly", started_and_held)
        await driver.start(spec)
        waiting = asyncio.create_task(driver.wait(spec.replica_id))
        stopping = asyncio.create_task(driver.stop(spec.replica_id, grace_s=0, reason="done"))
        await until(real.folders.of(spec.replica_id).stop.exists)
        os.kill(driver._watched[spec.replica_id].shim.pid, signal.SIGCONT)
        await soon(stopping)
        assert (await soon(waiting)).why is ExitWhy.STOPPED


async def test_a_start_that_is_cancelled_leaves_no_answer_for_the_next(
    real: Bench,
) -> None:
    async with real.new_driver() as driver:
        first, second = real.spec(RUNS_ON), real.spec(EXITS_3)
        second = replace(second, replica_id=ReplicaId(session_id=SESSION, attempt=1, rank=1))
        third = replace(second, replica_id=ReplicaId(session_id=SESSION, attempt=1, rank=2))
        await driver.start(second)
        await soon(driver.wait(second.replica_id))
        assert isinstance(driver, ShimDriver)
        assert driver._launcher._zygote is not None
        zygote = driver._launcher._zygote._process.pid
        os.kill(zygote, signal.SIGSTOP)
        starting = asyncio.create_task(driver.start(first))
        await until(driver._launcher._turn.locked)  # from then on the zygote is asked
        starting.cancel()
        await asyncio.wait([starting])
        os.kill(zygote, signal.SIGCONT)
        await driver.start(third)
        assert (await soon(driver.wait(third.replica_id))).exit_code == 3
        await real.ready(first)
        assert (await driver.start(first)).adopted
        await driver.kill(first.replica_id, reason="done")
        assert (await soon(driver.wait(first.replica_id))).why is ExitWhy.STOPPED


async def test_environment_of_the_program(
    real: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSML_TOKEN", "a credential of the platform")
    first, second = tmp_path / "one", tmp_path / "two"
    first.mkdir()
    second.mkdir()
    spec = real.sh(
        "env",
        env={"NSML_SESSION_NAME": "kim/digits/1", "NSML_RANK": "9"},
        devices=(
            DeviceGrant(uuid="SIM-1", simulated=True),
            DeviceGrant(uuid="SIM-2", simulated=True),
        ),
        mounts=(
            Mount(source=first, target="/data/one"),
            Mount(source=second, target="/data/two"),
        ),
    )
    _, text = await run(real, spec)
    env = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert env["NSML_SESSION_NAME"] == "kim/digits/1"
    assert env["NSML_RANK"] == "0"
    assert env["NSML_SESSION_ID"] == SESSION
    assert env["CUDA_VISIBLE_DEVICES"] == "SIM-1,SIM-2"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert "NSML_TOKEN" not in env
    data = env["NSML_DATASET_PATH"].split(os.pathsep)
    if real.isolation in ROOTED:
        assert (env["NSML_RUN_DIR"], data) == ("/nsml", ["/data/one", "/data/two"])
    else:
        assert Path(env["NSML_RUN_DIR"]) == real.folders.of(spec.replica_id).run
        assert data == [str(first), str(second)]


async def test_no_devices_means_none_visible(real: Bench) -> None:
    code, text = await run(real, real.sh('echo "[$CUDA_VISIBLE_DEVICES]"; ls /dev'))
    assert code == 0
    assert text.startswith("[]\n")
    if real.isolation in ROOTED:
        assert "nvidia" not in text


async def test_a_program_begins_where_its_code_is(real: Bench) -> None:
    spec = real.sh("pwd; cat deep/main.txt; echo changed > deep/main.txt")
    folder = real.folders.of(spec.replica_id)
    real.folders.create()
    folder.create()
    (folder.app / "deep").mkdir()
    (folder.app / "deep" / "main.txt").write_text("original")
    app = "/app" if real.isolation in ROOTED else folder.app
    assert await run(real, spec) == (0, f"{app}\noriginal")
    assert (folder.app / "deep" / "main.txt").read_text() == "changed\n"


async def test_the_interpreter_and_the_sdk_are_there(real: Bench, tmp_path: Path) -> None:
    sdk = tmp_path / "sdk"
    sdk.mkdir()
    (sdk / "probe_sdk.py").write_text("WHERE = 'the sdk'")
    prefix = Path(sys.base_prefix)
    if real.isolation is Isolation.USER and barrier(prefix):
        prefix = Path("/usr")  # the tests' own is out of the reach of other users
        if not (prefix / "bin" / "python3").exists():
            pytest.skip("no interpreter that other users can run")
    python = PythonEnvironment(folder=prefix, base_prefix=prefix)
    spec = real.spec(
        argv=(
            "python3",
            "-c",
            "import sys, probe_sdk, ssl, sqlite3; print(probe_sdk.WHERE, sys.prefix)",
        ),
        sdk_folder=sdk,
        python=python,
    )
    code, text = await run(real, spec)
    if real.isolation is Isolation.CONTAINER:
        prefix = Path("/usr")
    assert (code, text) == (0, f"the sdk {prefix}\n")


async def test_datasets_are_read_only(rooted: Bench, tmp_path: Path) -> None:
    data = tmp_path / "digits"
    data.mkdir()
    (data / "file").write_text("content")
    spec = rooted.sh(
        "cat /data/digits/file; echo x > /data/digits/file; echo x > /data/digits/new;"
        "mount -o remount,rw /data/digits; umount -l /data/digits; echo y >> /data/digits/file",
        mounts=(Mount(source=data, target="/data/digits"),),
    )
    _, text = await run(rooted, spec)
    assert text.startswith("content")
    assert (data / "file").read_text() == "content"
    assert [path.name for path in data.iterdir()] == ["file"]


async def test_no_list_has_the_locks_of_others(rooted: Bench, tmp_path: Path) -> None:
    """Their byte ranges are 126 bits each, and a program chooses them."""
    begin = 0x6E736D6C
    with (tmp_path / "locked").open("wb") as file:
        lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, begin, 77, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        assert str(begin) in text_of("/proc/locks")
        _, text = await run(rooted, rooted.sh("cat /proc/locks; echo read"))
    assert text.endswith("read\n")
    # the engine decides what its containers see of /proc
    assert str(begin) not in text or rooted.isolation is Isolation.CONTAINER


async def test_the_host_is_out_of_reach(rooted: Bench, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir(exist_ok=True)
    secret = tmp_path / "agent" / "token"
    secret.write_text("canary-of-the-agent")
    home = Path.home()
    shim = rooted.folders.of(rooted.spec(SUCCEEDS).replica_id)
    spec = rooted.sh(
        f"""
        cat {secret}; cat {shim.spec}; ls -a {home}
        for p in /proc/[0-9]*; do cat $p/root{secret}; cat $p/cwd/../token; cat $p/environ; done
        timeout 1 cat /proc/1/fd/* /proc/1/cwd/../../../../..{secret}
        cat /etc/shadow && echo SHADOW
        chroot /proc/1/root cat {secret}
        mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk && echo DISK
        unshare -r -m sh -c 'umount -l /proc; mount -t proc proc /proc; cat /proc/1/root{secret}'
        echo 'canary-kernel' > /proc/sys/kernel/core_pattern
        echo 1 > /sys/kernel/profiling
        touch /usr/canary /etc/canary /canary && echo WROTE
        """
    )
    core_pattern = text_of("/proc/sys/kernel/core_pattern")
    _, text = await run(rooted, spec)
    assert text_of("/proc/sys/kernel/core_pattern") == core_pattern
    assert "canary-of-the-agent" not in text
    assert '"argv"' not in text
    assert "DISK" not in text
    assert "WROTE" not in text
    # the image's own, which everybody has, is in a container
    assert "SHADOW" not in text or rooted.isolation is Isolation.CONTAINER
    assert f"cat: {secret}: No such file or directory" in text


async def test_threads_can_be_named_and_nothing_of_the_kernel_can_be_written(
    rooted: Bench,
) -> None:
    """CUDA does not start where /proc/self/task/TID/comm cannot be written to."""
    program = """
        import os, stat, threading

        ended = threading.Event()
        thread = threading.Thread(target=ended.wait, daemon=True)
        thread.start()
        try:
            with open(f"/proc/self/task/{thread.native_id}/comm", "w") as file:
                file.write("worker")
        except OSError as error:
            print(error.strerror)
        else:
            print(open(f"/proc/self/task/{thread.native_id}/comm").read().strip())
        ended.set()
        opened = []
        for name in os.listdir("/proc"):
            top = "/proc/" + name
            if name.isdigit() or os.path.islink(top):
                continue
            found = [top] if os.path.isfile(top) else []
            for folder, _, files in os.walk(top):
                found += [os.path.join(folder, file) for file in files]
            for path in found:
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                    opened.append(path)
                except OSError:
                    pass
        print(opened)
    """
    spec = rooted.spec(argv=("python3", "-c", textwrap.dedent(program)))
    code, text = await run(rooted, spec)
    # an engine gives its containers /proc/pressure, in which everybody may have a watch
    left = text.replace("'/proc/pressure/", "") if rooted.isolation is Isolation.CONTAINER else text
    is_root = rooted.isolation is Isolation.NAMESPACE and spec.uid is None and os.geteuid() == 0
    # root's files of its processes are no safer than the kernel's: such a program has all of /proc read-only
    named = "Read-only file system" if is_root else "worker"
    assert (code, text.splitlines()[0]) == (0, named), text
    assert "'/proc/" not in left


@pytest.mark.parametrize("process", ["self", "1"])
async def test_neither_the_program_nor_the_first_process_has_privileges(
    rooted: Bench, process: str
) -> None:
    _, text = await run(rooted, rooted.sh(f"cat /proc/{process}/status"))
    fields = dict(line.split(":\t", 1) for line in text.splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"


async def test_the_program_finds_its_signals_as_they_are_by_default(rooted: Bench) -> None:
    _, text = await run(rooted, rooted.sh("cat /proc/self/status"))
    fields = dict(line.split(":\t", 1) for line in text.splitlines())
    assert int(fields["SigBlk"], 16) == 0
    librarys_own = 1 << 31 | 1 << 32  # signals 32 and 33, which nobody else can set
    assert int(fields["SigIgn"], 16) & ~librarys_own == 0


async def test_a_program_writes_where_it_may_and_nowhere_else(rooted: Bench) -> None:
    places = ["/", "/etc", "/usr", "/dev", "/proc", "/sys", "/app", "/nsml", "/tmp", "/dev/shm"]
    tries = "; ".join(f"(: > {place}/x) 2>/dev/null && echo {place}" for place in places)
    _, text = await run(rooted, rooted.sh(tries))
    own = ["/app", "/nsml", "/tmp", "/dev/shm"]
    # an engine mounts a small /dev of its own into each container
    assert text.split() == (["/dev", *own] if rooted.isolation is Isolation.CONTAINER else own)


async def test_the_hosts_root_is_not_kept_below_the_programs(rooted: Bench) -> None:
    _, text = await run(rooted, rooted.sh("cat /proc/self/mountinfo"))
    mounts = [(line.split()[4], set(line.split()[5].split(","))) for line in text.splitlines()]
    assert [point for point, _ in mounts].count("/") == 1
    if rooted.isolation is Isolation.CONTAINER:
        return  # the engine's
    own = {"/app", "/nsml", "/tmp", "/proc", "/sys/fs/bpf", "/sys/fs/cgroup"}
    writable = {point for point, options in mounts if "ro" not in options}
    assert writable - own == {point for point, _ in mounts if point.startswith("/dev/")}
    assert all("nosuid" in options for _, options in mounts)
    devices = {point for point, options in mounts if "nodev" not in options}
    assert {one for one in devices if not one.startswith("/dev/")} <= {"/proc/locks"}, (
        "an empty one"
    )


async def test_the_program_makes_no_namespace_of_its_own(rooted: Bench) -> None:
    # In one of its own it would be mighty again: mount the control groups, and freeze the agent.
    script = "unshare --user true && echo made; unshare --user --cgroup --mount true && echo made"
    code, text = await run(rooted, rooted.sh(script + "; true"))
    assert code == 0
    assert "made" not in text
    assert "unshare" in text


async def test_replicas_do_not_see_each_other(rooted: Bench, facts: IsolationFacts) -> None:
    if not facts.machine.with_pid:
        pytest.skip(f"no pid namespace: {facts.reason}")
    neighbour = rooted.spec(RUNS_ON, replica_id=ReplicaId(session_id=SESSION, attempt=2, rank=0))
    async with rooted.new_driver() as driver:
        await driver.start(neighbour)
        await rooted.ready(neighbour)
        look = rooted.sh(
            "cat /proc/[0-9]*/comm; ls /proc; ls -a /tmp /nsml; touch /tmp/x /dev/shm/x"
        )
        code, text = await run(rooted, look)
        assert code == 0
        assert "sleep" not in text
        assert "checkpoints" in text
        await driver.kill(neighbour.replica_id, reason="done")
        await soon(driver.wait(neighbour.replica_id))


CUT_OFF = """
import json, socket, sys

def reached(kind, address):
    try:
        with socket.socket(kind, socket.SOCK_STREAM) as end:
            end.settimeout(2)
            end.connect(address)
            return "reached"
    except OSError as error:
        return type(error).__name__

port, name = sys.argv[1:]
with socket.create_server(("127.0.0.1", 0)) as own:
    loopback = reached(socket.AF_INET, own.getsockname())
answers = [reached(socket.AF_INET, (host, int(port))) for host in ("127.0.0.1", "192.0.2.1")]
answers.append(reached(socket.AF_UNIX, "\\0" + name))
interfaces = [one for _, one in socket.if_nameindex()]
itself = socket.gethostbyname("localhost")
print(json.dumps([loopback, answers, interfaces, itself]))
"""


async def test_a_program_without_a_network_reaches_itself_alone(rooted: Bench) -> None:
    name = f"nsml-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as machines,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as abstract,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        asks = ["python3", "-c", CUT_OFF, str(machines.getsockname()[1]), name]
        code, text = await run(rooted, rooted.spec(argv=asks, without_network=True))
    assert code == 0, text
    loopback, answers, interfaces, itself = json.loads(text)
    assert loopback == "reached"
    assert set(answers) <= {"ConnectionRefusedError", "OSError"}
    assert interfaces == ["lo"]
    assert itself == "127.0.0.1"


@pytest.mark.parametrize("name", ["user", "none"])
async def test_a_program_that_sees_the_machine_cannot_be_kept_from_its_network(
    name: str, tmp_path: Path, facts: IsolationFacts
) -> None:
    async with bench_named(name, tmp_path, facts) as bench, bench.new_driver() as driver:
        with pytest.raises(NodeRefused, match="cannot keep a program from the network"):
            await driver.start(bench.spec(SUCCEEDS, without_network=True))
        assert not await driver.list()


async def test_usual_places_work(rooted: Bench) -> None:
    spec = rooted.sh(
        "set -e; echo out > /dev/stdout; echo x > /dev/null; head -c 4 /dev/urandom | wc -c;"
        "t=$(mktemp); echo $t; test -w $HOME; test -c /dev/pts/ptmx; getent hosts localhost >/dev/null;"
        "test -d /sys/devices; echo fine"
    )
    code, text = await run(rooted, spec)
    assert code == 0, text
    assert text.endswith("fine\n")


NEIGHBOUR = ReplicaId(session_id=SESSION, attempt=3, rank=0)


@asynccontextmanager
async def neighbour_running(bench: Bench) -> AsyncIterator[ReplicaSpec]:
    """A session of another user, with something of each kind in its folders."""
    spec = bench.sh(
        "umask 0; cd $NSML_RUN_DIR; echo canary-of-the-neighbour | tee spool/1.records"
        " checkpoints/c tunnel/t ../tmp/t >/dev/null; mkdir -m 777 open; echo canary-too > open/f;"
        " echo canary-log; echo ready; exec sleep 1000",
        replica_id=NEIGHBOUR,
        uid=STRANGER,
    )
    async with bench.new_driver() as driver:
        await driver.start(spec)
        await bench.ready(spec)
        try:
            yield spec
        finally:
            await driver.kill(NEIGHBOUR, reason="done")
            record = await soon(driver.wait(NEIGHBOUR))
    assert record.message == "done", "it ran until it was told to stop"


def planted_in(place: Path) -> list[Path]:
    found = list(place.rglob("*"))
    files = [path for path in found if path.is_file() and path.read_bytes() == b"planted\n"]
    return files + [path for path in found if path.name == "planted"]


async def test_another_users_session_and_the_agents_files_are_out_of_reach(
    parted: Bench, tmp_path: Path
) -> None:
    token = tmp_path / "agent" / "token"
    parted.folders.create()
    token.write_text("canary-of-the-agent")
    token.chmod(0o600)
    theirs, own = parted.folders.of(NEIGHBOUR), parted.folders.of(parted.spec(SUCCEEDS).replica_id)
    async with neighbour_running(parted):
        await until(lambda: "child" in json.loads(theirs.shim.read_bytes()))
        pid = json.loads(theirs.shim.read_bytes())["child"]
        spec = parted.sh(
            f"""
            for folder in {theirs.path} {own.path} {parted.folders.path} {tmp_path / "agent"}; do
                ls $folder && echo listed; touch $folder/planted
                for name in spec.json shim.json output exit.json stop.json contact assignment; do
                    cat $folder/$name; echo planted > $folder/$name; rm -f $folder/$name
                done
            done
            cat {token}; echo planted > {token}; mv {token} {token}.gone
            cd {theirs.path}/run; cat spool/1.records checkpoints/c tunnel/t ../tmp/t open/f
            for name in spool/2.records checkpoints/d tunnel/u socket open/g ../app/a ../tmp/u; do
                echo planted > {theirs.path}/run/$name
            done
            ln {theirs.path}/run/open/f $NSML_RUN_DIR/linked; cat $NSML_RUN_DIR/linked
            kill -9 {pid}; kill -TERM {pid}; kill -STOP {pid}
            cat /proc/{pid}/environ /proc/{pid}/mem /proc/{pid}/fd/1; ls /proc/{pid}/root/ /proc/{pid}/cwd/
            echo tried
            """
        )
        code, text = await run(parted, spec)
        assert code == 0, text
        assert "tried" in text
        assert "canary" not in text
        assert "listed" not in text
        assert '"argv"' not in text
        assert not planted_in(tmp_path)
        assert token.read_text() == "canary-of-the-agent"


async def test_a_program_runs_as_its_user_and_becomes_nobody_else(parted: Bench) -> None:
    setuid = Path(shutil.which("su") or "/bin/su")
    spec = parted.sh(
        "id -u; id -g; cat /proc/self/status; cp $(command -v id) ./mine; chmod u+s,g+s ./mine; ./mine -u;"
        f" ls -l {setuid}; {setuid} -c 'echo became root' </dev/null"
        "; chown 0 ./mine; setpriv --reuid 0 id -u; echo end"
    )
    _, text = await run(parted, spec)
    first, second, *rest = text.splitlines()
    assert (first, second) == (str(ACCOUNT), str(ACCOUNT))
    fields = dict(line.split(":\t", 1) for line in rest if ":\t" in line)
    assert fields["Uid"].split() == fields["Gid"].split() == [str(ACCOUNT)] * 4
    mark = json.loads(parted.folders.of(spec.replica_id).spec.read_bytes())["mark"]
    assert fields["Groups"].split() == ([] if mark is None else [str(mark)])
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"
    assert "became root" not in text
    assert "0" not in rest


async def test_what_a_group_may_read_is_read_by_its_members_alone(
    parted: Bench, tmp_path: Path
) -> None:
    data = tmp_path / "digits"
    data.mkdir()
    (data / "file").write_text("content")
    os.chown(data, -1, STRANGER)
    data.chmod(0o550)
    mount = Mount(source=data, target="/data/digits")
    look = 'cat "$NSML_DATASET_PATH/file"; echo more > "$NSML_DATASET_PATH/new"; true'
    member = parted.sh(look, mounts=(mount,), groups=(STRANGER,))
    assert (await run(parted, member))[1].startswith("content")
    other = parted.sh(look, mounts=(mount,), replica_id=NEIGHBOUR)
    assert "content" not in (await run(parted, other))[1]
    assert [path.name for path in data.iterdir()] == ["file"]


async def test_a_root_with_folders_of_another_user_is_led_nowhere(
    parted: Bench, tmp_path: Path
) -> None:
    """The agent is root where a program may plant what leads elsewhere, also by hard links."""
    secret = tmp_path / "secret"
    secret.write_text("canary-of-root")
    spec = parted.sh(
        f"""
        cd $NSML_RUN_DIR
        ln -s {tmp_path} tunnel/out; rm -rf checkpoints && ln -s {tmp_path} checkpoints
        rm -rf spool && ln -s {tmp_path} spool; mkfifo pipe; mkfifo ../tmp/pipe
        ln -s {secret} ../app/link; mkdir -p ../app/deep/er && chmod 0 ../app/deep
        """
    )
    folder = parted.folders.of(spec.replica_id)
    async with parted.new_driver() as driver:
        await driver.start(spec)
        await soon(driver.wait(spec.replica_id))
        # as where the kernel lets everybody link to files of others (fs.protected_hardlinks = 0)
        os.link(secret, folder.app / "hard")
        os.link(secret, folder.run / "hard")
        await driver.remove(spec.replica_id)
        again = parted.sh("cat hard link; true")
        folder.create()
        os.link(secret, folder.app / "hard")
        (folder.app / "link").symlink_to(secret)
        await driver.start(again)
        await soon(driver.wait(again.replica_id))
        if parted.isolation is Isolation.USER:
            secret.chmod(0o600)
        assert secret.stat().st_uid == 0
        await driver.remove(spec.replica_id)
    assert secret.read_text() == "canary-of-root"
    assert not folder.path.exists()


HIDES = (
    "env -i setsid sh -c 'exec sleep 1001' </dev/null >/dev/null 2>&1 & echo ready; exec sleep 1000"
)
"""Leaves a process behind that has neither its mark nor its output."""


def sleepers(uid: int) -> set[int]:
    """Processes of `uid` that are neither dead nor gone."""
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                status = Path(entry.path, "status").read_text()
                if f"Uid:\t{uid}\t" in status and "State:\tZ" not in status:
                    found.add(int(entry.name))
    return found


def commands(uid: int) -> list[str]:
    """The command lines of what runs as `uid`."""
    lines = []
    for number in sleepers(uid):
        with suppress(OSError):
            words = Path(f"/proc/{number}/cmdline").read_bytes().rstrip(b"\0")
            lines.append(words.replace(b"\0", b" ").decode())
    return lines


async def test_what_hides_from_a_lost_shim_is_found_by_its_user(parted: Bench) -> None:
    spec = parted.sh(HIDES)
    async with parted.new_driver() as driver:
        await driver.start(spec)
        await parted.ready(spec)
        await until(lambda: "sleep 1001" in commands(ACCOUNT))
        parted.lose_shim(spec.replica_id)
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.SHIM_LOST
    assert not sleepers(ACCOUNT)


async def test_another_session_of_the_same_user_outlives_a_lost_shim(parted: Bench) -> None:
    spec, other = parted.sh(HIDES), parted.sh("echo ready; exec sleep 1000", replica_id=NEIGHBOUR)
    async with parted.new_driver() as driver:
        for one in (spec, other):
            await driver.start(one)
            await parted.ready(one)
        await until(lambda: "sleep 1001" in commands(ACCOUNT))
        parted.lose_shim(spec.replica_id)
        await soon(driver.wait(spec.replica_id))
        assert commands(ACCOUNT).count("sleep 1001") == 0
        assert commands(ACCOUNT).count("sleep 1000") == 1
        await driver.kill(NEIGHBOUR, reason="done")
        record = await soon(driver.wait(NEIGHBOUR))
    assert (record.why, record.message) == (ExitWhy.STOPPED, "done")
    assert not sleepers(ACCOUNT)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("own uid", None), ("own uid", False), ("user", None), ("user", False), ("docker", None)],
)
async def test_a_lost_shim_costs_another_agents_programs_nothing(
    name: str, groups: bool | None, tmp_path: Path, facts: IsolationFacts
) -> None:
    made_named = bench_named(name, tmp_path, facts, groups=groups)
    async with made_named as made, made.new_driver() as driver:
        spec = made.sh("echo ready; exec sleep 1000", uid=ACCOUNT)
        await driver.start(spec)
        await made.ready(spec)
        beside = ["sleep", "1000"]
        with subprocess.Popen(beside, user=ACCOUNT, group=ACCOUNT) as program:  # noqa: ASYNC220 - two forks
            try:
                made.lose_shim(spec.replica_id)
                await soon(driver.wait(spec.replica_id))
                assert program.poll() is None
            finally:
                program.kill()


async def test_who_takes_on_the_mark_of_another_keeps_nobody_from_an_end(parted: Bench) -> None:
    spec = parted.spec(RUNS_ON)
    feigned = parted.sh(
        f"echo ready; NSML_REPLICA={spec.replica_id} exec sleep 1000",
        replica_id=NEIGHBOUR,
        uid=STRANGER,
    )
    async with parted.new_driver() as driver:
        for one in (spec, feigned):
            await driver.start(one)
            await parted.ready(one)
        parted.lose_shim(spec.replica_id)
        await soon(driver.wait(spec.replica_id))
        assert sleepers(STRANGER), "nobody's end is another's"
        await driver.kill(NEIGHBOUR, reason="done")
        assert (await soon(driver.wait(NEIGHBOUR))).message == "done"
