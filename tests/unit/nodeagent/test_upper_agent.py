"""The agent's upper half against a scripted control plane, on a virtual clock and network."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from structlog.testing import capture_logs

from nodeagent.agent import Agent
from nodeagent.collect.spool import ReplicaSpool
from nodeagent.collect.streams import Item
from nodeagent.config import Settings
from nodeagent.dependencies import Dependencies, Machine
from nodeagent.engine.watch import EngineWatch
from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.journal import Journal
from nodeagent.network.host_network import NetworkOffer
from nodeagent.probes.interface import Device
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.replica.preparation_steps import (
    CodeHook,
    Draft,
    Hook,
    ImageHook,
    PreparationFailed,
    PythonHook,
)
from nodeagent.runtimes.interface import ImageGone, Isolation, ReplicaHandle, ReplicaSpec
from nodeagent.storage import reservations as rooms
from nodeagent.storage.reservations import Disk, Size
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.packing import pack, pack_files
from nsml.packages.requirements import HERE
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import checkpoints_pb2 as checkpoints
from nsml.v1 import resources_pb2 as resources
from nsml.v1 import sessions_pb2 as sessions
from tests.simulation.network import Network
from tests.simulation.virtual_time import VirtualClock, run
from tests.support.fake_machine import Act, FakeDriver, FakeMachine, Script
from tests.support.fake_probe import FakeProbe
from tests.support.sandboxes import environments_in
from tests.support.scripted_platform import ScriptedPlatform, assignment, session_id

FOREVER = Script(forever=True)
S = session_id(1)
OTHER = session_id(2)


DEVICE = Device(
    index=0, uuid="SIM-0", model="Simulated", memory_bytes=1 << 30, minor=None, simulated=True
)
SECOND = replace(DEVICE, index=1, uuid="SIM-1")


class NullMeter:
    def __init__(self) -> None:
        self.fails = False

    def sample(self) -> pb.NodeSample:
        if self.fails:
            raise OSError("too many open files")
        return pb.NodeSample(cpu_percent=1.0)


@dataclass
class World:
    """One platform, one machine, and agents that come and go."""

    data: Path
    network: Network
    clock: VirtualClock
    machine: FakeMachine
    platform: ScriptedPlatform
    started: list[ReplicaSpec] = field(default_factory=list)
    given: list[dict[str, str]] = field(default_factory=list)
    """Secrets, as they were when each was started."""
    meter: NullMeter = field(default_factory=NullMeter)
    probe: FakeProbe = field(default_factory=lambda: FakeProbe([DEVICE]))
    shares: dict[str, float] = field(default_factory=dict)
    hooks: list[Hook] = field(default_factory=list)
    token: str = "secret"
    mps_folder: Path | None = None
    has_grown: Callable[[], Coroutine[Any, Any, bool]] | None = None
    isolation: Isolation = Isolation.NAMESPACE

    @asynccontextmanager
    async def agent(self, server: str = "cp") -> AsyncIterator[Agent]:
        """An agent that works while the context lasts, and is then gone without a word."""
        settings = Settings(
            node="n1",
            server=server,
            data=self.data,
            sample_interval_s=5.0,
            mps_folder=self.mps_folder,
        )
        folders = ReplicaFolders(self.data / "replicas")
        driver = FakeDriver(folders, self.machine, self.clock)
        self.data.mkdir(exist_ok=True)
        journal = Journal.open(self.data / "journal.db")
        agent = Agent(
            settings,
            Dependencies(
                clock=self.clock,
                rng=random.Random(1),
                run=inline,
                run_long=inline,
                channel_factory=lambda address, **_: self.network.channel("n1", address),
                runtime=driver,
                journal=journal,
                machine=replace(MACHINE, isolation=self.isolation),
                probe=self.probe,
                load=self.shares.update,
                meter=self.meter,
                token=lambda: self.token,
                has_sockets=False,
                touch=lambda _, replica_id: self.machine.contacted(replica_id),
                hooks=self.hooks,
                has_grown=self.has_grown,
            ),
        )
        try:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(agent.run())
                yield agent
                working.cancel()
        finally:
            journal.close()

    def serve(self, address: str, platform: ScriptedPlatform) -> None:
        platform.add_to(self.network.serve(address))


MACHINE = Machine(
    boot_id="boot-1",
    host="n1.lab",
    isolation=Isolation.NAMESPACE,
    isolation_note="",
    capacity=resources.Resources(cpu_thousandths=4000),
    networks=NetworkOffer(has_own=True),
)


Test = Callable[[World], Coroutine[Any, Any, None]]


def on_virtual_time(
    data: Path, test: Test, scripts: dict[str, Script] | None = None, seed: int = 7
) -> None:
    """Run `test`; programs are scripts by the first word of their command line."""

    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        world: World

        def script_of(spec: ReplicaSpec) -> Script:
            world.started.append(spec)
            world.given.append(dict(spec.secrets))
            return (scripts or {}).get(spec.argv[0], Script())

        async with FakeMachine(clock, script_of) as machine:
            network = Network(random.Random(seed))
            world = World(data, network, clock, machine, ScriptedPlatform())
            world.serve("cp", world.platform)
            async with asyncio.timeout(3600):
                await test(world)

    run(main())


def test_registers_what_the_node_is(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.until(lambda: world.platform.registrations)
            await world.clock.sleep(1)
        said = world.platform.registrations[0]
        assert (said.node, said.boot_id, said.host) == ("n1", "boot-1", "n1.lab")
        assert said.isolation == resources.ISOLATION_NAMESPACE
        assert [device.uuid for device in said.devices] == ["SIM-0"]
        assert (said.cluster_id, said.highest_term, list(said.replicas)) == ("", 0, [])
        assert world.platform.authorization == {"Bearer secret"}
        async with world.agent():
            await world.platform.until(lambda: len(world.platform.registrations) == 2)
        assert world.platform.registrations[1].cluster_id == "test"

    on_virtual_time(tmp_path, test)


def test_how_long_each_step_of_a_preparation_takes_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        async def wait(*_: object) -> None:
            await world.clock.sleep(1.5)

        monkeypatch.setattr(CodeHook, "prepare", wait)
        with capture_logs() as logs:
            async with world.agent():
                await world.platform.order(assignment(S, "true", bundle_digest="a" * 64))
                await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        [line] = [one for one in logs if one["event"] == "replica.prepared"]
        assert line["replica"] == f"{S}.1.0"
        assert line["took_ms"]["CodeHook"] == 1500

    on_virtual_time(tmp_path, test)


def test_a_network_that_the_node_does_not_give_is_refused_whatever_is_ordered(
    tmp_path: Path,
) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            host = resources.NETWORK_HOST
            await world.platform.order(assignment(S, "true", network=host))
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert list(world.platform.registrations[0].networks) == [resources.NETWORK_OWN]
        # Control planes of the version before know the cause; this one places the session elsewhere.
        assert report.exit.cause == sessions.CAUSE_START_FAILED
        assert report.exit.node_refused
        assert "does not allow the host network" in report.exit.message
        assert not world.started

    on_virtual_time(tmp_path, test)


def test_a_step_of_a_submission_is_refused_where_it_would_have_a_network(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            stage = sessions.SESSION_STAGE_PREDICT
            await world.platform.order(assignment(S, "true", stage=stage))
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.node_refused
        assert "cannot keep sessions from its network" in report.exit.message
        assert not world.started

    on_virtual_time(tmp_path, test)


def test_a_program_that_writes_nothing_costs_one_report(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "true"))
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            folder = tmp_path / "replicas" / f"{S}.1.0"
            while folder.exists():
                await world.clock.sleep(0.01)
        assert len(world.platform.said(S)) == 1
        assert report.exit.cause == sessions.CAUSE_COMPLETED
        assert report.exit.HasField("started_at")
        assert world.platform.accepted[-1] == (1, 2)

    on_virtual_time(tmp_path, test)


@pytest.mark.parametrize("what", ["nothing", "a file", "a link"])
def test_a_program_that_removes_its_spool_ends_like_others(tmp_path: Path, what: str) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            while not world.started:
                await world.clock.sleep(0.001)
            spool = ReplicaFolders(tmp_path / "replicas").of(world.started[0].replica_id).spool
            shutil.rmtree(spool)
            match what:
                case "a file":
                    spool.touch()
                case "a link":
                    spool.symlink_to("/nowhere")
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.exit_code == 5

    on_virtual_time(tmp_path, test, {"train": Script(acts=[Act(after_s=0.03)], exit_code=5)})


def test_a_node_that_cannot_be_measured_is_still_served(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.meter.fails = True
        async with world.agent():
            await world.clock.sleep(60)
            await world.platform.order(assignment(S, "train"))
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            assert not world.platform.samples
            world.meter.fails = False
            await world.platform.until(lambda: bool(world.platform.samples))

    on_virtual_time(tmp_path, test)


def test_a_defect_in_one_stream_ends_neither_the_agent_nor_other_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ReplicaSpool.read

    def broken(spool: ReplicaSpool, *, final: bool = False) -> list[Item]:
        items = read(spool, final=final)
        if any(item.stream.replica_id.session_id == S for item in items):
            raise RuntimeError("a defect")
        return items

    monkeypatch.setattr(ReplicaSpool, "read", broken)

    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            await platform.order(assignment(S, "train"), assignment(OTHER, "train"))
            await platform.phase(OTHER, pb.REPLICA_PHASE_FINALIZED)
            await platform.phase(S, pb.REPLICA_PHASE_EXITED)
            assert platform.log(OTHER) == b"hello\n"
            assert len(platform.registrations) == 1
            monkeypatch.undo()
            await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert platform.log(S) == b"hello\n"

    on_virtual_time(
        tmp_path, test, {"train": Script(acts=[Act(output=b"hello\n"), Act(after_s=9)])}
    )


def test_a_program_that_runs_is_told_step_by_step(tmp_path: Path) -> None:
    acts = [Act(after_s=5, output=b"hello\n", records=[{"kind": "metric", "values": {"x": 1}}])]

    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        phases = [report.phase for report in world.platform.said(S)]
        assert phases == [
            pb.REPLICA_PHASE_RUNNING,
            pb.REPLICA_PHASE_EXITED,
            pb.REPLICA_PHASE_FINALIZED,
        ]
        end = world.platform.said(S, pb.REPLICA_PHASE_EXITED)[0].exit
        assert (end.cause, end.exit_code) == (sessions.CAUSE_PROGRAM_FAILED, 3)
        assert end.ran_for.seconds == 5
        assert world.platform.log(S) == b"hello\n"
        assert world.platform.records(S) == [b'{"kind": "metric", "values": {"x": 1}}']

    on_virtual_time(tmp_path, test, {"train": Script(acts=acts, exit_code=3)})


def test_a_program_is_told_who_it_is(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        order = assignment(
            S,
            "true",
            rank=1,
            replica_count=2,
            environment={"RANK": "9", "A": "b", "PET_NNODES": "7"},
        )
        order.hosts.extend(["other"])
        order.device_uuids.append("SIM-0")
        async with world.agent():
            await world.platform.order(order)
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED, rank=1)
        env = world.started[0].env
        assert env["A"] == "b"
        assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("1", "2", "localhost")
        assert (env["PET_NNODES"], env["PET_NODE_RANK"], env["NNODES"]) == ("7", "1", "2")
        assert env["NSML_PARALLEL_WORLD"] == "localhost,other"
        assert env["NSML_PARALLEL_PORTS"].split(",")[0] == env["MASTER_PORT"]
        assert (env["NSML_GPU_NUM"], env["NSML_DEVICES"]) == ("1", "SIM-0")
        assert [device.uuid for device in world.started[0].devices] == ["SIM-0"]

    on_virtual_time(tmp_path, test)


SECRET = "s3cret-7f1c"


def with_secret(*argv: str, **given: str) -> pb.Assignment:
    order = assignment(S, *argv, secrets=[sessions.SecretUse(name="TOKEN", variable="HF_TOKEN")])
    order.secrets.add(variable="HF_TOKEN", **given)
    return order


def files_with(folder: Path, text: str) -> list[str]:
    return [
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and text.encode() in file.read_bytes()
    ]


def test_a_secret_reaches_the_program_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test(world: World) -> None:
        async with world.agent() as agent:
            await world.platform.order(with_secret("train", value=SECRET))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            assert world.given == [{"HF_TOKEN": SECRET}]
            assert "HF_TOKEN" not in world.started[0].env
            assert files_with(tmp_path, "HF_TOKEN"), "or nothing is looked at"
            assert not files_with(tmp_path, SECRET)
            [runner] = agent._replicas.running()
            assert SECRET not in repr(runner) + repr(world.started) + str(runner.assignment)
            assert not runner.secrets.values
        async with world.agent():
            await world.platform.until(lambda: len(world.platform.registrations) == 2)
            await world.platform.order(with_secret("train", value=SECRET), revision=3)
            await world.platform.until(lambda: (1, 3) in world.platform.accepted)
        assert len(world.started) == 1
        assert not files_with(tmp_path, SECRET)
        assert SECRET not in "".join(capsys.readouterr())

    on_virtual_time(tmp_path, test, {"train": FOREVER})


@pytest.mark.parametrize("given", [{"problem": "secret TOKEN of kim was removed"}, None])
def test_a_secret_that_is_not_there_is_an_end_with_a_reason(
    tmp_path: Path, given: dict[str, str] | None
) -> None:
    async def test(world: World) -> None:
        order = with_secret("train", **(given or {}))
        if given is None:
            order.ClearField("secrets")
        async with world.agent():
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_START_FAILED
        assert report.exit.message == (
            given["problem"] if given else "secret TOKEN did not come with it"
        )
        assert report.exit.message.encode() in world.platform.log(S)
        assert not world.started

    on_virtual_time(tmp_path, test)


def test_what_never_began_gets_its_secrets_with_the_next_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent died between the order and the start: nothing that it left holds the value."""

    async def dies(*_: object) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    async def test(world: World) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(FakeDriver, "start", dies)
            async with world.agent():
                await world.platform.order(with_secret("train", value="an earlier value"))
                await world.platform.until(lambda: bool(world.platform.accepted))
                assert files_with(tmp_path, "HF_TOKEN"), "or nothing is looked at"
        assert not files_with(tmp_path, "an earlier value")
        await world.platform.order(with_secret("train", value=SECRET), revision=3)
        async with world.agent():
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
        assert world.given == [{"HF_TOKEN": SECRET}]

    on_virtual_time(tmp_path, test, {"train": FOREVER})


