"""An engine that takes its time: limits are kept, orders obeyed, and nothing begins late."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nodeagent.engine.client import Engine
from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.runtimes.container import ContainerPlace
from nodeagent.runtimes.docker import DockerDriver, EnginePlace
from nodeagent.runtimes.interface import (
    EngineGone,
    ExitRecord,
    ExitWhy,
    Isolation,
    ReplicaSpec,
    ReplicaState,
)
from nodeagent.runtimes.launch import this_machine
from nodeagent.runtimes.launcher import Launcher
from nodeagent.runtimes.records import read_claim
from nodeagent.runtimes.visits import Visits
from nsml.common.clock import SystemClock, in_own_thread, in_thread
from tests.contract.test_runtime_contract import (
    SESSION,
    is_child,
    place_for_all,
    processes,
    soon,
    until,
)
from tests.support.fake_engine import FakeEngine

REPLICA = ReplicaId(session_id=SESSION, attempt=2, rank=1)
"""Of this run alone: what is left of a replica whose shim is gone is found by this name, machine-wide, and killed."""


@dataclass
class Slow:
    """A driver, its engine, and one replica that says when its program runs."""

    driver: DockerDriver
    engine: FakeEngine
    folders: ReplicaFolders
    shims: set[int] = field(default_factory=set)
    """Every one that was started."""

    async def start(self, **more: object) -> None:
        argv = ("sh", "-c", "echo ran; exec sleep 1000")
        spec = ReplicaSpec(replica_id=REPLICA, argv=argv, isolation=Isolation.CONTAINER, **more)  # type: ignore[arg-type]
        await self.driver.start(spec)
        self.shims.add(self.driver._watched[REPLICA].shim.pid)

    async def end(self) -> ExitRecord:
        return await soon(self.driver.wait(REPLICA))

    @property
    def shim(self) -> int:
        claim = read_claim(self.folders.of(REPLICA))
        assert claim is not None
        return claim.pid

    @property
    def output(self) -> bytes:
        return self.folders.of(REPLICA).output.read_bytes()


@pytest.fixture
def folder() -> Iterator[Path]:
    with place_for_all() as place:
        yield place


@pytest.fixture
async def slow(folder: Path) -> AsyncIterator[Slow]:
    folders = ReplicaFolders(folder / "replicas")
    with FakeEngine(folder / "engine.sock") as engine:
        client = Engine(engine.socket)
        container = ContainerPlace(
            node="test", mark="m", user=f"{os.getuid()}:{os.getgid()}", open_files=(1024, 4096),
            network="none",
        )  # fmt: skip
        driver = DockerDriver(
            folders,
            machine=this_machine(with_pid=True),
            place=EnginePlace(
                engine=client, api="1.41", container=container, default_image="i", root=folder
            ),
            launcher=Launcher(in_thread), clock=SystemClock(), run=in_thread, run_long=in_own_thread,
        )  # fmt: skip
        async with driver:
            slow = Slow(driver, engine, folders)
            yield slow
            await until(lambda: engine.containers == {})
            await until(lambda: keepers(slow.shims) == [])
        client.close()


CALLS = ["create", "start", "inspect"]


def mostly(*calls: object) -> list[object]:
    """All calls, of which others than these are variants: who waits for one waits for each in the same way."""
    return [one if one in calls else pytest.param(one, marks=pytest.mark.variant) for one in CALLS]


@pytest.mark.parametrize("call", CALLS)
async def test_a_program_begins_once_its_engine_has_come_to_it(slow: Slow, call: str) -> None:
    slow.engine.hold(call)
    await slow.start()
    await until(lambda: call in slow.engine.asked)
    slow.engine.let_go(call)
    await until(lambda: slow.output == b"ran\n")
    await slow.driver.stop(REPLICA, grace_s=30, reason="seen")
    record = await slow.end()
    assert (record.why, record.signal) == (ExitWhy.STOPPED, signal.SIGTERM)


async def test_a_start_asks_the_engine_no_more_than_it_needs(slow: Slow) -> None:
    await slow.start()
    await until(lambda: slow.output == b"ran\n")
    asked = slow.engine.asked.copy()
    await slow.driver.stop(REPLICA, grace_s=30, reason="seen")
    await slow.end()
    assert asked == ["image", "create", "start", "inspect"]


@pytest.mark.skipif(os.geteuid() != 0, reason="without root no container's network is entered")
async def test_a_program_is_told_of_a_listener_that_the_agent_is_given(slow: Slow) -> None:
    argv = ("sh", "-c", "echo $URL $KEY; exec sleep 1000")
    spec = ReplicaSpec(
        replica_id=REPLICA,
        argv=argv,
        isolation=Isolation.CONTAINER,
        secrets={"KEY": "s3cret"},
        listener_variables=["URL"],
    )
    await slow.driver.start(spec)
    slow.shims.add(slow.driver._watched[REPLICA].shim.pid)
    await until(lambda: slow.output.endswith(b" s3cret\n"))
    url = slow.output.split()[0].decode()
    folder = slow.folders.of(REPLICA)
    visits = Visits(this_machine(with_pid=True).boot_id)
    for _ in range(2):  # as of an agent that is replaced
        with await visits.listener(folder) as listener:
            host, port = listener.getsockname()
            assert url == f"http://{host}:{port}"
            client = asyncio.create_task(asyncio.open_connection(host, port))
            listener.setblocking(False)
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            accepted.close()
            (await client)[1].close()
    visits.close()
    await slow.driver.stop(REPLICA, grace_s=30, reason="seen")
    await slow.end()


async def test_an_engine_that_goes_before_the_start_is_the_nodes_fault(slow: Slow) -> None:
    way = slow.engine.socket
    spec = ReplicaSpec(replica_id=REPLICA, argv=("true",), isolation=Isolation.CONTAINER)
    away = way.rename(way.with_name("away"))
    with pytest.raises(EngineGone, match="no engine answers"):
        await slow.driver.start(spec)
    assert not slow.folders.of(REPLICA).path.exists()
    away.rename(way)


@pytest.mark.parametrize("call", mostly("start"))
async def test_an_engine_that_goes_during_the_start_is_the_nodes_fault(
    slow: Slow, call: str
) -> None:
    slow.engine.hold(call)
    await slow.start()
    await until(lambda: call in slow.engine.asked)
    slow.engine.loses_an_answer = True
    slow.engine.let_go(call)
    record = await slow.end()
    assert record.why is ExitWhy.ENGINE_AWAY
    assert "does not answer" in record.message
    assert slow.output == b""


@pytest.mark.parametrize(
    ("call", "grace_s"),
    [
        ("create", 0.0),
        ("start", 1000.0),
        *(
            pytest.param(*one, marks=pytest.mark.variant)
            for one in (("create", 1000.0), ("start", 0.0), ("inspect", 0.0), ("inspect", 1000.0))
        ),
    ],
)
async def test_an_order_to_stop_is_obeyed_while_an_engine_lets_wait(
    slow: Slow, call: str, grace_s: float
) -> None:
    slow.engine.hold(call)
    await slow.start()
    await until(lambda: call in slow.engine.asked)
    await slow.driver.stop(REPLICA, grace_s=grace_s, reason="changed my mind")
    record = await slow.end()
    assert (record.why, record.message) == (ExitWhy.STOPPED, "changed my mind")
    assert (record.exit_code, record.signal) == (None, None)
    await nothing_comes_of(slow, call)


@pytest.mark.parametrize("call", mostly("create"))
async def test_limits_are_kept_while_an_engine_lets_wait(slow: Slow, call: str) -> None:
    slow.engine.hold(call)
    await slow.start(time_limit_s=0.5)
    assert (await slow.end()).why is ExitWhy.TIME_LIMIT
    await nothing_comes_of(slow, call)


@pytest.mark.parametrize("call", mostly("inspect"))
async def test_silence_ends_what_an_engine_lets_wait(slow: Slow, call: str) -> None:
    slow.engine.hold(call)
    await slow.start(lost_after_s=0.5, grace_s=0.1)
    assert (await slow.end()).why is ExitWhy.LOST_AFTER
    await nothing_comes_of(slow, call)


@pytest.mark.parametrize("call", mostly("create", "start"))
async def test_nothing_comes_of_a_shim_that_is_killed_while_it_waits(slow: Slow, call: str) -> None:
    slow.engine.hold(call)
    await slow.start()
    await until(lambda: call in slow.engine.asked)
    os.kill(slow.shim, signal.SIGKILL)
    assert (await slow.end()).why is ExitWhy.SHIM_LOST
    await nothing_comes_of(slow, call)


@pytest.mark.parametrize("call", mostly("start"))
async def test_a_start_whose_keeper_is_killed_has_failed(slow: Slow, call: str) -> None:
    slow.engine.hold(call)
    await slow.start()
    await until(lambda: call in slow.engine.asked)
    (keeper,) = [pid for pid in processes() if is_child(pid, slow.shim)]
    os.kill(keeper, signal.SIGKILL)
    record = await slow.end()
    assert (record.why, record.exit_code) == (ExitWhy.START_FAILED, None)
    assert "was killed" in record.message
    await nothing_comes_of(slow, call)


async def test_a_container_that_comes_when_its_folder_is_gone_is_removed(slow: Slow) -> None:
    slow.engine.hold("create")
    await slow.start()
    await until(lambda: "create" in slow.engine.asked)
    await slow.driver.kill(REPLICA, reason="enough")
    await slow.end()
    await soon(slow.driver.remove(REPLICA))
    slow.engine.let_go("create")
    await until(lambda: slow.engine.configs != {} and slow.engine.containers == {})
    assert slow.engine.started == 0


async def test_what_waits_for_an_engine_is_found_and_stopped_by_the_next_agent(
    slow: Slow,
) -> None:
    slow.engine.hold("create")
    await slow.start()
    await until(lambda: "create" in slow.engine.asked)
    await slow.driver.__aexit__(None, None, None)
    await slow.driver.__aenter__()
    (fact,) = await slow.driver.list()
    assert fact.state is ReplicaState.RUNNING
    await slow.driver.stop(REPLICA, grace_s=1000, reason="not wanted")
    assert (await slow.end()).why is ExitWhy.STOPPED
    await nothing_comes_of(slow, "create")


async def test_a_lost_shim_has_no_end_before_its_container_is_sure_to_be_gone(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.runtimes.shims._SETTLED_WITHIN_S", 0.2)
    monkeypatch.setattr("nodeagent.runtimes.shims._SAID_AFTER_S", 0.0)
    await slow.start()
    await until(lambda: slow.output == b"ran\n")
    way = slow.engine.socket
    away = way.rename(way.with_name("away"))
    await lose_shim_and_keeper(slow)
    (fact,) = await slow.driver.list()
    assert (fact.state, fact.pid) == (ReplicaState.RUNNING, None)
    with capture_logs() as said:
        waiting = asyncio.ensure_future(slow.driver.wait(REPLICA))
        await until(lambda: "container.not_ended" in str(said))
    assert slow.engine.containers != {}
    assert not slow.folders.of(REPLICA).exit.exists()
    away.rename(way)
    record = await soon(waiting)
    assert slow.engine.containers == {}
    assert record.why is ExitWhy.SHIM_LOST


@pytest.mark.parametrize("is_left", [True, False])
async def test_a_container_that_cannot_be_deleted_has_ended_when_nothing_runs_in_it(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, *, is_left: bool
) -> None:
    monkeypatch.setattr("nodeagent.runtimes.shims._SETTLED_WITHIN_S", 0.2)
    await slow.start()
    await until(lambda: slow.output == b"ran\n")
    slow.engine.refuses_to_remove = True
    slow.engine.says_running = is_left
    await lose_shim_and_keeper(slow)
    if is_left:
        (fact,) = await slow.driver.list()
        assert fact.state is ReplicaState.RUNNING
        slow.engine.refuses_to_remove = False
    assert (await slow.end()).why is ExitWhy.SHIM_LOST
    slow.engine.refuses_to_remove = False
    await slow.driver.remove(REPLICA)


async def test_a_restart_of_the_machine_ends_containers_whatever_the_engine_says(
    slow: Slow,
) -> None:
    await slow.start()
    await until(lambda: slow.output == b"ran\n")
    await lose_shim_and_keeper(slow)
    slow.driver._boot_id = "another"
    way = slow.engine.socket
    away = way.rename(way.with_name("away"))
    assert (await slow.end()).why is ExitWhy.SHIM_LOST
    away.rename(way)
    await slow.driver.remove(REPLICA)


def keepers(shims: set[int]) -> list[int]:
    """Keepers of these shims, in whose sessions they stay: they go when their engine has answered."""
    found = []
    for pid in processes():
        with suppress(OSError):
            is_keeper = Path(f"/proc/{pid}/comm").read_text() == "nsml-keeper\n"
            if is_keeper and os.getsid(pid) in shims:
                found.append(pid)
    return found


async def lose_shim_and_keeper(slow: Slow) -> None:
    shim = slow.shim
    (keeper,) = [pid for pid in processes() if is_child(pid, shim)]
    os.kill(shim, signal.SIGSTOP)
    for pid in (keeper, shim):
        os.kill(pid, signal.SIGKILL)
    await soon(slow.driver._watched[REPLICA].gone.wait())


async def nothing_comes_of(slow: Slow, call: str) -> None:
    """The container that is made after the end is removed, and no program ran in it."""
    slow.engine.let_go(call)
    await until(lambda: keepers(slow.shims) == [] and slow.engine.containers == {})
    assert slow.output == b""