def test_an_agent_introduces_what_it_has_to_a_platform_that_may_not_know_it(
    tmp_path: Path,
) -> None:
    """Also one that has only found it running: whose it is, and since when."""

    async def test(world: World) -> None:
        order = assignment(S, "train")
        order.session_name = "kim/mnist/7"
        async with world.agent():
            await world.platform.order(order)
            began = await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            await world.clock.sleep(1000)
        async with world.agent():
            await world.platform.until(lambda: len(world.platform.registrations) == 2)
        [introduced] = world.platform.registrations[1].replicas
        assert introduced.placed_as.session_name == "kim/mnist/7"
        assert list(introduced.placed_as.device_uuids) == list(order.device_uuids)
        started_at = introduced.placed_as.started_at.ToNanoseconds()
        assert abs(started_at - began.at.ToNanoseconds()) < 60e9

    on_virtual_time(tmp_path, test, {"train": FOREVER})


def test_an_unknown_device_is_an_end_with_a_reason(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        order = assignment(S, "true")
        order.device_uuids.append("GPU-elsewhere")
        async with world.agent():
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_START_FAILED
        assert "GPU-elsewhere" in report.exit.message
        assert b"GPU-elsewhere" in world.platform.log(S)
        assert not world.started

    on_virtual_time(tmp_path, test)


def test_a_stop_order_ends_with_its_own_cause(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            order = assignment(S, "forever")
            await world.platform.order(order)
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            order.stop.cause, order.stop.reason = sessions.CAUSE_PREEMPTED, "gives way"
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert (report.exit.cause, report.exit.exit_code) == (sessions.CAUSE_PREEMPTED, 128 + 15)
        assert report.exit.message == "gives way"

    on_virtual_time(tmp_path, test, {"forever": FOREVER})


def test_a_stop_that_hangs_or_fails_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = FakeDriver.stop

    async def stop(driver: FakeDriver, replica_id: ReplicaId, **order: Any) -> None:
        if replica_id.session_id == S:
            raise OSError("no space left on device")
        if replica_id.session_id == OTHER:
            await asyncio.sleep(1_000)
        await sound(driver, replica_id, **order)

    async def test(world: World) -> None:
        monkeypatch.setattr(FakeDriver, "stop", stop)
        orders = [assignment(session_id(number), "train") for number in (1, 2, 3)]
        async with world.agent():
            await world.platform.order(*orders)
            await world.platform.phase(session_id(3), pb.REPLICA_PHASE_RUNNING)
            for order in orders:
                order.stop.cause = sessions.CAUSE_GANG_MEMBER_FAILED
            told_at = world.clock.monotonic()
            await world.platform.order(*orders)
            await world.platform.phase(session_id(3), pb.REPLICA_PHASE_FINALIZED)
            assert world.clock.monotonic() < told_at + 1

    on_virtual_time(tmp_path, test, {"train": FOREVER})


def test_what_is_to_be_stopped_is_never_started(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        order = assignment(S, "forever")
        order.stop.cause = sessions.CAUSE_STOP_REQUESTED
        async with world.agent():
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_STOP_REQUESTED
        assert not report.exit.HasField("started_at")
        assert not world.started

    on_virtual_time(tmp_path, test, {"forever": FOREVER})


def test_what_is_not_listed_is_stopped(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "forever"))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            await world.platform.order(assignment(OTHER, "true"))
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            await world.platform.phase(OTHER, pb.REPLICA_PHASE_FINALIZED)

    on_virtual_time(tmp_path, test, {"forever": FOREVER})


@pytest.mark.parametrize(("term", "revision"), [(1, 4), (0, 99)])
def test_older_orders_are_refused(tmp_path: Path, term: int, revision: int) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            await platform.order(assignment(S, "forever"), revision=5)
            await platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            older = pb.Orders(term=term, revision=revision)
            older.assignments.append(assignment(OTHER, "true"))
            platform.send(pb.ControlResponse(orders=older))
            await platform.order(platform.assignments[S, 1, 0], revision=6)
            await platform.until(lambda: (1, 6) in platform.accepted)
            assert world.machine.running(ReplicaId(session_id=S, attempt=1, rank=0))
        assert (term, revision) not in platform.accepted
        assert [spec.replica_id.session_id for spec in world.started] == [S]

    on_virtual_time(tmp_path, test, {"forever": FOREVER})


def test_orders_of_several_messages_are_obeyed_as_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            names = (S, OTHER)
            await platform.order(*[assignment(name, "forever") for name in names], revision=5)
            for name in names:
                await platform.phase(name, pb.REPLICA_PHASE_RUNNING)
            for number, name in enumerate(names):
                part = pb.Orders(term=platform.term, revision=6, more=number == 0)
                part.assignments.append(platform.assignments[name, 1, 0])
                platform.send(pb.ControlResponse(orders=part))
            await platform.until(lambda: (platform.term, 6) in platform.accepted)
            # Neither part is all that is to run: what only the other one lists goes on.
            for name in names:
                assert world.machine.running(ReplicaId(session_id=name, attempt=1, rank=0))
        assert platform.accepted.count((platform.term, 6)) == 1

    on_virtual_time(tmp_path, test, {"forever": FOREVER})


def test_the_next_agent_knows_why_it_was_to_be_stopped(tmp_path: Path) -> None:
    """And what it is told so with keeps no secret."""

    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            order = with_secret("stubborn", value=SECRET)
            await platform.order(order)
            await platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            order.stop.cause, order.stop.reason = sessions.CAUSE_PREEMPTED, "node n1 is drained"
            await platform.order(order)
            await platform.until(lambda: len(platform.accepted) == 2)
        assert not files_with(tmp_path, SECRET)
        platform.assignments.clear()  # it must know by itself
        await world.clock.sleep(60)
        async with world.agent():
            report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_PREEMPTED
        assert report.exit.message == "node n1 is drained"

    on_virtual_time(tmp_path, test, {"stubborn": Script(forever=True, stops_in_s=None)})


def test_an_agent_that_starts_anew_obeys_lower_terms(tmp_path: Path) -> None:
    """An administrator resumed its node after the store was restored from a copy."""

    async def test(world: World) -> None:
        platform = world.platform
        platform.term = 4
        async with world.agent():
            await platform.order(revision=7)
            await platform.until(lambda: (4, 7) in platform.accepted)
        platform.term, platform.starts_anew = 3, True
        platform.assignments.clear()
        async with world.agent():
            await platform.order(assignment(S, "true"), revision=2)
            await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        platform.starts_anew = False
        async with world.agent():
            await platform.until(lambda: len(platform.registrations) == 3)
        first, again, last = platform.registrations
        assert (again.highest_term, again.highest_revision) == (4, 7)
        assert (last.highest_term, last.highest_revision) == (3, 2)
        assert (first.highest_term, first.highest_revision) == (0, 0)

    on_virtual_time(tmp_path, test)


def test_an_agent_that_comes_back_refuses_what_is_older_than_it_obeyed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        platform.term = 4
        async with world.agent():
            await platform.order(revision=7)
            await platform.until(lambda: (4, 7) in platform.accepted)
        platform.term = 3
        async with world.agent():
            await platform.until(lambda: len(platform.registrations) == 2)
            await platform.order(assignment(S, "true"), revision=9)
            await world.clock.sleep(10)
        assert platform.registrations[1].highest_term == 4
        assert platform.registrations[1].cluster_id == "test"
        assert not world.started

    on_virtual_time(tmp_path, test)


def test_another_platform_is_not_obeyed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "forever"))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
        fresh = ScriptedPlatform(cluster_id="another")
        world.serve("cp", fresh)
        async with world.agent():
            await fresh.until(lambda: fresh.registrations)
            await fresh.order()
            await world.clock.sleep(60)
            assert world.machine.running(ReplicaId(session_id=S, attempt=1, rank=0))
        assert not fresh.accepted

    on_virtual_time(tmp_path, test, {"forever": FOREVER})


def test_reports_are_repeated_until_they_are_acknowledged(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        platform.faults.lose_report_acks = True
        async with world.agent():
            await platform.order(assignment(S, "true"))
            await platform.until(lambda: len(platform.said(S, pb.REPLICA_PHASE_FINALIZED)) >= 3)
            platform.faults.lose_report_acks = False
            folder = tmp_path / "replicas" / f"{S}.1.0"
            while folder.exists():
                await world.clock.sleep(0.1)
            said = len(platform.said(S))
            await world.clock.sleep(30)
            assert len(platform.said(S)) == said
        assert len(world.started) == 1

    on_virtual_time(tmp_path, test)


def test_heartbeats_go_on_when_nothing_happens(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.until(lambda: world.platform.heartbeats >= 20)
            assert 10 < world.clock.monotonic() < 21
            assert abs(world.platform.clock_said - world.clock.time()) < 1, "so a wrong one shows"
            assert len(world.platform.registrations) == 1

    on_virtual_time(tmp_path, test)


def test_a_replica_that_has_ended_is_not_started_again_while_it_is_listed(tmp_path: Path) -> None:
    """In a gang the ended member stays in the orders until the others are gone."""

    async def test(world: World) -> None:
        platform = world.platform
        platform.ended = lambda report: None  # type: ignore[method-assign]
        async with world.agent():
            await platform.order(assignment(S, "true"))
            await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            await world.clock.sleep(5)
            await platform.order(assignment(S, "true"))
            await world.clock.sleep(5)
        async with world.agent():
            await platform.until(lambda: len(platform.registrations) == 2)
            await platform.order(assignment(S, "true"))
            await platform.until(lambda: (1, platform.revision) in platform.accepted)
            await world.clock.sleep(5)
            assert len(world.started) == 1
            await platform.order()
            while list((tmp_path / "replicas").iterdir()):
                await world.clock.sleep(0.1)

    on_virtual_time(tmp_path, test)


def test_contact_keeps_what_would_be_lost_without(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        replica_id = ReplicaId(session_id=S, attempt=1, rank=0)
        async with world.agent():
            await world.platform.order(assignment(S, "train", lost_after=60.0))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            await world.clock.sleep(300)
            assert world.machine.running(replica_id)
            world.network.cut("n1", "cp")
            await world.clock.sleep(300)
            assert not world.machine.running(replica_id)
            world.network.heal("n1", "cp")
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_LOST_AFTER

    on_virtual_time(tmp_path, test, {"train": FOREVER})


def test_a_disk_that_takes_no_contact_leaves_the_agent_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        def refuse(_: ReplicaId) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            with monkeypatch.context() as disk, capture_logs() as logs:
                disk.setattr(world.machine, "contacted", refuse)
                await world.clock.sleep(60)
                assert [line["event"] for line in logs] == ["contact.not_noted"]
        assert len(world.platform.registrations) == 1

    on_virtual_time(tmp_path, test, {"train": FOREVER})


@pytest.mark.parametrize(
    "problem",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError("a defect")],
    ids=repr,
)
def test_orders_that_cannot_be_obeyed_are_asked_for_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    async def test(world: World) -> None:
        def refuse(*_: object) -> None:
            raise problem

        platform = world.platform
        async with world.agent():
            await platform.until(lambda: platform.accepted)
            with monkeypatch.context() as disk, capture_logs():  # to write each takes its time
                disk.setattr(Journal, "obey", refuse)
                await platform.order(assignment(S, "true"))
                await world.clock.sleep(60)
                assert 20 < len(platform.registrations) < 60, "its longest pause is three seconds"
            await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)

    on_virtual_time(tmp_path, test)


def test_what_the_orders_do_not_end_runs_on_without_contact(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "train", retry_count=1))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            world.network.cut("n1", "cp")
            await world.clock.sleep(1_000)
            assert world.machine.running(ReplicaId(session_id=S, attempt=1, rank=0))

    on_virtual_time(tmp_path, test, {"train": FOREVER})


def test_an_agent_whose_token_has_ended_takes_the_new_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        control = world.platform.Control

        async def taking_the_new_one(requests: Any, context: Any) -> AsyncIterator[Any]:
            if ("authorization", "Bearer new") not in context.invocation_metadata():
                refused.set()
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token has ended")
            async for message in control(requests, context):
                yield message

        refused = asyncio.Event()
        world.platform.Control = taking_the_new_one  # type: ignore[method-assign]
        world.serve("cp", world.platform)
        async with world.agent():
            await refused.wait()
            await world.clock.sleep(60)
            world.token = "new"
            await world.platform.until(lambda: world.platform.registrations)

    on_virtual_time(tmp_path, test)


def test_an_agent_follows_the_leader(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        standby = ScriptedPlatform()
        standby.faults.leader = "cp"
        world.serve("standby", standby)
        async with world.agent(server="standby"):
            await world.platform.order(assignment(S, "true"))
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            # The leader dies; the one that pointed to it takes over.
            world.network.crash("cp")
            standby.faults.leader = ""
            await standby.order(assignment(OTHER, "true"), revision=50)
            await standby.phase(OTHER, pb.REPLICA_PHASE_FINALIZED)

    on_virtual_time(tmp_path, test)


def test_sessions_outlive_agents_and_are_taken_up(tmp_path: Path) -> None:
    acts = [Act(after_s=1, output=b"%d\n" % n, records=[{"n": n}]) for n in range(60)]

    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            await platform.order(assignment(S, "train"))
            await platform.until(lambda: platform.log(S).endswith(b"9\n"))
        await world.clock.sleep(15)
        async with world.agent():
            await platform.until(lambda: len(platform.registrations) == 2)
            told = platform.registrations[1].replicas
            assert [report.phase for report in told] == [pb.REPLICA_PHASE_RUNNING]
            await platform.until(lambda: platform.log(S).endswith(b"39\n"))
        await world.clock.sleep(60)
        async with world.agent():
            report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.exit_code == 4
        assert platform.log(S) == b"".join(b"%d\n" % n for n in range(60))
        assert platform.records(S) == [b'{"n": %d}' % n for n in range(60)]
        assert platform.streams[S, 1, 0, pb.CHANNEL_METRIC, 1].received_again < 10
        assert len(world.started) == 1

    on_virtual_time(tmp_path, test, {"train": Script(acts=acts, exit_code=4)})


def test_what_is_taken_up_holds_the_devices_it_was_given(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        order = assignment(S, "train")
        order.device_uuids.append("SIM-0")
        order.resources.gpu_thousandths = 500
        async with world.agent():
            await world.platform.order(order)
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
        world.network.cut("n1", "cp")
        async with world.agent():
            world.network.heal("n1", "cp")
            world.shares.clear()
            await world.platform.until(lambda: world.shares != {})
            assert world.shares == {"SIM-0": 0.5}

    on_virtual_time(tmp_path, test, {"train": FOREVER})


def half_a_gpu(world: World) -> pb.Assignment:
    gpu = replace(DEVICE, uuid="GPU-0", simulated=False, memory_bytes=8 << 30, minor=0)
    world.probe.put(gpu)
    order = assignment(S, "true")
    order.device_uuids.append("GPU-0")
    order.resources.gpu_thousandths = 500
    return order


def test_a_part_of_a_gpu_is_kept_by_mps_where_it_runs(tmp_path: Path) -> None:
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    (pipes / "control").touch()
    (pipes / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")

    async def test(world: World) -> None:
        world.mps_folder = pipes
        order = half_a_gpu(world)
        async with world.agent():
            await world.platform.order(order)
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        (spec,) = world.started
        assert spec.device_share == 0.5
        assert spec.mps_pipes is not None
        assert spec.mps_pipes.source == pipes

    on_virtual_time(tmp_path / "data", test)


def test_a_part_of_a_gpu_is_refused_where_mps_should_run(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.mps_folder = tmp_path / "nothing"
        order = half_a_gpu(world)
        async with world.agent():
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_START_FAILED
        assert "does not run at" in report.exit.message
        assert not world.started

    on_virtual_time(tmp_path / "data", test)


def test_a_part_of_a_gpu_is_told_only_without_mps(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        order = half_a_gpu(world)
        async with world.agent():
            await world.platform.order(order)
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert world.started[0].device_share == 0.5
        assert world.started[0].mps_pipes is None

    on_virtual_time(tmp_path / "data", test)


def test_devices_that_change_are_told_of_while_sessions_go_on(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        order = assignment(S, "train")
        order.device_uuids.append("SIM-0")
        order.resources.gpu_thousandths = 1000
        async with world.agent():
            await platform.until(lambda: platform.devices)
            registered = platform.registrations[0]
            assert registered.devices == platform.devices[0].devices
            assert registered.capacity.gpu_thousandths == 1000
            await platform.order(order)
            await platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            world.probe.put(replace(DEVICE, trouble="it failed"), SECOND)
            await platform.until(lambda: len(platform.devices) == 2)
            told = {device.uuid: device.withheld for device in platform.devices[1].devices}
            assert told == {"SIM-0": "it failed", "SIM-1": ""}
            await world.clock.sleep(60)
            assert len(platform.devices) == 2
            platform.break_streams()
            await platform.until(lambda: len(platform.registrations) == 2)
            assert platform.registrations[1].devices[0].withheld == "it failed"
            assert platform.registrations[1].capacity.gpu_thousandths == 2000
            assert [one.phase for one in platform.registrations[1].replicas] == [
                pb.REPLICA_PHASE_RUNNING
            ]
            world.probe.put(DEVICE, SECOND)
            await platform.until(lambda: not platform.devices[-1].devices[0].withheld)

    on_virtual_time(tmp_path, test, {"train": FOREVER})


def test_nothing_begins_that_could_not_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(journal: Journal, term: int, revision: int) -> None:
        raise OSError("no space left on device")

    async def test(world: World) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "obey", full)
            async with world.agent():
                await world.platform.order(assignment(S, "train"))
                await world.platform.until(lambda: len(world.platform.registrations) > 1)
                assert world.started == []
        async with world.agent():
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)

    on_virtual_time(tmp_path, test)


@pytest.mark.parametrize("seed", range(5))
def test_every_byte_and_record_arrives_once_whatever_breaks(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    written = [rng.randbytes(rng.randrange(40_000)) for _ in range(80)]
    acts = [
        Act(after_s=rng.random(), output=text, records=[{"n": n}]) for n, text in enumerate(written)
    ]

    async def disturb(world: World) -> None:
        while True:
            await world.clock.sleep(rng.uniform(0.5, 4))
            match rng.randrange(5):
                case 0:
                    world.network.cut("n1", "cp")
                    await world.clock.sleep(rng.random())
                    world.network.heal("n1", "cp")
                case 1:
                    world.platform.break_streams()
                case 2:
                    world.platform.faults.lose_chunk_acks = True
                    await world.clock.sleep(rng.random() * 2)
                    world.platform.faults.lose_chunk_acks = False
                    world.platform.break_streams()
                case 3:
                    world.platform.faults.end_ingest_after = rng.randrange(1, 4)
                case 4:
                    world.platform.faults.lose_report_acks = True
                    await world.clock.sleep(rng.random() * 2)
                    world.platform.faults.lose_report_acks = False

    async def test(world: World) -> None:
        platform = world.platform
        async with asyncio.TaskGroup() as group:
            disturbing = group.create_task(disturb(world))
            await platform.order(assignment(S, "train"))
            for _ in range(3):
                async with world.agent():
                    await world.clock.sleep(rng.uniform(5, 12))
            async with world.agent():
                await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            disturbing.cancel()
        assert platform.log(S) == b"".join(written)
        assert platform.records(S) == [b'{"n": %d}' % n for n in range(80)]
        assert not platform.streams[S, 1, 0, pb.CHANNEL_LOG, 0].gaps
        assert world.network.broken_calls > 0
        assert len(world.started) == 1

    on_virtual_time(tmp_path, test, {"train": Script(acts=acts)}, seed=seed)


def test_finalized_waits_for_the_last_acknowledgement(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        platform.faults.hold_chunks = True
        async with world.agent():
            await platform.order(assignment(S, "train"))
            await platform.phase(S, pb.REPLICA_PHASE_EXITED)
            await world.clock.sleep(30)
            assert not platform.said(S, pb.REPLICA_PHASE_FINALIZED)
            platform.faults.hold_chunks = False
            platform.break_streams()
            await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert platform.log(S) == b"hello\n"

    on_virtual_time(tmp_path, test, {"train": Script(acts=[Act(output=b"hello\n")])})


def test_a_session_is_not_final_before_its_checkpoints_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = ScriptedPlatform.CommitCheckpoint

    async def slowly(platform: ScriptedPlatform, request: Any, context: Any) -> Any:
        await asyncio.sleep(5)
        return await commit(platform, request, context)

    monkeypatch.setattr(ScriptedPlatform, "CommitCheckpoint", slowly)
    saved = {"kind": "checkpoint", "name": "best", "folder": "1-best/model", "time": 1.0}

    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            folder = ReplicaFolders(tmp_path / "replicas").of(world.started[0].replica_id)
            (folder.checkpoints / "1-best" / "model").mkdir(parents=True)
            (folder.checkpoints / "1-best" / "model" / "w").write_text("weights")
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            assert (S, "best") in world.platform.checkpoints

    acts = [Act(after_s=5, records=[{**saved, "files": [["w", 7]]}])]
    on_virtual_time(tmp_path, test, {"train": Script(acts=acts)})


def test_files_that_are_kept_are_sent_by_the_next_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that they were in is gone by then, and nobody looks for them there. The log names what changed meanwhile."""
    commit, is_away = ScriptedPlatform.CommitArtifact, True

    def changing(root: Path, files: Sequence[str], **limits: Any) -> Any:
        found = pack_files(root, files, **limits)
        if "changing" in files:
            (root / "changing").write_text("another")
        return found

    async def take(platform: ScriptedPlatform, request: Any, context: Any) -> Any:
        if is_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return await commit(platform, request, context)

    monkeypatch.setattr(ScriptedPlatform, "CommitArtifact", take)
    monkeypatch.setattr("nodeagent.storage.checkpoints.pack_files", changing)

    async def test(world: World) -> None:
        nonlocal is_away
        platform = world.platform
        asked = {"keep_files": True, "output_datasets": ["made=out", "missing"]}
        async with world.agent():
            await platform.order(assignment(S, "train", **asked))
            await platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            folder = ReplicaFolders(tmp_path / "replicas").of(world.started[0].replica_id)
            folder.shim.write_text("{}")
            (folder.app / "out").mkdir()
            for file in (
                folder.app / "new",
                folder.app / "changing",
                folder.app / "out/prediction",
            ):
                while (
                    not file.exists() or file.stat().st_ctime_ns <= folder.shim.stat().st_ctime_ns
                ):
                    # more than is held while it is sent
                    file.write_bytes(file.name.encode() * (1 << 20))
            await platform.phase(S, pb.REPLICA_PHASE_EXITED)
            while folder.app.exists():
                await world.clock.sleep(1)
            await world.clock.sleep(60)
        is_away = False
        async with world.agent():
            await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        lost = {one.name: (one.file_count, bool(one.why_lost)) for one in platform.artifacts}
        assert lost == {"made": (1, False), "missing": (0, True), "/app": (1, False)}
        assert len(platform.artifacts) == 3
        *_, not_made, left_out = platform.log(S).decode().splitlines()
        assert not_made.startswith("nsml: no version of output dataset missing: ")
        what = "left out: 1 file (changed while being sent)"
        assert left_out == f"nsml: files of the working folder {what}: changing"
        [note] = [one.left_out for one in platform.artifacts if one.name == "/app"]
        assert note == what

    on_virtual_time(tmp_path, test, {"train": Script(acts=[Act(after_s=60)])})


def test_files_that_nobody_asked_to_keep_wait_for_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = ScriptedPlatform.CommitArtifact

    async def refuse(platform: ScriptedPlatform, request: Any, context: Any) -> Any:
        if not request.why_lost:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "all of 1 GB is used")
        return await commit(platform, request, context)

    monkeypatch.setattr(ScriptedPlatform, "CommitArtifact", refuse)

    async def test(world: World) -> None:
        asked = {"keep_files": True, "keep_files_by_default": True}
        async with world.agent():
            await world.platform.order(assignment(S, "train", **asked))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            folder = ReplicaFolders(tmp_path / "replicas").of(world.started[0].replica_id)
            new = folder.app / "new"
            while not new.exists() or new.stat().st_ctime_ns <= folder.spec.stat().st_ctime_ns:
                new.write_text("content")
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        [lost] = world.platform.artifacts
        assert (lost.name, lost.folder) == ("/app", "08-%artifact/model")
        assert "all of 1 GB is used" in lost.why_lost

    on_virtual_time(tmp_path, test, {"train": Script(acts=[Act(after_s=60)])})


HOSTILE = "\ud800"
"""What JSON can say and UTF-8 cannot."""


@pytest.mark.parametrize(
    "changed",
    [
        {"files": [["d/" * 600 + "f", 1]], "seal": "0" * 128},
        {"files": [["d/" * 600 + "f", 1]]},
        {"files": [[f"w{HOSTILE}", 1]], "seal": "0" * 128},
        {"files": [["w\0", 1], ["", 1], ["..", 1], ["/etc/passwd", 1]], "seal": "0" * 128},
        {"name": f"best{HOSTILE}"},
        {"name": f"lost{HOSTILE}", "folder": "3-none/model"},
        {"folder": f"2-x{HOSTILE}/model"},
        {"folder": "2-x\0/model", "seal": HOSTILE},
        {"folder": "/".join(["2-x", *["model"] * 3_000])},
        {"files": [], "seal": f"{HOSTILE}{'é' * 64}"},
    ],
    ids=str,
)
def test_no_record_of_a_checkpoint_holds_up_what_its_program_wrote(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    """It is lost, with the reason, or of nobody's making; what is behind it is sent, and the session ends."""
    false = {"kind": "checkpoint", "name": "evil", "folder": "2-x/model", "time": 1.0, "files": []}
    good = {"kind": "checkpoint", "name": "good", "folder": "1-good/model", "time": 1.0}

    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            folder = ReplicaFolders(tmp_path / "replicas").of(world.started[0].replica_id)
            for name in ("1-good", "2-x"):
                (folder.checkpoints / name / "model").mkdir(parents=True)
            (folder.checkpoints / "1-good" / "model" / "w").write_text("weights")
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            assert (S, "good") in world.platform.checkpoints
        assert world.platform.log(S) == b"hello\n"

    records = [{**false, **changed}, {**good, "files": [["w", 7]]}]
    acts = [Act(after_s=5, output=b"hello\n", records=records)]
    on_virtual_time(tmp_path, test, {"train": Script(acts=acts)})


def test_nothing_is_removed_before_its_end_is_known(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        platform.faults.lose_report_acks = True
        folder = ReplicaFolders(tmp_path / "replicas").of(
            ReplicaId(session_id=S, attempt=1, rank=0)
        )
        async with world.agent():
            await platform.order(assignment(S, "train"))
            await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            await platform.order()
            await world.clock.sleep(30)
            assert folder.exit.exists()
            platform.faults.lose_report_acks = False
            while folder.path.exists():
                await world.clock.sleep(1)

    on_virtual_time(tmp_path, test)


BINDS = {"resumable.json": b'{"save": true, "load": true}'}


def saves(number: int) -> dict[str, bytes]:
    return {f"checkpoints/{number}-best/model/w": b"weights"}


def test_what_a_session_would_lose_is_told_seldom_and_at_its_end(tmp_path: Path) -> None:
    acts = [
        Act(after_s=1, files=BINDS),
        Act(after_s=60, files=saves(1)),
        *[Act(after_s=1, files=saves(2 + one)) for one in range(100)],
        Act(after_s=40),
        Act(files=saves(200)),
    ]

    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            await platform.order(assignment(S, "train"))
            ended = await platform.phase(S, pb.REPLICA_PHASE_EXITED)
        told = platform.progress
        assert {(one.replica.session_id, one.replica.attempt) for one in told} == {(S, 1)}
        assert all(one.resumable for one in told)
        assert [one.HasField("since_saved") for one in told[:2]] == [False, True]
        assert len(told) == 7, "at first, then every half minute, and the last of all"
        assert platform.progress_after[-1] <= platform.reports.index(ended), "before its end"

    on_virtual_time(tmp_path, test, {"train": Script(acts=acts)})


def test_what_a_program_saved_that_ended_before_anybody_looked_is_told(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            await platform.order(assignment(S, "train"))
            ended = await platform.phase(S, pb.REPLICA_PHASE_EXITED)
        assert [one.resumable for one in platform.progress] == [True]
        assert platform.progress_after[-1] <= platform.reports.index(ended), "before its end"

    script = Script(acts=[Act(files={**BINDS, **saves(1)}, output=b"saved\n")])
    on_virtual_time(tmp_path, test, {"train": script})


def test_it_is_told_anew_on_every_stream(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            await platform.order(assignment(S, "forever"), assignment(OTHER, "forever", rank=1))
            await platform.until(lambda: platform.progress)
            platform.break_streams()
            await platform.until(lambda: len(platform.progress) == 2)
            await world.clock.sleep(100)
        assert [one.replica.session_id for one in platform.progress] == [S, S], "of rank 0 alone"

    script = Script(acts=[Act(after_s=1, files=BINDS)], forever=True)
    on_virtual_time(tmp_path, test, {"forever": script})


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"save": 1, "load": "yes"}', b"\xff"])
def test_what_a_program_says_of_itself_may_be_anything(tmp_path: Path, content: bytes) -> None:
    acts = [Act(files={"resumable.json": content}), Act(after_s=30)]

    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert not world.platform.progress

    on_virtual_time(tmp_path, test, {"train": Script(acts=acts)})


def test_a_later_attempt_is_told_from_what_it_goes_on(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        platform = world.platform
        async with world.agent():
            platform.checkpoints[S, ""] = checkpoints.Checkpoint(name="attempt-1")
            orders = [
                assignment(S, "train", attempt=2),
                assignment(OTHER, "train", attempt=2),
                assignment(session_id(3), "train"),
            ]
            await platform.order(*orders)
            for order in orders:
                await platform.phase(order.replica.session_id, pb.REPLICA_PHASE_FINALIZED)
        by_session = {one.replica_id.session_id: one.env for one in world.started}
        assert by_session[S]["NSML_RESUME"] == "attempt-1"
        assert "NSML_RESUME" not in by_session[OTHER], "nothing was saved"
        assert "NSML_RESUME" not in by_session[session_id(3)]
        assert sorted(platform.checkpoint_questions) == sorted([(S, S), (OTHER, OTHER)])

    on_virtual_time(tmp_path, test)


def test_notice_and_warnings_reach_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    sound = FakeDriver.stop

    async def stop(driver: FakeDriver, replica_id: ReplicaId, **order: Any) -> None:
        told.append(order)
        await sound(driver, replica_id, **order)

    monkeypatch.setattr(FakeDriver, "stop", stop)

    async def test(world: World) -> None:
        async with world.agent():
            order = assignment(S, "forever", time_limit=100.0, retry_count=1)
            await world.platform.order(order)
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            order.stop.cause = sessions.CAUSE_PREEMPTED
            order.stop.notice.FromSeconds(60)
            await world.platform.order(order)
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert told[0]["notice_s"] == 60.0
        assert (world.started[0].warning_s, world.started[0].leaves_at_limit) == (10.0, True)

    on_virtual_time(tmp_path, test, {"forever": FOREVER})


@pytest.mark.parametrize("stage", [0, sessions.SESSION_STAGE_PREDICT])
def test_pauses_of_the_program_are_told(
    tmp_path: Path, stage: sessions.SessionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not of one that predicts on hidden inputs: it could tell them by its pauses."""
    apart = replace(MACHINE, networks=NetworkOffer(has_own=True, has_none=True))
    monkeypatch.setattr(sys.modules[__name__], "MACHINE", apart)
    acts = [
        Act(after_s=5, records=[{"kind": "state", "state": "PAUSED"}]),
        Act(after_s=5, records=[{"kind": "state", "state": "RUNNING"}]),
        Act(after_s=5),
    ]

    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "train", stage=stage))
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        phases = [report.phase for report in world.platform.said(S)]
        if stage:
            assert pb.REPLICA_PHASE_RUNNING in phases
            assert pb.REPLICA_PHASE_PAUSED not in phases
            return
        assert phases[:3] == [
            pb.REPLICA_PHASE_RUNNING,
            pb.REPLICA_PHASE_PAUSED,
            pb.REPLICA_PHASE_RUNNING,
        ]

    on_virtual_time(tmp_path, test, {"train": Script(acts=acts)})


def test_code_and_data_are_fetched_once_and_shared(tmp_path: Path) -> None:
    code, data = tmp_path / "code", tmp_path / "data"
    (code / "sub").mkdir(parents=True)
    (code / "main.py").write_text("print(1)")
    (code / "sub" / "run.sh").write_text("true")
    (code / "sub" / "run.sh").chmod(0o755)
    data.mkdir()
    (data / "big").write_bytes(random.Random(3).randbytes(3_000_000))
    (data / "small").write_bytes(b"x")

    async def test(world: World) -> None:
        digests = [put(world.platform, folder) for folder in (code, data)]
        orders = []
        for number in range(3):
            order = assignment(session_id(number), "forever", bundle_digest=digests[0])
            order.spec.datasets.add(name="kim/digits", version=1, digest=digests[1])
            orders.append(order)
        async with world.agent():
            await world.platform.order(*orders)
            for number in range(3):
                await world.platform.phase(session_id(number), pb.REPLICA_PHASE_RUNNING)
        assert len(world.platform.asked_for) == len(set(world.platform.asked_for))
        for spec in world.started:
            assert [mount.target for mount in spec.mounts] == ["/data/digits"]
            assert spec.mounts[0].source == world.started[0].mounts[0].source
            assert spec.env["NSML_DATASET_NAME"] == "digits"
            app = world.data / "replicas" / str(spec.replica_id) / "app"
            assert (app / "main.py").read_text() == "print(1)"
            assert (app / "sub" / "run.sh").stat().st_mode & 0o777 == 0o755
        tree = world.started[0].mounts[0].source
        assert (tree / "big").read_bytes() == (data / "big").read_bytes()
        assert (tree / "small").stat().st_mode & 0o777 == 0o444

    on_virtual_time(tmp_path / "agent", test, {"forever": FOREVER})


@pytest.mark.parametrize("level", [Isolation.NAMESPACE, Isolation.NONE])
def test_a_new_version_of_a_dataset_costs_what_changed(tmp_path: Path, level: Isolation) -> None:
    """Versions share files, unless programs are the agent's own user and could write to them."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "big").write_bytes(random.Random(3).randbytes(3_000_000))
    (second / "new").write_bytes(b"new")

    async def test(world: World) -> None:
        world.isolation = level
        async with world.agent():
            for number, folder in enumerate((first, second)):
                order = assignment(session_id(number), "true")
                order.spec.datasets.add(name="digits", digest=put(world.platform, folder))
                await world.platform.order(order)
                await world.platform.phase(session_id(number), pb.REPLICA_PHASE_FINALIZED)
                asked = list(world.platform.asked_for)
                world.platform.asked_for.clear()
        assert len(asked) == 2  # the manifest and the new file
        tree = world.started[1].mounts[0].source
        assert (tree / "big").read_bytes() == (second / "big").read_bytes()
        before = world.started[0].mounts[0].source
        assert (tree / "big").samefile(before / "big") == (level is not Isolation.NONE)

    on_virtual_time(tmp_path / "agent", test)


def test_data_that_is_not_there_is_an_end_with_a_reason(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        order = assignment(S, "true")
        order.spec.datasets.add(name="digits", digest="0" * 64)
        async with world.agent():
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_DATA_FAILED
        assert "digits" in report.exit.message
        assert not world.started

    on_virtual_time(tmp_path, test)


@pytest.mark.parametrize("is_code", [False, True])
def test_what_is_damaged_in_the_store_is_no_reason_for_another_attempt(
    tmp_path: Path, is_code: bool
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "file").write_bytes(b"x" * 100)

    async def test(world: World) -> None:
        order = assignment(S, "true")
        digest = put(world.platform, folder)
        if is_code:
            order.spec.bundle_digest = digest
        else:
            order.spec.datasets.add(name="digits", version=2, digest=digest)
        world.platform.damaged.add(digest_of(b"x" * 100))
        async with world.agent():
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_START_FAILED
        assert "damaged in the object store; nsml " in report.exit.message
        assert is_code or "dataset digits@2" in report.exit.message
        assert not world.started

    on_virtual_time(tmp_path / "agent", test)


def test_data_that_does_not_fit_ends_its_own_session_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in use here stays, and what is not goes for what is asked for now."""
    folders = []
    for number, size in enumerate((2_000_000, 600_000, 800_000)):
        folders.append(folder := tmp_path / str(number))
        folder.mkdir()
        (folder / "file").write_bytes(random.Random(number).randbytes(size))

    def disk(*_: object) -> Disk:
        trees = (tmp_path / "agent" / "datasets").glob("*/file")
        free = 1_300_000 - sum(one.stat().st_size for one in trees)
        return Disk(free=Size(free, 1_000), keep=Size())

    async def test(world: World) -> None:
        monkeypatch.setattr(rooms, "disk_of", disk)
        orders = [assignment(session_id(number), "forever") for number in range(4)]
        for order, source in zip(orders, (1, 0, 2, 2), strict=True):
            order.spec.datasets.add(name="digits", digest=put(world.platform, folders[source]))
        async with world.agent():
            await world.platform.order(orders[0])
            await world.platform.phase(session_id(0), pb.REPLICA_PHASE_RUNNING)
            await world.platform.order(*orders[:3])
            for number in (1, 2):
                report = await world.platform.phase(session_id(number), pb.REPLICA_PHASE_FINALIZED)
                assert report.exit.cause == sessions.CAUSE_DATA_FAILED
                assert "no room for" in report.exit.message
            assert [spec.replica_id.session_id for spec in world.started] == [session_id(0)]
            orders[0].stop.cause = sessions.CAUSE_STOP_REQUESTED
            await world.platform.order(orders[0])
            await world.platform.phase(session_id(0), pb.REPLICA_PHASE_FINALIZED)
            await world.platform.order(orders[3])
            await world.platform.phase(session_id(3), pb.REPLICA_PHASE_RUNNING)
        (tree,) = (world.data / "datasets").glob("*/file")
        assert tree.read_bytes() == (folders[2] / "file").read_bytes()

    on_virtual_time(tmp_path / "agent", test, {"forever": FOREVER})


class Speaking:
    """A hook that says a line, waits to be let on, says another, and then fails where it is to."""

    def __init__(self, first: bytes = b"one\n", second: bytes = b"two\n") -> None:
        self.lines = (first, second)
        self.goes_on = asyncio.Event()
        self.failure = ""

    def applies(self, spec: sessions.SessionSpec) -> bool:
        return True

    async def prepare(self, draft: Draft) -> None:
        draft.log.write(self.lines[0])
        await self.goes_on.wait()
        draft.log.write(self.lines[1])
        if self.failure:
            raise PreparationFailed(sessions.CAUSE_ENVIRONMENT_FAILED, self.failure)


def test_what_the_preparation_says_is_in_the_log_while_it_says_it(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        hook = Speaking()
        world.hooks.append(hook)
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            await world.platform.until(lambda: world.platform.log(S) == b"one\n")
            assert not world.started
            hook.goes_on.set()
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert world.platform.log(S) == b"one\ntwo\nthree\n"

    on_virtual_time(tmp_path, test, {"train": Script(acts=[Act(output=b"three\n")])})


@pytest.mark.parametrize("times", [1, 2])
def test_what_was_prepared_and_vanished_is_prepared_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    start, left = FakeDriver.start, [ImageGone("image x is not on this node")] * times

    async def refuse(self: FakeDriver, spec: ReplicaSpec) -> ReplicaHandle:
        if left:
            raise left.pop()
        return await start(self, spec)

    monkeypatch.setattr(FakeDriver, "start", refuse)

    async def test(world: World) -> None:
        hook = Speaking()
        hook.goes_on.set()
        world.hooks.append(hook)
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        said = world.platform.log(S)
        assert said.startswith(b"one\ntwo\none\ntwo\n")
        if times == 1:
            assert (report.exit.cause, said[16:]) == (sessions.CAUSE_COMPLETED, b"three\n")
        else:
            assert report.exit.cause == sessions.CAUSE_START_FAILED
            assert "image x is not on this node" in report.exit.message

    on_virtual_time(tmp_path, test, {"train": Script(acts=[Act(output=b"three\n")])})


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ENOSPC, sessions.CAUSE_DATA_FAILED),
        (errno.EACCES, sessions.CAUSE_START_FAILED),
    ],
)
def test_a_start_that_finds_no_room_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, cause: sessions.Cause
) -> None:
    async def refuse(self: FakeDriver, spec: ReplicaSpec) -> ReplicaHandle:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FakeDriver, "start", refuse)

    async def test(world: World) -> None:
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == cause
        assert os.strerror(number) in report.exit.message

    on_virtual_time(tmp_path, test)


class AnsweringEngine(EngineWatch):
    async def through(self, work, *, waits):
        return await work()


async def test_an_environment_that_finds_no_room_may_be_tried_again(tmp_path: Path) -> None:
    async def full(_work: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    order = assignment(S, "train")
    draft = Draft(
        order, ReplicaFolder(tmp_path), PreparationLog(ReplicaFolder(tmp_path), lambda: None)
    )
    for hook in (
        PythonHook(None, full, lambda **_: HERE),
        ImageHook(
            None,
            None,
            full,
            lambda **_: HERE,
            AnsweringEngine(None, clock=None, run_long=full),
        ),
    ):  # type: ignore[arg-type]
        with pytest.raises(PreparationFailed) as failed:
            await hook.prepare(draft)
        assert failed.value.cause == sessions.CAUSE_DATA_FAILED


@pytest.mark.parametrize("first", [b"one\n", b"half a li"])
def test_who_goes_on_with_a_preparation_writes_behind_what_was_said(
    tmp_path: Path, first: bytes
) -> None:
    async def test(world: World) -> None:
        world.hooks.append(Speaking(first))
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            await world.platform.until(lambda: world.platform.log(S) == first)
        world.hooks[:] = [hook := Speaking(b"again\n")]
        hook.goes_on.set()
        async with world.agent():
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        said = first if first.endswith(b"\n") else first + b"\n"
        assert world.platform.log(S) == said + b"again\ntwo\nthree\n"

    on_virtual_time(tmp_path, test, {"train": Script(acts=[Act(output=b"three\n")])})


def test_a_connection_that_breaks_loses_and_repeats_nothing_of_a_preparation(
    tmp_path: Path,
) -> None:
    async def test(world: World) -> None:
        hook = Speaking(b"1" * 300_000, b"2" * 300_000)
        hook.failure = "it cannot be made"
        world.hooks.append(hook)
        async with world.agent():
            await world.platform.order(assignment(S, "train"))
            await world.platform.until(lambda: world.platform.log(S))
            world.network.cut("n1", "cp")
            hook.goes_on.set()
            await world.clock.sleep(1.0)
            world.network.heal("n1", "cp")
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_ENVIRONMENT_FAILED
        lines = b"1" * 300_000 + b"2" * 300_000 + b"nsml: it cannot be made\n"
        assert world.platform.log(S) == lines
        assert not world.started

    on_virtual_time(tmp_path, test)


def test_a_stop_ends_a_preparation_that_speaks(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.hooks.append(Speaking())
        order = assignment(S, "train")
        async with world.agent():
            await world.platform.order(order)
            await world.platform.until(lambda: world.platform.log(S) == b"one\n")
            order.stop.cause = sessions.CAUSE_STOP_REQUESTED
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert report.exit.cause == sessions.CAUSE_STOP_REQUESTED
        assert (world.platform.log(S), world.started) == (b"one\n", [])

    on_virtual_time(tmp_path, test)


def test_a_failed_environment_has_one_line_and_its_log_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").touch()
    (code / "requirements.txt").write_text("no_such_package\n")

    async def test(world: World) -> None:
        world.hooks.append(PythonHook(environments_in(tmp_path), inline, lambda **_: HERE))
        order = assignment(S)
        order.spec.ClearField("argv")
        order.spec.bundle_digest = put(world.platform, code)
        async with world.agent():
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        why = (
            "the environment could not be made: No solution found when resolving dependencies: Because"
            " no-such-package was not found in the provided package locations and you require"
            " no-such-package, we can conclude that your requirements are unsatisfiable."
        )
        assert (report.exit.cause, report.exit.message) == (
            sessions.CAUSE_ENVIRONMENT_FAILED,
            why,
        )
        first, *_, last = world.platform.log(S).decode().splitlines()
        assert (first, last) == ("Installing 1 requirement", f"nsml: {why}")
        assert world.platform.log(S).count(b"error: No solution found") == 1

    on_virtual_time(tmp_path / "agent", test)


def test_a_fetch_goes_on_after_the_connection_broke(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(700):
        (data / str(number)).write_bytes(b"%d" % number)

    async def test(world: World) -> None:
        order = assignment(S, "true")
        order.spec.datasets.add(name="digits", digest=put(world.platform, data))
        async with world.agent():
            await world.platform.order(order)
            for _ in range(4):
                asked = len(world.platform.asked_for)
                while len(world.platform.asked_for) < asked + 50:
                    await world.clock.sleep(0.001)
                world.network.cut("n1", "cp")
                await world.clock.sleep(0.5)
                world.network.heal("n1", "cp")
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
        assert len(list(world.started[0].mounts[0].source.iterdir())) == 700
        assert len(world.platform.asked_for) < 1000

    on_virtual_time(tmp_path / "agent", test)


def test_a_stop_ends_a_preparation_that_waits(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        order = assignment(S, "true")
        order.spec.datasets.add(name="digits", digest="0" * 64)
        waiting = asyncio.Event()

        async def never(request: Any, context: Any) -> Any:
            waiting.set()
            await asyncio.sleep(10_000)
            yield

        world.platform.GetBlobs = never  # type: ignore[method-assign]
        world.serve("cp", world.platform)
        async with world.agent():
            await world.platform.order(order)
            await waiting.wait()
            order.stop.cause = sessions.CAUSE_STOP_REQUESTED
            await world.platform.order(order)
            report = await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            assert world.clock.monotonic() < 60
        assert report.exit.cause == sessions.CAUSE_STOP_REQUESTED

    on_virtual_time(tmp_path, test)


def put(platform: ScriptedPlatform, folder: Path) -> str:
    """Have a folder in the store."""
    packed = pack(folder)
    blobs = [packed.source.read(digest) for digest in packed.manifest.blobs()]
    return platform.put_manifest(packed.manifest.encode(), *blobs)


def test_an_agent_is_outgrown_only_while_nothing_runs(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        looks: list[float] = []

        async def has_grown() -> bool:
            looks.append(world.clock.monotonic())
            return len(looks) > 3

        world.has_grown = has_grown
        async with world.agent() as agent, asyncio.TaskGroup() as group:
            outgrown = group.create_task(agent.outgrown())
            await world.platform.order(assignment(S, "train"))
            await world.platform.phase(S, pb.REPLICA_PHASE_RUNNING)
            await world.clock.sleep(3000)
            assert not looks, "nobody's work is disturbed"
            await world.platform.order()
            await world.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
            ended_at = world.clock.monotonic()
            await outgrown
            assert looks[0] <= ended_at + 600
            assert len(looks) == 4

    on_virtual_time(tmp_path, test, {"train": FOREVER})


def test_an_agent_that_nothing_can_outgrow_never_is(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.agent() as agent:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3000):
                    await agent.outgrown()

    on_virtual_time(tmp_path, test)
